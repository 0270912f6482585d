"""Plan and run a group of lanes: draw its timelines, lay them out, choose a layout, replay.

Dimension letters: those of `fedjax_sim.types`; `D` schedules, `V` evaluations.
"""

import ast
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.engine import step_cost
from fedjax_sim.engine.checkpoint import Checkpoint
from fedjax_sim.engine.chunks import replay_schedule
from fedjax_sim.engine.curves import Part, collapsed_at, facts_of, pack_curves, unpack_curves
from fedjax_sim.engine.division import Unit
from fedjax_sim.engine.drawing import request_timelines, settings_read
from fedjax_sim.engine.early_stops import end_stopped_lanes
from fedjax_sim.engine.identities import checkpoint_of
from fedjax_sim.engine.lanes import (
    Lane,
    Lanes,
    distinct_schedules,
    families_of,
    precision_of,
    stack_problems,
    stack_settings,
)
from fedjax_sim.engine.longer_runs import begins_like, kept_rows, rearranged, store_axes
from fedjax_sim.engine.options import Options
from fedjax_sim.engine.placement import Layout, Placement, choose
from fedjax_sim.engine.problem_checks import check_model
from fedjax_sim.engine.processes import is_first
from fedjax_sim.engine.replay import HAPPENED, Curves, Program, Replay
from fedjax_sim.engine.schedule import (
    Schedule,
    as_happened,
    lay_out,
    pack_timelines,
    pad_evaluations,
    unpack_timelines,
)
from fedjax_sim.engine.starts import stack_starts
from fedjax_sim.engine.timeline_checks import check_values
from fedjax_sim.engine.watching import Watch
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import (
    EMPTY,
    AnyProblem,
    Facts,
    GuessableProblem,
    LatentProblem,
    Plan,
    System,
    Timeline,
)

SMALL = 1e6
"""Operations of one example of a local step, of all lanes together, up to which the program of the
first evaluation is compiled quickly: in a quarter of the time."""

LARGEST_BLOCK = 32
"""Most ticks that an accelerator runs without asking the host whether the chunk ends."""


class Planned(NamedTuple):
    """A group of lanes, ready to be replayed.

    Attributes:
      group: The lanes, the members of a family adjacent.
      timelines: Leaves `[D, T, ...]`.
      ticks: `i64[D]`, ticks of each timeline.
      row: `i64[L]`, the number of each lane's timeline.
      schedule: The timelines laid out.
      lanes: The lanes stacked.
      program: The program.
      model: Shapes and dtypes of a model.
      told: Per lane, what its settings say about numbers of ticks, `f64[V + 1]` by name.
    """

    group: list[Lane]
    timelines: Timeline
    ticks: np.ndarray
    row: np.ndarray
    schedule: Schedule
    lanes: Lanes
    program: Program
    model: Any
    told: list[dict[str, np.ndarray]]

    def decided(self, replay: Replay) -> dict[str, Any]:
        """Collect what planning decides, for `_plan_again` and to compare with a resumed run.

        Args:
          replay: The lanes on their devices, or described.
        """
        placement = self.program.placement.layout()
        evaluations = list(self.schedule.shape[1:])
        return {"evaluations": evaluations, "placement": placement, **replay.digests()}

    def with_rows(self, rows: int) -> Replay:
        """Describe the same lanes with another number of rows of the store of old models."""
        plan = self.program.plan._replace(rows=rows)
        program = self.program._replace(plan=plan)
        return self._replace(program=program).on_devices(is_described=True)

    def on_devices(self, *, is_described: bool = False) -> Replay:
        """Put the lanes on their devices, or only describe their arrays."""
        num_evals, chunk = self.schedule.shape[1], self.program.chunk[0]
        padded = pad_evaluations(self.schedule, -num_evals % chunk)
        starts = stack_starts(self.group)
        return Replay(self.program, self.lanes, padded, starts=starts, is_described=is_described)


def schedules_of(system: System, group: list[Lane]) -> tuple[list[int], np.ndarray]:
    """Find out which lanes of a group have the same schedule; see `distinct_schedules`."""
    reads = [True] * len(jax.tree.leaves(group[0].hyper))
    if len({lane.seed for lane in group}) < len(group):
        reads = settings_read(system, group[0].hyper)
    return distinct_schedules(group, reads)


