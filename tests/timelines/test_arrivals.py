"""Buffered arrivals: server steps, shares and staleness worked out apart, fixed durations, and the readings of restarting."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim import ConfigError
from fedjax_sim.schedule import ticks_in_budget
from fedjax_sim.settings import check
from fedjax_sim.streams import stream
from fedjax_sim.timelines import Arrivals, arrivals, client_rates


def fast_share(hyper: Any, clients: np.ndarray, ticks: list[int]) -> np.ndarray:
    """Share of the updates that fast clients sent, per seed."""
    with jax.enable_x64(True):
        rates = [np.asarray(client_rates(stream(jax.random.key(seed), "timeline"), hyper)) for seed in range(len(clients))]
    return np.array([(rate[row[:num]] == hyper.rate_fast).mean() for rate, row, num in zip(rates, clients, ticks, strict=True)])


# Server steps in 5000 units of time, share of fast clients, mean and largest staleness; 100 clients, buffer of 10, simulated apart to 1 %.
READINGS = [
    ("after_interaction", 1 / 3, 767, 0.934, 8.9, 87),
    ("after_interaction", 8 / 9, 236, 0.447, 8.7, 29),
    ("own_finish", 1 / 3, 858, 0.940, None, None),
    ("own_finish", 8 / 9, 271, 0.503, None, None),
    ("fresh", 1 / 3, 138, 1.0, None, None),
    ("fresh", 8 / 9, 101, 1.0, None, None),
]


@pytest.mark.parametrize(("restart", "slow_fraction", "steps", "share", "stale_mean", "stale_max"), READINGS)
def test_server_steps_and_who_makes_them(
    draw: Callable, restart: str, slow_fraction: float, steps: float, share: float, stale_mean: float | None, stale_max: float | None
) -> None:
    """Within 5 standard errors over seeds, and the precision of the expected numbers."""
    hyper = Arrivals(restart=restart, slow_fraction=slow_fraction)
    schedule = draw(arrivals, hyper, num_ticks=950, seeds=12)
    ticks = [ticks_in_budget(time, 5000, overshoot=True) for time in schedule.time]

    def close(values: Any, expected: float, precision: float) -> None:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert error < 0.1 * expected
        assert abs(np.mean(values) - expected) < 5 * error + precision

    close(ticks, steps, 0.01 * steps)
    close(fast_share(hyper, schedule.clients, ticks), share, 0.0005)
    if stale_mean is not None:
        staleness = [(np.arange(num)[:, None] - version[:num]) for version, num in zip(schedule.version, ticks, strict=True)]
        close([each.mean() for each in staleness], stale_mean, 0.05 + 0.01 * stale_mean)
        close([each.max() for each in staleness], stale_max, 0.03 * stale_max)


@pytest.mark.parametrize("restart", ["after_interaction", "own_finish", "fresh"])
def test_equal_fixed_durations_are_rounds(draw: Callable, restart: str) -> None:
    """A step per time unit, and a buffer for everyone: all wait for each other (own finish: but not for the exchange)."""
    hyper = Arrivals(num_clients=5, buffer_size=5, local_steps=4, rate_fast=1.0, rate_slow=1.0, restart=restart)
    schedule = draw(arrivals, hyper, num_ticks=12, seeds=2)
    # Own finish: a client restarts at max(own finish, start of the tick); the first tick starts at 0, the next ones where the last ended.
    expected = 7.0 * np.arange(1, 13) if restart != "own_finish" else None
    clock, finish, own = 0.0, 4.0, []
    for _ in range(12):
        began, clock = clock, max(clock, finish) + 3
        finish = max(began, finish) + 4
        own.append(clock)
    np.testing.assert_array_equal(schedule.time[0], own if expected is None else expected)
    assert (np.sort(schedule.clients, axis=-1) == np.arange(5)).all()
    np.testing.assert_array_equal(schedule.version, np.broadcast_to(np.arange(12)[:, None], (2, 12, 5)))
    assert (schedule.steps == 4).all()
    assert (schedule.weight == 0.2).all()


def test_ties_are_broken_at_random(draw: Callable) -> None:
    """Everybody finishes at once, and the first buffer takes two of five: each pair of slots is uniform over clients."""
    hyper = Arrivals(num_clients=5, buffer_size=2, local_steps=4, rate_fast=1.0, rate_slow=1.0)
    first = draw(arrivals, hyper, num_ticks=2, seeds=600).clients[:, 0]
    counts = np.bincount(first.ravel(), minlength=5)
    # 240 expected of each, standard deviation below 14.
    assert (np.abs(counts - 240) < 5 * 14).all()


FEW = Arrivals(num_clients=9, buffer_size=4, local_steps=3)


def test_a_client_has_one_update_in_a_buffer_at_most_when_held_back(draw: Callable) -> None:
    schedule = draw(arrivals, FEW, num_ticks=60, seeds=3)
    assert all(len(set(row)) == 4 for row in schedule.clients.reshape(-1, 4).tolist())
    assert (np.diff(schedule.time, axis=1) >= 3).all()


@pytest.mark.parametrize(("restart", "send_old_model"), [("after_interaction", False), ("after_interaction", True), ("fresh", False)])
def test_versions_are_those_that_clients_hold(draw: Callable, restart: str, send_old_model: bool) -> None:
    """An update starts from what its client was sent at its last one: the model after that tick, or before it."""
    schedule = draw(arrivals, FEW.replace(restart=restart, send_old_model=send_old_model), num_ticks=60, seeds=3)
    held = np.zeros(9, int)
    for t in range(60):
        clients = schedule.clients[0, t]
        np.testing.assert_array_equal(schedule.version[0, t], held[clients])
        held[clients] = t if send_old_model else t + 1
        np.testing.assert_array_equal(schedule.holds[0, t], held[clients])


def test_free_clients_never_wait(draw: Callable) -> None:
    """In the long run updates arrive at the sum of the clients' rates over K, whatever the exchange takes."""
    hyper = Arrivals(num_clients=6, buffer_size=3, local_steps=2, restart="free", server_interact=100.0)
    schedule = draw(arrivals, hyper, num_ticks=2000, seeds=8)
    rate = (4 / 2 + 2 / 16) / 2  # Two of six clients are slow.
    per_tick = np.diff(schedule.time[:, ::200], axis=1).ravel() / 200
    per_tick = per_tick[np.isfinite(per_tick)]
    assert per_tick.size > 40
    error = per_tick.std(ddof=1) / np.sqrt(per_tick.size)
    assert error < 0.02 * 3 / rate
    assert abs(per_tick.mean() - 3 / rate) < 5 * error


