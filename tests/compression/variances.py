"""The squared error that compressors make at a given vector, exactly."""

import jax
import jax.numpy as jnp

from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.compression import Compressor, Identity, RandK


def variance(compressor: Compressor, vector: jax.Array) -> jax.Array:
    """Compute E||Q(x) - x||^2 at a given x, `f[D]`; of biased compressors ||C(x) - x||^2."""
    wide = wide_of(vector)
    if isinstance(compressor, Identity):
        return jnp.zeros((), wide.dtype)
    if isinstance(compressor, RandK):
        return compressor.omega(vector.size) * jnp.sum(jnp.square(wide))
    if not compressor.has_omega:
        return jnp.sum(jnp.square(compressor.apply(jax.random.key(0), wide) - wide))
    unit, ratio, below, gap = compressor.around(jnp.abs(wide))
    return jnp.sum(jnp.square(unit) * (ratio - below) * (below + gap - ratio))
