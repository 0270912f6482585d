"""Random changes of training images, made anew for each mini-batch inside the compiled program."""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_sim.settings import ConfigError
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Crop at random from an image padded with black, and mirror it left to right with probability 1/2."""

    pad: int = 4
    """Black rows and columns on each side of which the crop, as large as the image, is taken; 0 for no crop."""
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ConfigError("pad", self.pad, "at least 0")

    def __call__(self, key: Key, images: Array) -> Array:
        """Change every image in its own way. images: `[B, H, W, C]`, bytes or floats; returns the same shape and type."""
        if self.pad:
            images = _crop(stream(key, "crop"), images, self.pad)
        if self.flip:
            mirrored = jax.random.bernoulli(stream(key, "flip"), shape=images.shape[:1])
            images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        return images


def _crop(key: Key, images: Array, pad: int) -> Array:
    num, height, width = images.shape[:3]
    shift = jax.random.randint(key, (num, 2), -pad, pad + 1)
    rows, columns = shift[:, :1] + jnp.arange(height)[None], shift[:, 1:] + jnp.arange(width)[None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None, :
    ]
    rows, columns = (
        jnp.clip(rows, 0, height - 1)[:, :, None],
        jnp.clip(columns, 0, width - 1)[:, None, :],
    )
    return jnp.where(inside[..., None], images[jnp.arange(num)[:, None, None], rows, columns], 0)


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "flip": Augmentation(pad=0),
    "crop": Augmentation(flip=False),
    "crop_flip": Augmentation(),
}
"""Augmentations by name."""
