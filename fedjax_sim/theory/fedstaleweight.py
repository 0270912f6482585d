"""The theory of FedStaleWeight: staleness, weights, incentives, influence and convergence.

The paper is Ma, Tu, Chen and Reddi, arXiv 2406.02877. Its own results are the shares of arrivals,
staleness and weights (2)-(8), the utility (9) and the convergence bound (10)-(11). Equation numbers
are the paper's. "Derived" marks what the paper does not state; "Deviation:" marks where this module
corrects it. Results are float64.

Dimension letters: `N` clients, `S` slots of the buffer (the paper's b), `K` groups of clients that
share one rate, `P` parameters. Rates are updates per unit of time, one over the mean delay.
Staleness is counted in versions of the model, that is, in server steps. Where the paper writes r
with a tilde, rates are what clients report; so `rate` may hold true or reported rates.

Corrected or refuted here:

- The weight that Algorithm 1 prints does not invert the staleness; see `raw_weight`.
- If a weight falls faster than the share of arrivals rises, it pays to be slow; the paper says
  "more slowly".
- Reporting the true rate is not optimal for every buffer; see `is_truthful`.
- Weights that sum to 1 in each buffer leave influence far from 1 / n; see `expected_influence`.
- The convergence bound says nothing for b >= 2 and is false for b = 1; see `bound`.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedjax_sim.checking import Above0, AtLeast0, Count, Whole, checked

Numbers = npt.NDArray[np.float64]
Value = TypeVar("Value", float, Numbers, jax.Array)
Weighting = Callable[[Numbers], Numbers]

UNCOUNTED_ARRIVALS = {"after_aggregation": 1, "before_aggregation": 0}
"""By how much b E[tau] falls short of 1 / p, by when the client that fills the buffer pulls.

The arrival that fills the buffer counts towards the staleness of its client's next update only if
the client pulls before the aggregation. The paper's order is "after_aggregation"; the number for
the other order is derived.
"""


@checked
class Competition(NamedTuple):
    """What the utility (9) of a client that holds one slot of a buffer needs to know of the rest.

    Attributes:
        other_rate: A, the sum of the rates of all other clients, updates per unit of time.
        other_delay: C, the sum over the other slots of one over the rate, units of time.
    """

    other_rate: float
    other_delay: float


@checked
class FedStaleWeightSetup(NamedTuple):
    """The constants of assumptions 1 to 5 and of the run that a bound is about.

    Attributes:
        buffer_size: b, printed as K in "K = 1".
        max_staleness: tau_max,b, the largest staleness with this buffer, in versions.
        client_lr: eta_l^(q), the learning rate of each of the Q local steps.
        server_lr: eta_g.
        smoothness: L, of each client's loss.
        local_variance: sigma_l^2, bound on the variance of a client's stochastic gradient.
        global_variance: sigma_g^2, bound on the mean over clients of the squared distance between
            a client's gradient and that of f.
        gradient_bound: G, bound on the squared norm of any client's gradient.
        initial_gap: f(w_0) - f_*.
    """

    buffer_size: Count
    max_staleness: Whole
    client_lr: tuple[float, ...]
    server_lr: AtLeast0
    smoothness: Above0
    local_variance: AtLeast0
    global_variance: AtLeast0
    gradient_bound: AtLeast0
    initial_gap: AtLeast0


class BoundTerms(NamedTuple):
    """The right side of (10), term by term, in units of a squared gradient.

    Here Sigma is sigma_l^2 + sigma_g^2 + G, and tau is tau_max,b.

    Attributes:
        initial: 2 (f(w_0) - f_*) / (eta_g alpha(Q) T).
        staleness: 12 eta_g^2 tau^2 beta(Q) Q L^2 ((b tau + 1) / (tau + 1))^2 Sigma.
        drift: 12 beta(Q) Q L^2 Sigma.
        reweighting: 4 b^2 U G.
    """

    initial: float
    staleness: float
    drift: float
    reweighting: float

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return self.initial + self.staleness + self.drift + self.reweighting


@checked
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


@checked
def expected_staleness(
    share: npt.ArrayLike, *, buffer_size: Count, pull: str = "after_aggregation"
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

    Raises:
        KeyError: If `pull` is not a key of `UNCOUNTED_ARRIVALS`.
    """
    return (1 / np.asarray(share, np.float64) - UNCOUNTED_ARRIVALS[pull]) / buffer_size


