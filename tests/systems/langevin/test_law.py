"""FA-LD: the law of its average on Gaussian clients, and the noise of a round.

Laws of one coordinate are tested on problems with many equal coordinates, whose noise is
independent: a lane is as many chains. Coordinates of a lane have the participants in common, so
that more lanes are run under partial participation.

Dimension letters: `N` clients.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Event, Layout, Plan
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import GaussianClients
from fedjax_sim.systems import langevin
from tests.conftest import slow_but

CHAINS, FULL, PARTIAL = 10_000, 250, 1000
"""Chains, and lanes with everyone and under partial participation."""
WIDE = Layout(slots_at_once=8, lanes_at_once=True, lane_devices=1)
RHO = [0.0, 0.5, 1.0]
RHO_SHARED = [0.0, 0.7, 1.0]

# For each K: the stationary mean, and the variances after averaging everyone and after receiving
# one client, for rho = 0, 0.5, 1. H = (1, 4), b = (-1, 1), p = (1/2, 1/2), eta = 0.05, tau = 1.
UNEQUAL_HESSIANS = {
    1: (0.600000, (0.426667, 0.426667, 0.426667), (0.902295, 0.793005, 0.465137)),
    5: (0.496474, (0.473308, 0.469947, 0.459865), (1.196558, 1.069132, 0.686852)),
    20: (0.212859, (0.606548, 0.584436, 0.518099), (1.899117, 1.742603, 1.273060)),
    100: (0.002969, (0.651697, 0.622319, 0.534184), (2.297494, 2.134568, 1.645791)),
}
TICKS = {1: 40, 5: 16, 20: 5, 100: 2}
"""Rounds from the stationary mean until the variance is stationary to 0.1 standard errors."""
# For each participation, S and counts: mean, and variances for rho = 0, 0.7, 1. H = 2,
# b = (-1, -1/2, 0, 1/2, 1), eta = 0.05, K = 4.
EQUAL, RISING = (1, 1, 1, 1, 1), (2, 3, 4, 5, 6)
SHARED_HESSIAN = {
    ("full", 5, EQUAL): (0.0, (0.526316, 0.526316, 0.526316)),
    ("full", 5, RISING): (0.25, (0.526316, 0.526316, 0.526316)),
    ("with_replacement", 2, EQUAL): (0.0, (1.630862, 1.115072, 0.578230)),
    ("with_replacement", 2, RISING): (0.25, (1.624372, 1.108583, 0.571741)),
    ("without_replacement", 2, EQUAL): (0.0, (1.354725, 0.967883, 0.565251)),
    ("without_replacement", 4, EQUAL): (0.0, (0.664384, 0.599910, 0.532805)),
}


def chains(
    problem: GaussianClients, rho: list[float], *, ticks: int, **settings: Any
) -> np.ndarray:
    """Return the models of chains after some rounds, `f64[rho, lanes, coordinates]`.

    Programs of different calls differ only in slots and participation, so most are shared.
    """
    with jax.enable_x64(True):
        hyper = langevin.paper(
            num_clients=len(problem.centers), step_size=0.05, gradient="exact", **settings
        )
        run = fedjax_sim.sweep(
            langevin.system,
            problem,
            hyper,
            seeds=CHAINS // problem.centers.shape[1],
            settings={"rho": rho},
            budget=fedjax_sim.Ticks(ticks),
            num_evals=ticks,
            layout=WIDE._replace(evals_per_chunk=1),
        )
    assert run.models.dtype == np.float64
    return run.models.reshape(len(rho), -1, problem.centers.shape[1])


def wide(centers: Any, participation: str = "full") -> np.ndarray:
    """Repeat the clients' centers `[N]` for as many coordinates as chains of a lane."""
    lanes = FULL if participation == "full" else PARTIAL
    return np.tile(np.asarray(centers, float)[:, None], (1, CHAINS // lanes))


def assert_moments(samples: np.ndarray, mean: float, variances: tuple[float, ...]) -> None:
    """Compare means and variances within five standard errors, which come from the lanes.

    Under partial participation the law is a mixture, and coordinates of a lane are dependent.
    """
    centred = samples - samples.mean(axis=(1, 2), keepdims=True)
    squares = np.square(centred).mean(axis=2)
    found, error = squares.mean(axis=1), squares.std(axis=1) / np.sqrt(len(squares[0]))
    shift = samples.mean(axis=2).std(axis=1) / np.sqrt(len(squares[0]))
    np.testing.assert_array_less(np.abs(samples.mean(axis=(1, 2)) - mean), 5 * shift)
    np.testing.assert_array_less(np.abs(found - variances), 5 * error)
    assert (error < 0.05 * found).all() and (shift < 0.04 * np.sqrt(found)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("participation", "local_steps"),
    [
        ("full", 5),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in (
                *(("full", local_steps) for local_steps in UNEQUAL_HESSIANS if local_steps != 5),
                ("with_replacement", 1),
                ("with_replacement", 20),
                ("without_replacement", 1),
                ("without_replacement", 20),
            )
        ),
    ],
)
def test_unequal_hessians(participation: str, local_steps: int) -> None:
    """If one of two clients is selected, both schemes have the same law."""
    mean, of_all, of_one = UNEQUAL_HESSIANS[local_steps]
    with jax.enable_x64(True):
        problem = GaussianClients.of(
            np.array([1.0, 4.0]), wide([-1.0, 1.0], participation), start=mean
        )
    settings = {"participants": participation, "local_steps": local_steps}
    settings |= {} if participation == "full" else {"num_selected": 1}
    assert_moments(
        chains(problem, RHO, ticks=TICKS[local_steps], **settings),
        mean,
        of_all if participation == "full" else of_one,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", slow_but([("full", 5, RISING), ("without_replacement", 2, EQUAL)], SHARED_HESSIAN)
)
def test_shared_hessian(case: tuple[str, int, tuple[int, ...]]) -> None:
    """Five clients with equal Hessians, and equal or rising numbers of examples."""
    participation, selected, counts = case
    mean, variances = SHARED_HESSIAN[case]
    with jax.enable_x64(True):
        problem = GaussianClients.of(
            2.0, wide(np.linspace(-1, 1, 5), participation), counts=np.array(counts), start=mean
        )
    samples = chains(
        problem,
        RHO_SHARED,
        ticks=15,
        participants=participation,
        local_steps=4,
        **({} if participation == "full" else {"num_selected": selected}),
    )
    assert_moments(samples, mean, variances)


@pytest.mark.slow
def test_one_long_round_averages_the_local_posteriors() -> None:
    """Client c alone samples from N(b_c, tau / (p_c H_c)), from any start.

    Discretisation divides the variance by 1 - eta H_c / 2.
    """
    hessians, share = np.array([1.0, 4.0]), 0.5
    with jax.enable_x64(True):
        problem = GaussianClients.of(hessians, wide([-1.0, 1.0]), start=0.6)
    samples = chains(problem, RHO, ticks=1, local_steps=150)[:1]
    assert_moments(
        samples, 0.0, (share**2 * np.sum(1 / (share * hessians * (1 - 0.05 * hessians / 2))),)
    )


COUNTS = (2, 3, 4, 5, 6)
STEPS, ETA, TAU = 3, 0.05, 1.3


def free(counts: tuple[int, ...] = COUNTS, dim: int = 1) -> GaussianClients:
    """Make clients without a gradient, whose models move by noise alone."""
    return GaussianClients.of(0.0, np.zeros((len(counts), dim)), counts=np.array(counts))


@jax.jit
def _increments(
    tick: jax.Array, steps: jax.Array, keys: jax.Array, problem: GaussianClients, hyper: Any
) -> jax.Array:
    num = problem.counts.shape[0]
    algorithm = langevin.system.algorithm(problem, hyper, Plan(slots_at_once=num))
    zero = jnp.zeros(num, "int32")

    def one(key: jax.Array, weight: jax.Array) -> jax.Array:
        event = Event(tick, jnp.arange(num), zero + steps, zero, weight, zero, zero, jnp.int32(0))
        return algorithm.step(key, algorithm.init(key), event)[0].server[0]

    return jax.vmap(lambda key: jax.vmap(partial(one, key))(jnp.eye(num)))(keys)


def increments(
    rho: float,
    *,
    tick: int = 0,
    steps: int = STEPS,
    counts: Any = COUNTS,
    **settings: Any,
) -> np.ndarray:
    """Return how far each client moves in a round, from one start and one noise: `[CHAINS, N]`.

    A client's model is the average in which it has all the weight.
    """
    with jax.enable_x64(True):
        hyper = langevin.paper(
            num_clients=5,
            step_size=ETA,
            temperature=TAU,
            gradient="exact",
            local_steps=steps,
            rho=rho,
            **settings,
        )
        keys = jax.vmap(lambda seed: stream(jax.random.key(seed), "learning"))(
            jnp.arange(CHAINS, dtype="int32")
        )
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        return np.asarray(_increments(np.int32(tick), np.int32(steps), keys, free(counts), hyper))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1, 1, 1)])
def test_where_the_noise_goes(rho: float, counts: tuple[int, ...]) -> None:
    """The noise of a step has the variances of the paper, within 5 standard errors.

    They are 2 eta tau (rho^2 + (1 - rho^2) / p_c) for a client, covariance 2 eta tau rho^2 for two,
    and 2 eta tau for the average.
    """
    found = increments(rho, counts=counts)
    share, scale = np.array(counts) / sum(counts), 2 * ETA * TAU * STEPS
    expected = scale * (rho**2 + (1 - rho**2) * np.diag(1 / share))
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / CHAINS)
    np.testing.assert_array_less(np.abs(found.T @ found / CHAINS - expected), 5 * error)
    np.testing.assert_array_less(np.abs(found.mean(axis=0)), 5 * np.sqrt(variance / CHAINS))
    assert abs(np.mean((found @ share) ** 2) - scale) < 5 * scale * np.sqrt(2 / CHAINS)


