"""Normal laws: fit one to samples, and measure the distance between two.

Everything is NumPy in float64. Leading axes `...` are a batch. Dimension letters: `P` coordinates,
`R` samples.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Gaussian(NamedTuple):
    """A normal law in P dimensions, or the first two moments of another law.

    Attributes:
        mean: `f64[..., P]`.
        covariance: `f64[..., P, P]`, symmetric and positive semidefinite.
    """

    mean: Numbers
    covariance: Numbers


def fit_gaussian(samples: npt.ArrayLike) -> Gaussian:
    """Compute the mean and the covariance of samples.

    Args:
        samples: `[..., R, P]`, R samples of P coordinates, R at least 2.

    Returns:
        The sample mean and the sample covariance, whose divisor is R - 1.
    """
    samples = np.asarray(samples, float)
    mean = samples.mean(axis=-2)
    centred = samples - mean[..., None, :]
    return Gaussian(mean, np.swapaxes(centred, -1, -2) @ centred / (samples.shape[-2] - 1))


def wasserstein2(
    mean1: npt.ArrayLike, cov1: npt.ArrayLike, mean2: npt.ArrayLike, cov2: npt.ArrayLike
) -> Numbers:
    """Compute the 2-Wasserstein distance W2 (not its square) between two normal laws.

    The distance is symmetric, and 0 for equal laws up to the square root of rounding. Between laws
    that are not Gaussian but have these moments, it is a lower bound of W2 (Gelbrich 1990). Leading
    axes broadcast. A `Gaussian` can be passed as `*law`.

    Args:
        mean1: `[..., P]`, mean of the first law.
        cov1: `[..., P, P]`, its covariance, symmetric and positive semidefinite. A point mass has
            the covariance 0.
        mean2: `[..., P]`, mean of the second law.
        cov2: `[..., P, P]`, its covariance.

    Returns:
        `f64[...]`, in the unit of the coordinates.
    """
    mean1, cov1, mean2, cov2 = (np.asarray(x, float) for x in (mean1, cov1, mean2, cov2))
    root = _square_root(cov2)
    cross = root @ cov1 @ root
    overlap = np.sqrt(
        np.clip(np.linalg.eigvalsh((cross + np.swapaxes(cross, -1, -2)) / 2), 0, None)
    ).sum(axis=-1)
    traces = np.trace(cov1, axis1=-2, axis2=-1) + np.trace(cov2, axis1=-2, axis2=-1)
    shift = np.square(mean1 - mean2).sum(axis=-1)
    return np.sqrt(np.clip(shift + traces - 2 * overlap, 0, None))


def _square_root(covariance: Numbers) -> Numbers:
    """Compute the symmetric square root of symmetric positive semidefinite matrices."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]) @ np.swapaxes(
        vectors, -1, -2
    )
