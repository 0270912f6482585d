"""`fedjax-sim run`: train systems on one data set, compare them, and write the results folder."""

import argparse
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import xarray as xr

from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import comparison, launching, samples, tables
from fedjax_sim.cli.data import Data, load_data, read_metrics
from fedjax_sim.cli.defaults import Defaults
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Keep, Layout, Time
from fedjax_sim.engine import request, shares
from fedjax_sim.engine.machine import compiling, processes
from fedjax_sim.engine.planning import placement
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.engine.watching import Watch
from fedjax_sim.launch import parts
from fedjax_sim.results import reports, trackers
from fedjax_sim.results.runs import LaneWarning, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Study(NamedTuple):
    """The words of `run`, read and checked.

    Attributes:
      arguments: The words.
      asked: Systems with their settings, seeds and time budget.
      data: What the systems learn from.
      folder: The results folder; None in processes that write none.
      part: The part of the study to run; None for the whole.
      layout: How lanes are laid out.
      num_evals: Evaluations in addition to the initial one.
      precision: Of matrix products.
      checkpoint_every: Least seconds between checkpoints.
      tracker_names: Trackers to feed.
    """

    arguments: argparse.Namespace
    asked: comparison.Asked
    data: Data
    folder: reports.Folder | None
    part: shares.Part | None
    layout: Layout
    num_evals: int
    precision: str
    checkpoint_every: float
    tracker_names: Sequence[str]

    def config(self) -> dict[str, Any]:
        """Return all that decides the results, for config.json and to compare resumed runs."""
        return self.asked.described() | {
            "dataset": {"name": self.data.dataset.name, "sha256": self.data.digest()},
            "partition": self.data.partition,
            "model": self.data.model,
            **self.data.facts,
            "evals": self.num_evals,
            "layout": self.layout.deciding(),
            "client_variance": self.arguments.client_variance,
            "keep_samples": self.arguments.keep_samples,
            "precision": self.precision,
            "prng": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
        }

    def grids(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of each system's sweep that decide its lanes."""
        problems = {num: self.data.problems(num) for num in self.data.partitions}
        for contender in self.asked.contenders:
            comparison.check_problems(contender, problems[contender.hyper.num_clients])
        return {
            contender.system.name: {
                "system": contender.system,
                "problem": problems[contender.hyper.num_clients],
                "hyper": contender.hyper,
                "seeds": self.asked.seeds,
                "settings": contender.swept,
                "budget": Time(self.asked.time_budget),
            }
            for contender in self.asked.contenders
        }


def run(arguments: argparse.Namespace) -> None:
    """Train the systems named, print a table, and write curves, summary and pictures.

    Everything that can be wrong with the input is checked before any training.

    Args:
      arguments: The parsed words of `run`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    _join(arguments)
    axes = texts.read_names("against", arguments.against or "time", reports.AXES)
    launcher = launching.read_launcher(arguments)
    study = _read(arguments)
    folder, config = study.folder, study.config()
    metrics = read_metrics(arguments, study.asked.contenders, study.data)
    num_parts = None  # Unless they are launched.
    if launcher is not None and folder is not None:
        num_parts = launching.count_parts(launcher, arguments, folder, study.asked)
    # Versions and programs are compared for every system.
    identity = config | {"part": arguments.part, "parts": num_parts}
    is_known = arguments.resume and folder is not None and folder.check_resumable(identity)
    if launcher is not None and folder is not None:
        runs, config = launching.launch_parts(launcher, arguments, folder, identity)
    else:
        runs = _train(study, identity, is_known=is_known)
    if folder is None:
        return
    curves = {name: each.curves for name, each in runs.items()}
    figures: dict[str, Figure] = {}
    if study.part is not None:
        config |= {"part": arguments.part}
    else:
        from fedjax_sim.results import plots  # Slow to import.

        figures = plots.metric_figures(curves, metrics, axes)
        if arguments.keep_samples:
            problems = {name: grid["problem"] for name, grid in study.grids().items()}
            figures |= samples.calibration_figures(runs, problems)
    summary = reports.save(folder, curves, config, figures, runs=runs, can_go_on=True)
    if study.part is not None and not arguments.json:
        print(f"Written to {folder.path} (part {arguments.part}: {summary['lanes']} lanes)")
        return
    show_results(folder, curves, config, summary, as_json=arguments.json)
    _show_rates(arguments, study.asked.defaults, curves)


def _read(arguments: argparse.Namespace) -> Study:
    """Read and check the words, and load the data."""
    max_lanes, part = arguments.max_lanes, parts.read_part(arguments.part)
    if max_lanes is not None:
        max_lanes = texts.read_whole("max_lanes", max_lanes, 1)
    precision = arguments.precision or "float32"
    placement.check_precision(precision)
    if arguments.any_jax and not arguments.resume and part is None:
        raise ConfigError("any_jax", True, "given together with --resume")
    layout = texts.read_layout(arguments.layout)._replace(max_lanes=max_lanes)
    num_evals = texts.read_whole("evals", arguments.evals, 25)
    every = texts.read_number("checkpoint_every", arguments.checkpoint_every, 20.0)
    names = _read_trackers(arguments)
    asked = comparison.read_asked(arguments)
    # Other processes must not see that the first one has made it.
    folder = processes.on_first(
        lambda: comparison.find_folder(arguments, "results", resume=arguments.resume)
    )
    data = load_data(arguments, asked)
    asked = asked._replace(contenders=[data.with_names(each) for each in asked.contenders])
    return Study(arguments, asked, data, folder, part, layout, num_evals, precision, every, names)


def _train(study: Study, identity: Mapping[str, Any], *, is_known: bool) -> dict[str, Run]:
    """Run the sweep of each system in this process, or a part of it.

    Args:
      study: What to run.
      identity: What must be equal for a later run to resume this one.
      is_known: Whether an earlier run of the folder has checked the input.
    """
    arguments, folder = study.arguments, study.folder
    compiling.keep_compiled()
    compiling.use_cores()
    placement.check_layout(study.layout)
    grids, lanes = study.grids(), None
    if study.part is not None:
        units = {name: shares.listed(**grid).units() for name, grid in grids.items()}
        lanes = parts.find_lanes(study.part, units)
    elif not is_known:
        # Some errors show in the schedule alone. They shall come before any training.
        with ThreadPoolExecutor(2) as workers:
            list(workers.map(lambda grid: shares.listed(**grid).check_schedules(), grids.values()))
    processes.on_first(lambda: folder.open(identity) if folder is not None else None)
    runs = {}
    with (
        _without_trace_if_refused(folder),
        contextlib.ExitStack() as at_end,
        # The table names these lanes.
        warnings.catch_warnings(action="ignore", category=LaneWarning),
    ):
        tracking = []
        if folder is not None:
            tracking = [trackers.make_tracker(name, folder.path) for name in study.tracker_names]
        for tracker in tracking:
            at_end.callback(tracker.close)
        resume = request.ANY_JAX if arguments.any_jax and arguments.resume else arguments.resume
        for name, grid in grids.items():
            if lanes is not None and name not in lanes:
                continue
            saved = None
            if folder is not None and not arguments.distributed:
                kept_in, every = folder.checkpoints / name, study.checkpoint_every
                saved = request.Checkpoints(kept_in, every=every, resume=resume)
            runs[name] = sweep(
                **grid,
                num_evals=study.num_evals,
                keep=Keep(models=arguments.keep_samples, client_variance=arguments.client_variance),
                watch=Watch(progress=arguments.progress, trackers=tracking),
                checkpoints=saved,
                layout=study.layout,
                precision=study.precision,
                lanes=None if lanes is None else lanes[name],
            )
    return runs


def _read_trackers(arguments: argparse.Namespace) -> list[str]:
    """Read the names of the trackers.

    Raises:
      ConfigError: For an unknown one, and where parts are launched.
    """
    if arguments.tracker is None:
        return []
    if arguments.parts is not None or arguments.launcher is not None:
        allowed = "left out with --parts and --launcher; run --part takes it"
        raise ConfigError("tracker", arguments.tracker, allowed)
    names = dict.fromkeys(texts.read_names("tracker", arguments.tracker, trackers.TRACKERS))
    for name in names:
        trackers.check_tracker(name)
    return [*names]


@contextlib.contextmanager
def _without_trace_if_refused(folder: reports.Folder | None) -> Iterator[None]:
    """Take the results folder away again if it is found that the input is not allowed."""
    try:
        yield
    except InputError:
        if folder is not None:
            folder.withdraw()
        raise


def show_results(
    folder: reports.Folder,
    curves: Mapping[str, xr.Dataset],
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print final values, and where the results are.

    Args:
      folder: The results folder.
      curves: The curves by system.
      config: The content of config.json.
      summary: The content of summary.json.
      as_json: Whether to print the summary as JSON in place of a table.
    """
    if as_json:
        tables.print_json({"folder": str(folder.path), **summary})
        return
    tables.make_console().print(
        f"{config['dataset']['name']}, partition {config['partition']['name']}, "
        f"model {config['model']}, {len(config['seeds'])} seeds, means +- std:",
        highlight=False,
    )
    tables.print_results(curves, summary)
    spent = summary["seconds"]
    seconds = f"{spent['compile']:.1f} s compiling, {spent['run']:.1f} s running"
    tables.print_sentence(f"Written to {folder.path} ({seconds})")


def _show_rates(
    arguments: argparse.Namespace, defaults: Defaults, curves: Mapping[str, xr.Dataset]
) -> None:
    """Name the tuned settings, if they were used."""
    tuned = {name: settings for name, settings in defaults.tuned.items() if name in curves}
    if tuned and not arguments.json and not {"lr", "server_lr"} & {*texts.read_settings(arguments)}:
        listed = "; ".join(
            f"{name} {', '.join(f'{key} {value:g}' for key, value in settings.items())}"
            for name, settings in tuned.items()
        )
        tables.print_sentence(
            f"Settings chosen on validation images (experiments/baselines): {listed}."
        )


def _join(arguments: argparse.Namespace) -> None:
    """Connect with the other processes, if there are any.

    Raises:
      ConfigError: If they are not found, or if something was asked for that does not work there.
    """
    num, number = arguments.num_processes, arguments.process_id
    if not arguments.distributed:
        for name in ("coordinator", "num_processes", "process_id"):
            if (value := getattr(arguments, name)) is not None:
                raise ConfigError(name, value, "given together with --distributed")
        return
    if arguments.resume:
        raise ConfigError("resume", True, "left out with --distributed, which has no checkpoints")
    processes.join_processes(
        arguments.coordinator,
        None if num is None else texts.read_whole("num_processes", num, 1),
        None if number is None else texts.read_whole("process_id", number, 0, least=0),
    )
    compiling.use_cores()
