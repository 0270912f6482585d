"""Test VR-FedEM's theory: pinned constants, regimes and cost, and bounds against simulated runs.

The runs are on the noisy-mean model, where all constants are known in closed form. `N` and `DIM`
are the numbers of clients and of coordinates.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.fedem.formulas import moments
from experiments.fedem.formulas import variance_reduction as formulas
from fedjax_sim import Event, Plan
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.server.memories import Memory
from fedjax_sim.systems import vr_fedem
from fedjax_sim.theory import fedem as theory
from fedjax_sim.theory.fedem import Constants
from tests.experiments.fedem import vr_fedem_costs as vr
from tests.experiments.fedem.test_bounds import (
    DIM,
    RIDGE,
    START,
    UNIT,
    N,
    data,
    far,
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
    inverse = formulas.inverse_step_size(constants, num_clients=clients, omega=omega, **exact)
    gamma = theory.vr_step_size(constants, num_clients=clients, omega=omega)
    assert gamma == pytest.approx(1 / (2 * inverse))
    shrinkage = vr.shrinkage(constants, num_clients=clients, omega=omega)
    assert shrinkage == pytest.approx(constants.least / constants.lyapunov_smoothness / gamma - 1)


def test_the_memories_bound() -> None:
    """The bound is that of Prop. E.7, by hand."""
    bound = formulas.memory_bound(
        UNLIKE, omega=1.5, gamma=0.1, num_steps=20, gap=3.0, memory_error=0.9
    )
    assert bound == pytest.approx((2 * 2.5 * 0.9 + 16 * 0.1 * 2.5**2 * 2.0**2 / 0.5 * 3.0) / 20)


def test_cost() -> None:
    """k_in and b have the pinned values; evaluations, as counted, are fewest at the best k_in."""
    assert formulas.best_inner_steps(100, 1) == pytest.approx(14.142, rel=1e-4)
    assert formulas.best_inner_steps(700, 1) == pytest.approx(37.417, rel=1e-4)
    assert [formulas.batch_size(k, 1) for k in (20, 37, 35, 80)] == [5, 10, 9, 20]
    assert formulas.batch_size(289, 0.7) == 100
    # Three outer loops of four clients. Each has a pass over 7 examples, and five steps with twice
    # 2 examples.
    assert vr.evaluations(
        num_clients=4, num_examples=7, batch_size=2, inner_steps=5, outer_steps=3
    ) == 3 * 4 * (7 + 5 * 4)
    best = formulas.best_inner_steps(700, 1)
    at_best = vr.evaluations_per_step(700, best, 1)
    assert at_best == pytest.approx(2 * math.sqrt(1400) / 2)
    assert all(vr.evaluations_per_step(700, best * factor, 1) > at_best for factor in (0.8, 1.25))
    # With 4 examples and omega = 3 half an example would be best, but one example serves up to 16
    # inner steps.
    assert formulas.best_inner_steps(4, 3) == 16
    costs = [4 / k + 2 * formulas.batch_size(k, 3) for k in range(1, 50)]
    assert np.argmin(costs) == 15
    assert min(costs) == pytest.approx(vr.evaluations_per_step(4, 16, 3))


@pytest.mark.parametrize("omega", [0.0, 1.0, 9.0])
@pytest.mark.parametrize("clients", [1, 30, 10**9])
def test_complexity(clients: int, omega: float) -> None:
    """(11) and (12) give epsilon after 4 to 5 times gap / (v_min gamma epsilon) rounds."""
    epsilon, gap, run = 0.02, 7.0, {"num_clients": clients, "omega": omega}
    rounds = vr.rounds_needed(UNLIKE, epsilon=epsilon, gap=gap, **run)
    gamma = theory.vr_step_size(UNLIKE, **run)
    of_field = 2 * gap / (UNLIKE.least * gamma * rounds)
    assert 2 * (
        1 + gamma**2 * UNLIKE.smoothness**2 * (1 + omega) ** 2 / clients
    ) * of_field == pytest.approx(epsilon)
    shortest = gap / (UNLIKE.least * gamma * epsilon)
    assert 4 * shortest <= rounds <= 5 * shortest
    # With b rounded up the bound is lower.
    inner = 21
    sizes = {"inner_steps": inner, "batch_size": formulas.batch_size(inner, omega)}
    field = formulas.field_bound(
        UNLIKE, gamma=gamma, inverse_step_size=1 / (2 * gamma), num_steps=rounds, gap=gap
    )
    assert field == pytest.approx(of_field)
    assert formulas.mean_field_bound(
        UNLIKE, num_clients=clients, gamma=gamma, field=field, **sizes
    ) <= epsilon * (1 + 1e-12)


def test_regimes() -> None:
    """At the switching point the step is half of v_min / L_W.

    The increase of rounds, with its constants, is as tabulated in both regimes.
    """
    for omega in (0.0, 1.0, 2.5):
        point = vr.clients_for_free_compression(UNLIKE, omega)
        half = UNLIKE.least / UNLIKE.lyapunov_smoothness / 2
        assert theory.vr_step_size(UNLIKE, num_clients=point, omega=omega) == pytest.approx(half)
        assert vr.shrinkage(UNLIKE, num_clients=point, omega=omega) == pytest.approx(1)
        assert vr.shrinkage(UNLIKE, num_clients=4 * point, omega=omega) == pytest.approx(1 / 2)
    # (1 + omega)^2 (1 + 18 omega) times 4: 304 clients for omega = 1 and constants of 1.
    assert vr.clients_for_free_compression(UNIT, 1.0) == pytest.approx(304)
    assert theory.vr_step_size(UNIT, num_clients=304, omega=1.0) == pytest.approx(1 / 2)

    def increase(omega: float, clients: float) -> float:
        plain, compressed = (
            vr.rounds_needed(UNIT, num_clients=clients, omega=each, epsilon=1, gap=1)
            for each in (0.0, omega)
        )
        return compressed / plain

    assert increase(9.0, 1e12) == pytest.approx(
        vr.increase_of_rounds(9, 10**12, free=True), rel=1e-3
    )
    # For large omega: omega^1.5 / sqrt(n), times a constant that does not depend on omega and n.
    cases = [(1e4, 1e6), (1e5, 1e6), (1e5, 1e8)]
    constants = [
        increase(omega, n) / vr.increase_of_rounds(omega, n, free=False) for omega, n in cases
    ]
    np.testing.assert_allclose(constants, math.sqrt(72), rtol=0.01)
    assert vr.increase_of_rounds(9, 4, free=False) == pytest.approx(15)
    assert (
        vr.increase_of_rounds(0, 4, free=False) == vr.increase_of_rounds(1, 10**6, free=False) == 1
    )


def test_evaluations_for_an_accuracy() -> None:
    """K_CE is what runs of the required outer loops evaluate, and has the stated orders.

    These are sqrt(m) / epsilon for SPIDER-EM and sqrt(m n omega) / epsilon for strong compression.
    """
    run = {"num_clients": 30, "omega": 1.0, "epsilon": 1e-3, "gap": 7.0}
    inner, examples = 60, 2 * 30**2  # k_in at the optimum, b = 15
    assert formulas.best_inner_steps(examples, 1.0) == pytest.approx(inner)
    loops = vr.rounds_needed(UNLIKE, **run) / inner
    sizes = {
        "num_examples": examples,
        "batch_size": formulas.batch_size(inner, 1.0),
        "inner_steps": inner,
    }
    counted = vr.evaluations(num_clients=30, outer_steps=loops, **sizes)
    assert vr.evaluations_needed(UNLIKE, num_examples=examples, **run) == pytest.approx(counted)

    spider = {"num_clients": 1, "omega": 0.0, "gap": 7.0}
    gamma = UNLIKE.least / (UNLIKE.lyapunov_smoothness + 2 * UNLIKE.most * UNLIKE.smoothness)
    by_hand = (
        4
        * 7.0
        * (1 + (gamma * UNLIKE.smoothness) ** 2)
        / (UNLIKE.least * gamma * 0.1)
        * 2
        * math.sqrt(2 * 50)
    )
    assert vr.evaluations_needed(UNLIKE, num_examples=50, epsilon=0.1, **spider) == pytest.approx(
        by_hand
    )
    assert vr.evaluations_needed(UNLIKE, num_examples=200, epsilon=0.1, **spider) == pytest.approx(
        2 * by_hand
    )
    assert vr.evaluations_needed(UNLIKE, num_examples=50, epsilon=0.05, **spider) == pytest.approx(
        2 * by_hand
    )

    def burdened(examples: float, clients: float, omega: float) -> float:
        options = {"num_examples": examples, "num_clients": clients, "omega": omega}
        return vr.evaluations_needed(UNIT, epsilon=1, gap=1, **options) / math.sqrt(
            examples * clients * omega
        )

    found = [burdened(1e14, 10, 1e4), burdened(1e16, 10, 1e4), burdened(1e14, 1e3, 1e5)]
    np.testing.assert_allclose(found, burdened(1e15, 10, 1e5), rtol=1e-3)


# Theorem 2, by the system -------------------------------------------------------------------------


def square(vectors: np.ndarray) -> np.ndarray:
    """Compute squared norms along the last axis."""
    return np.sum(vectors**2, axis=-1)


PLAN = Plan(slots_at_once=N)


def runner(algorithm: Any, num_ticks: int, first_tick: int = 0) -> Callable[..., list[np.ndarray]]:
    """Compile server steps in which all clients take part.

    Args:
        algorithm: VR-FedEM on a problem.
        num_ticks: Number of server steps.
        first_tick: Number of the first of them, of which that of the outer loop follows.

    Returns:
        From a state and a number of seeds to server models `f[seeds, k, q]` and memories
        `f[seeds, k, N, q]`, before all steps and after each; and to oracles `f[seeds, k, N, q]` and
        fields `f[seeds, k, q]` of each step.
    """
    ticks, slots = first_tick + np.arange(num_ticks, dtype=np.int32), np.zeros((num_ticks, N), int)
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
        again = formulas.inverse_step_size(toy.constants, num_clients=N, omega=omega, **inverse)
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


# One step, by the system --------------------------------------------------------------------------

INNER, DRAWS, RATIO, SMALL_RIDGE, GAMMA, ALPHA, BATCH, OMEGA = 5, 6000, 0.3, 0.05, 0.3, 0.4, 3, 1.0
"""Sizes of the outer loop below.

