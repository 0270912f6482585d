"""Phase one: draw timelines that are long enough for every lane's budget."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.lanes import Stacked, stack_settings
from fedjax_sim.settings import ConfigError
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key, System, Timeline


def request_timelines(
    system: System,
    keys: Array,
    hypers: Sequence[Any],
    *,
    time_budget: float | None = None,
    num_ticks: int | None = None,
) -> tuple[Timeline, np.ndarray]:
    """Draw timelines that cover the budget of every lane: leaves `[L, T, ...]`, and the ticks that belong to each, `i64[L]`.

    keys: `key[L]`. hypers: settings of equal static parts, L of them. Raises ConfigError for a budget that is too short for one tick,
    or too long.
    """
    expected = 0.0
    if time_budget is not None:
        expected = max(float(np.max(system.ticks_within(hyper, time_budget))) for hyper in hypers)
        if expected > MAX_TICKS:
            raise too_long(time_budget)
    try:
        return lengthen(
            lambda asked: draw_timelines(system, keys, hypers, asked),
            first=int(min(16 + 1.1 * expected, MAX_TICKS)),
            budget=time_budget,
            num_ticks=num_ticks,
            overshoot=system.overshoot,
        )
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        field, value = (
            ("time_budget", time_budget) if num_ticks is None else ("num_ticks", num_ticks)
        )
        raise ConfigError(
            field, value, f"few enough for the schedule of {system.name} to fit in memory"
        ) from None


def draw_timelines(system: System, keys: Array, hypers: Sequence[Any], num_ticks: int) -> Timeline:
    """Phase one: the timelines of all lanes, leaves `[L, T, ...]` on the host, times in 64 bits. keys, hypers: as for `request`."""
    with jax.enable_x64(True):
        drawn = _draw(system.timeline, num_ticks, keys, stack_settings(hypers))
        return jax.tree.map(np.asarray, drawn)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(
    timeline: Callable[[Key, Any, int], Timeline], num_ticks: int, keys: Array, hypers: Stacked
) -> Timeline:
    drawn = jax.vmap(
        lambda key, own: timeline(stream(key, "timeline"), hypers.of_lane(own), num_ticks)
    )(keys, hypers.own)
    drawn = Timeline(*drawn)
    whole = {
        name: getattr(drawn, name).astype("int32")
        for name in ("clients", "steps", "version", "holds")
    }
    return drawn._replace(**whole)


MAX_TICKS = 2**24


def ticks_in_budget(time: np.ndarray, budget: float, *, overshoot: bool) -> int | None:
    """Count the ticks of `time` (f64[T]) that belong to a budget of virtual time; None if more must be known to tell.

    With overshoot a tick belongs that begins before the budget's end, and the last one runs past it; else one that acts within it.
    """
    begins = np.concatenate([[0.0], time[:-1]]) if overshoot else time
    with np.errstate(invalid="ignore"):
        # A tick that acts at the budget's end belongs to it, whatever the last bit of its time.
        inside = (begins < budget if overshoot else begins <= budget * (1 + 1e-12)) & ~np.isposinf(
            time
        )
    unknown = np.isnan(time) | np.isnan(begins)
    count = int(np.argmin(inside)) if not inside.all() else len(time)
    if count == len(time) or unknown[count]:
        return None
    return count


def lengthen(
    draw: Callable[[int], Timeline],
    *,
    first: int,
    budget: float | None,
    num_ticks: int | None,
    overshoot: bool,
) -> tuple[Timeline, np.ndarray]:
    """Ask for longer and longer timelines until all lanes cover the budget. draw: ticks to leaves [L, T, ...]. Returns ticks `i64[L]`."""
    asked = num_ticks if num_ticks is not None else first
    while True:
        timelines = draw(asked)
        counts: list[int] | None
        if num_ticks is not None:
            missing = np.isinf(timelines.time[:, :num_ticks])
            if missing.any():
                known = int(np.argmax(missing.any(axis=0)))
                raise ConfigError(
                    "num_ticks", num_ticks, f"at most the {known} ticks that the trace holds"
                )
            counts = (
                None
                if np.isnan(timelines.time[:, :num_ticks]).any()
                else [num_ticks] * len(timelines.time)
            )
        else:
            assert budget is not None
            found = [ticks_in_budget(time, budget, overshoot=overshoot) for time in timelines.time]
            counts = [count for count in found if count is not None]
            counts = counts if len(counts) == len(found) else None
        if counts is not None:
            if min(counts) == 0:
                acts = float(timelines.time[:, 0].max())
                raise ConfigError(
                    "time_budget", budget, f"at least {acts:g}, when the server first acts"
                )
            return timelines, np.asarray(counts)
        asked *= 2
        if asked > MAX_TICKS:
            raise (
                too_long(budget)
                if num_ticks is None
                else ConfigError("num_ticks", num_ticks, f"at most {MAX_TICKS // 2}")
            )


def too_long(time_budget: float | None) -> ConfigError:
    """What to raise for a budget of too many ticks."""
    return ConfigError("time_budget", time_budget, f"short enough for fewer than {MAX_TICKS} ticks")
