"""Langevin dynamics as optax transformations: noise, momentum and a preconditioner."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients.mini_batches import BatchGradient
from fedjax_sim.core.types import Array, Key, Params

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

        sgld = optax.chain(optax.sgd(0.01), add_langevin_noise(key, 0.01, 1.0))
        cold = optax.chain(optax.sgd(0.01), add_langevin_noise(key, 0.01, 0.0))
        update, _ = cold.update(jnp.array([2.0]), cold.init(jnp.array([0.0])))
        assert jnp.allclose(update, -0.01 * 2.0)  # with temperature 0 there is no noise

    Args:
      key: Equal keys and step numbers give equal noise, so several transformations may share noise.
      step_size: eta, or a function from the step's number to eta.
      temperature: tau, in units of the energy whose gradient is followed. With 0 updates pass
        unchanged.
      first: Number of the first step.

    Returns:
      The transformation; its state is the number of the next step.
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


def add_momentum(
    moves: optax.GradientTransformation, friction: Number
) -> optax.GradientTransformation:
    """Turn Langevin steps into steps of SGHMC on a pair (model, velocity).

    v <- (1 - a) v + move, theta <- theta + v (Chen, Fox and Guestrin 2014, arXiv 1402.4102, eq. 15,
    without its estimate of the gradients' noise). Only the gradient of the model is read.

        sghmc = add_momentum(optax.sgd(0.1), 0.25)
        pair = (jnp.array([0.0]), jnp.array([4.0]))  # model and velocity
        update, _ = sghmc.update((jnp.array([10.0]),) * 2, sghmc.init(pair), pair)
        assert optax.apply_updates(pair, update)[1] == (1 - 0.25) * 4.0 - 0.1 * 10.0

    Args:
      moves: Steps -eta grad + sqrt(2 a eta tau) xi of a model.
      friction: a, above 0 and at most 1; with 1 the model moves by `moves` alone.

    Returns:
      A transformation of pairs (model, velocity).
    """

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        assert params is not None
        model, velocity = params
        move, after = moves.update(updates[0], state, model)
        kept = jax.tree.map(lambda v: v * jnp.asarray(1 - friction, v.dtype), velocity)
        moved = jax.tree.map(jnp.add, kept, move)
        return (moved, jax.tree.map(jnp.subtract, moved, velocity)), after

    return optax.GradientTransformation(lambda params: moves.init(params[0]), update)


def of_pair(gradient: BatchGradient) -> BatchGradient:
    """Turn the gradient of a model into one of a pair (model, velocity), for `add_momentum`.

        slope = of_pair(lambda model, q: 2 * model)
        assert slope((jnp.array([3.0]), jnp.array([0.0])), 0)[0] == 2 * 3.0

    Args:
      gradient: The gradient at a model, of a step by its number.

    Returns:
      The same for a pair: the gradient at its model, twice.
    """

    def both(pair: Params, q: Array) -> Params:
        slope = gradient(pair[0], q)
        return slope, slope

    return both


def precondition(moves: optax.GradientTransformation, root: Params) -> optax.GradientTransformation:
    """Precondition Langevin steps: -eta D grad + sqrt(2 eta tau D) xi for a diagonal D.

        moves = precondition(optax.sgd(0.5), jnp.array([2.0, 1.0]))  # D is 4 and 1
        update, _ = moves.update(jnp.ones(2), moves.init(jnp.zeros(2)))
        assert update.tolist() == [-0.5 * 4, -0.5 * 1]

    Args:
      moves: Steps -eta grad + sqrt(2 eta tau) xi.
      root: The square root of D, a pytree like the model.

    Returns:
      The preconditioned steps.
    """

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        move, after = moves.update(jax.tree.map(jnp.multiply, root, updates), state, params)
        return jax.tree.map(jnp.multiply, root, move), after

    return optax.GradientTransformation(moves.init, update)


def without_gradients(
    moves: optax.GradientTransformation, start: Params, num_steps: Array | int
) -> Params:
    """Return the model that a client without data reaches: noise and momentum alone move it.

        moves = optax.chain(optax.sgd(0.1), add_langevin_noise(key, 0.1, 1.0))
        assert without_gradients(moves, model, 5).shape == model.shape
        assert (without_gradients(optax.sgd(0.1), model, 5) == model).all()

    Args:
      moves: Langevin steps.
      start: The model before.
      num_steps: Number of steps.
    """
    still = optax.tree.zeros_like(start)

    def step(_: Array, carried: tuple[Params, Params]) -> tuple[Params, Params]:
        update, after = moves.update(still, carried[1], carried[0])
        return optax.apply_updates(carried[0], update), after

    steps = jnp.asarray(num_steps, "int32")
    return jax.lax.fori_loop(0, steps, step, (start, moves.init(start)))[0]
