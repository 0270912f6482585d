"""`fedjax-sim run`: train systems on one data set, compare them, and write the results folder."""

import argparse
import contextlib
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import xarray as xr

from fedjax_sim.cli import comparison, launching, samples
from fedjax_sim.cli.arguments import (
    check_name,
    read_axes,
    read_layout,
    read_number,
    read_seeds,
    read_settings,
    read_whole,
)
from fedjax_sim.cli.data import load_data, read_metrics
from fedjax_sim.cli.defaults import Defaults, defaults_of
from fedjax_sim.cli.tables import make_console, print_json, print_results, print_sentence
from fedjax_sim.engine.machine.compiling import keep_compiled, use_cores
from fedjax_sim.engine.machine.processes import join_processes, on_first
from fedjax_sim.engine.planning.placement import check_layout, check_precision
from fedjax_sim.engine.request import ANY_JAX, Checkpoints
from fedjax_sim.engine.shares import Unit, listed
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.engine.watching import Watch
from fedjax_sim.launch.parts import FOLDER, count_parts, find_lanes, read_part
from fedjax_sim.lifecycle import InputError
from fedjax_sim.reporting import results, trackers
from fedjax_sim.reporting.results import Folder
from fedjax_sim.results.runs import LaneWarning
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Keep, Time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(arguments: argparse.Namespace) -> None:
    """Train the systems named, print a table, and write curves, summary and pictures.

    Everything that can be wrong with the input is checked before any training.

    Args:
      arguments: The parsed words of `run`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    # The words that say how to run.
    _join(arguments)
    defaults = defaults_of(arguments.dataset or "digits", arguments.preset)
    seeds = read_seeds(arguments.seeds)
    num_evals = read_whole("evals", arguments.evals, 25)
    max_lanes = None
    if arguments.max_lanes is not None:
        max_lanes = read_whole("max_lanes", arguments.max_lanes, 1)
    checkpoint_every = read_number("checkpoint_every", arguments.checkpoint_every, 20.0)
    layout = read_layout(arguments.layout)
    precision = arguments.precision or "float32"
    check_precision(precision)
    axes = read_axes(arguments.against)
    part, launcher = read_part(arguments.part), launching.read_launcher(arguments)
    if arguments.any_jax and not arguments.resume and part is None:
        raise ConfigError("any_jax", True, "given together with --resume")
    tracker_names = _read_trackers(arguments)
    # Systems with their settings, the folder, and the data that all of them learn from.
    contenders = comparison.resolve_contenders(
        arguments.systems, read_settings(arguments), defaults
    )
    time_budget = comparison.read_time_budget(arguments.time_budget, contenders, defaults)
    # Other processes must not see that the first one has made it.
    folder = on_first(lambda: comparison.find_folder(arguments, "results", resume=arguments.resume))
    data = load_data(arguments, defaults, contenders, seeds)
    metrics = read_metrics(arguments, contenders, data)
    # Everything that decides the results, for config.json and to compare with a resumed
    # run.
    config = comparison.describe(contenders, seeds, time_budget) | {
        "dataset": {"name": data.dataset.name, "sha256": data.digest()},
        "partition": data.partition,
        "model": data.model,
        **data.facts,
        "evals": num_evals,
        "layout": layout.deciding(),
        "client_variance": arguments.client_variance,
        "keep_samples": arguments.keep_samples,
        "precision": precision,
        "prng": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
    }
    num_parts = None  # Unless they are launched.
    if launcher is not None and folder is not None:
        num_lanes = len(seeds) * sum(len(contender.points()) for contender in contenders)
        asked = None if arguments.parts is None else read_whole("parts", arguments.parts, 1)
        within = folder.checkpoints / FOLDER
        num_parts = str(count_parts(launcher, asked, within, num_lanes, resume=arguments.resume))
    # Versions and programs are compared for every system.
    identity = config | {"part": arguments.part, "parts": num_parts}
    is_known = arguments.resume and folder is not None and folder.check_resumable(identity)
    # Run: in processes of a launcher, or here.
    problems: dict[int, list[Any]] = {}
    if launcher is not None and folder is not None:
        runs, config = launching.launch_parts(launcher, arguments, folder, identity)
        if arguments.keep_samples:
            problems = {num: data.problems(num) for num in data.partitions}
    else:
        keep_compiled()
        use_cores()
        check_layout(layout)
        problems = {num: data.problems(num) for num in data.partitions}
        for contender in contenders:
            comparison.check_problems(contender, problems[contender.hyper.num_clients])
        grids: dict[str, dict[str, Any]] = {
            contender.system.name: {
                "system": contender.system,
                "problem": problems[contender.hyper.num_clients],
                "hyper": contender.hyper,
                "seeds": seeds,
                "settings": contender.swept,
                "budget": Time(time_budget),
            }
            for contender in contenders
        }

        def survey() -> dict[str, list[Unit[int]]]:
            return {name: listed(**grid).units() for name, grid in grids.items()}

        def check(grid: Mapping[str, Any]) -> None:
            listed(**grid).check_schedules()

        lanes = None if part is None else find_lanes(part, survey())
        if part is None and not is_known:
            # Some errors show in the schedule alone. They shall come before any training.
            with ThreadPoolExecutor(2) as workers:
                list(workers.map(check, grids.values()))
        on_first(partial(folder.open, identity) if folder is not None else lambda: None)
        runs = {}
        with (
            _without_trace_if_refused(folder),
            contextlib.ExitStack() as at_end,
            # The table names these lanes.
            warnings.catch_warnings(action="ignore", category=LaneWarning),
        ):
            place = None if folder is None else folder.path
            tracking = [trackers.make_tracker(name, place) for name in tracker_names if place]
            for tracker in tracking:
                at_end.callback(tracker.close)
            keep = Keep(models=arguments.keep_samples, client_variance=arguments.client_variance)
            resume = ANY_JAX if arguments.any_jax and arguments.resume else arguments.resume
            for name, grid in grids.items():
                if lanes is not None and name not in lanes:
                    continue
                saved = None
                if folder is not None and not arguments.distributed:
                    kept_in = folder.checkpoints / name
                    saved = Checkpoints(kept_in, every=checkpoint_every, resume=resume)
                runs[name] = sweep(
                    **grid,
                    num_evals=num_evals,
                    keep=keep,
                    watch=Watch(progress=arguments.progress, trackers=tracking),
                    checkpoints=saved,
                    layout=layout._replace(max_lanes=max_lanes),
                    precision=precision,
                    lanes=None if lanes is None else lanes[name],
                )
    # Write and print.
    if folder is None:
        return
    curves = {name: each.curves for name, each in runs.items()}
    figures: dict[str, Figure] = {}
    if part is not None:
        config |= {"part": arguments.part}
    else:
        from fedjax_sim.reporting import plots  # Slow to import.

        figures = plots.metric_figures(curves, metrics, axes)
        if arguments.keep_samples:
            of_system = {each.system.name: problems[each.hyper.num_clients] for each in contenders}
            figures |= samples.calibration_figures(runs, of_system)
    summary = results.save(folder, curves, config, figures, runs=runs, can_go_on=True)
    if part is not None and not arguments.json:
        print(f"Written to {folder.path} (part {arguments.part}: {summary['lanes']} lanes)")
        return
    show_results(folder, curves, config, summary, as_json=arguments.json)
    _show_rates(arguments, defaults, curves)


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
    names = list(dict.fromkeys(arguments.tracker.split(",")))
    for name in names:
        trackers.check_tracker(check_name("tracker", name, trackers.TRACKERS))
    return names


@contextlib.contextmanager
def _without_trace_if_refused(folder: Folder | None) -> Iterator[None]:
    """Take the results folder away again if it is found that the input is not allowed."""
    try:
        yield
    except InputError:
        if folder is not None:
            folder.withdraw()
        raise


def show_results(
    folder: results.Folder,
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
        print_json({"folder": str(folder.path), **summary})
        return
    make_console().print(
        f"{config['dataset']['name']}, partition {config['partition']['name']}, "
        f"model {config['model']}, {len(config['seeds'])} seeds, means +- std:",
        highlight=False,
    )
    print_results(curves, summary)
    spent = summary["seconds"]
    seconds = f"{spent['compile']:.1f} s compiling, {spent['run']:.1f} s running"
    print_sentence(f"Written to {folder.path} ({seconds})")


def _show_rates(
    arguments: argparse.Namespace, defaults: Defaults, curves: Mapping[str, xr.Dataset]
) -> None:
    """Name the tuned settings, if they were used."""
    tuned = {name: settings for name, settings in defaults.tuned.items() if name in curves}
    if tuned and not arguments.json and not {"lr", "server_lr"} & {*read_settings(arguments)}:
        listed = "; ".join(
            f"{name} {', '.join(f'{key} {value:g}' for key, value in settings.items())}"
            for name, settings in tuned.items()
        )
        print_sentence(f"Settings chosen on validation images (experiments/baselines): {listed}.")


def _join(arguments: argparse.Namespace) -> None:
    """Connect with the other processes, if there are any.

    Raises:
      ConfigError: If they are not found, or if something was asked for that does not work there.
    """
    described = {
        name: getattr(arguments, name) for name in ("coordinator", "num_processes", "process_id")
    }
    if not arguments.distributed:
        for name, value in described.items():
            if value is not None:
                raise ConfigError(name, value, "given together with --distributed")
        return
    if arguments.resume:
        raise ConfigError("resume", True, "left out with --distributed, which has no checkpoints")
    num, number = described["num_processes"], described["process_id"]
    join_processes(
        described["coordinator"],
        None if num is None else read_whole("num_processes", num, 1),
        None if number is None else read_whole("process_id", number, 0, least=0),
    )
    use_cores()
