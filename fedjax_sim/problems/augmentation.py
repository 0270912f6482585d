"""Random crops and mirroring of training images.

Each mini-batch is changed anew inside the compiled program, so no changed image is ever stored.

Dimension letters: `B` images of a mini-batch, `H`, `W`, `C` height, width and channels of an image.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from fedjax_sim.core.checking import Whole, checked
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import Array, Key


@checked
@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random crop of a padded image, then mirroring left to right with probability 1/2.

        images = jnp.full((2, 4, 4, 1), 7, "uint8")
        assert (Augmentation(pad=0, flip=True)(key, images) == images).all()  # mirrored, all alike
        clients = iid(data.train_labels, num_clients=5, seed=0)
        crops = Augmentation(pad=1)
        problem = make_classification(MLP((16,), 10), data, clients, augmentation=crops)

    Attributes:
      pad: Number of black rows and columns added on each side before a crop of the image's size is
        taken, at least 0; 0 means no crop.
      flip: Whether images are mirrored.
    """

    pad: Whole = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ConfigError("pad", self.pad, "at least 0")

    def __call__(self, key: Key, images: Array) -> Array:
        """Crop and mirror each image at random.

        Args:
          key: Random key of the mini-batch.
          images: `u8[B, H, W, C]` or `f[B, H, W, C]`, before normalisation: black is 0.

        Returns:
          Images of the same shape and dtype.
        """
        chex.assert_rank(images, 4)
        if self.pad:
            images = _crop(stream(key, "crop"), images, self.pad)
        if self.flip:
            half = jnp.float32(0.5)
            mirrored = jax.random.bernoulli(stream(key, "flip"), half, images.shape[:1])
            images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        return images


def _crop(key: Key, images: Array, pad: int) -> Array:
    """Shift every image by up to `pad` pixels in each direction and fill the border with 0."""
    num, *shape = images.shape
    corners = jax.random.randint(key, (num, 2), -pad, pad + 1, "int32") + pad
    bordered = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))

    def cut(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (*corner, 0), shape)

    return jax.vmap(cut)(bordered, corners)


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "flip": Augmentation(pad=0),
    "crop": Augmentation(flip=False),
    "crop_flip": Augmentation(),
}
"""Augmentations by the name that the command line uses."""