def test_streams_do_not_depend_on_rho_or_on_the_length_of_rounds() -> None:
    """Noise is a shared and a private part, which stay the same whatever their weights are.

    Step k of a client has the same noise in whichever round it falls.
    """
    private, shared, both = (increments(rho)[:4] for rho in (0.0, 1.0, 0.6))
    np.testing.assert_allclose(both, 0.8 * private + 0.6 * shared, rtol=1e-12)
    np.testing.assert_allclose(shared, np.broadcast_to(shared[:, :1], shared.shape), rtol=1e-12)
    assert len(np.unique(private)) == private.size
    long = increments(0.6, steps=2 * STEPS)[:4]
    np.testing.assert_allclose(both + increments(0.6, tick=1)[:4], long, rtol=1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize(
    ("participation", "inflation"),
    [("with_replacement", 1 + 4 / 2), ("without_replacement", 1 + 3 / 2)],
)
def test_the_correction_takes_the_inflation_off_the_private_noise(
    rho: float, participation: str, inflation: float
) -> None:
    """The private part is divided by the root of the inflation; the shared part stays."""
    counts = (1, 1, 1, 1, 1)
    scheme = {"participants": participation, "num_selected": 2, "noise_correction": True}
    plain, corrected, shared = (
        increments(rho, counts=counts)[:4],
        increments(rho, counts=counts, **scheme)[:4],
        rho * increments(1.0, counts=counts)[:4],
    )
    np.testing.assert_allclose(
        corrected - shared, (plain - shared) / np.sqrt(inflation), rtol=1e-10
    )


def test_a_client_drawn_twice_works_once_and_counts_twice() -> None:
    """A round averages over the clients drawn, with multiplicity.

    Their models are those of full participation.
    """
    seeds = 24
    with jax.enable_x64(True):
        hyper = langevin.paper(
            num_clients=5,
            num_selected=4,
            participants="with_replacement",
            local_steps=STEPS,
            step_size=ETA,
            temperature=TAU,
            rho=0.6,
            gradient="exact",
        )
        run = fedjax_sim.sweep(
            langevin.system,
            free(),
            hyper,
            seeds=seeds,
            budget=fedjax_sim.Ticks(1),
            num_evals=1,
            layout=WIDE,
        )
    alone = increments(0.6)[:seeds]
    most = 0.0
    for seed in range(seeds):
        clients, weight = run.timelines[seed].clients[0], run.timelines[seed].weight[0]
        drawn = clients[clients >= 0]
        assert len(set(drawn.tolist())) == len(drawn)
        np.testing.assert_allclose(weight.sum(), 1, rtol=1e-12)
        assert set((4 * weight).tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}
        np.testing.assert_allclose(
            run.models[seed, 0], weight[clients >= 0] @ alone[seed, drawn], rtol=1e-12
        )
        most = max(most, weight.max())
        # Each participant is counted once: a message of 64 bits, and K steps.
        assert run.curves.uplink_bits[seed, -1] == 64 * len(drawn)
        assert run.curves.local_steps[seed, -1] == STEPS * len(drawn)
    assert most >= 0.5


def test_the_average_of_everyone_has_the_targets_noise() -> None:
    """Its variance is 2 eta tau a step for every rho and all weights. Run through the engine."""
    with jax.enable_x64(True):
        problem = free(COUNTS, CHAINS // FULL)
    samples = chains(problem, RHO_SHARED, ticks=2, local_steps=4)
    assert_moments(samples, 0.0, (2 * 0.05 * 8,) * 3)
