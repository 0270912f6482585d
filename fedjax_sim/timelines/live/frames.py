"""Give a system a live clock: any one, that of a planned schedule, or one that ends by the results.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedjax_sim.core import types
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array, Clock, Event, HyperT, Instant, Key, Live, Received, Sizes
from fedjax_sim.timelines import presets
from fedjax_sim.timelines.checks import check_own
from fedjax_sim.timelines.delays.laws import Clients


def with_clock(system: types.System, live: Live, **changes: Any) -> types.System:
    """Return a system with a live clock: the same algorithm, on times that may follow from it.

        def clock(problem, hyper):
            draw = uniform_cohort(hyper)
            select = lambda key, now: Asked(now.drawn)
            return live_rounds(hyper, select, num_used=hyper.num_selected, draw=draw)

        live = Live(lambda hyper: Sizes(hyper.num_selected, hyper.local_steps), clock)
        system = with_clock(fedavg.system, live, name="live_fedavg")

    Args:
      system: Any system, whose own clock is left out.
      live: The clock, and what it never exceeds.
      **changes: Other fields of the system, such as `name`, `Hyper`, `algorithm` and `summary`.
        With a `Hyper`, `paper` is FAVANO's comparison unless it is given.

    Returns:
      The system. Its timeline says how many slots ticks have and nothing else.
    """
    can_repeat = changes.get("can_repeat", system.can_repeat)
    paper = presets.preset(changes["Hyper"], presets.FAVANO) if "Hyper" in changes else None
    frames = partial(_frames, live.sizes, can_repeat)
    known = {"timeline": frames, "live": live, "weigh": None, "paper": paper}
    return system._replace(**{**known, **changes})


def _frames(
    sizes: Callable[[HyperT], Sizes], can_repeat: bool, key: Key, hyper: HyperT, num_ticks: int
) -> types.Timeline:
    """Make the timeline of a live system: filled slots of most steps, and no time."""
    found, num_clients = sizes(hyper), cast(Clients, hyper).num_clients
    if found.slots > num_clients and not can_repeat:
        allowed = f"at most num_clients = {num_clients}, as no client can have two"
        raise ConfigError("slots of a live clock", found.slots, allowed)
    shape = num_ticks, found.slots
    tick = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    clients = jnp.broadcast_to(jnp.arange(found.slots) % num_clients, shape)
    steps = jnp.full(shape, found.most_steps, "int32")
    weight = jnp.full(shape, 1 / found.slots)
    return types.Timeline(jnp.zeros(num_ticks), clients, steps, tick, weight, holds=tick)


def replayed(system: types.System, timeline: types.Timeline) -> types.System:
    """Return a live system with the receptions of a schedule, such as one of an earlier run.

        live = replayed(fedavg.system, run.timelines[0])

    Args:
      system: A system.
      timeline: The schedule, on the host. After its end nobody reports.

    Returns:
      The system. Its models have the bits of those of the planned system on that schedule, if both
      are compiled alike.

    Raises:
      ConfigError: If the schedule names what does not exist, such as 1.9 steps.
    """
    found = check_own(system, timeline)
    is_filled = found.clients != types.EMPTY
    steps = np.where(is_filled, found.steps, 0)
    num_ticks, slots = found.clients.shape
    # When each version is read for the last time: who works from it is in use until then.
    tick = np.arange(num_ticks, dtype=np.int32)
    version = np.where(is_filled, found.version, tick[:, None])
    in_use = _versions_in_use(version)
    most = int(steps.max(initial=0))
    sizes = Sizes(slots, most, in_use.shape[1], bool((is_filled & (steps == most)).all()))

    def clock(problem: object, hyper: object) -> Clock[Array]:
        time = Instant.at(np.append(found.time, np.inf))
        of_slots = found.clients, steps, version, found.weight

        def next_tick(key: Key, tick: Array, state: object) -> tuple[Array, Received]:
            at = jnp.minimum(tick, num_ticks - 1)
            who, own, start, weight = (jnp.asarray(leaf)[at] for leaf in of_slots)
            acts = time.take(jnp.minimum(tick, num_ticks))
            return tick + 1, Received(acts, who, own, start, weight)

        def used(tick: Array) -> Array:
            return jnp.asarray(in_use)[jnp.minimum(tick - 1, num_ticks - 1)]

        return Clock(lambda key: jnp.int32(0), next_tick, in_use=used if in_use.shape[1] else None)

    return with_clock(system, Live(lambda hyper: sizes, clock))


def _versions_in_use(version: np.ndarray) -> np.ndarray:
    """List the versions that are made before each tick and read after it: `i32[T, M]`."""
    num_ticks = len(version)
    last = np.full(num_ticks + 1, -1)
    np.maximum.at(last, version, np.arange(num_ticks)[:, None])
    made = np.arange(num_ticks + 1)
    used = [made[: t + 1][last[: t + 1] > t] for t in range(num_ticks)]
    most = max(map(len, used), default=0)
    found = np.full((num_ticks, most), types.EMPTY, np.int32)
    for t, versions in enumerate(used):
        found[t, : len(versions)] = versions
    return found


class Measured(NamedTuple, Generic[types.StateT]):
    """State of a clock that may end its lane.

    Attributes:
      time: State of the clock alone.
      first: `f[]`, the measure after the first tick; nan before it.
      newest: `f[]`, the newest measure; nan before the first tick.
    """

    time: types.StateT
    first: Array
    newest: Array


def until(
    clock: Clock,
    measure: Callable[[types.StateT, types.InfoT], Array],
    *,
    below: ArrayLike | None = None,
    fallen_by: ArrayLike | None = None,
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

    def after(
        key: Key, carried: Measured, event: Event, state: types.StateT, seen: types.InfoT
    ) -> Measured:
        time = clock.after(key, carried.time, event, state, seen)
        newest = jnp.asarray(measure(state, seen), carried.newest.dtype)
        first = jnp.where(jnp.isnan(carried.first), newest, carried.first)
        return Measured(time, first, newest)

    in_use = clock.in_use
    used = None if in_use is None else (lambda carried: in_use(carried.time))
    return Clock(init, next_tick, after, used, clock.ahead)
