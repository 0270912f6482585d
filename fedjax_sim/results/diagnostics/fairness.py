"""How equally clients take part in a schedule.

Everything is computed on the host from the timeline of one lane, without any learning; only
`group_accuracy`, `worst_decile` and `summarise_clients` need metrics of models. The timeline must
end where its lane ends, like those of `fedjax_sim.Run`. Empty slots do not count. Symbols of
FedStaleWeight (Ma, Tu, Chen, Reddi, arXiv 2406.02877, Sec. 4), and the functions that compute them:

    I_i, alpha(p_i) p_i            `influence`
    p_i                            `update_share`
    sum_i |I_i - 1/n| (Eq. 3)      `deviation`

`influence` is the paper's weighted influence, measured rather than expected. The argument `skip` is
the share of the ticks that is left out at the beginning, because slow clients have not reported by
then.

Dimension letters: `N` clients, `T` ticks, `S` slots, `G` groups, `K` classes, `U` updates received.
"""

import warnings
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Limit, Share, checked_all, shape
from fedjax_sim.core.types import EMPTY, Timeline

Groups = Annotated[np.ndarray, shape("N"), Limit(least=0, is_whole=True)]
"""`i32[N]`, label of each client's group, from 0."""
Values = Annotated[np.ndarray, shape("N")]
"""`f64[N]`, one of each client."""


class FairnessReport(NamedTuple):
    """How equally clients take part in a schedule. Fields of groups are empty without groups.

    Attributes:
      influence: `f64[N]`, mean weight of each client per tick.
      influence_per_time: `f64[N]`, sum of each client's weights per unit of virtual time.
      update_share: `f64[N]`, each client's share of all updates.
      time_to_first: `f64[N]`, virtual time of each client's first update with a positive weight,
        counted from the first tick even if ticks are skipped; inf for never.
      mean_staleness: `f64[N]`, in server steps; nan for a client without updates.
      largest_staleness: `f64[N]`, in server steps; nan for a client without updates.
      jain_index: Jain's index of the influence.
      entropy: Entropy of the influence, in nats.
      evenness: Entropy of the influence relative to its largest value.
      deviation: Sum of the absolute deviations of the influence from 1 / N.
      group_influence: `f64[G]`, influence of each group's clients together.
      group_update_share: `f64[G]`, update share of each group's clients together.
      share_without: `f64[G]`, share of the ticks without an update from the group.
    """

    influence: np.ndarray
    influence_per_time: np.ndarray
    update_share: np.ndarray
    time_to_first: np.ndarray
    mean_staleness: np.ndarray
    largest_staleness: np.ndarray

    jain_index: float
    entropy: float
    evenness: float
    deviation: float

    group_influence: np.ndarray
    group_update_share: np.ndarray
    share_without: np.ndarray


def fairness_report(
    timeline: Timeline, num_clients: Count, groups: Groups | None = None, skip: Share = 0.0
) -> FairnessReport:
    """Compute all measures of this module that need only a timeline.

        report = fairness_report(run.timelines[0], num_clients=8)

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      groups: `i32[N]`, label of each client's group, from 0; None for no groups.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      The report.

    Raises:
      ConfigError: If `groups` does not have one label per client.
    """
    if groups is not None and len(groups) != num_clients:
        raise ConfigError("number of groups' labels", len(groups), f"num_clients, {num_clients}")
    updates = received(timeline, skip, num_clients)
    each, share = (of(timeline, num_clients, skip=skip) for of in (influence, update_share))
    summed = np.bincount(updates.client, updates.weight, num_clients)
    count = np.bincount(updates.client, minlength=num_clients)
    total = np.bincount(updates.client, updates.staleness, num_clients)
    largest = np.zeros(num_clients)
    np.maximum.at(largest, updates.client, updates.staleness)
    labels = np.zeros(0, int) if groups is None else np.asarray(groups)
    heard = np.zeros((updates.num_ticks, labels.max(initial=-1) + 1), bool)
    if groups is not None:
        heard[updates.tick, labels[updates.client]] = True
    sums = [np.bincount(labels, values[: len(labels)]) for values in (each, share)]
    return FairnessReport(
        influence=each,
        influence_per_time=summed / updates.duration,
        update_share=share,
        time_to_first=time_to_first(timeline, num_clients),
        mean_staleness=np.where(count > 0, total / np.maximum(count, 1), np.nan),
        largest_staleness=np.where(count > 0, largest, np.nan),
        jain_index=jain_index(each),
        entropy=entropy(each),
        evenness=entropy(each) / np.log(num_clients) if num_clients > 1 else 1.0,
        deviation=deviation(each),
        group_influence=sums[0],
        group_update_share=sums[1],
        share_without=1 - heard.mean(axis=0),
    )


