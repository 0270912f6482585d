"""Synchronous rounds against the exact mean of a cohort's slowest client, and round counts."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import stats

from fedjax_sim.core.types import EMPTY
from fedjax_sim.engine.planning.budgets import ticks_in_budget
from fedjax_sim.timelines import (
    CohortRounds,
    WeightedRounds,
    presets,
    schedule_cohort_rounds,
    schedule_weighted_rounds,
)

ROUNDS = presets.preset(CohortRounds, presets.FAVANO)
WEIGHTED_ROUNDS = presets.preset(WeightedRounds, presets.LOCK_STEP)


def mean_round_time(num_slow: int) -> float:
    """Compute 3 + E[max over a cohort of 20 of 100 clients of the time of 20 geometric steps].

    The number of slow clients in a cohort is hypergeometric.
    """
    horizon = np.arange(3000)
    fast, slow = (1 - stats.binom.cdf(19, horizon, rate) for rate in (1 / 2, 1 / 16))
    cohort = stats.hypergeom(100, num_slow, 20)
    return 3 + sum(cohort.pmf(j) * np.sum(1 - fast ** (20 - j) * slow**j) for j in range(21))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("slow_fraction", "num_slow", "expected"), [(1 / 3, 34, 418.89), (8 / 9, 89, 461.41)]
)
def test_mean_round_time(
    draw: Callable, slow_fraction: float, num_slow: int, expected: float
) -> None:
    """The mean agrees with the formula within 5 standard errors.

    The formula agrees with numbers from a separate calculation.
    """
    assert abs(mean_round_time(num_slow) - expected) < 0.005
    schedule = draw(
        schedule_cohort_rounds, ROUNDS(slow_fraction=slow_fraction), num_ticks=60, seeds=160
    )
    times = np.diff(schedule.time, axis=1)
    error = times.std() / np.sqrt(times.size)
    assert error < 0.7
    assert abs(times.mean() - expected) < 5 * error


# Slow fraction, reading, and rounds in 5000 and 10000 units of time, the last one run to its end.
# The numbers come from a separate simulation and are accurate to 1 %.
COUNTS = [
    (1 / 3, "sum", 12.5, 24.4),
    (1 / 3, "one_draw", 6.9, 13.1),
    (1 / 3, "mean", 16, 31),
    (8 / 9, "sum", 11.3, 22.2),
    (8 / 9, "one_draw", 5.2, 9.7),
    (8 / 9, "mean", 16, 31),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("slow_fraction", "reading", "short", "long"), COUNTS)
def test_rounds_in_a_budget(
    draw: Callable, slow_fraction: float, reading: str, short: float, long: float
) -> None:
    """Agree within 5 standard errors, plus the 1 % and the rounding of the expected numbers."""
    schedule = draw(
        schedule_cohort_rounds,
        ROUNDS(slow_fraction=slow_fraction, round_time=reading),
        num_ticks=60,
        seeds=160,
    )
    for budget, expected in ((5000, short), (10000, long)):
        counts = np.array([ticks_in_budget(time, budget, overshoot=True) for time in schedule.time])
        error = counts.std() / np.sqrt(counts.size)
        assert error < 0.02 * expected
        assert abs(counts.mean() - expected) < 5 * error + 0.01 * expected + 0.05


def test_everyone_starts_from_the_current_model_and_does_all_steps(draw: Callable) -> None:
    hyper = ROUNDS(num_clients=9, num_selected=4, local_steps=5)
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=30, seeds=3)
    ticks = np.broadcast_to(np.arange(30)[:, None], (3, 30, 4))
    np.testing.assert_array_equal(schedule.version, ticks)
    np.testing.assert_array_equal(schedule.holds, ticks)
    assert (schedule.steps == 5).all()
    assert (schedule.weight == 0.25).all()
    assert all(len(set(row)) == 4 for row in schedule.clients.reshape(-1, 4).tolist())
    lengths = np.diff(schedule.time, axis=1, prepend=0.0)
    assert (lengths >= 3 + 5).all()
    # Geometric times are whole numbers.
    np.testing.assert_array_equal(lengths, np.round(lengths))


def test_one_draw_counts_for_all_steps(draw: Callable) -> None:
    hyper = ROUNDS(
        num_clients=9, num_selected=4, local_steps=5, round_time="one_draw", server_interact=0.0
    )
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=30, seeds=3)
    np.testing.assert_array_equal(np.diff(schedule.time, axis=1, prepend=0.0) % 5, 0)


def test_the_mean_reading_waits_for_the_slowest_mean(draw: Callable) -> None:
    """The slowest client's K / rate, 5 x 2 or 5 x 16, plus the exchange, exactly."""
    hyper = ROUNDS(
        num_clients=9, num_selected=4, local_steps=5, round_time="mean", slow_fraction=2 / 9
    )
    lengths = np.diff(
        draw(schedule_cohort_rounds, hyper, num_ticks=60, seeds=2).time, axis=1, prepend=0.0
    )
    assert set(lengths.ravel().tolist()) == {13.0, 83.0}


def test_a_step_per_time_unit_leaves_nothing_to_chance(draw: Callable) -> None:
    hyper = ROUNDS(num_clients=9, num_selected=4, local_steps=5, rate_fast=1.0, rate_slow=1.0)
    np.testing.assert_array_equal(
        draw(schedule_cohort_rounds, hyper, num_ticks=30, seeds=3).time[0], 8.0 * np.arange(1, 31)
    )


