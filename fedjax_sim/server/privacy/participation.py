"""How often and how closely clients take part, counted exactly from a schedule.

A guarantee for one client over a whole run depends on the number of its participations, and for
noise that is correlated over rounds also on how many ticks lie between two of them. A schedule is
drawn before any learning and depends on no example, so that both can be counted from it, also for
asynchronous servers. What clients' numbers of examples decide, such as the length of epochs, is
part of the schedule: these numbers are taken to be public.

A participation is a filled slot: a report of the client that the server receives in a tick. Two
slots of one tick are two participations, 0 ticks apart. A slot without local steps is one too,
because the client does report.

Noise on sums is accounted for by the schedule alone, and may be correlated over ticks (DP-FTRL).

In tick t the server moves by the sum of clipped updates with the weights of the schedule, x_t, plus
noise y_t. The y_t are made of independent Gaussian z_t so that B y = z for a lower triangular
Toeplitz matrix B with the coefficients b_0 = 1, b_1, ...: y_t = z_t - sum_{j > 0} b_j y_{t-j}. The
noises of neighbouring ticks then partly cancel in the model, which is their sum. With one band,
B = 1 and the noises are independent.

- Coefficients are those of (1 - x)^(-1/2) (Fichtenberger, Henzinger and Upadhyay 2023, arXiv
  2202.11205), cut off after some bands (Kalinin and Lampert 2024, arXiv 2405.13763, banded
  square root factorization).
- The whole course of x + y = B^-1 (B x + z) is post-processing of one Gaussian mechanism on B x,
  also if updates depend on earlier models, because B is lower triangular (Denisov et al. 2022,
  arXiv 2202.08312, Theorem 2.1).
- Neighbours: all updates of one client are 0, whenever it takes part ("zero-out", Kairouz et al.
  2021, arXiv 2103.00039). The schedule with its weights is public and the same.
- Sensitivity: then x_t changes by at most C a_t, where a_t is the weight of the client in tick t.
  As no coefficient is negative, B x changes by at most C ||B a||, which is attained (Choquette-Choo
  et al. 2023, arXiv 2306.08153; they maximise over all patterns of participation with a
  least separation). Here a is known, so that the norm is computed for every client.

No sampling is used, so that the schedule may be of any kind, asynchronous as well. A client may
remember its earlier rounds: once its random draws are fixed, its update is a function of its data
and of earlier models, and its norm is bounded.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick, `V` evaluations.
"""

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Fraction, Limit, checked
from fedjax_sim.core.types import EMPTY, Timeline
from fedjax_sim.server.privacy.accounting import check_package, once_each


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


def square_root_bands(bands: Count) -> npt.NDArray[np.float64]:
    """Compute the first coefficients of (1 - x)^(-1/2): b_j = b_{j-1} (2 j - 1) / (2 j), b_0 = 1.

        assert square_root_bands(3).tolist() == [1, 1 / 2, (1 * 3) / (2 * 4)]

    Args:
      bands: Their number, b.

    Returns:
      `f64[b]`, positive and decreasing.
    """
    place = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * place - 1) / (2 * place))])


def sensitivities(
    timeline: Timeline,
    num_clients: Count,
    coefficients: npt.NDArray[np.float64],
    ticks: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)],
) -> npt.NDArray[np.float64]:
    """Compute the largest ||B a|| of a client within first ticks.

    Ticks in which nobody reports have no noise and do not count for B.

        # Client 0 reports with weight 1/2, then with weight 1.
        found = sensitivities(timeline, 3, square_root_bands(1), [0, 1, 2])
        assert np.allclose(found, [0, 1 / 2, np.hypot(1 / 2, 1)])

    Args:
      timeline: One lane's schedule, whose weights are those of the sum.
      num_clients: Number of clients, N.
      coefficients: b_0, b_1, ..., at least 0, `f64[b]`.
      ticks: Numbers of first ticks, integers `[V]`.

    Returns:
      `f64[V]`. With one band and weight 1 / m it is sqrt(k) / m for k participations.
    """
    when, slot, of = reports_of(timeline, num_clients)
    is_tick = np.isin(np.arange(len(timeline.time)), when)
    share, place = np.asarray(timeline.weight, float)[when, slot], np.cumsum(is_tick)[when] - 1
    # Entries of B a of every client: rows from its participation on.
    total = int(is_tick.sum())
    bands = min(len(coefficients), max(total, 1))
    rows = place[:, None] + np.arange(bands)
    entries = np.abs(share)[:, None] * np.asarray(coefficients, float)[:bands]
    inside = rows < total
    # One number for each row and client, sorted by rows.
    names, where = np.unique((rows * num_clients + of[:, None])[inside], return_inverse=True)
    squares = np.bincount(where.ravel(), entries[inside], len(names)) ** 2
    ends = np.concatenate([[0], np.cumsum(is_tick)])[np.asarray(ticks, np.int64)]
    row, client = np.divmod(names, num_clients)
    return np.sqrt(largest_sums(row, client, squares, ends, num_clients))


@checked
def gaussian_epsilon(
    sensitivity: Annotated[npt.ArrayLike, Limit(least=0)], deviation: AtLeast0, delta: Fraction
) -> npt.NDArray[np.float64]:
    """Compute epsilon of one Gaussian mechanism, exactly, by dp-accounting.

    Balle and Wang 2018, arXiv 1805.06530, Theorem 8.

        assert gaussian_epsilon([0.0, 1.0], 0.0, 1e-6).tolist() == [0, np.inf]  # without noise
        weak, strong = gaussian_epsilon([1.0, 0.5], 4.0, 1e-6)
        assert strong < weak

    Args:
      sensitivity: Largest L2 change, `f[...]`.
      deviation: Standard deviation of the noise in each number.
      delta: delta.

    Returns:
      `f64[...]`: 0 where nothing can change, infinity elsewhere without noise.
    """
    check_package("gaussian")
    from dp_accounting import get_epsilon_gaussian

    changes = np.asarray(sensitivity, float)
    if deviation == 0:
        return np.where(changes > 0, np.inf, 0.0)
    return once_each(lambda x: get_epsilon_gaussian(float(deviation) / x, float(delta)), changes)


def separated_sensitivity(
    coefficients: npt.NDArray[np.float64], num_ticks: Count, *, separation: Count, most: Count
) -> float:
    """Compute the largest ||B a|| over all schedules with a separation, for planning.

    The columns at 0, s, 2 s, ... of B, as many as there are participations (Kalinin and Lampert
    2024, Theorem 2, for coefficients that decrease).

        independent = square_root_bands(1)
        assert separated_sensitivity(independent, 100, separation=10, most=4) == 4**0.5

    Args:
      coefficients: b_0, b_1, ..., at least 0 and not increasing, `f64[b]`.
      num_ticks: Number of ticks, T.
      separation: Fewest ticks from one participation of a client to its next one, s.
      most: Largest number of participations of a client, each with weight 1.

    Returns:
      The norm.
    """
    of_client = np.zeros(num_ticks)
    of_client[: separation * most : separation] = 1
    return float(np.linalg.norm(np.convolve(of_client, coefficients)[:num_ticks]))
