"""Run one system for settings and seeds: the lanes of a sweep, one compiled program per group.

Dimension letters: those of `fedjax_sim.types`; `V` evaluations.
"""

import contextlib
import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import jax
import numpy as np

from fedjax_sim.engine.compile_meter import CompileMeter
from fedjax_sim.engine.curves import Grid, join_lanes, label_curves, label_lanes, lengthen
from fedjax_sim.engine.division import Unit, divide
from fedjax_sim.engine.groups import Options, plan_group, units_of
from fedjax_sim.engine.lanes import Lane, groups_of
from fedjax_sim.engine.metric_names import describe_metrics
from fedjax_sim.engine.pieces import run_in_pieces
from fedjax_sim.engine.placement import (
    Layout,
    check_layout,
    check_precision,
    keep_by_default,
)
from fedjax_sim.lifecycle import FolderLock
from fedjax_sim.settings import ConfigError, check, fields
from fedjax_sim.types import (
    AnyProblem,
    HyperT,
    InfoT,
    LatentProblem,
    StateT,
    System,
    Timeline,
)

if TYPE_CHECKING:
    import xarray as xr

ProblemT = TypeVar("ProblemT", bound=AnyProblem)


@dataclasses.dataclass(frozen=True)
class Run(Generic[HyperT]):
    """What a sweep returns.

    Lanes are in the order of the flattened dimensions: settings as given, then seeds.

    Attributes:
      curves: Metrics with dimensions (swept names..., seed, eval), and further ones that a metric
        names, see `fedjax_sim.types.Problem.evaluate`. Coordinates: time, ticks,
        local_steps, uplink_bits, downlink_bits, and further traffic that the system counts (see
        `fedjax_sim.types.Messages`). Per lane: staleness_mean and staleness_max in
        server versions, the algorithm's `Info` (gradient evaluations executed and needed), and
        failed (whether some metric or parameter was not finite), failed_at (the first evaluation
        at which it was not, else -1) and collapsed_at (the first evaluation from which on a lane
        was at chance up to its end, else -1; see `fedjax_sim.types.GuessableProblem`). Attributes:
        seconds_compile, seconds_run, programs_compiled.
      models: Final models, leaves `[L, ...]`.
      timelines: Each lane's schedule, cut to its budget.
      hypers: Each lane's settings, completed from its problem.
      samples: With `keep_models`, the models of all evaluations, the initial one first: leaves
        `[L, V + 1, ...]` in host memory; otherwise None.
    """

    curves: "xr.Dataset"
    models: Any
    timelines: list[Timeline]
    hypers: list[HyperT]
    samples: Any = None


class Share(Protocol):
    """A part of a study of several sweeps, whose parts meet in a folder."""

    def find(self) -> Run | None:
        """Return the whole sweep if all of its lanes have run, otherwise None."""

    def choose(self, units: Sequence[Unit[int]]) -> Collection[int]:
        """Choose the lanes to run, possibly none.

        Args:
          units: All lanes of the sweep.
        """

    def exchange(self, run: Run | None) -> Run:
        """Keep what ran, and return the whole sweep if it is complete now.

        Args:
          run: What ran; None if no lane was chosen.
        """


