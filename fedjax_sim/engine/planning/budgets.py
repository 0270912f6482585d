"""How many ticks belong to a budget: a number of them, a stretch of virtual time, or an energy.

The ticks of a stretch of time are only known once they are drawn. So timelines are drawn longer and
longer until those of all lanes cover the budget.

Dimension letters: `L` lanes, `T` ticks, `S` slots.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Budget, Energy, HyperT, System, Ticks, Time, Timeline

Meters = Sequence[Callable[[Timeline], np.ndarray]] | None
"""From the timelines of lanes to the energy of each tick, `f64[T]`; None if it does not matter."""

MAX_TICKS = 2**24
"""Longest schedule of a lane."""

FIRST_OF_ENERGY = 256
"""Ticks that are drawn first where a budget is one of energy."""

MOST_OF_ESTIMATE = 4
"""How many times the estimated ticks a live lane has at most, if nobody says."""


def as_planned(system: System, hypers: Sequence[HyperT], budget: Budget) -> Budget:
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


def ticks_to_draw(system: System, hypers: Sequence[HyperT], budget: Budget) -> int:
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
    draw: Callable[[int], Timeline],
    budget: Budget,
    *,
    first: int = 0,
    overshoot: bool = False,
    meters: Meters = None,
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until all lanes cover their budget.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      budget: How long a run lasts.
      first: Number of ticks to draw first, at least those of the budget.
      overshoot: As in `System`.
      meters: As in `request_timelines`.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If the budget ends before the first tick, a recorded trace holds fewer ticks, or
        too many ticks must be drawn.
    """
    asked = max(first, budget.num_ticks) if isinstance(budget, Ticks) else first
    while asked <= MAX_TICKS:
        timelines = draw(asked)
        asked *= 2
        if isinstance(budget, Ticks):
            if _has_ticks(timelines, budget.num_ticks):
                return timelines, np.full(len(timelines.time), budget.num_ticks)
            continue
        used, limit = timelines.time, budget.named[1]
        if isinstance(budget, Energy):
            used, overshoot = _energy_used(timelines, meters), False
        counts = [ticks_in_budget(lane, limit, overshoot=overshoot) for lane in used]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            if min(known) == 0:
                raise _too_short(budget, float(used[:, 0].max()))
            return timelines, np.asarray(known)
        if isinstance(budget, Energy):
            # So many ticks would be needed if they went on as they began.
            least = float(np.nanmax(used, axis=1, initial=0.0).min())
            needed = asked / 2 * limit / least if least > 0 else asked
            asked = max(asked, min(int(1.1 * needed), 2 * MAX_TICKS))
    if isinstance(budget, Ticks):
        raise ConfigError("num_ticks", budget.num_ticks, f"at most {MAX_TICKS // 2}")
    raise _too_long(budget)


def _has_ticks(timelines: Timeline, num_ticks: int) -> bool:
    """Tell whether so many ticks of all lanes are known.

    Raises:
      ConfigError: If a recorded trace holds fewer.
    """
    missing = np.isinf(timelines.time[:, :num_ticks])
    if missing.any():
        known = int(np.argmax(missing.any(axis=0)))
        raise ConfigError("num_ticks", num_ticks, f"at most the {known} ticks that the trace holds")
    return not np.isnan(timelines.time[:, :num_ticks]).any()


def _energy_used(timelines: Timeline, meters: Meters) -> np.ndarray:
    """Sum the energy up to each tick: `f64[L, T]`; nan where a tick is not known yet."""
    assert meters is not None
    lanes = [Timeline(*leaves) for leaves in zip(*timelines, strict=True)]
    each = np.stack([meter(lane) for meter, lane in zip(meters, lanes, strict=True)])
    # A trace has ended where times are infinite.
    total = np.cumsum(np.where(np.isposinf(timelines.time), np.inf, each), axis=1)
    return np.where(np.isnan(timelines.time), np.nan, total)


def _too_short(budget: Budget, first: float) -> ConfigError:
    """Refuse a budget that ends before the first tick, which takes or acts at so much."""
    allowed = f"at least {first!r}, which the first tick takes"
    if isinstance(budget, Time):
        allowed = f"at least {first:g}, when the server first acts"
    return ConfigError(*budget.named, allowed)


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