def units_of(system: System, group: list[Lane], options: Options) -> list[Unit[int]]:
    """Find the lanes of a group that have equal schedules, by position, and the work of each."""
    firsts, row = schedules_of(system, group)
    timelines, ticks = request_timelines(
        system,
        [group[i].seed for i in firsts],
        [group[i].hyper for i in firsts],
        time_budget=options.time_budget,
        num_ticks=options.num_ticks,
    )
    examples = int(system.hints.step_examples(group[0].hyper))
    units = []
    for number, end in enumerate(ticks):
        is_present = timelines.clients[number, :end] != EMPTY
        steps = int(timelines.steps[number, :end].sum(where=is_present, dtype=np.int64))
        lanes = tuple(group[i].place for i in np.flatnonzero(row == number))
        units.append(Unit(lanes, max(1, steps * examples)))
    return units


def plan_group(
    system: System,
    group: list[Lane],
    options: Options,
    *,
    longest: int = 0,
    per_eval: int | None = None,
    drawn: tuple[Timeline, np.ndarray] | None = None,
) -> Planned:
    """Draw the group's timelines, lay them out and choose a layout.

    Args:
      system: The system.
      group: The lanes.
      options: The options of the sweep.
      longest: As in `lay_out`.
      per_eval: Ticks between two evaluations, in place of their number.
      drawn: The timelines and their ticks, if they are known.
    """
    hypers = [lane.hyper for lane in group]
    firsts, row = schedules_of(system, group)
    timelines, ticks = drawn or request_timelines(
        system,
        [group[i].seed for i in firsts],
        [hypers[i] for i in firsts],
        time_budget=options.time_budget,
        num_ticks=options.num_ticks,
        goes_on=options.checkpoint is not None,
    )
    schedule = lay_out(
        timelines,
        ticks,
        num_clients=system.messages.num_senders(hypers[0]) or group[0].problem.counts.shape[0],
        num_evals=options.num_evals,
        per_eval=per_eval,
        client_variance=options.client_variance,
        longest=longest,
        goes_on=options.checkpoint is not None,
    )
    order, members = families_of(group, row)
    group, row = [group[i] for i in order], row[order]
    hypers, problems = [lane.hyper for lane in group], [lane.problem for lane in group]
    model = jax.eval_shape(lambda problem: problem.init(jax.random.key(0)), problems[0])
    check_model(model)
    precision = precision_of(model)
    weight = schedule.stored.weight.astype(precision)
    schedule = schedule._replace(stored=schedule.stored._replace(weight=weight))
    lanes = Lanes(
        np.array([lane.seed for lane in group], "int32"),
        row.astype("int32"),
        stack_settings(hypers, precision),
        stack_problems(problems),
    )
    num_examples = system.hints.step_examples(hypers[0])
    has_loss = system.fit.learns is not LatentProblem
    cost = step_cost.measure_step(problems[0], model, num_examples, has_loss=has_loss)
    placement = choose(
        options.layout,
        rows=row,
        steps=schedule.stored.steps,
        cost=cost,
        members=members,
        devices=options.devices,
    )
    num_evals, per_eval = schedule.shape[1:]
    is_saved = options.checkpoint is not None
    is_stepwise = is_saved or options.is_watched
    chunk = min(options.evals_per_chunk or (1 if is_stepwise else num_evals), num_evals)
    facts = _facts_of_events(schedule, placement, row, is_padded=num_evals % chunk > 0)
    is_small = cost.operations * len(group) <= SMALL * num_examples
    program = Program(
        system,
        _plan_of(schedule, placement),
        facts,
        placement,
        (chunk, per_eval),
        options.keep_models,
        _block_of(per_eval, placement) if is_saved and options.evals_per_chunk is None else 0,
        begins_quickly=placement.platform == "cpu" and is_small,
        precision=options.precision,
        can_stop=options.on_evaluation is not None,
    )
    told = [
        dict(system.messages.facts(hyper, schedule.ticks[i]))
        for hyper, i in zip(hypers, row, strict=True)
    ]
    return Planned(group, timelines, ticks, row, schedule, lanes, program, model, told)


