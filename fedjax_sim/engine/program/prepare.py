"""Plan a group of lanes: planners, called in order, each of which owns its facts.

    draw     the timelines: drawn or given, messages checked
    store    the timelines laid out: evaluations, rows of the store, ends of live lanes
    price    what is learnt: model, precision, and the cost of a local step
    place    the lanes stacked, and the devices and batches in which they run
    program  what the compiled program is made for: plan, facts of all events, users' code

Dimension letters: those of `fedjax_sim.core.types`; `D` schedules, `V` evaluations.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_sim.core import lifecycle, trees, types
from fedjax_sim.core.settings import ConfigError, alternatives_in
from fedjax_sim.engine.machine.user_code import number_of_code, together
from fedjax_sim.engine.planning import budgets, step_cost
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import (
    Lane,
    Lanes,
    distinct_objects,
    distinct_rows,
    families_of,
    precision_of,
    stack_problems,
    stack_settings,
)
from fedjax_sim.engine.planning.placement import Placement, choose
from fedjax_sim.engine.planning.schedule import Ends, Schedule, lay_out, pad_evaluations
from fedjax_sim.engine.program.live import rows_of, sizes_of
from fedjax_sim.engine.program.placed import PlacedLanes
from fedjax_sim.engine.program.replay import Program, Replay
from fedjax_sim.engine.request import Options
from fedjax_sim.results.runs import warn_of_late

SMALL = 1e6
"""Operations of one example of a local step up to which the program of the first evaluation is
compiled quickly: in a quarter of the time. They are those of one lane, so that its bits do not
depend on how many others run."""


NO_FACTS = types.Messages().facts_of_schedule
"""The default of systems without facts that follow from the clients of a schedule."""
CHECKED_TOGETHER = 2**20
"""Slots of schedules that are checked together."""


LARGEST_BLOCK = 32
"""Most ticks that an accelerator runs without asking the host whether the chunk ends."""


class Drawn(NamedTuple):
    """Timelines of a group.

    Attributes:
      timelines: Leaves `[D, T, ...]`.
      ticks: `i64[D]`, ticks of each timeline.
      row: `i64[L]`, the number of each lane's timeline.
    """

    timelines: types.Timeline
    ticks: np.ndarray
    row: np.ndarray

    def of_row(self, row: int) -> types.Timeline:
        """Cut one timeline to its ticks."""
        return types.Timeline(*(leaf[row, : self.ticks[row]] for leaf in self.timelines))


class Priced(NamedTuple):
    """The size of the model, and the cost of learning it.

    Attributes:
      model: Shapes and dtypes of a model.
      cost: Cost of a local step.
      num_examples: Examples of a local step.
      code: Number of the problem's code, see `number_of_code`.
    """

    model: types.Params
    cost: step_cost.StepCost
    num_examples: int
    code: int


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
      extra_facts: Per lane, facts that its settings say about numbers of ticks, `f64[V + 1]` by
        name.
      budget: How long the lanes run.
    """

    group: list[Lane]
    timelines: types.Timeline
    ticks: np.ndarray
    row: np.ndarray
    schedule: Schedule
    lanes: Lanes
    program: Program
    model: types.Params
    extra_facts: list[dict[str, np.ndarray]]
    budget: types.Budget

    def decided(self, replay: Replay) -> dict[str, Any]:
        """Collect the decisions of planning, for `_plan_again` and to compare with a resumed run.

        Args:
          replay: The lanes on their devices, or described.
        """
        placement = self.program.placement.layout()
        evaluations = list(self.schedule.shape[1:])
        return {"evaluations": evaluations, "placement": placement, **replay.digests()}

    def on_devices(self, *, is_described: bool = False) -> Replay:
        """Put the lanes on their devices, or only describe their arrays."""
        given = self.program, self.lanes, self.schedule, self.group
        return _replay_of(*given, is_described=is_described)