RATIO is how close to its bound a mean must come at its closest. ALPHA is below 1 / (1 + OMEGA).
"""


class Loop(NamedTuple):
    """Draws of one outer loop from one state, with closed forms; `k` counts from the loop's start.

    Attributes:
        constants: Constants of the problem.
        client_smoothness: `f[N]`, L_i.
        spread: `f[N]`, expected squared noise of the change of an oracle in a step, over the
            squared length of the server's step.
        server: `f[draws, k, q]`, S_k for k = 0, ..., INNER.
        memories: `f[draws, k, N, q]`, V_{k,i}.
        fields: `f[draws, k, N, q]`, h_i(S_k).
        oracles: `f[draws, k, N, q]`, S_{k+1,i} for k = 0, ..., INNER - 1.
        field: `f[draws, k, q]`, H_{k+1}.
    """

    constants: Constants
    client_smoothness: np.ndarray
    spread: np.ndarray
    server: np.ndarray
    memories: np.ndarray
    fields: np.ndarray
    oracles: np.ndarray
    field: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Errors of the oracles, S_{k+1,i} - s_i(T(S_k)): `f[draws, k, N, q]`."""
        return self.oracles - self.fields[:, :-1] - self.server[:, :-1, None]

    @property
    def deltas(self) -> np.ndarray:
        """What clients compress, Delta_{k+1,i}: `f[draws, k, N, q]`."""
        return self.oracles - self.server[:, :-1, None] - self.memories[:, :-1]

    @property
    def steps(self) -> np.ndarray:
        """Squared length gamma^2 ||H_k||^2 of the step before: `f[draws, k]`, 0 for the first."""
        return np.concatenate([np.zeros((DRAWS, 1)), GAMMA**2 * square(self.field)[:, :-1]], axis=1)

    @property
    def moved(self) -> np.ndarray:
        """Sum of the squared lengths of all steps before: `f[draws, k]`."""
        return np.cumsum(self.steps, axis=1)

    @property
    def memory_error(self) -> np.ndarray:
        """Error of the memories, G_k: `f[draws, k]`."""
        return square(self.memories - self.fields).mean(axis=2)


