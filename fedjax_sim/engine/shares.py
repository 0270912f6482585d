"""Share a sweep out: lanes are divided among parts of nearly equal work.

What each lane will do is known before anything is compiled, so that every part can work out the
division alone. It depends on the study and the number of parts, and not on the machine.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Whole, checked
from fedjax_sim.core.types import EMPTY, AnyProblem, HyperT, Layout, System, Ticks
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.engine.request import Options, grid_of, list_lanes
from fedjax_sim.engine.resuming.checkpoint import asked_of
from fedjax_sim.results.curves import Grid
from fedjax_sim.results.runs import Run

LaneT = TypeVar("LaneT")


class Unit(NamedTuple, Generic[LaneT]):
    """Lanes of equal program and schedule.

    They share the drawing of their schedule, and those that differ only in numeric settings are
    batched.

    Attributes:
      lanes: The lanes, by whatever names them.
      work: Examples that one of the lanes trains on, counted again at each local step.
    """

    lanes: tuple[LaneT, ...]
    work: int


def divide(units: Sequence[Unit[LaneT]], num_parts: int) -> list[list[LaneT]]:
    """Divide lanes among parts of nearly equal work.

    A part gets consecutive lanes, so that lanes of one program and schedule, which stand together,
    lie in as few parts as possible. No part has more work than an equal share and one lane.

    Args:
      units: All units of the study, those of one program next to each other.
      num_parts: Number of parts, n.

    Returns:
      The lanes of each of the n parts, at least one.

    Raises:
      ConfigError: If there are more parts than lanes.
    """
    lanes = [lane for unit in units for lane in unit.lanes]
    check_num_parts(num_parts, len(lanes))
    work = np.array([unit.work for unit in units for _ in unit.lanes])
    ends, part = np.cumsum(work), np.arange(1, num_parts)
    # Each part begins with the first lane of which half or more lies in its share, and has one.
    first = np.searchsorted(ends - work / 2, ends[-1] * part / num_parts) - part
    first = part + np.clip(np.maximum.accumulate(first), 0, len(lanes) - num_parts)
    return [lanes[i:j] for i, j in itertools.pairwise([0, *first.tolist(), len(lanes)])]


def check_num_parts(num_parts: int, num_lanes: int) -> None:
    """Check that every part can have a lane.

    Args:
      num_parts: Number of parts.
      num_lanes: Number of lanes of the study.

    Raises:
      ConfigError: If there are more parts than lanes, or none.
    """
    if not 1 <= num_parts <= num_lanes:
        allowed = f"from 1 to {num_lanes}, the number of lanes of the study"
        raise ConfigError("number of parts", num_parts, allowed)


class Listed(NamedTuple):
    """A sweep that is checked and listed as lanes.

    Attributes:
      system: The system.
      lanes: All lanes.
      options: The options of the sweep.
      grid: The settings and seeds.
    """

    system: System
    lanes: list[Lane]
    options: Options
    grid: Grid

    def units(self) -> list[Unit[int]]:
        """Draw all schedules, and find lanes of equal program and schedule, by number."""
        units = []
        for group in groups_of(self.lanes):
            schedules = Schedules.of(self.system, group, self.options.budget)
            timelines, ticks = schedules.request()
            examples = int(self.system.hints.step_examples(group[0].hyper))
            for number, end in enumerate(ticks):
                is_present = timelines.clients[number, :end] != EMPTY
                steps = int(timelines.steps[number, :end].sum(where=is_present, dtype=np.int64))
                lanes = tuple(group[i].place for i in np.flatnonzero(schedules.row == number))
                units.append(Unit(lanes, max(1, steps * examples)))
        return units

    def identity(self) -> dict[str, object]:
        """Collect the identity of the sweep, whatever machines its parts run on.

        Programs are therefore those of one lane and one tick on a CPU.
        """
        short = dataclasses.replace(
            self.options,
            budget=Ticks(1),
            layout=Layout(lane_devices=1, client_devices=1),
            checkpoints=None,
            devices=tuple(jax.local_devices(backend="cpu")[:1]),
        )
        groups = groups_of(self.lanes)
        planned = [Planned(self.system, group[:1], short) for group in groups]
        programs = [each.on_devices().program_digest() for each in planned]
        return {**asked_of(self.system, self.lanes, self.options), "program": programs}

    def lower(self) -> list[jax.stages.Lowered]:
        """Lower the program of each group, of one chunk, for `devices`, which need not exist."""
        planned = [Planned(self.system, group, self.options) for group in groups_of(self.lanes)]
        return [each.on_devices().lowered() for each in planned]

    def check_schedules(self) -> None:
        """Draw the schedules, a few at a time, and keep none.

        As many are drawn as `sweep` draws, which then finds the drawing program compiled.

        Raises:
          ConfigError: If the budget is too short for one tick, or too long.
        """
        for group in groups_of(self.lanes):
            Schedules.of(self.system, group, self.options.budget).count_ticks()


def listed(
    system: System[HyperT, Any, Any],
    problem: AnyProblem | list[AnyProblem] | Callable[[int], AnyProblem],
    hyper: HyperT | None,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> Listed:
    """Check and list the lanes of a sweep, with its arguments and those of `Options`.

    Raises:
      ConfigError: If an input is not allowed.
    """
    asked, grid = Options(**options), grid_of(seeds, settings)
    return Listed(system, list_lanes(system, problem, hyper, grid, asked), asked, grid)


class Sharing(Protocol):
    """Something that decides which lanes of a sweep run here, such as a `Part`."""

    def run(self, sweep: Listed, run_lanes: Callable[[Collection[int]], Run]) -> Run:
        """Run some of the lanes, and return the result of `sweep`.

        Args:
          sweep: All lanes.
          run_lanes: Runs lanes, by number.
        """


@checked
@dataclasses.dataclass(frozen=True)
class Part:
    """The lanes of one part of a sweep, or of a study of several, that is shared out.

        half = fedjax_sim.Part(0, 2)  # the other half is Part(1, 2), on another machine
        run = fedjax_sim.sweep(
            fedavg.system, problem, hyper, seeds=4, budget=fedjax_sim.Ticks(20), lanes=half
        )

    Attributes:
      number: Number of the part, from 0.
      num_parts: Number of parts, above `number`.
    """

    number: Whole
    num_parts: Count

    def __post_init__(self) -> None:
        """Check that there is such a part."""
        if self.number >= self.num_parts:
            allowed = "i/n with whole numbers i from 0 to n - 1, such as 0/4"
            raise ConfigError("part", str(self), allowed)

    def __str__(self) -> str:
        """Return "0/4" for the first of four parts."""
        return f"{self.number}/{self.num_parts}"

    def choose(self, units: Sequence[Unit[LaneT]]) -> list[LaneT]:
        """Return the lanes of the part.

        Args:
          units: All lanes.

        Raises:
          ConfigError: If there are more parts than lanes.
        """
        return divide(units, self.num_parts)[self.number]

    def run(self, sweep: Listed, run_lanes: Callable[[Collection[int]], Run]) -> Run:
        """Run the lanes of the part.

        Args:
          sweep: All lanes.
          run_lanes: Runs lanes, by number.
        """
        return run_lanes(self.choose(sweep.units()))
