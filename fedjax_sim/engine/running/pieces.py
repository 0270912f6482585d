"""Run the lanes of a sweep in pieces that fit in memory.

A group of lanes that fits runs in one piece, and nothing is said. Otherwise one sentence says how
many lanes run at a time. If memory runs out all the same, their number is halved. Pieces give the
results of the whole: they are evaluated after the same ticks, and with a pinned layout a lane's
bits do not depend on which others run. While a piece runs, the host plans the next one: it draws
its schedules and lays them out.

Dimension letters: those of `fedjax_sim.types`; `D` schedules.
"""

import contextlib
import dataclasses
import gc
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.machine import memory
from fedjax_sim.engine.machine.memory import Needs, OutOfMemoryError, count_bytes
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import Lane, distinct_objects, groups_of
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.engine.request import Checkpoints, Options
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.running.groups import Ready, plan_or_load
from fedjax_sim.lifecycle import FolderLock, write_bytes
from fedjax_sim.results.curves import Returned
from fedjax_sim.settings import writing_to
from fedjax_sim.types import EMPTY, System, Ticks

FEW = 0.01
"""Share of the free memory up to which a program needs so little that it is not measured again."""


def run_in_pieces(
    system: System, lanes: list[Lane], options: Options, places: Collection[int]
) -> list[Returned]:
    """Run lanes of a sweep.

    Args:
      lanes: All lanes of the sweep.
      options: The options of the sweep.
      places: Positions of the lanes to run.

    Returns:
      What each piece returned.

    Raises:
      ConfigError: If a timeline is not allowed, or a single lane does not fit in memory.
    """
    parts: list[Returned] = []
    groups = []
    for group in groups_of(lanes):
        is_whole = len(places) == len(lanes)
        chosen = group if is_whole else [lane for lane in group if lane.place in places]
        if chosen:
            groups.append(_Pieces(system, chosen, group, options))
    for each, next_one in itertools.zip_longest(groups, groups[1:]):
        parts += each.run(len(parts), None if next_one is None else next_one.plan_ahead)
    return parts


