"""FAVANO's identities, constants and bounds: against enumeration, draws, values worked out apart, and a run of the analysed algorithm."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedjax_sim.theory.favano import bounds, timing

Numbers = npt.NDArray[np.float64]
FAST, SLOW = 1 / 2, 1 / 16
REWEIGHTINGS = ("stochastic", "deterministic")


def law_of(*rates: float, p: float = 0.2, max_steps: int = 20) -> Numbers:
    return bounds.step_law(
        rates, contact_probability=p, round_time=7, max_steps=max_steps, law="runtime_geom"
    )


def subsets(num: int, size: int) -> Numbers:
    """Masks of all subsets, `f64[number of subsets, num]`."""
    rows = [np.isin(np.arange(num), chosen) for chosen in itertools.combinations(range(num), size)]
    return np.array(rows, dtype=float)


def potential(server: Numbers, bases: Numbers) -> Numbers:
    """server: `f64[..., P]`. bases: `f64[..., N, P]`."""
    everyone = np.concatenate([server[..., None, :], bases], axis=-2)
    return np.sum((everyone - everyone.mean(-2, keepdims=True)) ** 2, axis=(-2, -1))


def after_contact(
    server: Numbers, bases: Numbers, progress: Numbers, chosen: Numbers
) -> tuple[Numbers, Numbers]:
    """One server step. progress: eta times the reweighted gradients, `f64[..., N, P]`. chosen: `f64[..., N]`."""
    total = server + np.sum(chosen[..., None] * (bases - progress), axis=-2)
    new_server = total / (1 + chosen.sum(-1))[..., None]
    return new_server, np.where(chosen[..., None] > 0, new_server[..., None, :], bases)


# Identities ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def test_server_update_in_the_form_of_the_analysis(random: np.random.Generator) -> None:
    """Server and mean model move as in (52) and (53), with G = -sum of progress / (n + 1)."""
    n, s, size = 6, 3, 4
    server, bases, progress = (
        random.normal(size=size),
        random.normal(size=(n, size)),
        random.normal(size=(n, size)),
    )
    chosen = subsets(n, s)
    new_server, new_bases = after_contact(server, bases, progress, chosen)
    moved = -(chosen @ progress) / (n + 1)
    np.testing.assert_allclose(
        new_server, (server + chosen @ bases) / (s + 1) + (n + 1) / (s + 1) * moved, atol=1e-12
    )
    mean = (server + bases.sum(0)) / (n + 1)
    np.testing.assert_allclose((new_server + new_bases.sum(1)) / (n + 1), mean + moved, atol=1e-12)


def test_centre_of_mass(random: np.random.Generator) -> None:
    n = 7
    server, bases = random.normal(size=3), random.normal(size=(n, 3))
    mean = (server + bases.sum(0)) / (n + 1)
    variance, from_mean = np.sum((bases - server) ** 2), np.sum((server - mean) ** 2)
    np.testing.assert_allclose(
        variance, (n + 2) * from_mean + np.sum((bases - mean) ** 2), rtol=1e-12
    )
    np.testing.assert_allclose(variance, potential(server, bases) + (n + 1) * from_mean, rtol=1e-12)


def test_averaging_identity_counts_each_pair_once(random: np.random.Generator) -> None:
    s = 5
    a, b = random.normal(size=(s, 3)), random.normal(size=3)
    left = np.sum(((a.sum(0) + b) / (s + 1)) ** 2) - (np.sum(a**2) + np.sum(b**2)) / (s + 1)
    pairs = sum(np.sum((a[i] - a[j]) ** 2) for i, j in itertools.combinations(range(s), 2))
    np.testing.assert_allclose(left, -(np.sum((a - b) ** 2) + pairs) / (s + 1) ** 2, rtol=1e-12)


def test_mean_over_subsets(random: np.random.Generator) -> None:
    values = random.normal(size=6)
    np.testing.assert_allclose(np.mean(subsets(6, 4) @ values), 4 / 6 * values.sum(), rtol=1e-12)


# Reweighting --------------------------------------------------------------------------------------------------------------------------


def draw_steps(
    random: np.random.Generator, law: Numbers, shape: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Draw X for each client. law: `f64[N, K + 1]`. Returns `i64[*shape, N]`."""
    points = random.random((*shape, len(law)))
    return np.sum(points[..., None] > np.cumsum(law, axis=-1)[:, :-1], axis=-1)