def influence(timeline: Timeline, num_clients: Count, *, skip: Share = 0.0) -> np.ndarray:
    """Average each client's weight over ticks, where the weights of its slots in a tick add up.

        # Clients 0 and 1 report with weight 1/2, then client 0 alone with weight 1.
        assert influence(timeline, 3).tolist() == [(1 / 2 + 1) / 2, (1 / 2) / 2, 0]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      `f64[N]`. It sums to 1 if the weights of every tick do. With equal weights in full buffers it
      is the update share.
    """
    updates = received(timeline, skip, num_clients)
    return np.bincount(updates.client, updates.weight, num_clients) / updates.num_ticks


def update_share(timeline: Timeline, num_clients: Count, *, skip: Share = 0.0) -> np.ndarray:
    """Compute each client's share of all updates received.

        # Clients 0 and 1 report, then client 0 alone.
        assert update_share(timeline, 3).tolist() == [2 / 3, 1 / 3, 0]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      `f64[N]`, with sum 1, or all 0 if nothing was received.
    """
    updates = received(timeline, skip, num_clients)
    return np.bincount(updates.client, minlength=num_clients) / max(len(updates.client), 1)


def time_to_first(timeline: Timeline, num_clients: Count) -> np.ndarray:
    """Find when each client first changes the server's model, by an update with a weight above 0.

        # Clients 0 and 1 report at time 1, and client 0 at time 3.
        assert time_to_first(timeline, 3).tolist() == [1.0, 1.0, np.inf]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.

    Returns:
      `f64[N]`, virtual time; inf for a client that never does.
    """
    updates = received(timeline, num_clients=num_clients)
    counts = updates.weight > 0
    first = np.full(num_clients, np.inf)
    np.minimum.at(first, updates.client[counts], np.asarray(timeline.time)[updates.tick[counts]])
    return first


def jain_index(values: Values) -> float:
    """Compute Jain's index (sum x)^2 / (N sum x^2).

        assert jain_index(np.array([1.0, 1.0, 1.0, 1.0])) == 1.0

    Args:
      values: `f64[N]`, x, at least 0.

    Returns:
      1 if all values are equal, k / N if k are equal and the rest 0, nan if all are 0.
    """
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(np.square(values.sum()) / (values.size * np.square(values).sum()))


def entropy(values: Values) -> float:
    """Compute the entropy of values taken as shares of their sum.

        assert np.isclose(entropy(np.ones(4)), np.log(4))

    Args:
      values: `f64[N]`, at least 0.

    Returns:
      Entropy in nats: log N if all values are equal, 0 if only one is not 0, nan if all are 0.
    """
    from scipy.special import entr  # Importing it takes longer than the rest of this module.

    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(entr(values / values.sum()).sum())


def deviation(influence: Values, target: Values | None = None) -> float:
    """Sum the absolute deviations of the clients' influence from a target (Eq. 3).

        assert deviation(np.array([0.75, 0.25])) == (0.75 - 0.5) + (0.5 - 0.25)

    Args:
      influence: `f64[N]`, influence of each client.
      target: `f64[N]`, target of each client; None for 1 / N each.

    Returns:
      The sum over clients.

    Raises:
      ConfigError: If `target` does not have one value per client.
    """
    influence = np.asarray(influence, float)
    wanted = np.full(influence.shape, 1 / influence.size) if target is None else np.asarray(target)
    return float(np.abs(influence - wanted).sum())


def group_accuracy(
    per_class: Annotated[np.ndarray, shape("... K")],
    label_shares: Annotated[np.ndarray, shape("G K"), Limit(least=0, most=1)],
) -> np.ndarray:
    """Compute a model's expected accuracy for groups of clients with different label shares.

        per_class, shares = np.array([0.8, 0.4]), np.array([[1.0, 0.0], [0.5, 0.5]])
        assert np.allclose(group_accuracy(per_class, shares), [0.8, (0.8 + 0.4) / 2])

    Args:
      per_class: `f[..., K]`, accuracy on each class.
      label_shares: `f[G, K]`, share of each class among a group's examples; rows sum to 1.

    Returns:
      `f64[..., G]`. A class that a group does not have is ignored, even if its accuracy is nan.
      With equal shares this is the accuracy on a balanced test set.

    Raises:
      ConfigError: If the numbers of classes differ.
    """
    per_class, shares = np.asarray(per_class, float)[..., None, :], np.asarray(label_shares, float)
    return np.where(shares > 0, per_class * shares, 0).sum(axis=-1)