def test_free_clients_may_fill_several_slots_and_take_what_is_current(draw: Callable) -> None:
    """Own aggregation included: after arrival number a, floor((a + 1) / Z) models have been made."""
    schedule = draw(arrivals, FEW.replace(restart="free"), num_ticks=60, seeds=3)
    clients, version = schedule.clients[0].ravel(), schedule.version[0].ravel()
    assert any(len(set(row)) < 4 for row in schedule.clients[0].tolist())
    held = np.zeros(9, int)
    for a, client in enumerate(clients):
        assert version[a] == held[client]
        held[client] = (a + 1) // 4
        assert schedule.holds[0].ravel()[a] == held[client]
    assert (schedule.version[0] <= np.arange(60)[:, None]).all()


def test_unknown_arrivals_are_not_a_number_and_known_ones_are_right(draw: Callable) -> None:
    """One client in forty is fast, and does most updates: its last drawn one ends what is known. A longer schedule agrees."""
    hyper = Arrivals(num_clients=40, buffer_size=3, local_steps=2, restart="free", slow_fraction=39 / 40, rate_slow=1 / 4000)
    short, long = (draw(arrivals, hyper, num_ticks=num) for num in (100, 800))
    known = np.isfinite(short.time[0])
    assert 0 < known.sum() < 100
    assert known[: known.sum()].all(), "what is known comes first"
    assert np.isnan(short.time[0][~known]).all()
    num = known.sum()
    assert np.isfinite(long.time[0, :num]).all()
    np.testing.assert_array_equal(short.time[0, :num], long.time[0, :num])
    np.testing.assert_array_equal(short.clients[0, :num], long.clients[0, :num])
    np.testing.assert_array_equal(short.version[0, :num], long.version[0, :num])


@pytest.mark.parametrize("restart", ["after_interaction", "own_finish", "free", "fresh"])
def test_first_ticks_do_not_depend_on_how_many_are_asked_for(draw: Callable, restart: str) -> None:
    """Ties in time, which geometric times have many of, included."""
    hyper = FEW.replace(restart=restart, slow_fraction=0.0, rate_fast=0.8)
    short, long = (draw(arrivals, hyper, num_ticks=num, seeds=3) for num in (17, 60))
    assert short.time.dtype == np.float64
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :17])


def test_clients_cannot_go_on_from_a_model_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match='send_old_model is False, but must be true under restart = "own_finish"'):
        check(Arrivals(restart="own_finish"))


def test_staleness_has_no_bound_in_immediate_updates(draw: Callable) -> None:
    """A worker fifty times slower than the other sees about fifty server steps pass in each of its own."""
    hyper = Arrivals(
        num_clients=2, buffer_size=1, local_steps=1, slow_fraction=0.5, rate_fast=1.0, rate_slow=1 / 50, restart="free", server_interact=0.0
    )
    schedule = draw(arrivals, hyper, num_ticks=10_000)
    staleness = (np.arange(10_000)[:, None] - schedule.version[0]).ravel()
    with jax.enable_x64(True):
        rate = np.asarray(client_rates(stream(jax.random.key(0), "timeline"), hyper))
    of_slow = staleness[rate[schedule.clients[0].ravel()] < 1]
    error = of_slow.std() / np.sqrt(of_slow.size)
    assert of_slow.size > 100
    assert abs(of_slow.mean() - 50) < 5 * error
    # Between two steps of the fast one lie at most two of the slow one, at the same times.
    assert staleness[rate[schedule.clients[0].ravel()] == 1].max() <= 2
