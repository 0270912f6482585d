"""FAVANO's identities, constants and bounds.

Compared with enumeration, draws, values worked out separately, and a run of the analysed algorithm.
"""

import itertools
from functools import partial

import numpy as np
import pytest

from experiments.favano.formulas import bounds as formulas
from fedjax_sim.theory import favano as theory
from tests.experiments.favano import lemma_bounds as lemmas
from tests.experiments.favano.quadratics import (
    FAST,
    SLOW,
    Numbers,
    Quadratics,
    draw_steps,
    law_of,
    small_quadratics,
    weights_of,
)

REWEIGHTINGS = ("stochastic", "deterministic")


def subsets(num: int, size: int) -> Numbers:
    """List the masks of all subsets of a size, `f64[number of subsets, num]`."""
    rows = [np.isin(np.arange(num), chosen) for chosen in itertools.combinations(range(num), size)]
    return np.array(rows, dtype=float)


def potential(server: Numbers, bases: Numbers) -> Numbers:
    """Compute Phi from the server's model `f64[..., P]` and the base models `f64[..., N, P]`."""
    everyone = np.concatenate([server[..., None, :], bases], axis=-2)
    return np.sum((everyone - everyone.mean(-2, keepdims=True)) ** 2, axis=(-2, -1))


def after_contact(
    server: Numbers, bases: Numbers, progress: Numbers, chosen: Numbers
) -> tuple[Numbers, Numbers]:
    """Make one server step, and return the server's model and the base models after it.

    Args:
        server: `f64[..., P]`.
        bases: `f64[..., N, P]`.
        progress: `f64[..., N, P]`, eta times the reweighted sums of gradients.
        chosen: `f64[..., N]`, 1 for the clients that are contacted and otherwise 0.
    """
    total = server + np.sum(chosen[..., None] * (bases - progress), axis=-2)
    new_server = total / (1 + chosen.sum(-1))[..., None]
    return new_server, np.where(chosen[..., None] > 0, new_server[..., None, :], bases)


def constants_of(
    moments: theory.StepMoments, *, max_steps: int, reweighting: str
) -> tuple[Numbers, float]:
    """Compute the constants a^i and b of Theorem 1, corrected or as printed."""
    if reweighting == "deterministic_printed":
        return lemmas.constants_as_printed(moments, max_steps)
    return theory.reweighting_constants(moments, max_steps=max_steps, reweighting=reweighting)


# Identities


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def test_server_update_in_the_form_of_the_analysis(random: np.random.Generator) -> None:
    """Server and mean model move as in (52) and (53), with G = -(sum of progress) / (n + 1)."""
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
    to_b, scale = np.sum((a - b) ** 2), -1 / (s + 1) ** 2
    np.testing.assert_allclose(left, scale * (to_b + pairs), rtol=1e-12)
    ordered = sum(np.sum((a[i] - a[j]) ** 2) for i in range(s) for j in range(s))
    assert left - scale * (to_b + ordered) > 0.1 * abs(left), "(16) as printed"


def test_mean_over_subsets(random: np.random.Generator) -> None:
    values = random.normal(size=6)
    np.testing.assert_allclose(np.mean(subsets(6, 4) @ values), 4 / 6 * values.sum(), rtol=1e-12)


