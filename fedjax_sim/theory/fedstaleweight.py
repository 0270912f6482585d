"""The theory of FedStaleWeight (Ma, Tu, Chen, Reddi, arXiv 2406.02877): staleness, weights, incentives, influence, convergence; float64.

Dimension letters: `N` clients, `S` slots of the buffer (the paper's b), `K` groups of clients with one rate, `P` parameters. Rates are
updates per unit of time, one over the mean delay; staleness is counted in versions, that is, server steps. Equation numbers are the
paper's. Where it writes r with a tilde, rates are what clients report, so `rate` may be either.

The paper's: shares of arrivals, staleness and weights (2)-(8), the utility (9), the bound on convergence (10)-(11). "Derived" marks what
it does not state. Corrected or refuted here:
- Algorithm 1 prints a weight that does not invert the staleness; see `raw_weight`.
- A weight must not fall faster than the share of arrivals rises, or it pays to be slow; the paper says "more slowly".
- Reporting the true rate is not optimal for every buffer; see `is_truthful`.
- Weights that sum to 1 in each buffer leave influence far from 1 / n; see `expected_influence`.
- The bound on convergence says nothing for b >= 2 and is false for b = 1; see `bound`.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

Numbers = npt.NDArray[np.float64]
Value = TypeVar("Value", float, Numbers, jax.Array)
Weighting = Callable[[Numbers], Numbers]

OWN_ARRIVAL = {"after_aggregation": 1, "before_aggregation": 0}
"""What b E[tau] falls short of 1 / p by, by when the client that fills the buffer pulls: the paper's order, and the other (derived)."""


class Competition(NamedTuple):
    """What the utility (9) of a client takes from the others, if it holds one slot of a buffer."""

    other_rate: float  # A: sum of the other clients' rates
    other_delay: float  # C: sum over the other slots of one over the rate, units of time


class FedStaleWeightSetup(NamedTuple):
    """The constants of assumptions 1 to 5 and of the run."""

    buffer_size: int  # b; printed as K in "K = 1"
    max_staleness: int  # tau_max,b
    client_lr: tuple[float, ...]  # eta_l^(q), of each of the Q local steps
    server_lr: float  # eta_g
    smoothness: float  # L, of each client's loss
    local_variance: float  # sigma_l^2
    global_variance: float  # sigma_g^2
    gradient_bound: float  # G, on the squared norm of any client's gradient
    initial_gap: float  # f(w_0) - f_*


class BoundTerms(NamedTuple):
    """The right side of (10), term by term; units of a squared gradient."""

    initial: float  # 2 (f(w_0) - f_*) / (eta_g alpha(Q) T)
    staleness: float  # 12 eta_g^2 tau^2 beta(Q) Q L^2 ((b tau + 1) / (tau + 1))^2 Sigma
    drift: float  # 12 beta(Q) Q L^2 Sigma
    reweighting: float  # 4 b^2 U G

    @property
    def total(self) -> float:
        return self.initial + self.staleness + self.drift + self.reweighting


def arrival_shares(rate: npt.ArrayLike, *, num_clients: npt.ArrayLike = 1) -> Numbers:
    """Compute p, each client's share of all arrivals, eq. (2).

    rate: `f64[N]`. Returns `f64[N]`, positive, sum 1. With num_clients, `i64[K]`, and rate, `f64[K]`, for groups: the share of one client
    of each group, `f64[K]`.
    """
    rates = np.asarray(rate, np.float64)
    return rates / np.sum(np.multiply(num_clients, rates))


def expected_staleness(
    share: npt.ArrayLike, *, buffer_size: int, pull: str = "after_aggregation"
) -> Numbers:
    """Compute E[tau] from shares of arrivals, eq. (6). share, result: `f64[...]`.

    Exact for independent stationary arrivals of clients that pull at once and find the buffer equally often at each filling.
    pull: a name in OWN_ARRIVAL.
    """
    return (1 / np.asarray(share, np.float64) - OWN_ARRIVAL[pull]) / buffer_size


def share_from_staleness(
    staleness: npt.ArrayLike, *, buffer_size: int, pull: str = "after_aggregation"
) -> Numbers:
    """Compute shares of arrivals from expected staleness, eq. (7), the inverse of `expected_staleness`. staleness, result: `f64[...]`."""
    return 1 / (buffer_size * np.asarray(staleness, np.float64) + OWN_ARRIVAL[pull])


