"""Results of a group of lanes: curves, the schedules that happened, and facts that follow.

Dimension letters: those of `core.types`; `L` lanes, `D` schedules, `V` evaluations, `E` ticks
between two evaluations.
"""

from collections.abc import Mapping
from functools import partial

import jax
import numpy as np

from fedjax_sim.core import settings, trees, types
from fedjax_sim.core.clocks import ENDINGS, Instant
from fedjax_sim.core.events import HAPPENED, MEASURED
from fedjax_sim.core.lifecycle import say
from fedjax_sim.core.types import System, Ticks, Timeline
from fedjax_sim.engine.planning import budgets
from fedjax_sim.engine.planning.lanes import Lane, column, distinct_objects, distinct_rows
from fedjax_sim.engine.planning.schedule import Schedule, as_happened
from fedjax_sim.engine.program.prepare import Planned, extra_facts_of
from fedjax_sim.engine.request import Options
from fedjax_sim.results.curves import COORDINATES, NEVER, Curves, Returned, collapsed_at
from fedjax_sim.timelines.checks import check_values

ENDED_BECAUSE = {
    "idle": "came to a time from which on nobody ever reports",
    "time": "has a clock that went back, or a time or deadline that is nan or lets nothing happen",
    "steps": "has a clock that asked for more steps than its sizes or its `most_steps` say",
    "versions": "has a clock with more versions in use than its sizes say",
    "clients": "has a clock that named a client that does not exist, or that is busy, or one twice",
}
"""Endings of live lanes that are no ordinary ones, in words."""

BITS = COORDINATES[3:]
"""Up to the server and down to clients."""


def collect(planned: Planned, curves: Curves, options: Options) -> Returned:
    """Add the curves that follow from schedules and settings to those of a replay."""
    group, schedule, row = planned.group, planned.schedule, planned.row
    system, extra_facts = planned.program.system, planned.extra_facts
    realised, infos = _split(curves.infos, schedule.shape[1])
    timelines = [planned.cut[i] for i in row.tolist()]
    if realised:
        if (at := curves.stopped_at) is not None:  # A stopped lane has left zeros.
            ends = np.where(at == NEVER, schedule.shape[1], at)
            is_over = (np.arange(schedule.shape[1]) >= ends[:, None])[..., None, None]
            realised["clients"] = np.where(is_over, types.EMPTY, realised["clients"])
        # Where steps changed who took part, the schedule becomes the one that happened.
        schedule, row = as_happened(schedule.take(row), realised), np.arange(len(group))
        timelines = _timelines_of(planned, realised, schedule.ticks[:, -1])
    num_evals = schedule.shape[1]
    metrics, samples = jax.tree.map(
        lambda value: value[:, : num_evals + 1], (curves.metrics, curves.samples)
    )
    infos = jax.tree.map(lambda value: value[:, :num_evals], infos)
    facts = _facts_of(schedule, row) | _count(planned, schedule, row, timelines)
    facts["collapsed_at"] = _collapsed_at(group, metrics)
    if MEASURED in infos:
        # Evaluations after a lane's end repeat its last one, without a step since.
        ticks = schedule.ticks[row]
        last = (ticks < ticks[:, -1:]).sum(axis=1, keepdims=True)
        known = np.arange(len(ticks))[:, None], np.minimum(np.arange(ticks.shape[1]), last)
        metrics |= {name: each[known] for name, each in _means_of_steps(infos).items()}
    if planned.program.plan.live is not None:
        extra_facts = extra_facts_of(system, planned.hypers, schedule.ticks, row)
        _say_what_a_rule_refuses(system, group, timelines)
        facts["ended"] = _endings(planned, schedule, realised["ended"], curves.stopped_at)
    found = Curves(metrics, infos, curves.models, samples)
    stacked = _stacked(extra_facts, schedule.ticks.shape[1])
    part = Returned(column(group, "place"), found, facts, timelines, stacked)
    if options.watch.on_evaluation is None:
        return part
    assert curves.stopped_at is not None
    return end_stopped_lanes(part, curves.stopped_at)