# Reweighting


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_reweighting_is_unbiased_with_the_stated_variance(
    random: np.random.Generator, reweighting: str
) -> None:
    """The objective is linear, so gradients along a trajectory are independent; noise is skewed."""
    draws, mean, deviation = 400_000, 1.5, 2.0
    law = law_of(FAST, SLOW)
    steps = draw_steps(random, law, (draws,))
    noise = deviation * (random.gamma(np.maximum(steps, 1)) - steps) * (steps > 0)
    reweighted = weights_of(steps, law, reweighting) * (steps * mean + noise)
    error = np.abs(reweighted.mean(0) - mean)
    assert np.all(error < 5 * reweighted.std(0) / np.sqrt(draws))
    expected = formulas.reweighted_variance(
        theory.step_moments(law), mean=mean, variance=deviation**2, reweighting=reweighting
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
    constants = partial(constants_of, max_steps=20, reweighting=reweighting)
    for rate, a, b in ((FAST, a_fast, b_fast), (SLOW, a_slow, b_slow)):
        found_a, found_b = constants(theory.step_moments(law_of(rate)))
        np.testing.assert_allclose([found_a[0], found_b], [a, b], atol=1e-6)
    _, largest = constants(theory.step_moments(law_of(FAST, SLOW)))
    np.testing.assert_allclose(largest, max(b_fast, b_slow), atol=1e-6)


# Contraction of the potential


def test_contraction_rates() -> None:
    rates = [rate(100, 20) for rate in (formulas.kappa, theory.kappa_sharp, formulas.kappa_star)]
    np.testing.assert_allclose(rates, [0.003772, 0.004762, 0.1923], atol=5e-6)


@pytest.mark.parametrize(("n", "s"), [(2, 1), (4, 1), (5, 3), (7, 2), (7, 6), (6, 6)])
def test_expected_potential_without_progress(random: np.random.Generator, n: int, s: int) -> None:
    server, bases = random.normal(size=3), random.normal(size=(n, 3))
    expected = potential(*after_contact(server, bases, np.zeros_like(bases), subsets(n, s))).mean()
    np.testing.assert_allclose(
        formulas.expected_potential(server, bases, num_contacted=s), expected, atol=1e-12
    )
    assert expected <= (1 - formulas.kappa_star(n, s)) * potential(server, bases) + 1e-12
    # The best rate is attained where the server's model is the mean of all models.
    central = potential(
        *after_contact(bases.mean(0), bases, np.zeros_like(bases), subsets(n, s))
    ).mean()
    np.testing.assert_allclose(
        central, (1 - formulas.kappa_star(n, s)) * potential(bases.mean(0), bases), atol=1e-12
    )


def test_contraction_with_progress(random: np.random.Generator) -> None:
    """Eq. (6) holds with the paper's rate and with the sharper one.

    Progress is random. In every second trial it also drives the models apart, the worst direction.
    """
    for trial in range(300):
        n = int(random.integers(2, 8))
        s = int(random.integers(1, n + 1))
        server, bases = random.normal(size=2), random.normal(size=(n, 2))
        scale = 10 ** random.uniform(-2, 2)
        outwards = bases.mean(0) - bases if trial % 2 else np.zeros_like(bases)
        progress = scale * (outwards + 0.3 * random.normal(size=(n, 2)))
        expected = potential(*after_contact(server, bases, progress, subsets(n, s))).mean()
        for rate in (formulas.kappa, theory.kappa_sharp):
            assert expected <= (1 - rate(n, s)) * potential(server, bases) + 3 * s**2 / n * np.sum(
                progress**2
            )


def test_a_single_client_ends_where_the_server_does() -> None:
    """With n = s = 1 both end at the mean of the two models."""
    assert formulas.expected_potential(np.zeros(2), np.ones((1, 2)), num_contacted=1) == 0.0


# Over-correction on quadratics


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
        fast, slow = formulas.expected_pull(
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
    pull = formulas.expected_pull(
        law_of(*[FAST] * 4, *[SLOW] * 4, p=s / n), step_curvature=0.2, reweighting=reweighting
    )
    found, bases = formulas.long_run_means(optima, pull, num_contacted=s)
    np.testing.assert_allclose(found, mean, atol=1e-5)
    # Follow the expectations over all subsets from step to step.
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
    server, bases = formulas.long_run_means(optima, pull, num_contacted=2)
    for axis in range(2):
        alone, bases_alone = formulas.long_run_means(optima[:, axis], pull, num_contacted=2)
        np.testing.assert_allclose(server[axis], alone, atol=1e-12)
        np.testing.assert_allclose(bases[:, axis], bases_alone, atol=1e-12)
    even, _ = formulas.long_run_means(optima, np.full(3, 0.2), num_contacted=2)
    np.testing.assert_allclose(even, [2.0, 1.0], atol=1e-12)


# The bounds on quadratics


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_second_moment_of_progress_is_bounded(
    random: np.random.Generator, reweighting: str
) -> None:
    problem = small_quadratics(random)
    setup = problem.setup(3, reweighting)
    step_size = 1 / (4 * 8**2)
    for spread in (0.0, 1.0):
        server, bases = problem.start, problem.start + spread * random.normal(size=(10, 5))
        progress = problem.progress(
            random, np.broadcast_to(bases, (5000, 10, 5)), step_size, reweighting
        )
        second_moment = np.sum(np.mean(progress**2, axis=0))
        mean_model = (server + bases.sum(0)) / 11
        assert second_moment <= lemmas.second_moment_bound(
            setup,
            potential=float(potential(server, bases)),
            gradient_square=float(problem.gradient_square(mean_model)),
        )


def test_second_moment_bound_as_printed_is_false_for_rare_steps() -> None:
    """A step with probability 0.05 has a second moment of 20 squared gradients per client.

    The objectives are equal and linear, without noise.
    """
    n = 4
    law = np.tile([0.95, 0.05], (n, 1))
    moments = theory.step_moments(law)
    second_moment = n * float((law[0] * np.array([0, 1])) @ np.array([0, 1]) / moments.mean[0] ** 2)
    np.testing.assert_allclose(second_moment, 20 * n)

    def bound_with(reweighting: str) -> float:
        a, b = constants_of(moments, max_steps=1, reweighting=reweighting)
        setup = theory.FavanoSetup(n, 1, 1, 1.0, 0.0, 0.0, 1.0, 1.0, float(a.mean()), b)
        return lemmas.second_moment_bound(setup, potential=0.0, gradient_square=1.0)

    np.testing.assert_allclose(bound_with("deterministic_printed"), 8 * n)
    assert bound_with("deterministic_printed") < second_moment <= bound_with("deterministic")


def follow(
    problem: Quadratics,
    random: np.random.Generator,
    *,
    step_size: float,
    reweighting: str,
    num_contacted: int,
    num_ticks: int,
    runs: int,
) -> Numbers:
    """Run the analysed algorithm, which draws windows anew for all clients at each server step.

    Returns:
        `f64[T, R]`, squared gradient at the mean model before each server step.
    """
    n = len(problem.optima)
    server, bases = np.tile(problem.start, (runs, 1)), np.tile(problem.start, (runs, n, 1))
    squares = []
    for _ in range(num_ticks):
        squares.append(problem.gradient_square((server + bases.sum(1)) / (n + 1)))
        progress = step_size * problem.progress(random, bases, step_size, reweighting)
        order = np.argsort(random.random((runs, n)), axis=1)
        server, bases = after_contact(
            server, bases, progress, (order < num_contacted).astype(float)
        )
    return np.array(squares)


@pytest.mark.parametrize("reweighting", REWEIGHTINGS)
def test_theorem_holds_where_its_conditions_do(
    random: np.random.Generator, reweighting: str
) -> None:
    ticks, runs = 2000, 10
    problem = small_quadratics(random)
    setup = problem.setup(3, reweighting)
    step_size = 0.999 * theory.largest_step_size(setup)
    np.testing.assert_allclose(step_size, 0.999 / (20 * setup.drift_constant * 8 * 3))
    assert all(condition.holds for condition in theory.conditions(setup, step_size=step_size))
    squares = follow(
        problem,
        random,
        step_size=step_size,
        reweighting=reweighting,
        num_contacted=3,
        num_ticks=ticks,
        runs=runs,
    )
    left = squares.mean()
    right = formulas.bound(setup, step_size=step_size, num_ticks=ticks)
    assert left <= right
    # The bound is informative: the gradient has fallen, and the bound is within 5 times of it.
    assert right / 5 < left < squares[0].mean() / 1.5


def test_bound_of_a_worked_case() -> None:
    """The terms of both bounds, one by one, for constants that keep them easy to compute."""
    setup = theory.FavanoSetup(9, 2, 10, 1.0, 1.0, 0.0, 1.0, 3.0, 1.0, 1.0)
    np.testing.assert_allclose(
        formulas.bound(setup, step_size=0.1, num_ticks=100), 3.0 + 8.0 + 0.02 + 28.8
    )
    np.testing.assert_allclose(
        lemmas.bound_of_main_text(setup, step_size=0.1, num_ticks=100), 3.0 + 0.02 + 28.8
    )
    dissimilar = setup._replace(gradient_variance=0.0, dissimilarity=1.0)
    np.testing.assert_allclose(
        formulas.bound(dissimilar, step_size=0.1, num_ticks=100), 3.0 + 32.0 + 0.16 + 230.4
    )
    np.testing.assert_allclose(
        lemmas.bound_of_main_text(dissimilar, step_size=0.1, num_ticks=100), 3.0 + 0.16 + 224.0
    )
