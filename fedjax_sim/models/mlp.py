"""Networks of dense layers: logistic regression and multi-layer perceptrons.

Inputs with three or more axes are images `[..., H, W, C]` and are flattened; other inputs are flat
already, `[..., D]`. Outputs are logits `[..., num_classes]`. Weights and biases start as
U(+-1 / sqrt(fan-in)), the initialisation of QuAFL's public code, on which FAVANO (arXiv 2305.16099)
builds.

Letters: `H`, `W`, `C` height, width and channels of an image; `D` features of a flat input.
"""

import math
from collections.abc import Callable, Sequence

import jax
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.core.settings import Count, checked
from fedjax_sim.core.types import Array, Key
from fedjax_sim.kernels import products


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
