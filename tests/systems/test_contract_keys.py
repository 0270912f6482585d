"""No system uses a random key twice."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

import fedjax_sim
from fedjax_sim import Layout, Plan, System
from fedjax_sim.core.settings import struct
from fedjax_sim.core.types import LatentProblem
from fedjax_sim.server.compression import BlockQuantization
from tests.systems.conftest import Kind
from tests.systems.hand_made import CLIENTS, STEPS, events_of, replay


@pytest.fixture
def key_reuse_check() -> Iterator[None]:
    """Let JAX raise an error if a key is used twice."""
    with jax.debug_key_reuse(True):
        yield


def trace(system: System, problem: Any, hyper: Any, algorithm: Callable) -> None:
    """Trace the timeline and the learning of a run, which checks keys; nothing is compiled."""
    key, plan = jax.random.key(0), Plan(rows=3, slots_at_once=3)
    with jax.enable_x64(True):
        jax.eval_shape(jax.jit(lambda key: system.timeline(key, hyper, 3)), key)
    changed = system._replace(algorithm=algorithm)
    events = events_of(system, CLIENTS, STEPS)
    jax.eval_shape(jax.jit(lambda key: replay(changed, plan, problem, hyper, key, events)), key)


def test_no_key_is_used_twice(
    system: System, kind: Kind, small: Callable, key_reuse_check: None
) -> None:
    """Neither in the timeline nor in learning."""
    trace(system, kind.make(), small(system), system.algorithm)


@pytest.mark.of_each_kind(2)
def test_a_key_used_twice_is_noticed(
    system: System, kind: Kind, small: Callable, key_reuse_check: None
) -> None:
    """The counterpart of the test above: a loss, or a compressor, draws once more from its key."""
    if system.name == "em":
        pytest.skip("nothing is drawn")

    @struct
    class CarelessCompressor(BlockQuantization):
        def apply(self, key: jax.Array, vector: jax.Array) -> jax.Array:
            return super().apply(key, vector) * jax.random.uniform(key)

    def careless(problem: Any, hyper: Any, plan: Plan) -> fedjax_sim.Algorithm:
        if isinstance(problem, LatentProblem):
            return system.algorithm(problem, hyper.replace(compression=CarelessCompressor()), plan)

        class Careless(type(problem)):
            def loss(
                self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
            ) -> jax.Array:
                return super().loss(params, client, examples, key) * jax.random.uniform(key)

        return system.algorithm(Careless(**vars(problem)), hyper, plan)

    with pytest.raises(jax.errors.KeyReuseError):
        trace(system, kind.make(), small(system), careless)


def test_no_key_is_used_twice_by_the_engine(
    regression: Callable, small: Callable, key_reuse_check: None
) -> None:
    """One lane through the whole engine uses the streams of timeline, start and learning."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    layout = Layout(slots_at_once=4, lanes_at_once=False, lane_devices=1)
    fedjax_sim.simulate(
        system,
        regression(),
        small(system),
        seed=1,
        budget=fedjax_sim.Ticks(3),
        num_evals=3,
        layout=layout,
    )
