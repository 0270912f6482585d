"""Lattice quantization (Davies et al. 2021, arXiv 2002.09268, cubic lattices of Sec. 6 and 9).

A sender rounds a vector to a lattice and sends only the color of the point: its coordinates
modulo q. Of all points of this color the receiver takes the one nearest to a vector that it has.

Dimension letters: `D` entries of a vector, `P` entries with zeros up to the next power of two.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.core.types import Array, Key


def padded_size(dim: int) -> int:
    """Smallest power of two that is at least `dim`, P."""
    return 1 << (dim - 1).bit_length()


def hadamard(vector: Array) -> Array:
    """Multiply a vector `f[P]` by the orthonormal Hadamard matrix, which is its own inverse."""
    size, width = vector.size, 1
    while width < size:
        first, second = jnp.moveaxis(vector.reshape(-1, 2, width), 1, 0)
        vector, width = jnp.stack([first + second, first - second], axis=1), 2 * width
    return vector.reshape(size) / jnp.sqrt(jnp.asarray(size, vector.dtype))


def lattice_point(
    key: Key, vector: Array, reference: Array, *, colors: Array | int, distance: Array | float
) -> Array:
    """Point of the lattice that a receiver decodes of a vector; NaN if it is not the one sent.

    Sender and receiver draw signs and an offset from a common seed. Both rotate, x -> H (signs x),
    so that no entry is much larger than others. The lattice is (Z + offset) times its side
    2 distance / (colors - 1), and the offset uniform, so that rounding has no bias.

    Args:
      key: Key of the signs and the offset.
      vector: `f[D]`, the sender's.
      reference: `f[D]`, the receiver's. If no rotated entry of the two is farther apart than
        `distance`, the receiver decodes the very point that was sent. Farther than that plus half a
        side it decodes another one of the same color, and the result is NaN.
      colors: q, at least 2.
      distance: Bound y of the distances of entries after the rotation.

    Returns:
      `f[D]`.
    """
    size, dtype = vector.size, vector.dtype
    sign_key, offset_key = jax.random.split(key)
    signs = jax.random.rademacher(sign_key, (padded_size(size),), dtype)
    offset = jax.random.uniform(offset_key, signs.shape, dtype, -0.5, 0.5)
    colors = jnp.asarray(colors, dtype)
    side = 2 * jnp.asarray(distance, dtype) / (colors - 1)

    def coordinates(entries: Array) -> Array:
        rotated = hadamard(signs * jnp.pad(entries, (0, signs.size - size)))
        return rotated / side - offset

    sent = jnp.round(coordinates(vector))
    # The point that was sent is the nearest one of its color: others are `colors` apart.
    is_nearest = jnp.abs(sent - coordinates(reference)) < colors / 2
    found = jnp.where(is_nearest, sent, jnp.nan)
    return (signs * hadamard((found + offset) * side))[:size]