def simulate(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT,
    hyper: HyperT | None = None,
    *,
    seed: int = 0,
    time_budget: float | None = None,
    num_ticks: int | None = None,
    num_evals: int = 25,
    layout: Layout = Layout(),
    evals_per_chunk: int | None = None,
    client_variance: bool = False,
    keep_models: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 20.0,
    resume: bool = False,
    progress: bool = False,
    precision: str = "float32",
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

    Returns:
      The run, without the dimension of lanes: `eval` is the only dimension of its curves, and
      models have leaves `[...]`.

    Raises:
      ConfigError: Before any training, if an input is not allowed.
    """
    run = sweep(
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
    )
    models, samples = jax.tree.map(lambda leaf: leaf[0], (run.models, run.samples))
    return dataclasses.replace(run, curves=run.curves.isel(seed=0), models=models, samples=samples)


def sweep(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT | list[ProblemT] | Callable[[int], ProblemT],
    hyper: HyperT | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    time_budget: float | None = None,
    num_ticks: int | None = None,
    num_evals: int = 25,
    layout: Layout = Layout(),
    max_lanes: int | None = None,
    evals_per_chunk: int | None = None,
    client_variance: bool = False,
    keep_models: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 20.0,
    resume: bool = False,
    progress: bool | str | Path = False,
    precision: str = "float32",
    part: tuple[int, int] | None = None,
    lanes: Collection[int] | None = None,
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
      evals_per_chunk: Evaluations between two returns to the host. By default all, 1 with progress
        shown, and with a checkpoint stretches of ticks that take about ten seconds.
      client_variance: Whether to measure `client_variance`, the sum of squared distances of the
        models that clients hold to the server's. Every server version that a client holds at a
        later evaluation then stays in memory, see `fedjax_sim.engine.held_models`.
      keep_models: Whether to keep the model of every evaluation in host memory (a sampler's
        samples).
      checkpoint: Folder for checkpoints; None writes none. One process at a time writes to it.
      checkpoint_every: Least seconds between two checkpoints.
      resume: Whether to continue from the newest checkpoint. A run that ended goes on if the budget
        is now longer, with evaluations as far apart as before whatever `num_evals` would give; its
        bits are those of a run of this length from the start. It is an error if the run would have
        begun differently.
      progress: Whether to show a progress line on a terminal; or a file that is to hold this line.
      precision: Precision of matrix products on accelerators: "float32", "tensorfloat32" (about
        ten bits of mantissa, on GPUs) or "bfloat16" (eight). CPUs always compute in float32.
      part: A part i (from 0) of n parts to run, as (i, n); see `fedjax_sim.engine.division`.
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
    """
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
        progress if isinstance(progress, bool) else Path(progress),
        precision,
    )
    if share is not None and (found := share.find()) is not None:
        return found
    grid = _grid_of(seeds, settings)
    whole = _lanes_of(system, problem, hyper, grid, options)
    keep_by_default()
    began = time.perf_counter()
    if share is not None:
        lanes = share.choose(_units_of_all(system, whole, options))
        if not lanes:
            return share.exchange(None)
    places = _places_to_run(system, whole, options, part, lanes)
    chosen = set(range(len(whole)) if places is None else places)
    with CompileMeter() as meter, _locked(options):
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

    def in_order(*leaves: Any) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])[order]

    models = jax.tree.map(in_order, *(part.curves.models for part in parts))
    num_evals = curves.sizes["eval"]
    samples = jax.tree.map(
        lambda *leaves: in_order(*(lengthen(leaf, num_evals) for leaf in leaves)),
        *(part.curves.samples for part in parts),
    )
    timelines = [timeline for part in parts for timeline in part.timelines]
    hypers = [lane.hyper for lane in whole if lane.place in chosen]
    run = Run(curves, models, [timelines[i] for i in order], hypers, samples)
    return run if share is None else share.exchange(run)


def join_runs(runs: Sequence[Run[HyperT]]) -> Run[HyperT]:
    """Put together what `sweep` returned for the parts of one sweep.

    Args:
      runs: What each part returned, in any order.

    Returns:
      What the whole sweep would have returned.

    Raises:
      ConfigError: If the parts are of different grids, or a lane is missing or there twice.
    """
    curves = join_lanes([run.curves for run in runs])
    order = np.argsort(np.concatenate([run.curves["lane"].values for run in runs]))

    def in_order(*leaves: np.ndarray) -> np.ndarray:
        return np.concatenate(leaves)[order]

    num_evals = curves.sizes["eval"]
    samples = jax.tree.map(
        lambda *leaves: in_order(*(lengthen(leaf, num_evals) for leaf in leaves)),
        *(run.samples for run in runs),
    )
    timelines = [timeline for run in runs for timeline in run.timelines]
    hypers = [hyper for run in runs for hyper in run.hypers]
    return Run(
        curves,
        jax.tree.map(in_order, *(run.models for run in runs)),
        [timelines[i] for i in order],
        [hypers[i] for i in order],
        samples,
    )


