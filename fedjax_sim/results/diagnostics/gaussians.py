"""Normal laws: fit one to samples, and measure the distance between two.

Everything is NumPy in float64. Leading axes `...` are a batch. Dimension letters: `P` coordinates,
`R` samples.
"""

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import ConfigError, Limit, checked, shape

Numbers = npt.NDArray[np.float64]


@checked
class Gaussian(NamedTuple):
    """A normal law in P dimensions, or the first two moments of another law.

        law = Gaussian(mean=np.zeros(2), covariance=np.eye(2))
        moved = law._replace(mean=np.array([3.0, 4.0]))
        assert wasserstein2(*law, *moved) == 5.0

    Attributes:
        mean: `f64[..., P]`.
        covariance: `f64[..., P, P]`, symmetric and positive semidefinite.
    """

    mean: Annotated[Numbers, shape("... P")]
    covariance: Annotated[Numbers, shape("... P P")]


@checked
def fit_gaussian(samples: Annotated[npt.ArrayLike, shape("... R P"), Limit()]) -> Gaussian:
    """Compute the mean and the covariance of samples.

        law = fit_gaussian(np.random.default_rng(0).normal(size=(100, 2)))

    Args:
        samples: `[..., R, P]`, R samples of P coordinates, R at least 2.

    Returns:
        The sample mean and the sample covariance, whose divisor is R - 1.
    """
    samples = np.asarray(samples, float)
    if samples.shape[-2] < 2:
        raise ConfigError("number of samples", samples.shape[-2], "at least 2")
    mean = samples.mean(axis=-2)
    centred = samples - mean[..., None, :]
    return Gaussian(mean, np.swapaxes(centred, -1, -2) @ centred / (samples.shape[-2] - 1))


@checked
def wasserstein2(
    mean1: Annotated[npt.ArrayLike, shape("... P")],
    cov1: Annotated[npt.ArrayLike, shape("... P P")],
    mean2: Annotated[npt.ArrayLike, shape("... P")],
    cov2: Annotated[npt.ArrayLike, shape("... P P")],
) -> Numbers:
    """Compute the 2-Wasserstein distance W2 (not its square) between two normal laws.

    The distance is symmetric, and 0 for equal laws up to the square root of rounding. Between laws
    that are not Gaussian but have these moments, it is a lower bound of W2 (Gelbrich 1990). Leading
    axes broadcast. A `Gaussian` can be passed as `*law`.

        assert wasserstein2(np.zeros(2), np.eye(2), np.array([3.0, 4.0]), np.eye(2)) == 5.0

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
    for name, covariance in (("cov1", cov1), ("cov2", cov2)):
        variances = np.diagonal(covariance, axis1=-2, axis2=-1)
        if (variances < 0).any():
            raise ConfigError(f"a variance in {name}", float(variances.min()), "at least 0")
    values, vectors = np.linalg.eigh(cov2)
    scaled = vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]
    root = scaled @ np.swapaxes(vectors, -1, -2)  # The symmetric square root.
    cross = root @ cov1 @ root
    squares = np.linalg.eigvalsh((cross + np.swapaxes(cross, -1, -2)) / 2)
    overlap = np.sqrt(np.clip(squares, 0, None)).sum(axis=-1)
    traces = np.trace(cov1, axis1=-2, axis2=-1) + np.trace(cov2, axis1=-2, axis2=-1)
    shift = np.square(mean1 - mean2).sum(axis=-1)
    return np.sqrt(np.clip(shift + traces - 2 * overlap, 0, None))
