"""Buffered arrivals under the readings of when a client starts its next update.

Server steps, shares of fast clients and staleness are compared with numbers from a separate
simulation, and schedules with fixed durations and with event loops.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import Timeline
from fedjax_sim.core.settings import check
from fedjax_sim.core.streams import stream
from fedjax_sim.engine.planning.budgets import ticks_in_budget
from fedjax_sim.timelines import (
    Arrivals,
    ClientTable,
    draw_client_rates,
    draw_client_speeds,
    presets,
    schedule_arrivals,
)
from fedjax_sim.timelines.delays.laws import update_time
from tests.conftest import slow_but

ARRIVALS = presets.preset(Arrivals, presets.FAVANO)


def fast_share(hyper: Any, clients: np.ndarray, ticks: list[int]) -> np.ndarray:
    """Compute the share of updates that fast clients sent, per seed."""
    with jax.enable_x64(True):
        rates = [
            np.asarray(draw_client_rates(stream(jax.random.key(seed), "timeline"), hyper))
            for seed in range(len(clients))
        ]
    return np.array(
        [
            (rate[row[:num]] == hyper.delays.rate_fast).mean()
            for rate, row, num in zip(rates, clients, ticks, strict=True)
        ]
    )


# Reading, slow fraction, server steps in 5000 units of time, share of fast clients, mean and
# largest staleness, for 100 clients and a buffer of 10. The numbers come from a separate simulation
# and are accurate to 1 %.
READINGS = [
    ("after_interaction", 1 / 3, 767, 0.934, 8.9, 87),
    ("after_interaction", 8 / 9, 236, 0.447, 8.7, 29),
    ("own_finish", 1 / 3, 858, 0.940, None, None),
    ("own_finish", 8 / 9, 271, 0.503, None, None),
    ("fresh", 1 / 3, 138, 1.0, None, None),
    ("fresh", 8 / 9, 101, 1.0, None, None),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("restart", "slow_fraction", "steps", "share", "stale_mean", "stale_max"), READINGS
)
def test_server_steps_and_who_makes_them(
    draw: Callable,
    restart: str,
    slow_fraction: float,
    steps: float,
    share: float,
    stale_mean: float | None,
    stale_max: float | None,
) -> None:
    """Agree within 5 standard errors over seeds plus the precision of the expected numbers."""
    sends_old = restart == "own_finish"
    hyper = ARRIVALS(restart=restart, slow_fraction=slow_fraction, send_old_model=sends_old)
    # More than last for 5000 units of time.
    num_ticks = 200 if restart == "fresh" else 950
    schedule = draw(schedule_arrivals, hyper, num_ticks=num_ticks, seeds=12)
    assert (schedule.time[:, -1] > 5000).all()
    ticks = [ticks_in_budget(time, 5000, overshoot=True) for time in schedule.time]

    def close(values: Any, expected: float, precision: float) -> None:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert error < 0.1 * expected
        assert abs(np.mean(values) - expected) < 5 * error + precision

    close(ticks, steps, 0.01 * steps)
    close(fast_share(hyper, schedule.clients, ticks), share, 0.0005)
    if stale_mean is not None:
        staleness = [
            (np.arange(num)[:, None] - version[:num])
            for version, num in zip(schedule.version, ticks, strict=True)
        ]
        close([each.mean() for each in staleness], stale_mean, 0.05 + 0.01 * stale_mean)
        close([each.max() for each in staleness], stale_max, 0.03 * stale_max)


@pytest.mark.few(2)
@pytest.mark.parametrize("restart", ["after_interaction", "own_finish", "fresh"])
def test_equal_fixed_durations_are_rounds(draw: Callable, restart: str) -> None:
    """All clients wait for each other if each step takes a time unit and the buffer holds everyone.

    Under "own_finish" they do not wait for the exchange.
    """
    hyper = ARRIVALS(
        num_clients=5, buffer_size=5, local_steps=4, rate_fast=1.0, rate_slow=1.0, restart=restart
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=12, seeds=2)
    # Under "own_finish" a client restarts at max(its finish, start of the tick). The first tick
    # starts at 0, later ones where the previous one ended.
    expected = 7.0 * np.arange(1, 13) if restart != "own_finish" else None
    clock, finish, times = 0.0, 4.0, []
    for _ in range(12):
        began, clock = clock, max(clock, finish) + 3
        finish = max(began, finish) + 4
        times.append(clock)
    np.testing.assert_array_equal(schedule.time[0], times if expected is None else expected)
    assert (np.sort(schedule.clients, axis=-1) == np.arange(5)).all()
    np.testing.assert_array_equal(
        schedule.version, np.broadcast_to(np.arange(12)[:, None], (2, 12, 5))
    )
    assert (schedule.steps == 4).all()
    assert (schedule.weight == 0.2).all()


def test_ties_are_broken_at_random(draw: Callable) -> None:
    """Slots are uniform over clients if all five finish together and the buffer takes two."""
    hyper = ARRIVALS(num_clients=5, buffer_size=2, local_steps=4, rate_fast=1.0, rate_slow=1.0)
    first = draw(schedule_arrivals, hyper, num_ticks=2, seeds=600).clients[:, 0]
    counts = np.bincount(first.ravel(), minlength=5)
    # 240 are expected of each client, with a standard deviation below 14.
    assert (np.abs(counts - 240) < 5 * 14).all()


FEW = ARRIVALS(num_clients=9, buffer_size=4, local_steps=3)


def test_a_client_has_one_update_in_a_buffer_at_most_when_held_back(draw: Callable) -> None:
    schedule = draw(schedule_arrivals, FEW, num_ticks=60, seeds=3)
    assert all(len(set(row)) == 4 for row in schedule.clients.reshape(-1, 4).tolist())
    assert (np.diff(schedule.time, axis=1) >= 3).all()


@pytest.mark.parametrize(
    ("restart", "send_old_model"),
    [("after_interaction", False), ("after_interaction", True), ("fresh", False)],
)
def test_versions_are_those_that_clients_hold(
    draw: Callable, restart: str, send_old_model: bool
) -> None:
    """An update starts from the model after the tick of its client's last one, or before it."""
    schedule = draw(
        schedule_arrivals,
        FEW.replace(restart=restart, send_old_model=send_old_model),
        num_ticks=60,
        seeds=3,
    )
    held = np.zeros(9, int)
    for t in range(60):
        clients = schedule.clients[0, t]
        np.testing.assert_array_equal(schedule.version[0, t], held[clients])
        held[clients] = t if send_old_model else t + 1
        np.testing.assert_array_equal(schedule.holds[0, t], held[clients])


