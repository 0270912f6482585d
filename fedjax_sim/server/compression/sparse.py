"""Sparsifiers, unbiased and biased, and signs with one scale.

Unbiased sparsifiers keep random entries and scale them up. Biased compressors send the largest
entries, or signs with one scale. They are contractive instead of unbiased:
E||C(x) - x||^2 <= (1 - alpha) ||x||^2 for some alpha above 0. Averages of their messages may go
astray (Beznosikov et al. 2020, arXiv 2002.12410, Example 1), which error feedback repairs
(`fedjax_sim.server.reports`).

Dimension letter: `D` entries of a vector.
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import ConfigError, fixed, setting, struct
from fedjax_sim.core.settings.declared import Count, Portion, Whole, shape
from fedjax_sim.core.types import Array, Key
from fedjax_sim.kernels.rounding import Rounding, wide_of
from fedjax_sim.server.compression.base import Compressor


@struct
class RandSparsification(Compressor):
    """Keep each entry with probability kappa, divided by kappa; the other entries become 0.

    Named in Sec. 2 of Dieuleveut et al., FedEM, arXiv 2111.02083. Omega is 1 / kappa - 1, with
    equality for every vector. Bits: a float per entry kept, of which there are D kappa on average.

        sent = RandSparsification(keep=0.5).apply(key, jnp.array([1.0, 1.0, 1.0]))
        assert set(sent.tolist()) <= {0.0, 1 / 0.5}
    """

    name: str = fixed("sparsification")

    keep: Portion = setting(0.5, "Probability that an entry is kept, kappa.")

    def around(self, magnitude: Array) -> Rounding:
        """Return 0 and the value of a kept entry as neighbours of magnitudes `f[D]`."""
        keep = jnp.asarray(self.keep, magnitude.dtype)
        ratio = jnp.full_like(magnitude, keep)
        return Rounding(magnitude / keep, ratio, jnp.zeros_like(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute omega, which does not depend on `dim`."""
        return 1 / self.keep - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the expected bits of a message of `dim` entries, rounded to a whole number."""
        return round(word * self.keep * dim)


@struct
class RandK(Compressor):
    """Keep k of the D entries, uniformly at random, times D / k.

    Vectors with at most k entries are kept whole (Wangni et al. 2018, Stich et al. 2018). Omega is
    D / k - 1, with equality for every vector. Bits: a float per entry kept.

        sent = RandK(kept=1).apply(key, jnp.array([1.0, 1.0, 1.0]))
        assert sorted(sent.tolist()) == [0.0, 0.0, 3 / 1]
    """

    name: str = fixed("rand_k")

    kept: Count = setting(1, "Number of entries kept, k.", traced=True)

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Keep k random entries of a vector `f[D]`, scaled up.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        wide = wide_of(vector)
        places = jax.random.permutation(key, wide.size)
        scale = jnp.asarray(self.omega(wide.size) + 1, wide.dtype)
        return jnp.where(places < self.kept, wide * scale, 0).astype(vector.dtype)

    def omega(self, dim: int) -> Any:
        """Compute omega for vectors of `dim` entries."""
        kept = (
            jnp.minimum(self.kept, dim) if isinstance(self.kept, jax.Array) else min(self.kept, dim)
        )
        return dim / kept - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count a float for each entry kept of `dim`."""
        return word * min(int(self.kept), dim)


KINDS = (RandSparsification, RandK)
"""The compressors of this file."""


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


BIASED = (TopK, ScaledSign)
"""The compressors of this file."""
