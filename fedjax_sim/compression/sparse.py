"""Sparsifiers: some entries at random, scaled up."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.compression.base import Compressor, Rounding, check_whole, wide_of
from fedjax_sim.settings import fixed, real, struct
from fedjax_sim.types import Array, Key


@struct
class RandSparsification(Compressor):
    """Keep each entry with probability kappa, divided by it; else 0 (named in Sec. 2).

    Omega is 1 / kappa - 1, with equality for every vector. Bits: a float per entry kept, dim * kappa of them on average.
    """

    name: str = fixed("sparsification")

    keep: Any = real(0.5, "kappa", above=0, most=1)

    def around(self, magnitude: Array) -> Rounding:
        """Find 0, and what the entry is if kept."""
        keep = jnp.asarray(self.keep, magnitude.dtype)
        ratio = jnp.full_like(magnitude, keep)
        return Rounding(magnitude / keep, ratio, jnp.zeros_like(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant, which is the same for all dim."""
        return 1 / self.keep - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits expected, to the nearest."""
        return round(word * self.keep * dim)


@struct
class RandK(Compressor):
    """Keep k of the D entries, any k equally likely, times D / k; all of them if there are no more (Wangni et al. 2018, Stich et al. 2018).

    Omega is D / k - 1, with equality for every vector. Bits: a float per entry kept.
    """

    name: str = fixed("rand_k")

    kept: Any = real(1.0, "k, a whole number.", least=1)

    def check_together(self) -> None:
        check_whole("kept", self.kept)

    def apply(self, key: Key, vector: Array) -> Array:
        """Keep random entries."""
        wide = wide_of(vector)
        places = jax.random.permutation(key, wide.size)
        scale = jnp.asarray(self.omega(wide.size) + 1, wide.dtype)
        return jnp.where(places < self.kept, wide * scale, 0).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute omega ||x||^2."""
        return self.omega(vector.size) * jnp.sum(jnp.square(wide_of(vector)))

    def omega(self, dim: int) -> Any:
        """Compute the constant."""
        kept = (
            jnp.minimum(self.kept, dim) if isinstance(self.kept, jax.Array) else min(self.kept, dim)
        )
        return dim / kept - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count what is kept."""
        return word * min(int(self.kept), dim)
