"""Networks for images, flat inputs and text, and those that the command line knows by name.

Inputs with three or more axes are images `[..., H, W, C]`, which dense networks flatten; other
inputs are flat already, `[..., D]`. Outputs are logits `[..., num_classes]`. Weights and biases
start as U(+-1 / sqrt(fan-in)): PyTorch's default, and the initialisation of QuAFL's public code, on
which FAVANO (arXiv 2305.16099) builds. The field `convolution` of a network is any function with
the arguments of `lax.conv_general_dilated`. A network with dropout takes the argument `train`, and
in training the random stream "dropout".

Deviation: FAVANO's experiments (arXiv 2305.16099, App. C) presumably use residual networks (He et
al. 2016) with batch normalisation. FAVANO divides a client's progress by alpha, which extrapolates
its running statistics. Group normalisation (Wu and He 2018) has no statistics to send, and does not
mix the examples of a client's batch, so it is the default of `ResNet`, with groups of eight
channels; `norm="batch"` has batch normalisation.

Networks for text predict the character that follows each character. Their inputs are character
codes `i[..., L]`, their outputs logits `[..., L, num_classes]`; the logits at a position are those
of the next character. Recurrent networks start with flax's default weights, except in the output
layer, which starts as U(+-1 / sqrt(fan-in)). The transformer has flax's in every layer.

The small transformer normalises layers first, as GPT-2 does. With a rank, the projections of
queries and values have low-rank changes (LoRA, Hu et al. 2021, arXiv 2106.09685, Sec. 4.2,
W x + (alpha / r) B A x with alpha = r): A starts as a normal distribution and B as zero, so that
the network starts as the one without. To train the changes alone, start from parameters of the
network without rank and freeze all leaves but those whose paths contain "lora".

Letters: `B` images; `H`, `W`, `C` height, width and channels of an image; `D` features of a flat
input; `L` characters in a sequence. In the transformer, `W` is the width and `H` the heads.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.core.settings import Count, Named, OneOf, Whole, checked
from fedjax_sim.core.types import Array, Key
from fedjax_sim.kernels import products
from fedjax_sim.kernels.convolution import Convolution, auto, max_pool, pooled

CELLS = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}
"""Recurrent cells by name."""


@checked
class LogisticRegression(nn.Module):
    """One dense layer.

    Attributes:
      num_classes: Number of logits.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of inputs `[..., H, W, C]` or `[..., D]`."""
        x = flatten(x)
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


@checked
class MLP(nn.Module):
    """Dense layers with ReLU between them. Without hidden layers this is logistic regression.

        network = MLP(hidden=(32, 32), num_classes=10)

    Attributes:
      hidden: Number of units of each hidden layer.
      num_classes: Number of logits.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    hidden: tuple[Count, ...]
    num_classes: Count
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of inputs `[..., H, W, C]` or `[..., D]`."""
        x = flatten(x)
        for features in self.hidden:
            x = nn.relu(dense(features, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


def flatten(x: Array) -> Array:
    """Flatten images.

    Args:
      x: Images `[..., H, W, C]`, or flat inputs with one or two axes, which stay as they are.

    Returns:
      Flat inputs `[..., H * W * C]`.
    """
    return x if x.ndim < 3 else x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))


def uniform(fan_in: int) -> Callable[[Key, Sequence[int], Dtype], Array]:
    """Make an initialisation that draws from U(+-1 / sqrt(fan_in)).

    Args:
      fan_in: Number of inputs of an output.
    """
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def dense(features: int, fan_in: int, dtype: Dtype | None) -> nn.Dense:
    """Make a dense layer with weights and biases from U(+-1 / sqrt(fan_in)).

    Args:
      features: Number of outputs.
      fan_in: Number of inputs.
      dtype: Type of the computation, by default that of the inputs.

    Returns:
      The layer, from `[..., fan_in]` to `[..., features]`.
    """
    initial = uniform(fan_in)
    return nn.Dense(
        features, dtype=dtype, kernel_init=initial, bias_init=initial, dot_general=products.auto
    )


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
    convolution: Convolution = auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        convolve_and_pool = pooled(self.convolution)
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
    convolution: Convolution = auto
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
            x = max_pool(x)
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
    convolution: Convolution = auto
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        for features in (32, 64):
            x = nn.relu(conv(x, features, 3, self.convolution, self.dtype, padding="VALID"))
        x = flatten(max_pool(x))
        x = nn.relu(dense(128, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


class BatchNorm(nn.Module):
    """Normalisation over a mini-batch, with running statistics as PyTorch's `BatchNorm2d` has them.

    Training normalises by the mini-batch's mean and biased variance. The running mean and the
    running *unbiased* variance move by a tenth of the way to the mini-batch's (PyTorch's momentum
    0.1, flax's 0.9, but flax averages biased variances), and evaluations normalise by these. They
    are averaged over clients like weights. Progress that FAVANO divides by alpha may lead below a
    variance of 0, which counts as 0.

    Attributes:
      dtype: Type of the result, by default that of the inputs. Statistics are float32.
    """

    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Normalise `[..., C]` over all axes but the last."""
        size, axes = x.shape[-1:], tuple(range(x.ndim - 1))
        scale = self.param("scale", nn.initializers.ones, size)
        bias = self.param("bias", nn.initializers.zeros, size)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, size, "float32")
        running_var = self.variable("batch_stats", "var", jnp.ones, size, "float32")
        mean, var = running_mean.value, jnp.maximum(running_var.value, 0)
        wide = x.astype(jnp.promote_types(x.dtype, "float32"))
        if train:
            mean, var = wide.mean(axes), wide.var(axes)
            count = wide.size // size[0]
            unbiased = var * (count / max(1, count - 1))
            if not self.is_initializing() and self.is_mutable_collection("batch_stats"):
                for variable, value in ((running_mean, mean), (running_var, unbiased)):
                    variable.value += 0.1 * (value - variable.value)
        factor = jax.lax.rsqrt(var + 1e-5) * scale
        mean, factor, bias = (jnp.expand_dims(each, axes) for each in (mean, factor, bias))
        normal = (wide - mean) * factor + bias
        return normal.astype(self.dtype or x.dtype)


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
      norm: "group" or "batch" normalisation, see `BatchNorm`.
      convolution: How to convolve.
      dtype: Type of the computation, by default that of the inputs. Parameters are float32.
    """

    num_classes: Count
    stages: tuple[Count, ...]
    blocks: Count
    stem: Annotated[str, OneOf(("cifar", "imagenet"))] = "cifar"
    convolution: Convolution = auto
    dtype: Dtype | None = None
    norm: Annotated[str, OneOf(("group", "batch"))] = "group"

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`.

        train: whether this is a local step, in which batch normalisation differs.
        """
        if self.stem == "imagenet":
            x = nn.relu(self._conv_and_norm(train, x, self.stages[0], 7, strides=2, padding=3))
            x = max_pool(x, 3, stride=2, pad=1)
        else:
            x = nn.relu(self._conv_and_norm(train, x, self.stages[0], 3))
        for i, features in enumerate(self.stages):
            for j in range(self.blocks):
                x = self._block(train, x, features, strides=2 if i > 0 and j == 0 else 1)
        x = x.mean((-3, -2))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)

    def _block(self, train: bool, x: Array, features: int, strides: int) -> Array:
        """Apply a basic block; the shortcut has a 1x1 convolution if the shape changes."""
        y = nn.relu(self._conv_and_norm(train, x, features, 3, strides=strides))
        y = self._conv_and_norm(train, y, features, 3)
        if x.shape[-1] != features or strides > 1:
            x = self._conv_and_norm(train, x, features, 1, strides=strides, padding=0)
        return nn.relu(x + y)

    def _conv_and_norm(
        self, train: bool, x: Array, features: int, window: int, **sizes: int
    ) -> Array:
        """Apply a convolution without bias, then the normalisation."""
        sizes = {"padding": 1} | sizes
        x = conv(x, features, window, self.convolution, self.dtype, bias=False, **sizes)
        if self.norm == "batch":
            return BatchNorm(self.dtype)(x, train=train)
        return group_norm(x, 8, self.dtype)


