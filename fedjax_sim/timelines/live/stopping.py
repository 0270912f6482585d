"""Clocks that end a lane once it has learnt enough."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_sim.core.types import Array, Clock, Event, Key, Received


class Measured(NamedTuple):
    """State of a clock that may end its lane.

    Attributes:
      time: State of the clock alone.
      first: `f[]`, the measure after the first tick; nan before it.
      newest: `f[]`, the newest measure; nan before the first tick.
    """

    time: Any
    first: Array
    newest: Array


def until(
    clock: Clock,
    measure: Callable[[Any, Any], Array],
    *,
    below: Any = None,
    fallen_by: Any = None,
) -> Clock:
    """Return a clock that ends its lane, as "done", once a measure is low enough.

        def clock(problem, hyper):
            return until(live_rounds(...), lambda state, seen: seen.mean.mean(), fallen_by=0.5)

    Args:
      clock: Any live clock.
      measure: From the algorithm's state after a tick, and what its step has seen, to a number,
        such as a loss.
      below: The value at or below which the lane is done; None for no such value.
      fallen_by: How far below its first value the measure must be; None for no such condition.

    Returns:
      The clock.
    """

    def init(key: Key) -> Measured:
        unknown = jnp.full((), jnp.nan)
        return Measured(clock.init(key), unknown, unknown)

    def next_tick(
        key: Key, carried: Measured, state: object, *ahead: object
    ) -> tuple[Measured, Received]:
        time, received = clock.next(key, carried.time, state, *ahead)
        is_done = jnp.asarray(received.is_done)
        if below is not None:
            is_done |= carried.newest <= below
        if fallen_by is not None:
            is_done |= carried.first - carried.newest >= fallen_by
        return carried._replace(time=time), received._replace(is_done=is_done)

    def after(key: Key, carried: Measured, event: Event, state: object, seen: object) -> Measured:
        time = clock.after(key, carried.time, event, state, seen)
        newest = jnp.asarray(measure(state, seen), carried.newest.dtype)
        first = jnp.where(jnp.isnan(carried.first), newest, carried.first)
        return Measured(time, first, newest)

    in_use = clock.in_use
    used = None if in_use is None else (lambda carried: in_use(carried.time))
    return Clock(init, next_tick, after, used, clock.ahead)
