"""Windows, transfers and losses in every timeline, against plain loops over windows.

All numbers are multiples of 1/8, so that sums of times are exact.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.settings import check
from fedjax_sim.core.streams import stream
from fedjax_sim.timelines import (
    Arrivals,
    ClientQueues,
    Clients,
    ClientTable,
    CohortRounds,
    Contacts,
    GroupArrivals,
    Groups,
    presets,
    schedule_arrivals,
    schedule_client_queues,
    schedule_cohort_rounds,
    schedule_contacts,
    schedule_group_arrivals,
    schedule_group_rounds,
)
from fedjax_sim.timelines.delays.devices import draw_devices

GROUPS = presets.preset(Groups, presets.GROUPS)
CONTACTS = presets.preset(Contacts, presets.FAVANO)
ARRIVALS = presets.preset(Arrivals, presets.FAVANO)

WINDOWS = [
    [(0.0, 2.0), (3.0, 4.5), (6.0, 10.0)],
    [(1.0, 3.0)],
    [],
    [(0.5, 1.0), (1.5, 2.0), (2.5, 3.0), (3.5, 4.0), (6.0, 9.0)],
    [(2.0, 8.0)],
]
PERIOD = [12.0, 4.0, 16.0, 10.0, 8.0]
RATE = [0.5, 1.0, 0.25, 2.0, 0.5]
UP, DOWN = [8.0, np.inf, 16.0, 32.0, 8.0], [16.0, 32.0, np.inf, 16.0, 64.0]
BITS_UP, BITS_DOWN = 4.0, 8.0
TRANSFER = [BITS_UP / up + BITS_DOWN / down for up, down in zip(UP, DOWN, strict=True)]
NUM = len(RATE)


def clients_of(kind: type, *, drop_rate: Any = None, **changes: Any) -> Any:
    """Return settings of these five clients, whose steps take constant times."""
    table = ClientTable(
        RATE, up=UP, down=DOWN, drop_rate=drop_rate, available=WINDOWS, period=PERIOD
    )
    hyper = kind(
        num_clients=NUM,
        client_table=table,
        runtime_law="runtime_constant",
        bits_up=BITS_UP,
        bits_down=BITS_DOWN,
        **changes,
    )
    check(hyper)
    return hyper


def open_hours(client: int, until: Fraction) -> list[tuple[Fraction, Fraction]]:
    """List a client's windows that begin before a time."""
    windows = WINDOWS[client] or [(0.0, PERIOD[client])]
    period = Fraction(PERIOD[client])
    cycles = range(int(until / period) + 1)
    return [
        (c * period + Fraction(a), c * period + Fraction(b)) for c in cycles for a, b in windows
    ]


def work(client: int, time: float, busy: float) -> tuple[float, float]:
    """Find out when a client begins and finishes, by walking through its windows."""
    left, begin = Fraction(busy), None
    for opens, closes in open_hours(client, Fraction(time) + 20 * Fraction(busy) + 40):
        if closes <= time:
            continue
        start = max(opens, Fraction(time))
        begin = start if begin is None else begin
        if left <= closes - start:
            return float(begin), float(start + left)
        left -= closes - start
    raise AssertionError


