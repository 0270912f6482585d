"""Run one system for settings and seeds: the lanes of a sweep, one compiled program per group.

Dimension letters: those of `fedjax_sim.types`; `V` evaluations.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.checking import Above0, AtLeast0, Count, LaneSeed, Whole, checked, unchecked
from fedjax_sim.engine.machine.compiling import CompileMeter, keep_by_default
from fedjax_sim.engine.request import (
    Options,
    Precision,
    ProblemT,
    Resume,
    give_starts,
    grid_of,
    list_lanes,
)
from fedjax_sim.engine.running.pieces import locked, run_in_pieces
from fedjax_sim.engine.shares import Share, asked_of_all, divide, units_of_all
from fedjax_sim.engine.watching import OnEvaluation
from fedjax_sim.results.curves import label_curves, label_lanes
from fedjax_sim.results.metric_names import describe_metrics
from fedjax_sim.results.runs import Run, join_lanes_of_trees, warn_of_lanes
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import HyperT, InfoT, Layout, Params, StateT, System, Tracker


@checked
def simulate(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT,
    hyper: HyperT | None = None,
    *,
    seed: LaneSeed = 0,
    time_budget: Above0 | None = None,
    num_ticks: Count | None = None,
    num_evals: Count = 25,
    layout: Layout = Layout(),
    evals_per_chunk: Count | None = None,
    client_variance: bool = False,
    keep_models: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: AtLeast0 = 20.0,
    resume: Resume = False,
    progress: bool | str | Path | None = None,
    precision: Precision = "float32",
    start: Run | Params | None = None,
    on_evaluation: OnEvaluation | None = None,
    trackers: Sequence[Tracker] = (),
) -> Run[HyperT]:
    """Run one lane: a sweep over one seed.

    Args:
      system: The system.
      problem: What is learnt.
      hyper: The system's settings; its defaults if None.
      seed: The seed, from 0 to 2^31 - 1.
      time_budget: As in `sweep`.
      num_ticks: As in `sweep`.
      num_evals: As in `sweep`.
      layout: As in `sweep`.
      evals_per_chunk: As in `sweep`.
      client_variance: As in `sweep`.
      keep_models: As in `sweep`.
      checkpoint: As in `sweep`.
      checkpoint_every: As in `sweep`.
      resume: As in `sweep`.
      progress: As in `sweep`.
      precision: As in `sweep`.
      start: As in `sweep`.
      on_evaluation: As in `sweep`.
      trackers: As in `sweep`.

    Returns:
      The run, without the dimension of lanes: `eval` is the only dimension of its curves, and
      models have leaves `[...]`.

    Raises:
      ConfigError: Before any training, if an input is not allowed.
    """
    run = unchecked(sweep)(
        system,
        problem,
        hyper,
        seeds=[seed],
        time_budget=time_budget,
        num_ticks=num_ticks,
        num_evals=num_evals,
        layout=layout,
        evals_per_chunk=evals_per_chunk,
        client_variance=client_variance,
        keep_models=keep_models,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
        precision=precision,
        start=start,
        on_evaluation=on_evaluation,
        trackers=trackers,
    )
    models, samples = jax.tree.map(lambda leaf: leaf[0], (run.models, run.samples))
    return dataclasses.replace(run, curves=run.curves.isel(seed=0), models=models, samples=samples)


@checked
def sweep(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT | list[ProblemT] | Callable[[int], ProblemT],
    hyper: HyperT | None = None,
    *,
    seeds: Count | Sequence[LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    time_budget: Above0 | None = None,
    num_ticks: Count | None = None,
    num_evals: Count = 25,
    layout: Layout = Layout(),
    max_lanes: Count | None = None,
    evals_per_chunk: Count | None = None,
    client_variance: bool = False,
    keep_models: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: AtLeast0 = 20.0,
    resume: Resume = False,
    progress: bool | str | Path | None = None,
    precision: Precision = "float32",
    start: Run | Params | None = None,
    on_evaluation: OnEvaluation | None = None,
    trackers: Sequence[Tracker] = (),
    part: tuple[Whole, Count] | None = None,
    lanes: Collection[Whole] | None = None,
    share: Share | None = None,
) -> Run[HyperT]:
    """Run a system for every combination of settings and every seed.

    Numeric settings are swept without compiling again; sizes and choices are static, and each of
    their values compiles a program.

    With `part` or `lanes` only some of the lanes run, and `join_runs` puts them together with the
    others. They are evaluated after the same ticks as in the whole sweep, and with a layout given
    a lane has the bits that it has there.

    After `jax.distributed.initialize()` every process makes the same call. Lanes, and the slots of
    each tick, are then split over the devices of all processes, and every process returns the
    results. Each device still holds the state of its lanes whole.

    Args:
      system: The system.
      problem: What is learnt: one problem for all seeds, a list with one per seed, or a function of
        the seed. Arrays that problems share are held once on the device.
      hyper: The system's settings; its defaults if None.
      seeds: Number of seeds, counted from 0, or a list of different seeds from 0 to 2^31 - 1.
      settings: Swept settings: names of fields of `hyper` and the values that each takes.
      time_budget: Virtual time that a run lasts. Give either this or `num_ticks`.
      num_ticks: Number of server actions that a run lasts.
      num_evals: Largest number of evaluations, after equal numbers of ticks, in addition to the
        initial one.
      layout: How lanes and slots are laid out on the machine; what is None is chosen by a measured
        rule.
      max_lanes: Largest number of lanes in memory at one time; by default as many as fit.
      evals_per_chunk: Evaluations between two returns to the host. By default all, 1 if somebody
        watches, and with a checkpoint stretches of ticks that take about ten seconds.
      client_variance: Whether to measure `client_variance`, the sum of squared distances of the
        models that clients hold to the server's. Every server version that a client holds at a
        later evaluation then stays in memory, see `fedjax_sim.engine.planning.store`.
      keep_models: Whether to keep the model of every evaluation in host memory (a sampler's
        samples).
      checkpoint: Folder for checkpoints; None writes none. One process at a time writes to it.
      checkpoint_every: Least seconds between two checkpoints.
      resume: Whether to continue from the newest checkpoint in the folder `checkpoint`. A run that
        ended returns its result again, or goes on if the budget is now longer, with evaluations as
        far apart as before whatever `num_evals` would give; its bits are those of a run of this
        length from the start. It is an error if anything has changed that decides what the run
        returns: settings, data, the code of the problem, the system or a function among the
        settings, the schedule, or the version of this package or of JAX. "any_jax" accepts another
        version of JAX. The program is then not compared.
      progress: Whether to show how far the lanes are. None: on a terminal and in a notebook. True:
        also as lines in a pipe. False: nowhere. Or a file that is to hold one line.
      precision: Precision of matrix products on accelerators: "float32", "tensorfloat32" (about
        ten bits of mantissa, on GPUs) or "bfloat16" (eight). CPUs always compute in float32.
      start: The model (statistics in expectation maximisation) that all lanes start from, or a run:
        each lane then starts from the final model of the lane with the same seed and swept
        settings. Everything else that a system keeps begins afresh; to go on with that too, see
        `resume`. By default models are drawn.
      on_evaluation: Called on the host after each evaluation but the initial one, with a
        `Progress`: everything known so far. What it returns stops lanes: True all, a list of bools
        some, None or False none. It may be called again with the same progress in a resumed run,
        and should decide by that alone. A stopped lane stays stopped in a resumed run, also if the
        function is another one by then.
      trackers: What keeps metrics while lanes run, see `fedjax_sim.reporting.trackers`.
      part: A part i (from 0) of n parts to run, as (i, n); see `fedjax_sim.engine.shares`.
      lanes: Numbers of the lanes to run, in the order of the flattened grid; all if None.
      share: Chooses the lanes to run, and exchanges them for the whole; see `Share`.

    Returns:
      Curves, final models and schedules of all lanes. With `part` or `lanes` those of the lanes
      that ran: the curves' dimensions are then (lane, eval), and settings and seeds are coordinates
      of `lane`.

    Raises:
      ConfigError: Before any training, if an input is not allowed.
      StorageError: If the disk refuses a checkpoint. Older ones are kept.
      Stopped: If a signal asked for it, see `fedjax_sim.lifecycle`; after a checkpoint.

    Warns:
      LaneWarning: Once if lanes diverged, and once if lanes collapsed to chance.
    """
    if part is not None and part[0] >= part[1]:
        raise ConfigError("part", part, "(i, n) with whole numbers i from 0 to n - 1")
    if part is not None and lanes is not None:
        raise ConfigError("lanes", lanes, "left out for a part")
    options = Options(
        time_budget,
        num_ticks,
        num_evals,
        layout,
        max_lanes,
        evals_per_chunk,
        client_variance,
        keep_models,
        None if checkpoint is None else Path(checkpoint),
        checkpoint_every,
        resume,
        progress if isinstance(progress, bool | None) else Path(progress),
        precision,
        on_evaluation,
        tuple(trackers),
    )
    grid = grid_of(seeds, settings)
    num_lanes = math.prod(grid.shape)
    if lanes is not None and (len(lanes) == 0 or max(lanes) >= num_lanes):
        raise ConfigError("lanes", lanes, f"some of the numbers from 0 to {num_lanes - 1}")
    whole = give_starts(list_lanes(system, problem, hyper, grid, options), start)
    asked = {} if share is None else asked_of_all(system, whole, options)
    if share is not None and (found := share.find(asked)) is not None:
        return found
    keep_by_default()
    began = time.perf_counter()
    if share is not None:
        lanes = share.choose(units_of_all(system, whole, options))
        if not lanes:
            return share.exchange(None, asked)
    places = None if lanes is None else sorted({int(place) for place in lanes})
    if part is not None:
        number, num_parts = map(int, part)
        places = sorted(divide(units_of_all(system, whole, options), num_parts)[number])
    chosen = set(range(len(whole)) if places is None else places)
    with CompileMeter() as meter, locked(options):
        parts = run_in_pieces(system, whole, options, chosen)
    if places is None:
        curves = label_curves(parts, grid, system.name)
    else:
        curves = label_lanes(parts, grid, system.name, places)
    curves = describe_metrics(curves, [lane.problem for lane in whole])
    curves.attrs |= {
        "seconds_compile": meter.seconds,
        "seconds_run": time.perf_counter() - began - meter.seconds,
        "programs_compiled": meter.count,
    }
    order = np.argsort([place for part in parts for place in part.places])
    models, samples = join_lanes_of_trees(
        [(part.curves.models, part.curves.samples) for part in parts], order, curves.sizes["eval"]
    )
    timelines = [timeline for part in parts for timeline in part.timelines]
    hypers = [lane.hyper for lane in whole if lane.place in chosen]
    run = Run(curves, models, [timelines[i] for i in order], hypers, samples)
    warn_of_lanes(curves)
    return run if share is None else share.exchange(run, asked)
