"""Features of images that mixtures are fitted to, and the models that the command line offers.

Dimension letters: `n` images, `D` features.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Limit, Named
from fedjax_sim.problems.latent.estimation import LatentModel
from fedjax_sim.problems.latent.factor_analysis import FactorAnalysis
from fedjax_sim.problems.latent.gaussian_mixture import GaussianMixture
from fedjax_sim.problems.latent.mixtures import BernoulliMixture

Images = Annotated[np.ndarray, Limit()]


def principal_components(images: Images, dimensions: Count) -> np.ndarray:
    """Project images on their first principal components.

    Images are centred but not scaled; bytes are divided by 255 first.

    Args:
      images: `[n, ...]`, bytes or floats.
      dimensions: D, at most the number of images and the number of pixels that are not 0 in all
        images.

    Returns:
      `f64[n, D]`.

    Raises:
      ConfigError: If `dimensions` is too large.
    """
    from sklearn.decomposition import PCA  # Slow to import, and only needed here.

    flat = images.reshape(len(images), -1)
    used = flat[:, (flat != 0).any(axis=0)]
    if dimensions > (most := min(used.shape)):
        allowed = f"at most {most}, the number of images or of pixels that are not 0 in all images"
        raise ConfigError("dimensions", dimensions, allowed)
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    return PCA(dimensions, svd_solver="full").fit_transform(used / scale)


def binary(images: Images) -> np.ndarray:
    """Turn images into black and white at the middle of the range of all their values.

    Args:
      images: `[n, ...]`, bytes or floats.

    Returns:
      `f64[n, D]`, 1 for pixels above the middle and 0 for the others.
    """
    flat = images.reshape(len(images), -1).astype(float)
    return (flat > (flat.min() + flat.max()) / 2).astype(float)


class Entry(NamedTuple):
    """A latent-variable model that the command line offers.

    Attributes:
      summary: One line about the model.
      make: Makes the model from the number of components.
      features: Makes features `f64[n, D]` from images `[n, ...]` and the number of dimensions.
    """

    summary: str
    make: Callable[[int], LatentModel]
    features: Callable[[np.ndarray, int], np.ndarray]


_with_prior = partial(GaussianMixture, prior=1e-3, starts="k-means++")
_ENTRIES = {
    "gaussian_mixture": Entry(
        "Gaussians with one covariance, on the images' principal components",
        GaussianMixture,
        principal_components,
    ),
    "gaussian_mixture_full": Entry(
        "Gaussians with different covariances and a prior of 0.001, on principal components",
        partial(_with_prior, covariance_type="full"),
        principal_components,
    ),
    "gaussian_mixture_diag": Entry(
        "Gaussians with different variances and a prior of 0.001, on principal components",
        partial(_with_prior, covariance_type="diag"),
        principal_components,
    ),
    "factor_analysis": Entry(
        "a Gaussian with factors (in place of components), on the images' principal components",
        FactorAnalysis,
        principal_components,
    ),
    "bernoulli_mixture": Entry(
        "products of Bernoulli laws, on the images in black and white",
        BernoulliMixture,
        lambda images, _: binary(images),
    ),
}
MODELS: Named[Entry] = Named("latent-variable model", _ENTRIES)
"""Models by the name that the command line uses."""
