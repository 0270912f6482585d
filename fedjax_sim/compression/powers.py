"""LUQ: powers of two of the largest magnitude."""

import math

import jax
import jax.numpy as jnp

from fedjax_sim.compression.base import Compressor, Rounding, divisor
from fedjax_sim.settings import count, fixed, struct
from fedjax_sim.types import Array, Key


@struct
class Luq(Compressor):
    """Logarithmic unbiased quantization (Chmiel et al. 2023, arXiv 2112.10769): powers of two of the largest magnitude, see `luq`.

    With a = 2^-top, omega is the larger of (sqrt(1 + (D - 1) a^2) - 1) / 2, of entries below a, and, unless top is 0, of
    (sqrt((1 + c)^2 + c / 2) - 1 - c) / 2 with c = (D - 1) / 2, which tends to 1/8, of entries between 1/2 and 1. The larger one is attained
    by one 1 among entries of a / (2 (1 + omega)) or of 3 / (4 (1 + omega)). Derived: the maximum of sum_j v(x_j) / ||x||^2 is the omega
    with (D - 1) max_x (v(x) - omega x^2) = omega.

    Bits: a float, and per entry ceil(log2(2 top + 3)), as 0 and two signs of top + 1 powers are told apart.
    """

    name: str = fixed("luq")

    top: int = count(
        6,
        "Powers below the largest magnitude: 6 fit into four bits, LUQ's own code has 7 for these.",
        least=0,
    )

    def around(self, magnitude: Array) -> Rounding:
        """Find the powers of two around."""
        return powers_around(magnitude, top=self.top)

    def omega(self, dim: int) -> float:
        """Compute the constant."""
        c = (dim - 1) / 2
        below = (math.sqrt(1 + (dim - 1) * 4.0**-self.top) - 1) / 2
        between = (math.sqrt((1 + c) ** 2 + c / 2) - 1 - c) / 2
        return max(below, between) if self.top else below

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits."""
        return word + dim * math.ceil(math.log2(2 * self.top + 3))


def luq(key: Key, g: Array, *, bits: int = 4, top: int | None = None) -> Array:
    """Round a tensor to powers of two of its largest magnitude, at random and without bias.

    With M = max |g| and a = M / 2^top, the levels are 0 and +-a 2^k, k = 0, ..., top. A value between two levels of its sign goes to one
    of them, so that its mean is itself; below a that is to 0 or +-a. g: any shape, of one scale; `vmap` gives each row a scale of its own.
    top: the reference code's 2^(bits - 1) - 1 if None, while 2^(bits - 1) - 2 is what a sign, a zero and the exponents leave room for.
    More bits reach smaller values but lay no levels in between: the error does not vanish. Returns the shape and dtype of g.
    """
    return Luq(top=2 ** (bits - 1) - 1 if top is None else top).apply(key, g)


def powers_around(magnitude: Array, *, top: int) -> Rounding:
    """Find the neighbours of magnitudes (any shape, one scale) among 0 and the largest one times 2^-top, ..., 1; in 32 bits."""
    largest = jnp.max(magnitude)
    share = (magnitude / divisor(largest)).astype("float32")
    # Smaller powers are no normal numbers of 32 bits.
    least = jnp.float32(2.0 ** -min(top, 126))
    # A float without its fraction bits is the power of two at or below it.
    power = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(share, "uint32") & jnp.uint32(0x7F800000), "float32"
    )
    return Rounding(largest, share, jnp.where(share < least, 0, power), jnp.maximum(power, least))
