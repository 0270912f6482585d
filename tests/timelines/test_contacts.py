"""Periodic contacts against closed forms of the step count, and against loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import Timeline
from fedjax_sim.core.streams import stream
from fedjax_sim.engine.planning.budgets import ticks_in_budget
from fedjax_sim.timelines import Contacts, draw_client_rates, presets, schedule_contacts

CONTACTS = presets.preset(Contacts, presets.FAVANO)

FAST, SLOW = 1 / 2, 1 / 16
K, PERIOD, SHARE = 20, 7, 0.2


class Drawn:
    """Schedules of 100 clients, of whom 20 are contacted per tick, with every slot's rate."""

    def __init__(self, draw: Callable, hyper: Contacts, *, num_ticks: int, seeds: int):
        drawn, self.window = draw(schedule_contacts, hyper, num_ticks=num_ticks, seeds=seeds)
        self.timeline: Timeline = drawn
        rates = rates_of(hyper, seeds)
        self.rate = np.stack([rates[seed][self.timeline.clients[seed]] for seed in range(seeds)])

    def of(self, rate: float, values: np.ndarray, *, skip: int) -> np.ndarray:
        """Select values of the slots whose clients have this rate, without the first ticks."""
        return values[:, skip:][self.rate[:, skip:] == rate]


def rates_of(hyper: Any, seeds: int) -> np.ndarray:
    with jax.enable_x64(True):
        return np.stack(
            [
                draw_client_rates(stream(jax.random.key(seed), "timeline"), hyper)
                for seed in range(seeds)
            ]
        )


def assert_mean(
    sample: np.ndarray, expected: float, *, precision: float, rounded: float = 0.0
) -> None:
    """Check a mean within 5 standard errors plus the rounding of the expected number.

    The standard error must be small enough for the given relative precision.
    """
    error = sample.std() / np.sqrt(sample.size)
    assert 5 * error < precision * expected, "too few draws for this precision"
    assert abs(sample.mean() - expected) < 5 * error + rounded


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("law", "mean", "any_step"),
    [
        ("runtime_geom", (12.492906, 2.186981), (0.998428, 0.740627)),
        ("runtime_exp", (12.394896, 2.186922), (0.993811, 0.732917)),
        ("count_geom", (1.999998, 11.599059), (1.0, 1.0)),
    ],
)
def test_step_counts_in_the_long_run(
    draw: Callable, law: str, mean: tuple[float, float], any_step: tuple[float, float]
) -> None:
    """E[X] and P(E > 0) of fast and slow clients equal the values for stationary windows."""
    drawn = Drawn(draw, CONTACTS(runtime_law=law), num_ticks=1000, seeds=16)
    for rate, expected_mean, expected_any in zip((FAST, SLOW), mean, any_step, strict=True):
        steps = drawn.of(rate, drawn.timeline.steps, skip=50)
        assert steps.max() <= K
        assert_mean(steps, expected_mean, precision=0.02)
        assert_mean(steps > 0, expected_any, precision=0.01, rounded=1e-6)


def capped_binomial_mean(rate: float, windows: np.ndarray, chance: np.ndarray) -> float:
    counts = np.arange(windows.max() + 1)
    return float(np.minimum(counts, K) @ stats.binom.pmf(counts[:, None], windows, rate) @ chance)


@pytest.mark.slow
def test_early_contacts_have_shorter_windows(draw: Callable) -> None:
    """E[X] at the first server steps, whose windows are shorter: all clients start at time 0."""
    drawn = Drawn(draw, CONTACTS(), num_ticks=20, seeds=250)
    ticks = [1, 2, 3, 5, 10, 20]
    means_of_fast = [3.5, 6.3, 8.54, 11.6333, 12.4929, 12.4929]
    means_of_slow = [0.4375, 0.7875, 1.0675, 1.4707, 1.9526, 2.1623]
    for t, fast, slow in zip(ticks, means_of_fast, means_of_slow, strict=True):
        for rate, expected in ((FAST, fast), (SLOW, slow)):
            steps = drawn.timeline.steps[:, t - 1][drawn.rate[:, t - 1] == rate]
            assert_mean(steps, expected, precision=0.2, rounded=1e-4)


def test_gaps_between_contacts_are_geometric(draw: Callable) -> None:
    """The law does not depend on a client's speed, and all clients are contacted equally often."""
    drawn = Drawn(draw, CONTACTS(), num_ticks=1000, seeds=16)
    ticks = np.arange(1000)[None, :, None]
    # Version v was made at tick v - 1, the client's previous contact.
    gap = ticks + 1 - drawn.timeline.version
    for rate in (FAST, SLOW):
        gaps = drawn.of(rate, gap, skip=60)
        assert_mean(gaps, 1 / SHARE, precision=0.02)
        for r in range(1, 7):
            assert_mean(gaps == r, stats.geom.pmf(r, SHARE), precision=0.06)
    contacts_of_slow = (drawn.rate == SLOW).sum(axis=(1, 2))
    assert_mean(contacts_of_slow, 1000 * SHARE * 34, precision=0.02)


