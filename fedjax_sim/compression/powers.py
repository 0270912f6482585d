"""Logarithmic unbiased quantization: round to 0 or to powers of two times a common scale.

The scale is the largest magnitude, and the powers are 1, 1/2, 1/4 and so on.

Dimension letter: `D` entries of a vector.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_sim.checking import Limit, Whole
from fedjax_sim.compression.base import Compressor, Rounding, divisor
from fedjax_sim.settings import fixed, setting, struct
from fedjax_sim.types import Array, Key


@struct
class Luq(Compressor):
    """Logarithmic unbiased quantization, LUQ (Chmiel et al. 2023, arXiv 2112.10769).

    Entries are rounded at random to the largest magnitude times powers of two; `luq` gives details.

    With a = 2^-top, omega is the larger of two values. The first, for entries below a, is
    (sqrt(1 + (D - 1) a^2) - 1) / 2, attained by one entry 1 among entries of a / (2 (1 + omega)).
    The second, for entries between 1/2 and 1 and unless top is 0, is
    (sqrt((1 + c)^2 + c / 2) - 1 - c) / 2 with c = (D - 1) / 2. It is attained by one entry 1 among
    entries of 3 / (4 (1 + omega)), and tends to 1/8. Derived: the maximum of
    sum_j v(x_j) / ||x||^2 is the omega with (D - 1) max_x (v(x) - omega x^2) = omega.

    Bits: a float per message, and ceil(log2(2 top + 3)) bits per entry, to tell apart 0 and top + 1
    powers of either sign.

        powers = jnp.array([4.0, -2.0, 1.0])
        assert (Luq(top=6).apply(key, powers) == powers).all()
    """

    name: str = fixed("luq")

    top: Whole = setting(
        6,
        "Number of powers of two below the largest magnitude. 6 is the most that fits into four "
        "bits per entry; LUQ's reference code uses 7 for four bits.",
    )

    def around(self, magnitude: Array) -> Rounding:
        """Find the levels around magnitudes `f[...]` of one scale."""
        return powers_around(magnitude, top=self.top)

    def omega(self, dim: int) -> float:
        """Compute omega for vectors of `dim` entries."""
        c = (dim - 1) / 2
        below = (math.sqrt(1 + (dim - 1) * 4.0**-self.top) - 1) / 2
        between = (math.sqrt((1 + c) ** 2 + c / 2) - 1 - c) / 2
        return max(below, between) if self.top else below

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries."""
        return word + dim * math.ceil(math.log2(2 * self.top + 3))


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
    return Luq(top=2 ** (bits - 1) - 1 if top is None else top).apply(key, g)


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
