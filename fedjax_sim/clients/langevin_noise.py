"""The noise of Langevin dynamics, as optax transformations that can be chained with others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree

from fedjax_sim.types import Array, Key, Params

Number = Array | float


class NoiseState(NamedTuple):
    """State of the transformation.

    Attributes:
      step: `i32[]`, number of the next step; its noise depends only on this number and the key.
    """

    step: Array


def add_langevin_noise(
    key: Key,
    step_size: Number | Callable[[Array], Number],
    temperature: Number,
    *,
    first: Array | int = 0,
) -> optax.GradientTransformation:
    """Add sqrt(2 eta tau) xi to updates, with xi standard normal.

    The updates must already be -eta times a gradient: `optax.chain(optax.sgd(eta),
    add_langevin_noise(key, eta, 1.0))` is SGLD (Welling and Teh 2011).

    Args:
      key: Equal keys and step numbers give equal noise, so several transformations may share noise.
      step_size: eta, or a function from the step's number to eta.
      temperature: tau, in units of the energy whose gradient is followed. With 0 updates pass
        unchanged.
      first: Number of the first step.
    """
    eta = step_size if callable(step_size) else lambda step: step_size

    def init(params: Params) -> NoiseState:
        return NoiseState(jnp.asarray(first, "int32"))

    def update(
        updates: Params, state: NoiseState, params: Params | None = None
    ) -> tuple[Params, NoiseState]:
        flat, unravel = ravel_pytree(updates)
        deviation = jnp.sqrt(2 * jnp.asarray(eta(state.step)) * temperature).astype(flat.dtype)
        noise = _standard_normal(jax.random.fold_in(key, state.step), jnp.any(deviation != 0), flat)
        return unravel(flat + deviation * noise), NoiseState(state.step + 1)

    return optax.GradientTransformation(init, update)


def _standard_normal(key: Key, is_wanted: Array, like: Array) -> Array:
    """Draw an array of like's shape and dtype; zeros where no batched lane wants noise.

    Drawing is most of a step of a small model. Lanes with the same key share one draw under vmap.
    """
    impl = jax.random.key_impl(key)

    @custom_vmap
    def draw(words: Array, is_wanted: Array) -> Array:
        """words: `[batch..., words of a key]`; is_wanted: `bool[batch...]`."""
        shape = (*is_wanted.shape, *like.shape)

        def wanted() -> Array:
            keys = jax.random.wrap_key_data(words, impl=impl).ravel()
            normal = jax.vmap(lambda key: jax.random.normal(key, like.shape, like.dtype))
            return normal(keys).reshape(shape)

        return jax.lax.cond(is_wanted.any(), wanted, lambda: jnp.zeros(shape, like.dtype))

    @draw.def_vmap
    def draw_batch(
        size: int, in_batched: Sequence[bool], words: Array, is_wanted: Array
    ) -> tuple[Array, bool]:
        if not in_batched[0]:
            return draw(words, is_wanted.any(axis=0)), False
        wanted_by_all = jnp.broadcast_to(is_wanted, (size, *is_wanted.shape))
        return draw(words, is_wanted if in_batched[1] else wanted_by_all), True

    return draw(jax.random.key_data(key), is_wanted)
