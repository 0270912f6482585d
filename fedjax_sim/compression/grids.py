"""Quantizers on grids: block-p-quantization, random dithering, stochastic rounding."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.compression.base import Compressor, Rounding, check_whole, divisor
from fedjax_sim.settings import ConfigError, count, fixed, real, redefault, static, struct
from fedjax_sim.types import Array


def _is_norm(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


@struct
class Grid(Compressor):
    """Blocks, each rounded at random on a grid of its own: s levels up to its r-norm, and 0. The parent of those below.

        Q(x)_j = ||x||_r / s sign(x_j) floor(s |x_j| / ||x||_r + xi_j),  xi_j uniform on [0, 1)

    The variance is the sum over blocks of (||x||_r / s)^2 sum_j f_j (1 - f_j), f_j the fractional part of s |x_j| / ||x||_r.

    Omega, with C = B^max(1/r, 1/2): C / s - 1 if s = 1 or s <= C / 2, else (C / 2 s)^2. For r <= 2 a constant block attains the first. For
    r = inf it is (sqrt(1 + (B - 1) / s^2) - 1) / 2, attained by one s among entries of 1 / (1 + sqrt(1 + (B - 1) / s^2)). Otherwise omega
    is an upper bound. Derived: for other than s = 1 and r = 2 the paper says O(C / s). (For f (1 - f) is at most sqrt(w) - w up to
    w = 1/4, then 1/4, a concave function of w = (s x_j / ||x||_r)^2, whose mean is at least (s / C)^2.)

    Bits: per block a float; per entry a sign and ceil(log2(s + 1)) of the level.
    """

    norm: float = static(2.0, "a number of at least 1, or inf", _is_norm, float, meaning="r.")
    block: int = count(
        0,
        "B, the entries of a block; the last one of a row may be shorter. 0: a row is one block.",
        least=0,
    )
    row: int = count(
        0,
        "Entries of a row, if the vector is a matrix row by row: blocks do not reach from one into the next. 0: it is one row.",
        least=0,
    )

    @property
    def num_levels(self) -> Any:
        """S, a whole number; traced if it follows from a traced one."""
        raise NotImplementedError

    def around(self, magnitude: Array) -> Rounding:
        """Find the neighbours on the blocks' grids."""
        dim, size = magnitude.size, self._block(magnitude.size)
        rows = magnitude.reshape(-1, self._row(dim))
        blocks = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size))).reshape(len(rows), -1, size)
        norm = jnp.repeat(_norm(blocks, self.norm), size, axis=1)[:, : rows.shape[1]].reshape(dim)
        ratio = magnitude / divisor(norm) * self.num_levels
        return Rounding(norm / self.num_levels, ratio, jnp.floor(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant; the row's length must divide dim."""
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
        """Count the bits; the row's length must divide dim."""
        row = self._row(dim)
        num_blocks = dim // row * -(-row // self._block(dim))
        return word * num_blocks + dim * (1 + math.ceil(math.log2(self.num_levels + 1)))

    def _row(self, dim: int) -> int:
        if self.row and dim % self.row:
            raise ConfigError("row", self.row, f"a divisor of the {dim} entries of a vector")
        return self.row or dim

    def _block(self, dim: int) -> int:
        return min(self.block or dim, self._row(dim))


@struct
class Dithering(Grid):
    """Random dithering (Sec. 2; Alistarh et al. 2017, arXiv 1610.02132), see `Grid`; by default the whole vector is one block."""

    name: str = fixed("dithering")

    levels: Any = real(4.0, "S, a whole number.", least=1)

    def check_together(self) -> None:
        check_whole("levels", self.levels)

    @property
    def num_levels(self) -> Any:
        """S."""
        return self.levels


@struct
class BlockQuantization(Grid):
    """Block-p-quantization (App. B; Mishchenko et al. 2019, arXiv 1901.09269): an entry becomes 0 or plus or minus its block's p-norm.

    That is `Grid` with one level. The variance is the sum over blocks of ||x||_1 ||x||_p - ||x||_2^2 (Lemma B). Omega is B^(1/p) - 1
    for p <= 2, attained by a constant block; (sqrt(B) - 1) / 2 for p = inf, attained by one 1 among entries of 1 / (1 + sqrt(B)); between
    these, where the least is not known, sqrt(B) - 1. So it is 1 for p = 2 and blocks of 4, and for p = inf and blocks of 9.

    Bits: per block a float, per entry two.
    """

    name: str = fixed("block")

    block: int = redefault(Grid, "block", 4)

    @property
    def num_levels(self) -> int:
        """One."""
        return 1


@struct
class StochasticRounding(Grid):
    """Stochastic rounding to signed integers of `width` bits, the largest magnitude of a block being 2^(width - 1) - 1.

    That is `Grid` with so many levels and r = inf. Bits: per block a float, per entry `width`.
    """

    name: str = fixed("rounding")

    norm: float = fixed(math.inf)
    width: Any = real(8.0, "Bits of an entry, its sign included; a whole number.", least=2, most=24)

    def check_together(self) -> None:
        check_whole("width", self.width)

    @property
    def num_levels(self) -> Any:
        """Levels above 0."""
        levels = 2.0 ** (self.width - 1) - 1
        return (
            jnp.round(levels) if isinstance(levels, jax.Array) else levels
        )  # A power of traced numbers is not exact.


def _norm(blocks: Array, order: float) -> Array:
    """Norm of nonnegative entries along the last axis, by way of their largest, whose square need not be a number."""
    largest = jnp.max(blocks, axis=-1)
    if math.isinf(order):
        return largest
    share = blocks / divisor(largest)[..., None]
    if order == 2:
        return largest * jnp.sqrt(divisor(jnp.sum(jnp.square(share), axis=-1)))
    return largest * divisor(jnp.sum(share**order, axis=-1)) ** (1 / order)
