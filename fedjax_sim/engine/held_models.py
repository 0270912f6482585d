"""The opt-in metric `client_variance`: how far clients' models are from the server's.

It is sum_i ||w_i - w||^2, where w is the server's model and w_i the model that client i holds
(FAVANO, arXiv 2305.16099, Fig. 2). In most systems a client holds a server version; the engine then
keeps every version that some client holds at some later evaluation. That is the memory cost: with
many slow clients nearly every version is kept, for example 720 models a lane for 10^4 clients and
714 ticks. Systems whose clients hold other models state them as `Algorithm.client_models`. For
FA-LD it measures the server versions that clients hold, not how far apart local models are before
they are averaged.

Dimension letters: those of `fedjax_sim.types`; here `R` counts the rows of this metric's store.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.engine.store import round_up, store_rows
from fedjax_sim.trees import in_32_bits
from fedjax_sim.types import EMPTY, Array, Leaf, Params


class HeldVersions(NamedTuple):
    """Where the versions that clients hold are kept.

    Attributes:
      write: `i32[L, V, E]`, row for the model that each tick makes; the last row is a scratch row.
      holders: `i32[L, V + 1, R]`, number of clients that hold each row's model at each evaluation.
    """

    write: Leaf
    holders: Leaf


def held_versions(
    clients: np.ndarray,
    holds: np.ndarray,
    ends: np.ndarray,
    num_clients: int,
) -> HeldVersions:
    """Find out which versions clients hold at each evaluation, and assign rows to them.

    Args:
      clients: `i32[L, T, S]`, `EMPTY` in empty slots.
      holds: `i32[L, T, S]`, as in `Timeline`.
      ends: `i64[L, V + 1]`, ticks before each evaluation.
      num_clients: Number of clients, N.

    Returns:
      The rows, with `write` of shape `i32[L, T]`.
    """
    num_lanes, total, _ = clients.shape
    held = np.zeros((num_lanes, ends.shape[1], num_clients), np.int32)
    rows, used = np.zeros((num_lanes, total + 1), np.int32), np.zeros(num_lanes, np.int32)
    for lane, lane_ends in enumerate(ends):
        for i, (begin, end) in enumerate(itertools.pairwise(lane_ends), start=1):
            present = clients[lane, begin:end] != EMPTY
            held[lane, i] = held[lane, i - 1]
            received = clients[lane, begin:end][present]
            held[lane, i, received] = holds[lane, begin:end][present]
        end = lane_ends[-1]
        nobody = np.zeros((end, 0))
        rows[lane, : end + 1], used[lane] = store_rows(
            nobody.astype(np.int32), nobody.astype(bool), held[lane], lane_ends
        )
    num_rows = round_up(int(used.max()))
    # Ticks after a lane's end, and versions that nobody holds, are written to the scratch row.
    is_scratch = np.arange(total + 1) > ends[:, -1:]
    is_scratch |= rows == used[:, None] - 1
    rows[is_scratch] = num_rows - 1
    holders = np.zeros((num_lanes, ends.shape[1], num_rows), np.int32)
    for lane in range(num_lanes):
        versions_held = rows[lane][held[lane]]
        holders[lane] = [np.bincount(row, minlength=num_rows) for row in versions_held]
    return HeldVersions(rows[:, 1:], holders)


def first_store(model: Params, rows: int) -> Params:
    """Make a store whose row 0 is the initial model: leaves `[R, ...]`."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype).at[0].set(leaf), model
    )


def write_version(store: Params, row: Array, model: Params) -> Params:
    """Write a model into one row of the store. row: `i32[]`."""
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, row, 0), store, model
    )


def client_variance(models: Params, holders: Array, server: Params) -> Array:
    """Sum the squared distances of clients' models to the server's: `f[]`.

    Args:
      models: Leaves `[R, ...]`, models that clients hold.
      holders: `[R]`, number of clients that hold each model. Models without holders are ignored.
      server: Leaves `[...]`.
    """
    models, server = in_32_bits((models, server))
    per_leaf = jax.tree.map(
        lambda a, w: jnp.sum(jnp.square(a - w[None]), axis=tuple(range(1, a.ndim))), models, server
    )
    distance = jax.tree.reduce(jnp.add, per_leaf)
    return jnp.where(holders > 0, holders.astype(distance.dtype) * distance, 0.0).sum()
