"""The noise of Langevin dynamics, as optax transformations that compose with others."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim.types import Array, Key, Params

Number = Array | float


class NoiseState(NamedTuple):
    step: Array  # i32[]  number of the next step, whose noise depends on it and the key alone


def langevin_noise(
    key: Key, step_size: Number | Callable[[Array], Number], temperature: Number, *, first: Array | int = 0
) -> optax.GradientTransformation:
    """Add sqrt(2 eta tau) xi to updates that already are -eta times a gradient, xi a standard normal vector.

    step_size: eta, or a function of the step's number. temperature: tau, in units of the energy whose gradient it is. first: number of
    the first step: equal keys and numbers give equal noise, so that several transformations may share it. With temperature 0 updates
    pass unchanged. `optax.chain(optax.sgd(eta), langevin_noise(key, eta, 1.0))` is SGLD (Welling, Teh 2011).
    """
    eta = step_size if callable(step_size) else lambda step: step_size

    def init(params: Params) -> NoiseState:
        return NoiseState(jnp.asarray(first, "int32"))

    def update(updates: Params, state: NoiseState, params: Params | None = None) -> tuple[Params, NoiseState]:
        flat, unravel = ravel_pytree(updates)
        deviation = jnp.sqrt(2 * jnp.asarray(eta(state.step)) * temperature).astype(flat.dtype)

        words = jax.random.key_data(jax.random.fold_in(key, state.step))  # a choice that is batched would use the key itself twice

        def add(flat: Array) -> Array:
            own = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
            return flat + deviation * jax.random.normal(own, flat.shape, flat.dtype)

        # Drawing is most of a step of a small model; noise of weight 0 need not be drawn.
        return unravel(jax.lax.cond(jnp.any(deviation != 0), add, lambda flat: flat, flat)), NoiseState(state.step + 1)

    return optax.GradientTransformation(init, update)
