"""Closed forms of the step count.

They are compared with values from a separate calculation, with each other and with draws.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim.systems.favano import StepCounts
from fedjax_sim.theory import favano as theory
from fedjax_sim.timelines import STEP_COUNT_LAWS

FAST, SLOW = 1 / 2, 1 / 16


def moments(counts: StepCounts, max_steps: int) -> dict[str, np.ndarray]:
    """Compute the moments of X from P(E >= k)."""
    tails = np.asarray(counts.at_least(max_steps))
    law = -np.diff(tails, axis=-1, prepend=1.0, append=0.0)
    return theory.step_moments(law)._asdict() | {"mean": np.asarray(counts.mean(max_steps))}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def both_speeds() -> jax.Array:
    return jnp.array([FAST, SLOW])


def of(law: str, rate: Any = None, p: Any = 0.2, time: float = 7) -> StepCounts:
    """Return the law of step counts of both speeds, or of one rate."""
    return StepCounts(both_speeds() if rate is None else rate, p, time, law)


def test_probabilities_of_small_counts() -> None:
    expected = [
        [0.001572, 0.011076, 0.033714, 0.058325, 0.064836],
        [0.259373, 0.246620, 0.168728, 0.111053, 0.073125],
    ]
    found = of("runtime_geom").probabilities(5)
    np.testing.assert_allclose(found, expected, atol=6e-7)


@pytest.mark.parametrize(
    ("name", "law", "fast", "slow"),
    [
        ("mean", "runtime_geom", 12.492906, 2.186981),
        ("mean_square", "runtime_geom", 200.12721, 10.640801),
        ("mean_inverse", "runtime_geom", 0.134833, 0.408428),
        ("mean", "runtime_exp", 12.394896, 2.186922),
        ("mean_square", "runtime_exp", 199.293894, 10.774814),
        ("mean", "count_geom", 1.999998, 11.599059),
    ],
)
def test_moments(name: str, law: str, fast: float, slow: float) -> None:
    np.testing.assert_allclose(moments(of(law), 20)[name], [fast, slow], atol=1e-6)


@pytest.mark.parametrize(
    ("law", "fast", "slow"),
    [
        ("runtime_geom", 0.998428, 0.740627),
        ("runtime_exp", 0.993811, 0.732917),
        ("count_geom", 1, 1),
    ],
)
def test_probability_of_any_step(law: str, fast: float, slow: float) -> None:
    np.testing.assert_allclose(of(law).prob_any(), [fast, slow], atol=6e-7)


def test_probability_of_reaching_the_cap() -> None:
    tails = of("runtime_geom").at_least(20)
    np.testing.assert_allclose(tails[:, -1], [0.324368, 0.000269], atol=6e-7)


@pytest.mark.parametrize(
    ("contacted", "fast", "slow"), [(5, 17.717, 7.804), (10, 15.728, 4.318), (50, 6.834, 0.875)]
)
def test_mean_for_other_shares_of_clients(contacted: int, fast: float, slow: float) -> None:
    found = of("runtime_geom", p=contacted / 100).mean(20)
    np.testing.assert_allclose(found, [fast, slow], atol=6e-4)


def test_mean_under_a_lower_cap() -> None:
    np.testing.assert_allclose(of("runtime_geom").mean(5), [4.665, 1.915], atol=6e-4)


@pytest.mark.parametrize("max_steps", [1, 20])
def test_rounds_of_one_time_unit(max_steps: int) -> None:
    """P(E >= k) = g^k / (1 - p), with g the probability of a step before the next contact."""
    p, rate = 0.3, 0.4
    g = rate * (1 - p) / (p + rate * (1 - p))
    counts = of("runtime_geom", rate, p, 1)
    np.testing.assert_allclose(
        counts.at_least(max_steps), g ** np.arange(1, max_steps + 1) / (1 - p), atol=1e-12
    )
    np.testing.assert_allclose(
        counts.mean(max_steps), g * (1 - g**max_steps) / ((1 - p) * (1 - g)), atol=1e-12
    )


@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
def test_everyone_contacted_every_round(law: str) -> None:
    """With p = 1 every window is one round."""
    rates, counts = np.array([FAST, SLOW]), np.arange(200)[:, None]
    of_count = stats.binom(7, rates) if law == "runtime_geom" else stats.poisson(7 * rates)
    weights = of_count.pmf(counts)
    expected = np.sum(weights * np.minimum(counts, 4), axis=0)
    np.testing.assert_allclose(of(law, p=1.0).mean(4), expected, atol=1e-12)
    np.testing.assert_allclose(of(law, p=1.0).prob_any(), 1 - weights[0], atol=1e-12)


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_moments_agree_with_the_sum_over_counts(law: str) -> None:
    counts = np.arange(400)
    steps = np.minimum(counts, 6)
    weights = np.asarray(of(law, 0.2).probabilities(400))
    np.testing.assert_allclose(weights[0], 1 - of(law, 0.2).prob_any(), atol=1e-12)
    np.testing.assert_allclose(of(law, 0.2).mean(6), weights @ steps, atol=1e-9)


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_a_step_is_certain_in_a_time_unit(law: str) -> None:
    """A rate of one, at which every time unit completes a step, gives finite values."""
    expected = {
        "runtime_geom": 7 * 0.2 + 14 * 0.16 + 20 * 0.64,
        "runtime_exp": None,
        "count_geom": 1.0,
    }[law]
    found = float(of(law, 1.0).mean(20))
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
    for power, name in ((1, "mean"), (2, "mean_square")):
        sample = steps.astype(float) ** power
        expected = float(moments(of(law, [SLOW]), 20)[name][0])
        assert abs(sample.mean() - expected) < 5 * sample.std() / np.sqrt(draws)


@pytest.mark.parametrize("law", STEP_COUNT_LAWS)
def test_single_precision_inside_a_trace(law: str) -> None:
    double = of(law).mean(20)
    with jax.enable_x64(False):
        traced = jax.jit(lambda rate, p, time: StepCounts(rate, p, time, law).mean(20))
        single = traced(jnp.array([FAST, SLOW]), 0.2, 7.0)
        assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, double, rtol=1e-4)


def test_numbers_broadcast() -> None:
    p = jnp.array([[0.1], [0.2], [1.0]])
    counts = of("runtime_geom", p=p)
    found = counts.at_least(5)
    assert found.shape == (3, 2, 5)
    np.testing.assert_allclose(found[1, 0], of("runtime_geom", FAST).at_least(5), atol=1e-12)
    assert counts.mean(5).shape == (3, 2)
