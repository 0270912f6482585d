"""Schedules made by hand, and their replay through an algorithm without the engine.

Dimension letters: `T` ticks, `S` slots.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

import fedjax_sim
from fedjax_sim import Event, Plan, System
from fedjax_sim.core.events import DRAWN
from fedjax_sim.core.settings import known_values
from fedjax_sim.problems import Quadratic

GROUPED = ("hierarchical", "async_hierarchical")
"""Systems whose slots are groups of clients. Here every group has one client."""
ONE_BY_ONE = ("fedasync", "gen_async", "asyncfeded", "asyncfeded_adaptive")
"""The systems whose ticks have one slot."""
CLIENTS = [[0, 5, 2, 3], [6, 1, 4, 0], [3, 2, 6, 5]]
STEPS = [[2, 5, 0, 1], [3, 3, 1, 4], [5, 1, 2, 2]]
SCRATCH = 2
"""The row of the store that no client reads."""


class Bound(NamedTuple):
    """A system with a problem and a schedule for it.

    Attributes:
      system: The system.
      problem: What is learnt.
      hyper: The settings.
      plan: The plan that the algorithm is bound to.
      events: The schedule, leaves `[T, ...]`.
    """

    system: System
    problem: Any
    hyper: Any
    plan: Plan
    events: Event

    @property
    def algorithm(self) -> fedjax_sim.Algorithm:
        """The bound algorithm."""
        return self.system.algorithm(self.problem, self.hyper, self.plan)

    def run(self, key: jax.Array) -> tuple[Any, Any]:
        """Return the last state, and the Info of every tick."""
        known = tuple(sorted(known_values(self.hyper)))
        return _replay(self.system, self.plan, known, self.problem, self.hyper, key, self.events)


def replay(
    system: System, plan: Plan, problem: Any, hyper: Any, key: jax.Array, events: Event
) -> tuple[Any, Any]:
    """Replay a schedule; return the last state, and the Info of every tick."""
    algorithm = system.algorithm(problem, hyper, plan)
    return jax.lax.scan(
        lambda state, event: algorithm.step(key, state, event), algorithm.init(key), events
    )


def _replay_known(
    system: System, plan: Plan, known: tuple[tuple[str, float], ...], problem: Any, *rest: Any
) -> tuple[Any, Any]:
    """Replay with settings that are `known` as a part of the program, as in the engine."""
    hyper, key, events = rest
    return replay(system, plan, problem, dataclasses.replace(hyper, **dict(known)), key, events)


_replay = jax.jit(_replay_known, static_argnums=(0, 1, 2))


def some_events(clients: Any, steps: Any, *, weight: float = 0.25) -> Event:
    """Make ticks whose slots start from the model of the tick before.

    Versions use rows 0 and 1 of the store in turn; row 2 is a scratch row.
    """
    clients, steps = jnp.asarray(clients, "int32"), jnp.asarray(steps, "int32")
    ticks = jnp.arange(len(clients), dtype="int32")
    version = jnp.broadcast_to(ticks[:, None], clients.shape)
    offset = jnp.cumsum(steps, axis=0, dtype="int32") - steps
    weights = jnp.full(clients.shape, weight, "float32")
    rows = version % 2, (ticks + 1) % 2
    return Event(ticks, clients, steps, version, weights, offset, *rows, facts=DRAWN)


def events_of(system: System, clients: Any, steps: Any) -> Event:
    """Make ticks of all slots, or of one slot each for systems that have one."""
    shape = (-1, 1) if system.name in ONE_BY_ONE else np.shape(clients)
    return some_events(np.reshape(clients, shape), np.reshape(steps, shape))


def emptied(events: Event, is_empty: Any) -> Event:
    """Empty some ticks as the engine does. is_empty: `bool[T]`."""
    is_empty = jnp.asarray(is_empty)
    slots = is_empty[:, None]
    return events.within(
        facts=events.facts,
        clients=jnp.where(slots, -1, events.clients),
        steps=jnp.where(slots, 0, events.steps),
        weight=jnp.where(slots, 0, events.weight),
        read=jnp.where(slots, SCRATCH, events.read),
        write=jnp.where(is_empty, SCRATCH, events.write),
    )


def kept_per_client(state: Any) -> list[Any]:
    """Return what a state holds for every client: models, memories, oracles, each `[N, ...]`."""
    names = ("clients", "groups", "oracle")
    rows = [getattr(state, name) for name in names if hasattr(state, name)]
    memory = getattr(state, "memory", None)
    return jax.tree.leaves([*rows, memory.clients] if hasattr(memory, "clients") else rows)


def server_of(state: Any) -> jax.Array:
    """Return what the server has learnt as one vector."""
    return ravel_pytree(state.server)[0]


def without_scratch(state: Any) -> Any:
    """Drop the scratch row of a state's store, if it has one."""
    if not hasattr(state, "versions"):
        return state
    return state._replace(versions=state.versions[:SCRATCH])


@struct.dataclass
class Located(Quadratic):
    """Quadratics that report every coordinate of the model as a metric."""

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {f"w{i}": params[i] for i in range(params.shape[0])}
