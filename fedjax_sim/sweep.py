"""Runs of one system: settings x seeds as lanes, grouped by static part, one compiled program per group."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fedjax_sim import layout as layouts
from fedjax_sim import schedule as schedules
from fedjax_sim.checkpoint import Checkpoint
from fedjax_sim.progress import Progress
from fedjax_sim.settings import ConfigError, check, fields, is_traced
from fedjax_sim.simulate import CompileMeter, Curves, Program, draw_timelines, replay, stack_lanes
from fedjax_sim.types import EMPTY, Hyper, Plan, Problem, System, Timeline

Problems = Problem | Sequence[Problem] | Callable[[int], Problem]


class Run(NamedTuple):
    """What a sweep leaves."""

    curves: xr.Dataset
    """Metrics with dimensions (swept names..., seed, eval); coordinates time, ticks, local_steps, uplink_bits, downlink_bits; per lane
    staleness, gradient evaluations executed and needed, and whether it failed (a number that is not finite). Attributes: seconds."""
    models: Any
    """Final models, leaves `[lanes, ...]` with lanes in the order of the flattened dimensions."""
    timelines: list[Timeline]
    """Each lane's schedule, cut to its budget, in the same order."""


def simulate(system: System, problem: Problem, hyper: Hyper | None = None, *, seed: int = 0, **options: Any) -> Run:
    """Run one lane: a sweep over one seed. The options are those of `sweep`; the curves' only dimension is `eval`."""
    run = sweep(system, problem, hyper, seeds=[seed], **options)
    models = jax.tree.map(lambda leaf: leaf[0], run.models)
    return run._replace(curves=run.curves.isel(seed=0), models=models)


def sweep(
    system: System,
    problem: Problems,
    hyper: Hyper | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    time_budget: float | None = None,
    num_ticks: int | None = None,
    num_evals: int = 25,
    layout: layouts.Layout = layouts.Layout(),
    max_lanes: int | None = None,
    evals_per_chunk: int | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Run:
    """Run a system for every combination of settings and every seed.

    problem: one for all seeds, a sequence with one per seed, or a function of the seed; what they share is held once on the device.
    hyper: the system's own defaults if None. seeds: a number of them, from 0, or their list. settings: names of fields of hyper to the
    values each takes; numbers are swept without compiling anew. time_budget (virtual time) or num_ticks (server actions) ends a run.
    num_evals: evaluations, after equal numbers of ticks, besides the initial one. max_lanes: at most so many in memory at once.
    evals_per_chunk: evaluations between two returns to the host (default: all, or 1 with a checkpoint or progress shown).
    checkpoint: a folder to write checkpoints to, and with resume to go on from.
    Raises ConfigError, before anything is compiled, for input that is not allowed.
    """
    hyper = system.Hyper() if hyper is None else hyper
    seeds = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(seed) for seed in seeds]
    settings = {name: list(values) for name, values in (settings or {}).items()}
    _check_run(system, seeds, settings, time_budget, num_ticks, num_evals, max_lanes, evals_per_chunk)
    points = [dict(zip(settings, values, strict=True)) for values in itertools.product(*settings.values())]
    hypers = [_with_settings(hyper, point) for point in points]
    for each in hypers:
        check(each)
    problems = _problems_of(problem, seeds)
    _check_clients(hypers, problems)
    lanes = [_Lane(point, index) for point in range(len(points)) for index in range(len(seeds))]
    began, meter = time.perf_counter(), CompileMeter()
    parts: list[_Part] = []
    for group in _groups(lanes, hypers, problems, max_lanes):
        folder = None if checkpoint is None else Path(checkpoint) / f"part_{len(parts)}"
        setup = (system, [hypers[lane.point] for lane in group], [problems[lane.seed] for lane in group], [seeds[lane.seed] for lane in group])
        options = (time_budget, num_ticks, num_evals, layout, evals_per_chunk, folder, resume, progress)
        parts.append(_run_group(group, *setup, *options))
    curves = _dataset(parts, settings, points, seeds, system)
    compiling = meter.seconds
    curves.attrs |= {"seconds_compile": compiling, "seconds_run": time.perf_counter() - began - compiling, "programs_compiled": meter.count}
    order = np.argsort([len(seeds) * lane.point + lane.seed for part in parts for lane in part.lanes])
    models = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[order], *(p.curves.models for p in parts))
    timelines = [timeline for part in parts for timeline in part.timelines]
    return Run(curves, models, [timelines[i] for i in order])


class _Lane(NamedTuple):
    point: int  # index into the grid of settings
    seed: int  # index into the seeds


