"""Networks of dense layers: logistic regression and multi-layer perceptrons.

Inputs of three axes or more are images, `[..., H, W, C]`, and are flattened; others are flat already, `[..., D]`. Outputs are
logits `[..., num_classes]`. Weights and biases start as U(+-1 / sqrt(fan-in)), the public QuAFL code's initialisation, which FAVANO
(arXiv 2305.16099) builds on. `dtype` is that of the computation, by default the inputs'; parameters are float32.
"""

import jax
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.models import products
from fedjax_sim.types import Array, Key


class LogisticRegression(nn.Module):
    """One dense layer."""

    num_classes: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        x = flatten(x)
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


class MLP(nn.Module):
    """Dense layers with ReLU between them; without hidden layers this is logistic regression."""

    hidden: tuple[int, ...]
    num_classes: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        x = flatten(x)
        for features in self.hidden:
            x = nn.relu(dense(features, x.shape[-1], self.dtype)(x))
        return dense(self.num_classes, x.shape[-1], self.dtype)(x)


def flatten(x: Array) -> Array:
    """Turn images `[..., H, W, C]` into `[..., H * W * C]`; inputs of one or two axes are flat already."""
    return x if x.ndim < 3 else x.reshape(*x.shape[:-3], -1)


def dense(features: int, fan_in: int, dtype: Dtype | None) -> nn.Dense:
    """Make a dense layer whose weights and biases start as U(+-1 / sqrt(fan_in))."""
    bound = fan_in**-0.5

    def initial(key: Key, shape: tuple[int, ...], param_dtype: Dtype) -> Array:
        return jax.random.uniform(key, shape, param_dtype, -bound, bound)

    return nn.Dense(
        features, dtype=dtype, kernel_init=initial, bias_init=initial, dot_general=products.auto
    )
