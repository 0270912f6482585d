"""Runs of one system: settings x seeds as lanes, grouped by static part, one compiled program per group."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fedjax_sim.engine import schedule as schedules
from fedjax_sim.engine import step_cost
from fedjax_sim.engine.checkpoint import Checkpoint
from fedjax_sim.engine.compile_meter import CompileMeter
from fedjax_sim.engine.curves import Grid, Part, labelled
from fedjax_sim.engine.drawing import request_timelines
from fedjax_sim.engine.lanes import (
    Lane,
    Lanes,
    groups_of,
    keys_of,
    stack_problems,
    stack_settings,
    twins_of,
)
from fedjax_sim.engine.placement import Layout, check_layout, choose
from fedjax_sim.engine.progress import Progress
from fedjax_sim.engine.replay import Curves, Program, replay_schedule
from fedjax_sim.settings import ConfigError, check, fields
from fedjax_sim.types import AnyProblem, Hyper, LatentProblem, Plan, Problem, System, Timeline

Problems = AnyProblem | Sequence[AnyProblem] | Callable[[int], AnyProblem]


class Run(NamedTuple):
    """What a sweep leaves."""

    curves: xr.Dataset
    """Metrics with dimensions (swept names..., seed, eval); coordinates time, ticks, local_steps, uplink_bits, downlink_bits; per lane
    staleness, gradient evaluations executed and needed, and whether it failed (a number that is not finite). Attributes: seconds."""
    models: Any
    """Final models, leaves `[lanes, ...]` with lanes in the order of the flattened dimensions."""
    timelines: list[Timeline]
    """Each lane's schedule, cut to its budget, in the same order."""
    samples: Any = None
    """With `keep_models`, the models of all evaluations, the initial one first: leaves `[lanes, evals, ...]`, in host memory."""


class Options(NamedTuple):
    """How a sweep runs, whatever its lanes; the words of `sweep`."""

    time_budget: float | None = None
    num_ticks: int | None = None
    num_evals: int = 25
    layout: Layout = Layout()
    max_lanes: int | None = None
    evals_per_chunk: int | None = None
    reports: bool = True
    keep_models: bool = False
    checkpoint: str | Path | None = None
    checkpoint_every: float = 20.0
    resume: bool = False
    progress: bool = False


def simulate(
    system: System, problem: Problem, hyper: Hyper | None = None, *, seed: int = 0, **options: Any
) -> Run:
    """Run one lane: a sweep over one seed. The options are those of `sweep`; the curves' only dimension is `eval`."""
    for name in ("seeds", "settings"):
        if name in options:
            raise ConfigError("option", name, "left out: simulate runs one lane, sweep runs many")
    run = sweep(system, problem, hyper, seeds=[seed], **options)
    models, samples = jax.tree.map(lambda leaf: leaf[0], (run.models, run.samples))
    return run._replace(curves=run.curves.isel(seed=0), models=models, samples=samples)


def sweep(
    system: System,
    problem: Problems,
    hyper: Hyper | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> Run:
    """Run a system for every combination of settings and every seed.

    problem: one for all seeds, a sequence with one per seed, or a function of the seed; what they share is held once on the device.
    hyper: the system's own defaults if None. seeds: a number of them, from 0, or their list. settings: names of fields of hyper to the
    values each takes; numbers are swept without compiling anew, and lanes that differ in numbers alone, with one schedule, run as one
    batch where a step is not large: what depends on the seed alone, mini-batches and noise, is drawn once for all of them.

    Options: time_budget (virtual time) or num_ticks (server actions) ends a run. num_evals: at most so many evaluations, after equal
    numbers of ticks, besides the initial one. layout: a `Layout`. max_lanes: at most so many in memory at once. evals_per_chunk:
    evaluations between two returns to the host (default: all, or 1 with a checkpoint or progress shown). reports: whether to measure
    the systems' own metrics (client_variance), for which old models stay in memory as long as a client holds them. keep_models: whether
    to keep the model of every evaluation (a sampler's samples) in the host's memory. checkpoint: a folder to write checkpoints to, at
    least checkpoint_every seconds apart, and with resume to go on from. progress: whether to show a line on a terminal. Raises ConfigError,
    before any training, for input that is not allowed.
    """
    how = _options(options)
    hyper = system.Hyper() if hyper is None else hyper
    seeds = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else list(seeds)
    settings = {name: list(values) for name, values in (settings or {}).items()}
    _check_run(system, seeds, settings, how)
    points = [
        dict(zip(settings, values, strict=True)) for values in itertools.product(*settings.values())
    ]
    hypers = [hyper.replace(**point) for point in points]
    for each in hypers:
        check(each)
    problems = _problems_of(problem, seeds)
    _check_kind(system, problems)
    _check_clients(hypers, problems)
    whole = _completed(system, hypers, problems)
    lanes = [
        Lane(p * len(seeds) + s, whole[p][s], problems[s], seed)
        for p in range(len(points))
        for s, seed in enumerate(seeds)
    ]
    began, meter = time.perf_counter(), CompileMeter()
    parts: list[Part] = []
    for group in groups_of(lanes, how.max_lanes):
        folder = None if how.checkpoint is None else Path(how.checkpoint) / f"part_{len(parts)}"
        parts.append(_run_group(system, group, how._replace(checkpoint=folder)))
    curves = labelled(parts, Grid(settings, seeds), system.name)
    compiling = meter.seconds
    curves.attrs |= {
        "seconds_compile": compiling,
        "seconds_run": time.perf_counter() - began - compiling,
        "programs_compiled": meter.count,
    }
    order = np.argsort([place for part in parts for place in part.places])

    def in_order(*leaves: Any) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])[order]

    models = jax.tree.map(in_order, *(part.curves.models for part in parts))
    longest = curves.sizes["eval"]
    samples = jax.tree.map(
        in_order,
        *(jax.tree.map(partial(_lengthened, longest), part.curves.samples) for part in parts),
    )
    timelines = [timeline for part in parts for timeline in part.timelines]
    return Run(curves, models, [timelines[i] for i in order], samples)