class _Part(NamedTuple):
    """Lanes that ran as one program, and what they left."""

    lanes: list[_Lane]
    curves: Curves
    schedule: schedules.Schedule
    timelines: list[Timeline]
    bits: list[tuple[int, int]]  # of one message up and one down, per lane


def _groups(lanes: list[_Lane], hypers: list[Hyper], problems: list[Problem], max_lanes: int | None) -> Iterator[list[_Lane]]:
    """Lanes that can share a program: those of equal static parts and shapes, at most `max_lanes` at once."""

    def static_part(lane: _Lane) -> Any:
        leaves, treedef = jax.tree.flatten(problems[lane.seed])
        shapes = tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)
        return jax.tree.structure(hypers[lane.point]), treedef, shapes

    parts = [static_part(lane) for lane in lanes]
    distinct: list[Any] = []
    for part in parts:
        if part not in distinct:
            distinct.append(part)
    for part in distinct:
        group = [lane for lane, own in zip(lanes, parts, strict=True) if own == part]
        size = max_lanes or len(group)
        yield from (group[i : i + size] for i in range(0, len(group), size))


def _run_group(
    group: list[_Lane],
    system: System,
    hypers: list[Hyper],
    problems: list[Problem],
    seeds: list[int],
    time_budget: float | None,
    num_ticks: int | None,
    num_evals: int,
    layout: layouts.Layout,
    evals_per_chunk: int | None,
    folder: Path | None,
    resume: bool,
    progress: bool,
) -> _Part:
    lanes = stack_lanes([jax.random.key(seed) for seed in seeds], hypers, problems)
    first = 0 if time_budget is None else 16 + int(1.1 * max(float(np.max(system.ticks_within(hyper, time_budget))) for hyper in hypers))
    timelines, ticks = schedules.request_timelines(
        lambda asked: draw_timelines(system, lanes, asked),
        first=min(first, schedules.MAX_TICKS),
        budget=time_budget,
        num_ticks=num_ticks,
        overshoot=system.overshoot,
    )
    num_clients = problems[0].counts.shape[0]
    schedule = schedules.lay_out(timelines, ticks, num_clients=num_clients, num_evals=num_evals)
    parameters = jax.eval_shape(problems[0].init, lanes.key[0])
    layout = layouts.choose(
        layout,
        num_lanes=lanes.count,
        steps=schedule.events.steps.reshape(lanes.count, -1, schedule.events.steps.shape[-1]),
        num_parameters=sum(leaf.size for leaf in jax.tree.leaves(parameters)),
        batch_size=getattr(hypers[0], "batch_size", 1),
    )
    plan = Plan(schedule.rows, int(layout.slots_at_once or 1), bool(layout.lanes_at_once), layout.client_devices)
    program = Program(system, plan, layout, lanes.treedef)
    total = schedule.events.tick.shape[1]
    watched = folder is not None or progress
    chunk = min(evals_per_chunk or (1 if watched else total), total)
    schedule = schedules.pad_evaluations(schedule, -total % chunk)
    shown = Progress(system.name, schedule, total, enabled=progress)
    saved = None if folder is None else Checkpoint(folder, _configuration(program, hypers, seeds, schedule, total), resume=resume)
    with shown:
        curves = replay(program, lanes, schedule, evals_per_chunk=chunk, checkpoint=saved, report=shown.update)
    metrics = {name: value[:, : total + 1] for name, value in curves.metrics.items()}
    infos = {name: value[:, :total] for name, value in curves.infos.items()}
    cut = [Timeline(*(leaf[i, : ticks[i]] for leaf in timelines)) for i in range(lanes.count)]
    bits = [system.message_bits(parameters, hyper) for hyper in hypers]
    return _Part(group, Curves(metrics, infos, curves.models), schedule, cut, bits)


def _configuration(program: Program, hypers: list[Hyper], seeds: list[int], schedule: schedules.Schedule, num_evals: int) -> Any:
    """What must not change between a run and its resumption."""
    values = [{name: repr(getattr(hyper, name)) for name in fields(type(hyper)) if name != "trace"} for hyper in hypers]
    ends = [schedule.time[:, -1].tolist(), schedule.ticks[:, -1].tolist(), num_evals, schedule.events.tick.shape]
    return {"system": program.system.name, "seeds": seeds, "settings": values, "schedule": ends, "plan": program.plan._asdict()}