@checked
def resnet20(
    num_classes: Count,
    convolution: Convolution = auto,
    *,
    norm: Annotated[str, OneOf(("group", "batch"))] = "group",
    dtype: Dtype | None = None,
) -> ResNet:
    """Make a ResNet-20 for 32x32 images, with 1x1 convolutions as shortcuts.

    It has three stages of three blocks, with 16, 32 and 64 channels.

        assert resnet20(100, norm="batch").stages == (16, 32, 64)

    Args:
      num_classes: Number of logits.
      convolution, norm, dtype: As in `ResNet`.

    Returns:
      The network.
    """
    return ResNet(num_classes, (16, 32, 64), 3, "cifar", convolution, dtype, norm)


@checked
def resnet18(
    num_classes: Count,
    convolution: Convolution = auto,
    *,
    norm: Annotated[str, OneOf(("group", "batch"))] = "group",
    dtype: Dtype | None = None,
) -> ResNet:
    """Make a ResNet-18 for images of 64x64 or more, with the ImageNet stem.

    It has four stages of two blocks, with 64, 128, 256 and 512 channels.

    Args:
      num_classes: Number of logits.
      convolution, norm, dtype: As in `ResNet`.

    Returns:
      The network.
    """
    return ResNet(num_classes, (64, 128, 256, 512), 2, "imagenet", convolution, dtype, norm)


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
    initial = uniform(window**2 * x.shape[-1])
    layer = partial(nn.Conv, kernel_init=initial, bias_init=initial, conv_general_dilated=convolve)
    return layer(features, (window, window), strides, padding, use_bias=bias, dtype=dtype)(x)


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


