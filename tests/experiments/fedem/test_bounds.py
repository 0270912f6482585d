"""Test FedEM's theory: pinned constants, and bounds against exact recursions and simulated runs.

The runs are on the noisy-mean model, where all constants are known in closed form. `N`, `M` and
`DIM` are the numbers of clients, of examples of each client and of coordinates.
"""

import math
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from experiments.fedem.formulas import bounds as formulas
from experiments.fedem.formulas import moments
from fedjax_sim import Layout
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import fedem
from fedjax_sim.theory import fedem as theory
from fedjax_sim.theory.fedem import Constants, FedEMSetup
from tests.experiments.fedem import fedem_costs as costs

UNIT = Constants(1.0, 1.0, 1.0, 1.0)
N, M, DIM, RIDGE, KAPPA, BATCH = 10, 20, 4, 0.25, 0.5, 5
START = np.array([3.0, -1.0, 2.0, 4.0])


def data(spread: float, *, examples: int = M, seed: int = 0) -> np.ndarray:
    """Draw examples `f64[N, M, DIM]`; each client's scatter around its center."""
    random = np.random.default_rng(seed)
    return random.normal(size=(N, examples, DIM)) + spread * random.normal(size=(N, 1, DIM)) + 0.5


Y = data(2.0)
TOY = moments.describe_noisy_mean(Y, KAPPA, RIDGE)
SIGMA2 = float(TOY.noise.mean()) / BATCH
GAP = TOY.gap(START)
FIELD = TOY.slope**2 * float(np.sum((START - TOY.optimum) ** 2))


def make_setup(
    omega: float = 1.0, participation: float = 1.0, alpha: float | None = None, num_clients: int = N
) -> FedEMSetup:
    """Build the setup of a run on the toy."""
    return FedEMSetup(TOY.constants, num_clients, omega, participation, alpha)


def moments_of_run(
    setup: FedEMSetup,
    gamma: float,
    k_max: int,
    *,
    sigma2: float = SIGMA2,
    memory_error: float = 0.0,
) -> moments.Moments:
    """Compute the exact moments of a run on the toy that starts at START."""
    return moments.exact_moments(
        setup,
        slope=TOY.slope,
        gamma=gamma,
        k_max=k_max,
        sigma2=sigma2,
        mean_field=FIELD,
        memory_error=memory_error,
    )


# Constants ----------------------------------------------------------------------------------------


def test_step_sizes_of_the_toy() -> None:
    assert theory.largest_step_size(make_setup()) == pytest.approx(5 / 6, rel=1e-6)
    assert theory.largest_step_size(make_setup(participation=0.5)) == pytest.approx(0.269, abs=5e-4)
    assert theory.largest_step_size(make_setup(0.0)) == pytest.approx(
        TOY.constants.least / 2 / TOY.constants.lyapunov_smoothness
    )


def test_regimes() -> None:
    """gamma_max shrinks below the switching point."""
    for omega in (1.0, 2.5):
        point = costs.clients_for_free_compression(UNIT, omega)
        for clients, is_free in ((math.ceil(point), True), (math.floor(point * 0.98), False)):
            assert (theory.largest_step_size(FedEMSetup(UNIT, clients, omega)) == 0.5) is is_free
    assert costs.clients_for_free_compression(UNIT, 2.5) == pytest.approx(61.25)
    assert theory.largest_step_size(FedEMSetup(UNIT, 16, 2.5)) == pytest.approx(0.2556, abs=1e-4)


def test_complexity() -> None:
    """Noise dominates where gamma_max (1 + omega_p) sigma^2 / (n epsilon) is at least 1.

    It is (5 / 6) 2 / 10 / epsilon here. The paper's n / epsilon would give another result.
    """
    assert costs.is_noisy(make_setup(), epsilon=0.16, sigma2=1.0)
    assert not costs.is_noisy(make_setup(), epsilon=0.17, sigma2=1.0)
    # With p = 1/2, 1 + omega_p is 4 and gamma_max is .26904, so the border is at .10762.
    half = make_setup(participation=0.5)
    border = theory.largest_step_size(half) * 4 / N
    assert border == pytest.approx(0.1076, abs=1e-4)
    assert costs.is_noisy(half, epsilon=0.999 * border, sigma2=1.0)
    assert not costs.is_noisy(half, epsilon=1.001 * border, sigma2=1.0)


# Theorems 1 and 3, on exact recursions ------------------------------------------------------------

GAMMAS = np.array([1.0, 0.9, 0.6, 0.3, 0.1, 0.03])
"""Step sizes of the tests, in multiples of gamma_max."""


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("omega", [0.25, 1.0, 9.0])
def test_bounds_hold_for_every_step_size(omega: float, participation: float) -> None:
    """Theorems 1 and 3 hold for any allowed gamma, alpha, noise, length and first memories."""
    for share, sigma2, memory_error in (
        (1.0, SIGMA2, 0.0),
        (1.0, 0.0, 5.0),
        (0.3, 30 * SIGMA2, 5.0),
    ):
        setup = make_setup(omega, participation, share / (1 + omega))
        largest = theory.largest_step_size(setup)
        for gamma in largest * GAMMAS:
            run = moments_of_run(setup, gamma, 1000, sigma2=sigma2, memory_error=memory_error)
            for k_max in (1, 7, 50, 200, 1000):
                terms = formulas.bound(
                    setup,
                    gamma=gamma,
                    k_max=k_max,
                    gap=GAP,
                    sigma2=sigma2,
                    memory_error=memory_error,
                )
                assert run.mean_field[:k_max].mean() <= terms.total


