"""Rows of arrays of models, of clients or of old versions, read and written for a tick's slots.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.core.types import Array, Params


def read_rows(models: Params, rows: Array) -> Params:
    """Gather models: leaves `[S, ...]`. models: leaves `[R, ...]`; rows: `i32[S]`.

        versions = jnp.array([[1.0], [2.0], [3.0]])
        assert read_rows(versions, jnp.array([2, 0])).ravel().tolist() == [3.0, 1.0]

    Returns:
      Leaves `[S, ...]`.
    """
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="fill", fill_value=0), models)


def first_rows(model: Params, num: int) -> Params:
    """Make a store of models, `[num, ...]` each, with one in row 0. Others are to be written.

    assert first_rows(jnp.full(3, 5.0), 4).shape == (4, 3)
    """
    return jax.tree.map(
        lambda leaf: jnp.zeros((num, *leaf.shape), leaf.dtype).at[0].set(leaf), model
    )


def write_row(models: Params, row: Array, new: Params) -> Params:
    """Write a model into one row, `i32[]`, of a store of models `[R, ...]`.

    assert write_row(jnp.zeros(2), jnp.int32(1), jnp.float32(3)).tolist() == [0.0, 3.0]
    """
    write = jax.lax.dynamic_update_index_in_dim
    return jax.tree.map(lambda leaf, x: write(leaf, x, row, 0), models, new)


def along(slots: Array, leaf: Array) -> Array:
    """Give an array `[S]` trailing axes of length 1 to fit a leaf `[S, ...]`."""
    return slots.reshape(slots.shape + (1,) * (leaf.ndim - 1))


def read_clients(models: Params, clients: Array) -> Params:
    """Read the rows of clients: leaves `[S, ...]`; those of client 0 in empty slots.

        models = jnp.arange(3.0)  # of three clients
        assert read_clients(models, jnp.array([2, -1])).tolist() == [2.0, 0.0]

    Args:
      models: Leaves `[N, ...]`.
      clients: `i32[S]`, negative for empty slots.

    Returns:
      Leaves `[S, ...]`.
    """
    return read_rows(models, jnp.maximum(clients, 0))


def write_clients(models: Params, clients: Array, new: Params) -> Params:
    """Write new models into the rows of their clients; empty slots write nothing.

        models = write_clients(jnp.zeros(3), jnp.array([2, -1]), jnp.array([5.0, 7.0]))
        assert models.tolist() == [0.0, 0.0, 5.0]

    Args:
      models: Leaves `[N, ...]`.
      clients: `i32[S]`, negative for empty slots.
      new: Leaves `[S, ...]`.

    Returns:
      Leaves `[N, ...]`.
    """
    rows = jnp.where(clients < 0, jnp.iinfo(jnp.int32).max, clients)
    return jax.tree.map(
        lambda leaf, x: leaf.at[rows].set(x.astype(leaf.dtype), mode="drop"), models, new
    )
