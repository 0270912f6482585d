"""What live systems carry after every tick, for tests that follow them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim.core.clocks import ENDINGS
from fedjax_sim.core.streams import clock_key, stream
from fedjax_sim.core.types import Instant, System
from fedjax_sim.engine.program.opened import learning_key


class Trace(NamedTuple):
    """Of every tick: leaves `[T, ...]`.

    Attributes:
      time: `f64[T]`, when the server acted.
      clients: `i32[T, S]`.
      steps: `i32[T, S]`.
      weight: `f[T, S]`.
      memory: What the clock's choice remembers after the tick.
      model: The model after it.
      executed: Evaluations that were run.
      needed: Evaluations of these that the algorithm asked for.
      ended: Why the lane did nothing, one of `ENDINGS`; "" if it did something.
    """

    time: np.ndarray
    clients: np.ndarray
    steps: np.ndarray
    weight: np.ndarray
    memory: Any
    model: np.ndarray
    executed: np.ndarray
    needed: np.ndarray
    ended: list[str]


def trace(
    system: System, problem: Any, hyper: Any, *, ticks: int, seed: int = 0, until: float = 0.0
) -> Trace:
    """Run a live system and note what it carries. until: when its time is over; 0 for never."""
    budget = fedjax_sim.Time(until, most_ticks=ticks) if until else fedjax_sim.Ticks(ticks)
    bound = fedjax_sim.bind(system, problem, hyper, seed=seed, budget=budget)

    def step(state: Any, tick: jax.Array) -> tuple[Any, tuple]:
        state, info = bound.step(state, bound.event(tick))
        event = info.event
        carried = tuple(state.now), event.clients, event.steps, event.weight
        return state, (*carried, state.clock.memory, bound.model(state), *info[:2], state.ended)

    run = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(ticks, dtype="int32"))[1])
    time, *others, ended = jax.tree.map(np.asarray, run(bound.init()))
    return Trace(Instant(*time).to_float64(), *others, [*map((*ENDINGS, "").__getitem__, ended)])


def choice_key(seed: int, number: int) -> jax.Array:
    """Return the key from which the systems draw in a round."""
    return jax.random.fold_in(stream(clock_key(learning_key(seed)), "choice"), number)