def weights_of(steps: npt.NDArray[np.int64], law: Numbers, reweighting: str) -> Numbers:
    """1 / alpha, and 0 where there is no step."""
    moments = bounds.step_moments(law)
    alpha = (
        moments.prob_any * steps
        if reweighting == "stochastic"
        else np.broadcast_to(moments.mean, steps.shape)
    )
    return np.where(steps > 0, 1 / np.where(steps > 0, alpha, 1), 0)


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_reweighting_is_unbiased_with_the_stated_variance(
    random: np.random.Generator, reweighting: str
) -> None:
    """For a linear objective, whose gradients are independent along a trajectory; their noise is skewed."""
    draws, mean, deviation = 400_000, 1.5, 2.0
    law = law_of(FAST, SLOW)
    steps = draw_steps(random, law, (draws,))
    noise = deviation * (random.gamma(np.maximum(steps, 1)) - steps) * (steps > 0)
    reweighted = weights_of(steps, law, reweighting) * (steps * mean + noise)
    error = np.abs(reweighted.mean(0) - mean)
    assert np.all(error < 5 * reweighted.std(0) / np.sqrt(draws))
    expected = bounds.reweighted_variance(
        bounds.step_moments(law), mean=mean, variance=deviation**2, reweighting=reweighting
    )
    np.testing.assert_allclose(reweighted.var(0), expected, rtol=0.05)


@pytest.mark.parametrize(
    ("reweighting", "a_fast", "a_slow", "b_fast", "b_slow"),
    [
        ("stochastic", 0.137762, 0.747965, 1.001575, 1.350207),
        ("deterministic_printed", 0.120094, 0.469415, 16.019268, 4.865519),
        ("deterministic", 0.083251, 0.462813, 1.282269, 2.224765),
    ],
)
def test_constants_of_the_reweightings(
    reweighting: str, a_fast: float, a_slow: float, b_fast: float, b_slow: float
) -> None:
    constants = partial(bounds.reweighting_constants, max_steps=20, reweighting=reweighting)
    for rate, a, b in ((FAST, a_fast, b_fast), (SLOW, a_slow, b_slow)):
        found_a, found_b = constants(bounds.step_moments(law_of(rate)))
        np.testing.assert_allclose([found_a[0], found_b], [a, b], atol=1e-6)
    _, largest = constants(bounds.step_moments(law_of(FAST, SLOW)))
    np.testing.assert_allclose(largest, max(b_fast, b_slow), atol=1e-6)


# Contraction of the potential ---------------------------------------------------------------------------------------------------------


def test_contraction_rates() -> None:
    rates = [rate(100, 20) for rate in (bounds.kappa, bounds.kappa_sharp, bounds.kappa_star)]
    np.testing.assert_allclose(rates, [0.003772, 0.004762, 0.1923], atol=5e-6)


@pytest.mark.parametrize(("n", "s"), [(2, 1), (4, 1), (5, 3), (7, 2), (7, 6), (6, 6)])
def test_expected_potential_without_progress(random: np.random.Generator, n: int, s: int) -> None:
    server, bases = random.normal(size=3), random.normal(size=(n, 3))
    expected = potential(*after_contact(server, bases, np.zeros_like(bases), subsets(n, s))).mean()
    np.testing.assert_allclose(
        bounds.expected_potential(server, bases, num_contacted=s), expected, atol=1e-12
    )
    assert expected <= (1 - bounds.kappa_star(n, s)) * potential(server, bases) + 1e-12
    # The best rate is attained where the server's model is the mean of all models.
    central = potential(
        *after_contact(bases.mean(0), bases, np.zeros_like(bases), subsets(n, s))
    ).mean()
    np.testing.assert_allclose(
        central, (1 - bounds.kappa_star(n, s)) * potential(bases.mean(0), bases), atol=1e-12
    )


def test_contraction_with_progress(random: np.random.Generator) -> None:
    """Eq. (6) with the paper's rate and the sharper one; progress is a function of the models at its most harmful, and of chance."""
    for trial in range(300):
        n = int(random.integers(2, 8))
        s = int(random.integers(1, n + 1))
        server, bases = random.normal(size=2), random.normal(size=(n, 2))
        scale = 10 ** random.uniform(-2, 2)
        outwards = bases.mean(0) - bases if trial % 2 else np.zeros_like(bases)
        progress = scale * (outwards + 0.3 * random.normal(size=(n, 2)))
        expected = potential(*after_contact(server, bases, progress, subsets(n, s))).mean()
        for rate in (bounds.kappa, bounds.kappa_sharp):
            assert expected <= (1 - rate(n, s)) * potential(server, bases) + 3 * s**2 / n * np.sum(
                progress**2
            )


