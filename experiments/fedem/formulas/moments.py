"""FedEM on the noisy-mean model in closed form: constants and exact moments, in float64.

`heterogeneity_floor` is the level at which E||h||^2 settles without memories. The model is
`fedjax_sim.problems.latent.noisy_mean`; its docstring defines toys A (one kappa for all examples)
and B (a kappa per example). Everything here is derived; equation numbers are those of
arXiv 2111.02083. Symbols are those of `experiments.fedem.formulas.bounds`.

Dimension letters: `N` clients, `M` examples of each client, `q` coordinates of the statistic.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import AtLeast0, Whole, checked
from fedjax_sim.theory.fedem import Constants, FedEMSetup

Numbers = npt.NDArray[np.float64]


@checked
class NoisyMean(NamedTuple):
    """Closed forms of FedEM's constants on the noisy-mean model with given data.

    `constants` are those of the assumptions, with L the quadratic mean over all examples;
    `slope` is a of the mean field h(s) = a (s_* - s), `optimum` s_*, and `local_fields`
    h_i(s_*), whose mean is 0. `noise` is each client's variance, at theta = 0, of the statistic
    of one example. If all kappa are equal, theta does not matter, and it is b sigma_i^2 of
    mini-batches drawn with replacement.
    """

    constants: Constants
    slope: float
    optimum: Numbers
    local_fields: Numbers
    noise: Numbers

    def gap(self, statistics: npt.ArrayLike) -> float:
        """Compute W(s) - min W at s, `f64[q]`."""
        return (
            self.constants.lyapunov_smoothness
            / 2
            * float(np.sum((np.asarray(statistics) - self.optimum) ** 2))
        )


@checked
def describe_noisy_mean(y: npt.ArrayLike, kappa: npt.ArrayLike, ridge: AtLeast0) -> NoisyMean:
    """Compute the closed forms for examples `f64[N, M, q]` and kappa `f64[N, M]`. Derived.

    kappa is 1 / (1 + variance of the example's noise), in (0, 1].
    """
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
    """E||h(S_k)||^2 and E G_k before the first round and after each, `f64[k_max + 1]`."""

    mean_field: Numbers
    memory: Numbers


@checked
def exact_moments(
    setup: FedEMSetup,
    *,
    slope: float,
    gamma: AtLeast0,
    k_max: Whole,
    sigma2: AtLeast0,
    mean_field: AtLeast0,
    memory_error: AtLeast0 = 0.0,
) -> Moments:
    """Compute E||h(S_k)||^2 and E G_k of FedEM on the noisy-mean model exactly.

    This needs one kappa for all examples and a compressor whose variance is omega ||x||^2 for
    every vector x, e.g. rand-sparsification. Write D_i = V_i - h_i(S) and let H - h be the
    noise of the field, whose variance is (omega_p G + (1 + omega_p) sigma^2) / n. A round
    changes h to (1 - a gamma) h - a gamma (H - h), and D_i to (1 - alpha p) D_i + a gamma h +
    noise. Hence E||h||^2, E<mean of D_i, h> and E G follow a linear recursion. It starts at
    `mean_field`, ||h(S_0)||^2, and at `memory_error`, G_0, of memories whose mean is h(S_0).
    """
    n, omega, memory_rate, step = (
        setup.num_clients,
        setup.total_omega,
        setup.memory_step * setup.participation,
        slope * gamma,
    )
    state = np.array([mean_field, 0.0, memory_error])
    history = [state]
    for _ in range(k_max):
        field, cross, memory = state
        # Variance of what one client adds to the sum n H, and variance of H.
        client_variance = omega * memory + (1 + omega) * sigma2
        field_variance = client_variance / n
        state = np.array(
            [
                (1 - step) ** 2 * field + step**2 * field_variance,
                (1 - step) * ((1 - memory_rate) * cross + step * field)
                - step * (memory_rate + step) * field_variance,
                (1 - memory_rate) ** 2 * memory
                + step**2 * field
                + 2 * (1 - memory_rate) * step * cross
                + memory_rate**2 * client_variance
                + (step**2 + 2 * memory_rate * step) * field_variance,
            ]
        )
        history.append(state)
    field, _, memory = np.transpose(history)
    return Moments(field, memory)


@checked
def heterogeneity_floor(*, slope: float, gamma: AtLeast0, message_variance: npt.ArrayLike) -> float:
    """Approximate the level at which E||h||^2 settles without memories on the noisy-mean model.

    Statistics are exact, and gamma is below 2 / a. `message_variance` is `f64[N]`, the variance
    at s_* of what each client sends: h_i(s_*) compressed, then dropped with probability 1 - p
    and otherwise divided by p. How it differs away from s_* is neglected.
    """
    variance = np.asarray(message_variance, float)
    return slope * gamma / (2 - slope * gamma) * float(np.sum(variance)) / variance.size**2