@pytest.fixture(scope="module")
def loops() -> dict[str, Loop]:
    """Draw outer loops that start from memories at h_i ("known") or elsewhere ("far").

    With known memories all errors come from the oracles. Rand-sparsification keeps half of the
    entries, so that omega is exactly 1. A few examples weigh much and all others little, which
    makes oracles nearly as noisy as their Lipschitz constants allow.
    """
    random = np.random.default_rng(7)
    y, kappa = data(1.0, seed=7, examples=40), np.where(random.random((N, 40)) < 0.15, 0.95, 0.02)
    server, garbage = random.normal(size=DIM) + 2, random.normal(size=(N, DIM))
    slopes, shrunk = (
        (kappa.mean(axis=1) + SMALL_RIDGE) / (1 + SMALL_RIDGE),
        np.mean(kappa[..., None] * y, axis=1),
    )
    local = shrunk - slopes[:, None] * server
    starts = {"known": local, "far": local + random.normal(size=(N, DIM))}
    hyper = vr_fedem.paper(
        num_clients=N,
        batch_size=BATCH,
        inner_steps=INNER,
        gamma=GAMMA,
        alpha=ALPHA,
        compression=parse_compressor("sparsification:keep=0.5"),
    )
    with jax.enable_x64(True):
        problem = problem_of(y, kappa, START, ridge=SMALL_RIDGE)
        algorithm = vr_fedem.system.algorithm(problem, hyper, PLAN)
        # The oracles and the statistics of before the outer loop must not matter.
        first = algorithm.init(jax.random.key(0))._replace(
            server=jnp.asarray(server), oracle=jnp.asarray(garbage), seen=jnp.asarray(garbage[0])
        )
        follow = runner(algorithm, INNER, first_tick=INNER)
        drawn = {
            name: follow(
                first._replace(memory=Memory(jnp.asarray(start), jnp.asarray(start.mean(axis=0)))),
                DRAWS,
            )
            for name, start in starts.items()
        }
    smoothness = np.sqrt(np.mean((kappa + SMALL_RIDGE) ** 2, axis=1)) / (1 + SMALL_RIDGE)
    spread = kappa.var(axis=1) / (1 + SMALL_RIDGE) ** 2 / BATCH
    constants = moments.describe_noisy_mean(y, kappa, SMALL_RIDGE).constants
    return {
        name: Loop(
            constants,
            smoothness,
            spread,
            path,
            memory,
            shrunk - slopes[:, None] * path[:, :, None],
            oracles,
            field,
        )
        for name, (path, memory, oracles, field) in drawn.items()
    }