def test_bounds_are_not_idle() -> None:
    """A tenth of each bound is violated, so a lost factor would show; the terms add up."""
    setup = make_setup(participation=0.5)
    gamma = theory.largest_step_size(setup) / 4
    for k_max, sigma2 in ((50, 0.0), (20_000, 20 * SIGMA2)):
        run = moments_of_run(setup, gamma, k_max, sigma2=sigma2)
        terms = formulas.bound(setup, gamma=gamma, k_max=k_max, gap=GAP, sigma2=sigma2)
        assert 0.1 * terms.total < run.mean_field[:k_max].mean() <= terms.total
        assert terms.total == pytest.approx(terms.initial + terms.noise + terms.memory)


def test_the_theorem_in_the_papers_form() -> None:
    """(8) and Theorem 3 by hand.

    v_min (1 - gamma L_W / v_min) E
        <= gap / (gamma k) + gamma L_W (1 + 5 omega_p) sigma^2 / n + memories
    """
    setup, gamma, k_max = make_setup(participation=0.5, alpha=0.4), 0.1, 30
    lw, least = TOY.constants.lyapunov_smoothness, TOY.constants.least
    right = (
        GAP / (gamma * k_max)
        + gamma * lw * (1 + 5 * 3) / N * 0.7
        + gamma * 2 * lw / (0.4 * 0.5) * 3 / N * 2.0 / k_max
    )
    found = formulas.bound(
        setup, gamma=gamma, k_max=k_max, gap=GAP, sigma2=0.7, memory_error=2.0
    ).total
    assert found == pytest.approx(right / (least * (1 - gamma * lw / least)))


def test_without_compression_the_bound_is_an_equality_and_the_printed_one_false() -> None:
    """(29) is exact on the toy, where W is quadratic, if the final W is subtracted from the gap.

    (9) is violated by one step of size 1 / a.
    """
    setup, constants, slope = make_setup(0.0), TOY.constants, TOY.slope
    for gamma in (0.1, 1.0, 1.9 / slope):
        run = moments_of_run(setup, gamma, 25)
        left_over = constants.lyapunov_smoothness / 2 * run.mean_field[25] / slope**2
        exact = costs.uncompressed_bound(
            constants, num_clients=N, gamma=gamma, k_max=25, gap=GAP - left_over, sigma2=SIGMA2
        )
        assert run.mean_field[:25].mean() == pytest.approx(exact, rel=1e-10)
    one = {"num_clients": N, "gamma": 1 / slope, "k_max": 1, "gap": GAP, "sigma2": 0.0}
    assert costs.uncompressed_bound(constants, **one) == pytest.approx(FIELD, rel=1e-12)
    assert costs.uncompressed_bound(constants, printed=True, **one) == pytest.approx(
        constants.least * FIELD, rel=1e-12
    )
    assert (
        costs.uncompressed_bound(constants, printed=True, **one)
        < moments_of_run(setup, 1 / slope, 1, sigma2=0.0).mean_field[0]
    )


def test_memories_recursion_and_its_printed_form() -> None:
    """C.3.4 and D.3 hold along exact runs.

    D.3 as printed is false without compression if a gamma exceeds sqrt(2) - 1.
    """
    for setup in (make_setup(), make_setup(9.0, 0.5), make_setup(0.25, 0.3, 0.2), make_setup(0.0)):
        for gamma in theory.largest_step_size(setup) * GAMMAS:
            run = moments_of_run(setup, gamma, 100)
            values = {"gamma": gamma, "sigma2": SIGMA2}
            for k in range(100):
                most = costs.memory_step_bound(
                    setup, memory_error=run.memory[k], mean_field=run.mean_field[k], **values
                )
                assert run.memory[k + 1] <= most * (1 + 1e-12)
    alone = FedEMSetup(TOY.constants, 1, 0.0, 1.0, 1.0)
    for product, is_false in ((0.40, False), (0.43, True)):
        gamma = product / TOY.slope
        run = moments.exact_moments(
            alone, slope=TOY.slope, gamma=gamma, k_max=1, sigma2=1.0, mean_field=0.0
        )
        assert run.memory[1] == pytest.approx((1 + product) ** 2)
        printed = costs.memory_step_bound(
            alone, gamma=gamma, memory_error=0, mean_field=0, sigma2=1.0, printed=True
        )
        assert printed == pytest.approx(2)
        assert bool(run.memory[1] > printed) is is_false
        assert run.memory[1] <= costs.memory_step_bound(
            alone, gamma=gamma, memory_error=0, mean_field=0, sigma2=1.0
        )


