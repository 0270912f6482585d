"""Rounding with few bits, with straight-through gradients or of gradients.

Weights and activations are rounded on a uniform grid, with the range of SAWB (Choi et al. 2018,
arXiv 1807.06964) or of the largest magnitude. Rounded numbers are held in ordinary floats.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.kernels.linear import linear_with_transpose

SAWB = {3: (7.40, 6.66), 4: (12.1, 12.2)}
"""Coefficients (c_1, c_2) of SAWB's range by number of bits.

For other numbers of bits the range is the largest magnitude.
"""

LEVELS = ("reference", "strict")
"""Which levels b bits stand for.

"reference", as in LUQ's code: 2^b + 1 signed levels of a uniform grid, and for LUQ zero and 2^(b-1)
powers of two of either sign. That is one level more than b bits can hold.
"strict": levels that fit into b bits. The uniform grid lacks the largest positive level, and LUQ
has one power of two fewer.
"""


def uniform(
    x: Array, *, bits: int, scale: Array | float, signed: Array | bool, levels: str = "reference"
) -> Array:
    """Round to the nearest whole multiple of a step, and clamp to the range of the grid.

    Signed codes run from -2^(bits-1) to 2^(bits-1), or to one less if levels are "strict". Unsigned
    codes run from 0 to 2^bits - 1. The step is 2 * scale divided by the number of codes less one,
    so unsigned values reach 2 * scale.

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      scale: Half the width of the range, `f[]`.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x. They are computed in at least 32 bits.
    """
    low = jnp.where(signed, -(2 ** (bits - 1)), 0)
    high = jnp.where(signed, 2 ** (bits - 1) - (levels == "strict"), 2**bits - 1)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    step = 2 * jnp.asarray(scale, wide.dtype) / (high - low).astype(wide.dtype)
    code = jnp.clip(jnp.round(wide / jnp.where(step == 0, 1, step)), low, high)
    return (step * code).astype(x.dtype)


def max_abs(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid that reaches the largest magnitude.

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x.
    """
    return uniform(x, bits=bits, scale=_max_scale(x, signed), signed=signed, levels=levels)


def sawb(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid with SAWB's range.

    The grid clips at c = c_1 sqrt(mean(x^2)) - c_2 mean(|x|); unsigned values are clipped at 2 c,
    as in LUQ's code. With other than 3 or 4 bits, or if c is not above 0 (all values have about the
    same magnitude), the grid reaches the largest magnitude. Source: Choi et al. 2018 (arXiv
    1807.06964).

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x.
    """
    if bits not in SAWB:
        return max_abs(x, bits=bits, signed=signed, levels=levels)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    c_1, c_2 = SAWB[bits]
    clip = c_1 * jnp.sqrt(jnp.mean(jnp.square(wide))) - c_2 * jnp.mean(jnp.abs(wide))
    scale = jnp.where(clip <= 0, _max_scale(x, signed), clip)
    return uniform(x, bits=bits, scale=scale, signed=signed, levels=levels)


def _max_scale(x: Array, signed: Array | bool) -> Array:
    """Return the scale with which `uniform` reaches the largest magnitude."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.promote_types(x.dtype, "float32"))
    return jnp.where(signed, largest, largest / 2)


SCALES = {"sawb": sawb, "max": max_abs}
"""Uniform quantizers by the name of their range."""


def straight_through(quantizer: Callable[[Array], Array], x: Array) -> Array:
    """Quantize values and give the result the gradient of the identity.

    Args:
      quantizer: Any function of an array that keeps its shape.
      x: Values, floats `[...]`.

    Returns:
      `quantizer(x)`, to the last bit.
    """
    constant = jax.lax.stop_gradient(x)
    return quantizer(constant) + (x - constant)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def quantized_gradient(x: Array, key: Array, quantize: Callable[[Array, Array], Array]) -> Array:
    """Return x, and quantize its gradient on the way back.

    In forward mode the tangent is passed on as it is: this is the identity, and nothing is
    quantized.

    Args:
      x: Values, floats `[...]`.
      key: Key of the quantizer's random numbers.
      quantize: From the key and the gradient `[...]` to the quantized gradient, such as by
        `fedjax_sim.server.compression.luq`.

    Returns:
      x.
    """
    return x


@quantized_gradient.defjvp
def _quantized_gradient_jvp(
    quantize: Callable[[Array, Array], Array],
    inputs: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    x, key = inputs
    return x, linear_with_transpose(lambda _, tangent: tangent, quantize, key, tangents[0], like=x)