def _split(
    infos: Mapping[str, np.ndarray], num_evals: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Split counts, `[L, V, ...]`, into recorded fields of events, by field, and all others."""
    realised, others = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, value in infos.items():
        into = realised if name.startswith(HAPPENED) else others
        into[name.removeprefix(HAPPENED)] = value[:, :num_evals]
    return realised, others


def happened_so_far(planned: Planned, infos: Mapping[str, np.ndarray]) -> Schedule:
    """Make the schedule of each lane from the events among the counts so far."""
    realised, _ = _split(infos, planned.schedule.shape[1])
    return as_happened(planned.schedule.take(planned.row), realised)


def _timelines_of(
    planned: Planned, realised: Mapping[str, np.ndarray], ends: np.ndarray
) -> list[Timeline]:
    """Make the timelines that happened, where steps changed them or clocks are live.

    Args:
      planned: The lanes.
      realised: The fields of their events.
      ends: `i64[L]`, ticks of each lane.
    """
    system, timelines = planned.program.system, []
    for i, (lane, end) in enumerate(zip(planned.group, ends.tolist(), strict=True)):
        known = {
            name: each[i].reshape(-1, *each.shape[3:])[:end] for name, each in realised.items()
        }
        known["weight"] = known["weight"].astype("float64")
        if planned.program.plan.live is None:
            timeline = planned.cut[planned.row[i]]._replace(**known)
        else:
            time, version = Instant(known["time"], known["rest"]).to_float64(), known["version"]
            slots = known["clients"], known["steps"], version, known["weight"]
            timeline = Timeline(time, *slots, holds=version)
        num_clients = system.messages.num_senders(lane.hyper) or lane.hyper.num_clients
        each = Timeline(*(leaf[None] for leaf in timeline))
        check_values(system, each, end, num_clients, least_weight=-np.inf)
        timelines.append(timeline)
    return timelines


def _means_of_steps(infos: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take sums of measures `[L, V, N]` out of the counts, and make means over local steps of them.

    Returns:
      The mean over all clients' steps between two evaluations, `[L, V + 1]`, and over each
      client's, `[L, V + 1, N]`, by name: nan at the first evaluation, and without a step.
    """
    sums = {name[len(MEASURED) :]: infos.pop(name) for name in [*infos] if MEASURED in name}
    means: dict[str, np.ndarray] = {}
    with np.errstate(invalid="ignore"):
        for name in sums.keys() - {""}:
            all_steps = sums[name].sum(axis=-1) / sums[""].sum(axis=-1)
            means |= {name: all_steps, f"client_{name}[client]": sums[name] / sums[""]}
    return {
        name: np.concatenate([np.full_like(mean[:, :1], np.nan), mean], axis=1)
        for name, mean in sorted(means.items())
    }


def _say_what_a_rule_refuses(system: System, group: list[Lane], timelines: list[Timeline]) -> None:
    """Name the first live lane with a tick of messages that its settings do not allow.

    Of a planned schedule this is known, and refused, before learning.
    """
    for lane, timeline in zip(group, timelines, strict=True):
        try:
            system.messages.check(lane.hyper, timeline)
        except settings.ConfigError as error:
            say(f"a lane of {system.name} with seed {lane.seed} is not what was asked for: {error}")
            return


def _endings(
    planned: Planned, schedule: Schedule, ended: np.ndarray, stopped_at: np.ndarray | None
) -> np.ndarray:
    """Return why live lanes ended, by the numbers of `ENDINGS`, and say so if it was a fault.

    Args:
      planned: The lanes.
      schedule: What happened in them.
      ended: `i32[L, V, E]`.
      stopped_at: `i64[L]`, the evaluation at which a lane was stopped, or `NEVER`.
    """
    last = schedule.ticks[:, -1]
    flat = ended.reshape(len(ended), -1)
    at = np.minimum(last, flat.shape[1] - 1)
    found = np.where(last < flat.shape[1], flat[np.arange(len(flat)), at], ENDINGS.index("ticks"))
    if stopped_at is not None:
        # A lane that is stopped with its last tick had its ticks.
        is_cut = (stopped_at != NEVER) & (last == stopped_at * schedule.shape[2])
        found[is_cut & (last < planned.ticks[planned.row])] = ENDINGS.index("stopped")
    name, budget = planned.program.system.name, planned.budget
    for number in sorted(set(found.tolist())):
        lanes = [lane for lane, code in zip(planned.group, found, strict=True) if code == number]
        words = ENDED_BECAUSE.get(ENDINGS[number])
        if ENDINGS[number] == "ticks" and not isinstance(budget, Ticks):
            most, kind = int(planned.ticks.max()), budget.named[0].removesuffix("_budget")
            words = f"had most_ticks = {most} ticks before its {kind} budget was over"
        if words:
            number_of = f"{len(lanes)} of {len(planned.group)} lanes"
            first = f"seed {lanes[0].seed}"
            if lanes[0].point:
                first += "".join(f", {key}={value}" for key, value in lanes[0].point.items())
            say(f"{number_of} of {name} ended early, the first with {first}: it {words}.")
    return found.astype(np.int64)


def _stacked(extra_facts: list[dict[str, np.ndarray]], length: int) -> dict[str, np.ndarray]:
    """Stack the lanes' facts, NaN where a lane has none: `f64[L, length]` by name."""
    nothing = np.full(length, np.nan)
    distinct, number = distinct_objects(extra_facts)
    return {
        name: np.stack([lane.get(name, nothing) for lane in distinct])[number]
        for name in sorted(set[str]().union(*distinct))
    }


def _collapsed_at(group: list[Lane], metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Find out which lanes are at chance, and since when, as in `collapsed_at`."""
    found = np.full(len(group), NEVER)
    problems, number = distinct_objects(column(group, "problem"))
    for i, problem in enumerate(problems):
        # Attributes may be handed on by a problem's `__getattr__`.
        if trees.has(problem, "chance"):
            lanes = np.flatnonzero(number == i)
            of_lanes = {name: value[lanes] for name, value in metrics.items()}
            found[lanes] = collapsed_at(of_lanes, problem.chance())
    return found


def _count(
    planned: Planned, schedule: Schedule, row: np.ndarray, timelines: list[Timeline]
) -> dict[str, np.ndarray]:
    """Count bits and energy before each evaluation, by coordinate: `[L, V + 1]` each.

    What depends on settings alone is counted once for lanes that share them, and so is what depends
    on the timeline for those that share it too. There is an energy if some lane's table says it; it
    is nan in the others. `row` has the number of each lane's schedule, and `timelines` one per
    lane.
    """
    group, model, system = planned.group, planned.model, planned.program.system
    messages, counted = system.messages, schedule.messages[row]
    hypers, of_hyper = distinct_objects(planned.hypers)
    per_message = np.array([*map(partial(messages.bits, model), hypers)])[of_hyper]
    found = dict(zip(BITS, counted * per_message.T[..., None], strict=True))
    if any(getattr(hyper, "energies", None) is not None for hyper in hypers):
        found["energy"] = np.full(counted.shape, np.nan)
    if not messages.replaces("per_tick", "further") and "energy" not in found:
        return found
    _, of_problem = distinct_objects(column(group, "problem"))
    firsts, number = distinct_rows(of_hyper, of_problem, row)
    for i, first in enumerate(firsts):
        given = group[first].problem, group[first].hyper, timelines[first]
        by_tick = dict(zip(BITS, messages.per_tick(*given) or (), strict=False))
        by_tick |= messages.further(*given)
        if "energy" in found:
            used = budgets.energy_of_ticks(system, *given[:2], model, timelines[first])
            by_tick |= {} if used is None else {"energy": used}
        for name, each in by_tick.items():
            before = found.setdefault(name, np.zeros_like(counted))
            total = np.concatenate([[0], np.cumsum(each, dtype=before.dtype)])
            before[number == i] = total[schedule.ticks[row[first]]]
    return found


def end_stopped_lanes(part: Returned, stopped_at: np.ndarray) -> Returned:
    """Cut schedules, and repeat the last facts.

    Args:
      part: What lanes returned. Their samples and infos end where the lanes do already, and so do
        metrics but for means over local steps.
      stopped_at: `i64[L]`, the evaluation at which a lane was stopped, or `NEVER`.
    """
    num_lanes, num_evals = part.facts["ticks"].shape
    last = np.where(stopped_at == NEVER, num_evals - 1, stopped_at)
    known = np.minimum(np.arange(num_evals), last[:, None])
    lanes = np.arange(num_lanes)

    def hold(values: np.ndarray) -> np.ndarray:
        return values[lanes[:, None], known] if values.ndim > 1 else values.copy()

    facts = {name: hold(values) for name, values in part.facts.items()}
    timelines = list(part.timelines)
    shared: dict[tuple[int, int], Timeline] = {}
    for i in np.flatnonzero(stopped_at != NEVER):
        end = int(facts["ticks"][i, -1])
        cut = shared.setdefault(
            (id(part.timelines[i]), end), Timeline(*(leaf[:end] for leaf in part.timelines[i]))
        )
        timelines[i] = cut
        staleness = (np.arange(end)[:, None] - cut.version)[cut.clients != types.EMPTY]
        facts["staleness_mean"][i] = staleness.mean() if staleness.size else np.nan
        facts["staleness_max"][i] = staleness.max(initial=0)
    facts["stopped_at"] = stopped_at.copy()
    extra_facts = {name: hold(values) for name, values in part.extra_facts.items()}
    metrics = {name: hold(values) for name, values in part.curves.metrics.items()}
    curves = part.curves._replace(metrics=metrics)
    return part._replace(curves=curves, facts=facts, timelines=timelines, extra_facts=extra_facts)


def _facts_of(schedule: Schedule, row: np.ndarray) -> dict[str, np.ndarray]:
    """Collect each lane's time, ticks and messages, and the staleness of the work it received.

    Staleness is in server versions: its mean, `f64[L]`, nan where nothing was received, and its
    largest value, `i64[L]`. `row` has the number of each lane's schedule, `i64[L]`.
    """
    stored, messages = schedule.stored, schedule.messages[:, -1]
    staleness = np.where(stored.clients != types.EMPTY, stored.staleness, 0)
    repeated = np.prod(schedule.shape[1:]) // np.prod(staleness.shape[1:3])
    total = staleness.sum(axis=(1, 2, 3), dtype=np.int64) * repeated
    largest = staleness.max(axis=(1, 2, 3)).astype(np.int64)
    mean = np.where(messages > 0, total / np.maximum(messages, 1), np.nan)
    largest = np.broadcast_to(largest, schedule.shape[0])
    time, ticks, steps = schedule.time[row], schedule.ticks[row], schedule.local_steps[row]
    facts = dict(zip(COORDINATES, (time, ticks, steps), strict=False))
    return {**facts, "staleness_mean": mean[row], "staleness_max": largest[row]}
