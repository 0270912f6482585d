"""The networks in plain JAX, as one writes them by hand. Models are lists of arrays."""

from typing import Any

import jax
import jax.numpy as jnp


def logits(
    params: Any, x: Any, convolutions: int, convolve: Any = jax.lax.conv_general_dilated
) -> Any:
    """Compute logits `f[B, K]` of images `f[B, H, W, C]`.

    Args:
      params: Kernel and bias of each layer in turn.
      x: The images.
      convolutions: Number of layers that are 3x3 convolutions, which one pooling follows.
      convolve: What convolves, with the arguments of `jax.lax.conv_general_dilated`.
    """
    layers = list(zip(params[::2], params[1::2], strict=True))
    for kernel, bias in layers[:convolutions]:
        x = convolve(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + bias)
    if convolutions:
        batch, height, width, channels = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))
    x = x.reshape(x.shape[0], -1)
    for kernel, bias in layers[convolutions:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = layers[-1]
    return x @ kernel + bias


def mean_cross_entropy(scores: Any, labels: Any) -> Any:
    """Compute the mean cross-entropy of logits `f[B, K]` and classes `i32[B]`."""
    at_labels = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(scores, axis=1) - at_labels).mean()
