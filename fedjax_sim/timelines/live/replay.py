"""A planned schedule, taken through the same steps as a live one.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import checking, types
from fedjax_sim.core.types import (
    Array,
    Clock,
    Instant,
    Key,
    Live,
    Received,
    Sizes,
    System,
    Timeline,
)
from fedjax_sim.timelines.checks import check_own
from fedjax_sim.timelines.live.frames import with_clock


@checking.checked
def replayed(system: System, timeline: Timeline) -> System:
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
