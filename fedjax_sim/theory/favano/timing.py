"""How long FAVANO and its baselines take: server steps to an accuracy, and time per server step.

The paper is Leconte, Nguyen and Moulines, arXiv 2305.16099: the step-size tuning lemma (App. B.1),
the rows of Table 1, and the mean length of a server step of FedAvg and FedBuff (App. C.2). Results
are float64. "Derived" marks what the paper does not state; "Deviation:" marks where this module
corrects it.

Dimension letters: `N` clients. In comments, T is the number of server steps, eps the accuracy,
and n, s, K, L, sigma^2, G^2, B^2, F, a, b are the fields of `bounds.FavanoSetup`.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedjax_sim.checking import Above0, AtLeast0, Count, checked
from fedjax_sim.theory.favano.bounds import ErrorTerms, FavanoSetup


class Orders(NamedTuple):
    """A number of server steps, c_2 / eps^2 + c_32 / eps^(3/2) + c_1 / eps up to constant factors.

    The accuracy eps bounds a squared gradient.

    Attributes:
        two: c_2.
        three_halves: c_32.
        one: c_1.
    """

    two: float
    three_halves: float
    one: float


@checked
def tuned_step_size(terms: ErrorTerms, *, num_ticks: Count) -> float:
    """Compute the step size of the tuning lemma, which balances the terms of the error bound.

    Args:
        terms: Coefficients of the error bound.
        num_ticks: T, the number of server steps.

    Returns:
        The step size, at most 1 / d.
    """
    # Deviation: the paper asks for a step size "at most" this minimum. The bound after it needs
    # equality, because a smaller step size makes the term in 1 / eta larger.
    start = terms.initial / num_ticks
    balanced = [
        (start / term) ** (1 / power)
        for term, power in ((terms.linear, 2), (terms.quadratic, 3))
        if term > 0
    ]
    return min(*balanced, 1 / terms.cap) if balanced else 1 / terms.cap


@checked
def tuned_bound(terms: ErrorTerms, *, num_ticks: Count) -> float:
    """Bound the error that is reached with `tuned_step_size`.

    Args:
        terms: Coefficients of the error bound.
        num_ticks: T, the number of server steps.

    Returns:
        The bound, in units of a squared gradient.
    """
    # Deviation: (47) lacks the factor 2 of the middle term, and is false without it. With it, (48)
    # still follows.
    start = terms.initial / num_ticks
    return (
        2 * (terms.linear * start) ** (1 / 2)
        + 2 * terms.quadratic ** (1 / 3) * start ** (2 / 3)
        + terms.cap * start
    )


@checked
def sufficient_ticks(terms: ErrorTerms, *, accuracy: Above0) -> float:
    """Compute a number of server steps that suffices for an accuracy, (45) and (48).

    Args:
        terms: Coefficients of the error bound.
        accuracy: eps, a squared gradient.

    Returns:
        A number of steps after which the error with `tuned_step_size` is at most `accuracy`.
    """
    # Deviation: the paper calls this number a lower bound on T; it is a number that suffices.
    linear = 36 * terms.linear * terms.initial / accuracy**2
    return (
        linear
        + 15 * terms.initial * terms.quadratic**0.5 / accuracy**1.5
        + 3 * terms.cap * terms.initial / accuracy
    )


@checked
def time_to_accuracy(orders: Orders, *, accuracy: Above0, step_time: float) -> float:
    """Compute the time to an accuracy, a row of Table 1, up to constant factors.

    Args:
        orders: Coefficients of the row.
        accuracy: eps, a squared gradient.
        step_time: C, the time between two server steps.

    Returns:
        The time, in the unit of `step_time`.
    """
    return (
        orders.two / accuracy**2 + orders.three_halves / accuracy**1.5 + orders.one / accuracy
    ) * step_time


@checked
def favano_orders(setup: FavanoSetup) -> Orders:
    """Collect FAVANO's row of Table 1, which is also the corollary (11)-(12).

    The middle term is that of the bound which is proved, not the printed one.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        The coefficients of the row.
    """
    n, s, K, squared = (
        setup.num_clients,
        setup.num_contacted,
        setup.max_steps,
        setup.max_steps**2,
    )
    sigma2, G2, a, b = (
        setup.gradient_variance,
        setup.dissimilarity,
        setup.noise_constant,
        setup.drift_constant,
    )
    FL = setup.initial_gap * setup.smoothness
    # Deviation: in the middle term the paper prints F L^2 for F L and L^2 K^2 G^2 for K^2 G^2. As
    # printed, its unit differs from that of the other terms.
    middle = (
        n / s * FL * (squared * sigma2 + squared * G2 + s**2 * sigma2 * a + s**2 * G2 * b) ** 0.5
    )
    return Orders(
        FL * (sigma2 * a + 8 * G2 * b), middle, n * FL * setup.dissimilarity_factor * K * b
    )


@checked
def favano_orders_printed(setup: FavanoSetup) -> Orders:
    """Collect FAVANO's row of Table 1 as printed.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        The coefficients of the row.
    """
    n, s, K, L = setup.num_clients, setup.num_contacted, setup.max_steps, setup.smoothness
    sigma2, G2, a, b = (
        setup.gradient_variance,
        setup.dissimilarity,
        setup.noise_constant,
        setup.drift_constant,
    )
    root = (K**2 * sigma2 + L**2 * K**2 * G2 + s**2 * sigma2 * a + s**2 * G2 * b) ** 0.5
    return favano_orders(setup)._replace(three_halves=n / s * setup.initial_gap * L**2 * root)


@checked
def fedavg_orders(setup: FavanoSetup) -> Orders:
    """Collect FedAvg's row of Table 1, corrected so that the units of its terms agree.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        The coefficients of the row.
    """
    n, s, K, G2 = (
        setup.num_clients,
        setup.num_contacted,
        setup.max_steps,
        setup.dissimilarity,
    )
    FL = setup.initial_gap * setup.smoothness
    # Deviation: as printed, the dissimilarity in the first term lacks the factor F L, and the
    # middle term has L^(1/2) for L.
    return Orders(
        FL * (setup.gradient_variance + (1 - s / n) * K * G2) / (s * K),
        FL * G2**0.5,
        FL * setup.dissimilarity_factor,
    )


@checked
def fedavg_orders_printed(setup: FavanoSetup) -> Orders:
    """Collect FedAvg's row of Table 1 as printed.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        The coefficients of the row.
    """
    n, s, K, G2 = (
        setup.num_clients,
        setup.num_contacted,
        setup.max_steps,
        setup.dissimilarity,
    )
    F, L = setup.initial_gap, setup.smoothness
    first = (F * L * setup.gradient_variance + (1 - s / n) * K * G2) / (s * K)
    return Orders(first, F * (L * G2) ** 0.5, F * L * setup.dissimilarity_factor)


@checked
def fedbuff_orders(setup: FavanoSetup, *, max_delay: AtLeast0) -> Orders:
    """Collect FedBuff's row of Table 1.

    Args:
        setup: Constants of the problem and of the run.
        max_delay: tau_max, the largest delay of an update, in server steps.

    Returns:
        The coefficients of the row.
    """
    sigma2, G2, FL = (
        setup.gradient_variance,
        setup.dissimilarity,
        setup.initial_gap * setup.smoothness,
    )
    delayed = ((max_delay / setup.num_contacted) ** 2 + 1) * (sigma2 + setup.num_clients * G2)
    return Orders(FL * (sigma2 + G2), FL * delayed**0.5, FL)


@checked
def async_sgd_orders(setup: FavanoSetup, *, mean_delay: AtLeast0, max_delay: AtLeast0) -> Orders:
    """Collect AsyncSGD's row of Table 1, corrected so that the units of its terms agree.

    Args:
        setup: Constants of the problem and of the run; here s clients are active at any time.
        mean_delay: tau_avg, the mean delay of a gradient, in server steps.
        max_delay: tau_max, the largest delay of a gradient, in server steps.

    Returns:
        The coefficients of the row.
    """
    s, G2, FL = (
        setup.num_contacted,
        setup.dissimilarity,
        setup.initial_gap * setup.smoothness,
    )
    # Deviation: the last term is printed as (s tau_max F)^(1/2), without L and with F under the
    # root.
    return Orders(
        FL * (3 * setup.gradient_variance + 4 * G2),
        FL * (G2 * s * mean_delay) ** 0.5,
        FL * (s * max_delay) ** 0.5,
    )


@checked
def async_sgd_orders_printed(
    setup: FavanoSetup, *, mean_delay: AtLeast0, max_delay: AtLeast0
) -> Orders:
    """Collect AsyncSGD's row of Table 1 as printed.

    Args:
        setup: Constants of the problem and of the run; here s clients are active at any time.
        mean_delay: tau_avg, the mean delay of a gradient, in server steps.
        max_delay: tau_max, the largest delay of a gradient, in server steps.

    Returns:
        The coefficients of the row.
    """
    last = (setup.num_contacted * max_delay * setup.initial_gap) ** 0.5
    return async_sgd_orders(setup, mean_delay=mean_delay, max_delay=max_delay)._replace(one=last)


@checked
def quafl_orders(setup: FavanoSetup, *, mean_steps: float) -> Orders:
    """Collect QuAFL's row of Table 1.

    Args:
        setup: Constants of the problem and of the run.
        mean_steps: E, the expected number of local steps between two contacts.

    Returns:
        The coefficients of the row.
    """
    n, s, K = setup.num_clients, setup.num_contacted, setup.max_steps
    FL, spread = (
        setup.initial_gap * setup.smoothness,
        setup.gradient_variance + 2 * K * setup.dissimilarity,
    )
    return Orders(
        FL * K * spread / mean_steps**2,
        n**1.5 * FL * K * spread**0.5 / (mean_steps**1.5 * s**0.5),
        n**1.5 * FL * setup.dissimilarity_factor**0.5 * K**2 / (mean_steps * s**0.5),
    )


@checked
def fedavg_round_time(
    rate: npt.ArrayLike, *, num_contacted: Count, local_steps: Count, interact_time: AtLeast0
) -> float:
    """Compute the mean length of a FedAvg round if local steps take geometric times. Derived.

    The server waits for the slowest of s clients drawn without replacement. The K steps of client i
    take a time tau_i with a negative binomial law, so
    E[max] = sum_{t >= 0} (1 - mean over subsets S of prod_{i in S} P(tau_i <= t)).

    Args:
        rate: `f64[N]`, probability of completing the current local step in one unit of time.
        num_contacted: s, the number of clients drawn, at most N.
        local_steps: K, the local steps that each drawn client does.
        interact_time: sit, the time of the server's interaction with the clients.

    Returns:
        The mean length, in units of time.
    """
    rates = np.asarray(rate, np.float64)
    horizon = local_steps + stats.nbinom.isf(1e-15, local_steps, rates.min())
    finished = np.asarray(
        stats.nbinom.cdf(np.arange(horizon)[:, None] - local_steps, local_steps, rates)
    )
    # After client i, all_finished[:, j] is the probability that j clients have all finished, as a
    # mean over the subsets of size j of the clients up to i.
    all_finished = np.zeros((len(finished), num_contacted + 1))
    all_finished[:, 0] = 1
    for i in range(len(rates)):
        share = np.minimum(np.arange(1, num_contacted + 1) / (i + 1), 1)
        all_finished[:, 1:] = (1 - share) * all_finished[:, 1:] + share * finished[
            :, i : i + 1
        ] * all_finished[:, :-1]
    return float(interact_time + np.sum(1 - all_finished[:, -1]))


@checked
def fedbuff_step_time(
    rate: npt.ArrayLike, *, buffer_size: Count, local_steps: Count, interact_time: AtLeast0
) -> float:
    """Approximate the mean time of a FedBuff server step if clients never wait. Derived.

    It is the time in which Z updates arrive, but at least `interact_time`. If clients do wait for
    the server, steps take longer.

    Args:
        rate: `f64[N]`, local steps per unit of time.
        buffer_size: Z, the number of updates per server step.
        local_steps: K, the local steps of each update.
        interact_time: sit, the time of the server's interaction with the clients.

    Returns:
        The mean time, in units of time.
    """
    return float(
        max(interact_time, buffer_size / np.sum(np.asarray(rate, np.float64) / local_steps))
    )
