"""How many ticks belong to a budget: a number of them, a stretch of virtual time, or an energy.

The ticks of a stretch of time are only known once they are drawn. So timelines are drawn longer and
longer until those of all lanes cover the budget.

Energy is that of clients, for the work that the server receives and for its messages: a table of
clients says what a local step takes, and a byte that is sent or received.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fedjax_sim.core import settings, trees, types
from fedjax_sim.core.types import Budget, Energy, HyperT, System, Ticks, Time, Timeline
from fedjax_sim.engine.planning.lanes import Lane, distinct_objects, distinct_rows

MAX_TICKS = 2**24
"""Longest schedule of a lane."""

FIRST_OF_ENERGY = 256
"""Ticks that are drawn first where a budget is one of energy."""

MOST_OF_ESTIMATE = 4
"""How many times the estimated ticks a live lane has at most, if nobody says."""


def first_request(
    system: System, hypers: Sequence[HyperT], budget: Time | Energy
) -> tuple[Budget, int]:
    """Return the budget of the timelines that are drawn, and how many ticks to draw first.

    A live system's timelines have all ticks at most.

    Raises:
      ConfigError: If a stretch of time or an energy has a number of ticks and the system is
        planned, or they are too many for any machine; or if an energy of a live system has none.
    """
    most = budget.most_ticks
    if system.live is None:
        if most is not None:
            allowed = f"None for {system.name}, whose ticks are counted before learning"
            raise settings.ConfigError("most_ticks", most, allowed)
        if isinstance(budget, Energy):
            return budget, FIRST_OF_ENERGY
        expected = ticks_within(system, hypers, budget)
        if expected > MAX_TICKS:
            raise _too_long(budget)
        return budget, int(min(16 + 1.1 * expected, MAX_TICKS))
    if most is None:
        allowed = f"given for {system.name}, whose ticks are not known before learning"
        raise settings.ConfigError("most_ticks", None, allowed)
    if most > MAX_TICKS:
        raise _too_long(budget)
    return Ticks(most), most


def ticks_within(system: System, hypers: Sequence[HyperT], budget: Time) -> float:
    """Estimate the most ticks that lanes of some settings have in a stretch of time."""
    within = system.hints.ticks_within
    different, _ = distinct_objects(hypers)
    return max(float(np.max(within(hyper, budget.time_budget))) for hyper in different)


def with_most_ticks(system: System, hypers: Sequence[HyperT], budget: Budget) -> Budget:
    """Limit the ticks of live lanes in a stretch of time, if nobody has.

    Args:
      system: A live one.
      hypers: The settings of all lanes that share a program, also of those that run elsewhere.
    """
    if not isinstance(budget, Time) or budget.most_ticks is not None:
        return budget
    if (expected := ticks_within(system, hypers, budget)) > MAX_TICKS:
        raise _too_long(budget)
    return dataclasses.replace(budget, most_ticks=MOST_OF_ESTIMATE * max(1, int(expected)))


def lengthen(
    draw: Callable[[int], Timeline],
    budget: Time | Energy,
    *,
    first: int,
    overshoot: bool = False,
    energy: Callable[[Timeline], np.ndarray] | None = None,
) -> tuple[Timeline, np.ndarray]:
    """Draw longer and longer timelines until all lanes cover their budget.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      budget: How long a run lasts.
      first: Number of ticks to draw first.
      overshoot: As in `System`.
      energy: The energy that is used up to each tick, see `energy_used`, where the budget is one.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If the budget ends before the first tick, or too many ticks must be drawn.
    """
    asked = first
    while asked <= MAX_TICKS:
        timelines = draw(asked)
        asked = 2 * asked if asked == MAX_TICKS else min(2 * asked, MAX_TICKS)
        used, limit = timelines.time, budget.named[1]
        if energy is not None:
            used, overshoot = energy(timelines), False
        counts = [ticks_in_budget(lane, limit, overshoot=overshoot) for lane in used]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            if min(known) == 0:
                least = float(used[:, 0].max())
                allowed = f"at least {least!r}, which the first tick takes"
                if isinstance(budget, Time):
                    allowed = f"at least {least:g}, when the server first acts"
                raise settings.ConfigError(*budget.named, allowed)
            return timelines, np.asarray(known)
        if energy is not None:
            # So many ticks would be needed if they went on as they began.
            least = float(np.nanmax(used, axis=1, initial=0.0).min())
            needed = used.shape[1] * limit / least if least > 0 else asked
            asked = max(asked, min(int(1.1 * needed), 2 * MAX_TICKS))
    raise _too_long(budget)


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


def _too_long(budget: Budget) -> settings.ConfigError:
    return settings.ConfigError(*budget.named, f"short enough for fewer than {MAX_TICKS} ticks")


def energy_of_ticks(
    system: System,
    problem: types.AnyProblem,
    hyper: HyperT,
    model: types.Params,
    timeline: Timeline,
) -> np.ndarray | None:
    """Compute the energy that each tick of a lane takes.

    It is that of the local steps behind the reports of the tick, and of its messages as they are
    counted in `uplink_bits` and `downlink_bits`. Work that was lost or comes too late takes none
    here, and neither does what is trained besides, such as personal models or by the server.

    Args:
      problem: What is learnt.
      model: Shapes and dtypes of its model.
      timeline: The lane's schedule.

    Returns:
      `f64[T]`; None if the lane has no table that says, or its slots are no clients'.
    """
    energies = getattr(hyper, "energies", None)
    if energies is None or system.messages.num_senders(hyper) is not None:
        return None
    messages = system.messages
    is_there = timeline.clients != types.EMPTY
    who = np.where(is_there, timeline.clients, 0)
    of_steps = np.where(is_there, timeline.steps * energies[0][who], 0).sum(axis=1)
    by_client = messages.by_client(problem, hyper, timeline)
    if by_client is not None:
        return of_steps + by_client / 8 @ energies[1]
    filled = np.maximum(is_there.sum(axis=1), 1)
    both = messages.per_tick(problem, hyper, timeline)
    if both is None:
        both = tuple(bits * filled for bits in messages.bits(model, hyper))
    # A tick's bytes are dealt equally to the clients that report.
    each = (sum(both) / 8 / filled)[:, None]
    return of_steps + np.where(is_there, each * energies[1][who], 0).sum(axis=1)


def lanes_to_meter(
    system: System, group: Sequence[Lane], row: np.ndarray, budget: Energy
) -> list[list[Lane]]:
    """List the lanes of each schedule, and check that their energy is known.

    Args:
      group: L lanes.
      row: `i64[L]`, the number of each lane's schedule.
      budget: How long they run.

    Raises:
      ConfigError: If a lane's energy is not known.
    """
    distinct, of_hyper = distinct_objects([lane.hyper for lane in group])
    for hyper in distinct:
        energies, words = getattr(hyper, "energies", None), ""
        if energies is None or not any(each.any() for each in energies):
            words = "a budget of runs whose client_table says what steps or bytes take"
        elif system.messages.num_senders(hyper) is not None:
            words = f"no budget of {system.name} with these settings, whose slots are no clients"
        elif system.live is not None and _counts_by_tick(system, group[0].problem, hyper):
            words = f"no budget of {system.name}, whose messages are counted after learning"
        if words:
            raise settings.ConfigError("energy_budget", budget.energy_budget, words)
    lanes: list[list[Lane]] = [[] for _ in range(row.max() + 1)]
    for i in distinct_rows(of_hyper, row)[0]:
        lanes[row[i]].append(group[i])
    return lanes


def _counts_by_tick(system: System, problem: types.AnyProblem, hyper: HyperT) -> bool:
    """Tell whether a lane's bits follow from who reported, and not from how many did."""
    nobody = np.full((1, 1), types.EMPTY, "int32")
    nothing = Timeline(np.ones(1), nobody, 0 * nobody, 0 * nobody, 0.0 * nobody, 0 * nobody)
    return system.messages.per_tick(problem, hyper, nothing) is not None


