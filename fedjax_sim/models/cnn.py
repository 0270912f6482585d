"""Convolutional networks of the papers, for images `[B, H, W, C]` (or one, `[H, W, C]`).

`convolution` is any function with the arguments of `lax.conv_general_dilated`. A network with dropout takes `train`, during which it drops
by the "dropout" stream. Weights and biases start as U(+-1 / sqrt(fan-in)), PyTorch's default.
"""

from collections.abc import Callable

import jax
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.models import convolution
from fedjax_sim.models.mlp import dense, flatten
from fedjax_sim.types import Array, Key


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max-pooling: two 5x5 convolutions without padding, dense layers of 120 and 84 units.

    The CNN of delay-sensitive hierarchical FL: 62,006 parameters on 32x32x3 with 10 classes, 48,846 on 28x28x1 with 62 (the paper names
    neither channels nor padding; these are LeNet-5's).
    """

    num_classes: int
    convolution: Callable[..., Array] = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        for features in (6, 16):
            x = nn.relu(
                conv(
                    features,
                    5,
                    x,
                    convolution.pooled(self.convolution),
                    self.dtype,
                    padding="VALID",
                )
            )
        x = flatten(x)
        for features in (120, 84):
            x = nn.relu(dense(features, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


class DoubleConvNet(nn.Module):
    """Blocks of two 3x3 convolutions, each with ReLU and group normalisation, then pooling and dropout of channels; 128 dense units.

    The LeNet-type CNNs of FedStaleWeight's public code: 468,458 parameters with blocks (32, 64) on 28x28x1, 551,722 with (32, 64, 128) on
    32x32x3. Groups are of four channels. Of the dropouts the first has rate 0.3, all others 0.5.
    """

    num_classes: int
    blocks: tuple[int, ...] = (32, 64)
    convolution: Callable[..., Array] = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute the logits."""
        for i, features in enumerate(self.blocks):
            for _ in range(2):
                x = nn.relu(conv(features, 3, x, self.convolution, self.dtype))
                x = group_norm(x, 4, self.dtype)
            x = convolution.max_pool(x)
            x = nn.Dropout(
                0.3 if i == 0 else 0.5, broadcast_dims=(-3, -2), deterministic=not train
            )(x)
        x = flatten(x)
        x = nn.relu(dense(128, x.shape[-1], self.dtype)(x))
        x = group_norm(x, 4, self.dtype)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


class SmallCNN(nn.Module):
    """Two 3x3 convolutions without padding, of 32 and 64 channels, one pooling, 128 dense units: the CNN of pfl's CIFAR-10 benchmark.

    Without that benchmark's dropout.
    """

    num_classes: int
    convolution: Callable[..., Array] = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        for features in (32, 64):
            x = nn.relu(conv(features, 3, x, self.convolution, self.dtype, padding="VALID"))
        x = flatten(convolution.max_pool(x))
        x = nn.relu(dense(128, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


def conv(
    features: int,
    window: int,
    x: Array,
    by: Callable[..., Array],
    dtype: Dtype | None,
    *,
    strides: int = 1,
    padding: str | int = "SAME",
    bias: bool = True,
) -> Array:
    """Apply a new square convolution whose weights and biases start as U(+-1 / sqrt(fan-in))."""
    bound = (window**2 * x.shape[-1]) ** -0.5

    def initial(key: Key, shape: tuple[int, ...], param_dtype: Dtype) -> Array:
        return jax.random.uniform(key, shape, param_dtype, -bound, bound)

    return nn.Conv(
        features,
        (window, window),
        strides,
        padding,
        use_bias=bias,
        dtype=dtype,
        kernel_init=initial,
        bias_init=initial,
        conv_general_dilated=by,
    )(x)


def group_norm(x: Array, size: int, dtype: Dtype | None) -> Array:
    """Apply a new normalisation over groups of `size` channels, and over space in images, of each example by itself."""
    axes = (-3, -2, -1) if x.ndim >= 3 else (-1,)
    return nn.GroupNorm(
        num_groups=None, group_size=size, epsilon=1e-5, reduction_axes=axes, dtype=dtype
    )(x)
