"""Run one system for settings and seeds: the lanes of a sweep, one compiled program per group.

Dimension letters: those of `fedjax_sim.core.types`; `V` evaluations.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Unpack

import jax
import numpy as np

from fedjax_sim import clients
from fedjax_sim.core import types
from fedjax_sim.core.lifecycle import say
from fedjax_sim.core.settings import ConfigError, declared, fields, is_traced, names_of, value_of
from fedjax_sim.engine import contract, request, shares, watching
from fedjax_sim.engine.machine.compiling import CompileMeter, keep_by_default
from fedjax_sim.engine.planning.lanes import column, groups_of
from fedjax_sim.engine.running.pieces import Pieces, locked
from fedjax_sim.results import records, runs
from fedjax_sim.results.curves import Grid, Returned, describe_metrics, label_curves, label_lanes


@contract.with_known_inputs
def simulate(
    system: types.System[types.HyperT, types.StateT, types.InfoT],
    problem: request.ProblemT,
    hyper: types.HyperT | None = None,
    *,
    seed: declared.LaneSeed = 0,
    budget: types.Budget,
    checkpoints: request.Checkpoints | None = None,
    **options: Unpack[request.RunOptions],
) -> runs.Run[types.HyperT]:
    """Run one lane: a sweep over one seed; `budget` and `checkpoints` are those of `sweep`.

        budget = fedjax_sim.Ticks(20)
        run = fedjax_sim.simulate(fedavg.system, problem, hyper, seed=1, budget=budget)
        print(run.curves.loss[-1].item())

    Args:
      seed: The seed, from 0 to 2^31 - 1.
      **options: `num_evals`, `start`, `keep`, `watch`, `layout`, `precision`, as in `sweep`.

    Returns:
      The run, without the dimension of lanes: `eval` is the only dimension of its curves, and
      models have leaves `[...]`.

    Raises:
      ConfigError: Before any training, if an input is not allowed.
    """
    start = options.pop("start", None)
    given: Any = {"watch": watching.Watch(), "checkpoints": checkpoints, **options}
    asked, grid = request.Options(budget, **given), request.grid_of([seed], None)
    lanes = request.list_lanes(system, problem, hyper, grid, asked, start)
    run: runs.Run[types.HyperT] = _run(shares.Listed(system, lanes, asked, grid))
    models, samples = jax.tree.map(lambda leaf: leaf[0], (run.models, run.samples))
    return dataclasses.replace(run, curves=run.curves.isel(seed=0), models=models, samples=samples)


@contract.with_known_inputs
def sweep(
    system: types.System[types.HyperT, types.StateT, types.InfoT],
    problem: request.ProblemT | list[request.ProblemT] | Callable[[int], request.ProblemT],
    hyper: types.HyperT | None = None,
    *,
    seeds: declared.Count | Sequence[declared.LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    budget: types.Budget,
    num_evals: declared.Count = 25,
    start: runs.Run | types.Params | None = None,
    keep: types.Keep = types.Keep(),
    watch: watching.Watch = watching.Watch(),
    checkpoints: request.Checkpoints | None = None,
    layout: types.Layout = types.Layout(),
    precision: request.Precision = "float32",
    lanes: shares.Part | shares.Sharing | Collection[declared.Whole] | None = None,
) -> runs.Run[types.HyperT]:
    """Run a system for every combination of settings and every seed.

        hyper, budget = favano.Hyper(num_clients=8, num_selected=4), fedjax_sim.Time(100)
        swept = {"lr": [0.1, 0.3]}
        run = fedjax_sim.sweep(favano.system, problem, hyper, settings=swept, budget=budget)

    Numeric settings are swept without compiling again; sizes and choices are static, and each of
    their values compiles a program, which a line on the error stream says.

    With `lanes` only some of the lanes run, and `join_runs` puts them together with the others.
    They are evaluated after the same ticks as in the whole sweep, and with a layout given a lane
    has the bits that it has there.

    After `jax.distributed.initialize()` every process makes the same call. Lanes, and the slots of
    each tick, are then split over the devices of all processes, and every process returns the
    results. Each device still holds the state of its lanes whole.

    Args:
      system: What is run, such as `favano.system`.
      problem: What is learnt: one problem for all seeds, a list with one per seed, or a function of
        the seed. Arrays that problems share are held once on the device.
      hyper: The system's settings; its defaults if None.
      seeds: Number of seeds, counted from 0, or a list of different seeds from 0 to 2^31 - 1.
      settings: Swept settings: names of settings of `hyper`, or of its groups such as `delays`, and
        the values that each takes.
      budget: How long each run lasts: `Ticks` for server actions, `Time` for virtual time, or
        `Energy` of the clients.
      num_evals: Largest number of evaluations, after equal numbers of ticks, in addition to the
        initial one. A live system in a budget of time, whose ticks are estimated, may have up to
        four times as many, or fewer; in one of energy, fewer than asked for if it needs fewer ticks
        than `most_ticks`.

    Other Args:
      start: The model (statistics in expectation maximisation) that all lanes start from, or a run:
        each lane then starts from the final model of the lane with the same seed and swept
        settings. Everything else that a system keeps begins afresh. By default models are drawn.
      keep: What is returned in addition, see `Keep`.
      watch: Who watches, and may stop lanes, see `Watch`.
      checkpoints: Where checkpoints are written and resumed, see `Checkpoints`; None writes none.
      layout: How the run is laid out on the machine, see `Layout`; what is None is chosen by a
        measured rule.
      precision: Precision of matrix products on accelerators: "float32", "tensorfloat32" (about
        ten bits of mantissa, on GPUs) or "bfloat16" (eight). CPUs compute in the arrays' type.
      lanes: The lanes that run: a `Part`, or their numbers in the order of the flattened grid; all
        if None.

    Returns:
      Curves, final models and schedules of all lanes. With `lanes` those of the lanes that ran: the
      curves' dimensions are then (lane, eval), and settings and seeds are coordinates of `lane`.

    Raises:
      ConfigError: Before any training, if an input is not allowed.
      StorageError: If the disk refuses a checkpoint. Older ones are kept.
      Stopped: If a signal asked for it, see `fedjax_sim.core.lifecycle`; after a checkpoint.

    Warns:
      LaneWarning: Once if lanes diverged, once if lanes collapsed to chance, and once for each
        setting by which something, such as an attack, would begin after the end of lanes.
    """
    options = request.Options(budget, num_evals, layout, keep, watch, checkpoints, precision)
    grid = request.grid_of(seeds, settings)
    whole = request.list_lanes(system, problem, hyper, grid, options, start)
    asked, num_lanes = shares.Listed(system, whole, options, grid), len(whole)
    if isinstance(lanes, Collection) and not set() < {*lanes} <= {*range(num_lanes)}:
        raise ConfigError("lanes", lanes, f"some of the numbers from 0 to {num_lanes - 1}")
    if isinstance(lanes, shares.Part):
        shares.check_num_parts(lanes.num_parts, num_lanes)
    if lanes is None or isinstance(lanes, Collection):
        return _run(asked, lanes)
    return lanes.run(asked, partial(_run, asked))


def _run(asked: shares.Listed, numbers: Collection[int] | None = None) -> runs.Run:
    """Run lanes by number, or all, and label their results."""
    keep_by_default()
    began = time.perf_counter()
    system, whole, options, grid = asked
    if options.keep.measures:
        system = clients.with_measures(system, options.keep.measures)
    places = None if numbers is None else sorted({int(place) for place in numbers})
    chosen = set(range(len(whole)) if places is None else places)
    hypers = [lane.hyper for lane in whole if lane.place in chosen]
    groups = groups_of(whole)
    if len(groups) > 1:
        _say_what_compiles(system, grid, hypers)
    saved = options.checkpoints
    parts: list[Returned] = []
    with CompileMeter() as meter, nullcontext() if saved is None else locked(saved):
        for lanes in groups:
            if group := [lane for lane in lanes if lane.place in chosen]:
                parts += Pieces(system, group, lanes, options).run(len(parts))
    named = parts, grid, system.name
    curves = label_curves(*named) if places is None else label_lanes(*named, places)
    curves = describe_metrics(curves, column(whole, "problem"))
    seconds = time.perf_counter() - began - meter.seconds
    curves.attrs |= {"seconds_compile": meter.seconds, "seconds_run": seconds}
    curves.attrs["programs_compiled"] = meter.count
    run: list[int] = []
    timelines: list[types.Timeline] = []
    for part in parts:
        run, timelines = run + part.places, timelines + part.timelines
    order, trees = np.argsort(run), [(part.curves.models, part.curves.samples) for part in parts]
    models, samples = runs.join_lanes_of_trees(trees, order, curves.sizes["eval"])
    runs.warn_of_lanes(curves)
    return runs.Run(curves, models, list(map(timelines.__getitem__, order)), hypers, samples)


def _say_what_compiles(system: types.System, grid: Grid, hypers: Sequence[types.Settings]) -> None:
    """Name the swept settings of which each value needs another program."""
    known, held = names_of(system.Hyper), fields(system.Hyper)
    for name in grid.settings:
        # Of a group those of its settings that are static.
        names = [known[name]] if name in known else [n for n in held if n.startswith(f"{name}.")]
        static = [each for each in names if not is_traced(held[each])]
        num = len({tuple(records.text_of(value_of(hyper, n)) for n in static) for hyper in hypers})
        if num > 1:
            say(f"each of the {num} values of {name} compiles a program of {system.name}.")
