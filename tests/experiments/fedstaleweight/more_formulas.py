"""Formulas of FedStaleWeight (arXiv 2406.02877) that only tests need."""

import numpy as np
import numpy.typing as npt

from experiments.fedstaleweight.formulas import FedStaleWeightSetup
from fedjax_sim.theory.fedstaleweight import Numbers


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


def is_step_small(setup: FedStaleWeightSetup) -> bool:
    """Tell whether the theorem's condition on step sizes holds, eta_g eta_l^(q) Q <= 1 / L.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        Whether it holds for each local step q.
    """
    return setup.server_lr * max(setup.client_lr) * len(setup.client_lr) * setup.smoothness <= 1