def _dataset(
    parts: list[_Part], settings: Mapping[str, Sequence[Any]], points: list[dict[str, Any]], seeds: list[int], system: System
) -> xr.Dataset:
    """Put the lanes of all parts on one grid. Parts with fewer evaluations repeat their last one."""
    num_evals = max(part.schedule.ticks.shape[1] for part in parts)
    shape = (*(len(values) for values in settings.values()), len(seeds))

    def place(per_part: list[np.ndarray]) -> np.ndarray:
        """Lanes' arrays `[L] or [L, V]` of all parts to the grid."""
        full = [x if x.ndim == 1 else np.concatenate([x, np.repeat(x[:, -1:], num_evals - x.shape[1], axis=1)], axis=1) for x in per_part]
        grid = np.empty((len(points), len(seeds), *full[0].shape[1:]), full[0].dtype)
        for part, values in zip(parts, full, strict=True):
            for lane, value in zip(part.lanes, values, strict=True):
                grid[lane.point, lane.seed] = value
        return grid.reshape(*shape, *full[0].shape[1:])

    lane_dims = (*settings, "seed")
    dims = (*lane_dims, "eval")
    data = {name: (dims, place([part.curves.metrics[name] for part in parts])) for name in parts[0].curves.metrics}
    data["failed"] = (lane_dims, ~data.pop("finite")[1].all(axis=-1))
    for name in parts[0].curves.infos:
        data[name] = (lane_dims, place([part.curves.infos[name].sum(axis=1, dtype=np.int64) for part in parts]))
    staleness = [[_staleness(timeline) for timeline in part.timelines] for part in parts]
    data["staleness_mean"] = (lane_dims, place([np.array([s[0] for s in each]) for each in staleness]))
    data["staleness_max"] = (lane_dims, place([np.array([s[1] for s in each]) for each in staleness]))
    coords: dict[str, Any] = {
        name: (dims, place([getattr(part.schedule, name) for part in parts])) for name in ("time", "ticks", "local_steps")
    }
    for k, name in enumerate(("uplink_bits", "downlink_bits")):
        message = [np.array([bits[k] for bits in part.bits], np.int64)[:, None] for part in parts]
        coords[name] = (dims, place([part.schedule.messages * bits for part, bits in zip(parts, message, strict=True)]))
    labels = {name: [v if isinstance(v, (int, float, str, bool)) else getattr(v, "__name__", str(v)) for v in values] for name, values in settings.items()}
    return xr.Dataset(data, {**labels, "seed": seeds, **coords}, {"system": system.name})


def _staleness(timeline: Timeline) -> tuple[float, int]:
    """Mean and largest staleness, in server versions, of the work received."""
    staleness = (np.arange(len(timeline.time))[:, None] - timeline.version)[timeline.clients != EMPTY]
    return float(staleness.mean()), int(staleness.max())


def _with_settings(hyper: Hyper, point: Mapping[str, Any]) -> Hyper:
    return hyper.replace(**point) if point else hyper


def _problems_of(problem: Problems, seeds: list[int]) -> list[Problem]:
    if isinstance(problem, Sequence):
        if len(problem) != len(seeds):
            raise ConfigError("problem", f"a sequence of {len(problem)}", f"one per seed, {len(seeds)}")
        return list(problem)
    if isinstance(problem, Problem):
        return [problem] * len(seeds)
    return [problem(seed) for seed in seeds]


def _check_clients(hypers: list[Hyper], problems: list[Problem]) -> None:
    for hyper, problem in itertools.product(hypers, problems):
        if hyper.num_clients != problem.counts.shape[0]:
            raise ConfigError("num_clients", hyper.num_clients, f"{problem.counts.shape[0]}, as in the problem")


def _check_run(
    system: System,
    seeds: list[int],
    settings: Mapping[str, Sequence[Any]],
    time_budget: float | None,
    num_ticks: int | None,
    num_evals: int,
    max_lanes: int | None,
    evals_per_chunk: int | None,
) -> None:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError("seeds", seeds, "at least one seed, all different and none negative")
    if (time_budget is None) == (num_ticks is None):
        raise ConfigError("time_budget", time_budget, "given, or else num_ticks, but not both")
    if time_budget is not None and not (np.isfinite(time_budget) and time_budget > 0):
        raise ConfigError("time_budget", time_budget, "a finite number above 0")
    for name, value in (("num_ticks", num_ticks), ("num_evals", num_evals), ("max_lanes", max_lanes), ("evals_per_chunk", evals_per_chunk)):
        if value is not None and value < 1:
            raise ConfigError(name, value, "at least 1")
    known = fields(system.Hyper)
    for name, values in settings.items():
        if name not in known:
            raise ConfigError("setting name", name, "one of " + ", ".join(sorted(known)))
        if not values or len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"values of {name}", values, "at least one, all different")


def swept_without_compiling(system: System, name: str) -> bool:
    """Whether values of a setting share one compiled program."""
    return is_traced(fields(system.Hyper)[name])
