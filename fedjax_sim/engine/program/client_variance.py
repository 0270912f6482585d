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

import jax
import jax.numpy as jnp

from fedjax_sim.trees import in_32_bits
from fedjax_sim.types import Array, Params


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
