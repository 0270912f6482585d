"""Run a group of lanes: prepare its program or find its checkpoint, replay, and collect results.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core import events, lifecycle
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Layout, System
from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.engine.program.prepare import Planned, plan_group
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.engine.request import Options
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.engine.running.chunks import Evaluations, replay_schedule
from fedjax_sim.engine.running.outcomes import collect, lived_so_far
from fedjax_sim.engine.watching import Watcher
from fedjax_sim.results import store
from fedjax_sim.results.curves import Curves, Returned


class Ready(NamedTuple):
    """A group that is planned and not finished.

    Attributes:
      planned: The group.
      replay: Its program, before anything is on the devices.
      saved: Its checkpoints, which are not open yet; None if none are written.
    """

    planned: Planned
    replay: Replay
    saved: Checkpoint | None = None


def plan_or_load(
    system: System, group: list[Lane], options: Options, *, longest: Callable[[], int]
) -> Ready | Returned:
    """Plan a group as it was when it began, or load the result of its replay if it is finished.

    Args:
      group: The lanes.
      options: The options of the sweep.
      longest: As in `lay_out`; called if the group is planned.
    """
    saved, drawn = None, None
    decided: Mapping[str, Any] = {}
    if options.checkpoints is not None:
        saved = Checkpoint(options.checkpoints, checkpoint.asked_of(system, group, options))
        drawn, decided = saved.drawn(), saved.decided
    # A part of a sweep whose longest lane is in another part would choose other evaluations, and
    # less memory another layout.
    num_evals, per_eval = decided.get("evaluations", (0, None))
    most = num_evals * per_eval if decided else longest()
    plan = partial(plan_group, system, group, longest=most, per_eval=per_eval)
    planned, layout = plan(options, drawn=drawn), decided.get("placement", {})
    if decided and planned.program.placement.layout() != layout:
        names = [name for name in Layout._fields if name in layout]
        placed = options.layout._replace(
            **{name: json.loads(layout[name].lower()) for name in names}
        )
        # It may ask for more devices than there are; the checkpoint then says so.
        with contextlib.suppress(ConfigError):
            drawn = planned.timelines, planned.ticks
            planned = plan(dataclasses.replace(options, layout=placed), drawn=drawn)
    if saved is not None and saved.has_result():
        same = planned.decided(planned.on_devices())
        if (known := saved.finished(same)) is not None:
            lifecycle.say(f"{system.name} had ended; its result is read (lanes: {len(group)}).")
            part = collect(planned, checkpoint.unpack_curves(known, planned.model), options)
            if options.watch.trackers:
                _track_finished(system, planned.group, part, options)
            return part
    return Ready(planned, planned.on_devices(), saved)


def replay_group(ready: Ready) -> Returned:
    """Replay a group and collect the results of its lanes."""
    planned, replay, saved = ready
    if saved is not None:
        saved.open(planned.decided(replay), planned.timelines, planned.ticks)
    is_watched = planned.options.watch.is_needed
    curves = _replay_watched(ready) if is_watched else replay_schedule(replay, None, saved)
    if saved is not None:
        saved.finish(store.pack(curves))
    return collect(planned, curves, planned.options)


def _replay_watched(ready: Ready) -> Curves:
    """Replay a group, and pass every evaluation on to those who watch."""
    planned, replay, saved = ready
    schedule, row, plan = planned.schedule, planned.row, planned.program.plan
    watch = Watcher(
        planned.program.system.name,
        planned.group,
        schedule.ticks[row],
        schedule.time[row],
        planned.options.watch,
        is_batched=plan.lanes_at_once or plan.family_size > 1,
    )
    num_evals = schedule.shape[1]

    def report(done: int, seen: Evaluations) -> np.ndarray:
        if plan.live is not None:
            realised = {
                name.removeprefix(events.HAPPENED): value[:, :num_evals]
                for name, value in seen.kinds["info"].items()
                if name.startswith(events.HAPPENED)
            }
            lived = lived_so_far(planned, realised)
            watch.know(lived.ticks, lived.time)
        return watch.update(done, seen.kinds["metric"], seen.stopped_at)

    with watch.display:
        curves = replay_schedule(replay, report, saved)
        # A run that was stopped after its last tick reports nothing when it is resumed.
        watch.track(num_evals, curves.metrics, curves.stopped_at)
    return curves


def _track_finished(system: System, group: list[Lane], part: Returned, options: Options) -> None:
    """Give trackers the results of lanes that finished in an earlier process."""
    facts = part.facts
    # Nothing of this is new, so that nothing is shown and nobody is asked.
    watch = dataclasses.replace(options.watch, progress=False, on_evaluation=None)
    watcher = Watcher(system.name, group, facts["ticks"], facts["time"], watch)
    num_evals = facts["ticks"].shape[1] - 1
    watcher.track(num_evals, part.curves.metrics, facts.get("stopped_at"))