def raw_weight(
    staleness: npt.ArrayLike, *, buffer_size: int, num_clients: int, pull: str = "after_aggregation"
) -> Numbers:
    """Compute a weight before it is normalised, eq. (8): `fair_weight` of the share that the staleness tells. staleness: `f64[...]`.

    It is positive, and num_clients cancels when it is normalised. With pull = "before_aggregation" it is the weight of the paper's code.
    """
    # Deviation: Algorithm 1 prints (E[tau] + 1) / n. Without the factor b it is not the inverse of (7), and shares are not evened out.
    return (buffer_size * np.asarray(staleness, np.float64) + OWN_ARRIVAL[pull]) / num_clients


def fair_weight(share: npt.ArrayLike) -> Numbers:
    """Compute 1 / (n p), which solves (3): each client's weighted influence is 1 / n, whatever rate it reports. share, result: `f64[N]`."""
    shares = np.asarray(share, np.float64)
    return 1 / (len(shares) * shares)


def welfare_deviation(weight: npt.ArrayLike, share: npt.ArrayLike) -> float:
    """Compute the objective of (3), the summed distance of clients' weighted influence to 1 / n; 0 is best. weight, share: `f64[N]`."""
    influence = np.multiply(weight, share)
    return float(np.sum(np.abs(influence - 1 / len(influence))))


def slot_weights(slot_rate: npt.ArrayLike) -> Numbers:
    """Compute the normalised weights of a buffer from exact expectations: one over the rate, over its sum. Derived.

    slot_rate: `f64[..., S]`, rate of the client in each slot, who may hold several. Returns `f64[..., S]`, sum 1; 1 / b at equal rates.
    """
    inverse = 1 / np.asarray(slot_rate, np.float64)
    return inverse / np.sum(inverse, axis=-1, keepdims=True)


def slot_weight_printed(rate: npt.ArrayLike, *, slot_client: npt.ArrayLike, client: int) -> float:
    """Compute a client's normalised weight in the paper's long form above (9); `slot_weights` is the same.

    rate: `f64[N]`. slot_client: `i64[S]`, the client in each slot. client: holds one slot.
    """
    # Deviation: printed with a_i for a_j in the first denominator, n for b as the limit of a sum over slots, and the -1 inside a sum.
    rates, slots = np.asarray(rate, np.float64), np.asarray(slot_client)
    other_rate, other_delay = competition(rates, slot_client=slots, client=client)
    own = other_rate / rates[client]
    between = sum(
        rates[k] / rates[j]
        for j in slots[slots != client]
        for k in range(len(rates))
        if k not in (j, client)
    )
    return float((own + 1) / (len(slots) + own + rates[client] * other_delay + between))


def competition(rate: npt.ArrayLike, *, slot_client: npt.ArrayLike, client: int) -> Competition:
    """Collect what the utility of a client takes from the others. rate: `f64[N]`. slot_client: `i64[S]`, the client in each slot.

    The client must hold exactly one slot, as the paper assumes; others may hold several.
    """
    rates, slots = np.asarray(rate, np.float64), np.asarray(slot_client)
    if np.sum(slots == client) != 1:
        raise ValueError(f"client {client} must hold one slot of {slots.tolist()}")
    return Competition(
        float(np.sum(np.delete(rates, client))), float(np.sum(1 / rates[slots[slots != client]]))
    )


def utility(report: Value, others: Competition) -> Value:
    """Compute a client's weight in a buffer times its share of arrivals, eq. (9). report: the rate r that it reports, of any shape."""
    # Deviation: (9) mixes true and reported rates of the others; here both A and C are of reported ones.
    return report / ((1 + others.other_delay * report) * (report + others.other_rate))


def utility_slope(report: Value, others: Competition) -> Value:
    """Compute the derivative of `utility` by the reported rate. Its sign is that of A - C r^2."""
    both = (1 + others.other_delay * report) * (report + others.other_rate)
    return (others.other_rate - others.other_delay * report**2) / both**2


def optimal_report(others: Competition) -> float:
    """Compute the best report, (A / C)^(1/2), infinite in a buffer of one slot; a client whose rate is less reports its rate. Derived."""
    return math.sqrt(others.other_rate / others.other_delay) if others.other_delay > 0 else math.inf


def is_truthful(rate: float, others: Competition) -> bool:
    """Whether reporting the true rate is optimal in this buffer, C r^2 <= A. Derived.

    At equal rates this holds iff b <= n; the utility still rises at the true rate iff b < n.
    """
    # Deviation: the paper claims it for large n, hence in general by rescaling all rates; but A and C r^2 scale alike, so nothing changes.
    return others.other_delay * rate**2 <= others.other_rate