@pytest.mark.slow
def test_free_clients_never_wait(draw: Callable) -> None:
    """In the long run updates arrive at the sum of the clients' rates over K.

    The duration of the exchange has no influence.
    """
    hyper = ARRIVALS(
        num_clients=6, buffer_size=3, local_steps=2, restart="free", server_interact=100.0
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=2000, seeds=8)
    rate = (4 / 2 + 2 / 16) / 2  # Two of six clients are slow.
    per_tick = np.diff(schedule.time[:, ::200], axis=1).ravel() / 200
    per_tick = per_tick[np.isfinite(per_tick)]
    assert per_tick.size > 40
    error = per_tick.std(ddof=1) / np.sqrt(per_tick.size)
    assert error < 0.02 * 3 / rate
    assert abs(per_tick.mean() - 3 / rate) < 5 * error


def test_free_clients_may_fill_several_slots_and_take_what_is_current(draw: Callable) -> None:
    """The client of arrival number a takes model floor((a + 1) / Z), which is the current one.

    This includes the aggregation that its own update triggers.
    """
    schedule = draw(schedule_arrivals, FEW.replace(restart="free"), num_ticks=60, seeds=3)
    clients, version = schedule.clients[0].ravel(), schedule.version[0].ravel()
    assert any(len(set(row)) < 4 for row in schedule.clients[0].tolist())
    held = np.zeros(9, int)
    for a, client in enumerate(clients):
        assert version[a] == held[client]
        held[client] = (a + 1) // 4
        assert schedule.holds[0].ravel()[a] == held[client]
    assert (schedule.version[0] <= np.arange(60)[:, None]).all()


