"""Run the lanes of a sweep in pieces that fit in memory.

A group of lanes that fits runs in one piece, and nothing is said. Otherwise it is halved, and one
sentence says how many lanes run at a time: where their schedules would fill the host, where their
compiled program asks for more than a device has, or where memory runs out all the same. Pieces give
the results of the whole: they are evaluated after the same ticks, and with a pinned layout a lane's
bits do not depend on which others run.

Dimension letters: those of `fedjax_sim.core.types`; `D` schedules.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.lifecycle import FolderLock, write_bytes
from fedjax_sim.core.settings import writing_to
from fedjax_sim.core.types import EMPTY, AnyProblem, HyperT, System, Ticks
from fedjax_sim.engine.machine import memory
from fedjax_sim.engine.machine.memory import OutOfMemoryError, count_bytes
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import Lane, distinct_objects
from fedjax_sim.engine.request import Checkpoints, Options
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.running import groups
from fedjax_sim.engine.running.groups import Ready
from fedjax_sim.results.curves import Returned

FEW = 0.01
"""Share of the free memory up to which a program needs so little that it is not measured again."""


class Pieces:
    """The pieces of one group of lanes."""

    def __init__(self, system: System, group: list[Lane], whole: list[Lane], options: Options):
        """Order the lanes so that those of one schedule are adjacent and planned together.

        Args:
          group: L lanes of equal static settings and shapes.
          whole: All such lanes of the sweep. The others run elsewhere.
          options: The options of the sweep.
        """
        self._system, self._options, self._whole = system, options, whole
        # Number of the piece among those of all groups.
        self._number = 0
        schedules = Schedules.of(system, group, options.budget)
        self._group = [group[i] for i in np.argsort(schedules.row, kind="stable").tolist()]
        self._bytes_to_plan = schedules.measure() + _bytes_that_differ(group)
        # Ticks of the longest schedule; 0 until it is known.
        self._longest = options.budget.num_ticks if isinstance(options.budget, Ticks) else 0
        # Whether somebody, or a lack of memory, has said how many lanes run at a time.
        self._is_given = options.layout.max_lanes is not None
        # Lanes of a piece that is known to fit.
        self._accepted = 0
        self._free = memory.free_memory()

    def run(self, number: int) -> list[Returned]:
        """Run the group piece by piece.

        Args:
          number: Pieces of earlier groups.

        Returns:
          The results of each piece.

        Raises:
          ConfigError: If a timeline is not allowed, or a single lane does not fit in memory.
        """
        parts: list[Returned] = []
        rest, size = self._group, self._options.layout.max_lanes or len(self._group)
        needed = float(self._bytes_to_plan)
        # Fewer lanes are tried until their schedules and their own data fit on the host.
        while not self._is_given and size > 1 and needed > memory.SHARE * self._free.host:
            size, needed = _half(size), needed / 2
        while rest:
            self._number = number + len(parts)
            size = min(self._lanes_of_earlier_run() or size, len(rest))
            found: Returned | int | None = None
            try:
                found = self._try(rest[:size])
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                if not self._may_halve(size):
                    raise self._refusal(error, size) from None
            if isinstance(found, Returned):
                parts.append(found)
                rest = rest[size:]
            elif found is not None:
                size = found
            else:
                # Without the error nothing holds the arrays of the failed attempt.
                gc.collect()
                if self._options.checkpoints is not None:
                    checkpoint.remove_checkpoints(self._folder())
                self._is_given = True
                memory.say(
                    f"memory ran out with {size} lanes of {self._system.name} at a time; from here "
                    f"on {_half(size)} run at a time."
                )
                size = _half(size)
        return parts

    def _try(self, lanes: list[Lane]) -> Returned | int:
        """Run lanes, or find out by the memory of their compiled program that fewer must be tried.

        Returns:
          The results of the lanes; how many to try instead if they do not fit.

        Raises:
          MemoryError: If the state of one lane, or a number of lanes that was asked for, is too
            large.
        """
        num, saved = len(lanes), self._options.checkpoints
        if saved is not None:
            saved = dataclasses.replace(saved, folder=self._folder())
        options = dataclasses.replace(self._options, checkpoints=saved)
        longest = partial(self._longest_of_all, num)
        ready = groups.plan_or_load(self._system, lanes, options, longest=longest)
        if isinstance(ready, Returned):
            return ready
        if num == len(self._whole):
            self._longest = int(ready.planned.ticks.max())
        is_given = self._is_given or self._lanes_of_earlier_run() is not None
        if num <= self._accepted or (is_given and num > 1 and not self._may_halve(num)):
            return groups.replay_group(ready)
        share = 1.0 if is_given else memory.SHARE
        # Nothing is compiled for a state that is larger than the device.
        replay, needed, free = ready.replay, 0, np.inf
        if not replay.is_known:
            needed, free = self._compare(ready, replay.carried())
        if num == 1 and needed > free:
            raise MemoryError
        if needed <= share * free:
            needed, free = self._compare(ready, replay.size())
        if num > 1 and needed > share * free:
            if is_given:  # A program of XLA for CPUs might wait for ever.
                raise MemoryError
            while num > 1 and needed > share * free:
                num, needed = _half(num), needed // 2
            return num
        self._accepted = num
        if not is_given:
            self._say_what_is_chosen(ready, needed, share * free)
        return groups.replay_group(ready)

    def _compare(self, ready: Ready, size: int) -> tuple[int, float]:
        """Count the bytes that lanes need in a device's memory, and those that are free there.

        Args:
          ready: The lanes.
          size: Bytes on each device, without the data that all lanes share.
        """
        lanes, placement = ready.planned.lanes, ready.planned.program.placement
        devices, here = list(placement.mesh.devices.flat), 1
        if placement.platform == "cpu":
            # All devices of this process share one memory.
            here = [device.process_index for device in devices].count(jax.process_index())
        shared = memory.bytes_to_share((lanes.hyper.shared, lanes.problem.shared), devices)
        needed = here * size + shared
        if needed > FEW * self._free.device:
            self._free = memory.free_memory()
        return needed, self._free.device

    def _folder(self) -> Path:
        """Name the folder of the piece's checkpoints."""
        assert self._options.folder is not None
        return self._options.folder / f"part_{self._number}"

    def _has_states(self) -> bool:
        """Tell whether the piece has checkpoints, which are worth more than a smaller piece."""
        saved = self._options.checkpoints
        return saved is not None and bool(checkpoint.files_in(self._folder(), "state|result"))

    def _may_halve(self, num: int) -> bool:
        """Tell whether fewer lanes may be tried, if so many do not fit."""
        return num > 1 and jax.process_count() == 1 and not self._has_states()

    def _lanes_of_earlier_run(self) -> int | None:
        """Count the lanes of this piece in the resumed run; None if none is resumed."""
        saved = self._options.checkpoints
        is_resumed = saved is not None and saved.resume
        return checkpoint.count_lanes(self._folder()) if is_resumed else None

    def _longest_of_all(self, num: int) -> int:
        """Count the ticks of the sweep's longest schedule; 0 if all `num` lanes are planned."""
        if num < len(self._whole) and not self._longest:
            whole = Schedules.of(self._system, self._whole, self._options.budget)
            self._longest = int(whole.count_ticks().max())
        return self._longest

    def _say_what_is_chosen(self, ready: Ready, needed: int, free: float) -> None:
        """Say how many lanes run at a time, if not all do, and name a large store of models."""
        num, num_all, name = len(ready.planned.group), len(self._group), self._system.name
        if needed > free:
            memory.say(
                f"one lane of {name} takes about {write_bytes(needed)}, but only "
                f"{write_bytes(free)} are free."
            )
        elif num < num_all:
            memory.say(
                f"{num_all} lanes of {name} run {num} at a time, which takes about "
                f"{write_bytes(needed)} of the {write_bytes(free)} that are free."
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


def _half(num: int) -> int:
    """Halve a number of lanes, rounded up: pieces of equal size share one program."""
    return -(-num // 2)


def _bytes_that_differ(group: list[Lane]) -> int:
    """Count the bytes of the lanes' stacked problems, without arrays that all share."""
    problems = distinct_objects([lane.problem for lane in group])[0]
    stacks = zip(*map(jax.tree.leaves, problems), strict=True)
    return sum(
        len(group) * count_bytes(leaves[0])
        for leaves in stacks
        if any(leaf is not leaves[0] for leaf in leaves)
    )


def _large_stores(ready: Ready, free: float) -> list[str]:
    """Name the stores of old server models that take a large share of the memory.

    Args:
      ready: Lanes that will run at a time.
      free: Bytes that are free on a device.
    """
    planned = ready.planned
    schedule, program, lane = planned.schedule, planned.program, planned.group[0]
    num, of_model = len(planned.group), count_bytes(planned.model)
    least = memory.STORE_SHARE * free
    most_rows = max(schedule.rows, 0 if schedule.held is None else schedule.held.holders.shape[2])
    if num * most_rows * of_model <= least:
        return []

    def init(problem: AnyProblem, hyper: HyperT, rows: int) -> Any:
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
            for part in folder.glob("part_*"):
                checkpoint.remove_checkpoints(part)
        yield
    finally:
        lock.release()