# Over-correction on quadratics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_curvature", "deterministic", "stochastic", "none"),
    [
        (0.01, 1.056, 1.048, 0.185),
        (0.05, 1.290, 1.240, 0.226),
        (0.1, 1.587, 1.473, 0.278),
        (0.5, 3.265, 2.870, 0.572),
    ],
)
def test_slow_clients_are_over_corrected(
    step_curvature: float, deterministic: float, stochastic: float, none: float
) -> None:
    expected = {"deterministic": deterministic, "stochastic": stochastic, "none": none}
    for reweighting, ratio in expected.items():
        fast, slow = bounds.expected_pull(
            law_of(FAST, SLOW), step_curvature=step_curvature, reweighting=reweighting
        )
        np.testing.assert_allclose(slow / fast, ratio, atol=5.5e-4)


@pytest.mark.parametrize(
    ("reweighting", "mean"),
    [("deterministic", 0.31656), ("stochastic", 0.23100), ("none", -0.54409)],
)
def test_long_run_mean_of_two_groups(reweighting: str, mean: float) -> None:
    n, s = 8, 3
    optima = np.array([-1.0] * 4 + [1.0] * 4)
    pull = bounds.expected_pull(
        law_of(*[FAST] * 4, *[SLOW] * 4, p=s / n), step_curvature=0.2, reweighting=reweighting
    )
    found, bases = bounds.long_run_means(optima, pull, num_contacted=s)
    np.testing.assert_allclose(found, mean, atol=1e-5)
    # The same by following expectations over all subsets from step to step.
    server_mean, base_means, chosen = np.zeros(1), np.zeros((n, 1)), subsets(n, s)
    for _ in range(400):
        progress = pull[:, None] * (base_means - optima[:, None])
        servers, contacted = after_contact(server_mean, base_means, progress, chosen)
        server_mean, base_means = servers.mean(0), contacted.mean(0)
    np.testing.assert_allclose(server_mean[0], found, atol=1e-10)
    np.testing.assert_allclose(base_means[:, 0], bases, atol=1e-10)


def test_long_run_means_of_vectors() -> None:
    """Coordinates do not mix; with equal pulls the server ends at the mean of the optima."""
    optima = np.array([[0.0, 1.0], [2.0, -3.0], [4.0, 5.0]])
    pull = np.array([0.1, 0.4, 0.7])
    server, bases = bounds.long_run_means(optima, pull, num_contacted=2)
    for axis in range(2):
        alone, bases_alone = bounds.long_run_means(optima[:, axis], pull, num_contacted=2)
        np.testing.assert_allclose(server[axis], alone, atol=1e-12)
        np.testing.assert_allclose(bases[:, axis], bases_alone, atol=1e-12)
    even, _ = bounds.long_run_means(optima, np.full(3, 0.2), num_contacted=2)
    np.testing.assert_allclose(even, [2.0, 1.0], atol=1e-12)


# The bounds on quadratics -------------------------------------------------------------------------------------------------------------


class Quadratics(NamedTuple):
    """f_i(w) = L / 2 |w - c_i|^2 with normal gradient noise, from a start, under the analysed algorithm."""

    optima: Numbers  # f64[N, P]
    start: Numbers  # f64[P]
    law: Numbers  # f64[N, K + 1]
    smoothness: float
    gradient_variance: float

    def setting(self, num_contacted: int, reweighting: str) -> bounds.FavanoSetup:
        max_steps = self.law.shape[1] - 1
        a, b = bounds.reweighting_constants(
            bounds.step_moments(self.law), max_steps=max_steps, reweighting=reweighting
        )
        centre = self.optima.mean(0)
        return bounds.FavanoSetup(
            num_clients=len(self.optima),
            num_contacted=num_contacted,
            max_steps=max_steps,
            smoothness=self.smoothness,
            gradient_variance=self.gradient_variance,
            dissimilarity=self.smoothness**2
            * float(np.mean(np.sum((self.optima - centre) ** 2, axis=1))),
            dissimilarity_factor=1.0,
            initial_gap=self.smoothness / 2 * float(np.sum((self.start - centre) ** 2)),
            noise_constant=float(a.mean()),
            drift_constant=b,
        )

    def gradient_square(self, mean_model: Numbers) -> Numbers:
        return self.smoothness**2 * np.sum((mean_model - self.optima.mean(0)) ** 2, axis=-1)

    def progress(
        self,
        random: np.random.Generator,
        bases: Numbers,
        step_size: float,
        reweighting: str,
        bits: int | None = None,
    ) -> Numbers:
        """Draw reweighted progress of all clients, `f64[..., N, P]`; gradients are taken at weights rounded to `bits` bits on [-4, 4]."""
        steps = draw_steps(random, self.law, bases.shape[:-2])
        noise_scale = np.sqrt(self.gradient_variance / bases.shape[-1])
        cell = None if bits is None else 8 / (2**bits - 1)
        local, total = bases, np.zeros_like(bases)
        for done in range(self.law.shape[1] - 1):
            seen = local if cell is None else (np.round(local / cell - 0.5) + 0.5) * cell
            gradient = self.smoothness * (seen - self.optima) + noise_scale * random.normal(
                size=bases.shape
            )
            gradient *= (done < steps)[..., None]
            local, total = local - step_size * gradient, total + gradient
        return total * weights_of(steps, self.law, reweighting)[..., None]