def survey_lanes(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT | list[ProblemT] | Callable[[int], ProblemT],
    hyper: HyperT | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    time_budget: float | None = None,
    num_ticks: int | None = None,
    max_lanes: int | None = None,
) -> list[Unit[int]]:
    """Find out which lanes of a sweep have equal programs and schedules, and how much they do.

    Schedules are drawn; nothing is trained.

    Args:
      system: The system.
      problem: As in `sweep`.
      hyper: As in `sweep`.
      seeds: As in `sweep`.
      settings: As in `sweep`.
      time_budget: As in `sweep`.
      num_ticks: As in `sweep`.
      max_lanes: As in `sweep`.

    Returns:
      The numbers of the lanes, in units that `divide` can divide among parts.

    Raises:
      ConfigError: If an input is not allowed.
    """
    options = Options(time_budget, num_ticks, 1, Layout(), max_lanes)
    lanes = _lanes_of(system, problem, hyper, _grid_of(seeds, settings), options)
    return _units_of_all(system, lanes, options)


def _units_of_all(system: System, lanes: list[Lane], options: Options) -> list[Unit[int]]:
    """List the units of all groups."""
    return [unit for group in groups_of(lanes) for unit in units_of(system, group, options)]


def _places_to_run(
    system: System,
    lanes: list[Lane],
    options: Options,
    part: tuple[int, int] | None,
    chosen: Collection[int] | None,
) -> list[int] | None:
    """List the places of the lanes to run, ascending; None for all lanes."""
    if part is not None:
        if chosen is not None:
            raise ConfigError("lanes", chosen, "left out for a part")
        if not all(_is_whole(each, 0) for each in part) or len(part) != 2 or part[0] >= part[1]:
            raise ConfigError("part", part, "(i, n) with whole numbers i from 0 to n - 1")
        return sorted(divide(_units_of_all(system, lanes, options), part[1])[part[0]])
    if chosen is None:
        return None
    if not chosen or not set(chosen) <= set(range(len(lanes))):
        allowed = f"some of the numbers from 0 to {len(lanes) - 1}"
        raise ConfigError("lanes", sorted(chosen), allowed)
    return sorted(set(chosen))


@contextlib.contextmanager
def _locked(options: Options) -> Iterator[None]:
    """Lock the folder of checkpoints, if there is one; without `resume`, remove older ones."""
    if options.checkpoint is None:
        yield
        return
    try:
        options.checkpoint.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(options.checkpoint)
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise ConfigError("checkpoint", str(options.checkpoint), allowed) from None
    try:
        if not options.resume:
            for part in options.checkpoint.glob("part_*"):
                shutil.rmtree(part)
        yield
    finally:
        lock.release()


def lower_sweep(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT | list[ProblemT] | Callable[[int], ProblemT],
    hyper: HyperT | None = None,
    *,
    devices: Sequence[Any],
    seeds: int | Sequence[int] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    num_ticks: int,
    num_evals: int = 25,
    layout: Layout = Layout(),
    precision: str = "float32",
) -> list[jax.stages.Lowered]:
    """Lower the programs of a sweep for devices that need not exist; nothing learns.

    Args:
      system: The system.
      problem: As in `sweep`.
      hyper: As in `sweep`.
      devices: Devices, or descriptions of them from `jax.experimental.topologies`.
      seeds: As in `sweep`.
      settings: As in `sweep`.
      num_ticks: As in `sweep`.
      num_evals: As in `sweep`.
      layout: As in `sweep`.
      precision: As in `sweep`.

    Returns:
      One program, of one chunk of evaluations, for each group of lanes.

    Raises:
      ConfigError: If an input is not allowed.
    """
    options = Options(
        time_budget=None,
        num_ticks=num_ticks,
        num_evals=num_evals,
        layout=layout,
        precision=precision,
        devices=tuple(devices),
    )
    lanes = _lanes_of(system, problem, hyper, _grid_of(seeds, settings), options)
    return [plan_group(system, group, options).on_devices().lower() for group in groups_of(lanes)]


def _grid_of(seeds: int | Sequence[int], settings: Mapping[str, Sequence[Any]] | None) -> Grid:
    """List seeds and the values of settings."""
    numbers = range(seeds) if isinstance(seeds, (int, np.integer)) else seeds
    values = {name: _listed(f"values of {name}", each) for name, each in (settings or {}).items()}
    return Grid(values, _listed("seeds", numbers))


