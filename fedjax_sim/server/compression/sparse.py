"""Sparsifiers: keep random entries and scale them up.

Dimension letter: `D` entries of a vector.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.checking import Count, Portion, shape
from fedjax_sim.core.settings import fixed, setting, struct
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
