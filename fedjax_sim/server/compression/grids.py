"""Quantizers: block-p-quantization, random dithering, stochastic rounding, and powers of two.

Dimension letters: `D` entries of a vector, `B` entries of its largest block. Lemmas, sections and
appendices without a source are those of Dieuleveut et al., FedEM, arXiv 2111.02083.
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import ConfigError, fixed, redefault, setting, struct
from fedjax_sim.core.settings.declared import Count, Limit, Whole, shape
from fedjax_sim.core.types import Array
from fedjax_sim.kernels.rounding import Rounding, divisor, powers_around
from fedjax_sim.server.compression.base import Compressor


def _is_norm(value: Any) -> bool:
    """Tell whether a value is the order of a norm."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


@struct
class Grid(Compressor):
    """The common base of the quantizers in this module.

    The vector is split into blocks. Each block is rounded at random to a grid of 0 and s levels of
    either sign, of which the largest is the block's r-norm:

        Q(x)_j = ||x||_r / s sign(x_j) floor(s |x_j| / ||x||_r + xi_j),  xi_j uniform on [0, 1)

    The variance is the sum over blocks of (||x||_r / s)^2 sum_j f_j (1 - f_j), where f_j is the
    fractional part of s |x_j| / ||x||_r.

    Omega for r < inf, with C = B^max(1/r, 1/2): C / s - 1 if s = 1 or s <= C / 2, otherwise
    (C / (2 s))^2. For r <= 2 a constant block attains the first value; apart from that, omega is an
    upper bound. For r = inf omega is (sqrt(1 + (B - 1) / s^2) - 1) / 2, attained by one entry s
    among entries of 1 / (1 + sqrt(1 + (B - 1) / s^2)). Derived: except for s = 1 and r = 2 the
    paper only says O(C / s). (Proof: as a function of w = (s x_j / ||x||_r)^2, f (1 - f) is at most
    the concave function that equals sqrt(w) - w up to w = 1/4, and 1/4 beyond. The mean of w is at
    least (s / C)^2.)

    Bits: a float per block; per entry a sign and ceil(log2(s + 1)) bits for the level.
    """

    norm: float = setting(
        2.0,
        "Order r of the norm that scales a block.",
        allowed="a number of at least 1, or inf",
        accepts=_is_norm,
        traced=False,
    )
    block: Whole = setting(
        0,
        "Entries of a block, B; the last block of a row may be shorter. 0 makes each row one "
        "block.",
    )
    row: Whole = setting(
        0,
        "Entries of a row, if the vector is a matrix stored row by row; no block extends over two "
        "rows. 0 makes the vector one row.",
    )

    @property
    def num_levels(self) -> Any:
        """Number of levels s, a whole number; traced if a setting that determines it is."""
        raise NotImplementedError

    def around(self, magnitude: Annotated[Array, shape("D")]) -> Rounding:
        """Find the neighbours of magnitudes `f[D]` on the grids of their blocks.

        Raises:
          ConfigError: If the magnitudes are not a vector, or rows do not divide it.
        """
        dim, size = magnitude.size, self._block(magnitude.size)
        rows = magnitude.reshape(-1, self._row(dim))
        blocks = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size))).reshape(len(rows), -1, size)
        norm = jnp.repeat(_norm(blocks, self.norm), size, axis=1)[:, : rows.shape[1]].reshape(dim)
        ratio = magnitude / divisor(norm) * self.num_levels
        return Rounding(norm / self.num_levels, ratio, jnp.floor(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute omega for vectors of `dim` entries.

        Raises:
          ConfigError: If rows do not divide the vector.
        """
        size, s = self._block(dim), self.num_levels
        if math.isinf(self.norm):
            return ((1 + (size - 1) / s**2) ** 0.5 - 1) / 2
        reach = size ** max(1 / self.norm, 1 / 2) / s
        is_coarse, below, above = (s == 1) | (reach >= 2), reach - 1, (reach / 2) ** 2
        return (
            jnp.where(is_coarse, below, above)
            if isinstance(s, jax.Array)
            else below
            if is_coarse
            else above
        )

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries.

        Raises:
          ConfigError: If rows do not divide the vector.
        """
        row = self._row(dim)
        num_blocks = dim // row * -(-row // self._block(dim))
        return word * num_blocks + dim * (1 + math.ceil(math.log2(self.num_levels + 1)))

    def _row(self, dim: int) -> int:
        """Find the length of a row."""
        if self.row and dim % self.row:
            raise ConfigError("row", self.row, f"a divisor of the {dim} entries of a vector")
        return self.row or dim

    def _block(self, dim: int) -> int:
        """Find the length of the largest block, B."""
        return min(self.block or dim, self._row(dim))


@struct
class Dithering(Grid):
    """Random dithering (Sec. 2; Alistarh et al. 2017, arXiv 1610.02132).

    `Grid` gives the formulas. By default the whole vector is one block.

        sent = Dithering(levels=4).apply(key, jnp.array([3.0, 4.0]))
        levels = sent / (5 / 4)  # a quarter of the norm is the distance of two levels
        assert jnp.allclose(levels, jnp.round(levels))
    """

    name: str = fixed("dithering")

    levels: Count = setting(4, "Number of levels above 0, s.", traced=True)

    @property
    def num_levels(self) -> Any:
        """Number of levels s."""
        return self.levels


@struct
class BlockQuantization(Grid):
    """Block-p-quantization (App. B; Mishchenko et al. 2019, arXiv 1901.09269).

    An entry becomes 0, or plus or minus its block's p-norm. This is `Grid` with one level and
    r = p. The variance is the sum over blocks of ||x||_1 ||x||_p - ||x||_2^2 (Lemma B).

    Omega is B^(1/p) - 1 for p <= 2, attained by a constant block, and (sqrt(B) - 1) / 2 for
    p = inf, attained by one entry 1 among entries of 1 / (1 + sqrt(B)). For 2 < p < inf it is the
    bound sqrt(B) - 1; the smallest constant is not known. So omega is 1 for p = 2 with blocks of 4,
    and for p = inf with blocks of 9.

    Bits: a float per block, and two bits per entry.

        sent = BlockQuantization(norm=2.0, block=4).apply(key, jnp.array([3.0, -4.0]))
        assert set(jnp.abs(sent).tolist()) <= {0.0, 5.0}  # the norm of the block
    """

    name: str = fixed("block")

    block: int = redefault(Grid, "block", 4)

    @property
    def num_levels(self) -> int:
        """Number of levels: one."""
        return 1


@struct
class StochasticRounding(Grid):
    """Stochastic rounding to signed integers of `width` bits.

    The largest magnitude of a block becomes 2^(width - 1) - 1. This is `Grid` with
    2^(width - 1) - 1 levels and r = inf. Bits: a float per block, and `width` bits per entry.

        on_the_grid = jnp.array([3.0, -1.0, 0.0])
        sent = StochasticRounding(width=3).apply(key, on_the_grid)  # levels up to 2^2 - 1
        assert (sent == on_the_grid).all()
    """

    name: str = fixed("rounding")

    norm: float = fixed(math.inf)
    width: Annotated[int, Limit(least=2, most=24)] = setting(
        8, "Bits of an entry, including its sign.", traced=True
    )

    @property
    def num_levels(self) -> Any:
        """Number of levels above 0."""
        levels = 2.0 ** (self.width - 1) - 1
        # A power of traced numbers is not exact.
        return jnp.round(levels) if isinstance(levels, jax.Array) else levels


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


def _norm(blocks: Array, order: float) -> Array:
    """Compute the norm of non-negative entries along the last axis.

    Entries are divided by the largest one first, whose square may overflow or underflow.
    """
    largest = jnp.max(blocks, axis=-1)
    if math.isinf(order):
        return largest
    share = blocks / divisor(largest)[..., None]
    if order == 2:
        return largest * jnp.sqrt(divisor(jnp.sum(jnp.square(share), axis=-1)))
    return largest * divisor(jnp.sum(share**order, axis=-1)) ** (1 / order)


KINDS = (BlockQuantization, Dithering, StochasticRounding)
"""Those on grids of equal steps."""
