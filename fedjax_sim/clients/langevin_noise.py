"""The noise of Langevin dynamics, as optax transformations that compose with others."""

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
    step: Array  # i32[]  number of the next step, whose noise depends on it and the key alone


def add_langevin_noise(
    key: Key,
    step_size: Number | Callable[[Array], Number],
    temperature: Number,
    *,
    first: Array | int = 0,
) -> optax.GradientTransformation:
    """Add sqrt(2 eta tau) xi to updates that already are -eta times a gradient, xi a standard normal vector.

    step_size: eta, or a function of the step's number. temperature: tau, in units of the energy whose gradient it is. first: number of
    the first step: equal keys and numbers give equal noise, so that several transformations may share it. With temperature 0 updates
    pass unchanged. `optax.chain(optax.sgd(eta), langevin_noise(key, eta, 1.0))` is SGLD (Welling, Teh 2011).
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
    """Draw an array of like's shape and dtype; zeros where nobody wants it, as drawing is most of a step of a small model.

    Under vmap, what has one key is drawn once.
    """
    impl = jax.random.key_impl(key)

    @custom_vmap
    def draw(words: Array, is_wanted: Array) -> Array:  # [batch..., words of a key], bool[batch...]
        def wanted() -> Array:
            keys = jax.random.wrap_key_data(words, impl=impl)
            return jax.vmap(lambda key: jax.random.normal(key, like.shape, like.dtype))(
                keys.ravel()
            ).reshape(shape)

        shape = (*is_wanted.shape, *like.shape)
        return jax.lax.cond(is_wanted.any(), wanted, lambda: jnp.zeros(shape, like.dtype))

    @draw.def_vmap
    def draw_batch(
        size: int, in_batched: Sequence[bool], words: Array, is_wanted: Array
    ) -> tuple[Array, bool]:
        if not in_batched[0]:
            return draw(words, is_wanted.any(axis=0)), False
        return draw(
            words,
            is_wanted if in_batched[1] else jnp.broadcast_to(is_wanted, (size, *is_wanted.shape)),
        ), True

    return draw(jax.random.key_data(key), is_wanted)
