"""How equal the clients' part in a schedule is, read off a timeline on the host without any learning.

    I_i, alpha(p_i) p_i -> `influence`    p_i -> `update_share`    sum_i |I_i - 1/n| (Eq. 3) -> `deviation`

The influence is FedStaleWeight's weighted influence (Ma, Tu, Chen, Reddi, arXiv 2406.02877, Sec. 4), as it came out. Timelines are those
of one lane, cut to ticks that happen; empty slots count for nothing. `skip` leaves out a leading share of ticks: slow clients are not heard
in the first ones. Dimension letters: `N` clients, `G` groups, `C` classes, `A` updates received.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import entr

from fedjax_sim.types import EMPTY, Timeline


class FairnessReport(NamedTuple):
    """The clients' part in a schedule. Groups' fields are empty without groups."""

    influence: np.ndarray  # f64[N]  per tick
    influence_per_time: np.ndarray  # f64[N]  per unit of virtual time
    update_share: np.ndarray  # f64[N]
    time_to_first: (
        np.ndarray
    )  # f64[N]  virtual time, inf for never; from the first tick on, whatever was skipped
    mean_staleness: np.ndarray  # f64[N]  server steps; nan for a client that was not heard
    largest_staleness: np.ndarray  # f64[N]  server steps; nan for a client that was not heard

    jain_index: float  # these four of the influence
    entropy: float  # nats
    evenness: float
    deviation: float  # from 1 / N

    group_influence: np.ndarray  # f64[G]
    group_update_share: np.ndarray  # f64[G]
    share_without: np.ndarray  # f64[G]


def fairness_report(
    timeline: Timeline, num_clients: int, groups: np.ndarray | None = None, skip: float = 0.0
) -> FairnessReport:
    """Measure everything at once. groups: `i32[N]`, labels from 0."""
    each = influence(timeline, num_clients, skip=skip)
    share = update_share(timeline, num_clients, skip=skip)
    mean, largest = client_staleness(timeline, num_clients, skip=skip)
    nothing = np.zeros(0)
    return FairnessReport(
        influence=each,
        influence_per_time=influence_per_time(timeline, num_clients, skip=skip),
        update_share=share,
        time_to_first=time_to_first(timeline, num_clients),
        mean_staleness=mean,
        largest_staleness=largest,
        jain_index=jain_index(each),
        entropy=entropy(each),
        evenness=evenness(each),
        deviation=deviation(each),
        group_influence=nothing if groups is None else group_sums(each, groups),
        group_update_share=nothing if groups is None else group_sums(share, groups),
        share_without=nothing if groups is None else share_without(timeline, groups, skip=skip),
    )


def influence(timeline: Timeline, num_clients: int, *, skip: float = 0.0) -> np.ndarray:
    """Average each client's weights, summed within a tick, over ticks: `f64[N]`.

    Sums to 1 if the weights of every tick do; with equal weights in full buffers it is the update share.
    """
    updates = _received(timeline, skip)
    return np.bincount(updates.client, updates.weight, num_clients) / updates.num_ticks


def influence_per_time(timeline: Timeline, num_clients: int, *, skip: float = 0.0) -> np.ndarray:
    """Sum each client's weights per unit of virtual time, from the last skipped tick (else 0) to the last tick: `f64[N]`."""
    updates = _received(timeline, skip)
    return np.bincount(updates.client, updates.weight, num_clients) / updates.duration


def update_share(timeline: Timeline, num_clients: int, *, skip: float = 0.0) -> np.ndarray:
    """Divide the number of each client's updates by that of all: `f64[N]`, sum 1 unless nothing was received."""
    updates = _received(timeline, skip)
    return np.bincount(updates.client, minlength=num_clients) / max(len(updates.client), 1)


def time_to_first(timeline: Timeline, num_clients: int) -> np.ndarray:
    """Find when each client first moves the server's model, by an update of a weight above 0: `f64[N]`, inf for never."""
    updates = _received(timeline, 0.0)
    counts = updates.weight > 0
    first = np.full(num_clients, np.inf)
    np.minimum.at(first, updates.client[counts], np.asarray(timeline.time)[updates.tick[counts]])
    return first