@pytest.mark.slow
def test_all_arrivals_are_known_however_unlike_the_speeds(draw: Callable) -> None:
    """One client in forty is two thousand times faster than the others, and does most updates.

    A longer schedule begins with the shorter one.
    """
    hyper = ARRIVALS(
        num_clients=40,
        buffer_size=3,
        local_steps=2,
        restart="free",
        slow_fraction=39 / 40,
        rate_slow=1 / 4000,
    )
    short, long = (draw(schedule_arrivals, hyper, num_ticks=num) for num in (100, 800))
    assert np.isfinite(long.time).all()
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :100])
    counts = np.bincount(long.clients.ravel(), minlength=40)
    # Each of the 39 slow clients sends an update per 8000 units of time, the fast one an update per
    # 4 units: about a fiftieth of the arrivals come from slow clients.
    assert counts.max() > 0.95 * 2400
    assert 10 < 2400 - counts.max() < 100


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "restart",
    # The test above is one of "free".
    slow_but(
        ["after_interaction", "own_finish"], ["after_interaction", "own_finish", "free", "fresh"]
    ),
)
def test_first_ticks_do_not_depend_on_how_many_are_asked_for(draw: Callable, restart: str) -> None:
    """This includes ties in time, of which geometric times have many."""
    hyper = FEW.replace(restart=restart, rate_slow=0.8, rate_fast=0.8)
    short, long = (draw(schedule_arrivals, hyper, num_ticks=num, seeds=3) for num in (17, 60))
    assert short.time.dtype == np.float64
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :17])


@pytest.mark.slow
def test_staleness_has_no_bound_in_immediate_updates(draw: Callable) -> None:
    """A worker fifty times slower than the other sees about fifty server steps per own step."""
    hyper = ARRIVALS(
        num_clients=2,
        buffer_size=1,
        local_steps=1,
        slow_fraction=0.5,
        rate_fast=1.0,
        rate_slow=1 / 50,
        restart="free",
        server_interact=0.0,
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=10_000)
    staleness = (np.arange(10_000)[:, None] - schedule.version[0]).ravel()
    with jax.enable_x64(True):
        rate = np.asarray(draw_client_rates(stream(jax.random.key(0), "timeline"), hyper))
    of_slow = staleness[rate[schedule.clients[0].ravel()] < 1]
    error = of_slow.std() / np.sqrt(of_slow.size)
    assert of_slow.size > 100
    assert abs(of_slow.mean() - 50) < 5 * error
    # Between two steps of the fast worker lie at most two steps of the slow one, at the same times.
    assert staleness[rate[schedule.clients[0].ravel()] == 1].max() <= 2


