"""Residual networks (He et al. 2016) with group normalisation.

They take images `[B, H, W, C]` or one image `[H, W, C]`.

Deviation: FAVANO's experiments (arXiv 2305.16099, App. C) presumably use batch normalisation. Its
running statistics must not be reweighted: FAVANO divides a client's progress by alpha, which would
extrapolate the statistics and can make variances negative. Group normalisation (Wu and He 2018)
has no statistics to send, and does not mix the examples of a client's batch. Groups have eight
channels.

Letters: `B` images; `H`, `W`, `C` height, width and channels of an image.
"""

from typing import Annotated

from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.checking import Count, OneOf, checked
from fedjax_sim.models.cnn import conv, group_norm
from fedjax_sim.models.convolution import Convolution, auto, max_pool
from fedjax_sim.models.mlp import dense
from fedjax_sim.types import Array


@checked
class ResNet(nn.Module):
    """A stem, stages of basic blocks, the mean over space, and a dense layer.

    A basic block has two 3x3 convolutions. Each stage but the first has half the resolution of the
    stage before it.

        network = ResNet(10, stages=(8, 16), blocks=1)
        params = jax.eval_shape(network.init, key, jnp.zeros((1, 8, 8, 3)))
        assert jax.eval_shape(network.apply, params, jnp.zeros((5, 8, 8, 3))).shape == (5, 10)

    Attributes:
      num_classes: Number of logits.
      stages: Number of channels of each stage.
      blocks: Number of blocks in each stage.
      stem: "cifar" for a 3x3 convolution; "imagenet" for a 7x7 convolution with stride 2 and 3x3
        pooling with stride 2.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    stages: tuple[Count, ...]
    blocks: Count
    stem: Annotated[str, OneOf(("cifar", "imagenet"))] = "cifar"
    convolution: Convolution = auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        if self.stem == "imagenet":
            x = nn.relu(self._conv_and_norm(x, self.stages[0], 7, strides=2, padding=3))
            x = max_pool(x, 3, stride=2, pad=1)
        else:
            x = nn.relu(self._conv_and_norm(x, self.stages[0], 3))
        for i, features in enumerate(self.stages):
            for j in range(self.blocks):
                x = self._block(x, features, strides=2 if i > 0 and j == 0 else 1)
        x = x.mean((-3, -2))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)

    def _block(self, x: Array, features: int, strides: int) -> Array:
        """Apply a basic block; the shortcut has a 1x1 convolution if the shape changes."""
        y = nn.relu(self._conv_and_norm(x, features, 3, strides=strides))
        y = self._conv_and_norm(y, features, 3)
        if x.shape[-1] != features or strides > 1:
            x = self._conv_and_norm(x, features, 1, strides=strides, padding=0)
        return nn.relu(x + y)

    def _conv_and_norm(
        self, x: Array, features: int, window: int, *, strides: int = 1, padding: int = 1
    ) -> Array:
        """Apply a convolution without bias, then group normalisation."""
        sizes = {"strides": strides, "padding": padding}
        x = conv(x, features, window, self.convolution, self.dtype, bias=False, **sizes)
        return group_norm(x, 8, self.dtype)


@checked
def resnet20(
    num_classes: Count, *, convolution: Convolution = auto, dtype: Dtype | None = None
) -> ResNet:
    """Make a ResNet-20 for 32x32 images, with 1x1 convolutions as shortcuts.

    It has three stages of three blocks, with 16, 32 and 64 channels.

        assert resnet20(100).stages == (16, 32, 64)

    Args:
      num_classes: Number of logits.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs.

    Returns:
      The network.
    """
    return ResNet(num_classes, (16, 32, 64), 3, convolution=convolution, dtype=dtype)


@checked
def resnet18(
    num_classes: Count, *, convolution: Convolution = auto, dtype: Dtype | None = None
) -> ResNet:
    """Make a ResNet-18 for images of 64x64 or more, with the ImageNet stem.

    It has four stages of two blocks, with 64, 128, 256 and 512 channels.

    Args:
      num_classes: Number of logits.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs.

    Returns:
      The network.
    """
    return ResNet(
        num_classes, (64, 128, 256, 512), 2, "imagenet", convolution=convolution, dtype=dtype
    )