def test_work_in_windows() -> None:
    """Work is interrupted by breaks, begins in the next window, and may end with a window."""
    hyper = clients_of(Clients)
    random = np.random.default_rng(0)
    client = random.integers(0, NUM, 400)
    time = random.integers(0, 8 * 60, 400) / 8
    busy = random.integers(1, 8 * 12, 400) / 8

    def found(client: jax.Array, time: jax.Array, busy: jax.Array) -> Any:
        devices = draw_devices(jax.random.key(0), hyper)
        running = busy - devices.transfer[client]
        return (
            devices.times_of_work(client, time, running),
            devices.are_available(client, time),
            devices.windows.time_available(client, time, time + busy),
        )

    with jax.enable_x64(True):
        (begin, finish), is_there, there = jax.tree.map(
            np.asarray, jax.jit(found)(jnp.asarray(client), jnp.asarray(time), jnp.asarray(busy))
        )
    for row in range(400):
        expected = work(client[row], time[row], busy[row])
        assert (begin[row], finish[row]) == expected
        hours = open_hours(client[row], Fraction(time[row] + busy[row]))
        assert is_there[row] == any(a <= time[row] < b for a, b in hours)
        end = Fraction(time[row] + busy[row])
        inside = [min(b, end) - max(a, Fraction(time[row])) for a, b in hours]
        assert there[row] == float(sum(max(x, Fraction(0)) for x in inside))
    assert 0.2 < is_there.mean() < 0.8
    assert (finish - time > busy).mean() > 0.5


def losses(hyper: Any, most: int) -> np.ndarray:
    """Return which updates are lost, by client and number, in the lane of seed 0."""
    with jax.enable_x64(True):
        client, number = jnp.divmod(jnp.arange(NUM * most), most)
        devices = draw_devices(stream(jax.random.key(0), "timeline"), hyper)
        return np.asarray(devices.are_lost(client, number)).reshape(NUM, most)


SOME = [0.0, 0.5, 0.25, 0.25, 0.5]


def test_rounds(draw: Callable) -> None:
    """The server waits for the last client, and leaves out what was lost."""
    hyper = clients_of(
        CohortRounds, drop_rate=SOME, num_selected=3, local_steps=2, server_interact=0.5
    )
    schedule = jax.tree.map(lambda x: x[0], draw(schedule_cohort_rounds, hyper, num_ticks=30))
    without = clients_of(CohortRounds, num_selected=3, local_steps=2, server_interact=0.5)
    cohorts = draw(schedule_cohort_rounds, without, num_ticks=30).clients[0]
    lost, clock = losses(hyper, 30), 0.0
    for t, cohort in enumerate(cohorts):
        ends = [work(i, clock, 2 / RATE[i] + TRANSFER[i])[1] for i in cohort]
        clock = max(ends) + 0.5
        assert schedule.time[t] == clock
        kept = [-1 if lost[i, t] else i for i in cohort]
        assert schedule.clients[t].tolist() == kept
        num = sum(i >= 0 for i in kept)
        np.testing.assert_allclose(schedule.weight[t], [(i >= 0) / max(num, 1) for i in kept])
        assert (schedule.steps[t] == np.where(np.array(kept) >= 0, 2, 0)).all()
    assert 0 < (schedule.clients < 0).mean() < 0.5


def test_contacts(draw: Callable) -> None:
    """Clients that are away, or whose messages are lost, are not contacted.

    The others did the steps for which they were available, less the time of messages.
    """
    changes = {"num_selected": 3, "local_steps": 6, "server_wait": 2.5, "server_interact": 1.0}
    hyper = clients_of(Contacts, drop_rate=SOME, **changes)
    schedule, window = draw(schedule_contacts, hyper, num_ticks=40)
    everyone = CONTACTS(num_clients=NUM, **changes)
    cohorts = draw(schedule_contacts, everyone, num_ticks=40)[0].clients[0]
    lost, last = losses(hyper, 40), np.zeros(NUM)
    for t, cohort in enumerate(cohorts):
        now = 3.5 * (t + 1)
        for slot, i in enumerate(cohort):
            hours = open_hours(i, Fraction(now))
            is_there = any(a <= now < b for a, b in hours) and not lost[i, t]
            assert schedule.clients[0, t, slot] == (i if is_there else -1)
            if not is_there:
                assert schedule.steps[0, t, slot] == 0
                continue
            inside = [min(b, Fraction(now)) - max(a, Fraction(last[i])) for a, b in hours]
            left = float(sum(max(x, Fraction(0)) for x in inside)) - TRANSFER[i]
            assert window[0, t, slot] == pytest.approx(max(left, 0), abs=1e-12)
            assert schedule.steps[0, t, slot] == min(int(max(left, 0) * RATE[i] + 1e-9), 6)
            last[i] = now
    assert (schedule.clients < 0).mean() > 0.3