def worst_decile(values: np.ndarray, *, less_is_better: bool = False) -> np.ndarray:
    """Average the worst tenth of the clients, as q-FFL's Table 1 reports it.

    Source: Li, Sanjabi, Beirami and Smith 2020, arXiv 1905.10497.

    Args:
      values: `f[..., N]`, a metric of each client. Clients whose value is nan do not count.
      less_is_better: Whether the largest values are the worst ones.

    Returns:
      `f[...]`, the mean of the ceil(N / 10) worst values; nan if none counts.
    """
    values = np.asarray(values, float) * (1 if less_is_better else -1)
    worst_first = -np.sort(-np.where(np.isnan(values), -np.inf, values), axis=-1)
    num = np.ceil(np.sum(~np.isnan(values), axis=-1) / 10)
    counted = np.arange(values.shape[-1]) < num[..., None]
    with np.errstate(invalid="ignore"):
        mean = np.where(counted, worst_first, 0).sum(axis=-1) / num
    return mean if less_is_better else -mean


def summarise_clients(
    values: np.ndarray, *, less_is_better: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute mean, worst decile and spread of a metric over clients.

    Args:
      values: `f[..., N]`, a metric of each client; nan where there is none.
      less_is_better: Whether small values are good ones, as they are of a loss.

    Returns:
      The mean over clients, the mean of the worst tenth, see `worst_decile`, and the standard
      deviation over clients, `f64[...]` each.
    """
    values = np.asarray(values, float)
    worst = worst_decile(values, less_is_better=less_is_better)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # Without a number.
        return np.nanmean(values, axis=-1), worst, np.nanstd(values, axis=-1)


class Received(NamedTuple):
    """The updates received in filled slots, in the order of ticks and slots.

    Attributes:
      tick: `i64[U]`, counted from the first tick that is not skipped.
      client: `i32[U]`, the client's number.
      steps: `i32[U]`, the update's local steps.
      weight: `f64[U]`, the update's weight.
      staleness: `i64[U]`, in server steps.
      num_ticks: Number of ticks that are not skipped.
      duration: Virtual time that these ticks took.
    """

    tick: np.ndarray
    client: np.ndarray
    steps: np.ndarray
    weight: np.ndarray
    staleness: np.ndarray
    num_ticks: int
    duration: float


def received(timeline: Timeline, skip: Share = 0.0, num_clients: int | None = None) -> Received:
    """List the updates that a timeline receives after its skipped ticks.

    Args:
      timeline: A schedule of one lane.
      skip: Share of the ticks at the beginning that are left out.
      num_clients: Number of clients N that there are; None does not check it.

    Raises:
      ConfigError: If it is that of several lanes, or has a client that there is not.
    """
    time, clients = np.asarray(timeline.time), np.asarray(timeline.clients)
    if time.ndim != 1 or clients.shape[:1] != time.shape or clients.ndim != 2:
        found = f"times {time.shape} and clients {clients.shape}"
        raise ConfigError("shapes of the timeline", found, "(T,) and (T, S), those of one lane")
    if num_clients is not None and clients.max(initial=-1) >= num_clients:
        allowed = f"above the largest client of the timeline, {clients.max()}"
        raise ConfigError("num_clients", num_clients, allowed)
    skipped = int(skip * len(time) + 1e-9)  # 0.29 * 100 is below 29 in floating point.
    tick, slot = np.nonzero(clients[skipped:] != EMPTY)
    client, steps, weight, version = (
        np.asarray(leaf)[skipped + tick, slot]
        for leaf in (clients, timeline.steps, timeline.weight, timeline.version)
    )
    staleness, num_ticks = skipped + tick - version, len(time) - skipped
    duration = float(time[-1] - (time[skipped - 1] if skipped else 0))
    return Received(tick, client, steps, weight, staleness, num_ticks, duration)


checked_all(__name__)
