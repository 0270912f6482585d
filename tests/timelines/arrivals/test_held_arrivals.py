"""Buffered arrivals of clients that the server holds back, against event queues in plain Python.

Schedules must be the same to the last bit. Their cost must not grow with the number of clients.
"""

import functools
import heapq
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core.streams import stream
from fedjax_sim.timelines import (
    Arrivals,
    ClientTable,
    draw_client_speeds,
    presets,
    schedule_arrivals,
)
from fedjax_sim.timelines.delays.laws import BLOCK, update_time
from tests.conftest import slow_but

ARRIVALS = presets.preset(Arrivals, presets.FAVANO)

TICKS, LANES = 40, 3


class Held(NamedTuple):
    """A schedule as nested lists with one entry per tick."""

    time: list[float]
    clients: list[list[int]]
    version: list[list[int]]


def one_by_one(
    taken: Sequence[Sequence[float]],
    lots: Sequence[Sequence[float]] | None,
    *,
    size: int,
    interact: float,
    restart: str,
    send_old_model: bool,
) -> Held:
    """Simulate a server that holds reporting clients back, with a heap.

    Args:
      taken: Running times by client and update.
      lots: Lots from 0 to 1 by client and update; of updates that arrive at the same time the one
        with the smallest comes first. None orders them by client number.
      size: Size of the buffer.
      interact: Time of the exchange.
      restart: "after_interaction" or "own_finish".
      send_old_model: Whether clients get the model from before the tick.
    """
    number, version = [0] * len(taken), [0] * len(taken)
    clock, latest = 0.0, (-1.0, 0.0)
    waiting = [(times[0], lots[i][0] if lots else 0.0, i) for i, times in enumerate(taken)]
    heapq.heapify(waiting)
    found = Held([], [], [])
    for tick in range(TICKS):
        came = [heapq.heappop(waiting) for _ in range(size)]
        latest = max(latest, came[-1][:2])
        acts = max(clock, came[-1][0]) + interact
        found.time.append(acts)
        found.clients.append([i for _, _, i in came])
        found.version.append([version[i] for _, _, i in came])
        for finish, _, i in came:
            number[i] += 1
            version[i] = tick if send_old_model else tick + 1
            begins = max(clock, finish) if restart == "own_finish" else acts
            ends, lot = begins + taken[i][number[i]], lots[i][number[i]] if lots else 0.0
            if ends == latest[0]:
                # Updates that arrive at this time have been taken. Whichever are left have larger
                # lots, and this one joins them with the same chances as theirs.
                lot = latest[1] + (1 - latest[1]) * lot
            heapq.heappush(waiting, (ends, lot, i))
        clock = acts
    return found


