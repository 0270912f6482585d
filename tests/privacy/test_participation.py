"""Participations of schedules, against a slow loop, for synchronous and asynchronous servers."""

from collections.abc import Callable

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Timeline
from fedjax_sim.server.privacy import most_participations, most_sent, participations_of

NAMES = ("fedavg", "fedbuff", "fedasync", "favano", "gen_async")


def schedule_of(clients: list[list[int]], *, never: int = 0) -> Timeline:
    """Make a schedule of ticks at times 0, 1, ...; the last `never` ones never happen."""
    slots = np.array(clients, "int32")
    time = np.arange(len(slots), dtype=float)
    time[len(slots) - never :] = np.inf
    return Timeline(time, slots, *(np.zeros(slots.shape, int) for _ in range(4)))


def loop(timeline: Timeline, num_clients: int) -> tuple[list[int], list[int]]:
    """Count reports and find separations, one slot at a time."""
    counts, last = [0] * num_clients, [-1] * num_clients
    separation = [len(timeline.time)] * num_clients
    for tick, slots in enumerate(np.asarray(timeline.clients)):
        for client in slots:
            if client < 0 or not np.isfinite(timeline.time[tick]):
                continue
            if counts[client]:
                separation[client] = min(separation[client], tick - last[client])
            counts[client] += 1
            last[client] = tick
    return counts, separation


def test_by_hand() -> None:
    """Client 0 comes twice in tick 0, client 2 after two ticks, client 3 once, client 4 never."""
    found = participations_of(schedule_of([[0, 2, 0], [1, -1, -1], [3, 2, 1]]), 5)
    assert found.counts.tolist() == [2, 2, 2, 1, 0]
    assert found.separation.tolist() == [0, 1, 2, 3, 3]
    assert (found.most, found.separation.min()) == (2, 0)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_schedules_of_systems(name: str, small: Callable, draw: Callable) -> None:
    """Counts, separations, and the most of a client before each tick."""
    system = fedjax_sim.SYSTEMS[name]
    drawn = draw(system.timeline, small(system), num_ticks=40, seeds=[3])
    timeline = Timeline(*(leaf[0, :40] for leaf in drawn))
    found, (counts, separation) = participations_of(timeline, 7), loop(timeline, 7)
    assert found.counts.tolist() == counts
    assert found.separation.tolist() == separation
    assert found.counts.sum() == (timeline.clients >= 0).sum() > 0
    ticks = [40, 0, 7, 7, 39]
    expected = [max(loop(Timeline(*(x[:t] for x in timeline)), 7)[0]) for t in ticks]
    assert most_participations(timeline, 7, ticks).tolist() == expected


def test_random_schedules() -> None:
    """With repeated clients, empty slots, and ticks that never happen."""
    random = np.random.default_rng(0)
    for never in (0, 0, 4):
        timeline = schedule_of(random.integers(-1, 9, (30, 4)).tolist(), never=never)
        counts, separation = loop(timeline, 9)
        found = participations_of(timeline, 9)
        assert (found.counts.tolist(), found.separation.tolist()) == (counts, separation)
        assert most_participations(timeline, 9, [30])[0] == max(counts)


def test_unknown_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_clients is 2, but must be at least 4"):
        participations_of(schedule_of([[0, 3]]), 2)


def test_messages_on_their_way_by_hand() -> None:
    """Ticks act on these clients' updates, which began from these versions.

    When tick 0 acts (first 1), client 0 has sent one message. Client 1's update began at version 0
    and comes in tick 1: it may be on its way, 1 for it too. Client 2's began at 1, after that.
    When tick 1 acts (first 2), client 0's second update, from version 1, is under way: 2. When tick
    2 acts, all of client 0's have come, and whether it has begun another one is not known: 3. The
    second update of client 1 is in no tick, and counts from tick 1 on.
    """
    clients, version = [[0], [1], [0], [2]], [[0], [0], [1], [1]]
    timeline = schedule_of(clients)._replace(version=np.array(version, "int32"))
    assert most_sent(timeline, 3, [0, 1, 2, 3, 4]).tolist() == [0, 1, 2, 3, 3]
    assert most_participations(timeline, 3, [0, 1, 2, 3, 4]).tolist() == [0, 1, 1, 2, 2]
    # A client that begins after it has reported in a tick has sent nothing more by then.
    later = timeline._replace(version=np.array([[0], [0], [2], [1]], "int32"))
    assert most_sent(later, 3, [1, 2, 3]).tolist() == [1, 2, 3]
    # One client: its second update is under way when tick 0 acts, its third not when tick 1 does.
    alone = schedule_of([[0], [0], [0]])._replace(version=np.array([[0], [0], [2]], "int32"))
    assert most_sent(alone, 1, [0, 1, 2, 3]).tolist() == [0, 2, 2, 4]


@pytest.mark.parametrize("name", ["fedbuff", "fedasync", "gen_async"])
def test_no_schedule_receives_more_than_was_counted(
    name: str, small: Callable, draw: Callable
) -> None:
    """Of a longer schedule: what had begun by a tick is counted, of the shorter one at least."""
    system = fedjax_sim.SYSTEMS[name]
    drawn = draw(system.timeline, small(system), num_ticks=40, seeds=[5])
    long = Timeline(*(leaf[0, :40] for leaf in drawn))
    short = Timeline(*(leaf[:25] for leaf in long))
    for tick in (1, 5, 12, 25):
        sent = [0] * 7
        for client in range(7):
            rows = [
                (t, long.version[t, s])
                for t in range(40)
                for s in np.flatnonzero(long.clients[t] == client)
            ]
            received = sum(t < tick for t, _ in rows)
            under_way = [v < tick for t, v in rows if t >= tick]
            sent[client] = received + (under_way[0] if under_way else 1)
        assert most_sent(long, 7, [tick])[0] == max(sent)
        assert max(sent) <= most_sent(short, 7, [tick])[0]
        assert most_participations(long, 7, [tick])[0] <= max(sent)
