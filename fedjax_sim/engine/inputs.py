"""Check what the caller of a sweep gives, and list the lanes."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.curves import Grid
from fedjax_sim.engine.identities import text_of
from fedjax_sim.engine.lanes import Lane
from fedjax_sim.engine.options import Options
from fedjax_sim.engine.placement import check_layout
from fedjax_sim.engine.problem_checks import check_problem
from fedjax_sim.engine.progress import check_file
from fedjax_sim.settings import ConfigError, check, fields, plain
from fedjax_sim.trees import typed_structure
from fedjax_sim.types import AnyProblem, HyperT, LatentProblem, System


def grid_of(seeds: int | Sequence[int], settings: Mapping[str, Sequence[Any]] | None) -> Grid:
    """List seeds and the values of settings, with numbers as Python has them."""
    seeds = plain(seeds)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    values = {name: list(map(plain, each)) for name, each in (settings or {}).items()}
    return Grid(values, list(map(plain, seeds)))


def list_lanes(
    system: System, problem: Any, hyper: Any, grid: Grid, options: Options
) -> list[Lane]:
    """Check the inputs and list the lanes: settings as given, then seeds."""
    seeds = list(grid.seeds)
    points, hypers = check_call(system, hyper, grid, options)
    problems = _problems_of(system, problem, seeds)
    _check_clients(hypers, problems)
    _check_models(problems)
    completed = _completed(system, hypers, problems)
    return [
        Lane(p * len(seeds) + s, completed[p][s], problems[s], seed, points[p])
        for p in range(len(points))
        for s, seed in enumerate(seeds)
    ]


def _problems_of(system: System, problem: Any, seeds: list[int]) -> list[AnyProblem]:
    """Return one problem per seed, and check them."""
    problems = [problem] * len(seeds)
    is_one = isinstance(problem, (system.fit.learns, str))
    if callable(problem) and not is_one:
        problems = [problem(seed) for seed in seeds]
    elif isinstance(problem, Sequence) and not is_one:
        if len(problem) != len(seeds):
            raise ConfigError("problem", f"a list of {len(problem)}", f"one per seed, {len(seeds)}")
        problems = list(problem)
    for each in _distinct(problems):
        check_problem(system, each)
    return problems


def _distinct(problems: list[AnyProblem]) -> list[AnyProblem]:
    """Leave out repetitions of an object; thousands of seeds often have one problem."""
    return list({id(problem): problem for problem in problems}.values())


def _check_clients(hypers: Sequence[Any], problems: list[AnyProblem]) -> None:
    for hyper, problem in itertools.product(hypers, _distinct(problems)):
        num_clients = problem.counts.shape[0]
        if hyper.num_clients != num_clients:
            raise ConfigError("num_clients", hyper.num_clients, f"{num_clients}, as in the problem")


def _check_models(problems: list[AnyProblem]) -> None:
    """Check that models and metrics of all problems have one form, so that lanes fit together."""
    first: dict[str, Any] = {}
    distinct = {_form_of(problem): problem for problem in _distinct(problems)}
    for problem in distinct.values() if len(distinct) > 1 else ():
        model = jax.eval_shape(problem.init, jax.random.key(0))
        metrics: Any = jax.eval_shape(problem.evaluate, model)
        found = {"model": _shapes_of(model), "metrics": _shapes_of(metrics)}
        for name, shapes in found.items():
            if shapes != first.setdefault(name, shapes):
                allowed = f"those of another problem in the same call, {first[name]}"
                raise ConfigError(f"shapes of a problem's {name}", shapes, allowed)


def _form_of(problem: AnyProblem) -> Any:
    return typed_structure(problem), tuple(np.shape(leaf) for leaf in jax.tree.leaves(problem))


def _shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def _completed(
    system: System[HyperT, Any, Any], hypers: list[HyperT], problems: list[AnyProblem]
) -> list[list[HyperT]]:
    """Complete each point's settings from each seed's problem, once for each distinct problem."""
    found: dict[tuple[int, int], HyperT] = {}
    for (p, hyper), problem in itertools.product(enumerate(hypers), problems):
        if (p, id(problem)) not in found:
            found[p, id(problem)] = _with_message_bits(
                system, system.fit.complete(hyper, problem), problem
            )
    return [[found[p, id(problem)] for problem in problems] for p in range(len(hypers))]


def _with_message_bits(system: System, hyper: HyperT, problem: AnyProblem) -> HyperT:
    """Set how many bits messages have, if the clock needs to know."""
    this: Any = hyper
    if not getattr(this, "needs_message_bits", False):
        return hyper
    model = jax.eval_shape(problem.init, jax.random.key(0))
    return this.with_message_bits(*system.messages.bits(model, hyper))


def check_call(
    system: System, hyper: Any, grid: Grid, options: Options
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Check everything that can be checked without problems and timelines.

    Args:
      system: The system.
      hyper: Its settings; its defaults if None.
      grid: Seeds and values of settings.
      options: The options of the sweep.

    Returns:
      The values of the swept settings at each point of the grid, and all settings there.

    Raises:
      ConfigError: If an input is not allowed.
    """
    if not grid.seeds or len(set(grid.seeds)) < len(grid.seeds):
        raise ConfigError("seeds", grid.seeds, "different whole numbers, at least one")
    budget = options.time_budget
    if (budget is None) == (options.num_ticks is None):
        raise ConfigError("time_budget", budget, "given, or else num_ticks, but not both")
    if options.resume and options.checkpoint is None:
        raise ConfigError("resume", options.resume, "False without a checkpoint to continue from")
    if isinstance(options.progress, Path):
        check_file(options.progress)
    if options.checkpoint is not None and jax.process_count() > 1:
        allowed = "None with several processes, which cannot write one"
        raise ConfigError("checkpoint", str(options.checkpoint), allowed)
    if options.on_evaluation is not None and jax.process_count() > 1:
        allowed = "None with several processes, which could decide differently"
        raise ConfigError("on_evaluation", options.on_evaluation, allowed)
    check_layout(options.layout)
    if options.client_variance and system.fit.learns is LatentProblem:
        allowed = f"False for {system.name}, whose clients hold statistics and no models"
        raise ConfigError("client_variance", True, allowed)
    known = fields(system.Hyper)
    for name, values in grid.settings.items():
        if name not in known:
            raise ConfigError("setting name", name, "one of " + ", ".join(sorted(known)))
        # Long arrays have a shortened repr, and functions of one name have the same text.
        if not values or len({(repr(value), text_of(value)) for value in values}) < len(values):
            raise ConfigError(f"values of {name}", values, "at least one, all different")
    names = [field.name for field in dataclasses.fields(system.Hyper)]
    hyper = system.Hyper() if hyper is None else hyper
    if isinstance(hyper, type) or not all(hasattr(hyper, name) for name in names):
        kind = hyper if isinstance(hyper, type) else type(hyper)
        allowed = f"settings of {system.name}, an instance of its Hyper"
        raise ConfigError("hyper", f"{kind.__module__}.{kind.__name__}", allowed)
    if "num_clients" not in names:
        allowed = "those of a system, with num_clients among them"
        raise ConfigError(f"settings of {system.name}", ", ".join(names), allowed)
    points = [
        dict(zip(grid.settings, values, strict=True))
        for values in itertools.product(*grid.settings.values())
    ]
    hypers = [dataclasses.replace(hyper, **point) for point in points]
    for each in hypers:
        check(each)
    return points, hypers
