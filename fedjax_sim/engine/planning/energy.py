"""The energy that clients take for the work that the server receives, and for its messages.

A table of clients says what a local step takes, and a byte that is sent or received.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import shapes_of_model
from fedjax_sim.core.types import (
    EMPTY,
    AnyProblem,
    Budget,
    Energy,
    HyperT,
    Params,
    System,
    Timeline,
)
from fedjax_sim.engine.planning.lanes import Lane, distinct_objects, distinct_rows


def energy_of_ticks(
    system: System, problem: AnyProblem, hyper: HyperT, model: Params, timeline: Timeline
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
    is_there = timeline.clients != EMPTY
    who = np.where(is_there, timeline.clients, 0)
    of_steps = np.where(is_there, timeline.steps * energies[0][who], 0).sum(axis=1)
    by_client = messages.by_client and messages.by_client(problem, hyper, timeline)
    if by_client is not None:
        return of_steps + by_client / 8 @ energies[1]
    filled = np.maximum(is_there.sum(axis=1), 1)
    both = messages.per_tick and messages.per_tick(problem, hyper, timeline)
    if both is None:
        both = tuple(bits * filled for bits in messages.bits(model, hyper))
    # A tick's bytes are dealt equally to the clients that report.
    each = (sum(both) / 8 / filled)[:, None]
    return of_steps + np.where(is_there, each * energies[1][who], 0).sum(axis=1)


def meters_of(
    system: System, group: Sequence[Lane], row: np.ndarray, budget: Budget
) -> list[Callable[[Timeline], np.ndarray]] | None:
    """Return functions from the schedules of lanes to the energy of each tick.

    Args:
      group: L lanes.
      row: `i64[L]`, the number of each lane's schedule.
      budget: How long they run.

    Returns:
      One function for each schedule; None if the budget is none of energy. It raises a ConfigError
      if lanes of the schedule take different energies.

    Raises:
      ConfigError: If a lane's energy is not known.
    """
    if not isinstance(budget, Energy):
        return None
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
            raise ConfigError("energy_budget", budget.energy_budget, words)
    lanes: list[list[Lane]] = [[] for _ in range(row.max() + 1)]
    for i in distinct_rows(of_hyper, row)[0].tolist():
        lanes[row[i]].append(group[i])
    return [partial(_energy_of, system, budget, each) for each in lanes]


def _counts_by_tick(system: System, problem: AnyProblem, hyper: HyperT) -> bool:
    """Tell whether a lane's bits follow from who reported, and not from how many did."""
    per_tick = system.messages.per_tick
    nobody = np.full((1, 1), EMPTY, "int32")
    nothing = Timeline(np.ones(1), nobody, 0 * nobody, 0 * nobody, 0.0 * nobody, 0 * nobody)
    return per_tick is not None and per_tick(problem, hyper, nothing) is not None


def _energy_of(
    system: System, budget: Energy, lanes: Sequence[Lane], timeline: Timeline
) -> np.ndarray:
    """Compute the energy of each tick of a schedule, which must be that of all of its lanes."""
    model = shapes_of_model(lanes[0].problem)
    found = [energy_of_ticks(system, lane.problem, lane.hyper, model, timeline) for lane in lanes]
    assert found[0] is not None
    if any(not np.array_equal(each, found[0]) for each in found):  # type: ignore[arg-type]
        allowed = "a budget of lanes whose messages have equal bits: run the others apart"
        raise ConfigError("energy_budget", budget.energy_budget, allowed)
    return found[0]