@pytest.fixture(params=["known", "far"])
def loop(loops: dict[str, Loop], request: pytest.FixtureRequest) -> Loop:
    """Return the draws that start from memories at h_i, or elsewhere."""
    return loops[request.param]


@pytest.mark.slow
def test_oracles_of_an_outer_loop(loop: Loop) -> None:
    """Oracles are exact in the first step and unbiased given the past in later ones.

    The variance given the past is that of one step, and the whole variance that of all steps. Both
    are within the bounds by Lipschitz constants.
    """
    errors = loop.errors
    np.testing.assert_allclose(errors[:, 0], 0, atol=1e-12)
    fresh = np.diff(errors, axis=1)
    assert far(fresh, 0.0) < 5
    assert far(square(fresh) - loop.spread * loop.steps[:, 1:, None], 0.0) < 5
    assert far(square(errors)[:, 1:] - loop.spread * loop.moved[:, 1:, None], 0.0) < 5
    for found, moved in (
        (square(fresh).mean(axis=0), loop.steps[:, 1:]),
        (square(errors)[:, 1:].mean(axis=0), loop.moved[:, 1:]),
    ):
        most = [
            [
                vr.oracle_error_bound(each, batch_size=BATCH, moved=m)
                for each in loop.client_smoothness
            ]
            for m in moved.mean(axis=0)
        ]
        assert (found <= most).all()
        assert np.max(found / most) > RATIO