def plan_group(
    system: types.System,
    group: list[Lane],
    options: Options,
    *,
    longest: int = 0,
    per_eval: int | None = None,
    drawn: tuple[types.Timeline, np.ndarray] | None = None,
    row: np.ndarray | None = None,
) -> Planned:
    """Draw the group's timelines, lay them out and choose a layout.

    Args:
      group: The lanes.
      options: The options of the sweep.
      longest: As in `lay_out`.
      per_eval: Ticks between two evaluations, in place of their number.
      drawn: The timelines and their ticks, if they are known.
      row: `i64[L]`, the number of each lane's timeline among these, if they are the caller's own.
    """
    timed = _draw(system, group, options, drawn, row)
    schedule = _store(system, group, options, timed, longest, per_eval)
    # From here on the lanes are in the order of their families.
    order, members = families_of(group, timed.row)
    group, timed = [group[i] for i in order], timed._replace(row=timed.row[order])
    priced = _price(system, group[0])
    schedule = schedule.with_weights(precision_of(priced.model))
    lanes = Lanes(
        np.array([lane.seed for lane in group], "int32"),
        timed.row.astype("int32"),
        stack_settings([lane.hyper for lane in group], schedule.stored.weight.dtype),
        stack_problems([lane.problem for lane in group]),
    )
    placement = _place(system, group[0].hyper, options, lanes, schedule, priced, members)
    program = _program_of(system, group, options, lanes, schedule, priced, placement)
    extra_facts = _facts_of_lanes(system, group, timed, schedule)
    return Planned(
        group, *timed, schedule, lanes, program, priced.model, extra_facts, options.budget
    )


def _draw(
    system: types.System,
    group: list[Lane],
    options: Options,
    drawn: tuple[types.Timeline, np.ndarray] | None,
    row: np.ndarray | None,
) -> Drawn:
    """Draw the timelines, once for lanes that share one, and check messages and late settings."""
    if row is None:
        schedules = Schedules.of(system, group, options.budget)
        row = schedules.row
        drawn = drawn or schedules.request()
    assert drawn is not None
    found = Drawn(*drawn, row)
    _check_messages(system, group, found)
    warn_of_late([lane.hyper for lane in group], found.ticks[row].tolist())
    return found


def _store(
    system: types.System,
    group: list[Lane],
    options: Options,
    drawn: Drawn,
    longest: int,
    per_eval: int | None,
) -> Schedule:
    """Lay the timelines out: evaluations, rows of the store of old models, ends of live lanes."""
    hypers = [lane.hyper for lane in group]
    if per_eval is None and system.live is not None and isinstance(options.budget, types.Time):
        per_eval = _ticks_between(system, hypers, options, int(drawn.ticks.max()))
    live = sizes_of(system, distinct_objects(hypers)[0])
    schedule = lay_out(
        drawn.timelines,
        drawn.ticks,
        num_clients=system.messages.num_senders(hypers[0]) or hypers[0].num_clients,
        num_evals=options.num_evals,
        per_eval=per_eval,
        client_variance=options.keep.client_variance,
        longest=longest,
    )
    if live is None:
        return schedule
    ends = _ends_of(system, hypers, group[0].problem, options.budget)
    return schedule._replace(until=ends, rows=rows_of(live), live=live)


def _price(system: types.System, lane: Lane) -> Priced:
    """Describe the model of a lane, and estimate the cost of its local steps."""
    problem, num_examples = lane.problem, system.hints.step_examples(lane.hyper)
    has_loss = system.fit.learns is not types.LatentProblem
    trace = partial(_trace_problem, problem, num_examples, has_loss=has_loss)
    code = number_of_code(trace, problem, facts=num_examples, may_rest=True)
    model = step_cost.describe_model(problem, code)
    cost = step_cost.measure_step(problem, model, num_examples, has_loss=has_loss, code=code)
    return Priced(model, cost, num_examples, code)


