"""Gaussian laws: the distance between two of them, and the one that samples suggest. NumPy, in float64; leading axes are a batch."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Gaussian(NamedTuple):
    """A normal law in P dimensions."""

    mean: Numbers  # f64[..., P]
    covariance: Numbers  # f64[..., P, P]


def fit(samples: npt.ArrayLike) -> Gaussian:
    """Compute the mean and the covariance (divisor R - 1) of R samples `[..., R, P]`."""
    samples = np.asarray(samples, float)
    mean = samples.mean(axis=-2)
    centred = samples - mean[..., None, :]
    return Gaussian(mean, np.swapaxes(centred, -1, -2) @ centred / (samples.shape[-2] - 1))


def wasserstein2(
    mean1: npt.ArrayLike, cov1: npt.ArrayLike, mean2: npt.ArrayLike, cov2: npt.ArrayLike
) -> Numbers:
    """Compute the 2-Wasserstein distance W2 (not its square) between two Gaussians; symmetric, 0 for equal ones.

    mean1, mean2: `[..., P]`. cov1, cov2: `[..., P, P]`, symmetric and positive semidefinite: a point mass has the covariance 0. Leading
    axes broadcast. Returns `f64[...]`. For laws that are not Gaussian but have these moments it is a lower bound (Gelbrich 1990).
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
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]) @ np.swapaxes(
        vectors, -1, -2
    )