def _block_of(per_eval: int, placement: Placement) -> int:
    """Choose the ticks whose multiples are the lengths of stretches.

    An accelerator asks the host after each block whether to go on, a CPU asks nobody.
    """
    if placement.platform == "cpu":
        return 1
    return max(size for size in range(1, 1 + LARGEST_BLOCK) if per_eval % size == 0)


def _plan_of(schedule: Schedule, placement: Placement) -> Plan:
    """Say how the machine is used."""
    return Plan(
        rows=schedule.rows,
        slots_at_once=placement.slots_at_once,
        lanes_at_once=placement.lanes_at_once,
        client_devices=placement.client_devices,
        family_size=placement.family_size,
        static_trips=placement.platform != "cpu",
        narrow=placement.narrow,
    )


def _facts_of_events(
    schedule: Schedule, placement: Placement, row: np.ndarray, *, is_padded: bool
) -> Facts:
    """State what is known of all ticks before compiling.

    Args:
      schedule: The schedules.
      placement: Where lanes run.
      row: `i64[L]`, the number of each lane's schedule.
      is_padded: Whether empty ticks will be appended.
    """
    steps = schedule.stored.steps
    packed_rows, lane_rows = placement.count_rows(steps, schedule.work, row)
    most = int(steps.max())
    is_filled = not is_padded and bool((schedule.stored.clients != EMPTY).all())
    on_cpu = placement.platform == "cpu"
    # Slots that are made up so that devices have equally many do no steps.
    is_even = is_filled and steps.shape[-1] % placement.client_devices == 0
    same_steps = is_even and bool((steps == most).all())
    return Facts(
        is_drawn=True,
        all_filled=is_filled,
        # Where a CPU would only save a little by it, no program should depend on this number.
        most_steps=None if on_cpu and not (same_steps or placement.packed) else most,
        same_steps=same_steps,
        packed_rows=packed_rows,
        lane_rows=lane_rows,
    )


