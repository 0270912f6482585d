"""Table 1 of FAVANO (arXiv 2305.16099): the rows of its baselines that are misprinted.

The tuning lemma (App. B.1) leads from the bound of Theorem 1 to FAVANO's row. Symbols are those of
`experiments.favano.formulas.orders`.
"""

from experiments.favano.formulas.bounds import ErrorTerms
from experiments.favano.formulas.orders import Orders
from fedjax_sim.theory.favano import FavanoSetup


def tuned_step_size(terms: ErrorTerms, *, num_ticks: int) -> float:
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


def tuned_bound(terms: ErrorTerms, *, num_ticks: int) -> float:
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


def sufficient_ticks(terms: ErrorTerms, *, accuracy: float) -> float:
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


def async_sgd_orders(setup: FavanoSetup, *, mean_delay: float, max_delay: float) -> Orders:
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


def async_sgd_orders_printed(setup: FavanoSetup, *, mean_delay: float, max_delay: float) -> Orders:
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
