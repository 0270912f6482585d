"""The noise of Langevin dynamics, as optax transformations that can be chained with others."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
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
        noise = jax.random.normal(jax.random.fold_in(key, state.step), flat.shape, flat.dtype)
        return unravel(flat + deviation * noise), NoiseState(state.step + 1)

    return optax.GradientTransformation(init, update)