def client_staleness(
    timeline: Timeline, num_clients: int, *, skip: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and largest staleness of each client's updates, in server steps: `f64[N]` both, nan for a client that was not heard."""
    updates = _received(timeline, skip)
    count = np.bincount(updates.client, minlength=num_clients)
    total = np.bincount(updates.client, updates.staleness, num_clients)
    largest = np.zeros(num_clients)
    np.maximum.at(largest, updates.client, updates.staleness)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), np.where(
        count > 0, largest, np.nan
    )


def share_without(timeline: Timeline, groups: np.ndarray, *, skip: float = 0.0) -> np.ndarray:
    """Share of the ticks that received no update of a group's clients, whom no weight can then help. groups: `i32[N]`. Returns `f64[G]`."""
    updates = _received(timeline, skip)
    heard = np.zeros((updates.num_ticks, int(np.max(groups)) + 1), bool)
    heard[updates.tick, np.asarray(groups)[updates.client]] = True
    return 1 - heard.mean(axis=0)


def group_sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Add up the values of each group's clients. values: `f64[N]`. groups: `i32[N]`, labels from 0. Returns `f64[G]`."""
    return np.bincount(groups, values)


def jain_index(values: np.ndarray) -> float:
    """Jain's index (sum x)^2 / (N sum x^2) of `f64[N]`: 1 if all are equal, k / N if k are and the others 0, nan if all are 0."""
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(np.square(values.sum()) / (values.size * np.square(values).sum()))


def entropy(values: np.ndarray) -> float:
    """Entropy in nats of values `f64[N]` taken as shares of their sum: log N if all are equal, 0 if one has all, nan if all are 0."""
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(entr(values / values.sum()).sum())


def evenness(values: np.ndarray) -> float:
    """Entropy of values `f64[N]` relative to its largest, log N: 1 if all are equal, as for a single client."""
    return entropy(values) / np.log(len(values)) if len(values) > 1 else 1.0


def deviation(influence: np.ndarray, target: np.ndarray | None = None) -> float:
    """Sum the absolute deviations of the clients' influence `f64[N]` from a target `f64[N]`, by default 1 / N each (Eq. 3)."""
    influence = np.asarray(influence, float)
    return float(np.abs(influence - (1 / influence.size if target is None else target)).sum())


def group_accuracy(per_class: np.ndarray, label_shares: np.ndarray) -> np.ndarray:
    """Expected accuracy of a model for groups of clients whose examples differ in their labels.

    per_class: `f[..., C]`, accuracy on each class. label_shares: `f[G, C]`, rows that sum to 1. Returns `f64[..., G]`. A class that a group
    does not have counts for nothing, even if its accuracy is nan; with equal shares the accuracy is that of a balanced test set.
    """
    per_class, shares = np.asarray(per_class, float)[..., None, :], np.asarray(label_shares, float)
    return np.where(shares > 0, per_class * shares, 0).sum(axis=-1)


class _Received(NamedTuple):
    """The updates in filled slots, in order of ticks and slots."""

    tick: np.ndarray  # i64[A]  from the first that is not skipped
    client: np.ndarray  # i32[A]
    weight: np.ndarray  # f64[A]
    staleness: np.ndarray  # i64[A]
    num_ticks: int
    duration: float  # virtual time that the ticks took


def _received(timeline: Timeline, skip: float) -> _Received:
    time, clients = np.asarray(timeline.time), np.asarray(timeline.clients)
    skipped = int(skip * len(time))
    tick, slot = np.nonzero(clients[skipped:] != EMPTY)
    client, weight, version = (
        np.asarray(leaf)[skipped + tick, slot]
        for leaf in (clients, timeline.weight, timeline.version)
    )
    duration = float(time[-1] - (time[skipped - 1] if skipped else 0))
    return _Received(tick, client, weight, skipped + tick - version, len(time) - skipped, duration)
