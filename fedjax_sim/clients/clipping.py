"""Clip updates, and leave out those that are not finite.

Dimension letter: `S` slots of a tick.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_sim.clients.rows import along
from fedjax_sim.core.settings import ConfigError, Limit, checked, shape
from fedjax_sim.core.types import Array, Params


@checked
def clip_updates(
    updates: Params, bound: Annotated[Array | float, shape(""), Limit(above=0)]
) -> tuple[Params, Array]:
    """Shorten each update to a norm of at most `bound`: x min(1, C / ||x||).

        clipped, is_short = clip_updates(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
        assert jnp.allclose(clipped, jnp.array([[3 / 5, 4 / 5], [0.3, 0.4]]))
        assert is_short.tolist() == [False, True]

    Args:
      updates: Leaves `[S, ...]`.
      bound: C, `f[]`, above 0.

    Returns:
      The clipped updates, and which of them were not too long, `bool[S]`.
    """
    num_slots = _number_of_slots(updates)
    leaves = jax.tree.leaves(updates)
    kind = jnp.result_type("float32", *leaves)
    limits = jnp.finfo(kind)

    def norm(scale: float) -> Array:
        scaled = (jnp.square(leaf.astype(kind) * scale) for leaf in leaves)
        squares = sum(jnp.sum(leaf.reshape(num_slots, -1), axis=1) for leaf in scaled)
        # The square root of 0 has no derivative.
        return jnp.sqrt(jnp.maximum(jnp.asarray(squares), limits.tiny)) / scale

    # Squares of numbers times this power of two are never too large for the type.
    plain, scaled = norm(1.0), norm(2.0 ** -(limits.maxexp * 5 // 8))
    return _shortened(updates, jnp.where(jnp.isfinite(plain), plain, scaled), bound)


@checked
def clip_sums(
    updates: Params, bound: Annotated[Array | float, shape(""), Limit(above=0)]
) -> Params:
    """Shorten each update to an L1 norm of at most `bound`: x min(1, C / ||x||_1).

        assert clip_sums(jnp.array([[3.0, -1.0]]), 2.0).tolist() == [[3.0 / 2, -1.0 / 2]]

    Args:
      updates: Leaves `[S, ...]`.
      bound: C, `f[]`, above 0.

    Returns:
      The clipped updates.
    """
    num_slots = _number_of_slots(updates)
    leaves = jax.tree.leaves(updates)
    kind = jnp.result_type("float32", *leaves)
    sizes = (jnp.abs(leaf.astype(kind)) for leaf in leaves)
    norm = sum(jnp.sum(leaf.reshape(num_slots, -1), axis=1) for leaf in sizes)
    return _shortened(updates, jnp.asarray(norm), bound)[0]


def finite(updates: Params, is_present: Array | bool = True) -> tuple[Params, Array]:
    """Leave out updates that are not finite.

    Args:
      updates: Leaves `[S, ...]`.
      is_present: `bool[S]`, whose there are.

    Returns:
      The updates, 0 where there is none or one that is left out, and who has another, `bool[S]`.
    """
    is_heard: Any = is_present
    for leaf in jax.tree.leaves(updates):
        is_heard &= jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(axis=1)

    return jax.tree.map(lambda leaf: jnp.where(along(is_heard, leaf), leaf, 0), updates), is_heard


def _number_of_slots(updates: Params) -> int:
    """Return S, and check that all leaves have it."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(updates)]
    if len({shape[:1] for shape in shapes} | {()}) != 2:
        raise ConfigError("shapes of updates", shapes, "[S, ...] with one number S of slots")
    return shapes[0][0]


def _shortened(updates: Params, norm: Array, bound: Array | float) -> tuple[Params, Array]:
    """Shorten updates with norms, `f[S]`, above the bound, and tell which ones are not."""
    bound = jnp.asarray(bound, norm.dtype)
    is_short = norm <= bound
    scale = jnp.where(is_short, 1, bound / jnp.where(is_short, 1, norm))

    short = lambda leaf: leaf * along(scale, leaf).astype(leaf.dtype)  # noqa: E731
    return jax.tree.map(short, updates), is_short