def test_frozen_memories() -> None:
    """With gamma = 0 a round multiplies the memories' error by the factor.

    It is 1 - alpha at the theory's alpha, 1 at twice that alpha, and larger beyond.
    """
    for omega, alpha in ((1.0, 0.5), (1.0, 0.1), (9.0, 0.1)):
        run = moments.exact_moments(
            make_setup(omega, 1.0, alpha),
            slope=TOY.slope,
            gamma=0.0,
            k_max=6,
            sigma2=0.0,
            mean_field=1.0,
            memory_error=3.0,
        )
        np.testing.assert_allclose(
            run.memory, 3 * costs.frozen_memory_factor(omega, alpha) ** np.arange(7)
        )
    assert costs.frozen_memory_factor(3.0, 0.25) == pytest.approx(0.75)
    assert costs.frozen_memory_factor(3.0, 0.5) == pytest.approx(1.0)
    assert costs.frozen_memory_factor(3.0, 0.55) > 1


# The same in plain NumPy, and by the systems ------------------------------------------------------


def test_variance_of_one_step() -> None:
    """The variance of H at a frozen state is that of the bound, which is exact here.

    H is drawn in NumPy, with rand-sparsification that keeps half of the entries.
    """
    random, draws, p = np.random.default_rng(3), 60_000, 0.6
    delta = random.normal(size=(N, DIM)) * 2
    noise = random.exponential(size=(draws, N, 1)) - 1
    oracle = delta + noise * np.array([1.0, 0, 0, 0])
    kept = 2 * oracle * (random.random(oracle.shape) < 0.5)
    fields = np.mean(kept * (random.random((draws, N, 1)) < p), axis=1) / p
    squares = np.sum((fields - delta.mean(axis=0)) ** 2, axis=1)
    delta2 = np.sum(delta**2, axis=1) + 1
    expected = formulas.field_variance_bound(make_setup(1.0, p), delta2=delta2.mean(), sigma2=1.0)
    assert abs(squares.mean() - expected) < 5 * squares.std() / math.sqrt(draws)


def problem_of(y: np.ndarray, kappa: Any, start: np.ndarray, *, ridge: float = RIDGE) -> Any:
    """Build the estimation of a noisy mean in float64. 64-bit types must be enabled."""
    places = np.arange(y.shape[0] * y.shape[1])
    seen = Seen(y.reshape(-1, DIM), np.broadcast_to(kappa, y.shape[:2]).ravel().astype(float))
    return latent.make_estimation(
        latent.NoisyMean(ridge), seen, Partition(places, np.full(len(y), y.shape[1])), start=start
    )


def simulated(
    system: Any,
    y: np.ndarray,
    kappa: Any,
    hyper: Any,
    *,
    ticks: int,
    seeds: int,
    **settings: list[Any],
) -> Any:
    """Run a system on the noisy mean in float64 with an evaluation at each tick: its curves."""
    with jax.enable_x64(True):
        problem = problem_of(y, kappa, START)
        layout = Layout(slots_at_once=N, lanes_at_once=True, lane_devices=1)
        options = {"budget": fedjax_sim.Ticks(ticks), "num_evals": ticks, "layout": layout}
        return fedjax_sim.sweep(
            system, problem, hyper, seeds=seeds, settings=settings, **options
        ).curves


def far(samples: np.ndarray, expected: np.ndarray) -> float:
    """Compute the largest distance of a sample mean to its expectation, in standard errors."""
    error = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    return float(np.max(np.abs(samples.mean(axis=0) - expected) / np.maximum(error, 1e-12)))


@pytest.mark.slow
def test_fedem_follows_the_exact_moments() -> None:
    """Means of ||h||^2 and G over 300 seeds agree with the exact moments.

    Two step sizes, half of the clients taking part, half of the entries kept.
    """
    setup = make_setup(1.0, 0.5)
    largest = theory.largest_step_size(setup)
    compression = parse_compressor("sparsification:keep=0.5")
    hyper = fedem.paper(num_clients=N, participation=0.5, batch_size=BATCH, compression=compression)
    curves = simulated(
        fedem.system, Y, KAPPA, hyper, ticks=40, seeds=300, gamma=[largest, largest / 4]
    )
    for i, gamma in enumerate((largest, largest / 4)):
        exact = moments_of_run(setup, gamma, 40)
        found = curves.isel(gamma=i)
        assert found.mean_field.values[0, 0] == pytest.approx(FIELD)
        assert far(found.mean_field.values[:, 1:], exact.mean_field[1:]) < 5
        assert far(found.memory_error.values[:, 1:], exact.memory[1:]) < 5


def test_floor_without_memories() -> None:
    """It is the fixed point of the mean square of h under contraction and the messages' noise.

    `tests/systems/test_fedem.py` has runs that stay there, and FedEM's that do not.
    """
    slope, gamma, variances = 0.6, 0.5, np.array([3.0, 1.0, 2.0])
    square = 0.0
    for _ in range(200):
        square = (1 - slope * gamma) ** 2 * square + (slope * gamma) ** 2 * variances.sum() / 9
    floor = moments.heterogeneity_floor(slope=slope, gamma=gamma, message_variance=variances)
    assert floor == pytest.approx(square)
