"""Test VR-FedEM's theory: pinned constants, and bounds against simulated runs.

The runs are on the noisy-mean model, where all constants are known in closed form. `N` and `DIM`
are the numbers of clients and of coordinates.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.fedem.formulas import moments
from experiments.fedem.formulas import variance_reduction as formulas
from fedjax_sim import Event, Plan
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import vr_fedem
from fedjax_sim.theory import fedem as theory
from fedjax_sim.theory.fedem import Constants
from tests.experiments.fedem import fedem_costs as costs
from tests.experiments.fedem.test_bounds import (
    RIDGE,
    START,
    UNIT,
    N,
    data,
    problem_of,
)

UNLIKE = Constants(2.0, 3.0, 0.5, 0.7)


# Constants, regimes and cost ----------------------------------------------------------------------


@pytest.mark.parametrize("constants", [UNIT, UNLIKE])
@pytest.mark.parametrize(("clients", "omega"), [(100, 1), (10, 1), (16, 2.5), (1, 0)])
def test_step_sizes(constants: Constants, clients: int, omega: float) -> None:
    """(10) is 1 / (2 Lambda_*); the number of examples is not in it."""
    # k_in / b = (1 + omega)^2, where b need not be rounded.
    exact = {"inner_steps": 4, "batch_size": 4 / (1 + omega) ** 2, "alpha": 1 / (1 + omega)}
    inverse = costs.inverse_step_size(constants, num_clients=clients, omega=omega, **exact)
    gamma = theory.vr_step_size(constants, num_clients=clients, omega=omega)
    assert gamma == pytest.approx(1 / (2 * inverse))


def test_the_memories_bound() -> None:
    """The bound is that of Prop. E.7, by hand."""
    bound = formulas.memory_bound(
        UNLIKE, omega=1.5, gamma=0.1, num_steps=20, gap=3.0, memory_error=0.9
    )
    assert bound == pytest.approx((2 * 2.5 * 0.9 + 16 * 0.1 * 2.5**2 * 2.0**2 / 0.5 * 3.0) / 20)


def test_cost() -> None:
    """k_in and b have the pinned values; evaluations are fewest at the best k_in."""
    assert formulas.best_inner_steps(100, 1) == pytest.approx(14.142, rel=1e-4)
    assert formulas.best_inner_steps(700, 1) == pytest.approx(37.417, rel=1e-4)
    assert [formulas.batch_size(k, 1) for k in (20, 37, 35, 80)] == [5, 10, 9, 20]
    assert formulas.batch_size(289, 0.7) == 100
    # With 4 examples and omega = 3 half an example would be best, but one example serves up to 16
    # inner steps.
    assert formulas.best_inner_steps(4, 3) == 16
    costs = [4 / k + 2 * formulas.batch_size(k, 3) for k in range(1, 50)]
    assert np.argmin(costs) == 15


@pytest.mark.parametrize("omega", [0.0, 1.0, 9.0])
@pytest.mark.parametrize("clients", [1, 30, 10**9])
def test_bounds_of_fields(clients: int, omega: float) -> None:
    """(11) and (12) by hand; with b rounded up the bound is lower."""
    gap, rounds, run = 7.0, 500, {"num_clients": clients, "omega": omega}
    gamma = theory.vr_step_size(UNLIKE, **run)
    of_field = 2 * gap / (UNLIKE.least * gamma * rounds)
    exact = 2 * (1 + gamma**2 * UNLIKE.smoothness**2 * (1 + omega) ** 2 / clients) * of_field
    inner = 21
    sizes = {"inner_steps": inner, "batch_size": formulas.batch_size(inner, omega)}
    field = formulas.field_bound(
        UNLIKE, gamma=gamma, inverse_step_size=1 / (2 * gamma), num_steps=rounds, gap=gap
    )
    assert field == pytest.approx(of_field)
    assert formulas.mean_field_bound(
        UNLIKE, num_clients=clients, gamma=gamma, field=field, **sizes
    ) <= exact * (1 + 1e-12)


# Theorem 2, by the system -------------------------------------------------------------------------


def square(vectors: np.ndarray) -> np.ndarray:
    """Compute squared norms along the last axis."""
    return np.sum(vectors**2, axis=-1)


PLAN = Plan(slots_at_once=N)


def runner(algorithm: Any, num_ticks: int) -> Callable[..., list[np.ndarray]]:
    """Compile server steps in which all clients take part.

    Args:
        algorithm: VR-FedEM on a problem.
        num_ticks: Number of server steps.

    Returns:
        From a state and a number of seeds to server models `f[seeds, k, q]` and memories
        `f[seeds, k, N, q]`, before all steps and after each; and to oracles `f[seeds, k, N, q]` and
        fields `f[seeds, k, q]` of each step.
    """
    ticks, slots = np.arange(num_ticks, dtype=np.int32), np.zeros((num_ticks, N), int)
    slots = slots.astype(np.int32)
    clients = np.broadcast_to(np.arange(N, dtype=np.int32), slots.shape)
    events = Event(
        ticks, clients, slots + 1, slots, np.ones(slots.shape), slots + ticks[:, None], slots, ticks
    )

    @jax.jit
    def run(first: Any, keys: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            def step(state: Any, event: Event) -> Any:
                after, _ = algorithm.step(key, state, event)
                return after, (after.server, after.memory.clients, after.oracle, after.field)

            return jax.lax.scan(step, first, jax.tree.map(jnp.asarray, events))[1]

        return jax.vmap(one)(keys)

    def follow(first: Any, seeds: int) -> list[np.ndarray]:
        found = [
            np.asarray(each) for each in run(first, jax.random.split(jax.random.key(1), seeds))
        ]
        for i, start in enumerate((first.server, first.memory.clients)):
            before = np.broadcast_to(start, (seeds, 1, *start.shape))
            found[i] = np.concatenate([before, found[i]], axis=1)
        return found

    return follow


@pytest.mark.slow
def test_runs_meet_theorem_2() -> None:
    """Means over 50 seeds meet (11), (12) and E.7 after 1, 5 and 20 outer loops, without a floor.

    Examples have unequal noise (toy B), and messages are quantized in blocks.
    """
    random = np.random.default_rng(4)
    y, kappa = data(2.0, examples=100, seed=4), 1 / (1 + random.uniform(0, 3, (N, 100)) ** 2)
    toy = moments.describe_noisy_mean(y, kappa, RIDGE)
    gap, inner, omega = toy.gap(START), 20, 1.0
    gamma = theory.vr_step_size(toy.constants, num_clients=N, omega=omega)
    batch = formulas.batch_size(inner, omega)
    assert batch == 5
    hyper = vr_fedem.paper(
        num_clients=N,
        batch_size=batch,
        inner_steps=inner,
        gamma=gamma,
        compression=parse_compressor("block"),
    )
    with jax.enable_x64(True):
        algorithm = vr_fedem.system.algorithm(problem_of(y, kappa, START), hyper, PLAN)
        first = algorithm.init(jax.random.key(0))
        path, memories, _, steps = runner(algorithm, 20 * inner)(first, seeds=50)
    slopes = (kappa.mean(axis=1) + RIDGE) / (1 + RIDGE)
    fields = np.mean(kappa[..., None] * y, axis=1) - slopes[:, None] * path[:, :, None]
    squares = square(fields.mean(axis=2))
    assert squares[:, 0] == pytest.approx(toy.slope**2 * np.sum((START - toy.optimum) ** 2))
    field, mean_field = square(steps).mean(axis=0), squares[:, :-1].mean(axis=0)
    memory = square(memories - fields).mean(axis=2)[:, :-1].mean(axis=0)
    exact = {"gamma": gamma, "gap": gap}
    inverse = {"alpha": 0.5, "inner_steps": inner, "batch_size": batch}
    for outer in (1, 5, 20):
        num = outer * inner
        most = formulas.field_bound(
            toy.constants, inverse_step_size=1 / (2 * gamma), num_steps=num, **exact
        )
        assert most == pytest.approx(2 * gap / (toy.constants.least * gamma * num))
        assert field[:num].mean() <= most
        again = costs.inverse_step_size(toy.constants, num_clients=N, omega=omega, **inverse)
        assert again == pytest.approx(1 / (2 * gamma))
        related = formulas.mean_field_bound(
            toy.constants,
            num_clients=N,
            gamma=gamma,
            inner_steps=inner,
            batch_size=batch,
            field=field[:num].mean(),
        )
        assert mean_field[:num].mean() <= related
        assert memory[:num].mean() <= formulas.memory_bound(
            toy.constants, omega=omega, num_steps=num, **exact
        )
    assert squares[:, -1].max() < 1e-20
