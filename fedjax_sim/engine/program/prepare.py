"""Prepare the program of a group of lanes: draw its timelines, lay them out, choose a layout.

Dimension letters: those of `fedjax_sim.types`; `D` schedules, `V` evaluations.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_sim import lifecycle, trees, types
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
from fedjax_sim.engine.program.replay import Program, Replay
from fedjax_sim.engine.request import Options
from fedjax_sim.results.runs import warn_of_late
from fedjax_sim.settings import ConfigError, alternatives_in


def stack_starts(lanes: Sequence[Lane]) -> types.Params | None:
    """Stack the models that lanes start from: leaves `[L, ...]`; None if they are drawn."""
    if lanes[0].start is None:
        return None
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(lane.start for lane in lanes))


SMALL = 1e6
"""Operations of one example of a local step up to which the program of the first evaluation is
compiled quickly: in a quarter of the time. They are those of one lane, so that its bits do not
depend on how many others run."""


NO_FACTS = types.Messages().facts_of_schedule
"""What systems have whose messages say nothing of who takes part."""
CHECKED_TOGETHER = 2**20
"""Slots of schedules that are checked together."""


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
      budget: How long the lanes run.
    """

    group: list[Lane]
    timelines: types.Timeline
    ticks: np.ndarray
    row: np.ndarray
    schedule: Schedule
    lanes: Lanes
    program: Program
    model: Any
    told: list[dict[str, np.ndarray]]
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
        num_evals, chunk = self.schedule.shape[1], self.program.chunk[0]
        padded = pad_evaluations(self.schedule, -num_evals % chunk)
        starts = stack_starts(self.group)
        return Replay(self.program, self.lanes, padded, starts=starts, is_described=is_described)


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
    # The schedules, drawn once for lanes that share one.
    hypers = [lane.hyper for lane in group]
    if row is None:
        schedules = Schedules.of(system, group, options.budget)
        row = schedules.row
        drawn = drawn or schedules.request()
    assert drawn is not None
    timelines, ticks = drawn
    _check_messages(system, group, timelines, ticks, row)
    warn_of_late(hypers, [int(ticks[each]) for each in row])
    if per_eval is None and system.live is not None and isinstance(options.budget, types.Time):
        per_eval = _ticks_between(system, hypers, options, int(ticks.max()))
    live = sizes_of(system, distinct_objects(hypers)[0])
    schedule = lay_out(
        timelines,
        ticks,
        num_clients=system.messages.num_senders(hypers[0]) or hypers[0].num_clients,
        num_evals=options.num_evals,
        per_eval=per_eval,
        client_variance=options.keep.client_variance,
        longest=longest,
    )
    if live is not None:
        ends = _ends_of(system, hypers, group[0].problem, options.budget)
        schedule = schedule._replace(until=ends, rows=rows_of(live))
    # The lanes in the order of their families, with the problem's numbers in the model's
    # type.
    order, members = families_of(group, row)
    group, row = [group[i] for i in order], row[order]
    hypers, problems = [lane.hyper for lane in group], [lane.problem for lane in group]
    num_examples = system.hints.step_examples(hypers[0])
    has_loss = system.fit.learns is not types.LatentProblem
    trace = partial(_trace_problem, problems[0], num_examples, has_loss=has_loss)
    code = number_of_code(trace, problems[0], facts=num_examples, may_rest=True)
    model = step_cost.describe_model(problems[0], code)
    precision = precision_of(model)
    weight = schedule.stored.weight.astype(precision)
    schedule = schedule._replace(stored=schedule.stored._replace(weight=weight))
    lanes = Lanes(
        np.array([lane.seed for lane in group], "int32"),
        row.astype("int32"),
        stack_settings(hypers, precision),
        stack_problems(problems),
    )
    # The layout, chosen by the cost of a local step.
    cost = step_cost.measure_step(problems[0], model, num_examples, has_loss=has_loss, code=code)
    chosen_among = alternatives_in(hypers[0])
    placement = choose(
        options.layout,
        rows=row,
        steps=schedule.stored.steps,
        cost=cost,
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
    # The static arguments of the program. Who saves or watches comes back after each
    # evaluation.
    num_evals, per_eval = schedule.shape[1:]
    is_saved, asked = options.folder is not None, options.layout.evals_per_chunk
    is_stepwise = is_saved or options.watch.is_needed
    # The time or energy of live lanes may be over long before their ticks are.
    is_stepwise |= live is not None and not isinstance(options.budget, types.Ticks)
    chunk = min(asked or (1 if is_stepwise else num_evals), num_evals)
    facts = _facts_of_events(schedule, placement, row, is_padded=num_evals % chunk > 0)
    is_small = cost.operations <= SMALL * num_examples
    program = Program(
        system,
        _plan_of(schedule, placement, live),
        facts,
        placement,
        (chunk, per_eval),
        options.keep.models,
        _block_of(per_eval, placement) if is_saved and asked is None else 0,
        begins_quickly=placement.platform == "cpu" and is_small,
        precision=options.precision,
        can_stop=options.watch.on_evaluation is not None,
        code=code,
    )
    trace = partial(_trace_lanes, program, lanes, schedule, group)
    sizes = [np.shape(leaf) for leaf in jax.tree.leaves((lanes, schedule.stored))]
    # Of functions that plan, the timeline has a number of its own.
    used = system._replace(timeline=cast(Any, None)), hypers[0]
    of_lanes = number_of_code(trace, *used, facts=(program, *sizes))
    program = program._replace(code=together(code, of_lanes))
    told = told_of(system, hypers, schedule.ticks, row)
    told = _told_of_schedules(system, hypers, timelines, ticks, schedule.ticks, row, told)
    drawn_as = group, timelines, ticks, row, schedule, lanes, program, model, told
    return Planned(*drawn_as, options.budget)


def _trace_problem(
    problem: Any, num_examples: int, *, has_loss: bool = True
) -> tuple[ClosedJaxpr, Any]:
    """Trace what algorithms of this package may call of a problem, and describe its results."""

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


def _trace_lanes(
    program: Program, lanes: Lanes, schedule: Schedule, group: list[Lane]
) -> tuple[ClosedJaxpr, Any]:
    """Trace the programs of lanes, and describe their results."""
    num_evals, chunk = schedule.shape[1], program.chunk[0]
    padded = pad_evaluations(schedule, -num_evals % chunk)
    replay = Replay(program, lanes, padded, starts=stack_starts(group), is_described=True)
    return replay.traced()


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


def _check_messages(
    system: types.System,
    group: list[Lane],
    timelines: types.Timeline,
    ticks: np.ndarray,
    row: np.ndarray,
) -> None:
    """Check what the server does with messages: the ticks of lanes with equal settings together."""
    hypers = [lane.hyper for lane in group]
    different, number = distinct_objects(hypers)
    num_slots = timelines.clients[0].size

    def are_allowed() -> bool:
        for i, hyper in enumerate(different):
            rows = np.unique(row[number == i])
            num_pieces = min(len(rows), max(1, -(-len(rows) * num_slots // CHECKED_TOGETHER)))
            for few in np.array_split(rows, num_pieces):
                try:
                    system.messages.check(hyper, _ticks_of(timelines, few, ticks))
                except ConfigError:
                    return False
        return True

    if are_allowed():
        return
    # Lane by lane, to say which.
    for i in distinct_rows(number, row)[0]:
        try:
            system.messages.check(hypers[i], _ticks_of(timelines, row[i : i + 1], ticks))
        except ConfigError as error:
            if len(seeds := {lane.seed for lane in group}) == 1:
                raise
            field, value, allowed = error.parts
            allowed += f" (in a lane with seed {group[i].seed}, one of {len(seeds)} seeds)"
            raise ConfigError(field, value, allowed) from None


def _ticks_of(timelines: types.Timeline, rows: np.ndarray, ticks: np.ndarray) -> types.Timeline:
    """Put the ticks of some schedules, of which each has its own number, after one another."""
    if len(rows) == 1:
        return types.Timeline(*(leaf[rows[0], : ticks[rows[0]]] for leaf in timelines))
    if len(rows) == len(timelines.time) and (ticks[rows] == timelines.time.shape[1]).all():
        return types.Timeline(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in timelines))
    is_own = np.arange(timelines.time.shape[1]) < ticks[rows, None]
    return types.Timeline(*(leaf[rows][is_own] for leaf in timelines))


def told_of(
    system: types.System, hypers: list[Any], ticks: np.ndarray, row: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """Compute the system's facts of each lane, once for lanes of equal settings and ticks."""
    # Thousands of seeds may share one settings object, and have equally many ticks.
    same = row * 0 if (ticks == ticks[:1]).all() else row
    firsts, number = distinct_rows(distinct_objects(hypers)[1], same)
    known = [dict(system.messages.facts(hypers[i], ticks[row[i]])) for i in firsts]
    return [known[i] for i in number.tolist()]


def _told_of_schedules(
    system: types.System,
    hypers: list[Any],
    timelines: types.Timeline,
    ticks: np.ndarray,
    evaluated: np.ndarray,
    row: np.ndarray,
    told: list[dict[str, np.ndarray]],
) -> list[dict[str, np.ndarray]]:
    """Add facts that follow from who takes part, once for lanes of equal settings and schedule."""
    if system.messages.facts_of_schedule is NO_FACTS:
        return told
    different, of_hyper = distinct_objects(hypers)

    def facts(i: int) -> dict[str, np.ndarray]:
        timeline = _ticks_of(timelines, row[i : i + 1], ticks)
        return dict(system.messages.facts_of_schedule(hypers[i], timeline, evaluated[row[i]]))

    firsts, number = distinct_rows(of_hyper, row)
    # Most settings have none, whatever the schedule is.
    names = {i: facts(int(np.argmax(of_hyper == i))).keys() for i in range(len(different))}
    known = [facts(i) if names[int(of_hyper[i])] else {} for i in firsts.tolist()]
    if not any(known):
        return told
    return [told[i] | known[place] for i, place in enumerate(number.tolist())]


def _block_of(per_eval: int, placement: Placement) -> int:
    """Choose the block size; the length of a stretch is a multiple of it.

    An accelerator asks the host after each block whether to go on, a CPU asks nobody.
    """
    if placement.platform == "cpu":
        return 1
    return max(size for size in range(1, 1 + LARGEST_BLOCK) if per_eval % size == 0)


def _plan_of(schedule: Schedule, placement: Placement, live: types.Sizes | None) -> types.Plan:
    """Say how the machine is used."""
    return types.Plan(
        rows=schedule.rows,
        slots_at_once=placement.slots_at_once,
        lanes_at_once=placement.lanes_at_once,
        client_devices=placement.client_devices,
        family_size=placement.family_size,
        static_trips=placement.platform != "cpu",
        narrow=placement.narrow,
        live=live,
    )


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