@checked
class CharacterRNN(nn.Module):
    """An embedding, layers of LSTM or GRU cells, and a dense layer.

    The default is the network of Reddi et al. (arXiv 2003.00295) for Shakespeare, which
    hierarchical FL uses too: 820,522 parameters with 90 codes.

        network, codes = CharacterRNN(90), jnp.zeros((1, 20), "int32")
        params = jax.eval_shape(network.init, key, codes)
        assert jax.eval_shape(network.apply, params, codes).shape == (1, 20, 90)

    Attributes:
      num_classes: Number of character codes.
      embedding: Dimension of the embedding.
      hidden: Number of cells of each recurrent layer.
      cell: A name in `CELLS`.
      dtype: Type of the computation, by default float32. Parameters are float32.
    """

    num_classes: Count
    embedding: Count = 8
    hidden: tuple[Count, ...] = (256, 256)
    cell: Annotated[str, OneOf(tuple(CELLS))] = "lstm"
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., L, num_classes]` of character codes `i[..., L]`."""
        y = nn.Embed(self.num_classes, self.embedding, dtype=self.dtype)(x)
        for features in self.hidden:
            y = nn.RNN(CELLS[self.cell](features, dtype=self.dtype))(y)
        return dense(self.num_classes, y.shape[-1], self.dtype)(y)


@checked
class CharacterTransformer(nn.Module):
    """Embeddings of characters and places, blocks of attention and dense layers, and logits.

        network, codes = CharacterTransformer(90, width=16, blocks=1), jnp.zeros((1, 20), "int32")
        params = jax.eval_shape(network.init, key, codes)
        assert jax.eval_shape(network.apply, params, codes).shape == (1, 20, 90)

    Attributes:
      num_classes: Number of character codes.
      width: Numbers that stand for a character, W; a multiple of the heads.
      blocks: Number of blocks.
      heads: Heads of attention in each, H.
      longest: Longest sequence.
      rank: Rank of the low-rank changes; 0 for none.
    """

    num_classes: Count
    width: Count = 64
    blocks: Count = 2
    heads: Count = 4
    longest: Count = 128
    rank: Whole = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., L, num_classes]` of character codes `i[..., L]`."""
        places = self.param("places", nn.initializers.normal(0.02), (self.longest, self.width))
        shape = (1,) * (x.ndim - 1) + (x.shape[-1], self.width)
        y = nn.Embed(self.num_classes, self.width)(x) + places[: x.shape[-1]].reshape(shape)
        for i in range(self.blocks):
            y = y + Attention(self.heads, self.rank, name=f"attention_{i}")(nn.LayerNorm()(y))
            wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(y)))
            y = y + nn.Dense(self.width)(wide)
        return nn.Dense(self.num_classes)(nn.LayerNorm()(y))


class Attention(nn.Module):
    """Causal attention: every place sees itself and those before it.

    Attributes:
      heads: Number of heads, H.
      rank: Rank of the changes to the projections of queries and values; 0 for none.
    """

    heads: int
    rank: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute `[..., L, W]` of the same shape."""
        length, width = x.shape[-2:]
        split = (*x.shape[:-1], self.heads, width // self.heads)
        query, key, value = (
            Adapted(width, rank, name=name)(x).reshape(split)
            for name, rank in (("query", self.rank), ("key", 0), ("value", self.rank))
        )
        is_seen = jnp.tril(jnp.ones((length, length), bool))
        is_seen = is_seen.reshape((1,) * (x.ndim - 1) + is_seen.shape)
        mixed = nn.dot_product_attention(query, key, value, mask=is_seen)
        return nn.Dense(width, name="out")(mixed.reshape(x.shape))


class Adapted(nn.Module):
    """A dense layer with a low-rank change.

    Attributes:
      features: Number of outputs.
      rank: Rank of the change; 0 for none.
    """

    features: int
    rank: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute `[..., features]` of inputs `[..., W]`."""
        y = nn.Dense(self.features, name="dense")(x)
        if self.rank == 0:
            return y
        down = self.param("lora_a", nn.initializers.normal(0.02), (x.shape[-1], self.rank))
        up = self.param("lora_b", nn.initializers.zeros, (self.rank, self.features))
        return y + (x @ down) @ up


class Entry(NamedTuple):
    """A network that the command line lists.

    Attributes:
      summary: Description of one line.
      make: Makes the network from the number of classes and a convolution. Networks without
        convolutions ignore the second argument.
      has_convolutions: Whether it has some.
    """

    summary: str
    make: Callable[[int, Convolution], nn.Module]
    has_convolutions: bool = True


def _plain(summary: str, make: Callable[[int], nn.Module]) -> Entry:
    """Enter a network without convolutions."""
    return Entry(summary, lambda num_classes, _: make(num_classes), has_convolutions=False)


MODELS: Named[Entry] = Named(
    "model",
    {
        "logistic": _plain("logistic regression", LogisticRegression),
        "mlp32": _plain(
            "perceptron with 32 hidden units, FAVANO's network for MNIST", partial(MLP, (32,))
        ),
        "mlp50": _plain(
            "perceptron with 50 hidden units, hierarchical FL's network for MNIST",
            partial(MLP, (50,)),
        ),
        "mlp128": _plain("perceptron with 128 hidden units", partial(MLP, (128,))),
        "lenet": Entry("LeNet-5, the CNN of hierarchical FL", LeNet),
        "cnn2": Entry(
            "two double-convolution blocks, FedStaleWeight's CNN for 28x28",
            lambda num_classes, convolution: DoubleConvNet(num_classes, (32, 64), convolution),
        ),
        "cnn3": Entry(
            "three double-convolution blocks, FedStaleWeight's CNN for 32x32",
            lambda num_classes, convolution: DoubleConvNet(num_classes, (32, 64, 128), convolution),
        ),
        "cnn_small": Entry("two convolutions and one pooling, as in pfl's benchmark", SmallCNN),
        "resnet20": Entry("ResNet-20 with group normalisation, for 32x32", resnet20),
        "resnet18": Entry("ResNet-18 with group normalisation, for 64x64", resnet18),
        "char_lstm": _plain("two layers of 256 LSTM cells over characters, for text", CharacterRNN),
        "char_gru": _plain(
            "two layers of 256 GRU cells over characters, for text",
            partial(CharacterRNN, cell="gru"),
        ),
    },
)
"""The networks that the command line lists."""