def test_memories_of_an_outer_loop(loop: Loop) -> None:
    """Memories have the right mean and variance given the oracles, and meet the bounds.

    The mean E[V_{k+1,i} | S_{k+1,i}] is (1 - alpha) V_{k,i} + alpha (S_{k+1,i} - S_k), and the
    variance is alpha^2 omega ||Delta||^2.
    """
    before, deltas = loop.memories[:, :-1], loop.deltas
    rest = (
        loop.memories[:, 1:]
        - (1 - ALPHA) * before
        - ALPHA * (loop.oracles - loop.server[:, :-1, None])
    )
    assert far(rest, 0.0) < 5
    assert far(rest * (loop.oracles - loop.oracles.mean(axis=0)), 0.0) < 5
    assert far(square(rest) - ALPHA**2 * OMEGA * square(deltas), 0.0) < 5
    # The error with respect to h_i(S_k), before the server moves on, is known exactly.
    now = square(loop.memories[:, 1:] - loop.fields[:, :-1])
    expected = (1 - ALPHA) * square(before - loop.fields[:, :-1]) + ALPHA * square(loop.errors)
    assert far(now - expected + ALPHA * (1 - ALPHA * (1 + OMEGA)) * square(deltas), 0.0) < 5

    memory, moved, field = (
        loop.memory_error.mean(axis=0),
        loop.moved.mean(axis=0),
        square(loop.field).mean(axis=0),
    )
    of_deltas, of_memories = [], []
    for k in range(INNER):
        state = {"batch_size": BATCH, "moved": moved[k], "memory_error": memory[k]}
        if moved[k] + memory[k] > 0:
            of_deltas.append(square(deltas)[:, k].mean() / vr.delta_bound(loop.constants, **state))
        after = vr.memory_step_bound(
            loop.constants, alpha=ALPHA, gamma=GAMMA, field=field[k], **state
        )
        of_memories.append(memory[k + 1] / after)
    for ratios in (of_deltas, of_memories):
        assert RATIO < max(ratios) < 1


def test_fields_of_an_outer_loop(loop: Loop) -> None:
    """The error of H is exactly that of compression and of the oracles, and within the bound.

    In the first step it is E||H_{t,1} - h||^2 = (omega / n) G_{t,0}.
    """
    off = square(loop.field - loop.fields[:, :-1].mean(axis=2))
    deltas, errors = square(loop.deltas).mean(axis=2), square(loop.errors).mean(axis=2)
    assert far(off - (OMEGA * deltas + errors) / N, 0.0) < 5
    np.testing.assert_allclose(deltas[:, 0], loop.memory_error[:, 0], rtol=1e-9, atol=1e-20)
    sizes = {"num_clients": N, "omega": OMEGA, "batch_size": BATCH}
    moved = loop.moved.mean(axis=0)
    most = [
        vr.field_error_bound(loop.constants, moved=moved[k], delta2=deltas[:, k].mean(), **sizes)
        for k in range(INNER)
    ]
    assert most[0] == pytest.approx(OMEGA / N * loop.memory_error[:, 0].mean())
    # The first is an equality, up to five standard errors and rounding.
    assert (off.mean(axis=0) <= most + 5 * off.std(axis=0) / math.sqrt(DRAWS) + 1e-20).all()
    assert (off.mean(axis=0)[1:] / most[1:]).min() > RATIO


def test_bounds_of_one_step_in_the_papers_form() -> None:
    """The bounds are those of App. E, by hand."""
    moved, memory_error, field = 0.6, 0.9, 1.7
    assert vr.oracle_error_bound(2.0, batch_size=3, moved=moved) == pytest.approx(4 / 3 * 0.6)
    assert vr.delta_bound(
        UNLIKE, batch_size=3, moved=moved, memory_error=memory_error
    ) == pytest.approx(2 * 4 / 3 * 0.6 + 2 * 0.9)
    of_field = vr.field_error_bound(
        UNLIKE, num_clients=7, omega=1.5, batch_size=3, moved=moved, delta2=5.0
    )
    assert of_field == pytest.approx(1.5 / 7 * 5.0 + 4 / (7 * 3) * 0.6)
    after = vr.memory_step_bound(
        UNLIKE,
        alpha=0.4,
        gamma=0.3,
        batch_size=3,
        moved=moved,
        field=field,
        memory_error=memory_error,
    )
    assert after == pytest.approx(0.8 * 0.9 + 5 * 4 * 0.09 * 1.7 + 0.8 * 4 / 3 * 0.6)