FEW = CONTACTS(num_clients=7, num_selected=3, local_steps=9)


def test_windows_and_versions_are_those_of_a_loop(draw: Callable) -> None:
    schedule, window = draw(
        schedule_contacts,
        FEW.replace(server_wait=1.5, server_interact=0.25),
        num_ticks=40,
        seeds=[5],
    )
    last: dict[int, int] = {}
    for t in range(40):
        clients = schedule.clients[0, t].tolist()
        assert len(set(clients)) == 3
        for slot, client in enumerate(clients):
            previous = last.get(client)
            assert schedule.version[0, t, slot] == (0 if previous is None else previous + 1)
            began = 0.0 if previous is None else schedule.time[0, previous]
            np.testing.assert_allclose(window[0, t, slot], schedule.time[0, t] - began, rtol=1e-15)
            assert schedule.holds[0, t, slot] == t + 1
            last[client] = t
    np.testing.assert_allclose(schedule.time[0], 1.75 * np.arange(1, 41), rtol=1e-15)


def test_a_step_per_time_unit_leaves_nothing_to_chance(draw: Callable) -> None:
    """With rates of one, every client does a step in each unit of time, up to K."""
    hyper = FEW.replace(server_wait=2.0, server_interact=1.0, rate_fast=1.0, rate_slow=1.0)
    schedule, window = draw(schedule_contacts, hyper, num_ticks=40)
    np.testing.assert_array_equal(schedule.steps, np.minimum(window, 9))


@pytest.mark.parametrize(
    ("wait", "interact", "budget", "ticks"),
    [(0.05, 0.05, 0.3, 3), (0.1, 0.2, 0.9, 3), (0.1, 0.0, 0.3, 3), (4.0, 3.0, 35.0, 5)],
)
def test_a_contact_at_the_end_of_the_budget_belongs_to_it(
    draw: Callable, wait: float, interact: float, budget: float, ticks: int
) -> None:
    """The last bit of a product of fractional numbers has no influence."""
    schedule, _ = draw(
        schedule_contacts, FEW.replace(server_wait=wait, server_interact=interact), num_ticks=50
    )
    assert ticks_in_budget(schedule.time[0], budget, overshoot=False) == ticks


def test_whole_windows_are_whole(draw: Callable) -> None:
    """100 periods of 4.35 are 435 units of time: a client that does a step per unit does 435."""
    hyper = CONTACTS(
        num_clients=100,
        num_selected=1,
        local_steps=500,
        rate_fast=1.0,
        slow_fraction=0.0,
        server_wait=4.35,
        server_interact=0.0,
    )
    assert 100 * 4.35 < 435
    schedule, window = draw(schedule_contacts, hyper, num_ticks=2000)
    ticks = np.arange(2000)[:, None] - schedule.version[0] + 1
    assert (ticks == 100).any()
    np.testing.assert_array_equal(window[0][ticks == 100], 435)
    np.testing.assert_array_equal(schedule.steps[0][ticks == 100], 435)


def test_first_ticks_do_not_depend_on_how_many_are_asked_for(draw: Callable) -> None:
    short, long = (draw(schedule_contacts, FEW, num_ticks=num) for num in (17, 40))
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :17])


def test_times_are_in_64_bits(draw: Callable) -> None:
    """After 2^21 and more units of time, periods of 32 bits would be a sixteenth longer or not."""
    hyper = FEW.replace(server_wait=2.0**21 + 0.1, server_interact=0.0)
    schedule, _ = draw(schedule_contacts, hyper, num_ticks=40)
    assert schedule.time.dtype == np.float64
    np.testing.assert_allclose(np.diff(schedule.time[0]), 2.0**21 + 0.1, rtol=1e-13)
    assert jnp.asarray(schedule.time).dtype == jnp.float32, (
        "the test itself must not run in 64 bits"
    )


@pytest.mark.parametrize("steps_in_a_window", [6, 10])
def test_constant_times_that_fill_a_window_fit_into_it(
    draw: Callable, steps_in_a_window: int
) -> None:
    """The last bits of a sum of equal times have no influence.

    Sums of six and of ten sevenths are among those that come out too long.
    """
    rate = steps_in_a_window / 7
    hyper = CONTACTS(
        num_clients=3,
        num_selected=1,
        local_steps=50,
        runtime_law="runtime_constant",
        rate_fast=rate,
        rate_slow=rate,
    )
    schedule, window = draw(schedule_contacts, hyper, num_ticks=12)
    np.testing.assert_array_equal(
        schedule.steps, np.minimum(np.round(window / 7) * steps_in_a_window, 50)
    )
