"""Closed forms of the step count.

They are compared with values from a separate calculation, with each other and with draws.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim.systems.favano import step_counts
from fedjax_sim.timelines import STEP_COUNT_LAWS

FAST, SLOW = 1 / 2, 1 / 16
PLACE = {"contact_probability": 0.2, "round_time": 7}
MOMENTS = (step_counts.mean_steps, step_counts.mean_square_steps, step_counts.mean_inverse_steps)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def both_speeds() -> jax.Array:
    return jnp.array([FAST, SLOW])


def test_probabilities_of_small_counts() -> None:
    expected = [
        [0.001572, 0.011076, 0.033714, 0.058325, 0.064836],
        [0.259373, 0.246620, 0.168728, 0.111053, 0.073125],
    ]
    found = step_counts.count_probabilities(both_speeds(), num=5, law="runtime_geom", **PLACE)
    np.testing.assert_allclose(found, expected, atol=6e-7)


@pytest.mark.parametrize(
    ("function", "law", "fast", "slow"),
    [
        (step_counts.mean_steps, "runtime_geom", 12.492906, 2.186981),
        (step_counts.mean_square_steps, "runtime_geom", 200.12721, 10.640801),
        (step_counts.mean_inverse_steps, "runtime_geom", 0.134833, 0.408428),
        (step_counts.mean_steps, "runtime_exp", 12.394896, 2.186922),
        (step_counts.mean_square_steps, "runtime_exp", 199.293894, 10.774814),
        (step_counts.mean_steps, "count_geom", 1.999998, 11.599059),
    ],
)
def test_moments(function: Callable, law: str, fast: float, slow: float) -> None:
    np.testing.assert_allclose(
        function(both_speeds(), max_steps=20, law=law, **PLACE), [fast, slow], atol=1e-6
    )


@pytest.mark.parametrize(
    ("law", "fast", "slow"),
    [
        ("runtime_geom", 0.998428, 0.740627),
        ("runtime_exp", 0.993811, 0.732917),
        ("count_geom", 1, 1),
    ],
)
def test_probability_of_any_step(law: str, fast: float, slow: float) -> None:
    np.testing.assert_allclose(
        step_counts.prob_any(both_speeds(), law=law, **PLACE), [fast, slow], atol=6e-7
    )


def test_probability_of_reaching_the_cap() -> None:
    tails = step_counts.tail_probabilities(both_speeds(), max_steps=20, law="runtime_geom", **PLACE)
    np.testing.assert_allclose(tails[:, -1], [0.324368, 0.000269], atol=6e-7)


@pytest.mark.parametrize(
    ("contacted", "fast", "slow"), [(5, 17.717, 7.804), (10, 15.728, 4.318), (50, 6.834, 0.875)]
)
def test_mean_for_other_shares_of_clients(contacted: int, fast: float, slow: float) -> None:
    found = step_counts.mean_steps(
        both_speeds(),
        contact_probability=contacted / 100,
        round_time=7,
        max_steps=20,
        law="runtime_geom",
    )
    np.testing.assert_allclose(found, [fast, slow], atol=6e-4)


def test_mean_under_a_lower_cap() -> None:
    np.testing.assert_allclose(
        step_counts.mean_steps(both_speeds(), max_steps=5, law="runtime_geom", **PLACE),
        [4.665, 1.915],
        atol=6e-4,
    )


def test_mean_given_the_window() -> None:
    windows = jnp.array([[7.0, 14.0, 35.0, 70.0]])
    found = step_counts.mean_steps_given(
        both_speeds()[:, None], window=windows, max_steps=20, law="runtime_geom"
    )
    np.testing.assert_allclose(
        found, [[3.5, 7.0, 17.179174, 19.999874], [0.4375, 0.875, 2.1875, 4.375]], atol=1e-6
    )


@pytest.mark.parametrize("max_steps", [1, 2, 20])
@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
def test_given_the_window_agrees_with_the_sum_over_counts(law: str, max_steps: int) -> None:
    window = np.array([0.0, 1.0, 6.0, 7.0, 20.0, 70.0])
    counts = np.arange(200)[:, None]
    law_of_count = (
        stats.binom(window, 0.3) if law == "runtime_geom" else stats.poisson(0.3 * window)
    )
    weights = np.asarray(law_of_count.pmf(counts))
    found = step_counts.mean_steps_given(0.3, window=window, max_steps=max_steps, law=law)
    np.testing.assert_allclose(
        found, np.sum(weights * np.minimum(counts, max_steps), axis=0), atol=1e-9
    )
    np.testing.assert_allclose(
        step_counts.prob_any_given(0.3, window=window, law=law), 1 - weights[0], atol=1e-12
    )


def test_means_early_in_a_run() -> None:
    found = step_counts.mean_steps_by_tick(
        both_speeds(), max_steps=20, law="runtime_geom", num_ticks=20, **PLACE
    )
    expected = [
        [3.5, 6.3, 8.54, 11.6333, 12.4929, 12.4929],
        [0.4375, 0.7875, 1.0675, 1.4707, 1.9526, 2.1623],
    ]
    np.testing.assert_allclose(found[jnp.array([0, 1, 2, 4, 9, 19])].T, expected, atol=6e-5)


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_early_values_rise_to_the_stationary_ones(law: str) -> None:
    """Values by tick come from windows, stationary ones from a recursion over counts."""
    means = step_counts.mean_steps_by_tick(
        both_speeds(), max_steps=20, law=law, num_ticks=150, **PLACE
    )
    probabilities = step_counts.prob_any_by_tick(both_speeds(), law=law, num_ticks=150, **PLACE)
    np.testing.assert_allclose(
        means[-1], step_counts.mean_steps(both_speeds(), max_steps=20, law=law, **PLACE), atol=1e-9
    )
    np.testing.assert_allclose(
        probabilities[-1], step_counts.prob_any(both_speeds(), law=law, **PLACE), atol=1e-12
    )
    np.testing.assert_allclose(
        probabilities[0], step_counts.prob_any_given(both_speeds(), window=7, law=law), atol=1e-12
    )


@pytest.mark.parametrize("max_steps", [1, 20])
def test_rounds_of_one_time_unit(max_steps: int) -> None:
    """P(E >= k) = g^k / (1 - p), with g the probability of a step before the next contact."""
    p, rate = 0.3, 0.4
    g = rate * (1 - p) / (p + rate * (1 - p))
    place = {
        "contact_probability": p,
        "round_time": 1,
        "max_steps": max_steps,
        "law": "runtime_geom",
    }
    np.testing.assert_allclose(
        step_counts.tail_probabilities(rate, **place),
        g ** np.arange(1, max_steps + 1) / (1 - p),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        step_counts.mean_steps(rate, **place),
        g * (1 - g**max_steps) / ((1 - p) * (1 - g)),
        atol=1e-12,
    )


@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
def test_everyone_contacted_every_round(law: str) -> None:
    """With p = 1 every window is one round."""
    place = {"contact_probability": 1.0, "round_time": 7, "max_steps": 4, "law": law}
    np.testing.assert_allclose(
        step_counts.mean_steps(both_speeds(), **place),
        step_counts.mean_steps_given(both_speeds(), window=7, max_steps=4, law=law),
        atol=1e-12,
    )


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_moments_agree_with_the_sum_over_counts(law: str) -> None:
    counts = np.arange(400)
    steps = np.minimum(counts, 6)
    weights = np.asarray(step_counts.count_probabilities(0.2, num=400, law=law, **PLACE))
    np.testing.assert_allclose(
        weights[0], 1 - step_counts.prob_any(0.2, law=law, **PLACE), atol=1e-12
    )
    inverse = np.where(counts > 0, 1 / np.maximum(steps, 1), 0)
    for function, values in zip(MOMENTS, (steps, steps**2, inverse), strict=True):
        np.testing.assert_allclose(
            function(0.2, max_steps=6, law=law, **PLACE), weights @ values, atol=1e-9
        )


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_a_step_is_certain_in_a_time_unit(law: str) -> None:
    """A rate of one, at which every time unit completes a step, gives finite values."""
    place = {"max_steps": 20, "law": law, **PLACE}
    expected = {
        "runtime_geom": 7 * 0.2 + 14 * 0.16 + 20 * 0.64,
        "runtime_exp": None,
        "count_geom": 1.0,
    }[law]
    found = float(step_counts.mean_steps(1.0, **place))
    assert np.isfinite(found)
    if expected is not None:
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
def test_mean_and_square_of_simulated_windows(law: str) -> None:
    draws = 200_000
    random = np.random.default_rng(5)
    windows = 7 * random.geometric(0.2, draws)
    counts = (
        random.binomial(windows, SLOW) if law == "runtime_geom" else random.poisson(SLOW * windows)
    )
    steps = np.minimum(counts, 20)
    for power, function in ((1, step_counts.mean_steps), (2, step_counts.mean_square_steps)):
        sample = steps.astype(float) ** power
        expected = float(function(SLOW, max_steps=20, law=law, **PLACE))
        assert abs(sample.mean() - expected) < 5 * sample.std() / np.sqrt(draws)


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_single_precision_inside_a_trace(law: str) -> None:
    double = step_counts.mean_steps(both_speeds(), max_steps=20, law=law, **PLACE)
    with jax.enable_x64(False):
        traced = jax.jit(
            lambda rate, p, time: step_counts.mean_steps(
                rate, contact_probability=p, round_time=time, max_steps=20, law=law
            )
        )
        single = traced(jnp.array([FAST, SLOW]), 0.2, 7.0)
        assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, double, rtol=1e-4)


def test_numbers_broadcast() -> None:
    p = jnp.array([[0.1], [0.2], [1.0]])
    place = {"round_time": 7, "max_steps": 5, "law": "runtime_geom"}
    found = step_counts.tail_probabilities(both_speeds(), contact_probability=p, **place)
    assert found.shape == (3, 2, 5)
    np.testing.assert_allclose(
        found[1, 0],
        step_counts.tail_probabilities(FAST, contact_probability=0.2, **place),
        atol=1e-12,
    )
    assert step_counts.mean_steps_by_tick(
        both_speeds(), contact_probability=p, num_ticks=4, **place
    ).shape == (4, 3, 2)
