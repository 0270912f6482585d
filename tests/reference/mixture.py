"""A mixture of Gaussians with one covariance, in plain NumPy and SciPy.

Dimension letters: `G` components, `D` coordinates, `n` examples.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Mixture(NamedTuple):
    """Parameters of the mixture.

    Attributes:
      weights: `f[G]`.
      means: `f[G, D]`.
      covariance: `f[D, D]`.
    """

    weights: np.ndarray
    means: np.ndarray
    covariance: np.ndarray


def densities(theta: Mixture, y: np.ndarray) -> np.ndarray:
    """Compute weights times densities: `f[n, G]`."""
    laws = [stats.multivariate_normal(mean, theta.covariance) for mean in theta.means]
    return np.stack([w * law.pdf(y) for w, law in zip(theta.weights, laws, strict=True)], axis=1)


def e_step(theta: Mixture, y: np.ndarray) -> np.ndarray:
    """Compute the expected statistics of every example: `f[n, G + G D]`."""
    dense = densities(theta, y)
    share = dense / dense.sum(axis=1, keepdims=True)
    return np.concatenate([share, (share[:, :, None] * y[:, None, :]).reshape(len(y), -1)], axis=1)


def m_step(s: np.ndarray, *, components: int, second_moment: np.ndarray) -> Mixture:
    """Compute the parameters with these statistics; the covariance is fitted."""
    first, second = s[:components], s[components:].reshape(components, -1)
    means = second / first[:, None]
    return Mixture(
        first / first.sum(),
        means,
        second_moment - sum(w * np.outer(mu, mu) for w, mu in zip(first, means, strict=True)),
    )


def loss(theta: Mixture, y: np.ndarray) -> float:
    """Compute the mean negative log-likelihood minus (D / 2) log(2 pi)."""
    return float(
        -np.log(densities(theta, y).sum(axis=1)).mean() - y.shape[1] / 2 * np.log(2 * np.pi)
    )
