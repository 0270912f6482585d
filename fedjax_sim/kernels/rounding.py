"""Random rounding without bias, to the two neighbours of a number: here to powers of two.

What this file has is arithmetic alone, for compressors and for networks of few bits.

Dimension letter: `D` entries of a vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import Limit, Whole
from fedjax_sim.core.types import Array, Key


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
    power = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(share, "uint32") & jnp.uint32(0x7F800000), "float32"
    )
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
