"""Run the lanes of a sweep in pieces that fit in memory.

A group of lanes that fits runs in one piece, and nothing is said. Otherwise it is halved, and one
sentence says how many lanes run at a time: where their schedules would fill the host, where their
compiled program asks for more than a device has, or where memory runs out all the same. Pieces give
the results of the whole: they are evaluated after the same ticks, and with a pinned layout a lane's
bits do not depend on which others run.

A piece is planned, or its checkpoint is found; it is replayed, and its results are collected.

Dimension letters: those of `fedjax_sim.core.types`; `D` schedules.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.types import Layout, System, Ticks
from fedjax_sim.engine.machine import compiling, memory
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.engine.program.windows import TOGETHER, Windows
from fedjax_sim.engine.request import Checkpoints, Options
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.running.chunks import Evaluations, replay_schedule
from fedjax_sim.engine.running.outcomes import collect, happened_so_far
from fedjax_sim.engine.watching import Watcher
from fedjax_sim.results import records
from fedjax_sim.results.curves import Curves, Returned


class Ready(NamedTuple):
    """A piece that is planned and not finished.

    Attributes:
      planned: Its lanes.
      replay: Their program, before anything is on the devices.
      saved: Their checkpoints, which are not open yet; None if none are written.
    """

    planned: Planned
    replay: Replay
    saved: checkpoint.Checkpoint | None = None


class Pieces:
    """The pieces of one group of lanes."""

    def __init__(self, system: System, group: list[Lane], whole: list[Lane], options: Options):
        """Take the lanes.

        Args:
          group: L lanes of equal static settings and shapes.
          whole: All such lanes of the sweep. The others run elsewhere.
          options: The options of the sweep.
        """
        self._system, self._options, self._whole = system, options, whole
        # Number of the piece among those of all groups.
        self._number = 0
        self._group = group
        # Ticks of the longest schedule; 0 until it is known.
        self._longest = options.budget.num_ticks if isinstance(options.budget, Ticks) else 0
        # Lanes of a piece that is known to fit, or of which memory has run out.
        self._accepted = 0
        self._has_run_out = False

    def run(self, number: int) -> list[Returned]:
        """Run the group in pieces, after `number` of earlier groups, and return each result.

        Raises:
          ConfigError: If a timeline is not allowed, or a single lane does not fit in memory.
        """
        parts: list[Returned] = []
        rest, size = self._group, self._options.layout.max_lanes or len(self._group)
        saved = self._options.checkpoints
        while rest:
            self._number = number + len(parts)
            is_resumed = saved is not None and saved.resume
            earlier = checkpoint.count_lanes(self._folder) if is_resumed else None
            size = min(earlier or size, len(rest))
            if size < len(rest) and not parts:
                # Lanes of one schedule are planned together.
                row = Schedules.of(self._system, self._group, self._options.budget).row
                rest = [self._group[i] for i in np.argsort(row, kind="stable").tolist()]
            try:
                parts.append(self._run_together(rest[:size]))
                rest = rest[size:]
                continue
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                half = self._half_of(size, error)
            # Without the error nothing holds the arrays of the failed attempt.
            gc.collect()
            size = half
        return parts

    def _half_of(self, size: int, error: Exception) -> int:
        """Halve the lanes of a piece for which memory ran out, or was found to be too little.

        Raises:
          OutOfMemoryError: If they cannot be fewer.
        """
        is_estimated = isinstance(error, memory.DoesNotFitError)
        # Processes agree on estimates alone.
        is_common = is_estimated or jax.process_count() == 1
        if size == 1 or not is_common or self._has_states():
            is_told = isinstance(error, memory.OutOfMemoryError)
            raise (error if is_told else self._refusal(size)) from None
        if self._options.checkpoints is not None:
            checkpoint.remove_checkpoints(self._folder)
        half = -(-size // 2)  # Rounded up: pieces of equal size share one program.
        if not is_estimated:
            self._has_run_out = True
            memory.say(
                f"memory ran out with {size} lanes of {self._system.name} at a time; from here "
                f"on {half} run at a time."
            )
        return half

    def _run_together(self, lanes: list[Lane]) -> Returned:
        """Run lanes in one piece.

        Raises:
          DoesNotFitError: If their schedules, their states or their compiled program ask for more
            memory than is free.
        """
        num, asked = len(lanes), self._options.checkpoints
        if asked is None:
            longest = self._longest if num == len(self._whole) else self._longest_of_all()
            whole = self._whole
            planned = Planned(self._system, lanes, self._options, longest=longest, whole=whole)
            ready = Ready(planned, planned.on_devices())
        elif isinstance(loaded := self._plan_or_load(lanes, asked), Returned):
            return loaded
        else:
            ready = loaded
        planned, windows = ready.planned, None
        if planned.windowed:
            first = planned.group[0].problem
            windows = Windows(first, planned.windowed, planned.lanes, ready.replay)
            ready.replay.make_window = windows.make
        if num == len(self._whole):
            self._longest = int(planned.ticks.max())
        if num > self._accepted and not self._has_states():
            stacked, placement = planned.lanes, planned.placement
            devices, here = list(placement.mesh.devices.flat), 1
            if placement.platform == "cpu":
                # All devices of this process share one memory.
                here = [device.process_index for device in devices].count(jax.process_index())
            free = memory.free_memory()
            usable = free if self._options.layout.max_lanes is not None else memory.SHARE * free
            leaves = stacked.hyper.shared, stacked.problem.shared
            shared = memory.bytes_to_share(leaves, devices)
            # One of two windows is counted by its placeholders.
            shared += (placement.window or 0) // TOGETHER
            room = ((free if num == 1 else usable) - shared) / here
            needed = here * ready.replay.prepare(room=room) + shared
            # One lane cannot be fewer, and is refused if its state is larger than the device.
            is_compiled = ready.replay.form in compiling.known_sizes
            if needed > usable and (num > 1 or not is_compiled):
                raise self._refusal(num, memory.DoesNotFitError)
            self._accepted = num
            if not self._has_run_out:
                if windows is not None:
                    memory.say(windows.describe())
                self._say_what_is_chosen(ready, needed, usable)
        return replay_group(ready)

    def _plan_or_load(self, lanes: list[Lane], asked: Checkpoints) -> Ready | Returned:
        """Plan lanes as when they began, or load the result of their replay if it is finished."""
        system, kept = self._system, dataclasses.replace(asked, folder=self._folder)
        options = dataclasses.replace(self._options, checkpoints=kept)
        saved = checkpoint.Checkpoint(kept, checkpoint.asked_of(system, lanes, options))
        # A part of a sweep whose longest lane is in another part would choose other evaluations,
        # and less memory another layout.
        decided = saved.decided
        num_evals, per_eval = decided.get("evaluations", (0, None))
        is_whole = len(lanes) == len(self._whole)
        longest = self._longest if decided or is_whole else self._longest_of_all()
        most = num_evals * per_eval if decided else longest
        whole = self._whole
        plan = partial(Planned, system, lanes, longest=most, per_eval=per_eval, whole=whole)
        planned, layout = plan(options, drawn=saved.drawn()), decided.get("placement", {})
        if decided and planned.placement.layout() != layout:
            placed = options.layout._replace(
                **{name: layout[name] for name in Layout._fields if name in layout}
            )
            # It may ask for more devices than there are; the checkpoint then says so.
            with contextlib.suppress(settings.ConfigError):
                drawn = planned.timelines, planned.ticks
                planned = plan(dataclasses.replace(options, layout=placed), drawn=drawn)
        known = saved.finished(lambda: planned.decided(planned.on_devices()))
        if known is None:
            return Ready(planned, planned.on_devices(), saved)
        lifecycle.say(f"{system.name} had ended; its result is read (lanes: {len(lanes)}).")
        part = collect(planned, checkpoint.unpack_curves(known, planned.model), options)
        if options.watch.trackers:
            # Nothing of this is new, so that nothing is shown and nobody is asked.
            watch = dataclasses.replace(options.watch, progress=False, on_evaluation=None)
            ticks, time = part.facts["ticks"], part.facts["time"]
            watcher = Watcher(system.name, planned.group, ticks, time, watch)
            watcher.track(ticks.shape[1] - 1, part.curves.metrics, part.facts.get("stopped_at"))
        return part

    @property
    def _folder(self) -> Path:
        """The folder of the piece's checkpoints."""
        assert self._options.folder is not None
        return self._options.folder / f"part_{self._number}"

    def _has_states(self) -> bool:
        """Tell whether the piece has checkpoints, which are worth more than a smaller piece."""
        saved = self._options.checkpoints
        return saved is not None and bool(checkpoint.files_in(self._folder, "state|result"))

    def _longest_of_all(self) -> int:
        """Count the ticks of the sweep's longest schedule."""
        if not self._longest:
            whole = Schedules.of(self._system, self._whole, self._options.budget)
            self._longest = int(whole.count_ticks().max())
        return self._longest

    def _say_what_is_chosen(self, ready: Ready, needed: float, free: float) -> None:
        """Say how many lanes run at a time, if not all do."""
        num, num_all, name = len(ready.planned.group), len(self._group), self._system.name
        needs, has = map(lifecycle.write_bytes, (needed, free))
        if needed > free:
            memory.say(f"one lane of {name} takes about {needs}, but only {has} are free.")
        elif num < min(num_all, self._options.layout.max_lanes or num_all):
            memory.say(
                f"{num_all} lanes of {name} run {num} at a time, which takes about {needs} of the "
                f"{has} that are free."
            )

    def _refusal(
        self, num: int, kind: type[memory.OutOfMemoryError] = memory.OutOfMemoryError
    ) -> memory.OutOfMemoryError:
        """Make the sentence for lanes that cannot be fewer."""
        lanes = f"{'one lane' if num == 1 else f'{num} lanes'} of {self._system.name}"
        if num > 1 and jax.process_count() > 1:
            lanes += " on several processes, which cannot be halved there (give layout.max_lanes)"
        if self._has_states():
            lanes += ", whose checkpoints are kept"
        allowed = (
            f"enough for {lanes}: fewer clients, a smaller model, smaller mini-batches or fewer "
            "slots at once (layout) take less"
        )
        return kind("memory", lifecycle.write_bytes(memory.free_here()), allowed)