def _lanes_of(system: System, problem: Any, hyper: Any, grid: Grid, options: Options) -> list[Lane]:
    """Check the inputs and list the lanes: settings as given, then seeds."""
    seeds, settings = list(grid.seeds), grid.settings
    _check_run(system, seeds, settings, options)
    hyper = system.Hyper() if hyper is None else hyper
    points = [
        dict(zip(settings, values, strict=True)) for values in itertools.product(*settings.values())
    ]
    hypers = [dataclasses.replace(hyper, **point) for point in points]
    for each in hypers:
        check(each)
    problems = _problems_of(problem, seeds)
    _check_kind(system, problems)
    _check_clients(hypers, problems)
    _check_models(problems)
    completed = _completed(system, hypers, problems)
    return [
        Lane(p * len(seeds) + s, completed[p][s], problems[s], seed)
        for p in range(len(points))
        for s, seed in enumerate(seeds)
    ]


def _problems_of(problem: Any, seeds: list[int]) -> list[AnyProblem]:
    """Return one problem per seed."""
    if isinstance(problem, AnyProblem):
        return [problem] * len(seeds)
    if callable(problem):
        return [problem(seed) for seed in seeds]
    if len(problem) != len(seeds):
        raise ConfigError("problem", f"a list of {len(problem)}", f"one per seed, {len(seeds)}")
    return list(problem)


def _check_kind(system: System, problems: list[AnyProblem]) -> None:
    kind = system.fit.learns
    for problem in _distinct(problems):
        if not isinstance(problem, kind):
            allowed = f"a {kind.__name__} (see fedjax_sim/types.py) for {system.name}"
            raise ConfigError("problem", type(problem).__name__, allowed)


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
    leaves, structure = jax.tree.flatten(problem)
    return structure, tuple(np.shape(leaf) for leaf in leaves)


def _shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def _completed(
    system: System[HyperT, StateT, InfoT], hypers: list[HyperT], problems: list[AnyProblem]
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


def _listed(field: str, values: Any) -> list[Any]:
    """Make a list of a user's sequence."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(field, values, "a list")
    return list(values)


def _is_whole(value: Any, least: int) -> bool:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_integer and int(value) >= least


def _check_run(
    system: System, seeds: list[int], settings: Mapping[str, Sequence[Any]], options: Options
) -> None:
    """Check everything that can be checked without problems and timelines."""
    if not isinstance(system, System):
        raise ConfigError("system", system, "a System, such as fedjax_sim.SYSTEMS['favano']")
    is_valid = all(_is_whole(seed, 0) and seed < 2**31 for seed in seeds)
    if not seeds or not is_valid or len(set(seeds)) < len(seeds):
        allowed = f"different whole numbers from 0 to {2**31 - 1}, at least one"
        raise ConfigError("seeds", seeds, allowed)
    budget = options.time_budget
    if (budget is None) == (options.num_ticks is None):
        raise ConfigError("time_budget", budget, "given, or else num_ticks, but not both")
    if budget is not None and not (np.isfinite(budget) and budget > 0):
        raise ConfigError("time_budget", budget, "a finite number above 0")
    for name in ("num_ticks", "num_evals", "max_lanes", "evals_per_chunk"):
        value = getattr(options, name)
        if value is not None and not _is_whole(value, 1):
            raise ConfigError(name, value, "a whole number of at least 1")
    if options.checkpoint is not None and jax.process_count() > 1:
        allowed = "None with several processes, which cannot write one"
        raise ConfigError("checkpoint", str(options.checkpoint), allowed)
    check_precision(options.precision)
    if not isinstance(options.layout, Layout):
        raise ConfigError("layout", options.layout, "a fedjax_sim.Layout")
    check_layout(options.layout)
    if options.client_variance and system.fit.learns is LatentProblem:
        allowed = f"False for {system.name}, whose clients hold statistics and no models"
        raise ConfigError("client_variance", True, allowed)
    known = fields(system.Hyper)
    for name, values in settings.items():
        if name not in known:
            raise ConfigError("setting name", name, "one of " + ", ".join(sorted(known)))
        if not values or len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"values of {name}", values, "at least one, all different")
