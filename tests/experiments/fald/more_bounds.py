"""Formulas of FA-LD (arXiv 2112.05120) that only tests need."""

import numpy as np
import numpy.typing as npt

from experiments.fald.formulas.bounds import LangevinSetup
from experiments.fald.formulas.exact_laws import Numbers, Real, check_rho


def noise_correlation(weights: npt.ArrayLike, rho: Real) -> Numbers:
    """Compute the correlation between clients of the noise that a step injects. Derived.

    The correlation is not rho, which is a mixing weight. The covariance between two clients is
    2 eta tau rho^2 and the variance of one is 2 eta T_{c,rho}, so step size and temperature cancel.
    With N equal weights the correlation is rho^2 / (rho^2 + N (1 - rho^2)).

    Args:
        weights: `f64[..., N]`, p_c.
        rho: Mixing weight of the shared noise, in [0, 1], a number or `f64[...]`.

    Returns:
        `f64[..., N, N]`, 1 on the diagonal.

    Raises:
        ValueError: If rho is not in [0, 1].
    """
    check_rho(rho)
    weights, shared = np.asarray(weights, float), np.square(np.asarray(rho, float))[..., None]
    scale = np.sqrt(shared + (1 - shared) / weights)
    between = shared[..., None] / (scale[..., :, None] * scale[..., None, :])
    return np.where(np.eye(weights.shape[-1], dtype=bool), 1.0, between)


def sufficient_decreasing_steps(setup: LangevinSetup, accuracy: float, *, local_steps: int) -> int:
    """Compute after how many steps of decreasing size Theorem B.7 guarantees the accuracy. Derived.

    Args:
        setup: The constants, each a number.
        accuracy: Required W2, positive.
        local_steps: K, at least 1.

    Returns:
        Steps of `experiments.fald.formulas.bounds.decreasing_step_size`, at least 0.
    """
    kappa, drift = setup.condition_number, (local_steps - 1) ** 2 + setup.condition_number
    needed = 2025 * kappa**2 * drift * setup.spread * setup.dim / accuracy**2
    return max(0, int(np.ceil(12 * (needed - 2 * kappa))))


def best_local_steps(condition_number: float) -> float:
    """Compute the K that minimises the rounds required by Theorem B.6. Derived.

    These are proportional to ((K - 1)^2 + kappa) / K.

    Args:
        condition_number: kappa, at least 1.

    Returns:
        K, not rounded.
    """
    return float(np.sqrt(1 + condition_number))
