"""FedEM on a model where all is known, `latent/noisy_mean.py` (toys A and B of its docstring): constants, exact moments, floors; float64.

Derived, all of it; equation numbers are those of arXiv 2111.02083. Letters: `N` clients, `M` examples of each, `q` coordinates.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory.fedem.bounds import Constants, FedEMSetup

Numbers = npt.NDArray[np.float64]


class NoisyMean(NamedTuple):
    """The model of `latent/noisy_mean.py`, on which all is known."""

    constants: Constants
    slope: float  # a: h(s) = a (s_* - s)
    optimum: Numbers  # f64[q]  s_*
    local_fields: Numbers  # f64[N, q]  h_i(s_*), whose mean is 0
    noise: Numbers  # f64[N]  variance of one example's statistics, b sigma_i^2 of mini-batches with replacement, if kappa is one for all

    def gap(self, statistics: npt.ArrayLike) -> float:
        """W(s) - min W."""
        return (
            self.constants.lyapunov_smoothness
            / 2
            * float(np.sum((np.asarray(statistics) - self.optimum) ** 2))
        )


def describe_noisy_mean(y: npt.ArrayLike, kappa: npt.ArrayLike, ridge: float) -> NoisyMean:
    """Work out the closed forms. y: `f64[N, M, q]`, M examples of each client; kappa: `f64[N, M]` or one number. Derived."""
    y = np.asarray(y, float)
    kappa = np.broadcast_to(np.asarray(kappa, float), y.shape[:2])
    slope = float((kappa.mean() + ridge) / (1 + ridge))
    per_example = (kappa + ridge) / (1 + ridge)
    curvature = 1 / (1 + ridge)
    constants = Constants(
        math.sqrt(np.mean(per_example**2)), slope * curvature, curvature, curvature
    )
    shrunk = kappa[..., None] * y
    optimum = shrunk.mean(axis=(0, 1)) / slope
    local = shrunk.mean(axis=1) - per_example.mean(axis=1)[:, None] * optimum
    noise = np.sum((shrunk - shrunk.mean(axis=1, keepdims=True)) ** 2, axis=-1).mean(axis=1)
    return NoisyMean(constants, slope, optimum, local, noise)


class Moments(NamedTuple):
    """Expected squares along a run of FedEM on `noisy_mean`, at k = 0, ..., k_max."""

    mean_field: Numbers  # f64[k_max + 1]  E||h(S_k)||^2
    memory: Numbers  # f64[k_max + 1]  E G_k


def exact_moments(
    setting: FedEMSetup,
    *,
    slope: float,
    gamma: float,
    k_max: int,
    sigma2: float,
    mean_field: float,
    memory_error: float = 0.0,
) -> Moments:
    """Follow FedEM on `noisy_mean` exactly, if kappa is one for all and omega exact for every vector (rand-sparsification).

    mean_field: ||h(S_0)||^2. memory_error: G_0, of memories whose mean is h(S_0). With D_i = V_i - h_i(S) and N = H - h, of variance
    (omega_p G + (1 + omega_p) sigma^2) / n: h goes to (1 - a gamma) h - a gamma N and D_i to (1 - alpha p) D_i + a gamma h + noise, so that
    E||h||^2, E<mean D, h> and E G follow a linear recursion.
    """
    n, omega, pace, step = (
        setting.num_clients,
        setting.total_omega,
        setting.memory_step * setting.participation,
        slope * gamma,
    )
    state = np.array([mean_field, 0.0, memory_error])
    history = [state]
    for _ in range(k_max):
        field, cross, memory = state
        own = omega * memory + (1 + omega) * sigma2  # of each client's message times n
        shared = own / n
        state = np.array(
            [
                (1 - step) ** 2 * field + step**2 * shared,
                (1 - step) * ((1 - pace) * cross + step * field) - step * (pace + step) * shared,
                (1 - pace) ** 2 * memory
                + step**2 * field
                + 2 * (1 - pace) * step * cross
                + pace**2 * own
                + (step**2 + 2 * pace * step) * shared,
            ]
        )
        history.append(state)
    field, _, memory = np.transpose(history)
    return Moments(field, memory)


def heterogeneity_floor(*, slope: float, gamma: float, message_variance: npt.ArrayLike) -> float:
    """Compute the level at which E||h||^2 stays on `noisy_mean` without memories and with exact statistics, about.

    message_variance: `f64[N]`, of what each client sends at s_*, h_i(s_*) compressed, and dropped with probability 1 - p and else divided
    by p. The messages' variances away from s_* are left out.
    """
    variance = np.asarray(message_variance, float)
    return slope * gamma / (2 - slope * gamma) * float(np.sum(variance)) / variance.size**2