def test_hours_that_begin_at_a_contact(draw: Callable) -> None:
    """43 times 0.1 is less than 4.3 in floats, where the fifth window begins."""
    table = ClientTable([10.0] * 2, available=[[(0.3, 0.8)], [(0.0, 0.5), (0.7, 1.0)]], period=1.0)
    hyper = Contacts(
        num_clients=2,
        num_selected=2,
        client_table=table,
        server_wait=0.1,
        server_interact=0.0,
        runtime_law="runtime_constant",
    )
    found = draw(schedule_contacts, hyper, num_ticks=300)[0].clients[0]
    tenth = np.arange(1, 301) % 10
    np.testing.assert_array_equal((found == 0).any(axis=1), (tenth >= 3) & (tenth < 8))
    np.testing.assert_array_equal((found == 1).any(axis=1), (tenth < 5) | (tenth >= 7))


def test_arrivals_of_clients_that_wait(draw: Callable) -> None:
    """A client does a lost update again, from the same model."""
    hyper = clients_of(
        Arrivals, drop_rate=SOME, buffer_size=2, local_steps=1, server_interact=0.5, ties="client"
    )
    schedule = jax.tree.map(lambda x: x[0], draw(schedule_arrivals, hyper, num_ticks=40))
    lost, number, version = losses(hyper, 400), [-1] * NUM, [0] * NUM

    def arrive(i: int, time: float) -> float:
        while True:
            number[i] += 1
            time = work(i, time, 1 / RATE[i] + TRANSFER[i])[1]
            if not lost[i, number[i]]:
                return time

    finish, clock = [arrive(i, 0.0) for i in range(NUM)], 0.0
    for t in range(40):
        first = sorted(range(NUM), key=lambda i: (finish[i], i))[:2]
        clock = max(clock, max(finish[i] for i in first)) + 0.5
        assert schedule.time[t] == clock
        assert schedule.clients[t].tolist() == first
        assert schedule.version[t].tolist() == [version[i] for i in first]
        for i in first:
            finish[i], version[i] = arrive(i, clock), t + 1
    assert sum(number) > 80 + NUM


def test_queues(draw: Callable) -> None:
    """One task: the client that gets it works when it is there."""
    hyper = clients_of(ClientQueues, num_tasks=1)
    schedule = jax.tree.map(lambda x: x[0], draw(schedule_client_queues, hyper, num_ticks=40))
    clock = 0.0
    for t, i in enumerate(schedule.clients[:, 0]):
        clock = work(i, clock, 1 / RATE[i] + TRANSFER[i])[1]
        assert schedule.time[t] == clock


def test_days_of_clients(draw: Callable) -> None:
    """Clients' days begin at different times, so that somebody always finishes."""
    law = {"num_clients": 50, "buffer_size": 1, "restart": "free", "on_time": 8.0, "off_time": 16.0}
    hyper = ARRIVALS(local_steps=4, runtime_law="runtime_exp", **law)
    schedule = draw(schedule_arrivals, hyper, num_ticks=2000)
    at_night = schedule.time[0] % 24 > 8 * (1 + 1e-9)
    assert 0.6 <= at_night.mean() <= 0.73


def test_iterations_of_groups_take_transfers(draw: Callable) -> None:
    """A group waits for its slowest client, messages included."""
    table = ClientTable(RATE, up=UP, down=DOWN)
    groups = {"num_groups": 2, "group_sizes": (2, 3), "delays_of": "client", "sync_time": 0.0}
    hyper = GROUPS(
        num_clients=NUM,
        client_table=table,
        runtime_law="runtime_constant",
        bits_up=BITS_UP,
        bits_down=BITS_DOWN,
        exchange_shift=2.0,
        exchange_shift_per_group=4.0,
        exchange_mean=0.0,
        exchange_mean_per_group=0.0,
        **groups,
    )
    check(hyper)
    taken = [1 / rate + transfer for rate, transfer in zip(RATE, TRANSFER, strict=True)]
    schedule = draw(schedule_group_rounds, hyper, num_ticks=2)
    np.testing.assert_allclose(schedule.time[0], (max(taken) + 10) * np.arange(1, 3))