def test_three_clients_of_constant_times(draw: Callable) -> None:
    """A schedule worked out by hand, with times 1.0, 1.3 and 3.1 and a buffer of two.

    A client that fills the buffer takes the new model immediately.
    """
    speeds = ClientTable(1 / np.array([1.0, 1.3, 3.1]))
    hyper = ARRIVALS(
        num_clients=3,
        buffer_size=2,
        local_steps=1,
        client_table=speeds,
        runtime_law="runtime_constant",
        restart="free",
    )
    schedule = draw(schedule_arrivals, hyper.replace(ties="client"), num_ticks=6)
    np.testing.assert_allclose(schedule.time[0], [1.3, 2.6, 3.1, 4.0, 5.2, 6.2], rtol=1e-15)
    np.testing.assert_array_equal(
        schedule.clients[0], [[0, 1], [0, 1], [0, 2], [1, 0], [0, 1], [0, 2]]
    )
    np.testing.assert_array_equal(
        schedule.version[0], [[0, 0], [0, 1], [1, 0], [2, 2], [4, 3], [4, 3]]
    )
    np.testing.assert_array_equal(
        schedule.holds[0], [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    )


MEAN_TIMES = np.array([1, 1, 2, 2, 4])
SHARES = (1 / MEAN_TIMES) / (1 / MEAN_TIMES).sum()
FIVE = ARRIVALS(
    num_clients=5,
    local_steps=1,
    client_table=ClientTable(1 / MEAN_TIMES, [0.5, 0.5, 0.5, 0.5, 0.25]),
    runtime_law="runtime_uniform",
    ties="client",
)
"""Two clients with times from U(0.5, 1.5), two from U(1, 3) and one from U(3, 5)."""
NUM_ARRIVALS, LANES = 6000, 16


@pytest.fixture(scope="module")
def five(draw: Callable) -> Callable[..., Timeline]:
    """Draw schedules that have the same updates for all buffer sizes."""
    known: dict[tuple[str, int], Timeline] = {}

    def get(size: int, restart: str = "free") -> Timeline:
        if (restart, size) not in known:
            hyper = FIVE.replace(buffer_size=size, restart=restart)
            known[restart, size] = draw(
                schedule_arrivals, hyper, num_ticks=NUM_ARRIVALS // size, seeds=LANES
            )
        return known[restart, size]

    return get


def flat_staleness(schedule: Timeline) -> np.ndarray:
    """Compute the staleness of all arrivals in order: `i32[lanes, A]`."""
    lanes, num_ticks, _ = schedule.version.shape
    return (np.arange(num_ticks)[:, None] - schedule.version).reshape(lanes, -1)


def client_means(schedule: Timeline) -> np.ndarray:
    """Compute the mean staleness of each client in each lane: `f64[lanes, N]`."""
    clients = schedule.clients.reshape(len(schedule.clients), -1)
    totals = [
        np.bincount(i, tau, minlength=5) / np.bincount(i, minlength=5)
        for i, tau in zip(clients, flat_staleness(schedule), strict=True)
    ]
    return np.array(totals)


SIZES = [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_mean_staleness_tells_shares_of_arrivals(five: Callable, size: int) -> None:
    """E[tau_i] = (sum_j r_j / r_i - 1) / b.

    So 1 / (b E[tau_i] + 1) is the client's share of arrivals. Both hold within 4 standard
    errors over lanes, and 2 %.
    """
    stale = size * client_means(five(size))
    for i, expected in enumerate(1 / SHARES - 1):
        error = stale[:, i].std(ddof=1) / np.sqrt(LANES)
        assert 4 * error < 0.02 * expected
        assert abs(stale[:, i].mean() - expected) < 4 * error
    arrived = np.bincount(five(size).clients.ravel(), minlength=5) / (LANES * NUM_ARRIVALS)
    np.testing.assert_allclose(arrived, SHARES, rtol=0.02)
    np.testing.assert_allclose(1 / (stale.mean(axis=0) + 1), arrived, rtol=0.02)


class Identity(NamedTuple):
    """What is known just before each arrival of one client in one lane.

    Attributes:
      total: Sum of the client's staleness so far, including this arrival's.
      version: Version of the server's model.
      made: Models so far that were made by an update of this client.
    """

    total: np.ndarray
    version: np.ndarray
    made: np.ndarray


def identities(schedule: Timeline) -> list[Identity]:
    size = schedule.clients.shape[-1]
    found = []
    for clients, staleness in zip(
        schedule.clients.reshape(LANES, -1), flat_staleness(schedule), strict=True
    ):
        for client in range(5):
            arrivals = np.flatnonzero(clients == client)
            fills = arrivals % size == size - 1
            found.append(
                Identity(np.cumsum(staleness[arrivals]), arrivals // size, np.cumsum(fills) - fills)
            )
    return found


@pytest.mark.parametrize("size", SIZES)
def test_staleness_adds_up_to_the_version_but_for_own_aggregations(
    five: Callable, size: int
) -> None:
    """The identity holds exactly at every single arrival, in whole numbers."""
    for total, version, made in identities(five(size)):
        np.testing.assert_array_equal(total, version - made)
        assert made[-1] > 0


def test_staleness_adds_up_to_the_version_if_models_are_taken_before_aggregations(
    five: Callable,
) -> None:
    schedule = five(3, "before_aggregation")
    np.testing.assert_array_equal(schedule.clients, five(3).clients)
    for total, version, _ in identities(schedule):
        np.testing.assert_array_equal(total, version)
    np.testing.assert_array_equal(
        schedule.holds.reshape(LANES, -1), np.tile(np.arange(NUM_ARRIVALS) // 3, (LANES, 1))
    )


def test_order_of_taking_a_model_and_aggregating(five: Callable) -> None:
    """b E[tau_i] p_i tends to 1 if clients take models before their own aggregations.

    Otherwise (b E[tau_i] + 1) p_i tends to 1.
    """
    clients = five(3).clients.reshape(LANES, -1)
    share = np.array([np.bincount(lane, minlength=5) for lane in clients]) / NUM_ARRIVALS
    before, after = (
        3 * client_means(five(3, restart)) * share for restart in ("before_aggregation", "free")
    )
    # Arrivals after a client's last one are not counted: at most a few dozen of 6000.
    np.testing.assert_allclose(before, 1, atol=0.01)
    np.testing.assert_allclose(after.mean(axis=0) + share.mean(axis=0), 1, atol=0.01)
    assert (after.mean(axis=0) < 0.95).all()


def test_staleness_in_larger_buffers(five: Callable) -> None:
    """An update's staleness is M / b, rounded down or up.

    M is its staleness with a buffer of one. Arrival times do not depend on b.
    """
    single, buffered = five(1), five(3)
    np.testing.assert_array_equal(
        single.clients.reshape(LANES, -1), buffered.clients.reshape(LANES, -1)
    )
    np.testing.assert_array_equal(single.time[:, 2::3], buffered.time)
    passed, tau = flat_staleness(single), flat_staleness(buffered)
    assert (passed // 3 <= tau).all()
    assert (tau <= -(-passed // 3)).all()
    uneven = passed % 3 > 0
    assert 0.1 < np.mean(tau[uneven] > passed[uneven] // 3) < 0.9


@partial(jax.jit, static_argnames="num")
def _times(key: jax.Array, hyper: Arrivals, num: int) -> jax.Array:
    client, update = jnp.indices((hyper.num_clients, num))
    return update_time(
        stream(key, "runtimes"), client, update, draw_client_speeds(key, hyper), hyper
    )


def times_of(hyper: Arrivals, seed: int, num: int) -> np.ndarray:
    """Draw the running times that a schedule uses: `f64[N, num]`."""
    with jax.enable_x64(True):
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        return np.asarray(_times(stream(jax.random.key(seed), "timeline"), hyper, num))


def test_a_client_may_report_less_than_it_could(draw: Callable) -> None:
    """Client 0's times grow by the factor by which its rate falls.

    The other clients' draws do not change.
    """
    hyper = ARRIVALS(
        num_clients=6,
        buffer_size=6,
        local_steps=3,
        time_of="update",
        runtime_law="runtime_shifted_exp",
        ties="client",
        rate_fast=1.0,
        rate_slow=1.0,
        spread_fast=0.25,
        spread_slow=0.25,
        server_interact=0.0,
    )
    tables = [ClientTable([rate, *[1.0] * 5], np.full(6, 0.25)) for rate in (1.0, 1 / 8)]
    schedule, slowed = (
        draw(schedule_arrivals, hyper.replace(client_table=table), num_ticks=200, seeds=2)
        for table in tables
    )
    # Even the shortest time of client 0 is longer than nearly all times of the other clients.
    taken = times_of(hyper, 0, 200)
    assert (taken[0] * 8 > taken[1:].max(axis=0)).all()
    np.testing.assert_allclose(slowed.time[0], 8 * np.cumsum(taken[0]), rtol=1e-12)
    assert (slowed.time[0] > schedule.time[0]).all()


def test_a_buffer_may_be_larger_than_the_clients_if_nobody_waits() -> None:
    check(ARRIVALS(num_clients=3, buffer_size=8, restart="free"))
    check(ARRIVALS(num_clients=3, buffer_size=3))
