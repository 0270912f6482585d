"""Means of client models, and the store of old server models."""

import jax
import jax.numpy as jnp

from fedjax_sim.types import Array, Params


def expand(weight: Array, leaf: Array) -> Array:
    """Give `weight[S]` the trailing axes of `leaf[S, ...]`, and its dtype."""
    return weight.reshape(weight.shape + (1,) * (leaf.ndim - weight.ndim)).astype(leaf.dtype)


def weighted_sum(weight: Array, models: Params) -> Params:
    """Sum models with weights. weight: `[S]`; models: leaves `[S, ...]`. Returns leaves `[...]`."""
    return jax.tree.map(
        lambda leaf: jnp.tensordot(weight.astype(leaf.dtype), leaf, 1, precision="highest"), models
    )


def mean_with_server(server: Params, reports: Params, is_present: Array) -> Params:
    """Average the reports of the clients present with the server's own model, each of weight 1 / (s + 1).

    server: leaves `[...]`; reports: leaves `[S, ...]`; is_present: `bool[S]`. With nobody present this is the server's model.
    """
    total = weighted_sum(is_present, reports)
    share = 1 / (1 + is_present.sum())
    return jax.tree.map(lambda w, u: (w + u) * share.astype(w.dtype), server, total)


def scaled_progress(start: Params, end: Params, weight: Array) -> Params:
    """Go from start to end and `weight` times as far: start + weight (end - start). Leaves `[S, ...]`; weight: `[S]`."""
    return jax.tree.map(lambda a, b: a + expand(weight, a) * (b - a), start, end)


def replicate(model: Params, num: int) -> Params:
    """Stack copies of a model: leaves `[...]` to `[num, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num, *leaf.shape)), model)


def store_of(model: Params, rows: int) -> Params:
    """Make a store of server models whose row 0 is the initial one: leaves `[R, ...]`. Other rows are written before they are read."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype).at[0].set(leaf), model
    )


def read_rows(store: Params, rows: Array) -> Params:
    """Gather models from rows `i32[S]` of a store or a stack of client models: leaves `[S, ...]`."""
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="fill", fill_value=0), store)


def write_row(store: Params, row: Array, model: Params) -> Params:
    """Put a model into one row of a store."""
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, row, 0), store, model
    )


def write_clients(models: Params, clients: Array, new: Params) -> Params:
    """Put `new[S, ...]` into the rows of their clients `i32[S]`; empty slots (negative) write nothing."""
    rows = jnp.where(clients < 0, jnp.iinfo(jnp.int32).max, clients)
    return jax.tree.map(lambda leaf, x: leaf.at[rows].set(x, mode="drop"), models, new)


def squared_distance(models: Params, server: Params) -> Array:
    """Squared distance of each of the stacked models `[R, ...]` to the server's `[...]`: `f[R]`."""
    per_leaf = jax.tree.map(
        lambda a, w: jnp.sum(jnp.square(a - w[None]), axis=tuple(range(1, a.ndim))), models, server
    )
    return jax.tree.reduce(jnp.add, per_leaf)


def base_model_variance(store: Params, holders: Array, server: Params) -> Array:
    """Sum over clients of ||w_i - w||^2, w_i the server model that client i holds (FAVANO, Fig. 2). holders: `i32[R]`, clients per row."""
    distance = squared_distance(store, server)
    return jnp.where(holders > 0, holders * distance, 0.0).sum()
