"""Biased compressors: the largest entries, and signs with one scale.

They are contractive instead of unbiased: E||C(x) - x||^2 <= (1 - alpha) ||x||^2 for some alpha
above 0. Averages of their messages may go astray (Beznosikov et al. 2020, arXiv 2002.12410, Example
1), which error feedback repairs (`fedjax_sim.server.reports`).

Dimension letter: `D` entries of a vector.
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.checking import Count, Whole, shape
from fedjax_sim.core.settings import ConfigError, fixed, setting, struct
from fedjax_sim.core.types import Array, Key
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.compression.base import Compressor


@struct
class Biased(Compressor):
    """The common base of biased compressors."""

    @property
    def has_omega(self) -> bool:
        """No."""
        return False

    def omega(self, dim: int) -> Any:
        """Refuse: a biased compressor has no omega.

        Raises:
          ConfigError: Always.
        """
        raise ConfigError("compression", str(self), "an unbiased compressor here")

    def pace(self, dim: int) -> float:
        """Return 1: messages are contractive as they are."""
        return 1.0


@struct
class TopK(Biased):
    """Keep the k entries of largest magnitude; the other entries become 0.

    Of equal magnitudes the first is kept. Vectors with at most k entries are kept whole. alpha is
    k / D, attained if all magnitudes are equal.

    Bits: for each entry kept a float and ceil(log2(D)) bits for its place.

        sent = TopK(kept=1).apply(key, jnp.array([1.0, -5.0, 3.0]))
        assert sent.tolist() == [0.0, -5.0, 0.0]
        hyper = fedavg.Hyper(compression=TopK(kept=10), error_feedback=True)
    """

    name: str = fixed("top_k")

    kept: Count = setting(1, "Number of entries kept, k.")

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Keep the largest entries of a vector `f[D]`; the key is not used.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        if self.kept >= vector.size:
            return vector
        places = jax.lax.top_k(jnp.abs(wide_of(vector)), self.kept)[1]
        return jnp.zeros_like(vector).at[places].set(vector[places], unique_indices=True)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries; all are sent if k is at least `dim`."""
        if self.kept >= dim:
            return word * dim
        return self.kept * (word + math.ceil(math.log2(dim)))


@struct
class ScaledSign(Biased):
    """Send the signs of all entries, and the mean magnitude of each block as its scale.

    C(x)_j = ||x||_1 / B sign(x_j) in a block of B entries, with sign(0) = 1 (Karimireddy et al.
    2019, arXiv 1901.09847). The squared error of a block is ||x||^2 - ||x||_1^2 / B, so alpha is
    1 / B, attained by a vector with a single entry that is not 0.

    Bits: a float per block, and one bit per entry.

        sent = ScaledSign().apply(key, jnp.array([1.0, -5.0, 3.0]))
        assert sent.tolist() == [3.0, -3.0, 3.0]  # (1 + 5 + 3) / 3
    """

    name: str = fixed("sign")

    block: Whole = setting(
        0, "Entries of a block, B; the last block may be shorter. 0 makes the vector one block."
    )

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Send the signs of a vector `f[D]`, scaled; the key is not used.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        wide, size = wide_of(vector), self._block(vector.size)
        padding = -vector.size % size
        blocks = jnp.pad(jnp.abs(wide), (0, padding)).reshape(-1, size)
        lengths = np.full(len(blocks), size).astype(wide.dtype)
        lengths[-1] -= padding
        scale = jnp.repeat(blocks.sum(axis=1) / lengths, size)[: vector.size]
        return jnp.where(wide >= 0, scale, -scale).astype(vector.dtype)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries."""
        return word * -(-dim // self._block(dim)) + dim

    def _block(self, dim: int) -> int:
        """Find the length of the largest block, B."""
        return min(self.block or dim, dim)


KINDS = (TopK, ScaledSign)
"""The compressors of this file."""
