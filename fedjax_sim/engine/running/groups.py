"""Run a group of lanes: prepare its program or find its checkpoint, replay, and collect results.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core import events, lifecycle
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Layout, System, Timeline
from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.engine.program.prepare import Planned, plan_group
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.engine.request import Options
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.engine.running.chunks import replay_schedule
from fedjax_sim.engine.running.outcomes import collect, lived_so_far
from fedjax_sim.engine.watching import Watcher
from fedjax_sim.results import store
from fedjax_sim.results.curves import Curves, Returned


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
    saved = Checkpoint(options.checkpoints, checkpoint.asked_of(system, group, options))
    drawn, decided = saved.drawn(), saved.decided
    most = 0 if decided else longest()
    planned = _plan_again(system, group, options, decided, longest=most, drawn=drawn)
    if saved.has_result():
        same = planned.decided(planned.on_devices(is_described=True))
        if (known := saved.finished(same)) is not None:
            lifecycle.say(f"{system.name} had ended; its result is read (lanes: {len(group)}).")
            part = collect(planned, checkpoint.unpack_curves(known, planned.model), options)
            if options.watch.trackers:
                _track_finished(system, planned.group, part, options)
            return part
    return Ready(planned, planned.on_devices(), options, saved, is_drawn=drawn is None)


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

    A part of a sweep whose longest lane is in another part would choose others.

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


def replay_group(ready: Ready) -> Returned:
    """Replay a group and collect the results of its lanes."""
    planned, replay, options, saved, is_drawn = ready
    if saved is not None:
        drawn = (planned.timelines, planned.ticks) if is_drawn else None
        saved.open(planned.decided(replay), drawn=drawn)
    schedule, row, plan = planned.schedule, planned.row, planned.program.plan
    watch = Watcher(
        planned.program.system.name,
        planned.group,
        schedule.ticks[row],
        schedule.time[row],
        options.watch,
        is_batched=plan.lanes_at_once or plan.family_size > 1,
    )
    num_evals = schedule.shape[1]

    def report(done: int, seen: Curves) -> np.ndarray:
        if plan.live is not None and options.watch.is_needed:
            realised = {
                name.removeprefix(events.HAPPENED): value[:, :num_evals]
                for name, value in seen.infos.items()
                if name.startswith(events.HAPPENED)
            }
            lived = lived_so_far(planned, realised)
            watch.know(lived.ticks, lived.time)
        assert seen.stopped_at is not None
        return watch.update(done, seen.metrics, seen.stopped_at)

    with watch.display:
        curves = replay_schedule(replay, checkpoint=saved, report=report)
        # A run that was stopped after its last tick reports nothing when it is resumed.
        watch.track(num_evals, curves.metrics, curves.stopped_at)
    if saved is not None:
        saved.finish(store.pack(curves))
    return collect(planned, curves, options)


def _track_finished(system: System, group: list[Lane], part: Returned, options: Options) -> None:
    """Give trackers the results of lanes that finished in an earlier process."""
    facts = part.facts
    # Nothing of this is new, so that nothing is shown and nobody is asked.
    watch = dataclasses.replace(options.watch, progress=False, on_evaluation=None)
    watcher = Watcher(system.name, group, facts["ticks"], facts["time"], watch)
    num_evals = facts["ticks"].shape[1] - 1
    watcher.track(num_evals, part.curves.metrics, facts.get("stopped_at"))
