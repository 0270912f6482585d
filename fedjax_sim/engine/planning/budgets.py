"""How many ticks belong to a budget: a number of them, a stretch of virtual time, or an energy.

The ticks of a stretch of time are only known once they are drawn. So timelines are drawn longer and
longer until those of all lanes cover the budget.

Dimension letters: `L` lanes, `T` ticks, `S` slots.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Budget, Energy, System, Ticks, Time, Timeline

Meters = Sequence[Callable[[Timeline], np.ndarray]] | None
"""From the timelines of lanes to the energy of each tick, `f64[T]`; None if it does not matter."""

MAX_TICKS = 2**24
"""Longest schedule of a lane."""

FIRST_OF_ENERGY = 256
"""Ticks that are drawn first where a budget is one of energy."""

MOST_OF_ESTIMATE = 4
"""How many times the estimated ticks a live lane has at most, if nobody says."""


def as_planned(system: System, hypers: Sequence[Any], budget: Budget) -> Budget:
    """Return the budget of the timelines that are drawn: a live system's have all ticks at most.

    Raises:
      ConfigError: If a stretch of time or an energy has a number of ticks and the system is
        planned, or they are too many; or if an energy of a live system has none.
    """
    if isinstance(budget, Ticks):
        return budget
    if system.live is None:
        if budget.most_ticks is not None:
            allowed = f"None for {system.name}, whose ticks are counted before learning"
            raise ConfigError("most_ticks", budget.most_ticks, allowed)
        return budget
    if (most := budget.most_ticks) is None:
        if isinstance(budget, Energy):
            allowed = f"given for {system.name}, whose ticks are not known before learning"
            raise ConfigError("most_ticks", None, allowed)
        within = system.hints.ticks_within
        estimates = (int(np.max(within(hyper, budget.time_budget))) for hyper in hypers)
        most = MOST_OF_ESTIMATE * max(1, *estimates)
    if most > MAX_TICKS:
        raise _too_long(budget)
    return Ticks(most)


def ticks_to_draw(system: System, hypers: Sequence[Any], budget: Budget) -> int:
    """Estimate how many ticks cover the budget of every lane.

    Raises:
      ConfigError: If they are too many for any machine.
    """
    if isinstance(budget, Ticks):
        return budget.num_ticks
    if isinstance(budget, Energy):
        return FIRST_OF_ENERGY
    within = system.hints.ticks_within
    expected = max(float(np.max(within(hyper, budget.time_budget))) for hyper in hypers)
    if expected > MAX_TICKS:
        raise _too_long(budget)
    return int(min(16 + 1.1 * expected, MAX_TICKS))


def lengthen(
    draw: Callable[[int], Timeline], budget: Budget, *, first: int, system: System, meters: Meters
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until all lanes cover their budget.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      budget: How long a run lasts.
      first: Number of ticks to draw first.
      meters: As in `request_timelines`.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If the budget is too short for one tick, or too long.
    """
    if isinstance(budget, Ticks):
        return lengthen_to_ticks(draw, budget.num_ticks, first=first)
    if isinstance(budget, Energy):
        assert meters is not None
        return lengthen_to_energy(draw, budget.energy_budget, meters, first=first)
    return lengthen_to_time(draw, budget.time_budget, first=first, overshoot=system.overshoot)


def lengthen_to_ticks(
    draw: Callable[[int], Timeline], num_ticks: int, *, first: int = 0
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until `num_ticks` ticks of all lanes are known.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      num_ticks: Ticks of every lane.
      first: Number of ticks to draw first, if more than `num_ticks`.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If a recorded trace holds fewer ticks, or too many must be drawn.
    """
    asked = max(num_ticks, first)
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
        if (known := _all_known(counts)) is not None:
            if min(known) == 0:
                acts = float(timelines.time[:, 0].max())
                allowed = f"at least {acts:g}, when the server first acts"
                raise ConfigError("time_budget", budget, allowed)
            return timelines, known
        asked *= 2
    raise _too_long(Time(budget))


def lengthen_to_energy(
    draw: Callable[[int], Timeline],
    budget: float,
    meters: Sequence[Callable[[Timeline], np.ndarray]],
    *,
    first: int,
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until all lanes have used their energy.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      budget: The energy.
      meters: From each lane's timeline to the energy of its ticks, `f64[T]`.
      first: Number of ticks to draw first.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If the first tick takes more, or too many ticks must be drawn.
    """
    asked = first
    while asked <= MAX_TICKS:
        timelines = draw(asked)
        used, counts = [], []
        for lane, meter in enumerate(meters):
            timeline = Timeline(*(leaf[lane] for leaf in timelines))
            # A trace has ended where times are infinite, and more is to be drawn where they are
            # not known.
            each = np.where(np.isposinf(timeline.time), np.inf, meter(timeline))
            used.append(np.where(np.isnan(timeline.time), np.nan, np.cumsum(each)))
            counts.append(ticks_in_budget(used[-1], budget))
        if (known := _all_known(counts)) is not None:
            if min(known) == 0:
                needed = float(max(each[0] for each in used))
                allowed = f"at least {needed!r}, which the first tick takes"
                raise ConfigError("energy_budget", budget, allowed)
            return timelines, known
        # So many ticks would be needed if they went on as they began.
        least = min(float(np.nanmax(each, initial=0.0)) for each in used)
        needed_ticks = asked * budget / least if least > 0 else 2 * asked
        asked = max(2 * asked, min(int(1.1 * needed_ticks), 2 * MAX_TICKS))
    raise _too_long(Energy(budget))


def _all_known(counts: Sequence[int | None]) -> np.ndarray | None:
    """Return the counts, if all are known."""
    known = [count for count in counts if count is not None]
    return np.asarray(known) if len(known) == len(counts) else None


def ticks_in_budget(time: np.ndarray, budget: float, *, overshoot: bool = False) -> int | None:
    """Count the ticks that belong to a budget of virtual time, or of energy.

    Args:
      time: `f64[T]`, times of the ticks, or the energy that was used after each.
      budget: Virtual time, or energy.
      overshoot: Whether a tick belongs to the budget if it begins before the budget's end, so that
        the last one runs past it; otherwise it must act within the budget.

    Returns:
      The count; None if more ticks must be drawn to know it.
    """
    begins = np.concatenate([[0.0], time[:-1]]) if overshoot else time
    with np.errstate(invalid="ignore"):
        # A tick that acts at the budget's end belongs to it and one that begins there does not,
        # whatever the last bit of its time.
        end = end_of_time(budget, overshoot=overshoot)
        is_early = begins < end if overshoot else begins <= end
        inside = is_early & ~np.isposinf(time)
    unknown = np.isnan(time) | np.isnan(begins)
    count = int(np.argmin(inside)) if not inside.all() else len(time)
    return None if count == len(time) or unknown[count] else count


def end_of_time(budget: float, *, overshoot: bool, rounding: float = 1e-12) -> float:
    """Move the end of a budget by more than rounding, so that this decides nothing.

    Args:
      budget: As in `ticks_in_budget`.
      overshoot: As in `ticks_in_budget`.
      rounding: Share of the budget by which times may be wrong.
    """
    return budget * (1 - rounding if overshoot else 1 + rounding)


def _too_long(budget: Budget) -> ConfigError:
    return ConfigError(*budget.named, f"short enough for fewer than {MAX_TICKS} ticks")
