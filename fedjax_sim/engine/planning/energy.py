"""The energy that clients take for the work that the server receives, and for its messages.

A table of clients says what a local step takes, and a byte that is sent or received.

Dimension letters: those of `fedjax_sim.types`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import EMPTY, Budget, Energy, Params, System, Timeline


def energy_of_ticks(
    system: System, problem: Any, hyper: Any, model: Params, timeline: Timeline
) -> np.ndarray | None:
    """Compute the energy that each tick of a lane takes.

    Args:
      problem: What is learnt.
      model: Shapes and dtypes of its model.
      timeline: The lane's schedule.

    Returns:
      `f64[T]`; None if the lane has no table that says.
    """
    if (energies := getattr(hyper, "energies", None)) is None:
        return None
    messages = system.messages
    is_there = timeline.clients != EMPTY
    filled = np.maximum(is_there.sum(axis=1), 1)
    both = messages.per_tick and messages.per_tick(problem, hyper, timeline)
    if both is None:
        both = tuple(bits * filled for bits in messages.bits(model, hyper))
    # A tick's bytes are dealt equally to the clients that report.
    each = (sum(both) / 8 / filled)[:, None]
    who = np.where(is_there, timeline.clients, 0)
    used = timeline.steps * energies[0][who] + each * energies[1][who]
    return np.where(is_there, used, 0).sum(axis=1)


def meters_of(
    system: System, lanes: Sequence[Lane], budget: Budget
) -> list[Callable[[Timeline], np.ndarray]] | None:
    """Return functions from the schedules of lanes to the energy of each tick.

    Args:
      lanes: The lanes.
      budget: How long they run.

    Returns:
      One function for each lane; None if their budget is none of energy.

    Raises:
      ConfigError: If a lane's energy is not known.
    """
    if not isinstance(budget, Energy):
        return None
    for lane in lanes:
        if getattr(lane.hyper, "energies", None) is None:
            allowed = "a budget of runs whose client_table says what steps or bytes take"
            raise ConfigError("energy_budget", budget.energy_budget, allowed)
        if system.live is not None and _counts_by_tick(system, lane):
            allowed = f"no budget of {system.name}, whose messages are counted after learning"
            raise ConfigError("energy_budget", budget.energy_budget, allowed)
    return [partial(_energy_of, system, lane) for lane in lanes]


def _counts_by_tick(system: System, lane: Lane) -> bool:
    """Tell whether a lane's bits follow from who reported, and not from how many did."""
    per_tick = system.messages.per_tick
    nobody = np.full((1, 1), EMPTY, "int32")
    nothing = Timeline(np.ones(1), nobody, 0 * nobody, 0 * nobody, 0.0 * nobody, 0 * nobody)
    return per_tick is not None and per_tick(lane.problem, lane.hyper, nothing) is not None


def _energy_of(system: System, lane: Lane, timeline: Timeline) -> np.ndarray:
    model = jax.eval_shape(lambda: lane.problem.init(jax.random.key(0)))
    found = energy_of_ticks(system, lane.problem, lane.hyper, model, timeline)
    assert found is not None
    return found
