"""Exact laws of FA-LD (arXiv 2112.05120) in closed form if all clients have one Hessian H. Derived.

`inflation` is the factor by which partial participation raises the temperature of the averaged
noise. It is 1 if clients share all their noise (rho = 1).

The clients are Gaussian, with exact gradients; there are no batch axes. The paper's simulation
is of this kind. Under full participation the law is that of SGLD: the number of local steps, rho
and the clients' centers do not matter, except for the weighted mean of the centers. Partial
participation widens the law, by the noise of fewer clients and by the spread of the centers. Other
cases are covered by the recursions of `experiments.fald.formulas.exact_laws`.

Everything is in float64. Symbols, dimension letters and arguments are those of `exact_laws`. Step
sizes are positive and less than 2 over the largest curvature, and unequal Hessians raise a
ValueError.
"""

import numpy as np
import numpy.typing as npt

from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import GaussianTarget, Numbers, Participation, Real
from fedjax_sim.core.settings import AtLeast0, Count, Whole, checked
from fedjax_sim.results.diagnostics import Gaussian


@checked
def inflation(
    num_clients: Count, rho: Real, participation: Participation = exact_laws.FULL
) -> Real:
    """Compute phi, by which partial participation multiplies the temperature of averaged noise.

    It is the same for equal and unequal weights, and 1 under full participation or for rho = 1.
    """
    exact_laws.check_rho(rho)
    excess = participation.excess(np.full(num_clients, 1 / num_clients))
    return 1 + (1 - np.square(rho)) * (num_clients - 1) * excess


@checked
def shared_hessian(
    target: GaussianTarget, start: npt.ArrayLike, *, step_size: AtLeast0, num_steps: Whole
) -> Gaussian:
    """Compute the law after k steps of full participation, which is SGLD's for any K and rho.

    The covariance is tau H^-1 (I - eta H / 2)^-1 (I - A^2k), where A = I - eta H. `start` is the
    first model, `f64[P]`.
    """
    values, vectors = _spectrum(target)
    factor = 1 - step_size * values
    mode = exact_laws.target_law(target).mean
    variances = (
        target.temperature
        / (values * (1 - step_size * values / 2))
        * (1 - factor ** (2 * num_steps))
    )
    moved = vectors.T @ (np.asarray(start, float) - mode)
    return Gaussian(mode + vectors @ (factor**num_steps * moved), (vectors * variances) @ vectors.T)


@checked
def shared_hessian_stationary(
    target: GaussianTarget,
    *,
    step_size: AtLeast0,
    local_steps: Count,
    rho: float,
    participation: Participation = exact_laws.FULL,
) -> Gaussian:
    """Compute the stationary law of the synchronised model.

    Its covariance solves
    V = A^K V A^K + (I - A^K) V_b (I - A^K) + phi 2 eta tau sum_{j < K} A^2j,
    where A = I - eta H and V_b is C_S / S times the weighted covariance of the centers b_c.

    Raises:
        ValueError: If the step size is outside its range, so that there is no such law.
    """
    values, vectors = _spectrum(target)
    if not 0 < step_size < 2 / values.max():
        raise ValueError(
            f"step_size is {step_size:g}, but must be above 0 and less than {2 / values.max():g}."
        )
    factor = 1 - step_size * values
    power, square = factor**local_steps, np.outer(factor**local_steps, factor**local_steps)
    mode = exact_laws.target_law(target).mean
    apart = target.centers - mode
    spread = participation.excess(target.weights) * np.einsum(
        "c,ci,cj->ij", target.weights, apart, apart
    )
    turned = (
        (1 - power)[:, None] * (vectors.T @ spread @ vectors) * (1 - power)[None, :] / (1 - square)
    )
    phi = inflation(target.shape[0], rho, participation)
    variances = phi * 2 * step_size * target.temperature / (1 - factor**2)
    return Gaussian(mode, vectors @ (turned + np.diag(variances)) @ vectors.T)


def _spectrum(target: GaussianTarget) -> tuple[Numbers, Numbers]:
    """Compute the eigenvalues and eigenvectors of the one Hessian, and refuse unequal Hessians."""
    if not np.allclose(target.hessians, target.hessians[0], rtol=1e-12, atol=0):
        raise ValueError("hessians differ between clients, but must be equal.")
    return np.linalg.eigh(target.hessians[0])