@checked
def share_from_staleness(
    staleness: npt.ArrayLike, *, buffer_size: Count, pull: str = "after_aggregation"
) -> Numbers:
    """Compute shares of arrivals from expected staleness, eq. (7).

    This is the inverse of `expected_staleness`.

    Args:
        staleness: `f64[...]`, expected staleness in versions.
        buffer_size: b.
        pull: When the client that fills the buffer pulls; a key of `UNCOUNTED_ARRIVALS`.

    Returns:
        `f64[...]`, shares of arrivals.

    Raises:
        KeyError: If `pull` is not a key of `UNCOUNTED_ARRIVALS`.
    """
    return 1 / (buffer_size * np.asarray(staleness, np.float64) + UNCOUNTED_ARRIVALS[pull])


@checked
def raw_weight(
    staleness: npt.ArrayLike,
    *,
    buffer_size: Count,
    num_clients: Count,
    pull: str = "after_aggregation",
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

    Raises:
        KeyError: If `pull` is not a key of `UNCOUNTED_ARRIVALS`.
    """
    # Deviation: Algorithm 1 prints (E[tau] + 1) / n. Without the factor b this is not the inverse
    # of (7), and clients' shares are not evened out.
    return (
        buffer_size * np.asarray(staleness, np.float64) + UNCOUNTED_ARRIVALS[pull]
    ) / num_clients


@checked
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


@checked
def welfare_deviation(weight: npt.ArrayLike, share: npt.ArrayLike) -> float:
    """Compute the objective of (3), the summed distance of weighted influences to 1 / n.

    Args:
        weight: `f64[N]`, weight of an update of each client.
        share: `f64[N]`, shares of arrivals.

    Returns:
        The objective, which is minimised; 0 is best.
    """
    influence = np.multiply(weight, share)
    return float(np.sum(np.abs(influence - 1 / len(influence))))


@checked
def slot_weights(slot_rate: npt.ArrayLike) -> Numbers:
    """Compute the normalised weights of a buffer if expected staleness is known exactly. Derived.

    The weight of a slot is one over its client's rate, divided by the sum of these over the buffer.

    Args:
        slot_rate: `f64[..., S]`, rate of the client in each slot; a client may hold several slots.

    Returns:
        `f64[..., S]`, positive, sum 1. With equal rates all weights are 1 / b.
    """
    inverse = 1 / np.asarray(slot_rate, np.float64)
    return inverse / np.sum(inverse, axis=-1, keepdims=True)


@checked
def slot_weight_printed(rate: npt.ArrayLike, *, slot_client: npt.ArrayLike, client: Whole) -> float:
    """Compute a client's normalised weight in the long form that the paper gives above (9).

    It equals the weight by `slot_weights`.

    Args:
        rate: `f64[N]`, rates of the clients.
        slot_client: `i64[S]`, the client in each slot.
        client: The client; it must hold exactly one slot.

    Returns:
        The weight, between 0 and 1.

    Raises:
        ValueError: If the client does not hold exactly one slot.
    """
    # Deviation: the paper prints a_i for a_j in the first denominator, n for b as the limit of a
    # sum over slots, and the -1 inside a sum.
    rates, slots = np.asarray(rate, np.float64), np.asarray(slot_client)
    other_rate, other_delay = competition(rates, slot_client=slots, client=client)
    others_per_arrival = other_rate / rates[client]
    between = sum(
        rates[k] / rates[j]
        for j in slots[slots != client]
        for k in range(len(rates))
        if k not in (j, client)
    )
    return float(
        (others_per_arrival + 1)
        / (len(slots) + others_per_arrival + rates[client] * other_delay + between)
    )


@checked
def competition(rate: npt.ArrayLike, *, slot_client: npt.ArrayLike, client: Whole) -> Competition:
    """Collect what the utility of a client needs to know of the other clients and slots.

    Args:
        rate: `f64[N]`, rates of the clients.
        slot_client: `i64[S]`, the client in each slot; other clients may hold several slots.
        client: The client; it must hold exactly one slot, as the paper assumes.

    Returns:
        The sums A and C.

    Raises:
        ValueError: If the client does not hold exactly one slot.
    """
    rates, slots = np.asarray(rate, np.float64), np.asarray(slot_client)
    if np.sum(slots == client) != 1:
        raise ValueError(
            f"slot_client is {slots.tolist()}, but must hold exactly one slot of client {client}"
        )
    return Competition(
        float(np.sum(np.delete(rates, client))), float(np.sum(1 / rates[slots[slots != client]]))
    )


@checked
def utility(report: Value, others: Competition) -> Value:
    """Compute a client's weight in a buffer times its share of arrivals, eq. (9).

    Args:
        report: `f[...]`, the rate r that the client reports.
        others: The sums A and C.

    Returns:
        `f[...]`, the utility.
    """
    # Deviation: (9) mixes true and reported rates of the other clients. Here both A and C are sums
    # of reported rates.
    return report / ((1 + others.other_delay * report) * (report + others.other_rate))


@checked
def utility_slope(report: Value, others: Competition) -> Value:
    """Compute the derivative of `utility` with respect to the reported rate.

    Args:
        report: `f[...]`, the rate r that the client reports.
        others: The sums A and C.

    Returns:
        `f[...]`, the derivative; its sign is that of A - C r^2.
    """
    both = (1 + others.other_delay * report) * (report + others.other_rate)
    return (others.other_rate - others.other_delay * report**2) / both**2


@checked
def optimal_report(others: Competition) -> float:
    """Compute the reported rate with the largest utility, (A / C)^(1/2). Derived.

    A client whose true rate is smaller does best to report its true rate.

    Args:
        others: The sums A and C.

    Returns:
        The rate; infinite in a buffer of one slot.
    """
    return math.sqrt(others.other_rate / others.other_delay) if others.other_delay > 0 else math.inf


@checked
def is_truthful(rate: float, others: Competition) -> bool:
    """Tell whether reporting the true rate is optimal in this buffer, C r^2 <= A. Derived.

    Args:
        rate: r, the true rate of the client.
        others: The sums A and C.

    Returns:
        Whether it is. With equal rates this holds if and only if b <= n; the utility still rises at
        the true rate if and only if b < n.
    """
    # Deviation: the paper claims truthfulness for large n and concludes, by rescaling all rates,
    # that it holds in general. But A and C r^2 scale alike, so rescaling changes nothing.
    return others.other_delay * rate**2 <= others.other_rate


@checked
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
    chance = np.exp(
        gammaln(buffer_size + 1)
        - np.sum(gammaln(counts + 1), axis=-1)
        + counts @ np.log(np.multiply(num_clients, share))
    )
    held = counts * (1 / share if weight is None else weight)
    return chance @ (held / np.sum(held, axis=-1, keepdims=True))


@checked
def stationary_point(
    influence: npt.ArrayLike, optima: npt.ArrayLike, *, curvature: npt.ArrayLike = 1.0
) -> Numbers:
    """Compute where the model settles on average if clients' losses are h_i / 2 |w - c_i|^2.

    Derived. It is the mean of the c_i, weighted by influence times curvature. This holds to first
    order in the step size and for one local step; for Q steps of size eta, pass
    1 - (1 - eta h_i)^Q as the curvature.

    Args:
        influence: `f64[N]`, non-negative influence of each client or group.
        optima: `f64[N]` or `f64[N, P]`, the c_i.
        curvature: `f64[]` or `f64[N]`, the h_i.

    Returns:
        `f64[]` or `f64[P]`, the mean of the model in the long run.
    """
    pull = np.multiply(influence, curvature)
    return pull @ np.asarray(optima, np.float64) / np.sum(pull)


@checked
def weight_bounds(max_staleness: Whole, *, buffer_size: Count) -> tuple[float, float]:
    """Bound a normalised weight from below and above, stated before (11).

    Args:
        max_staleness: tau_max; averaged staleness lies between 0 and this.
        buffer_size: b.

    Returns:
        The lower and the upper bound. Both are attained.
    """
    b, most = buffer_size, buffer_size * max_staleness + 1
    return 1 / ((b - 1) * most + 1), most / (b * (max_staleness + 1))


@checked
def squared_weight_gap(max_staleness: Whole, *, buffer_size: Count) -> float:
    """Compute U, the largest squared difference of a normalised weight from 1 / b. Derived.

    Args:
        max_staleness: tau_max; averaged staleness lies between 0 and this.
        buffer_size: b.

    Returns:
        U, in closed form; 0 for b = 1 or tau_max = 0.
    """
    return ((buffer_size - 1) * max_staleness / (buffer_size * (max_staleness + 1))) ** 2


@checked
def squared_weight_gap_printed(max_staleness: Whole, *, buffer_size: Count) -> float:
    """Compute U as the paper prints it, the larger of two squares, eq. (11).

    The square that belongs to the upper bound is always the larger one, so this equals
    `squared_weight_gap`.

    Args:
        max_staleness: tau_max; averaged staleness lies between 0 and this.
        buffer_size: b.

    Returns:
        U.
    """
    return max(
        (1 / buffer_size - limit) ** 2
        for limit in weight_bounds(max_staleness, buffer_size=buffer_size)
    )


@checked
def max_staleness_bound(max_staleness_unbuffered: Whole, *, buffer_size: Count) -> int:
    """Bound tau_max,b by tau_max,1 / b, rounded up, on the same arrivals (assumption 5).

    Args:
        max_staleness_unbuffered: tau_max,1, the largest staleness with a buffer of one slot.
        buffer_size: b.

    Returns:
        The bound, in versions.
    """
    return -(-max_staleness_unbuffered // buffer_size)


@checked
def is_step_small(setup: FedStaleWeightSetup) -> bool:
    """Tell whether the theorem's condition on step sizes holds, eta_g eta_l^(q) Q <= 1 / L.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        Whether it holds for each local step q.
    """
    return setup.server_lr * max(setup.client_lr) * len(setup.client_lr) * setup.smoothness <= 1


@checked
def bound(setup: FedStaleWeightSetup, *, num_ticks: Count) -> BoundTerms:
    """Compute the right side of (10), as printed.

    It is meant to bound the mean over t < T of the squared gradient of f at w_t, and does not:

    - For b >= 2 it exceeds G, and so any squared gradient (`is_vacuous`).
    - For b = 1 it is false. It is of order eta_l^2, but drawing clients leaves an error of order
      eta_l, and unequal rates leave an error that does not vanish with eta_l.

    Args:
        setup: Constants of the problem and of the run.
        num_ticks: T, the number of server steps.

    Returns:
        The terms, in units of a squared gradient.
    """
    b, tau, rates = setup.buffer_size, setup.max_staleness, setup.client_lr
    gradient_square = setup.local_variance + setup.global_variance + setup.gradient_bound
    drift = 12 * sum(lr**2 for lr in rates) * len(rates) * setup.smoothness**2 * gradient_square
    return BoundTerms(
        initial=2 * setup.initial_gap / (setup.server_lr * sum(rates) * num_ticks),
        staleness=(setup.server_lr * tau * (b * tau + 1) / (tau + 1)) ** 2 * drift,
        drift=drift,
        reweighting=4 * b**2 * squared_weight_gap(tau, buffer_size=b) * setup.gradient_bound,
    )


@checked
def is_vacuous(max_staleness: Whole, *, buffer_size: Count) -> bool:
    """Tell whether the last term of (10) alone is at least G, 4 b^2 U >= 1. Derived.

    Args:
        max_staleness: tau_max,b.
        buffer_size: b.

    Returns:
        Whether it is, which is so for all b >= 2 and tau_max,b >= 1.
    """
    return 4 * buffer_size**2 * squared_weight_gap(max_staleness, buffer_size=buffer_size) >= 1