def energy_used(
    system: System, budget: Energy, lanes: Sequence[Sequence[Lane]], timelines: Timeline
) -> np.ndarray:
    """Sum the energy up to each tick: `f64[D, T]`; nan where a tick is not known yet.

    Args:
      budget: How long lanes run.
      lanes: The lanes of each schedule.
      timelines: The schedules, leaves `[D, T, ...]`.

    Raises:
      ConfigError: If lanes of a schedule take different energies.
    """
    of_schedules = []
    for sharing, *leaves in zip(lanes, *timelines, strict=True):
        model, timeline = trees.shapes_of_model(sharing[0].problem), Timeline(*leaves)
        pairs = ((lane.problem, lane.hyper) for lane in sharing)
        found = [energy_of_ticks(system, *pair, model, timeline) for pair in pairs]
        if any(not np.array_equal(each, found[0]) for each in found):  # type: ignore[arg-type]
            allowed = "a budget of lanes whose messages have equal bits: run the others apart"
            raise settings.ConfigError("energy_budget", budget.energy_budget, allowed)
        assert found[0] is not None
        of_schedules.append(found[0])
    # A trace has ended where times are infinite.
    each = np.where(np.isposinf(timelines.time), np.inf, of_schedules)
    return np.where(np.isnan(timelines.time), np.nan, np.cumsum(each, axis=1))
