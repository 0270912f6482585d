"""Convolutional networks of the papers, for images `[B, H, W, C]` or one image `[H, W, C]`.

The field `convolution` of a network is any function with the arguments of
`lax.conv_general_dilated`. A network with dropout takes the argument `train`, and in training the
random stream "dropout". Weights and biases start as U(+-1 / sqrt(fan-in)), PyTorch's default.

Letters: `B` images; `H`, `W`, `C` height, width and channels of an image.
"""

import jax
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.checking import Count, checked
from fedjax_sim.models import convolution
from fedjax_sim.models.convolution import Convolution
from fedjax_sim.models.mlp import dense, flatten
from fedjax_sim.types import Array, Key


@checked
class LeNet(nn.Module):
    """LeNet-5 with ReLU and max-pooling, the CNN of delay-sensitive hierarchical FL.

    It has two 5x5 convolutions without padding, and dense layers of 120 and 84 units: 62,006
    parameters on 32x32x3 with 10 classes, 48,846 on 28x28x1 with 62 classes. The paper states
    neither the channels nor the padding; these are LeNet-5's.

        params = jax.eval_shape(LeNet(10).init, key, jnp.zeros((1, 32, 32, 3)))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 62_006

    Attributes:
      num_classes: Number of logits.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    convolution: Convolution = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        convolve_and_pool = convolution.pooled(self.convolution)
        for features in (6, 16):
            x = nn.relu(conv(x, features, 5, convolve_and_pool, self.dtype, padding="VALID"))
        x = flatten(x)
        for features in (120, 84):
            x = nn.relu(dense(features, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


@checked
class DoubleConvNet(nn.Module):
    """The LeNet-type CNNs of FedStaleWeight's public code.

    A block has two 3x3 convolutions, each with ReLU and group normalisation, then pooling and
    dropout of whole channels. A dense layer of 128 units follows. There are 468,458 parameters with
    blocks (32, 64) on 28x28x1, and 551,722 with blocks (32, 64, 128) on 32x32x3. Groups have four
    channels. The first dropout has rate 0.3, all others 0.5.

        for_cifar = DoubleConvNet(10, blocks=(32, 64, 128))

    Attributes:
      num_classes: Number of logits.
      blocks: Number of channels of each block.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    blocks: tuple[Count, ...] = (32, 64)
    convolution: Convolution = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`.

        Args:
          x: Images.
          train: Whether to drop channels and units, by the random stream "dropout".
        """
        for i, features in enumerate(self.blocks):
            for _ in range(2):
                x = nn.relu(conv(x, features, 3, self.convolution, self.dtype))
                x = group_norm(x, 4, self.dtype)
            x = convolution.max_pool(x)
            rate = 0.3 if i == 0 else 0.5
            x = nn.Dropout(rate, broadcast_dims=(-3, -2), deterministic=not train)(x)
        x = flatten(x)
        x = nn.relu(dense(128, x.shape[-1], self.dtype)(x))
        x = group_norm(x, 4, self.dtype)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


@checked
class SmallCNN(nn.Module):
    """The CNN of pfl's CIFAR-10 benchmark, without its dropout.

    It has two 3x3 convolutions without padding, of 32 and 64 channels, one pooling, and a dense
    layer of 128 units.

    Attributes:
      num_classes: Number of logits.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    convolution: Convolution = convolution.auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        for features in (32, 64):
            x = nn.relu(conv(x, features, 3, self.convolution, self.dtype, padding="VALID"))
        x = flatten(convolution.max_pool(x))
        x = nn.relu(dense(128, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


def conv(
    x: Array,
    features: int,
    window: int,
    convolve: Convolution,
    dtype: Dtype | None,
    *,
    strides: int = 1,
    padding: str | int = "SAME",
    bias: bool = True,
) -> Array:
    """Apply a new square convolution with weights and biases from U(+-1 / sqrt(fan-in)).

    Call it inside a compact method of a flax module, to which it adds the layer.

    Args:
      x: Images `[..., H, W, C]`.
      features: Number of output channels.
      window: Height and width of the window.
      convolve: How to convolve.
      dtype: Type of the computation, by default that of the inputs.
      strides: Stride along both axes.
      padding: "SAME", "VALID", or the number of zeros on each side.
      bias: Whether to add a bias.

    Returns:
      Images with `features` channels.
    """
    bound = (window**2 * x.shape[-1]) ** -0.5

    def initial(key: Key, shape: tuple[Count, ...], param_dtype: Dtype) -> Array:
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
        conv_general_dilated=convolve,
    )(x)


def group_norm(x: Array, size: int, dtype: Dtype | None) -> Array:
    """Apply a new normalisation over groups of channels, separately for each example.

    Call it inside a compact method of a flax module, to which it adds the layer.

    Args:
      x: Images `[..., H, W, C]`, normalised over space too, or flat examples `[..., D]`.
      size: Number of channels in a group.
      dtype: Type of the computation, by default that of the inputs.

    Returns:
      The normalised examples, of the shape of x.
    """
    axes = (-3, -2, -1) if x.ndim >= 3 else (-1,)
    return nn.GroupNorm(
        num_groups=None, group_size=size, epsilon=1e-5, reduction_axes=axes, dtype=dtype
    )(x)
