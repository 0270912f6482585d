"""FedEM's convergence bound and what leads to it (arXiv 2111.02083), in float64.

Symbols of the paper and their names here:

    L                      `Constants.smoothness`
    L_W                    `Constants.lyapunov_smoothness`
    v_min, v_max           `Constants.least`, `Constants.most`
    W(S_0) - min W         `gap`
    n, omega, p, alpha     `num_clients`, `omega`, `participation`, `alpha` of `FedEMSetup`
    gamma, b, k_max        `gamma`, `batch_size`, `k_max`, as in `fedjax_sim.systems.fedem`
    sigma^2                `sigma2`, mean over clients of the variance of a mini-batch statistic
    h, h_i                 mean field, and that of client i; H is the field that the server uses
    G_k                    `memory_error`, mean over clients of ||V_i - h_i(S_k)||^2

Bounds are on the mean of E||h(S_k)||^2 over the rounds k = 0, ..., k_max - 1 of a run. "Derived"
marks what the paper does not state. VR-FedEM's bounds are in
`experiments.fedem.formulas.variance_reduction`.

The step size gamma_max and omega_p are in `fedjax_sim.theory.fedem`.
"""

from typing import NamedTuple

from fedjax_sim.core.settings import AtLeast0, Whole, checked
from fedjax_sim.theory.fedem import FedEMSetup


class BoundTerms(NamedTuple):
    """The terms of W(S_0) - min W, sigma^2 and G_0 in a bound on the mean of E||h||^2.

    The factor that multiplies E||h||^2 in the theorem is already divided out.
    """

    initial: float
    noise: float
    memory: float

    @property
    def total(self) -> float:
        """The bound, the sum of its terms."""
        return sum(self)


# Theorems 1 and 3: FedEM --------------------------------------------------------------------------


@checked
def bound(
    setup: FedEMSetup,
    *,
    gamma: AtLeast0,
    k_max: Whole,
    gap: AtLeast0,
    sigma2: AtLeast0,
    memory_error: AtLeast0 = 0.0,
) -> BoundTerms:
    """Bound the mean E||h(S_k)||^2 by Theorem 3, which is (8) of Theorem 1 for p = 1.

    That gamma is at most `largest_step_size` is not checked. The term of `memory_error`, G_0,
    is that of (28) and (D.4).
    """
    constants, omega = setup.constants, setup.total_omega
    left = constants.least - gamma * constants.lyapunov_smoothness
    per_client = gamma * constants.lyapunov_smoothness / setup.num_clients
    of_memory = (
        2 * per_client * omega / (setup.memory_step * setup.participation) * memory_error / k_max
    )
    return BoundTerms(
        gap / (gamma * k_max) / left,
        per_client * setup.noise_factor * sigma2 / left,
        of_memory / left,
    )


# One step -----------------------------------------------------------------------------------------


@checked
def field_variance_bound(setup: FedEMSetup, *, delta2: AtLeast0, sigma2: AtLeast0) -> float:
    """Bound E||H - h||^2 at a given state (Prop. C.3.2 and D.3).

    `delta2` is the mean over clients of E||Delta_i||^2, where Delta_i is what client i
    compresses. The bound is attained if the compressor has the variance omega ||x||^2 for every
    vector x.
    """
    return (setup.total_omega * delta2 + sigma2) / setup.num_clients