def _lengthened(length: int, leaf: np.ndarray) -> np.ndarray:
    """Repeat the last evaluation's entry of `[L, V, ...]` up to a length."""
    return np.pad(
        leaf, ((0, 0), (0, length - leaf.shape[1])) + ((0, 0),) * (leaf.ndim - 2), mode="edge"
    )


def _run_group(system: System, group: list[Lane], how: Options) -> Part:
    """Draw the group's timelines, plan on the host, and replay."""
    keys, hypers = keys_of([lane.seed for lane in group]), [lane.hyper for lane in group]
    timelines, ticks = request_timelines(
        system, keys, hypers, time_budget=how.time_budget, num_ticks=how.num_ticks
    )
    num_clients = group[0].problem.counts.shape[0]
    keep_held = how.reports and system.keeps_versions
    schedule = schedules.lay_out(
        timelines, ticks, num_clients=num_clients, num_evals=how.num_evals, keep_held=keep_held
    )
    order, num_twins = twins_of(group, schedule)
    if not np.array_equal(order, np.arange(len(group))):
        keys, ticks, group = keys[order], ticks[order], [group[i] for i in order]
        timelines, schedule = Timeline(*(leaf[order] for leaf in timelines)), schedule.take(order)
    hypers, problems = [lane.hyper for lane in group], [lane.problem for lane in group]
    lanes = Lanes(keys, stack_settings(hypers), stack_problems(problems))
    parameters = jax.eval_shape(problems[0].init, jax.random.key(0))
    placement = choose(
        how.layout,
        num_lanes=len(group),
        steps=schedule.events.steps.reshape(len(group), -1, schedule.events.steps.shape[-1]),
        operations=step_cost.of_a_step(
            problems[0],
            parameters,
            system.step_examples(hypers[0]),
            has_loss=system.learns is not LatentProblem,
        ),
        twins=num_twins,
    )
    plan = Plan(
        schedule.rows,
        *placement[:2],
        placement.client_devices,
        placement.settings_at_once,
        how.reports,
    )
    program = Program(system, plan, placement, how.keep_models)
    num_evals = schedule.events.tick.shape[1]
    is_watched = how.checkpoint is not None or how.progress
    chunk = min(how.evals_per_chunk or (1 if is_watched else num_evals), num_evals)
    saved = None
    if how.checkpoint is not None:
        configuration = _configuration(program, group, how) | {"evals_per_chunk": chunk}
        saved = Checkpoint(
            how.checkpoint, configuration, resume=how.resume, every=how.checkpoint_every
        )
    padded = schedules.pad_evaluations(schedule, -num_evals % chunk)
    with Progress(system.name, schedule, enabled=how.progress) as shown:
        curves = replay_schedule(
            program, lanes, padded, evals_per_chunk=chunk, checkpoint=saved, report=shown.update
        )
    metrics, samples = jax.tree.map(
        lambda value: value[:, : num_evals + 1], (curves.metrics, curves.samples)
    )
    infos = {name: value[:, :num_evals] for name, value in curves.infos.items()}
    cut = [Timeline(*(leaf[i, : ticks[i]] for leaf in timelines)) for i in range(len(group))]
    bits = [
        _bits(system, problems[i], hypers[i], parameters, schedule, i, cut[i])
        for i in range(len(group))
    ]
    return Part(
        [lane.place for lane in group],
        Curves(metrics, infos, curves.models, samples),
        schedule,
        cut,
        bits,
    )


