"""Residual networks (He et al. 2016) with group normalisation, for images `[B, H, W, C]` (or one, `[H, W, C]`).

Deviation: FAVANO's experiments (arXiv 2305.16099, App. C) presumably have batch normalisation, whose running statistics no reweighting
may touch: dividing their progress by alpha extrapolates them, and can make variances negative. Group normalisation (Wu and He 2018) has
no statistics to send, and does not mix the examples of a client's batch; groups are of eight channels.
"""

from collections.abc import Callable

from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.models import convolution
from fedjax_sim.models.cnn import conv, group_norm
from fedjax_sim.models.mlp import dense
from fedjax_sim.types import Array


class ResNet(nn.Module):
    """A stem, then stages of basic blocks (two 3x3 convolutions), each stage but the first at half the resolution; global mean, logits."""

    num_classes: int
    stages: tuple[int, ...]
    """Channels of each stage."""
    blocks: int
    """Blocks in each stage."""
    stem: str = "cifar"
    """"cifar": a 3x3 convolution; "imagenet": a 7x7 one with stride 2 and 3x3 pooling with stride 2."""
    convolution: Callable[..., Array] = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        if self.stem == "imagenet":
            x = conv(
                self.stages[0], 7, x, self.convolution, self.dtype, strides=2, padding=3, bias=False
            )
            x = convolution.max_pool(nn.relu(group_norm(x, 8, self.dtype)), 3, stride=2, pad=1)
        else:
            x = nn.relu(
                group_norm(
                    conv(self.stages[0], 3, x, self.convolution, self.dtype, padding=1, bias=False),
                    8,
                    self.dtype,
                )
            )
        for i, features in enumerate(self.stages):
            for j in range(self.blocks):
                x = self._block(x, features, strides=2 if i > 0 and j == 0 else 1)
        x = x.mean((-3, -2))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)

    def _block(self, x: Array, features: int, strides: int) -> Array:
        y = conv(
            features, 3, x, self.convolution, self.dtype, strides=strides, padding=1, bias=False
        )
        y = conv(
            features,
            3,
            nn.relu(group_norm(y, 8, self.dtype)),
            self.convolution,
            self.dtype,
            padding=1,
            bias=False,
        )
        y = group_norm(y, 8, self.dtype)
        if x.shape[-1] != features or strides > 1:
            x = group_norm(
                conv(
                    features,
                    1,
                    x,
                    self.convolution,
                    self.dtype,
                    strides=strides,
                    padding=0,
                    bias=False,
                ),
                8,
                self.dtype,
            )
        return nn.relu(x + y)


def resnet20(num_classes: int, **options: object) -> ResNet:
    """ResNet-20 for 32x32 images: three stages of three blocks of 16, 32 and 64 channels, with 1x1 convolutions as shortcuts."""
    return ResNet(num_classes, (16, 32, 64), 3, **options)  # type: ignore[arg-type]


def resnet18(num_classes: int, **options: object) -> ResNet:
    """ResNet-18 for images of 64x64 or more: the ImageNet stem, four stages of two blocks of 64, 128, 256 and 512 channels."""
    return ResNet(num_classes, (64, 128, 256, 512), 2, stem="imagenet", **options)  # type: ignore[arg-type]
