"""FedStaleWeight's incentives and convergence bound, which its experiments check.

The paper is Ma, Tu, Chen and Reddi, arXiv 2406.02877: the utility (9) and the convergence bound
(10)-(11). Staleness, weights and influence are in `fedjax_sim.theory.fedstaleweight`. Equation
numbers are the paper's. "Derived" marks what the paper does not state; "Deviation:" marks where
this module corrects it. Results are float64.

Dimension letters: `N` clients, `S` slots of the buffer (the paper's b). Rates are updates per unit
of time, one over the mean delay. Staleness is counted in versions of the model, that is, in server
steps. Where the paper writes r with a tilde, rates are what clients report; so `rate` may hold true
or reported rates.

In arguments, `others` has the sums A and C, `buffer_size` is b, `max_staleness` is tau_max, between
0 and which averaged staleness lies, and `report` is `f[...]`, the rate r that the client reports.

Refuted here:

- Reporting the true rate is not optimal for every buffer; see `is_truthful`.
- The convergence bound says nothing for b >= 2 and is false for b = 1; see `bound`.
"""

import math
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import Above0, AtLeast0, Count, Whole, checked

Numbers = npt.NDArray[np.float64]
Value = TypeVar("Value", float, Numbers, jax.Array)


@checked
class Competition(NamedTuple):
    """A, the sum of other clients' rates, and C, that of one over the other slots' rates."""

    other_rate: float
    other_delay: float


@checked
class FedStaleWeightSetup(NamedTuple):
    """The constants of assumptions 1 to 5 and of the run that a bound is about.

    They are b, printed as K in "K = 1"; tau_max,b in versions; eta_l^(q) of the Q local steps;
    eta_g; L of each client's loss; sigma_l^2, which bounds the variance of a client's gradient;
    sigma_g^2, which bounds the mean over clients of its squared distance from that of f; G,
    which bounds its squared norm; and f(w_0) - f_*.
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

    With Sigma = sigma_l^2 + sigma_g^2 + G and tau = tau_max,b they are 2 (f(w_0) - f_*) /
    (eta_g alpha(Q) T), 12 eta_g^2 tau^2 beta(Q) Q L^2 ((b tau + 1) / (tau + 1))^2 Sigma, 12
    beta(Q) Q L^2 Sigma and 4 b^2 U G.
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
def competition(rate: npt.ArrayLike, *, slot_client: npt.ArrayLike, client: Whole) -> Competition:
    """Collect what the utility of a client needs to know of the other clients and slots.

    `slot_client` is `i64[S]`, the client in each slot. Others may hold several, but the client
    exactly one, as the paper assumes; else there is a ValueError.
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
    """Compute a client's weight in a buffer times its share of arrivals, eq. (9)."""
    # Deviation: (9) mixes true and reported rates of the other clients. Here both A and C are sums
    # of reported rates.
    return report / ((1 + others.other_delay * report) * (report + others.other_rate))


@checked
def utility_slope(report: Value, others: Competition) -> Value:
    """Compute the derivative of `utility` by the reported rate, of the sign of A - C r^2."""
    both = (1 + others.other_delay * report) * (report + others.other_rate)
    return (others.other_rate - others.other_delay * report**2) / both**2


@checked
def optimal_report(others: Competition) -> float:
    """Compute the reported rate with the largest utility, (A / C)^(1/2). Derived.

    A client whose true rate is smaller does best to report its true rate.
    """
    return math.sqrt(others.other_rate / others.other_delay) if others.other_delay > 0 else math.inf


@checked
def is_truthful(rate: float, others: Competition) -> bool:
    """Tell whether reporting the true rate is optimal in this buffer, C r^2 <= A. Derived.

    With equal rates this holds if and only if b <= n; the utility still rises at the true rate
    if and only if b < n.
    """
    # Deviation: the paper claims truthfulness for large n and concludes, by rescaling all rates,
    # that it holds in general. But A and C r^2 scale alike, so rescaling changes nothing.
    return others.other_delay * rate**2 <= others.other_rate


@checked
def weight_bounds(max_staleness: Whole, *, buffer_size: Count) -> tuple[float, float]:
    """Bound a normalised weight from below and above, stated before (11). Both are attained."""
    b, most = buffer_size, buffer_size * max_staleness + 1
    return 1 / ((b - 1) * most + 1), most / (b * (max_staleness + 1))


@checked
def squared_weight_gap(max_staleness: Whole, *, buffer_size: Count) -> float:
    """Compute U, the largest squared difference of a normalised weight from 1 / b. Derived."""
    return ((buffer_size - 1) * max_staleness / (buffer_size * (max_staleness + 1))) ** 2


@checked
def squared_weight_gap_printed(max_staleness: Whole, *, buffer_size: Count) -> float:
    """Compute U as the paper prints it, the larger of two squares, eq. (11).

    The square of the upper bound is always the larger one, so this is `squared_weight_gap`.
    """
    return max(
        (1 / buffer_size - limit) ** 2
        for limit in weight_bounds(max_staleness, buffer_size=buffer_size)
    )


@checked
def bound(setup: FedStaleWeightSetup, *, num_ticks: Count) -> BoundTerms:
    """Compute the right side of (10), as printed, in units of a squared gradient.

    It is meant to bound the mean over t < T of the squared gradient of f at w_t, and does not.
    For b >= 2 it exceeds G, and so any squared gradient (`is_vacuous`). For b = 1 it is false:
    it is of order eta_l^2, but drawing clients leaves an error of order eta_l, and unequal
    rates leave an error that does not vanish with eta_l.
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

    It is so for all b >= 2 and tau_max,b >= 1.
    """
    return 4 * buffer_size**2 * squared_weight_gap(max_staleness, buffer_size=buffer_size) >= 1
