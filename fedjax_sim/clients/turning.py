"""Matrices of a model that are kept transposed while a client trains.

A CPU multiplies slowly by matrices with few columns, and on a GPU gradients of matrices come out
transposed; `Plan.narrow` says how many columns are few.
"""

import jax
import jax.numpy as jnp
import optax
from jax.experimental.layout import Layout, with_layout_constraint

from fedjax_sim.types import Array, Params


def turn(model: Params, are_turned: tuple[bool, ...]) -> Params:
    """Transpose some matrices, or transpose them back. Leaves are `[...]` or `[S, ...]`."""
    flags = jax.tree.unflatten(jax.tree.structure(model), are_turned)
    return jax.tree.map(lambda x, is_one: jnp.swapaxes(x, -1, -2) if is_one else x, model, flags)


def in_row_major(model: Params, are_turned: tuple[bool, ...]) -> Params:
    """Lay arrays that were transposed out in memory row by row."""

    def laid(leaf: Array, is_turned: bool) -> Array:
        layout = Layout(major_to_minor=tuple(range(leaf.ndim)))
        return with_layout_constraint(leaf, layout) if is_turned else leaf

    flags = jax.tree.unflatten(jax.tree.structure(model), are_turned)
    return jax.tree.map(laid, model, flags)


def turned_in_state(
    optimizer: optax.GradientTransformation, model: Params, are_turned: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Tell which leaves of an optimizer's state belong to leaves of the model that are turned."""
    flags = jax.tree.unflatten(jax.tree.structure(model), are_turned)
    state = jax.eval_shape(optimizer.init, model)
    if not any(are_turned):
        return (False,) * len(jax.tree.leaves(state))
    marked = optax.tree_map_params(
        optimizer, lambda _, flag: flag, state, flags, transform_non_params=lambda _: False
    )
    return tuple(jax.tree.leaves(marked))
