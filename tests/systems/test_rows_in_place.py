"""What is kept for every client stays where it is: no tick copies the rows of all clients."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Event, Layout, Plan
from fedjax_sim.core import trees
from fedjax_sim.core.events import DRAWN
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.shares import listed
from fedjax_sim.models.networks import MLP
from fedjax_sim.partition import Partition
from fedjax_sim.problems import make_classification
from tests.conftest import slow_but

N, SLOTS = 10_000, 10
NUMBERS = 784 * 32 + 32 + 32 * 10 + 10
ROWS = 4 * N * 784 * 32
"""Bytes of the first layer for each client: one gigabyte."""


@pytest.fixture(scope="module")
def perceptron() -> Any:
    """10,000 clients with two images each, and a perceptron 784-32-10."""
    images = np.zeros((20, 28, 28, 1), np.uint8)
    labels = np.arange(20, dtype=np.int32) % 10
    data = Dataset(images, labels, images, labels, 10, "blank")
    index = np.arange(2 * N) % 20
    return make_classification(MLP((32,), 10), data, Partition(index, np.full(N, 2)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", slow_but(["scaffold", "fedper"], ["scaffold", "ditto", "feddyn", "fedper"])
)
def test_rows_are_changed_in_place(perceptron: Any, name: str) -> None:
    """The compiled program has no room for a second copy of the rows, and no copy of them.

    Clients drop out, so that the program must also leave everything as it is in an empty tick.
    """
    system = fedjax_sim.SYSTEMS[name]
    sizes = {"num_clients": N, "num_selected": SLOTS, "local_steps": 3, "batch_size": 2}
    # FedPer keeps its first layer for every client, which is the larger one.
    personal = {"personal": "Dense_0"} if name == "fedper" else {}
    hyper = system.paper(drop_rate=0.5, **sizes, **personal)
    (lowered,) = listed(
        system,
        perceptron,
        hyper,
        seeds=1,
        devices=jax.devices()[:1],
        budget=fedjax_sim.Ticks(4),
        num_evals=1,
        layout=Layout(SLOTS, False, 1),
    ).lower()
    program = lowered.compile()
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes > ROWS
    assert memory.temp_size_in_bytes < ROWS / 10
    lines = [line for line in program.as_text().splitlines() if f"{N},784,32]" in line]
    copies = [line for line in lines if " copy(" in line]
    assert lines
    assert copies == []


ARITHMETIC = ("add", "sub", "mul", "div", "neg", "max", "exp", "log", "select_n", "add_any")


def operations(program: Any) -> float:
    """Count the arithmetic operations of a jaxpr on floating-point numbers."""
    total = 0.0
    for equation in program.eqns:
        (out, *_), name = (var.aval for var in equation.outvars), equation.primitive.name
        inner = [*map(operations, trees.programs_within(equation))]
        if inner:
            total += sum(inner) * (equation.params["length"] if name == "scan" else 1)
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * out.size * math.prod(left[axis] for axis in contracted)
        elif name in ARITHMETIC and jnp.issubdtype(out.dtype, jnp.floating):
            total += out.size
        elif name == "reduce_sum" and jnp.issubdtype(out.dtype, jnp.floating):
            total += equation.invars[0].aval.size
    return total


def test_a_tick_costs_little_more_than_that_of_fedavg(perceptron: Any) -> None:
    """At most 1.3 times its arithmetic, for as many gradients: Ditto takes twice as many.

    With ten slots of 20 steps on batches of 32.
    """
    steps, plan = 20, Plan(slots_at_once=SLOTS)
    facts = DRAWN._replace(most_steps=steps, same_steps=True)
    slots, number = jax.ShapeDtypeStruct((SLOTS,), "int32"), jax.ShapeDtypeStruct((), "int32")
    weight = jax.ShapeDtypeStruct((SLOTS,), "float32")
    event = Event(number, slots, slots, slots, weight, slots, slots, number, facts=facts)

    def of_tick(name: str) -> float:
        system = fedjax_sim.SYSTEMS[name]
        hyper = system.paper(num_clients=N, num_selected=SLOTS, local_steps=steps, batch_size=32)
        hyper = jax.tree.map(jnp.float32, hyper)
        algorithm = system.algorithm(perceptron, hyper, plan)
        key = jax.random.key(0)
        state = jax.eval_shape(algorithm.init, key)
        return operations(jax.make_jaxpr(algorithm.step)(key, state, event).jaxpr)

    fedavg = of_tick("fedavg")
    assert fedavg > 6 * 32 * NUMBERS * SLOTS * steps * 0.6  # the first gradient needs no input's
    assert fedavg < of_tick("scaffold") < 1.3 * fedavg
    assert 2 * fedavg < of_tick("ditto") < 1.3 * 2 * fedavg
