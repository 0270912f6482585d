"""FedMissEM's mini-batches of cells (arXiv 2111.02083, Algorithm 7) as a compressor: what a server sends of its matrix."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.compression import Compressor, Identity, RandK, RandSparsification, parse_compressor
from fedjax_sim.compression.base import wide_of
from fedjax_sim.settings import ConfigError, count, fixed, part, static, struct, switch
from fedjax_sim.types import Array, Key


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(size, int) and size >= 1 for size in value)
    )


@struct
class CellSampling(Compressor):
    """Send the cells of a random set of rows times a random set of columns of a matrix, as one compressed vector; 0 for the others.

    Rows and columns are uniform without replacement, so a cell is sent with probability rho = rows columns / (J L). An E-step of these
    cells alone, as in Algorithm 7, is the same as one of all of which only these are sent, as the cells' statistics do not depend on
    each other. So FedMissEM is FedEM with this compressor and whole matrices as examples, of which a client has one.

    Readings. Algorithm 7 sends the cells as they are: then E[H] = V + rho (h - V), which is consistent as memories converge, but no
    unbiased compressor. With `unbiased` they are divided by rho: omega is (1 + omega') / rho - 1 with that of the cells' compressor.
    Blocks of that compressor are of the cells sent, row by row in the matrix's order, not of the matrix; with `row=columns` they stay
    within rows. Bits: those of a vector of rows times columns; which cells they are follows from a seed that both sides know. All methods
    raise ConfigError for vectors that are not J L long.
    """

    name: str = fixed("cells")
    shape: tuple[int, int] = static(
        (0, 0),
        "two whole numbers of at least 1, rows and columns of the matrix",
        _is_shape,
        meaning="(J, L); must be given.",
    )
    rows: int = count(1, "Rows.")
    columns: int = count(1, "Sent.")
    unbiased: bool = switch(True, "Unbiased.")
    compression: Compressor = part(
        Identity(), "a compressor", Compressor, parse_compressor, meaning="Of the cells sent."
    )

    def check_together(self) -> None:
        for name, most in zip(("rows", "columns"), self.shape, strict=True):
            if getattr(self, name) > most:
                raise ConfigError(name, getattr(self, name), f"at most {most}, those of the matrix")

    @property
    def share(self) -> float:
        """rho."""
        return self.rows * self.columns / (self.shape[0] * self.shape[1])

    def apply(self, key: Key, vector: Array) -> Array:
        """Send some cells of a matrix given row by row, `f[J L]`."""
        self._check_length(vector.size)
        of_rows, of_columns, inner = jax.random.split(key, 3)
        # In order, so that the blocks of the cells' compressor are of neighbours.
        rows = jnp.sort(jax.random.permutation(of_rows, self.shape[0])[: self.rows])
        columns = jnp.sort(jax.random.permutation(of_columns, self.shape[1])[: self.columns])
        places = (rows[:, None] * self.shape[1] + columns[None]).ravel()
        sent = self.compression.apply(inner, vector[places])
        return jnp.zeros_like(vector).at[places].set(sent / self.share if self.unbiased else sent)

    def variance(self, vector: Array) -> Array:
        """Compute E||Q(x) - x||^2 exactly, where the cells' compressor treats cells alike, so that it is a multiple of ||x||^2."""
        self._check_length(vector.size)
        if not isinstance(self.compression, (Identity, RandSparsification, RandK)):
            raise NotImplementedError(
                f"no closed form for random cells with {self.compression}, whose blocks depend on which are drawn"
            )
        inner = self.compression.omega(self.rows * self.columns)
        factor = (
            (1 + inner) / self.share - 1 if self.unbiased else 1 - self.share + self.share * inner
        )
        return factor * jnp.sum(jnp.square(wide_of(vector)))

    def __str__(self) -> str:
        """Say how many cells of how many are sent."""
        kind = "" if self.unbiased else " as they are"
        return f"{self.name} {self.rows}x{self.columns} of {self.shape[0]}x{self.shape[1]}{kind}, {self.compression}"

    def omega(self, dim: int) -> Any:
        """Compute the constant; without `unbiased` that of the cells' compressor, which sets the memories' step as well."""
        self._check_length(dim)
        inner = self.compression.omega(self.rows * self.columns)
        return (1 + inner) / self.share - 1 if self.unbiased else inner

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count those of the cells sent."""
        self._check_length(dim)
        return self.compression.bits(self.rows * self.columns, word=word)

    def _check_length(self, dim: int) -> None:
        # An index beyond the end would be clamped in silence.
        if dim != self.shape[0] * self.shape[1]:
            raise ConfigError(
                "shape",
                self.shape,
                f"rows and columns of a matrix of {dim} cells, the length of the vectors compressed",
            )