def _bits(
    system: System,
    problem: AnyProblem,
    hyper: Hyper,
    parameters: Any,
    schedule: schedules.Schedule,
    lane: int,
    timeline: Timeline,
) -> tuple[np.ndarray, np.ndarray]:
    """Bits sent up and down by each evaluation of a lane: `i64[V + 1]` twice. parameters: shapes and dtypes."""
    if system.traffic is None:
        up, down = (
            schedule.messages[lane] * bits for bits in system.message_bits(parameters, hyper)
        )
    else:
        per_tick = system.traffic(problem, hyper, timeline)
        up, down = (
            np.concatenate([[0], np.cumsum(each, dtype=np.int64)])[schedule.ticks[lane]]
            for each in per_tick
        )
    return up, down


def _configuration(program: Program, group: list[Lane], how: Options) -> dict[str, Any]:
    """What must not change between a run and its resumption, as far as it has a name; the rest is hashed by `replay`."""
    return {
        "system": program.system.name,
        "seeds": [lane.seed for lane in group],
        "settings": [
            {name: _named(getattr(lane.hyper, name)) for name in fields(type(lane.hyper))}
            for lane in group
        ],
        "time_budget": how.time_budget,
        "num_ticks": how.num_ticks,
        "num_evals": how.num_evals,
        "keep_models": how.keep_models,
        "layout": program.placement._asdict(),
    }


def _named(value: Any) -> str:
    """A setting as text that does not change from one process to the next, as the repr of a function would."""
    is_plain = value is None or isinstance(value, bool | int | float | str | np.generic)
    return repr(value) if is_plain else getattr(value, "__qualname__", type(value).__qualname__)


def _problems_of(problem: Problems, seeds: list[int]) -> list[AnyProblem]:
    if isinstance(problem, AnyProblem):
        return [problem] * len(seeds)
    if callable(problem):
        return [problem(seed) for seed in seeds]
    if len(problem) != len(seeds):
        raise ConfigError("problem", f"a sequence of {len(problem)}", f"one per seed, {len(seeds)}")
    return list(problem)


def _check_kind(system: System, problems: list[AnyProblem]) -> None:
    for problem in problems:
        if not isinstance(problem, system.learns):
            raise ConfigError(
                "problem",
                type(problem).__name__,
                f"a {system.learns.__name__} (see fedjax_sim/types.py) for {system.name}",
            )


def _check_clients(hypers: list[Hyper], problems: list[AnyProblem]) -> None:
    for hyper, problem in itertools.product(
        hypers, {id(problem): problem for problem in problems}.values()
    ):
        if hyper.num_clients != problem.counts.shape[0]:
            raise ConfigError(
                "num_clients", hyper.num_clients, f"{problem.counts.shape[0]}, as in the problem"
            )


def _completed(
    system: System, hypers: list[Hyper], problems: list[AnyProblem]
) -> list[list[Hyper]]:
    """Each point's settings completed from each seed's problem; once for a problem that seeds share."""
    found: dict[tuple[int, int], Hyper] = {}
    for (p, hyper), problem in itertools.product(enumerate(hypers), problems):
        if (p, id(problem)) not in found:
            found[p, id(problem)] = system.complete(hyper, problem)
    return [[found[p, id(problem)] for problem in problems] for p in range(len(hypers))]


def _options(given: Mapping[str, Any]) -> Options:
    for name in given:
        if name not in Options._fields:
            raise ConfigError("option", name, "one of " + ", ".join(Options._fields))
    return Options(**given)


def _is_whole(value: Any, least: int) -> bool:
    return (
        isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least
    )


def _check_run(
    system: System, seeds: list[int], settings: Mapping[str, Sequence[Any]], how: Options
) -> None:
    if (
        not seeds
        or not all(_is_whole(seed, 0) and seed < 2**31 for seed in seeds)
        or len(set(seeds)) < len(seeds)
    ):
        raise ConfigError(
            "seeds", seeds, f"different whole numbers from 0 to {2**31 - 1}, at least one"
        )
    if (how.time_budget is None) == (how.num_ticks is None):
        raise ConfigError("time_budget", how.time_budget, "given, or else num_ticks, but not both")
    if how.time_budget is not None and not (np.isfinite(how.time_budget) and how.time_budget > 0):
        raise ConfigError("time_budget", how.time_budget, "a finite number above 0")
    for name in ("num_ticks", "num_evals", "max_lanes", "evals_per_chunk"):
        value = getattr(how, name)
        if value is not None and not _is_whole(value, 1):
            raise ConfigError(name, value, "a whole number of at least 1")
    check_layout(how.layout)
    known = fields(system.Hyper)
    for name, values in settings.items():
        if name not in known:
            raise ConfigError("setting name", name, "one of " + ", ".join(sorted(known)))
        if not values or len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"values of {name}", values, "at least one, all different")
