"""Rounding to few bits: at random without bias, or on a uniform grid, and gradients through it.

Random rounding goes to the two neighbours of a number, here to powers of two. Weights and
activations of networks are rounded on a uniform grid, with the range of SAWB (Choi et al. 2018,
arXiv 1807.06964) or of the largest magnitude, with straight-through gradients. Rounded numbers are
held in ordinary floats.

Dimension letter: `D` entries of a vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import Limit, Whole
from fedjax_sim.core.types import Array, Key
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


class Rounding(NamedTuple):
    """The two neighbours between which each magnitude is rounded at random, without bias.

    The magnitude `unit * ratio` becomes `unit * below` or `unit * (below + gap)`.

    Attributes:
      unit: `f[D]` or a scalar, the scale.
      ratio: `f[D]`, magnitudes in units of the scale.
      below: `f[D]`, lower neighbours in units of the scale.
      gap: `f[D]`, distances to the upper neighbours in units of the scale.
    """

    unit: Array
    ratio: Array
    below: Array
    gap: Array


def rounded(key: Key, vector: Array, around: Callable[[Array], Rounding]) -> Array:
    """Round numbers `f[...]` at random, without bias.

    Args:
      key: Key of the draws.
      vector: The numbers.
      around: From their magnitudes, in at least 32 bits, to the neighbours of these.

    Returns:
      The rounded numbers, of the same shape and dtype.
    """
    wide = wide_of(vector)
    unit, ratio, below, gap = around(jnp.abs(wide))
    goes_up = jax.random.uniform(key, wide.shape, ratio.dtype) < (ratio - below) / gap
    return (jnp.sign(wide) * unit * (below + jnp.where(goes_up, gap, 0))).astype(vector.dtype)


def luq(
    key: Key,
    g: Array,
    *,
    bits: Annotated[int, Limit(least=1, most=32)] = 4,
    top: Whole | None = None,
) -> Array:
    """Round a tensor at random, without bias, to its largest magnitude times powers of two.

    With M = max |g| and a = M / 2^top, the levels are 0 and +-a 2^k for k = 0, ..., top. A value
    between two levels of its sign becomes one of them; a value below a in magnitude becomes 0 or
    +-a. More bits reach smaller values but add no levels in between, so the error does not vanish.

        powers = jnp.array([[4.0, -2.0], [1.0, 0.5]])
        assert (luq(key, powers, bits=4) == powers).all()

    Args:
      key: Key of the draws.
      g: `f[...]`, any shape, with one scale for all entries. `vmap` gives each row its own scale.
      bits: Bits per entry, from 1 to 32, which determine `top` if that is None.
      top: Number of powers of two below the largest magnitude. None takes 2^(bits - 1) - 1 like the
        reference code, although sign, zero and exponents leave room for 2^(bits - 1) - 2 only.

    Returns:
      The rounded tensor, of the shape and dtype of `g`.
    """
    top = 2 ** (bits - 1) - 1 if top is None else top
    return rounded(key, g, partial(powers_around, top=top))


def powers_around(magnitude: Array, *, top: int) -> Rounding:
    """Find the levels around each magnitude, among 0 and the largest one times 2^-top, ..., 1.

    Args:
      magnitude: `f[...]`, any shape, with one scale for all entries.
      top: Number of powers of two below the largest magnitude.

    Returns:
      The neighbours; ratios and neighbours are computed in 32 bits.
    """
    largest = jnp.max(magnitude)
    share = (magnitude / divisor(largest)).astype("float32")
    # Smaller powers are not normal 32-bit floats.
    least = jnp.float32(2.0 ** -min(top, 126))
    # Clearing the fraction bits of a float gives the power of two at or below it.
    bits = jax.lax.bitcast_convert_type(share, "uint32") & jnp.uint32(0x7F800000)
    power = jax.lax.bitcast_convert_type(bits, "float32")
    return Rounding(largest, share, jnp.where(share < least, 0, power), jnp.maximum(power, least))


def wide_of(vector: Array) -> Array:
    """Convert an array of floats `f[...]` to at least 32 bits per entry."""
    return vector.astype(jnp.promote_types(vector.dtype, "float32"))


def divisor(value: Array) -> Array:
    """Replace zeros in an array `f[...]` by 1, so that one can divide by the result."""
    return jnp.where(value == 0, 1, value)


def root(squares: Array) -> Array:
    """Take square roots of numbers `f[...]`, at least 0, with the derivative 0 at 0."""
    is_above = squares > 0
    return jnp.where(is_above, jnp.sqrt(jnp.where(is_above, squares, 1)), 0)


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
    wide = wide_of(x)
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
    wide = wide_of(x)
    c_1, c_2 = SAWB[bits]
    clip = c_1 * jnp.sqrt(jnp.mean(jnp.square(wide))) - c_2 * jnp.mean(jnp.abs(wide))
    scale = jnp.where(clip <= 0, _max_scale(x, signed), clip)
    return uniform(x, bits=bits, scale=scale, signed=signed, levels=levels)


def _max_scale(x: Array, signed: Array | bool) -> Array:
    """Return the scale with which `uniform` reaches the largest magnitude."""
    largest = wide_of(jnp.max(jnp.abs(x)))
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