def replay_group(ready: Ready) -> Returned:
    """Replay a piece, pass evaluations on to those who watch, and collect the results."""
    planned, replay, saved = ready
    if saved is not None:
        saved.open(planned.decided(replay), planned.timelines, planned.ticks)
    is_watched = planned.options.watch.is_needed
    curves = _watched(ready) if is_watched else replay_schedule(replay, None, saved)
    if saved is not None:
        saved.finish(records.pack(curves))
    return collect(planned, curves, planned.options)


def _watched(ready: Ready) -> Curves:
    """Replay a piece, with evaluations shown, tracked, or given to a callback."""
    planned, replay, saved = ready
    schedule, row, plan = planned.schedule, planned.row, planned.program.plan
    known = schedule.ticks[row], schedule.time[row], planned.options.watch
    is_batched = (plan.lanes_at_once or plan.family_size > 1) and not planned.placement.refills
    watch = Watcher(planned.system.name, planned.group, *known, is_batched=is_batched)

    def report(done: int, seen: Evaluations) -> np.ndarray:
        if plan.live is not None:
            happened = happened_so_far(planned, seen.kinds["info"])
            watch.know(happened.ticks, happened.time)
        return watch.update(done, seen.kinds["metric"], seen.stopped_at)

    with watch.display:
        curves = replay_schedule(replay, report, saved)
        # A run that was stopped after its last tick reports nothing when it is resumed.
        watch.track(schedule.shape[1], curves.metrics, curves.stopped_at)
    return curves


@contextlib.contextmanager
def locked(asked: Checkpoints) -> Iterator[None]:
    """Lock the folder of checkpoints; if nothing is resumed, remove older ones."""
    folder = Path(asked.folder)
    with settings.writing_to("folder of checkpoints", folder):
        lock = lifecycle.FolderLock(folder)
    try:
        if not asked.resume:
            for part in folder.glob("part_*"):
                checkpoint.remove_checkpoints(part)
        yield
    finally:
        lock.release()