def expected_influence(
    rate: npt.ArrayLike,
    *,
    num_clients: npt.ArrayLike,
    buffer_size: int,
    weight: Numbers | Weighting | None = None,
) -> Numbers:
    """Compute the share of an aggregation that each group of clients has on average, all its slots together. Derived.

    Sums over all compositions of a buffer of independent slots; exact if delays are exponential and weights do not vary in time.
    rate: `f64[K]`. num_clients: `i64[K]`, the groups' sizes. weight: `f64[K]`, of a group's slot before it is normalised, or a function of
    the expected staleness, `f64[K]`, that gives it; 1 / p if left out. All are positive. Returns `f64[K]`, sum 1.
    With equal weights, or a buffer of one slot, this is the groups' shares of arrivals.
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


def stationary_point(
    influence: npt.ArrayLike, optima: npt.ArrayLike, *, curvature: npt.ArrayLike = 1.0
) -> Numbers:
    """Compute where quadratics h_i / 2 |w - c_i|^2 settle on average, the mean of the c_i by influence times curvature. Derived.

    To first order in the step size, for one local step; with Q steps of size eta, put 1 - (1 - eta h_i)^Q for the curvature.
    influence: `f64[N]`, non-negative. optima: `f64[N]` or `f64[N, P]`. curvature: `f64[]` or `f64[N]`. Returns `f64[]` or `f64[P]`.
    """
    pull = np.multiply(influence, curvature)
    return pull @ np.asarray(optima, np.float64) / np.sum(pull)


def weight_bounds(max_staleness: int, *, buffer_size: int) -> tuple[float, float]:
    """Bound a normalised weight from below and above, if averaged staleness lies in [0, tau_max] (before (11)). Both are attained."""
    b, most = buffer_size, buffer_size * max_staleness + 1
    return 1 / ((b - 1) * most + 1), most / (b * (max_staleness + 1))


def squared_weight_gap(max_staleness: int, *, buffer_size: int) -> float:
    """Compute U, the largest square of what a normalised weight differs from 1 / b by, in closed form. Derived; 0 for b = 1 or tau = 0."""
    return ((buffer_size - 1) * max_staleness / (buffer_size * (max_staleness + 1))) ** 2


def squared_weight_gap_printed(max_staleness: int, *, buffer_size: int) -> float:
    """Compute U as the larger of two squares, eq. (11); it is always that of the upper bound, so `squared_weight_gap` is the same."""
    return max(
        (1 / buffer_size - limit) ** 2
        for limit in weight_bounds(max_staleness, buffer_size=buffer_size)
    )


def max_staleness_bound(max_staleness_unbuffered: int, *, buffer_size: int) -> int:
    """Bound tau_max,b by tau_max,1 / b, rounded up (assumption 5), on the same arrivals."""
    return -(-max_staleness_unbuffered // buffer_size)


def is_step_small(setting: FedStaleWeightSetup) -> bool:
    """Whether the theorem's condition on step sizes holds, eta_g eta_l^(q) Q <= 1 / L for each q."""
    return (
        setting.server_lr * max(setting.client_lr) * len(setting.client_lr) * setting.smoothness
        <= 1
    )


def bound(setting: FedStaleWeightSetup, *, num_ticks: int) -> BoundTerms:
    """Compute the right side of (10), meant to bound the mean over t < T of the squared gradient of f at w_t. num_ticks: T.

    As printed, and no more than that: for b >= 2 it exceeds G, hence any squared gradient (`is_vacuous`). For b = 1 it is false, since it
    is of order eta_l^2 where drawing clients leaves an error of order eta_l, and unequal rates one that does not vanish.
    """
    b, tau, rates = setting.buffer_size, setting.max_staleness, setting.client_lr
    gradient_square = setting.local_variance + setting.global_variance + setting.gradient_bound
    drift = 12 * sum(lr**2 for lr in rates) * len(rates) * setting.smoothness**2 * gradient_square
    return BoundTerms(
        initial=2 * setting.initial_gap / (setting.server_lr * sum(rates) * num_ticks),
        staleness=(setting.server_lr * tau * (b * tau + 1) / (tau + 1)) ** 2 * drift,
        drift=drift,
        reweighting=4 * b**2 * squared_weight_gap(tau, buffer_size=b) * setting.gradient_bound,
    )


def is_vacuous(max_staleness: int, *, buffer_size: int) -> bool:
    """Whether the last term of (10) alone is at least G, 4 b^2 U >= 1; so for all b >= 2 and tau >= 1. Derived."""
    return 4 * buffer_size**2 * squared_weight_gap(max_staleness, buffer_size=buffer_size) >= 1
