"""The weights with which FedStaleWeight's clients have equal influence, whatever their speeds.

The paper is Ma, Tu, Chen and Reddi, arXiv 2406.02877, whose equations (2)-(8) are shares of
arrivals, staleness and weights. "Derived" marks what the paper does not state; "Deviation:" marks
where this module corrects it. Results are float64.

Dimension letters: `N` clients, `K` groups of clients that share one rate. b is the number of slots
of the buffer. Rates are updates per unit of time, one over the mean delay. Staleness is counted in
versions of the model, that is, in server steps. Where the paper writes r with a tilde, rates are
what clients report; so `rate` may hold true or reported rates.

- `fair_weight` is the weight that gives every client the same influence, `raw_weight` the same from
  expected staleness.
- `expected_influence` is the share that clients have in an aggregation. Weights that sum to 1 in
  each buffer leave it far from 1 / n.
- `local_rates` are Theorem 1's local rates as the settings have them, with alpha(Q) and beta(Q).
"""

import itertools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedjax_sim.core.settings import Above0, ConfigError, Count, OneOf, checked_all

Numbers = npt.NDArray[np.float64]
Weighting = Callable[[Numbers], Numbers]

UNCOUNTED_ARRIVALS = {"after_aggregation": 1, "before_aggregation": 0}
"""By how much b E[tau] falls short of 1 / p, by when the client that fills the buffer pulls.

The arrival that fills the buffer counts towards the staleness of its client's next update only if
the client pulls before the aggregation. The paper's order is "after_aggregation"; the number for
the other order is derived.
"""
Pull = Annotated[str, OneOf(tuple(UNCOUNTED_ARRIVALS))]


def arrival_shares(rate: npt.ArrayLike, *, num_clients: npt.ArrayLike = 1) -> Numbers:
    """Compute p, each client's share of all arrivals, eq. (2).

    Args:
        rate: `f64[N]`, the rate of each client; or `f64[K]`, the rate of each group.
        num_clients: 1 for single clients; or `i64[K]`, the sizes of the groups.

    Returns:
        `f64[N]`, positive, sum 1. For groups `f64[K]`, the share of one client of each group.
    """
    rates = np.asarray(rate, np.float64)
    return rates / np.sum(np.multiply(num_clients, rates))


def expected_staleness(
    share: npt.ArrayLike, *, buffer_size: Count, pull: Pull = "after_aggregation"
) -> Numbers:
    """Compute E[tau] from shares of arrivals, eq. (6).

    This is exact if arrivals are independent and stationary, clients pull immediately after an
    arrival, and they find the buffer equally often at each filling.

    Args:
        share: `f64[...]`, shares of arrivals.
        buffer_size: b.
        pull: When the client that fills the buffer pulls; a key of `UNCOUNTED_ARRIVALS`.

    Returns:
        `f64[...]`, expected staleness in versions.
    """
    return (1 / np.asarray(share, np.float64) - UNCOUNTED_ARRIVALS[pull]) / buffer_size


def share_from_staleness(
    staleness: npt.ArrayLike, *, buffer_size: Count, pull: Pull = "after_aggregation"
) -> Numbers:
    """Compute shares of arrivals from expected staleness, eq. (7).

    This is the inverse of `expected_staleness`.

    Args:
        staleness: `f64[...]`, expected staleness in versions.
        buffer_size: b.
        pull: When the client that fills the buffer pulls; a key of `UNCOUNTED_ARRIVALS`.

    Returns:
        `f64[...]`, shares of arrivals.
    """
    return 1 / (buffer_size * np.asarray(staleness, np.float64) + UNCOUNTED_ARRIVALS[pull])


