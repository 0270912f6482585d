"""Send a random part of a matrix: the compressor with which FedEM becomes FedMissEM.

In FedMissEM (arXiv 2111.02083, Algorithm 7) every client has one matrix with missing cells, and
in a round it uses only the cells in some rows and columns drawn at random. Here it computes all
cells and sends the drawn ones, which comes to the same.

Dimension letters: `J` rows and `L` columns of a client's matrix.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import ConfigError, Count, fixed, setting, struct
from fedjax_sim.core.types import Array, Key
from fedjax_sim.server.compression import COMPRESSORS, Compressor, Identity, parse_compressor


@struct
class CellSampling(Compressor):
    """Send the cells where a random set of rows meets a random set of columns of a matrix.

    The cells sent form one vector, which is compressed in turn. All other cells are received as 0.
    Rows and columns are drawn uniformly without replacement, so a cell is sent with probability
    rho = rows columns / (J L).

    FedMissEM is FedEM with this compressor, where each client has one example: its whole matrix.
    The E-step of Algorithm 7 is over the drawn cells only. Computing all cells and sending the
    drawn ones gives the same, as the statistic of a cell does not depend on other cells.

    Reading of the paper: Algorithm 7 sends the cells as they are (`unbiased=False`). Then
    E[H] = V + rho (h - V), which is consistent once the memories V converge, but this is not an
    unbiased compressor. With `unbiased` the cells are divided by rho, and
    omega = (1 + omega') / rho - 1, where omega' is that of the compressor of the cells.

    Blocks of that compressor are made of the cells sent, row by row in the matrix's order, and not
    of the matrix. If the compressor's own `row` equals `columns`, blocks stay within rows.

    Bits are those of a vector of rows times columns entries. Which cells they are follows from a
    seed that both sides know, and costs nothing.

    All methods raise ConfigError for vectors whose length is not J L.
    """

    name: str = fixed("cells")
    shape: tuple[Count, Count] = setting(
        (0, 0),
        "Shape (J, L) of the matrix; it has no usable default and must be given.",
        allowed="two whole numbers of at least 1, rows and columns of the matrix",
    )
    rows: Count = setting(1, "Number of rows drawn for each message, at most J.")
    columns: Count = setting(1, "Number of columns drawn for each message, at most L.")
    unbiased: bool = setting(
        True,
        "Whether the cells sent are divided by their probability rho, which makes the compressor "
        "unbiased; the paper's Algorithm 7 does not divide.",
    )
    compression: Compressor = setting(
        Identity(),
        "Compressor of the vector of cells that are sent.",
        allowed=COMPRESSORS,
        parse=parse_compressor,
    )

    def check_together(self) -> None:
        """Check that no more rows and columns are drawn than the matrix has.

        Raises:
          ConfigError: If `rows` or `columns` is too large.
        """
        for name, most in zip(("rows", "columns"), self.shape, strict=True):
            if getattr(self, name) > most:
                allowed = f"at most {most}, the number of {name} of the matrix"
                raise ConfigError(name, getattr(self, name), allowed)

    @property
    def share(self) -> float:
        """Probability rho that a cell is sent."""
        return self.rows * self.columns / (self.shape[0] * self.shape[1])

    def apply(self, key: Key, vector: Array) -> Array:
        """Send some cells of a matrix.

        Args:
          key: For the draw of rows and columns and for the compressor of the cells.
          vector: `f[J L]`, the matrix row by row.

        Returns:
          What the server decodes, `f[J L]`: 0 in the cells that are not sent.
        """
        self._check_length(vector.size)
        rows_key, columns_key, cells_key = jax.random.split(key, 3)
        # Sorted, so that blocks of the cells' compressor are made of neighbours.
        rows = jnp.sort(jax.random.permutation(rows_key, self.shape[0])[: self.rows])
        columns = jnp.sort(jax.random.permutation(columns_key, self.shape[1])[: self.columns])
        places = (rows[:, None] * self.shape[1] + columns[None]).ravel()
        sent = self.compression.apply(cells_key, vector[places])
        return jnp.zeros_like(vector).at[places].set(sent / self.share if self.unbiased else sent)

    def omega(self, dim: int) -> Any:
        """Compute the constant omega for vectors of `dim` entries.

        Without `unbiased` this is the omega of the cells' compressor, which then also sets the step
        size of the memories.

        Args:
          dim: Length of the vectors, J L.

        Returns:
          A number; traced if the numbers of the cells' compressor are.
        """
        self._check_length(dim)
        inner = self.compression.omega(self.rows * self.columns)
        return (1 + inner) / self.share - 1 if self.unbiased else inner

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of one message.

        Args:
          dim: Length of the vectors, J L.
          word: Bits of a float.

        Returns:
          The bits of the cells that are sent.
        """
        self._check_length(dim)
        return self.compression.bits(self.rows * self.columns, word=word)

    def _check_length(self, dim: int) -> None:
        """Refuse vectors of the wrong length: JAX would silently clamp positions beyond the end."""
        if dim != self.shape[0] * self.shape[1]:
            allowed = f"rows and columns of a matrix of {dim} cells, the length of the vectors"
            raise ConfigError("shape", self.shape, allowed)


COMPRESSORS[CellSampling.name] = CellSampling
