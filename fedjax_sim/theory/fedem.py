"""Step sizes of FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin, arXiv 2111.02083), float64.

Up to these step sizes the paper's bounds are proved. Symbols of the paper and their names here:

    L                      `Constants.smoothness`
    L_W                    `Constants.lyapunov_smoothness`
    v_min, v_max           `Constants.least`, `Constants.most`
    n, omega, p, alpha     `num_clients`, `omega`, `participation`, `alpha` of `FedEMSetup`
    gamma_max, omega_p     `largest_step_size`, `total_omega`
"""

import math
from typing import Annotated, NamedTuple

from fedjax_sim.core.settings import ConfigError, Limit, checked, checked_all
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Portion


@checked
class Constants(NamedTuple):
    """The constants of assumptions A4, A5 and A8.

    Attributes:
        smoothness: L, positive. Quadratic mean of the Lipschitz constants of the clients' mean
            fields h_i (A5). For VR-FedEM it is the quadratic mean over all examples (A8).
        lyapunov_smoothness: L_W, positive. Lipschitz constant of the gradient of W.
        least: v_min, positive. Lower bound on the eigenvalues of B(s), where grad W = -B h.
        most: v_max, at least v_min. Upper bound on the eigenvalues of B(s).
    """

    smoothness: Above0
    lyapunov_smoothness: Above0
    least: Above0
    most: Above0


@checked
class FedEMSetup(NamedTuple):
    """The problem's constants and the settings of a FedEM run that the bounds depend on.

    Attributes:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor alone, at least 0; 0 is no compression.
        participation: p, in (0, 1]. Probability with which a client takes part in a round; the
            least p_i if clients differ.
        alpha: Step size of the memories, positive. None is 1 / (1 + omega), as in the theorems.
        spread: The largest p_i divided by the least, at least 1.
    """

    constants: Constants
    num_clients: Count
    omega: AtLeast0
    participation: Portion = 1.0
    alpha: Above0 | None = None
    spread: Annotated[float, Limit(least=1)] = 1.0

    @property
    def noise_factor(self) -> float:
        """Factor of gamma L_W sigma^2 / n in Theorem 3, 1 + 5 omega_p.

        Derived, for clients that differ: with the least p_i in the place of p, the proof of Prop.
        D.3 holds for each client and only its noise 2 alpha p sigma^2 grows by the spread r, so
        that the factor is 1 + omega_p (1 + 4 r). gamma_max is that of the least p_i.
        """
        return 1 + self.total_omega * (1 + 4 * self.spread)

    @property
    def memory_step(self) -> float:
        """Step size of the memories, alpha, with the default filled in."""
        return memory_step(self.omega) if self.alpha is None else self.alpha

    @property
    def total_omega(self) -> float:
        """Variance constant omega_p of compression and partial participation together."""
        return total_omega(self.omega, self.participation)


def memory_step(omega: AtLeast0) -> float:
    """Compute the theorems' step size of the memories, alpha = 1 / (1 + omega).

    Args:
        omega: Variance constant of the compressor alone, at least 0. Partial participation does
            not change alpha.

    Returns:
        alpha, in (0, 1].
    """
    return 1 / (1 + omega)


def total_omega(omega: AtLeast0, participation: Portion = 1.0) -> float:
    """Compute omega_p = (1 - p) (1 + omega) / p + omega (Sec. 2).

    It is the variance constant of a compressor that also drops the whole message with probability
    1 - p.

    Args:
        omega: Variance constant of the compressor alone, at least 0.
        participation: p, in (0, 1].

    Returns:
        omega_p, at least omega; equal to it for p = 1.
    """
    return (1 + omega) / participation - 1


def largest_step_size(setup: FedEMSetup) -> float:
    """Compute the largest step size gamma_max of Theorem 3, which is (7) of Theorem 1 for p = 1.

    Without compression and partial participation only the first of its two terms remains, a
    quarter of what (29) allows.

    Args:
        setup: The run.

    Returns:
        gamma_max, positive.

    Raises:
        ConfigError: If alpha exceeds 1 / (1 + omega).
    """
    limit = memory_step(setup.omega)
    if setup.memory_step > limit * (1 + 1e-12):
        raise ConfigError("alpha", setup.memory_step, f"at most 1 / (1 + omega) = {limit:g}")
    constants = setup.constants
    descent = constants.least / (2 * constants.lyapunov_smoothness)
    if setup.total_omega == 0:
        return descent
    scale = setup.memory_step * setup.participation * math.sqrt(setup.num_clients)
    spread = 2 * math.sqrt(2) * constants.smoothness * math.sqrt(setup.total_omega)
    return min(descent, scale / spread)


def vr_step_size(constants: Constants, *, num_clients: Above0, omega: AtLeast0) -> float:
    """Compute the step size (10), which does not depend on the number of examples.

    It is for alpha = 1 / (1 + omega) and mini-batches of at least k_in / (1 + omega)^2.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        gamma, positive and at most v_min / L_W.
    """
    compressed = math.sqrt(omega + (1 + 10 * omega) / 8)
    spread = constants.smoothness / math.sqrt(num_clients) * (1 + omega) * compressed
    shrinkage = 4 * math.sqrt(2) * constants.most / constants.lyapunov_smoothness * spread
    return constants.least / constants.lyapunov_smoothness / (1 + shrinkage)


checked_all(__name__)
