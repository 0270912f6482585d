"""Bind a system to a problem, settings and a schedule: the program of a run, for one's own loop.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import trees, types
from fedjax_sim.core.settings import ConfigError, LaneSeed
from fedjax_sim.engine import contract, request
from fedjax_sim.engine.planning.drawing import read_timeline
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.engine.program.bound import Bound as Bound
from fedjax_sim.engine.program.bound import Static
from fedjax_sim.engine.program.opened import learning_key
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.results.runs import Run
from fedjax_sim.timelines.checks import check_own

ProblemT = TypeVar("ProblemT", bound=types.AnyProblem)


@contract.with_known_inputs
def bind(
    system: types.System[types.HyperT, types.StateT, types.InfoT],
    problem: ProblemT,
    hyper: types.HyperT | None = None,
    *,
    seed: LaneSeed = 0,
    budget: types.Budget | types.Timeline,
    layout: types.Layout = types.Layout(),
    precision: request.Precision = "float32",
    differentiable: bool = False,
    start: Run | types.Params | None = None,
) -> Bound[types.HyperT, types.StateT, types.InfoT]:
    """Bind a system to everything that a run of it needs, and hand out its program.

    The schedule is drawn and laid out here, once. What is returned is a pytree with the pure
    functions `init`, `step`, `run`, `model` and `evaluate`; see `Bound`.

        bound = fedjax_sim.bind(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(20))
        state, infos = bound.run(bound.init())
        print(bound.evaluate(state)["loss"], infos.needed.sum())

    Args:
      hyper: The system's settings; its defaults if None.
      seed: The seed of the schedule and of learning, from 0 to 2^31 - 1.
      budget: How long the schedule lasts, as in `sweep`; or a schedule of one's
        own or of an earlier run, such as `run.timelines[0]`, leaves `[T, ...]`. Settings of the
        clock, and of the weights that it gives to slots, have no effect then.
      layout: `slots_at_once` and `packed` say how the slots of a tick are laid out; what is None is
        chosen as in `sweep`. Lanes and devices are the caller's business here.
      precision: As in `sweep`.
      differentiable: Whether reverse mode, such as `jax.grad`, can go through steps. Every slot
        then makes as many trips as the longest slot of the schedule, and backward passes compute
        steps again instead of keeping what happened within them. Forward mode always works.
      start: The model that `init` starts from, or a run whose model it is, as in `simulate`.

    Returns:
      The program.

    Raises:
      ConfigError: If an input is not allowed.

    Warns:
      LaneWarning: As `sweep`, if something would begin after the end of the schedule.
    """
    return bind_together(
        system,
        [problem],
        hyper,
        seeds=seed,
        budget=budget,
        layout=layout,
        precision=precision,
        differentiable=differentiable,
        start=start,
    )[0]


@contract.with_known_inputs
def bind_together(
    system: types.System[types.HyperT, types.StateT, types.InfoT],
    problems: ProblemT | Sequence[ProblemT],
    hypers: types.HyperT | Sequence[types.HyperT | None] | None = None,
    *,
    seeds: LaneSeed | Sequence[LaneSeed] = 0,
    budget: types.Budget | types.Timeline | Sequence[types.Timeline],
    layout: types.Layout = types.Layout(),
    precision: request.Precision = "float32",
    differentiable: bool = False,
    start: Run | types.Params | None = None,
) -> list[Bound[types.HyperT, types.StateT, types.InfoT]]:
    """Bind a system several times, to schedules of one shape that can be mapped over.

    Problems, settings, seeds and schedules of one's own belong together by position. One alone, or
    a list of one, serves all.
    The schedules get common shapes, common rows for old server models, and common facts, so that
    all programs are one and `Bound.stack` can stack them.

        bounds = fedjax_sim.bind_together(
            fedavg.system, problem, hyper, seeds=[0, 1], budget=fedjax_sim.Ticks(20)
        )
        stacked, axes = fedjax_sim.Bound.stack(bounds)
        states, _ = jax.vmap(lambda bound: bound.run(bound.init()), in_axes=(axes,))(stacked)

    `layout`, `precision` and `differentiable` are those of `bind`.

    Args:
      problems: What is learnt, with equal shapes.
      hypers: Settings with equal static parts; None for the system's defaults.
      seeds: Seeds, as in `bind`. One number is one seed, not how many there are.
      budget: As in `bind`, or a list of schedules. Shorter ones end with ticks at which nothing
        happens.
      start: As in `sweep`, of which seeds and settings are the lanes.

    Returns:
      As many programs as the longest of the lists has entries.

    Raises:
      ConfigError: If an input is not allowed, or the programs would not be the same.
    """
    is_limit = isinstance(budget, types.Ticks | types.Time | types.Energy)
    timelines = None if is_limit else budget
    if timelines is not None and system.live is not None:
        allowed = f"Ticks, Time or Energy for {system.name}, whose clock is live; or use replayed"
        raise ConfigError("budget", "a schedule", allowed)
    shared = {"problems": problems, "hypers": hypers, "seeds": seeds, "timelines": timelines}
    lists = {name: _listed(value) for name, value in shared.items()}
    num = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, num):
            raise ConfigError(f"number of {name}", len(values), f"1 or {num}, as of the others")
    # Nothing is drawn for schedules of the caller's own.
    limit: Any = budget if is_limit else types.Ticks(1)
    options = request.Options(limit, num_evals=1, layout=_of_one_lane(layout), precision=precision)
    lanes: list[Lane] = []
    completed_from: set[str] = set()
    for i in range(num):
        problem, hyper, seed, timeline = (values[i % len(values)] for values in lists.values())
        if timeline is not None:  # Schedules of rates may be as long as it is.
            limit = types.Ticks(max(1, np.size(timeline.time)))
            options = dataclasses.replace(options, budget=limit)
        (lane,) = request.list_lanes(system, problem, hyper, request.grid_of([seed], None), options)
        lanes.append(lane._replace(place=i))
        if i < max(len(lists["problems"]), len(lists["hypers"])):
            given: Any = system.Hyper() if hyper is None else hyper
            given = dataclasses.replace(given, num_clients=lane.hyper.num_clients)
            completed_from |= request.settings_completed_from(system, given, lane.problem)
    if start is not None:
        lanes = request.give_starts(lanes, start)
    if len(groups_of(lanes)) > 1:
        allowed = "of equal static parts and shapes; bind the others alone"
        raise ConfigError("problems and hypers", f"{num} of several kinds", allowed)
    drawn = row = None
    if timelines is not None:
        num_clients = system.messages.num_senders(lanes[0].hyper) or lanes[0].hyper.num_clients
        drawn, row = _joined(system, lists["timelines"], num, num_clients), np.arange(num)
    planned = Planned(system, lanes, options, drawn=drawn, row=row)
    if planned.placement.window:
        allowed = "small enough to be in memory where one program is bound"
        raise ConfigError("data", "in files", allowed)
    return _bounds_of(
        system, planned, completed_from, is_drawn=timelines is None, differentiable=differentiable
    )


def _listed(value: Any) -> Sequence[Any]:
    """Wrap a single value in a list."""
    is_list = isinstance(value, list | tuple | range) and not isinstance(value, types.Timeline)
    return value if is_list else [value]


def _of_one_lane(layout: types.Layout) -> types.Layout:
    """Check that a layout leaves lanes and devices alone, and fix these."""
    fixed = {"lanes_at_once": False, "lane_devices": 1, "client_devices": 1}
    for name in (*fixed, "lane_batches", "max_lanes", "evals_per_chunk", "window"):
        value, only = getattr(layout, name), fixed.get(name)
        if value not in (None, only):
            allowed = f"{only} or None where one program is bound; map over it with jax.vmap"
            raise ConfigError(f"layout.{name}", value, allowed)
    return layout._replace(lanes_at_once=False, lane_devices=1, client_devices=1)


def _joined(
    system: types.System, timelines: Sequence[types.Timeline], num: int, num_clients: int
) -> tuple[types.Timeline, np.ndarray]:
    """Check timelines and stack them: leaves `[D, T, ...]`, and `i64[D]`, their ticks."""
    found = [check_own(system, timeline, num_clients) for timeline in timelines]
    ends = np.array([len(timeline.time) for timeline in found])
    slots = {timeline.clients.shape[1] for timeline in found}
    if len(slots) > 1 or ends.min() == 0:
        allowed = "of equally many slots, and at least one tick"
        raise ConfigError("timelines", f"{sorted(slots)} slots, {ends.min()} ticks", allowed)
    tick = np.arange(ends.max())

    def stacked(name: str) -> np.ndarray:
        dtype = "float64" if name in ("time", "weight") else "int32"
        leaves = [np.asarray(getattr(timeline, name), dtype) for timeline in found]
        # Shorter ones repeat their last tick.
        padded = [leaf[np.minimum(tick, len(leaf) - 1)] for leaf in leaves]
        return np.stack([padded[i % len(padded)] for i in range(num)])

    return types.Timeline(*map(stacked, types.Timeline._fields)), np.resize(ends, num)


def _bounds_of(
    system: types.System,
    planned: Planned,
    completed_from: Collection[str],
    *,
    is_drawn: bool,
    differentiable: bool,
) -> list[Bound]:
    """Make the programs of lanes, in their order.

    Args:
      completed_from: Settings from which others were filled in, which cannot be changed.
    """
    schedule, program, group = planned.schedule, planned.program, planned.group
    num_ticks = schedule.shape[1] * schedule.shape[2]
    plan, hyper = program.plan, group[0].hyper
    num_clients = system.messages.num_senders(hyper) or hyper.num_clients
    facts = program.facts._replace(owner=(system.name, num_clients, plan.rows))
    if differentiable:
        plan = plan._replace(static_trips=True)
        facts = facts._replace(most_steps=int(schedule.stored.steps.max(initial=0)))
    stacked = planned.lanes.hyper.replace(known=())
    hypers = []
    for i in range(len(group)):
        varying = [leaf if leaf is None else leaf[i] for leaf in stacked.varying]
        hypers.append(jax.tree.map(jnp.asarray, stacked.of_lane(varying)))
    names = [name for name, _ in trees.named_leaves(hypers[0])]
    # A timeline of the caller's own has read nothing.
    reads = read_timeline(system, hyper).reads if is_drawn else [False] * len(names)
    places = read_timeline(system, hyper).places if system.weigh else reads
    kinds = list(zip(names, reads, places, strict=True))
    frozen = [name for name, *is_used in kinds if name in completed_from or all(is_used)]
    weighing = [name for name, is_read, _ in kinds if is_read and name not in frozen]
    of_program = program.machine, differentiable
    structure = trees.typed_structure((group[0].problem, hypers[0]))
    of_settings = tuple(weighing), planned.lanes.hyper.known
    static = Static(facts, *of_settings, *of_program, structure, program.code)
    found = []
    for i in np.argsort([lane.place for lane in group]):
        lane, row = group[i], planned.row[i]
        end = planned.ticks[row]
        time = np.full(num_ticks, np.nan if system.live else np.inf)
        if not system.live:
            time[:end] = planned.timelines.time[row, :end]
        ticks = schedule.take(np.array([row])).stored
        until = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), schedule.until)
        known = hypers[i], learning_key(lane.seed), lane.start, ticks, time, until
        bound: Bound = Bound(lane.problem, *known, system, plan, num_ticks, tuple(frozen), static)
        if weighing and not bound.is_weighed:
            # The clock is not the one whose weights the system computes.
            read = tuple(name for name in names if name in {*frozen, *weighing})
            other = static._replace(weighing=())
            bound = dataclasses.replace(bound, frozen=read, _static=other)
        found.append(bound)
    return found