def small_quadratics(random: np.random.Generator, max_steps: int = 8) -> Quadratics:
    n = 10
    law = law_of(*[FAST] * (n // 2), *[SLOW] * (n // 2), p=3 / n, max_steps=max_steps)
    return Quadratics(
        random.normal(size=(n, 5)), np.full(5, 3.0), law, smoothness=1.0, gradient_variance=0.25
    )


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_second_moment_of_progress_is_bounded(
    random: np.random.Generator, reweighting: str
) -> None:
    problem = small_quadratics(random)
    setting = problem.setting(3, reweighting)
    step_size = 1 / (4 * 8**2)
    for spread in (0.0, 1.0):
        server, bases = problem.start, problem.start + spread * random.normal(size=(10, 5))
        progress = problem.progress(
            random, np.broadcast_to(bases, (5000, 10, 5)), step_size, reweighting
        )
        second_moment = np.sum(np.mean(progress**2, axis=0))
        mean_model = (server + bases.sum(0)) / 11
        assert second_moment <= bounds.second_moment_bound(
            setting,
            potential=float(potential(server, bases)),
            gradient_square=float(problem.gradient_square(mean_model)),
        )


def test_second_moment_bound_as_printed_is_false_for_rare_steps() -> None:
    """Equal linear objectives without noise, one step with probability 0.05: the second moment is 20 squared gradients per client."""
    n = 4
    law = np.tile([0.95, 0.05], (n, 1))
    moments = bounds.step_moments(law)
    second_moment = n * float((law[0] * np.array([0, 1])) @ np.array([0, 1]) / moments.mean[0] ** 2)
    np.testing.assert_allclose(second_moment, 20 * n)

    def bound_with(reweighting: str) -> float:
        a, b = bounds.reweighting_constants(moments, max_steps=1, reweighting=reweighting)
        setting = bounds.FavanoSetup(n, 1, 1, 1.0, 0.0, 0.0, 1.0, 1.0, float(a.mean()), b)
        return bounds.second_moment_bound(setting, potential=0.0, gradient_square=1.0)

    np.testing.assert_allclose(bound_with("deterministic_printed"), 8 * n)
    assert bound_with("deterministic_printed") < second_moment <= bound_with("deterministic")


class Course(NamedTuple):
    gradient_square: Numbers  # f64[T, R]  before each server step
    potential: Numbers  # f64[T + 1, R]


def follow(
    problem: Quadratics,
    random: np.random.Generator,
    *,
    step_size: float,
    reweighting: str,
    num_contacted: int,
    num_ticks: int,
    runs: int,
    bits: int | None = None,
) -> Course:
    """Run the analysed algorithm: windows drawn anew for all clients at each server step. R runs at once."""
    n = len(problem.optima)
    server, bases = np.tile(problem.start, (runs, 1)), np.tile(problem.start, (runs, n, 1))
    squares, potentials = [], [potential(server, bases)]
    for _ in range(num_ticks):
        squares.append(problem.gradient_square((server + bases.sum(1)) / (n + 1)))
        progress = step_size * problem.progress(random, bases, step_size, reweighting, bits)
        order = np.argsort(random.random((runs, n)), axis=1)
        server, bases = after_contact(
            server, bases, progress, (order < num_contacted).astype(float)
        )
        potentials.append(potential(server, bases))
    return Course(np.array(squares), np.array(potentials))


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_theorem_holds_where_its_conditions_do(
    random: np.random.Generator, reweighting: str
) -> None:
    ticks, runs = 2000, 10
    problem = small_quadratics(random)
    setting = problem.setting(3, reweighting)
    step_size = 0.999 * bounds.largest_step_size(setting)
    np.testing.assert_allclose(step_size, 0.999 / (20 * setting.drift_constant * 8 * 3))
    assert all(condition.holds for condition in bounds.conditions(setting, step_size=step_size))
    course = follow(
        problem,
        random,
        step_size=step_size,
        reweighting=reweighting,
        num_contacted=3,
        num_ticks=ticks,
        runs=runs,
    )
    left = course.gradient_square.mean()
    right = bounds.bound(setting, step_size=step_size, num_ticks=ticks)
    assert left <= right
    # The run has moved and the bound says something: it is far below the initial squared gradient.
    assert right / 5 < left < course.gradient_square[0].mean() / 1.5

    total = bounds.potential_sum_bound(
        setting,
        step_size=step_size,
        num_ticks=ticks,
        gradient_square_sum=float(course.gradient_square.mean(1).sum()),
    )
    assert course.potential.mean(1).sum() <= total
    recursion = bounds.potential_step_bound(
        setting,
        step_size=step_size,
        potential=course.potential[:-1],
        gradient_square=course.gradient_square,
    )
    excess = course.potential[1:] - recursion
    assert np.all(excess.mean(1) <= 3 * excess.std(1) / np.sqrt(runs))


def test_conditions_of_a_worked_case() -> None:
    setting = bounds.FavanoSetup(9, 2, 10, 0.5, 1.0, 1.0, 3.0, 3.0, 1.0, 2.0)
    found = {
        name: (value, limit) for name, value, limit in bounds.conditions(setting, step_size=0.01)
    }
    expected = {
        "theorem": (0.01, 1 / 1200),
        "local gradients": (0.01, 1 / 200),
        "local drift": (0.01, 1 / 10),
        "descent": (0.12 + 0.024 + 1.728, 1 / 4),
        "contraction": (0.0032 / 3 + 1 / 45, 2 / 54),
    }
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(found[name], pair, err_msg=name)


def test_potential_bounds_of_a_worked_case() -> None:
    setting = bounds.FavanoSetup(4, 2, 5, 1.0, 3.0, 7.0, 1.5, 1.0, 0.5, 2.0)
    np.testing.assert_allclose(
        bounds.potential_step_bound(setting, step_size=0.1, potential=10.0, gradient_square=2.0),
        9.5 + 0.04 * (3 * 113.5 + 144),
    )
    np.testing.assert_allclose(
        bounds.potential_sum_bound(setting, step_size=0.1, num_ticks=6, gradient_square_sum=2.0),
        0.16 * (720 + 90 * 113.5),
    )
    np.testing.assert_allclose(
        bounds.second_moment_bound(
            setting._replace(smoothness=3.0), potential=10.0, gradient_square=2.0
        ),
        6 + 2880 + 640,
    )


def test_conditions_name_what_fails(random: np.random.Generator) -> None:
    setting = small_quadratics(random).setting(3, "stochastic")

    def failing(
        setting: bounds.FavanoSetup,
        step_size: float,
        contraction: Callable[[int, int], float] = bounds.kappa_sharp,
    ) -> set[str]:
        found = bounds.conditions(setting, step_size=step_size, contraction=contraction)
        return {condition.name for condition in found if not condition.holds}

    largest = bounds.largest_step_size(setting)
    assert failing(setting, 0.999 * largest) == set()
    assert failing(setting, 1.001 * largest) == {"theorem"}
    assert failing(setting, 1.0) == {
        "theorem",
        "local gradients",
        "local drift",
        "descent",
        "contraction",
    }
    # Of few local steps, the descent condition binds; of many, that of the local gradients; they are not implied by the paper's one.
    few = setting._replace(max_steps=2, drift_constant=1.0)
    assert "descent" in failing(few, 1 / (20 * 2 * 3))
    many = setting._replace(max_steps=100)
    assert failing(many, 1 / (20 * many.drift_constant * 100 * 3)) == {"local gradients"}
    # The paper's rate of contraction vanishes as all clients are contacted.
    everyone = setting._replace(num_contacted=10)
    assert failing(everyone, 0.999 * bounds.largest_step_size(everyone)) == set()
    assert failing(everyone, 1e-9, contraction=bounds.kappa) == {"contraction"}
    assert bounds.largest_step_size(everyone, contraction=bounds.kappa) == 0

    def barely(n: int, s: int) -> float:
        return 1 / (5 * n) + 1e-7

    assert (
        failing(setting, 0.999 * bounds.largest_step_size(setting, contraction=barely), barely)
        == set()
    )
    assert failing(
        setting, 1.001 * bounds.largest_step_size(setting, contraction=barely), barely
    ) == {"contraction"}
    for case in (setting, few, many, everyone):
        assert failing(case, 0.999 * bounds.largest_step_size(case)) == set()
        assert failing(case, 1.001 * bounds.largest_step_size(case)) != set()


def test_bound_of_a_worked_case() -> None:
    """All constants are powers of ten apart, so that each term can be read off."""
    setting = bounds.FavanoSetup(9, 2, 10, 1.0, 1.0, 0.0, 1.0, 3.0, 1.0, 1.0)
    np.testing.assert_allclose(
        bounds.bound(setting, step_size=0.1, num_ticks=100), 3.0 + 8.0 + 0.02 + 28.8
    )
    np.testing.assert_allclose(
        bounds.bound_of_main_text(setting, step_size=0.1, num_ticks=100), 3.0 + 0.02 + 28.8
    )
    dissimilar = setting._replace(gradient_variance=0.0, dissimilarity=1.0)
    np.testing.assert_allclose(
        bounds.bound(dissimilar, step_size=0.1, num_ticks=100), 3.0 + 32.0 + 0.16 + 230.4
    )
    np.testing.assert_allclose(
        bounds.bound_of_main_text(dissimilar, step_size=0.1, num_ticks=100), 3.0 + 0.16 + 224.0
    )


# Quantized weights --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_error_of_the_uniform_quantizer(random: np.random.Generator, rounding: str) -> None:
    bits, limit, dim = 3, 1.5, 20_000
    levels = np.linspace(-limit, limit, 2**bits)
    step = levels[1] - levels[0]
    weights = random.uniform(-limit, limit, dim)
    place = (weights - levels[0]) / step
    nearest = levels[0] + step * np.round(place)
    either = levels[0] + step * np.floor(place + random.random(dim))
    bound_of = partial(bounds.uniform_quantizer_error, 1, limit=limit, bits=bits)
    errors = (weights - (nearest if rounding == "nearest" else either)) ** 2
    assert 0.95 * bound_of(rounding=rounding) < errors.max() <= bound_of(rounding=rounding)
    place -= np.floor(place)
    assert (step**2 * place * (1 - place)).max() <= bound_of(rounding="nearest")
    np.testing.assert_allclose(
        bounds.uniform_quantizer_error(7, limit=limit, bits=bits, rounding=rounding),
        7 * bound_of(rounding=rounding),
    )


def test_quantized_weights_raise_the_floor_fourfold_per_bit(random: np.random.Generator) -> None:
    """Equal objectives and no noise: all that keeps the gradient from vanishing is rounding."""
    n, size, max_steps, ticks = 3, 200, 6, 3000
    law = np.tile(np.eye(max_steps + 1)[max_steps], (n, 1))
    optima = np.tile(random.uniform(-2, 2, size), (n, 1))
    problem = Quadratics(optima, optima[0] + 0.3, law, smoothness=1.0, gradient_variance=0.0)
    setting = problem.setting(2, "deterministic")
    step_size = 0.999 * bounds.largest_step_size(setting)
    floors = []
    for bits in (3, 4, 5):
        course = follow(
            problem,
            random,
            step_size=step_size,
            reweighting="deterministic",
            num_contacted=2,
            num_ticks=ticks,
            runs=1,
            bits=bits,
        )
        squared_error = bounds.uniform_quantizer_error(
            size, limit=4.0, bits=bits, rounding="nearest"
        )
        floor = bounds.quantization_floor(1.0, squared_error)
        assert (
            course.gradient_square.mean()
            <= bounds.bound(setting, step_size=step_size, num_ticks=ticks) + floor
        )
        floors.append(course.gradient_square[-300:].mean())
        assert floors[-1] <= floor
    np.testing.assert_allclose(np.array(floors[:-1]) / floors[1:], 4, rtol=0.3)


# Time to an accuracy ------------------------------------------------------------------------------------------------------------------


def test_tuning_lemma(random: np.random.Generator) -> None:
    for _ in range(300):
        terms = bounds.ErrorTerms(*10 ** random.uniform(-3, 3, 4))
        for ticks in (1, 37, 10_000):
            step_size = timing.tuned_step_size(terms, num_ticks=ticks)
            error = (
                terms.initial / (step_size * ticks)
                + terms.linear * step_size
                + terms.quadratic * step_size**2
            )
            assert step_size <= 1 / terms.cap * (1 + 1e-12)
            assert error <= timing.tuned_bound(terms, num_ticks=ticks) * (1 + 1e-12)
        accuracy = 10 ** random.uniform(-3, 1)
        enough = int(np.ceil(timing.sufficient_ticks(terms, accuracy=accuracy)))
        assert timing.tuned_bound(terms, num_ticks=enough) <= accuracy


def test_tuning_lemma_needs_its_factors_of_two() -> None:
    """With one balanced term the error is the bound, twice (b r_0 / T)^(1/2) or e^(1/3) (r_0 / T)^(2/3), but for the last term."""
    for terms in (bounds.ErrorTerms(2.0, 3.0, 0.0, 1e-9), bounds.ErrorTerms(2.0, 0.0, 3.0, 1e-9)):
        step_size = timing.tuned_step_size(terms, num_ticks=100)
        error = (
            terms.initial / (step_size * 100)
            + terms.linear * step_size
            + terms.quadratic * step_size**2
        )
        np.testing.assert_allclose(error, timing.tuned_bound(terms, num_ticks=100), rtol=1e-6)
    np.testing.assert_allclose(
        timing.sufficient_ticks(bounds.ErrorTerms(2.0, 3.0, 4.0, 5.0), accuracy=0.25),
        3456 + 480 + 120,
    )
    plain = bounds.ErrorTerms(2.0, 0.0, 0.0, 5.0)
    assert timing.tuned_step_size(plain, num_ticks=100) == 0.2


def test_sufficient_ticks_of_the_theorem(random: np.random.Generator) -> None:
    """The corollary with its constants, where the paper's condition on the step size is the binding one."""
    setting = small_quadratics(random).setting(3, "stochastic")
    assert bounds.bound(setting, step_size=1e-4, num_ticks=10**6) == pytest.approx(
        bounds.error_terms(setting).initial / 100
        + bounds.error_terms(setting).linear * 1e-4
        + bounds.error_terms(setting).quadratic * 1e-8
    )
    gap, b = setting.initial_gap, setting.drift_constant
    first = (
        72
        * gap
        * (setting.gradient_variance * setting.noise_constant + 8 * setting.dissimilarity * b)
    )
    last = 120 * 11 * gap * b * 8
    for accuracy, leading in ((1e-12, first / 1e-24), (1e12, last / 1e12)):
        np.testing.assert_allclose(
            timing.sufficient_ticks(bounds.error_terms(setting), accuracy=accuracy),
            leading,
            rtol=1e-4,
        )
    orders = timing.favano_orders(setting)
    np.testing.assert_allclose([orders.two, orders.one], [first / 72, last / 120 * 10 / 11])


ROWS: dict[str, Callable[[bounds.FavanoSetup], timing.Orders]] = {
    "favano": timing.favano_orders,
    "fedavg": timing.fedavg_orders,
    "fedbuff": partial(timing.fedbuff_orders, max_delay=30.0),
    "async_sgd": partial(timing.async_sgd_orders, mean_delay=9.0, max_delay=30.0),
    "quafl": partial(timing.quafl_orders, mean_steps=5.0),
    "favano_printed": timing.favano_orders_printed,
    "fedavg_printed": timing.fedavg_orders_printed,
    "async_sgd_printed": partial(timing.async_sgd_orders_printed, mean_delay=9.0, max_delay=30.0),
}
SETTING = bounds.FavanoSetup(
    num_clients=100,
    num_contacted=20,
    max_steps=20,
    smoothness=1.7,
    gradient_variance=0.6,
    dissimilarity=2.3,
    dissimilarity_factor=1.4,
    initial_gap=3.1,
    noise_constant=0.35,
    drift_constant=1.35,
)


@pytest.mark.parametrize("row", ROWS)
def test_time_does_not_depend_on_units(row: str) -> None:
    """Measure objectives and weights in other units: times stay, but for the three rows as printed."""
    objective, length = 3.0, 0.7
    square = (objective / length) ** 2
    scaled = SETTING._replace(
        smoothness=SETTING.smoothness * objective / length**2,
        gradient_variance=SETTING.gradient_variance * square,
        dissimilarity=SETTING.dissimilarity * square,
        initial_gap=SETTING.initial_gap * objective,
    )
    in_units = np.array(ROWS[row](scaled)) / square ** np.array([2, 1.5, 1])
    assert np.allclose(in_units, ROWS[row](SETTING)) != row.endswith("_printed")


@pytest.mark.parametrize("row", ["favano", "fedavg", "async_sgd"])
def test_printed_rows_agree_where_the_slips_do_not_show(row: str) -> None:
    """With unit smoothness and gap."""
    unit = SETTING._replace(smoothness=1.0, initial_gap=1.0)
    np.testing.assert_allclose(ROWS[row + "_printed"](unit), ROWS[row](unit))


@pytest.mark.parametrize("row", ROWS)
def test_orders_in_the_accuracy(row: str) -> None:
    orders = ROWS[row](SETTING)
    for power, name in ((2, "two"), (1.5, "three_halves"), (1, "one")):
        alone = timing.Orders(0.0, 0.0, 0.0)._replace(**{name: getattr(orders, name)})
        times = [
            timing.time_to_accuracy(alone, accuracy=accuracy, step_time=7.0)
            for accuracy in (0.1, 0.05)
        ]
        np.testing.assert_allclose(times[1] / times[0], 2**power)
        np.testing.assert_allclose(times[0], 7 * getattr(orders, name) * 10**power)


def test_dependence_on_the_number_of_clients() -> None:
    """FAVANO's lower-order terms grow like n and QuAFL's like n^1.5; the leading ones do not."""
    more = SETTING._replace(num_clients=1600)
    for row, power in (("favano", 1), ("quafl", 1.5)):
        np.testing.assert_allclose(
            np.array(ROWS[row](more)) / ROWS[row](SETTING), [1, 16**power, 16**power]
        )


def test_values_of_the_rows() -> None:
    """One setting worked out by hand."""
    setting = bounds.FavanoSetup(4, 2, 3, 1.0, 1.0, 1.0, 4.0, 2.0, 0.5, 2.0)
    np.testing.assert_allclose(timing.favano_orders(setting), [33.0, 4 * 28**0.5, 192.0])
    np.testing.assert_allclose(timing.fedavg_orders(setting), [5 / 6, 2.0, 8.0])
    np.testing.assert_allclose(timing.fedbuff_orders(setting, max_delay=4.0), [4.0, 10.0, 2.0])
    np.testing.assert_allclose(
        timing.async_sgd_orders(setting, mean_delay=2.0, max_delay=8.0), [14.0, 4.0, 8.0]
    )
    np.testing.assert_allclose(
        timing.quafl_orders(setting, mean_steps=2.0), [10.5, 12 * 7**0.5, 72 * 2**0.5]
    )
    steep = setting._replace(smoothness=4.0)
    np.testing.assert_allclose(timing.favano_orders_printed(steep), [132.0, 64 * 163**0.5, 768.0])
    np.testing.assert_allclose(timing.fedavg_orders_printed(steep), [9.5 / 6, 4.0, 32.0])
    np.testing.assert_allclose(
        timing.async_sgd_orders_printed(steep, mean_delay=2.0, max_delay=8.0), [56.0, 16.0, 32**0.5]
    )


# Time of a server step ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_fast", "round_time", "step_time"), [(66, 418.89, 5.69), (11, 461.41, 18.08)]
)
def test_time_of_a_server_step(num_fast: int, round_time: float, step_time: float) -> None:
    rates = [FAST] * num_fast + [SLOW] * (100 - num_fast)
    found = timing.fedavg_round_time(rates, num_contacted=20, local_steps=20, interact_time=3)
    np.testing.assert_allclose(found, round_time, atol=5.1e-3)
    found = timing.fedbuff_step_time(rates, buffer_size=10, local_steps=20, interact_time=3)
    np.testing.assert_allclose(found, step_time, atol=5.1e-3)


def test_fedbuff_is_never_faster_than_its_messages() -> None:
    assert (
        timing.fedbuff_step_time([FAST] * 1000, buffer_size=10, local_steps=20, interact_time=3)
        == 3
    )


def test_fedavg_waits_for_the_slowest_of_those_drawn() -> None:
    """Enumerate the subsets of clients that all differ."""
    rates, times = np.array([0.9, 0.5, 0.3, 0.2]), np.arange(2000)
    finished = np.asarray(stats.nbinom.cdf(times[:, None] - 3, 3, rates))
    expected = np.mean(
        [np.sum(1 - finished[:, chosen].prod(1)) for chosen in itertools.combinations(range(4), 2)]
    )
    found = timing.fedavg_round_time(rates, num_contacted=2, local_steps=3, interact_time=1.5)
    np.testing.assert_allclose(found, 1.5 + expected, rtol=1e-10)
    everyone = timing.fedavg_round_time([0.25], num_contacted=1, local_steps=3, interact_time=0)
    np.testing.assert_allclose(everyone, 12)


def test_a_single_client_ends_where_the_server_does() -> None:
    """n = s = 1: both end at the mean of the two."""
    assert bounds.expected_potential(np.zeros(2), np.ones((1, 2)), num_contacted=1) == 0.0
