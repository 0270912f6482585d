"""Exact laws of FA-LD (arXiv 2112.05120) in closed form, for Gaussian clients with one Hessian H in common; float64. All derived.

The paper's own simulation is of this kind. With everyone averaged the law is then that of SGLD, whatever the number of local steps, rho
and the clients' centers, but for their weighted mean. With some averaged, it is widened by the noise of fewer clients and by the spread
of the centers. One problem at a time, no gradient noise; `langevin_oracle` knows more by recursion.
"""

import numpy as np
import numpy.typing as npt

from fedjax_sim.diagnostics.gaussians import Gaussian
from fedjax_sim.theory.langevin.exact_laws import (
    FULL,
    GaussianTarget,
    Numbers,
    Participation,
    Real,
    check_rho,
    target,
)


def inflation(num_clients: int, rho: Real, participation: Participation = FULL) -> Real:
    """Compute phi, by which partial participation multiplies the temperature of the averaged noise (equal or unequal weights)."""
    check_rho(rho)
    excess = participation.excess(np.full(num_clients, 1 / num_clients))
    return 1 + (1 - np.square(rho)) * (num_clients - 1) * excess


def shared_hessian(
    clients: GaussianTarget, start: npt.ArrayLike, *, step_size: float, num_steps: int
) -> Gaussian:
    """Compute the law after k steps and full participation if all H_c are one H: that of SGLD, whatever K, rho and the b_c.

    Covariance tau / H (I - eta H / 2)^-1 (I - A^2k); no gradient noise. One problem, no batch; start: `f64[P]`.
    """
    values, vectors = _spectrum(clients)
    factor = 1 - step_size * values
    mode = target(clients).mean
    variances = (
        clients.temperature
        / (values * (1 - step_size * values / 2))
        * (1 - factor ** (2 * num_steps))
    )
    moved = vectors.T @ (np.asarray(start, float) - mode)
    return Gaussian(mode + vectors @ (factor**num_steps * moved), (vectors * variances) @ vectors.T)


def shared_hessian_stationary(
    clients: GaussianTarget,
    *,
    step_size: float,
    local_steps: int,
    rho: float,
    participation: Participation = FULL,
) -> Gaussian:
    """Compute the stationary law if all H_c are one H, without gradient noise; one problem, no batch.

    V = A^K V A^K + (I - A^K) V_b (I - A^K) + phi 2 eta tau sum_{j < K} A^2j with V_b = C_S / S times the weighted covariance of the b_c.
    Raises ValueError for a step size from 2 over the largest curvature, at which there is no such law.
    """
    values, vectors = _spectrum(clients)
    if not 0 < step_size < 2 / values.max():
        raise ValueError(
            f"step_size is {step_size:g}, but must be above 0 and less than {2 / values.max():g}."
        )
    factor = 1 - step_size * values
    power, square = factor**local_steps, np.outer(factor**local_steps, factor**local_steps)
    mode = target(clients).mean
    apart = clients.centers - mode
    spread = participation.excess(clients.weights) * np.einsum(
        "c,ci,cj->ij", clients.weights, apart, apart
    )
    turned = (
        (1 - power)[:, None] * (vectors.T @ spread @ vectors) * (1 - power)[None, :] / (1 - square)
    )
    phi = inflation(clients.shape[0], rho, participation)
    variances = phi * 2 * step_size * clients.temperature / (1 - factor**2)
    return Gaussian(mode, vectors @ (turned + np.diag(variances)) @ vectors.T)


def _spectrum(clients: GaussianTarget) -> tuple[Numbers, Numbers]:
    """Eigenvalues and eigenvectors of the one Hessian."""
    if not np.allclose(clients.hessians, clients.hessians[0], rtol=1e-12, atol=0):
        raise ValueError("hessians are unequal, but must be one and the same.")
    return np.linalg.eigh(clients.hessians[0])