def test_exponential_times_have_the_same_mean(draw: Callable) -> None:
    """With a cohort of one, K steps of a fast client take K / rate on average.

    Their variance is that of a sum of exponential times.
    """
    hyper = ROUNDS(
        num_clients=3, num_selected=1, local_steps=5, slow_fraction=0.0, runtime_law="runtime_exp"
    )
    times = (
        np.diff(
            draw(schedule_cohort_rounds, hyper, num_ticks=500, seeds=8).time, axis=1, prepend=0.0
        )
        - 3
    )
    error = times.std() / np.sqrt(times.size)
    assert abs(times.mean() - 10) < 5 * error
    assert abs(times.var() / 20 - 1) < 0.15


def test_first_ticks_do_not_depend_on_how_many_are_asked_for(draw: Callable) -> None:
    hyper = ROUNDS(num_clients=9, num_selected=4, local_steps=5)
    short, long = (draw(schedule_cohort_rounds, hyper, num_ticks=num, seeds=3) for num in (17, 30))
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :17])
    assert short.time.dtype == np.float64


@pytest.mark.parametrize(("rate", "steps"), [(10.0, 3), (10.0, 9), (3.0, 7), (7.0, 100)])
def test_who_takes_exactly_until_the_deadline_is_in_time(
    draw: Callable, rate: float, steps: int
) -> None:
    """Three times 0.1 is more than 0.3 in floats."""
    hyper = CohortRounds(
        num_clients=3,
        num_selected=3,
        local_steps=steps,
        rate_fast=rate,
        rate_spread=0.0,
        runtime_law="runtime_constant",
        deadline=steps / rate,
    )
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=3)
    assert (schedule.clients >= 0).all()
    np.testing.assert_allclose(schedule.time[0], steps / rate * np.arange(1, 4), rtol=1e-12)


WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("participants", ["full", "with_replacement"])
def test_weighted_rounds(draw: Callable, participants: str) -> None:
    """Every client has its share as weight, or each of three draws the weight 1/3.

    In lock-step a round takes K units of time.
    """
    hyper = WEIGHTED_ROUNDS(
        num_clients=4,
        num_selected=3,
        local_steps=6,
        client_weights=WEIGHTS,
        participants=participants,
    )
    schedule = draw(schedule_weighted_rounds, hyper, num_ticks=50, seeds=3)
    present = schedule.clients != EMPTY
    np.testing.assert_array_equal(schedule.steps, np.where(present, 6, 0))
    np.testing.assert_array_equal(
        schedule.version, np.broadcast_to(np.arange(50)[:, None], schedule.version.shape)
    )
    np.testing.assert_array_equal(schedule.time, np.broadcast_to(6.0 * np.arange(1, 51), (3, 50)))
    np.testing.assert_allclose(schedule.weight.sum(axis=-1), 1, rtol=1e-12)
    if participants == "full":
        np.testing.assert_array_equal(schedule.clients, np.broadcast_to(np.arange(4), (3, 50, 4)))
        np.testing.assert_allclose(
            schedule.weight, np.broadcast_to(WEIGHTS / 10, (3, 50, 4)), rtol=1e-12
        )
    else:
        assert schedule.clients.shape == (3, 50, 3)
        np.testing.assert_array_equal(schedule.weight == 0, ~present)
        assert set(np.round(3 * schedule.weight, 12).ravel().tolist()) == {0.0, 1.0, 2.0, 3.0}
        counts = np.array(
            [
                [(schedule.weight[i] * (schedule.clients[i] == c)).sum() for c in range(4)]
                for i in range(3)
            ]
        )
        # There are 450 draws; the p-value is above 1e-3.
        assert stats.chisquare(3 * counts.sum(axis=0), 45 * WEIGHTS).pvalue > 1e-3


def test_a_uniform_subset_is_the_cohort_of_rounds(draw: Callable) -> None:
    """The clients are the same and, with the same settings of the clock, so are the times."""
    clock = {"num_clients": 9, "num_selected": 4, "local_steps": 5, "round_time": "one_draw"}
    weighted = WEIGHTED_ROUNDS(
        participants="without_replacement",
        slow_fraction=1 / 3,
        rate_fast=0.5,
        server_interact=3.0,
        **clock,
    )
    subset, cohort = (
        draw(schedule_weighted_rounds, weighted, num_ticks=30, seeds=2),
        draw(schedule_cohort_rounds, ROUNDS(**clock), num_ticks=30, seeds=2),
    )
    jax.tree.map(np.testing.assert_array_equal, subset, cohort)


def test_rounds_that_end_by_a_coin_are_geometric(draw: Callable) -> None:
    """One coin is for all clients; the mean is K, and with K = 1 every round is one step."""
    hyper = WEIGHTED_ROUNDS(num_clients=5, averaging="random", local_steps=4)
    steps = draw(schedule_weighted_rounds, hyper, num_ticks=800, seeds=5).steps
    assert (steps == steps[..., :1]).all()
    found, law = steps[..., 0].ravel(), stats.geom(1 / 4)
    assert abs(found.mean() - 4) < 5 * law.std() / np.sqrt(found.size)
    for k in (1, 2, 6):
        share = law.cdf(k)
        assert abs((found <= k).mean() - share) < 5 * np.sqrt(share * (1 - share) / found.size)
    few = draw(schedule_weighted_rounds, hyper, num_ticks=7, seeds=5)
    np.testing.assert_array_equal(few.steps, steps[:, :7])
    np.testing.assert_array_equal(np.diff(few.time, prepend=0), few.steps[..., 0])
    alone = draw(schedule_weighted_rounds, hyper.replace(local_steps=1), num_ticks=50)
    assert (np.asarray(alone.steps) == 1).all()
