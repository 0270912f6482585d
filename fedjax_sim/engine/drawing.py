"""Phase one: draw timelines that are long enough for every lane's budget.

A budget is a stretch of virtual time or a number of ticks.

Dimension letters: those of `fedjax_sim.types`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.lanes import Stacked, stack_settings
from fedjax_sim.settings import ConfigError
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key, System, Timeline

MAX_TICKS = 2**24
"""Longest schedule of a lane."""


def request_timelines(
    system: System,
    keys: Array,
    hypers: Sequence[Any],
    *,
    time_budget: float | None = None,
    num_ticks: int | None = None,
) -> tuple[Timeline, np.ndarray]:
    """Draw timelines that cover the budget of every lane.

    Args:
      system: The system.
      keys: `key[L]`, the lanes' keys.
      hypers: L settings of equal static parts.
      time_budget: Virtual time of a run; or else
      num_ticks: server actions of a run.

    Returns:
      The timelines, leaves `[L, T, ...]`, and the ticks that belong to each lane, `i64[L]`.

    Raises:
      ConfigError: If the budget is too short for one tick, or too long.
    """
    first = num_ticks or 0
    if time_budget is not None:
        within = system.hints.ticks_within
        expected = max(float(np.max(within(hyper, time_budget))) for hyper in hypers)
        if expected > MAX_TICKS:
            raise _too_long(time_budget)
        first = int(min(16 + 1.1 * expected, MAX_TICKS))
    try:
        draw = partial(draw_timelines, system, keys, hypers)
        if num_ticks is not None:
            return lengthen_to_ticks(draw, num_ticks)
        assert time_budget is not None
        return lengthen_to_time(draw, time_budget, first=first, overshoot=system.overshoot)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        field = "time_budget" if num_ticks is None else "num_ticks"
        value = time_budget if num_ticks is None else num_ticks
        allowed = f"few enough for the schedule of {system.name} to fit in memory"
        raise ConfigError(field, value, allowed) from None


def draw_timelines(system: System, keys: Array, hypers: Sequence[Any], num_ticks: int) -> Timeline:
    """Draw the timelines of all lanes.

    Args:
      system: The system.
      keys: `key[L]`, the lanes' keys.
      hypers: L settings of equal static parts.
      num_ticks: Number of ticks, T.

    Returns:
      Leaves `[L, T, ...]` on the host, with times in 64 bits.
    """
    with jax.enable_x64(True):
        drawn = _draw(system.timeline, num_ticks, keys, stack_settings(hypers))
        return jax.tree.map(np.asarray, drawn)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(
    timeline: Callable[[Key, Any, int], Timeline], num_ticks: int, keys: Array, hypers: Stacked
) -> Timeline:
    def lane(key: Key, varying: list[Any]) -> Timeline:
        return timeline(stream(key, "timeline"), hypers.of_lane(varying), num_ticks)

    drawn = Timeline(*jax.vmap(lane)(keys, hypers.varying))
    integers = ("clients", "steps", "version", "holds")
    return drawn._replace(**{name: getattr(drawn, name).astype("int32") for name in integers})


def lengthen_to_ticks(
    draw: Callable[[int], Timeline], num_ticks: int
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until `num_ticks` ticks of all lanes are known.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      num_ticks: Ticks of every lane.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If a recorded trace holds fewer ticks, or too many must be drawn.
    """
    asked = num_ticks
    while asked <= MAX_TICKS:
        timelines = draw(asked)
        missing = np.isinf(timelines.time[:, :num_ticks])
        if missing.any():
            known = int(np.argmax(missing.any(axis=0)))
            allowed = f"at most the {known} ticks that the trace holds"
            raise ConfigError("num_ticks", num_ticks, allowed)
        if not np.isnan(timelines.time[:, :num_ticks]).any():
            return timelines, np.full(len(timelines.time), num_ticks)
        asked *= 2
    raise ConfigError("num_ticks", num_ticks, f"at most {MAX_TICKS // 2}")


def lengthen_to_time(
    draw: Callable[[int], Timeline], budget: float, *, first: int, overshoot: bool
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until all lanes cover a budget of virtual time.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      budget: Virtual time.
      first: Number of ticks to draw first.
      overshoot: As in `System`.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If the budget ends before the first tick, or too many ticks must be drawn.
    """
    asked = first
    while asked <= MAX_TICKS:
        timelines = draw(asked)
        counts = [ticks_in_budget(time, budget, overshoot=overshoot) for time in timelines.time]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            if min(known) == 0:
                acts = float(timelines.time[:, 0].max())
                allowed = f"at least {acts:g}, when the server first acts"
                raise ConfigError("time_budget", budget, allowed)
            return timelines, np.asarray(known)
        asked *= 2
    raise _too_long(budget)


def ticks_in_budget(time: np.ndarray, budget: float, *, overshoot: bool) -> int | None:
    """Count the ticks that belong to a budget of virtual time.

    Args:
      time: `f64[T]`, times of the ticks.
      budget: Virtual time.
      overshoot: Whether a tick belongs to the budget if it begins before the budget's end, so that
        the last one runs past it; otherwise it must act within the budget.

    Returns:
      The count; None if more ticks must be drawn to know it.
    """
    begins = np.concatenate([[0.0], time[:-1]]) if overshoot else time
    with np.errstate(invalid="ignore"):
        # A tick that acts at the budget's end belongs to it, whatever the last bit of its time.
        is_early = begins < budget if overshoot else begins <= budget * (1 + 1e-12)
        inside = is_early & ~np.isposinf(time)
    unknown = np.isnan(time) | np.isnan(begins)
    count = int(np.argmin(inside)) if not inside.all() else len(time)
    return None if count == len(time) or unknown[count] else count


def _too_long(time_budget: float) -> ConfigError:
    allowed = f"short enough for fewer than {MAX_TICKS} ticks"
    return ConfigError("time_budget", time_budget, allowed)
