"""How often and how closely clients take part, counted exactly from a schedule.

A guarantee for one client over a whole run depends on the number of its participations, and for
noise that is correlated over rounds also on how many ticks lie between two of them. A schedule is
drawn before any learning and depends on no example, so that both can be counted from it, also for
asynchronous servers. What clients' numbers of examples decide, such as the length of epochs, is
part of the schedule: these numbers are taken to be public.

A participation is a filled slot: a report of the client that the server receives in a tick. Two
slots of one tick are two participations, 0 ticks apart. A slot without local steps is one too,
because the client does report.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick, `V` evaluations.
"""

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.checking import Count, Limit, checked
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import EMPTY, Timeline


class Participations(NamedTuple):
    """Participations of every client in a schedule.

        found = participations_of(run.timelines[0], num_clients=100)
        print(found.most, found.least_separation)

    Attributes:
      counts: `i64[N]`, numbers of participations.
      separation: `i64[N]`, the fewest ticks from one participation of the client to its next one;
        T, which is more than any two ticks are apart, for clients with fewer than two.
    """

    counts: np.ndarray
    separation: np.ndarray

    @property
    def most(self) -> int:
        """The largest number of participations of a client."""
        return int(self.counts.max(initial=0))

    @property
    def least_separation(self) -> int:
        """The smallest separation of a client."""
        return int(self.separation.min())


@checked
def participations_of(timeline: Timeline, num_clients: Count) -> Participations:
    """Count participations, and find the smallest separations, in O(T S log(T S)).

        # Clients 0 and 1 report in the first tick, and client 0 in the second.
        assert participations_of(timeline, 3).counts.tolist() == [2, 1, 0]

    Args:
      timeline: One lane's schedule, leaves `[T, ...]`.
      num_clients: Number of clients, N.

    Returns:
      Participations of every client, also of those that never take part.

    Raises:
      ConfigError: If a slot names a client that does not exist.
    """
    ticks, _, clients = reports_of(timeline, num_clients)
    counts = np.bincount(clients, minlength=num_clients)
    separation = np.full(num_clients, len(np.asarray(timeline.clients)), np.int64)
    # Ticks are in order already, so that a stable sort lists every client's in order.
    order = np.argsort(clients, kind="stable")
    clients, ticks = clients[order], ticks[order]
    is_next = clients[1:] == clients[:-1]
    np.minimum.at(separation, clients[1:][is_next], np.diff(ticks)[is_next])
    return Participations(counts, separation)


@checked
def most_participations(
    timeline: Timeline,
    num_clients: Count,
    ticks: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)],
) -> npt.NDArray[np.int64]:
    """Count the participations of the client that has most of them, within first ticks.

        # Clients 0 and 1 report in the first tick, and client 0 in the second.
        assert most_participations(timeline, 3, [0, 1, 2]).tolist() == [0, 1, 2]

    Args:
      timeline: As in `participations_of`.
      num_clients: Number of clients, N.
      ticks: Numbers of first ticks, such as those before each evaluation, integers `[V]`.

    Returns:
      `i64[V]`: the largest number of participations of one client in the first `ticks` ticks.
    """
    when, _, clients = reports_of(timeline, num_clients)
    return largest_sums(when, clients, np.ones(len(when), np.int64), np.asarray(ticks), num_clients)


def largest_sums(
    when: np.ndarray, clients: np.ndarray, amounts: np.ndarray, ends: np.ndarray, num_clients: int
) -> np.ndarray:
    """Find the largest sum of a client's amounts before given ends.

    Args:
      when: Their places in time, ascending, `i64[R]`.
      clients: Whose they are, `i64[R]`.
      amounts: `[R]`, at least 0.
      ends: Places that are too late, `i64[V]`.
      num_clients: Number of clients, N.

    Returns:
      Sums, `[V]`.
    """
    sums, seen = np.zeros(num_clients, amounts.dtype), 0
    found = np.zeros(len(ends), amounts.dtype)
    for place in np.argsort(ends, kind="stable"):
        until = int(np.searchsorted(when, ends[place]))
        np.add.at(sums, clients[seen:until], amounts[seen:until])
        seen, found[place] = until, sums.max()
    return found


@checked
def most_sent(
    timeline: Timeline,
    num_clients: Count,
    ticks: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)],
) -> npt.NDArray[np.int64]:
    """Count the messages that one client may have sent at most, those on their way among them.

    For asynchronous servers whose clients do one update after the other. Before a message is
    received, its client has begun the update from an earlier model, and may have sent it. So one
    message more than the participations counts for a client whose next one began before the last of
    the first ticks. Where the schedule does not have the next one, it counts too: an upper bound.

        # Client 0 reports in both ticks, and may have begun its third update.
        assert most_sent(timeline, 3, [0, 2]).tolist() == [0, 3]

    Args:
      timeline: As in `participations_of`.
      num_clients: Number of clients, N.
      ticks: As in `most_participations`.

    Returns:
      `i64[V]`: the largest number for one client when the last of the first `ticks` ticks acts; 0
      before any tick.
    """
    when, slots, clients = reports_of(timeline, num_clients)
    began = np.asarray(timeline.version)[when, slots]
    order = np.lexsort((began, when, clients))
    when, clients, began = when[order], clients[order], began[order]
    # Reports by client, then by tick, as one ascending number.
    length = len(timeline.time) + 1
    places, everyone = clients * length + when, np.arange(num_clients)
    first, ends = (np.searchsorted(clients, everyone, side) for side in ("left", "right"))
    found = np.zeros(np.shape(ticks), np.int64)
    for i, end in enumerate(np.minimum(np.asarray(ticks, np.int64), length - 1)):
        following = np.searchsorted(places, everyone * length + end)
        is_known = following < ends
        next_began = np.append(began, 0)[following]
        if end:
            found[i] = (following - first + (~is_known | (next_began < end))).max()
    return found


def reports_of(timeline: Timeline, num_clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List ticks, slots and clients of all reports, in order of ticks.

    Ticks at time `inf` never happen.
    """
    clients = np.asarray(timeline.clients)
    happens = np.isfinite(np.asarray(timeline.time))[:, None]
    if np.any((clients >= num_clients) & happens):
        raise ConfigError("num_clients", num_clients, f"at least {clients.max() + 1}, the clients")
    ticks, slots = np.nonzero((clients != EMPTY) & happens)
    return ticks, slots, clients[ticks, slots].astype(np.int64)