def _place(
    system: types.System,
    hyper: types.HyperT,
    options: Options,
    lanes: Lanes,
    schedule: Schedule,
    priced: Priced,
    members: int,
) -> Placement:
    """Choose the layout of lanes by the cost of a local step. members: Lanes of each family."""
    chosen_among = alternatives_in(hyper)
    placement = choose(
        options.layout,
        rows=lanes.row,
        steps=schedule.stored.steps,
        cost=priced.cost,
        members=members,
        devices=options.devices,
        has_alternatives=bool(chosen_among),
    )
    if chosen_among and (placement.lanes_at_once or placement.family_size > 1):
        lifecycle.say(
            f"batched lanes of {system.name} execute all alternatives of "
            f"{' and '.join(chosen_among)}; with layout=Layout(lanes_at_once=False) each lane "
            "executes its own."
        )
    return placement


def _program_of(
    system: types.System,
    group: list[Lane],
    options: Options,
    lanes: Lanes,
    schedule: Schedule,
    priced: Priced,
    placement: Placement,
) -> Program:
    """Collect the static arguments of the program, with the number of the users' code in it."""
    plan = types.Plan(
        rows=schedule.rows,
        slots_at_once=placement.slots_at_once,
        lanes_at_once=placement.lanes_at_once,
        client_devices=placement.client_devices,
        family_size=placement.family_size,
        static_trips=placement.platform != "cpu",
        narrow=placement.narrow,
        live=schedule.live,
    )
    # Who saves or watches comes back after each evaluation. The time or energy of live lanes may
    # be over long before their ticks are.
    num_evals, per_eval = schedule.shape[1:]
    is_stepwise = options.folder is not None or options.watch.is_needed
    is_stepwise |= schedule.live is not None and not isinstance(options.budget, types.Ticks)
    asked = options.layout.evals_per_chunk or (1 if is_stepwise else num_evals)
    chunk = min(asked, num_evals)
    facts = _facts_of_events(schedule, placement, lanes.row, is_padded=num_evals % chunk > 0)
    is_stretch = options.folder is not None and options.layout.evals_per_chunk is None
    is_small = priced.cost.operations <= SMALL * priced.num_examples
    program = Program(
        system,
        plan,
        facts,
        placement,
        (chunk, per_eval),
        options.keep.models,
        _block_of(per_eval, placement) if is_stretch else 0,
        begins_quickly=placement.platform == "cpu" and is_small,
        precision=options.precision,
        can_stop=options.watch.on_evaluation is not None,
        code=priced.code,
    )

    def trace() -> tuple[ClosedJaxpr, Any]:
        return _replay_of(program, lanes, schedule, group, is_described=True).traced()

    sizes = [np.shape(leaf) for leaf in jax.tree.leaves((lanes, schedule.stored))]
    # Of functions that plan, the timeline has a number of its own.
    used = system._replace(timeline=cast(Any, None)), group[0].hyper
    code = number_of_code(trace, *used, facts=(program, *sizes))
    return program._replace(code=together(priced.code, code))


def _replay_of(
    program: Program, lanes: Lanes, schedule: Schedule, group: list[Lane], *, is_described: bool
) -> Replay:
    """Put the lanes of a program on their devices, or only describe their arrays."""
    padded = pad_evaluations(schedule, -schedule.shape[1] % program.chunk[0])
    starts = None
    if group[0].start is not None:
        starts = jax.tree.map(lambda *leaves: np.stack(leaves), *(lane.start for lane in group))
    given = program.placement, lanes, padded
    return Replay(program, PlacedLanes(*given, starts=starts, is_described=is_described))


