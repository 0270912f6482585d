"""The ticks of schedules as the device holds them, and the event of each tick.

Dimension letters: those of `fedjax_sim.types`, `D` schedules, `V` evaluations, `E` ticks between
two evaluations.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_sim.types import Array, Event, Facts, Leaf


class Ticks(NamedTuple):
    """What a device keeps of schedules, to build the event of a tick.

    The leading axes of every leaf are schedules D, evaluations V and ticks between two evaluations
    E. An axis along which nothing changes has length 1: with full participation no leaf has a tick
    axis and a slot axis.

    Attributes:
      clients: `i32[D, V, E, S]`, as in `Event`.
      steps: `i32[D, V, E, S]`, as in `Event`.
      staleness: `i32[D, V, E, S]`, tick - version.
      weight: `f[D, V, E, S]`, as in `Event`.
      offset: `i32[D, V, E, S]`, as in `Event`; None if it is tick * steps.
      read: `i32[D, V, E, S]`, as in `Event`.
      write: `i32[D, V, E]`, as in `Event`.
    """

    clients: Leaf
    steps: Leaf
    staleness: Leaf
    weight: Leaf
    offset: Leaf | None
    read: Leaf
    write: Leaf


def event_at(
    stored: Ticks,
    row: Array,
    tick: Array,
    place: tuple[Array, Array],
    *,
    facts: Facts = Facts(),
) -> Event:
    """Build the event of one tick on the device.

    Args:
      stored: The ticks.
      row: `i32[]`, which of the schedules.
      tick: `i32[]`, number of the tick since the start of the run.
      place: Where the tick stands in the axes of evaluations and of ticks, `i32[]` each.
      facts: What is known of all ticks.
    """

    def pick(leaf: Array) -> Array:
        return look_up(leaf, (row, *place))

    steps, staleness = pick(stored.steps), pick(stored.staleness)
    return Event(
        tick=tick,
        clients=pick(stored.clients),
        steps=steps,
        version=tick - staleness,
        weight=pick(stored.weight),
        offset=tick * steps if stored.offset is None else pick(stored.offset),
        read=pick(stored.read),
        write=pick(stored.write),
        facts=facts,
    )


def look_up(leaf: Array, index: tuple) -> Array:
    """Index the leading axes of an array, except those of length 1, whose entry is for all."""
    places = tuple(i if length > 1 else 0 for i, length in zip(index, leaf.shape, strict=False))
    return jnp.asarray(leaf).at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)
