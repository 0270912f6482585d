"""Run a group of lanes: prepare its program or find its checkpoint, replay, and collect results.

Dimension letters: those of `fedjax_sim.types`; `D` schedules, `V` evaluations, `E` ticks between
two evaluations.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.engine.program.prepare import Planned, plan_group
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.engine.request import Options
from fedjax_sim.engine.resuming.checkpoint import (
    Checkpoint,
    checkpoint_of,
    pack_curves,
    pack_timelines,
    unpack_curves,
    unpack_timelines,
)
from fedjax_sim.engine.resuming.longer_runs import begins_like, kept_rows, rearranged, store_axes
from fedjax_sim.engine.running.chunks import replay_schedule
from fedjax_sim.engine.running.outcomes import collect, lived_so_far
from fedjax_sim.engine.watching import Watcher
from fedjax_sim.events import HAPPENED
from fedjax_sim.lifecycle import say
from fedjax_sim.results.curves import Curves, Returned
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Layout, System, Timeline, longer_name


class Ready(NamedTuple):
    """A group that is planned and not finished.

    Attributes:
      planned: The group.
      replay: Its program, before anything is on the devices.
      options: The options of the sweep.
      saved: Its checkpoints, which are not open yet; None if none are written.
      is_drawn: Whether its timelines were drawn now, so that they are to be saved.
    """

    planned: Planned
    replay: Replay
    options: Options
    saved: Checkpoint | None = None
    is_drawn: bool = True

    def run(self, meanwhile: Callable[[], None] | None = None) -> Returned:
        """Replay the group and collect the results of its lanes.

        Args:
          meanwhile: Called once, while the devices work.
        """
        planned, replay, options, saved, _ = self
        if saved is not None:
            drawn = pack_timelines(planned.timelines, planned.ticks) if self.is_drawn else None
            saved.open(planned.decided(replay), all_run=replay.all_run, drawn=drawn)
        return replay_group(planned, replay, options, saved, meanwhile)


def plan_or_load(
    system: System, group: list[Lane], options: Options, *, longest: Callable[[], int]
) -> Ready | Returned:
    """Plan a group, or load the result of its replay if it is finished.

    Args:
      group: The lanes.
      options: The options of the sweep.
      longest: As in `lay_out`; called if the group is planned.
    """
    if options.checkpoints is None:
        planned = plan_group(system, group, options, longest=longest())
        return Ready(planned, planned.on_devices(), options)
    saved = checkpoint_of(system, group, options)
    shorter = saved.shorter_budget()
    if shorter is not None:
        earlier = dataclasses.replace(options, budget=shorter)
        return _go_on(system, group, earlier, options, saved, longest())
    found, decided = saved.drawn(), saved.decided()
    drawn = None if found is None else unpack_timelines(found)
    most = 0 if decided else longest()
    planned = _plan_again(system, group, options, decided, longest=most, drawn=drawn)
    if saved.has_result():
        same = planned.decided(planned.on_devices(is_described=True))
        if (known := saved.finished(same)) is not None:
            say(f"{system.name} had ended; its result is read (lanes: {len(group)}).")
            part = collect(planned, unpack_curves(known, planned.model), options)
            if options.watch.trackers:
                _track_finished(system, planned.group, part, options)
            return part
    return Ready(planned, planned.on_devices(), options, saved, is_drawn=found is None)


def _plan_again(
    system: System,
    group: list[Lane],
    options: Options,
    decided: Mapping[str, Any],
    *,
    longest: int = 0,
    drawn: tuple[Timeline, np.ndarray] | None = None,
) -> Planned:
    """Plan lanes with the evaluations and the layout that were decided when they began.

    A run that has gone on to a longer budget, or is a part of a longer one, would choose others.

    `longest` and `drawn` are those of `plan_group`.

    Args:
      group: The lanes.
      options: The options of the sweep.
      decided: What `Planned.decided` collected; empty if the lanes begin now.
    """
    num_evals, per_eval = decided.get("evaluations", (0, None))
    longest = max(longest, num_evals * (per_eval or 0))
    planned = plan_group(system, group, options, longest=longest, per_eval=per_eval, drawn=drawn)
    layout = decided.get("placement", {})
    if not decided or planned.program.placement.layout() == layout:
        return planned
    placed = {name: json.loads(layout[name].lower()) for name in Layout._fields if name in layout}
    try:
        as_before = dataclasses.replace(options, layout=options.layout._replace(**placed))
        known = planned.timelines, planned.ticks
        return plan_group(system, group, as_before, longest=longest, per_eval=per_eval, drawn=known)
    except ConfigError:  # It asks for more devices than there are; the checkpoint will say so.
        return planned


def _go_on(
    system: System,
    group: list[Lane],
    earlier: Options,
    options: Options,
    saved: Checkpoint,
    longest: int,
) -> Ready:
    """Plan a run that goes on from the end of a shorter one.

    Its evaluations are as far apart as those of the shorter run.

    Args:
      group: The lanes.
      earlier: The options of the shorter run.
      options: Those of the longer run.
      saved: Its checkpoints, in the folder of the shorter run's.
      longest: As in `plan_group`, of the longer run.

    Raises:
      ConfigError: If the folder belongs to another run, or if the longer run begins differently.
    """
    decided = saved.decided()
    # The shorter run as it was, and the longer one with its evaluations as far apart.
    before = _plan_again(system, group, earlier, decided)
    old = before.on_devices()
    known = checkpoint_of(system, group, earlier)
    known.open(before.decided(old), all_run=old.all_run)
    per_eval = before.schedule.shape[2]
    as_before = {**decided, "evaluations": (0, per_eval)}
    planned = _plan_again(system, group, options, as_before, longest=longest)
    new = planned.on_devices()
    # The longer run must begin as the shorter one did: the same facts, schedule and
    # program.
    reason = ""
    if planned.program.facts.all_filled != before.program.facts.all_filled:
        reason = (
            "in one of the two runs, but not in the other, all lanes end with an evaluation, which "
            f"comes every {planned.program.chunk[1]} ticks"
        )
    elif not begins_like(planned.schedule, before.schedule, old.all_run):
        reason = "its schedule depends on how long it runs"
    elif planned.with_rows(before.schedule.rows).program_digest() != old.program_digest():
        reason = "its program depends on how long it runs"
    carried = jax.tree.leaves(new.carries())
    axes = store_axes(system, group[0].problem, group[0].hyper, len(carried))
    if system.live is not None:
        # A live lane carries which version is in which row of its store.
        axes = [None] * len(carried)

    @functools.cache
    def rows_at(done: int) -> np.ndarray | None:
        return kept_rows(planned.schedule, before.schedule, done)

    if set(axes) != {None} and rows_at(old.all_run) is None:
        reason = reason or "it did not keep all models from which clients will still report"
    if reason:
        name, asked, before_then = longer_name(options.budget, earlier.budget)
        allowed = (
            f"{before_then!r}, as in {options.folder}: {system.name} cannot go on from there with "
            f"these settings, because {reason}"
        )
        raise ConfigError(name, asked, allowed)
    # Devices get lanes by their work, which may be dealt in another way in the longer run. Lanes
    # that only fill up a device go on from any state.
    place, row = (np.zeros(len(carried[0]), np.int64) for _ in range(2))
    place[new.place_of], row[new.place_of] = old.place_of, planned.row

    def turn(done: int, number: int, leaf: np.ndarray) -> np.ndarray:
        rows = rows_at(done)
        return rearranged(leaf, place, None if rows is None else rows[row], axes[number])

    known.go_on(saved, planned.decided(new), old.all_run, turn)
    return Ready(planned, new, options, saved)


def replay_group(
    planned: Planned,
    replay: Replay,
    options: Options,
    saved: Checkpoint | None,
    meanwhile: Callable[[], None] | None,
) -> Returned:
    """Replay a group and collect the results of its lanes."""
    group, system, schedule = planned.group, planned.program.system, planned.schedule
    row = planned.row
    plan = planned.program.plan
    watch = Watcher(
        system.name,
        group,
        schedule.ticks[row],
        schedule.time[row],
        options.watch,
        is_batched=plan.lanes_at_once or plan.family_size > 1,
    )
    num_evals = schedule.shape[1]

    def report(done: int, seen: Curves) -> np.ndarray:
        if planned.program.plan.live is not None and options.watch.is_needed:
            happened = {
                name.removeprefix(HAPPENED): value[:, :num_evals]
                for name, value in seen.infos.items()
                if name.startswith(HAPPENED)
            }
            lived = lived_so_far(planned, happened)
            watch.know(lived.ticks, lived.time)
        assert seen.stopped_at is not None
        return watch.update(done, seen.metrics, seen.stopped_at)

    with contextlib.closing(watch):
        watch.begin()
        curves = replay_schedule(replay, checkpoint=saved, report=report, meanwhile=meanwhile)
        # A run that was stopped after its last tick reports nothing when it is resumed.
        watch.track(num_evals, curves.metrics, curves.stopped_at)
    if saved is not None:
        saved.finish(pack_curves(curves))
    return collect(planned, curves, options)


def _track_finished(system: System, group: list[Lane], part: Returned, options: Options) -> None:
    """Give trackers the results of lanes that finished in an earlier process."""
    facts = part.facts
    # Nothing of this is new, so that nothing is shown and nobody is asked.
    watch = dataclasses.replace(options.watch, progress=False, on_evaluation=None)
    watcher = Watcher(system.name, group, facts["ticks"], facts["time"], watch)
    num_evals = facts["ticks"].shape[1] - 1
    watcher.track(num_evals, part.curves.metrics, facts.get("stopped_at"))