def run_group(
    system: System,
    group: list[Lane],
    options: Options,
    *,
    longest: Callable[[], int] = lambda: 0,
    accept: Callable[[Planned], bool] = lambda planned: True,
) -> Part | None:
    """Plan a group and replay it, or load what its replay returned if it is finished.

    Args:
      system: The system.
      group: The lanes.
      options: The options of the sweep.
      longest: As in `lay_out`; called if the group is planned.
      accept: Called with the plan of a group that is not finished, to decide whether it is run.

    Returns:
      What the lanes returned; None if the plan was not accepted.
    """
    if options.checkpoint is None:
        planned = plan_group(system, group, options, longest=longest())
        if not accept(planned):
            return None
        return replay_group(planned, planned.on_devices(), options, None)
    saved = checkpoint_of(system, group, options)
    shorter = saved.shorter_budget()
    if shorter is None:
        found, decided = saved.drawn(), saved.decided()
        drawn = None if found is None else unpack_timelines(found)
        most = 0 if decided else longest()
        planned = _plan_again(system, group, options, decided, longest=most, drawn=drawn)
        if saved.has_result():
            same = planned.decided(planned.on_devices(is_described=True))
            if (known := saved.finished(same)) is not None:
                part = _part_of(planned, unpack_curves(known, planned.model), options)
                if options.trackers and is_first():
                    _track_finished(system, planned.group, part, options)
                return part
        if not accept(planned):
            return None
        replay = planned.on_devices()
        new = pack_timelines(planned.timelines, planned.ticks) if found is None else None
        saved.open(planned.decided(replay), all_run=replay.all_run, drawn=new)
    else:
        earlier = dataclasses.replace(options, **shorter)
        planned, replay = _go_on(system, group, earlier, options, saved, longest())
    return replay_group(planned, replay, options, saved)


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

    Args:
      system: The system.
      group: The lanes.
      options: The options of the sweep.
      decided: What `Planned.decided` collected; empty if the lanes begin now.
      longest: As in `plan_group`.
      drawn: As in `plan_group`.
    """
    num_evals, per_eval = decided.get("evaluations", (0, None))
    longest = max(longest, num_evals * (per_eval or 0))
    planned = plan_group(system, group, options, longest=longest, per_eval=per_eval, drawn=drawn)
    layout = decided.get("placement", {})
    if not decided or planned.program.placement.layout() == layout:
        return planned
    fixed = Layout(**{name: ast.literal_eval(layout[name]) for name in Layout._fields})
    try:
        as_before = dataclasses.replace(options, layout=fixed)
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
) -> tuple[Planned, Replay]:
    """Plan a run that goes on from the end of a shorter one.

    Its evaluations are as far apart as those of the shorter run.

    Args:
      system: The system.
      group: The lanes.
      earlier: The options of the shorter run.
      options: Those of the longer run.
      saved: Its checkpoints, in the folder of the shorter run's.
      longest: As in `plan_group`, of the longer run.

    Raises:
      ConfigError: If the folder belongs to another run, or if the longer run begins differently.
    """
    decided = saved.decided()
    before = _plan_again(system, group, earlier, decided)
    old = before.on_devices()
    known = checkpoint_of(system, group, earlier)
    known.open(before.decided(old), all_run=old.all_run)
    per_eval = before.schedule.shape[2]
    as_before = {**decided, "evaluations": (0, per_eval)}
    planned = _plan_again(system, group, options, as_before, longest=longest)
    new = planned.on_devices()
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
    axes = store_axes(system, group[0], len(carried))

    @functools.cache
    def rows_at(done: int) -> np.ndarray | None:
        return kept_rows(planned.schedule, before.schedule, done)

    if set(axes) != {None} and rows_at(old.all_run) is None:
        reason = reason or "it did not keep all models from which clients will still report"
    if reason:
        name = "num_ticks" if options.time_budget is None else "time_budget"
        allowed = (
            f"{getattr(earlier, name)!r}, as in {options.checkpoint}: {system.name} cannot go on "
            f"from there with these settings, because {reason}"
        )
        raise ConfigError(name, getattr(options, name), allowed)
    # Devices get lanes by their work, which may be dealt in another way in the longer run. Lanes
    # that only fill up a device go on from any state.
    place, row = (np.zeros(len(carried[0]), np.int64) for _ in range(2))
    place[new.place_of], row[new.place_of] = old.place_of, planned.row

    def turn(done: int, number: int, leaf: np.ndarray) -> np.ndarray:
        rows = rows_at(done)
        return rearranged(leaf, place, None if rows is None else rows[row], axes[number])

    found = planned.decided(new)
    known.go_on(saved, found, old.all_run, turn)
    drawn = pack_timelines(planned.timelines, planned.ticks)
    saved.open(found, all_run=new.all_run, drawn=drawn)
    return planned, new


def replay_group(
    planned: Planned, replay: Replay, options: Options, saved: Checkpoint | None
) -> Part:
    """Replay a group and collect what its lanes return."""
    group, system, schedule = planned.group, planned.program.system, planned.schedule
    row = planned.row
    plan = planned.program.plan
    watch = Watch(
        system.name,
        group,
        schedule.ticks[row],
        schedule.time[row],
        shown=options.progress if is_first() else False,
        trackers=options.trackers if is_first() else (),
        on_evaluation=options.on_evaluation,
        is_batched=plan.lanes_at_once or plan.family_size > 1,
    )
    num_evals = schedule.shape[1]
    with contextlib.closing(watch):
        watch.begin()
        curves = replay_schedule(replay, checkpoint=saved, report=watch.update)
        # A run that was stopped after its last tick reports nothing when it is resumed.
        watch.track(num_evals, curves.metrics, curves.stopped_at)
    if saved is not None:
        saved.finish(pack_curves(curves))
    return _part_of(planned, curves, options)


def _part_of(planned: Planned, curves: Curves, options: Options) -> Part:
    """Add to what a replay returned what the schedules and the settings say of its lanes."""
    group, schedule, row = planned.group, planned.schedule, planned.row
    num_evals, system = schedule.shape[1], planned.program.system
    metrics, samples = jax.tree.map(
        lambda value: value[:, : num_evals + 1], (curves.metrics, curves.samples)
    )
    infos = {name: value[:, :num_evals] for name, value in curves.infos.items()}
    cut = [
        Timeline(*(leaf[i, :end] for leaf in planned.timelines))
        for i, end in enumerate(planned.ticks)
    ]
    timelines = [cut[i] for i in row]
    if happened := [infos.pop(name) for name in list(infos) if name.startswith(HAPPENED)]:
        schedule, row = as_happened(schedule.take(row), *happened), np.arange(len(group))
        timelines = [
            _changed(timeline, *(leaf[i] for leaf in happened))
            for i, timeline in enumerate(timelines)
        ]
        for lane, timeline in zip(group, timelines, strict=True):
            num_clients = system.messages.num_senders(lane.hyper) or lane.hyper.num_clients
            each = Timeline(*(leaf[None] for leaf in timeline))
            check_values(each, len(timeline.time), num_clients)
    bits = [
        _count_bits(system, lane.problem, lane.hyper, planned.model, schedule, i, timeline)
        for lane, i, timeline in zip(group, row, timelines, strict=True)
    ]
    part = Part(
        places=[lane.place for lane in group],
        curves=Curves(metrics, infos, curves.models, samples),
        facts=facts_of(schedule, row, bits) | {"collapsed_at": _collapsed_at(group, metrics)},
        timelines=timelines,
        told=_stacked(planned.told, schedule.ticks.shape[1]),
    )
    if options.on_evaluation is None:
        return part
    assert curves.stopped_at is not None
    return end_stopped_lanes(part, curves.stopped_at)


def _changed(
    timeline: Timeline, clients: np.ndarray, steps: np.ndarray, weight: np.ndarray
) -> Timeline:
    """Put who took part into a lane's timeline. clients, steps, weight: `[V, E, S]`."""
    clients, steps, weight = (
        leaf.reshape(-1, leaf.shape[-1])[: len(timeline.time)] for leaf in (clients, steps, weight)
    )
    return timeline._replace(clients=clients, steps=steps, weight=weight.astype("float64"))


