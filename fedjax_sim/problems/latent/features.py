"""What mixtures are fitted to: features of images, and the models that the command line lists."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_sim.problems.latent.bernoulli_mixture import BernoulliMixture
from fedjax_sim.problems.latent.gaussian_mixture import GaussianMixture
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import LatentModel


def principal_components(images: np.ndarray, dimensions: int) -> np.ndarray:
    """Project images on their first principal components: centred, not scaled, bytes first divided by 255.

    images: `[n, ...]`. dimensions: at most the number of examples and of pixels that are not 0 in all of them. Returns `f64[n, D]`.
    """
    from sklearn.decomposition import PCA

    flat = images.reshape(len(images), -1)
    used = flat[:, (flat != 0).any(axis=0)]
    if dimensions > (most := min(used.shape)):
        raise ConfigError(
            "dimensions",
            dimensions,
            f"at most {most}, the examples or the pixels that are not 0 in all of them",
        )
    return PCA(dimensions, svd_solver="full").fit_transform(
        used / (255.0 if images.dtype == np.uint8 else 1.0)
    )


def binary(images: np.ndarray) -> np.ndarray:
    """Whether pixels are above the middle of their range, for images `[n, ...]`: 0 or 1, `f64[n, D]`."""
    flat = images.reshape(len(images), -1).astype(float)
    return (flat > (flat.min() + flat.max()) / 2).astype(float)


class Entry(NamedTuple):
    """A latent-variable model that the command line lists."""

    summary: str
    make: Callable[[int], LatentModel]
    """From the number of components."""
    features: Callable[[np.ndarray, int], np.ndarray]
    """From images and the number of dimensions."""


MODELS: dict[str, Entry] = {
    "gaussian_mixture": Entry(
        "Gaussians with one covariance, on the images' principal components",
        lambda num: GaussianMixture(num),
        principal_components,
    ),
    "bernoulli_mixture": Entry(
        "products of Bernoulli laws, on the images in black and white",
        lambda num: BernoulliMixture(num),
        lambda images, _: binary(images),
    ),
}
"""By name."""