def raw_weight(
    staleness: npt.ArrayLike,
    *,
    buffer_size: Count,
    num_clients: Count,
    pull: Pull = "after_aggregation",
) -> Numbers:
    """Compute a weight before it is normalised, eq. (8).

    It is the `fair_weight` of the share of arrivals that the staleness implies. `num_clients`
    cancels when weights are normalised. With pull "before_aggregation" this is the weight of the
    paper's code.

    Args:
        staleness: `f64[...]`, expected staleness in versions.
        buffer_size: b.
        num_clients: n.
        pull: When the client that fills the buffer pulls; a key of `UNCOUNTED_ARRIVALS`.

    Returns:
        `f64[...]`. With pull "after_aggregation" it is positive, even without staleness.
    """
    # Deviation: Algorithm 1 prints (E[tau] + 1) / n. Without the factor b this is not the inverse
    # of (7), and clients' shares are not evened out.
    arrivals = buffer_size * np.asarray(staleness, np.float64) + UNCOUNTED_ARRIVALS[pull]
    return arrivals / num_clients


def fair_weight(share: npt.ArrayLike) -> Numbers:
    """Compute 1 / (n p), the weight that solves (3).

    With it the weighted influence of each client is 1 / n, whatever rate the client reports.

    Args:
        share: `f64[N]`, shares of arrivals.

    Returns:
        `f64[N]`, positive weights.
    """
    shares = np.asarray(share, np.float64)
    return 1 / (len(shares) * shares)


def expected_influence(
    rate: npt.ArrayLike,
    *,
    num_clients: npt.ArrayLike,
    buffer_size: Count,
    weight: Numbers | Weighting | None = None,
) -> Numbers:
    """Compute the average share of each group of clients in an aggregation. Derived.

    A group's share is the sum of the normalised weights of all its slots. The expectation is a sum
    over all compositions of a buffer with independent slots. It is exact if delays are exponential
    and weights do not vary in time.

    Args:
        rate: `f64[K]`, rate of each group's clients.
        num_clients: `i64[K]`, sizes of the groups.
        buffer_size: b.
        weight: `f64[K]`, positive, weight of a slot of each group before it is normalised; or a
            function that returns it from expected staleness, `f64[K]`; or None for 1 / p.

    Returns:
        `f64[K]`, sum 1. With equal weights, or a buffer of one slot, these are the groups' shares
        of arrivals.
    """
    share = arrival_shares(rate, num_clients=num_clients)
    if callable(weight):
        weight = weight(expected_staleness(share, buffer_size=buffer_size))
    compositions = itertools.combinations_with_replacement(range(len(share)), buffer_size)
    counts = np.array([np.bincount(slots, minlength=len(share)) for slots in compositions])
    log_ways = gammaln(buffer_size + 1) - np.sum(gammaln(counts + 1), axis=-1)
    chance = np.exp(log_ways + counts @ np.log(np.multiply(num_clients, share)))
    held = counts * (1 / share if weight is None else weight)
    return chance @ (held / np.sum(held, axis=-1, keepdims=True))


class LocalRates(NamedTuple):
    """The learning rates of an update's local steps, and their sums in Theorem 1.

    Attributes:
        rates: eta_l^(q), `f64[Q]`.
        alpha: alpha(Q), the sum of the rates.
        beta: beta(Q), the sum of their squares.
        largest: 1 / (L eta_g Q), which the theorem asks of each rate at most.
    """

    rates: Numbers
    alpha: float
    beta: float
    largest: float


def local_rates(hyper: Any, *, smoothness: Above0) -> LocalRates:
    """Look up the local rates of settings, with their sums in Theorem 1, eq. (10).

    Args:
        hyper: Settings of FedStaleWeight, or of another system with `lr`, `local_steps` and
            `server_lr`. Rates that differ are an `lr_schedule` by "step", such as a table.
        smoothness: L, of each client's loss.

    Returns:
        The rates and their sums.

    Raises:
        ConfigError: If rates also change with something else than the local step.
    """
    schedule, steps = hyper.training.lr_schedule, int(hyper.local_steps)
    if not schedule.is_constant and schedule.clock != "step":
        allowed = "step, because the theorem has the same rates in all updates"
        raise ConfigError("training.lr_schedule.by", schedule.clock, allowed)
    rates = np.array([float(schedule.of(float(hyper.lr), q)) for q in range(steps)])
    largest = 1 / (smoothness * float(hyper.server_lr) * steps)
    return LocalRates(rates, float(rates.sum()), float((rates**2).sum()), largest)


checked_all(__name__)