def _track_finished(system: System, group: list[Lane], part: Part, options: Options) -> None:
    """Give trackers what lanes returned that finished in an earlier process."""
    facts = part.facts
    watch = Watch(system.name, group, facts["ticks"], facts["time"], trackers=options.trackers)
    num_evals = facts["ticks"].shape[1] - 1
    watch.track(num_evals, part.curves.metrics, facts.get("stopped_at"))


def _stacked(told: list[dict[str, np.ndarray]], length: int) -> dict[str, np.ndarray]:
    """Stack what lanes tell, NaN where one says nothing: `f64[L, length]` by name."""
    nothing = np.full(length, np.nan)
    return {
        name: np.stack([lane.get(name, nothing) for lane in told])
        for name in sorted({name for lane in told for name in lane})
    }


def _collapsed_at(group: list[Lane], metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Find out which lanes are at chance, and since when, as in `collapsed_at`."""
    found = np.empty(len(group), np.int64)
    lanes_of: dict[int, list[int]] = {}
    for i, lane in enumerate(group):
        lanes_of.setdefault(id(lane.problem), []).append(i)
    for lanes in lanes_of.values():
        problem = group[lanes[0]].problem
        chance = problem.chance() if isinstance(problem, GuessableProblem) else {}
        found[lanes] = collapsed_at({k: value[lanes] for k, value in metrics.items()}, chance)
    return found


def _count_bits(
    system: System,
    problem: AnyProblem,
    hyper: Any,
    parameters: Any,
    schedule: Schedule,
    row: int,
    timeline: Timeline,
) -> dict[str, np.ndarray]:
    """Count the bits sent before each evaluation of a lane, by coordinate: `i64[V + 1]` each.

    parameters: shapes and dtypes of the initial model. row: the number of the lane's schedule.
    """

    def so_far(per_tick: np.ndarray) -> np.ndarray:
        total = np.cumsum(per_tick, dtype=np.int64)
        return np.concatenate([[0], total])[schedule.ticks[row]]

    messages = system.messages
    per_tick = messages.per_tick and messages.per_tick(problem, hyper, timeline)
    if per_tick is None:
        per_message = messages.bits(parameters, hyper)
        up, down = (schedule.messages[row] * bits for bits in per_message)
    else:
        up, down = (so_far(each) for each in per_tick)
    further = messages.further(problem, hyper, timeline)
    return {"uplink_bits": up, "downlink_bits": down} | {
        name: so_far(each) for name, each in further.items()
    }