def test_groups_wait_for_clients_that_are_away(draw: Callable) -> None:
    """In rounds of all groups, and for groups that report one by one. Losses take no time."""
    certain = {"exchange_shift": 0.5, "exchange_shift_per_group": 0.0, "sync_time": 5.0}
    certain |= {"exchange_mean": 0.0, "exchange_mean_per_group": 0.0, "delays_of": "client"}
    sizes, members = {"num_groups": 2, "group_sizes": (2, 3)}, [[0, 1], [2, 3, 4]]

    def round_of(group: int, start: float) -> tuple[float, int]:
        """Return when a group that begins at a time has done its iterations, and their number."""
        clock, count = start, 0
        while count == 0 or clock - start < 5:
            clock = max(work(i, clock, 1 / RATE[i] + TRANSFER[i])[1] for i in members[group])
            count += 1
        return clock, count

    together = clients_of(Groups, drop_rate=SOME, **certain, **sizes)
    schedule = jax.tree.map(lambda x: x[0], draw(schedule_group_rounds, together, num_ticks=8))
    clock = 0.0
    for t in range(8):
        ends, counts = zip(*(round_of(group, clock) for group in (0, 1)), strict=True)
        clock = max(ends) + 0.5
        assert schedule.time[t] == clock
        assert schedule.steps[t].tolist() == list(counts)
    assert len({tuple(row) for row in schedule.steps.tolist()}) > 1

    alone = clients_of(GroupArrivals, **certain, **sizes)
    schedule = jax.tree.map(lambda x: x[0], draw(schedule_group_arrivals, alone, num_ticks=12))
    reports = []
    for group in (0, 1):
        clock = 0.0
        for _ in range(12):
            end, count = round_of(group, clock)
            clock = end + 0.5
            reports.append((clock, group, count))
    for t, (clock, group, count) in enumerate(sorted(reports)[:12]):
        assert (schedule.time[t], schedule.clients[t, 0]) == (clock, group)
        assert schedule.steps[t, 0] == count


def test_messages_take_the_time_of_their_bits(regression: Callable, small: Callable) -> None:
    """A model of three 32-bit numbers goes down and up, and a compressed one up.

    All clients are alike, so a round takes five steps, an exchange, and both messages.
    """
    system = fedjax_sim.SYSTEMS["fedavg"]
    table = ClientTable(np.full(7, 0.5), up=np.full(7, 16.0), down=np.full(7, 48.0))
    hyper = small(system, client_table=table, runtime_law="runtime_constant", server_interact=1.0)
    run = fedjax_sim.simulate(system, regression(), hyper, budget=fedjax_sim.Ticks(3), num_evals=1)
    np.testing.assert_allclose(
        run.timelines[0].time, (10 + 1 + 96 / 16 + 96 / 48) * np.arange(1, 4)
    )
    assert (run.hypers[0].delays.bits_up, run.hypers[0].delays.bits_down) == (96, 96)
    compression = fedjax_sim.server.compression.BlockQuantization()
    up, down = system.messages.bits(jnp.zeros(3), hyper.replace(compression=compression))
    assert up < down == 96
    own = fedjax_sim.simulate(
        system, regression(), hyper.replace(bits_up=32.0), budget=fedjax_sim.Ticks(3), num_evals=1
    )
    np.testing.assert_allclose(own.timelines[0].time, (10 + 1 + 32 / 16 + 2) * np.arange(1, 4))
