"""Mini-batches of the cells of a matrix, as a compressor: FedMissEM's (Algorithm 7 of arXiv 2111.02083)."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.compression.base import Compressor, Identity, wide_of
from fedjax_sim.compression.grids import BlockQuantization
from fedjax_sim.settings import ConfigError, count, fixed, struct, switch
from fedjax_sim.types import Array, Key


@struct
class ProductBatch(Compressor):
    """Keep the cells in random rows and random columns of a matrix, a share rho of them, and block-quantize these in the 2-norm.

    Divided by rho that is unbiased, and omega = (1 + omega of the blocks) / rho - 1, with equality for every matrix if nothing is
    quantized. The paper does not divide: then the mean of Q(x) is rho x, and `omega` is that of what is divided.

    Bits: per cell kept two, and a float for each block that may hold one, the rows and columns being known from a seed. Without
    quantization a float per cell.
    """

    name: str = fixed("product")
    row: int = count(1)
    """Cells of a row of the matrix that the vector is, row by row."""
    rows: int = count(10)
    """Rows kept; all if there are no more."""
    columns: int = count(10)
    """Columns kept; all if there are no more."""
    block: int = count(4, least=0)
    """Neighbours in a row that are quantized together; 0: nothing is quantized."""
    divided: bool = switch(True)
    """Whether what is kept is divided by rho."""

    def apply(self, key: Key, vector: Array) -> Array:
        """Keep cells, and quantize them."""
        height, _ = self._shape(vector.size)
        of_rows, of_columns, of_blocks = jax.random.split(key, 3)
        rows = jax.random.permutation(of_rows, height) < self.rows
        columns = jax.random.permutation(of_columns, self.row) < self.columns
        kept = jnp.where(rows[:, None] & columns[None], wide_of(vector).reshape(height, self.row), 0).ravel()
        scaled = kept / self._share(vector.size) if self.divided else kept
        return self._quantizer.apply(of_blocks, scaled).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute the variance of what is divided, if nothing is quantized: (1 / rho - 1) ||x||^2. There is no closed form with blocks."""
        if self.block:
            raise ConfigError("block", self.block, "0 for the exact variance, which has no closed form otherwise")
        return self.omega(vector.size) * jnp.sum(jnp.square(wide_of(vector)))

    def omega(self, dim: int) -> float:
        """Compute the constant; the row's length must divide dim."""
        return (1 + float(self._quantizer.omega(dim))) / self._share(dim) - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits."""
        height, columns = self._shape(dim)[0], min(self.columns, self.row)
        rows = min(self.rows, height)
        if not self.block:
            return word * rows * columns
        return rows * (word * min(columns, -(-self.row // self.block)) + 2 * columns)

    @property
    def _quantizer(self) -> Any:
        return BlockQuantization(block=self.block, row=self.row) if self.block else Identity()

    def _shape(self, dim: int) -> tuple[int, int]:
        if dim % self.row:
            raise ConfigError("row", self.row, f"a divisor of the {dim} entries of a vector")
        return dim // self.row, self.row

    def _share(self, dim: int) -> float:
        height, width = self._shape(dim)
        return min(self.rows, height) / height * min(self.columns, width) / width