@partial(jax.jit, static_argnames="num")
def _times_and_lots(keys: jax.Array, hyper: Arrivals, num: int) -> tuple[jax.Array, jax.Array]:
    client, update = jnp.indices((hyper.num_clients, num))

    def of_lane(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        taken = update_time(
            stream(key, "runtimes"), client, update, draw_client_speeds(key, hyper), hyper
        )
        lot = jnp.vectorize(
            lambda i, u: jax.random.uniform(
                jax.random.fold_in(jax.random.fold_in(stream(key, "ties"), i), u), dtype=float
            )
        )
        return taken, lot(client, update)

    return jax.vmap(of_lane)(keys)


@functools.cache
def times_and_lots(hyper: Arrivals) -> tuple[list[Any], list[Any]]:
    """Draw the running times and lots of schedules with these clients, by lane, client and update.

    They do not depend on what clients wait for, nor on the buffer.
    """
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        keys = jnp.stack([stream(jax.random.key(seed), "timeline") for seed in range(LANES)])
        taken, lots = _times_and_lots(keys, exact, TICKS + 1)
        return np.asarray(taken).tolist(), np.asarray(lots).tolist()


KINDS: dict[str, dict[str, Any]] = {
    "geometric, with ties": {"rate_fast": 0.7, "rate_slow": 0.3},
    "exponential": {"runtime_law": "runtime_exp"},
    "constant, all at once": {
        "runtime_law": "runtime_constant",
        "rate_fast": 1.0,
        "rate_slow": 1.0,
        "server_interact": 0.0,
    },
    "normal, some of no length": {
        "runtime_law": "runtime_normal",
        "spread_fast": 1.5,
        "spread_slow": 1.5,
        "time_of": "update",
        "server_interact": 0.0,
    },
}


READINGS = [("after_interaction", False), ("after_interaction", True), ("own_finish", True)]
CLIENTS = [
    ("geometric, with ties", 70, 3, "random"),
    ("geometric, with ties", 70, 3, "client"),
    ("geometric, with ties", 9, 9, "random"),
    ("geometric, with ties", 9, 9, "client"),
    ("exponential", 70, 1, "random"),
    ("constant, all at once", 70, 3, "random"),
    ("constant, all at once", 70, 3, "client"),
    ("normal, some of no length", 70, 3, "random"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case",
    slow_but(
        # Of every reading the two ways of ties, and of every kind of clients one or two readings.
        [
            *zip(CLIENTS, [2, 0, 1, 2, 0, 2, 1, 1], strict=True),
            (CLIENTS[0], 0),
        ],
        [(clients, reading) for clients in CLIENTS for reading in range(3)],
    ),
)
def test_clients_that_are_held_back(
    draw: Callable, case: tuple[tuple[str, int, int, str], int]
) -> None:
    """The schedule equals one of an event queue, whatever lots are drawn at random."""
    clients, reading = case
    kind, num_clients, size, ties = clients
    restart, send_old_model = READINGS[reading]
    timed = ARRIVALS(num_clients=num_clients, local_steps=2).replace(**KINDS[kind])
    hyper = timed.replace(
        buffer_size=size, restart=restart, send_old_model=send_old_model, ties=ties
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=TICKS, seeds=LANES)
    for seed, taken, lots in zip(range(LANES), *times_and_lots(timed), strict=True):
        if "length" in kind:
            assert 0.1 < np.mean(np.array(taken) == 0) < 0.5
        expected = one_by_one(
            taken,
            lots if ties == "random" else None,
            size=size,
            interact=hyper.clock.server_interact,
            restart=restart,
            send_old_model=send_old_model,
        )
        np.testing.assert_array_equal(schedule.clients[seed], expected.clients)
        np.testing.assert_array_equal(schedule.version[seed], expected.version)
        # The compiler may add up the times of an update in another order.
        np.testing.assert_array_max_ulp(schedule.time[seed], np.array(expected.time), maxulp=4)


def test_updates_that_arrive_together_have_equal_chances(draw: Callable) -> None:
    """One that joins others of which some were taken does not come before those that are left.

    Clients 0 and 1 need one unit of time, clients 2, 3 and 4 two. The first tick takes clients 0
    and 1, which finish again at time 2, and one of the others. Of the four that then finish at time
    2, each is left out of the second tick with probability 1/4. The last three need longer.
    """
    hyper = ARRIVALS(
        num_clients=8,
        buffer_size=3,
        local_steps=1,
        restart="own_finish",
        send_old_model=True,
        runtime_law="runtime_constant",
        client_table=ClientTable(1 / np.array([1.0, 1, 2, 2, 2, 50, 50, 50])),
    )
    clients = draw(schedule_arrivals, hyper, num_ticks=2, seeds=3000).clients
    assert (np.sort(clients[:, 0], axis=1)[:, :2] == [0, 1]).all()
    assert (clients < 5).all()
    for client in (0, 1):
        left_out = (clients[:, 1] != client).all(axis=1).mean()
        # The standard deviation is below 0.008. Lots that stayed the same would give 1/5.
        assert abs(left_out - 1 / 4) < 4 * 0.008
    third = clients[:, 0].max(axis=1)
    np.testing.assert_allclose(np.bincount(third, minlength=5)[2:] / 3000, 1 / 3, atol=4 * 0.0087)


@pytest.mark.parametrize("ties", ["random", "client"])
def test_clients_that_all_start_anew(draw: Callable, ties: str) -> None:
    """The Z shortest of all times report at each tick; equal ones in the order of their lots."""
    clients = ARRIVALS(num_clients=70, local_steps=2, rate_fast=0.7, rate_slow=0.3)
    hyper = clients.replace(buffer_size=3, restart="fresh", ties=ties)
    schedule = draw(schedule_arrivals, hyper, num_ticks=TICKS, seeds=LANES)
    for seed, taken in enumerate(np.array(times_and_lots(clients)[0])):
        with jax.enable_x64(True):
            key = stream(stream(jax.random.key(seed), "timeline"), "ties")
            lots = [jax.random.uniform(jax.random.fold_in(key, t), (70,)) for t in range(TICKS)]
        clock = 0.0
        for t in range(TICKS):
            tie = np.asarray(lots[t]) if ties == "random" else np.arange(70)
            first = np.lexsort((tie, taken[:, t]))[:3]
            np.testing.assert_array_equal(schedule.clients[seed, t], first)
            clock += taken[first[-1], t] + hyper.clock.server_interact
            assert schedule.time[seed, t] == clock


def test_times_of_many_clients_are_drawn_in_blocks(draw: Callable) -> None:
    """With more clients than a block holds, each client's times are as without blocks."""
    hyper = ARRIVALS(num_clients=BLOCK + 5, buffer_size=4, local_steps=2, ties="client")
    schedule = draw(schedule_arrivals, hyper, num_ticks=3)
    with jax.enable_x64(True):
        key = stream(jax.random.key(0), "timeline")
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        speeds = draw_client_speeds(key, exact)
        time_of = jax.jit(update_time)
        halves = [
            time_of(stream(key, "runtimes"), half, np.zeros_like(half), speeds, exact)
            for half in np.split(np.arange(hyper.num_clients), [BLOCK // 2, BLOCK])
        ]
    taken = np.concatenate(halves)
    first = np.argsort(taken, kind="stable")[:4]
    np.testing.assert_array_equal(schedule.clients[0, 0], first)
    assert schedule.time[0, 0] == taken[first].max() + 3


FEW_TICKS, MANY = 17, 3000
IN_PLACE = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "while"),
    *("scatter", "dynamic-update-slice"),
}
"""Operations of compiled programs that do not touch all numbers of a large array."""
STANDS_FOR_OTHERS = {"fusion", "call"}
"""Operations that work in place if those of the computation that they call do."""
INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]+)\]\S* ([\w\-]+)\(")
CALLED = re.compile(r"(?:calls|body|condition|to_apply)=%?([\w.\-]+)")


def whole_array_operations(program: str, num: int, trips: int = FEW_TICKS) -> list[str]:
    """Find operations on at least `num` numbers in a loop of `trips` trips of a compiled program.

    With no number given, that is the loop over ticks.
    """
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in program.splitlines():
        begins = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if begins:
            computations[begins[1]] = lines = []
        elif " = " in line:
            lines.append(line.strip())
    known = f'"known_trip_count":{{"n":"{trips}"}}'
    (loop,) = [line for lines in computations.values() for line in lines if known in line]
    inside = CALLED.findall(loop)
    for name in inside:  # The list grows while it is gone through.
        for line in computations[name]:
            inside += [other for other in CALLED.findall(line) if other not in inside]
    found = []
    for line in [line for name in inside for line in computations[name]]:
        made = INSTRUCTION.match(line)
        if made and made[2] not in IN_PLACE | STANDS_FOR_OTHERS:
            size = np.prod([int(length) for length in made[1].split(",")])
            found += [line] if size >= num else []
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("restart", "ties", "lanes"),
    [
        pytest.param("after_interaction", "random", 1, marks=pytest.mark.slow),
        ("after_interaction", "random", 3),
        pytest.param("after_interaction", "client", 3, marks=pytest.mark.slow),
        ("own_finish", "random", 3),
    ],
)
def test_the_cost_of_a_tick_does_not_grow_with_the_clients(
    restart: str, ties: str, lanes: int
) -> None:
    """No tick sorts, draws for, or copies as many numbers as there are clients."""
    hyper = ARRIVALS(
        num_clients=MANY,
        buffer_size=5,
        restart=restart,
        send_old_model=restart == "own_finish",
        ties=ties,
    )
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        drawn = jax.jit(jax.vmap(lambda key: schedule_arrivals(key, exact, FEW_TICKS)))
        program = drawn.lower(jax.random.split(jax.random.key(0), lanes)).compile().as_text()
    assert program is not None
    assert whole_array_operations(program, lanes * MANY) == []


def test_work_on_all_clients_would_be_found() -> None:
    """The search finds a sort, and a copy that a later look at the old numbers needs."""

    def in_loop(tick: Callable[[jax.Array, jax.Array], Any]) -> list[str]:
        program = jax.jit(lambda x: jax.lax.scan(tick, x, jnp.arange(FEW_TICKS)))
        text = program.lower(jnp.zeros(MANY)).compile().as_text()
        assert text is not None
        return whole_array_operations(text, MANY)

    def in_place(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.at[t].set(1), t

    def copied(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        changed = x.at[t].set(1)
        return changed, x[changed[2 * t].astype(int)]

    def sorted_anew(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sort(x).at[t].set(1), t

    assert in_loop(in_place) == []
    assert any(" copy(" in line for line in in_loop(copied))
    assert any(" sort(" in line for line in in_loop(sorted_anew))