def _trace_problem(
    problem: Any, num_examples: int, *, has_loss: bool = True
) -> tuple[ClosedJaxpr, Any]:
    """Trace the methods of a problem that algorithms of this package call, and describe results."""

    def results(problem: Any) -> Iterator[Any]:
        key, client = jax.random.key(0), jnp.int32(0)
        examples, weight = jnp.zeros(num_examples, "int32"), jnp.ones(num_examples)
        model = problem.init(key)
        yield problem.counts, model, problem.evaluate(model)
        if not has_loss:
            natural = problem.natural(problem.maximise(model))
            yield natural, problem.statistics(natural, client, examples, weight)
            yield problem.client_statistics(natural)
            return
        for losses in (problem, *([problem.alone(client)] if trees.has(problem, "alone") else [])):
            yield jax.value_and_grad(losses.loss)(model, client, examples, key)
            if trees.has(problem, "client_loss"):
                yield jax.value_and_grad(losses.client_loss)(model, client, key)
        if trees.has(problem, "evaluate_clients"):
            yield problem.evaluate_clients(lambda client: model)

    described = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), problem
    )
    return jax.make_jaxpr(lambda given: [*results(given)], return_shape=True)(described)


def _ticks_between(system: types.System, hypers: Sequence[Any], options: Options, most: int) -> int:
    """Choose the ticks between two evaluations of live lanes, which may use few of their ticks.

    As many as the estimated ticks ask for; but then lanes that need all of their ticks may have
    several times as many evaluations as were asked for, and no more.
    """
    assert isinstance(options.budget, types.Time)
    time, num = options.budget.time_budget, options.num_evals
    within = max(int(np.max(system.hints.ticks_within(hyper, time))) for hyper in hypers)
    return max(1, -(-min(within, most) // num), -(-most // (budgets.MOST_OF_ESTIMATE * num)))


def _ends_of(system: types.System, hypers: list[Any], problem: Any, budget: types.Budget) -> Ends:
    """Return when live lanes are over, on the host: leaves `[1]`.

    Raises:
      ConfigError: If the budget is one of energy and messages of lanes have different bits.
    """
    time = budget.time_budget if isinstance(budget, types.Time) else np.inf
    # How long a tick takes, and what it takes, are floats of the program.
    rounding = 8 * float(jnp.finfo(jnp.result_type(float)).eps)
    time = budgets.end_of_time(time, overshoot=system.overshoot, rounding=max(rounding, 1e-12))
    energy, message = np.inf, 0.0
    if isinstance(budget, types.Energy):
        energy = budget.energy_budget * (1 + rounding)
        model = trees.shapes_of_model(problem)
        different, _ = distinct_objects(hypers)
        bits = {sum(system.messages.bits(model, hyper)) for hyper in different}
        if len(bits) > 1:
            allowed = "a budget of lanes whose messages have equal bits: run the others apart"
            raise ConfigError("energy_budget", budget.energy_budget, allowed)
        message = bits.pop() / 8
    time_end, energy_end = (types.Instant.at(np.array([each])) for each in (time, energy))
    return jax.tree.map(np.asarray, Ends(time_end, energy_end, np.array([message], "float32")))


def _check_messages(system: types.System, group: list[Lane], drawn: Drawn) -> None:
    """Check the server's messages: the ticks of lanes with equal settings together."""
    hypers = [lane.hyper for lane in group]
    different, number = distinct_objects(hypers)
    num_slots = drawn.timelines.clients[0].size

    def are_allowed() -> bool:
        for i, hyper in enumerate(different):
            rows = np.unique(drawn.row[number == i])
            num_pieces = min(len(rows), max(1, -(-len(rows) * num_slots // CHECKED_TOGETHER)))
            for few in np.array_split(rows, num_pieces):
                try:
                    system.messages.check(hyper, _ticks_of(drawn, few))
                except ConfigError:
                    return False
        return True

    if are_allowed():
        return
    # Lane by lane, to say which.
    for i in distinct_rows(number, drawn.row)[0]:
        try:
            system.messages.check(hypers[i], drawn.of_row(drawn.row[i]))
        except ConfigError as error:
            if len(seeds := {lane.seed for lane in group}) == 1:
                raise
            field, value, allowed = error.parts
            allowed += f" (in a lane with seed {group[i].seed}, one of {len(seeds)} seeds)"
            raise ConfigError(field, value, allowed) from None


def _ticks_of(drawn: Drawn, rows: np.ndarray) -> types.Timeline:
    """Put the ticks of some schedules, of which each has its own number, after one another."""
    timelines, ticks = drawn.timelines, drawn.ticks
    if len(rows) == 1:
        return drawn.of_row(rows[0])
    if len(rows) == len(timelines.time) and (ticks[rows] == timelines.time.shape[1]).all():
        return types.Timeline(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in timelines))
    is_own = np.arange(timelines.time.shape[1]) < ticks[rows, None]
    return types.Timeline(*(leaf[rows][is_own] for leaf in timelines))


def extra_facts_of(
    system: types.System, hypers: list[Any], ticks: np.ndarray, row: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """Compute the system's facts of each lane, once for lanes of equal settings and ticks."""
    # Thousands of seeds may share one settings object, and have equally many ticks.
    same = row * 0 if (ticks == ticks[:1]).all() else row
    firsts, number = distinct_rows(distinct_objects(hypers)[1], same)
    known = [dict(system.messages.facts(hypers[i], ticks[row[i]])) for i in firsts]
    return [known[i] for i in number.tolist()]


def _facts_of_lanes(
    system: types.System, group: list[Lane], drawn: Drawn, schedule: Schedule
) -> list[dict[str, np.ndarray]]:
    """Collect facts of settings, and of settings and schedules together, once for equal lanes."""
    hypers, row = [lane.hyper for lane in group], drawn.row
    extra_facts = extra_facts_of(system, hypers, schedule.ticks, row)
    if system.messages.facts_of_schedule is NO_FACTS:
        return extra_facts
    different, of_hyper = distinct_objects(hypers)

    def facts(i: int) -> dict[str, np.ndarray]:
        given = hypers[i], drawn.of_row(row[i]), schedule.ticks[row[i]]
        return dict(system.messages.facts_of_schedule(*given))

    firsts, number = distinct_rows(of_hyper, row)
    # Most settings have none, whatever the schedule is.
    names = {i: facts(int(np.argmax(of_hyper == i))).keys() for i in range(len(different))}
    known = [facts(i) if names[int(of_hyper[i])] else {} for i in firsts.tolist()]
    if not any(known):
        return extra_facts
    return [extra_facts[i] | known[place] for i, place in enumerate(number.tolist())]


def _block_of(per_eval: int, placement: Placement) -> int:
    """Choose the block size; the length of a stretch is a multiple of it.

    An accelerator asks the host after each block whether to go on, a CPU asks nobody.
    """
    if placement.platform == "cpu":
        return 1
    return max(size for size in range(1, 1 + LARGEST_BLOCK) if per_eval % size == 0)


def _facts_of_events(
    schedule: Schedule, placement: Placement, row: np.ndarray, *, is_padded: bool
) -> types.Facts:
    """Collect the facts of the events that hold at every tick.

    Args:
      schedule: The schedules.
      placement: Where lanes run.
      row: `i64[L]`, the number of each lane's schedule.
      is_padded: Whether empty ticks will be appended.
    """
    steps = schedule.stored.steps
    most = int(steps.max())
    is_filled = not is_padded and bool((schedule.stored.clients != types.EMPTY).all())
    on_cpu = placement.platform == "cpu"
    # Slots that are made up so that devices have equally many do no steps.
    is_even = is_filled and steps.shape[-1] % placement.client_devices == 0
    same_steps = is_even and bool((steps == most).all())
    return types.Facts(
        is_drawn=True,
        all_filled=is_filled,
        # Where a CPU would only save a little by it, no program should depend on this number.
        most_steps=None if on_cpu and not (same_steps or placement.packed) else most,
        same_steps=same_steps,
        packed=placement.count_rows(steps, schedule.work, row),
    )