class _Pieces:
    """The pieces of one group of lanes."""

    def __init__(self, system: System, group: list[Lane], whole: list[Lane], options: Options):
        """Order the lanes so that those of one schedule are adjacent and planned together.

        Args:
          group: L lanes of equal static settings and shapes.
          whole: All such lanes of the sweep. The others run elsewhere.
          options: The options of the sweep.
        """
        self._system, self._options = system, options
        # Number of the piece among those of all groups.
        self._number = 0
        schedules = Schedules.of(system, group, options.budget)
        self._group = [group[i] for i in np.argsort(schedules.row, kind="stable").tolist()]
        self._whole = whole
        self._plan = schedules.measure()
        # Ticks of the longest schedule; 0 until it is known.
        self._longest = options.budget.num_ticks if isinstance(options.budget, Ticks) else 0
        # Lanes of a piece that is known to fit.
        self._accepted = 0
        # Lanes of pieces that do not fit, and the bytes of their programs.
        self._too_large: list[tuple[int, int]] = []
        # Bytes that were free on each device when they were last measured.
        self._free: float | None = None
        # What was planned while other lanes ran.
        self._ahead: Ready | Returned | None = None

    def run(self, number: int, following: Callable[[], None] | None) -> list[Returned]:
        """Run the group piece by piece.

        Args:
          number: Pieces of earlier groups.
          following: Called while the last piece runs: `plan_ahead` of the next group.
        """
        self._number = number
        parts: list[Returned] = []
        rest, size = self._group, self._options.layout.max_lanes or self._lanes_to_plan()
        while rest:
            size = min(self._lanes_of_earlier_run() or size, len(rest))
            after = rest[size:][:size]
            meanwhile = partial(self.plan_ahead, after) if after else following
            part, fits = self._try(rest[:size], len(rest), meanwhile)
            if part is None:
                size = fits
            else:
                parts.append(part)
                self._number += 1
                rest = rest[size:]
        return parts

    def plan_ahead(self, lanes: list[Lane] | None = None) -> None:
        """Plan lanes while others run, where that takes little memory.

        Not with checkpoints: planning reads the folder of the piece, which it may turn into that of
        a longer run, and a signal would have to wait.

        Args:
          lanes: The next piece; the first one of the group if None.
        """
        if self._options.checkpoints is not None or self._ahead is not None:
            return
        lanes = lanes or self._group[: self._options.layout.max_lanes]
        plan = self._plan._replace(num=-(-self._plan.num * len(lanes) // len(self._group)))
        on_host = plan.bytes_fixed + plan.bytes_each * plan.num
        # Otherwise all schedules of the sweep would be drawn first, to find out the longest.
        is_known = self._longest > 0 or len(lanes) == len(self._whole)
        problems = 2 * _bytes_that_differ([lane.problem for lane in lanes])
        if is_known and memory.fits_ahead(problems, on_host):
            # What is refused is planned again in its turn, and refused then.
            with contextlib.suppress(Exception):
                self._ahead = self._plan_or_load(lanes)

    def _plan_or_load(self, lanes: list[Lane]) -> Ready | Returned:
        """Plan a piece, or load its result."""
        saved = self._options.checkpoints
        if saved is not None:
            saved = dataclasses.replace(saved, folder=self._folder())
        options = dataclasses.replace(self._options, checkpoints=saved)
        longest = partial(self._longest_of_all, len(lanes))
        return plan_or_load(self._system, lanes, options, longest=longest)

    def _take_ahead(self, lanes: list[Lane]) -> Ready | Returned | None:
        """Return the plan that was made ahead, if it is that of these lanes; no plan is kept."""
        found, self._ahead = self._ahead, None
        places = {lane.place for lane in lanes}
        is_same = isinstance(found, Ready) and {x.place for x in found.planned.group} == places
        return found if is_same else None

    def _try(
        self, lanes: list[Lane], num_left: int, meanwhile: Callable[[], None] | None
    ) -> tuple[Returned | None, int]:
        """Run lanes, or find out that fewer must be tried.

        Args:
          num_left: Lanes that have not run yet, these included.
          meanwhile: Called once, while the lanes run.

        Returns:
          What the lanes returned, or None if they do not fit; and how many fit.
        """
        num = len(lanes)
        found: Ready | Returned | None = None
        try:
            found = self._take_ahead(lanes) or self._plan_or_load(lanes)
            if isinstance(found, Returned):
                return found, num
            if num == len(self._whole):
                self._longest = int(found.planned.ticks.max())
            if num == 1 or self._is_decided(num):
                self._refuse_what_cannot_fit(found)
            if not self._is_decided(num):
                fits = self._lanes_that_fit(found, num_left)
                if fits != num:
                    return None, fits
                self._accepted = num
            elif self._may_halve(num) and num > self._accepted:
                needs, free = self._needed(found, found.replay.sizes())
                if needs.total > free:  # A program of XLA for CPUs might wait for ever.
                    raise MemoryError
                self._accepted = num
            return found.run(meanwhile), num
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not memory.is_out_of_memory(error):
                raise
            if not self._may_halve(num):
                raise self._refusal(error, num) from None
        # Only without the error and the plans does nothing hold the arrays of the failed attempt.
        found = self._ahead = None
        gc.collect()
        if self._options.checkpoints is not None:
            checkpoint.remove_checkpoints(self._folder())
        self._accepted = num // 2
        memory.say(
            f"memory ran out with {num} lanes of {self._system.name} at a time; from here on "
            f"{num // 2} run at a time."
        )
        return None, num // 2

    def _is_decided(self, num: int) -> bool:
        """Tell whether so many lanes run without a look at the memory."""
        is_given = self._options.layout.max_lanes is not None
        return is_given or num <= self._accepted or self._lanes_of_earlier_run() is not None

    def _folder(self) -> Path:
        """Name the folder of the piece's checkpoints."""
        assert self._options.folder is not None
        return checkpoint.folder_of_part(self._options.folder, self._number)

    def _has_states(self) -> bool:
        """Tell whether the piece has checkpoints, which are worth more than a smaller piece."""
        return self._options.checkpoints is not None and checkpoint.has_states(self._folder())

    def _may_halve(self, num: int) -> bool:
        """Tell whether fewer lanes may be tried, if so many do not fit."""
        return num > 1 and jax.process_count() == 1 and not self._has_states()

    def _lanes_of_earlier_run(self) -> int | None:
        """Return how many lanes this piece had in the resumed run; None if none is resumed."""
        saved = self._options.checkpoints
        return (
            checkpoint.count_lanes(self._folder()) if saved is not None and saved.resume else None
        )

    def _longest_of_all(self, num: int) -> int:
        """Count the ticks of the sweep's longest schedule; 0 if all `num` lanes are planned."""
        if num < len(self._whole) and not self._longest:
            whole = Schedules.of(self._system, self._whole, self._options.budget)
            self._longest = int(whole.count_ticks().max())
        return self._longest

    def _lanes_to_plan(self) -> int:
        """Choose how many lanes to plan at a time, from the sizes of schedules and problems."""
        num, plan = len(self._group), self._plan
        kept = plan.num * plan.kept_each
        of_lanes = plan.num * plan.bytes_each - kept
        # Problems that differ are stacked on the device, and then dealt to all devices.
        of_problems = 2 * _bytes_that_differ([lane.problem for lane in self._group])
        free = memory.free_memory()
        self._free = free.device
        on_host = memory.SHARE * free.host - plan.bytes_fixed - kept
        if jax.default_backend() == "cpu":
            limits = [(on_host, of_lanes + of_problems)]
        else:
            limits = [(on_host, of_lanes), (memory.SHARE * free.device, of_problems)]
        most = min(num * max(0.0, has) / needs if needs > has else num for has, needs in limits)
        return num if most >= num else memory.even_pieces(num, int(most))

    def _refuse_what_cannot_fit(self, ready: Ready) -> None:
        """Refuse to compile a program for which not even the arrays fit that follow from shapes.

        Raises:
          MemoryError: If they do not.
        """
        if not ready.replay.is_known:
            needs, free = self._needed(ready, [_known_arrays(ready)])
            if needs.total > free:
                raise MemoryError

    def _lanes_that_fit(self, ready: Ready, num_left: int) -> int:
        """Count the lanes that fit, from their compiled programs.

        Args:
          ready: Some lanes.
          num_left: Lanes that have not run yet, these included.
        """
        num, replay = len(ready.planned.group), ready.replay

        def needed(sizes: Sequence[memory.Size]) -> tuple[Needs, float]:
            """Return what the lanes need, and what is free for them."""
            needs, free = self._needed(ready, sizes)
            free *= memory.SHARE
            if ready.planned.program.placement.platform == "cpu":
                free -= self._bytes_to_keep(ready.planned, num_left)
            return needs, free

        if num > 1 and not replay.is_known:
            # As in `_refuse_what_cannot_fit`, with what is left free for others.
            needs, free = needed([_known_arrays(ready)])
            if needs.total > free:
                most = int(num * max(0.0, free - needs.fixed) / needs.lanes)
                return memory.even_pieces(len(self._group), min(num - 1, most))
        needs, free = needed(replay.sizes())
        if needs.total > free and num > 1:
            self._too_large.append((num, needs.total))
            return memory.even_pieces(len(self._group), min(num - 1, self._guess(needs, free)))
        self._say_what_is_chosen(ready, needs, free)
        return num

    def _needed(self, ready: Ready, sizes: Sequence[memory.Size]) -> tuple[Needs, float]:
        """Return what lanes need by the sizes of their programs, and what is free on a device."""
        planned, placement = ready.planned, ready.planned.program.placement
        shared = planned.lanes.hyper.shared, planned.lanes.problem.shared
        devices = list(placement.mesh.devices.flat)
        here = 1
        if placement.platform == "cpu":
            # All devices of this process share one memory.
            places = [device.process_index for device in devices]
            here = places.count(jax.process_index())
        needs = memory.program_needs(sizes, memory.bytes_to_share(shared, devices), here)
        if self._free is None or needs.total > FEW * self._free:
            self._free = memory.free_memory().device
        return needs, self._free

    def _bytes_to_keep(self, planned: Planned, num_left: int) -> float:
        """Estimate the host memory that the results will still need.

        Final models and kept samples are put together at the end, when there are two of each.
        """
        num, num_models = len(planned.group), 1
        if self._options.keep.models:
            num_models += planned.schedule.shape[1] + 1
        models = 2 * num_models * count_bytes(planned.model) * len(self._group)
        schedules = self._plan.num * self._plan.kept_each * (num_left - num) / len(self._group)
        return models + schedules

    def _guess(self, needs: Needs, free: float) -> int:
        """Guess how many lanes fit, when some do not."""
        num = self._too_large[-1][0]
        if len(self._too_large) == 1:
            return int(num * max(0.0, free - needs.fixed) / needs.lanes)
        # What a program takes is nearly a straight line in the number of lanes.
        (other, larger), (num, smaller) = self._too_large[-2:]
        slope = (larger - smaller) / (other - num)
        return int(num - (smaller - free) / max(1.0, slope))

    def _say_what_is_chosen(self, ready: Ready, needs: Needs, free: float) -> None:
        """Say how many lanes run at a time, if not all do, and name a large store of models."""
        num, num_all, name = len(ready.planned.group), len(self._group), self._system.name
        if num < num_all and needs.total <= free:
            of_all = needs.fixed + needs.lanes * num_all / num
            memory.say(
                f"{num_all} lanes of {name} run {num} at a time, which takes about "
                f"{write_bytes(needs.total)} of the {write_bytes(max(0.0, free))} that are free; "
                f"all of them together would take {write_bytes(of_all)}."
            )
        elif needs.total > free:
            memory.say(
                f"one lane of {name} takes about {write_bytes(needs.total)}, but only "
                f"{write_bytes(max(0.0, free))} are free."
            )
        for sentence in _large_stores(ready, free):
            memory.say(sentence)

    def _refusal(self, error: Exception, num: int) -> OutOfMemoryError:
        """Make the sentence for lanes that cannot be fewer."""
        if isinstance(error, OutOfMemoryError):
            return error
        lanes = f"{'one lane' if num == 1 else f'{num} lanes'} of {self._system.name}"
        if num > 1 and jax.process_count() > 1:
            lanes += " on several processes, which cannot be halved there (give layout.max_lanes)"
        if self._has_states():
            lanes += ", whose checkpoints are kept"
        allowed = (
            f"enough for {lanes}: fewer clients, a smaller model, smaller mini-batches or fewer "
            "slots at once (layout) take less"
        )
        return OutOfMemoryError("memory", write_bytes(memory.free_here().device), allowed)


def _bytes_that_differ(trees: list[Any]) -> int:
    """Count the bytes of a stack of trees, without the leaves that are the same array in all."""
    stacks = zip(*map(jax.tree.leaves, distinct_objects(trees)[0]), strict=True)
    return sum(
        len(trees) * count_bytes(leaves[0])
        for leaves in stacks
        if any(leaf is not leaves[0] for leaf in leaves)
    )


def _known_arrays(ready: Ready) -> memory.Size:
    """Count the bytes of arrays on one device that follow from shapes, before compiling.

    These are what lanes carry from tick to tick, and the models of the slots that train at once.
    """
    planned, carries = ready.planned, ready.replay.described().carries()
    program, placement = planned.program, planned.program.placement
    at_once = len(planned.group) // (placement.lane_devices * placement.lane_batches)
    if not placement.lanes_at_once:
        at_once = min(at_once, placement.family_size)
    slots = planned.schedule.stored.clients.shape[-1] // placement.client_devices
    trained = 0
    if program.facts.most_steps != 1:  # A single step may leave nothing but its sum.
        trained = at_once * min(slots, program.plan.slots_at_once) * count_bytes(planned.model)
    return memory.Size(count_bytes(carries) // placement.lane_devices + trained, 0)


def _large_stores(ready: Ready, free: float) -> list[str]:
    """Name the stores of old server models that take a large share of the memory.

    Args:
      ready: Lanes that will run at a time.
      free: Bytes that are free on a device.
    """
    planned = ready.planned
    schedule, program, lane = planned.schedule, planned.program, planned.group[0]
    num, of_model = len(planned.group), count_bytes(planned.model)
    least = memory.STORE_SHARE * max(0.0, free)
    most_rows = max(schedule.rows, 0 if schedule.held is None else schedule.held.holders.shape[2])
    if num * most_rows * of_model <= least:
        return []

    def init(problem: Any, hyper: Any, rows: int) -> Any:
        plan = program.plan._replace(rows=rows)
        return program.system.algorithm(problem, hyper, plan).init(jax.random.key(0))

    with program.machine.tracing():
        states = (
            jax.eval_shape(partial(init, rows=rows), lane.problem, lane.hyper)
            for rows in (schedule.rows, 1)
        )
        large, small = (count_bytes(state) for state in states)
    staleness = np.where(schedule.stored.clients != EMPTY, schedule.stored.staleness, 0)
    cause = (
        f"because of {lane.problem.counts.shape[0]} clients, whose work is up to "
        f"{staleness.max()} versions old, for each of {num} lanes"
    )
    sentences = []
    if (store := num * (large - small)) > least:
        sentences.append(
            f"the store of old server models takes {write_bytes(store)}: {schedule.rows} models "
            f"of {write_bytes(of_model)} {cause}; clients of more equal speed, a larger buffer, "
            "fewer clients or a smaller max_lanes make it smaller."
        )
    if (store := count_bytes(ready.replay.described().carries().versions)) > least:
        sentences.append(
            f"client_variance takes {write_bytes(store)}: it keeps "
            f"{store // (num * of_model)} models of {write_bytes(of_model)} {cause}; leave it "
            "out, or use fewer clients, fewer evaluations or a smaller max_lanes."
        )
    return sentences


@contextlib.contextmanager
def locked(asked: Checkpoints | None) -> Iterator[None]:
    """Lock the folder of checkpoints, if there is one; if nothing is resumed, remove older ones."""
    if asked is None:
        yield
        return
    folder = Path(asked.folder)
    with writing_to("folder of checkpoints", folder):
        lock = FolderLock(folder)
    try:
        if not asked.resume:
            checkpoint.remove_parts(folder)
        yield
    finally:
        lock.release()
