"""What the host reads from timelines before learning.

Drawing until a budget is covered, rows of the model stores, which versions clients hold, and the
steps that clients did before.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim import ConfigError, Timeline
from fedjax_sim.core.types import EMPTY, Time
from fedjax_sim.engine.planning import budgets
from fedjax_sim.engine.planning.budgets import lengthen, ticks_in_budget
from fedjax_sim.engine.planning.drawing import draw_ticks
from fedjax_sim.engine.planning.schedule import (
    assign_rows,
    lay_out,
    pad_evaluations,
    steps_before,
)
from tests.engine.laid_out import events_of

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("time", "budget", "overshoot", "expected"),
    [
        # A waiting server begins a tick when the one before has ended; the last one may run past
        # the budget.
        ([4, 8, 12], 8, True, 2),
        ([4, 8, 12, 16], 8.5, True, 3),
        ([4, 8, 12, 16], 12, True, 3),
        ([4, 8, 12], 13, True, None),
        ([4, 8, 12], 3, True, 1),
        # A round that would begin at the budget's end does not, whatever the last bit: ten times
        # 0.1 is less than 1.
        (np.cumsum(np.full(12, 0.1)), 1.0, True, 10),
        (np.cumsum(np.full(12, 0.1)), 0.3, True, 3),
        (np.cumsum(np.full(12, 0.1)), 0.3, False, 3),
        # One that begins at the end, but for rounding, is none of its ticks.
        (np.cumsum([0.1] * 10), 0.8, True, 8),
        (np.cumsum([1.7] * 10), 8 * 1.7, True, 8),
        # A periodic server acts within the budget, including its end.
        ([7, 14, 21], 14, False, 2),
        ([7, 14, 21], 13.9, False, 1),
        ([7, 14, 21], 6, False, 0),
        ([0, 7, 14], 6, False, 1),
        ([7, 14, 21], 21, False, None),
        # Ticks at time inf never happen, ticks at time nan are not known yet.
        ([4, 8, INF], 100, True, 2),
        ([4, 8, INF], 100, False, 2),
        ([INF, INF], 100, True, 0),
        ([4, 8, NAN], 100, True, None),
        ([4, 8, NAN], 8, True, None),
        ([4, 12, 16, NAN], 8, True, 2),
        ([4, 8, NAN], 7, False, 1),
        ([NAN, NAN], 7, False, None),
    ],
)
def test_ticks_in_a_budget(
    time: list[float], budget: float, overshoot: bool, expected: int | None
) -> None:
    assert ticks_in_budget(np.array(time, float), budget, overshoot=overshoot) == expected


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=30), st.floats(0.05, 100))
def test_ticks_in_a_budget_are_those_of_a_loop(gaps: list[float], budget: float) -> None:
    """A simulator with a clock counts the same.

    It loops `while clock < budget` for a waiting server, `while next <= budget` for a periodic one.
    Rounding does not decide.
    """
    time = np.cumsum(gaps)
    clock, waiting = 0.0, 0
    while clock < budget * (1 - 1e-12) and waiting < len(time):
        clock, waiting = time[waiting], waiting + 1
    periodic = 0
    while periodic < len(time) and time[periodic] <= budget * (1 + 1e-12):
        periodic += 1
    for overshoot, expected in ((True, waiting), (False, periodic)):
        found = ticks_in_budget(time, budget, overshoot=overshoot)
        assert found == (expected if expected < len(time) else None)


def timeline_of(time: np.ndarray, clients: np.ndarray, **changes: np.ndarray) -> Timeline:
    """Make a timeline whose other fields are zeros, and weights ones, unless given."""
    fill = {name: np.zeros(clients.shape, np.int32) for name in ("steps", "version", "holds")}
    return Timeline(
        **({"time": time, "clients": clients, "weight": np.ones(clients.shape)} | fill | changes)
    )


def periodic(asked: int, *, known: int = 10**9) -> Timeline:
    """Draw two lanes that act every 1 and every 2 units of time.

    Times after the first `known` ticks are nan: not known yet.
    """
    time = np.arange(1, asked + 1) * np.array([[1.0], [2.0]])
    time[:, known:] = NAN
    return timeline_of(time, np.zeros((2, asked, 1), np.int32))


def test_timelines_are_drawn_until_every_lane_covers_the_budget() -> None:
    asked: list[int] = []

    def draw(num: int) -> Timeline:
        asked.append(num)
        return periodic(num)

    timelines, ticks = lengthen(draw, Time(20.0), first=3)
    assert asked == [3, 6, 12, 24]
    assert ticks.tolist() == [20, 10]
    assert timelines.time.shape == (2, 24)


def test_the_longest_schedule_is_drawn_before_a_budget_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as many ticks would be more than there may be, but 15 of at most 20 are enough."""
    monkeypatch.setattr(budgets, "MAX_TICKS", 20)
    assert lengthen(periodic, Time(15.0), first=12)[1].tolist() == [15, 7]
    with pytest.raises(ConfigError, match="must be short enough for fewer than 20 ticks"):
        lengthen(periodic, Time(21.0), first=12)


def test_unknown_ticks_are_drawn_again() -> None:
    """A free-running schedule knows only its first arrivals, here half of what was drawn."""
    _, ticks = draw_ticks(lambda num: periodic(num, known=num // 2), 6)
    assert ticks.tolist() == [6, 6]


def test_more_ticks_than_a_trace_holds() -> None:
    ended = periodic(8)._replace(
        time=np.where(np.arange(8) < 5, np.arange(1.0, 9.0), INF)[None].repeat(2, 0)
    )
    with pytest.raises(ConfigError, match="num_ticks is 8, but must be at most the 5 ticks"):
        draw_ticks(lambda num: ended, 8)


def test_a_budget_before_the_first_tick() -> None:
    with pytest.raises(ConfigError, match=r"time_budget is 1.5, but must be at least 2"):
        lengthen(periodic, Time(1.5), first=8)


def test_a_budget_that_no_timeline_reaches() -> None:
    """Ticks that take no time end in an error and not in an endless loop."""

    def still(num: int) -> Timeline:
        return timeline_of(np.zeros((1, num)), np.zeros((1, num, 1), np.int32))

    with pytest.raises(ConfigError, match="short enough"):
        lengthen(still, Time(1.0), first=2**22, overshoot=True)


@st.composite
def reads(draw: Callable) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw versions that ticks read and that clients hold at evaluations.

    Returns the version that each slot reads where it is present, the versions held at each
    evaluation, and the ticks before each.
    """
    num_ticks, slots, clients = (
        draw(st.integers(1, 14)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
    )
    version = np.array([[draw(st.integers(0, t)) for _ in range(slots)] for t in range(num_ticks)])
    present = np.array([[draw(st.booleans()) for _ in range(slots)] for _ in range(num_ticks)])
    ends = np.array(
        sorted({0, num_ticks} | set(draw(st.lists(st.integers(0, num_ticks), max_size=3))))
    )
    held = np.array([[draw(st.integers(0, end)) for _ in range(clients)] for end in ends])
    return version, present, held, ends


@given(reads())
def test_a_store_never_returns_a_wrong_version_and_is_as_small_as_possible(
    case: tuple[np.ndarray, ...],
) -> None:
    """Run the store with version numbers in place of models.

    The number of rows is compared with the largest number of versions that are needed at one time,
    which is counted separately.
    """
    version, present, held, ends = case
    num_ticks = len(version)
    last_read = np.full(num_ticks + 1, -1)
    for t in range(num_ticks):
        last_read[version[t][present[t]]] = t
    for end, versions in zip(ends, held, strict=True):
        last_read[versions] = np.maximum(last_read[versions], end)
    (row,), (rows,) = assign_rows(last_read[None])
    scratch = rows - 1
    store: dict[int, int] = {0: 0}
    assert row[0] == 0

    def look(end: int) -> None:
        for v in held[list(ends).index(end)]:
            assert store[row[v]] == v

    if ends[0] == 0:
        look(0)
    for t in range(num_ticks):
        for v in version[t][present[t]]:
            assert row[v] != scratch
            assert store[row[v]] == v
        store[row[t + 1]] = t + 1
        if t + 1 in ends:
            look(t + 1)

    # Order on one axis: tick t reads at 2 t, an evaluation after t ticks reads at 2 t - 1, and
    # version v is written at 2 v - 1.5 (version 0 at -2).
    last = dict.fromkeys(range(num_ticks + 1), -np.inf)
    for t in range(num_ticks):
        for v in version[t][present[t]]:
            last[v] = max(last[v], 2 * t)
    for end, versions in zip(ends, held, strict=True):
        for v in versions:
            last[v] = max(last[v], 2 * end - 1)
    written = {v: 2 * v - 1.5 if v else -2.0 for v in last}
    needed = [v for v in last if last[v] > written[v]]
    alive = max(
        (sum(written[u] <= written[v] < last[u] for u in needed) for v in needed), default=0
    )
    # The initial model has row 0, even if nobody reads it.
    assert rows - 1 == max(alive, 1)


def test_steps_delivered_before() -> None:
    """If a client has two slots in a tick, the second comes after the first."""
    clients = np.array([[0, 1, 0], [1, EMPTY, 2], [0, 2, 1]])
    steps = np.array([[3, 1, 2], [4, 0, 5], [6, 7, 8]])
    assert steps_before(clients, steps).tolist() == [[0, 0, 3], [1, 0, 0], [5, 5, 5]]


def example() -> tuple[Timeline, np.ndarray]:
    """Make two lanes of 5 and 3 ticks with two slots and three clients, and their ticks."""
    clients = np.array(
        [[[0, 1], [1, 2], [0, EMPTY], [2, 0], [1, 2]], [[2, 1], [0, 1], [2, 0], [0, 1], [1, 2]]],
        np.int32,
    )
    steps = np.where(clients == EMPTY, 9, np.arange(10).reshape(1, 5, 2) % 4)
    version = np.array(
        [[[0, 0], [1, 0], [1, -1], [2, 3], [2, 4]], [[0, 0], [0, 1], [1, 2], [2, 2], [2, 3]]],
        np.int32,
    )
    holds = np.broadcast_to(np.arange(1, 6, dtype=np.int32)[None, :, None], clients.shape)
    time = np.array([[1.0, 2.5, 3.0, 7.0, 9.0], [2.0, 4.0, 5.0, 6.0, 8.0]])
    return timeline_of(time, clients, steps=steps, version=version, holds=holds), np.array([5, 3])


def test_a_schedule_is_cut_and_padded() -> None:
    timelines, ticks = example()
    schedule = lay_out(timelines, ticks, num_clients=3, num_evals=2)
    assert events_of(schedule).clients.shape == (2, 2, 3, 2)
    assert schedule.ticks.tolist() == [[0, 3, 5], [0, 3, 3]]
    assert schedule.time.tolist() == [[0, 3.0, 9.0], [0, 5.0, 5.0]]
    # Steps of the empty slot do not count, nor do ticks after a lane's end.
    assert schedule.local_steps.tolist() == [[0, 0 + 1 + 2 + 3 + 0, 6 + 2 + 3 + 0 + 1], [0, 7, 7]]
    assert schedule.messages.tolist() == [[0, 5, 9], [0, 6, 6]]
    events = events_of(schedule)
    past_the_end = events.clients[1].reshape(6, 2)[3:]
    assert (past_the_end == EMPTY).all()
    assert (events.steps[1].reshape(6, 2)[3:] == 0).all()
    assert (events.weight[1].reshape(6, 2)[3:] == 0).all()
    assert (events.write[1].reshape(6)[3:] == schedule.rows - 1).all()
    assert (events.read[1].reshape(6, 2)[3:] == schedule.rows - 1).all()
    empty = events.clients[0] == EMPTY
    assert (events.steps[0][empty] == 0).all()
    assert (events.weight[0][empty] == 0).all()
    assert events.tick[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_holders_count_every_client_once() -> None:
    """At each evaluation every client is counted in the row of the version that it holds."""
    timelines, ticks = example()
    schedule = lay_out(timelines, ticks, num_clients=3, num_evals=5, client_variance=True)
    assert schedule.held is not None
    holders = schedule.held.holders
    assert (holders.sum(axis=2) == 3).all()
    # Lane 0 after three ticks: client 0 holds version 3, clients 1 and 2 hold version 2. Version v
    # is written at tick v - 1.
    write = schedule.held.write[0].ravel()
    assert holders[0, 3, write[2]] == 1
    assert holders[0, 3, write[1]] == 2
    assert holders[0, 0, 0] == 3


def test_as_many_evaluations_as_ticks_at_most() -> None:
    timelines, ticks = example()
    assert lay_out(timelines, ticks, num_clients=3, num_evals=1000).ticks.tolist() == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 3, 3],
    ]


def test_evaluations_follow_equal_numbers_of_ticks() -> None:
    """Seven ticks with at most five evaluations make four of two ticks each, the last cut short."""
    clients = np.zeros((1, 7, 1), np.int32)
    timelines = timeline_of(
        np.arange(1.0, 8.0)[None], clients, steps=clients + 1, version=clients, holds=clients
    )
    assert lay_out(timelines, np.array([7]), num_clients=1, num_evals=5).ticks.tolist() == [
        [0, 2, 4, 6, 7]
    ]


def test_more_steps_than_can_be_counted_are_refused() -> None:
    """In one tick. Those of several ticks are added up in more than 32 bits."""
    zeros, time = np.zeros((1, 4, 2), np.int32), np.arange(1.0, 5.0)[None]

    def laid_out(steps: int) -> Any:
        timelines = timeline_of(time, zeros, steps=zeros + steps, version=zeros, holds=zeros)
        return lay_out(timelines, np.array([4]), num_clients=1, num_evals=1)

    np.testing.assert_array_equal(laid_out(2**30 - 1).local_steps, [[0, 8 * (2**30 - 1)]])
    with pytest.raises(ConfigError, match="local_steps is 1073741824, but must be fewer"):
        laid_out(2**30)


def newest_only(ticks: int = 40, num_clients: int = 20) -> tuple[Timeline, np.ndarray]:
    """Make a lane in which every tick's client starts from the newest model and then holds it."""
    version = np.arange(ticks, dtype=np.int32)[None, :, None]
    clients = version % num_clients
    time = np.arange(1.0, ticks + 1)[None]
    timeline = timeline_of(time, clients, steps=clients, version=version, holds=version)
    return timeline, np.array([ticks])


def test_the_store_of_work_is_small_however_long_models_are_held() -> None:
    """If all clients start from the newest model, one row and the scratch row are enough.

    Only the separate store behind `client_variance` keeps the versions that clients hold.
    """
    schedule = lay_out(*newest_only(), num_clients=20, num_evals=10)
    assert schedule.held is None
    assert len(np.unique(events_of(schedule).write)) <= 3
    measured = lay_out(*newest_only(), num_clients=20, num_evals=10, client_variance=True)
    assert measured.held is not None
    assert len(np.unique(measured.held.write)) > 5
    assert measured.rows == schedule.rows
    for ours, others in zip(events_of(measured), events_of(schedule), strict=True):
        np.testing.assert_array_equal(ours, others)


def test_the_example_of_the_docstring() -> None:
    """The table in `fedjax_sim.engine.planning.schedule` needs two rows and the scratch row."""
    row, rows = assign_rows(np.array([[1, 2, -1, 3, -1]]))
    assert rows.tolist() == [3]
    assert row.tolist() == [[0, 1, 2, 0, 2]]


def test_chunks_of_equal_size_are_filled_with_empty_evaluations() -> None:
    timelines, ticks = example()
    schedule = lay_out(timelines, ticks, num_clients=3, num_evals=2, client_variance=True)
    padded = pad_evaluations(schedule, 2)
    assert events_of(padded).clients.shape == (2, 4, 3, 2)
    assert (events_of(padded).clients[:, 2:] == EMPTY).all()
    assert (events_of(padded).write[:, 2:] == schedule.rows - 1).all()
    assert not events_of(padded).steps[:, 2:].any()
    assert events_of(padded).tick[0].ravel().tolist() == list(range(12))
    assert schedule.held is not None and padded.held is not None
    holders = padded.held.holders
    assert holders.shape[1] == 5
    np.testing.assert_array_equal(holders[:, :3], schedule.held.holders)
    np.testing.assert_array_equal(events_of(padded).clients[:, :2], events_of(schedule).clients)
    # Clients hold what they held at the end, and empty ticks write to the scratch row.
    np.testing.assert_array_equal(holders[:, 3:], np.repeat(holders[:, 2:3], 2, axis=1))
    assert (padded.held.write[:, 2:] == holders.shape[2] - 1).all()
    assert pad_evaluations(lay_out(timelines, ticks, num_clients=3, num_evals=2), 2).held is None


@pytest.mark.parametrize(
    "slots",
    [
        [[2, 0, 1], [0, 1, 2]],
        [[2, EMPTY, EMPTY], [0, 1, 2]],
        [[2, 0, 2], [0, 1, 2]],
        [[1, 1, EMPTY], [0, 0, 0]],
    ],
)
def test_steps_before_each_slot_where_all_ticks_have_the_same_clients(
    slots: list[list[int]],
) -> None:
    """Equal to going through the slots one by one, even if a client has two in a tick."""
    steps = np.random.default_rng(0).integers(0, 9, (2, 20, 3))
    clients = np.broadcast_to(np.array(slots)[:, None], steps.shape)
    # Nobody takes part at the second and the last tick, as where evaluations are filled up.
    clients = np.where(np.isin(np.arange(20), [1, 19])[:, None], EMPTY, clients)
    steps = np.where(clients == EMPTY, 0, steps)
    found = steps_before(clients, steps)
    for lane in range(len(clients)):
        done = dict.fromkeys([EMPTY, 0, 1, 2], 0)
        for place in np.ndindex(20, 3):
            client = int(clients[lane][place])
            assert found[lane][place] == done[client]
            done[client] += int(steps[lane][place])


def test_a_slot_that_is_filled_later_is_no_other_clients_slot() -> None:
    clients = np.array([[[0, EMPTY], [0, 1], [EMPTY, 0]]])
    steps = np.array([[[3, 0], [4, 5], [0, 6]]])
    found = steps_before(clients, steps)
    assert found.tolist() == [[[0, 0], [3, 0], [0, 7]]]
