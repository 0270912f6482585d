"""`fedjax-sim run`: train systems on one data set, compare them, and write the results folder."""

import argparse
import contextlib
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import comparison, launching, tables
from fedjax_sim.cli.data import Data, load_data, read_measures, read_metrics
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import Above0, ConfigError, Count, Whole
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
      options: Arguments that the sweeps of all systems have in common.
      checkpoints: How often checkpoints are written, and whether they are resumed.
    """

    arguments: argparse.Namespace
    asked: comparison.Asked
    data: Data
    folder: reports.Folder | None
    part: shares.Part | None
    options: dict[str, Any]
    checkpoints: dict[str, Any]

    def config(self) -> dict[str, object]:
        """Return all that decides the results, for config.json and to compare resumed runs."""
        keep = self.options["keep"]
        return self.asked.described() | {
            "dataset": {"name": self.data.dataset.name, "sha256": self.data.digest()},
            "partition": self.data.partition,
            "model": self.data.model,
            **self.data.facts,
            "evals": self.options["num_evals"],
            "layout": self.options["layout"].deciding(),
            "client_variance": keep.client_variance,
            **({"output": keep.output} if keep.output != "server" else {}),
            **({"measures": keep.measures} if keep.measures else {}),
            "keep_samples": keep.models,
            "precision": self.options["precision"],
            "prng": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
        }

    def grids(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of each system's sweep."""
        made = {num: list(self.data.make(each)) for num, each in self.data.partitions.items()}
        folder = None if self.arguments.distributed or not self.folder else self.folder.checkpoints
        return {
            system.name: {
                "system": system,
                "problem": made[hyper.num_clients],
                "hyper": hyper,
                "seeds": self.asked.seeds,
                "settings": swept,
                "budget": Time(self.asked.time_budget),
                "checkpoints": folder
                and request.Checkpoints(folder / system.name, **self.checkpoints),
                **self.options,
            }
            for system, hyper, swept in self.asked.contenders
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
        num_parts = launching.count_parts(launcher, arguments, folder, study.asked.num_lanes)
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
        from fedjax_sim.cli import plotting  # Slow to import.

        figures = plotting.plots.metric_figures(curves, metrics, axes)
        if arguments.keep_samples:
            problems = {name: grid["problem"] for name, grid in study.grids().items()}
            figures |= plotting.calibration_figures(runs, problems)
    summary = reports.save(folder, curves, config, figures, runs=runs, can_go_on=True)
    if study.part is not None and not arguments.json:
        print(f"Written to {folder.path} (part {arguments.part}: {summary['lanes']} lanes)")
        return
    tables.show_results(folder.path, curves, config, summary, as_json=arguments.json)
    tuned = {name: own for name, own in study.asked.defaults.tuned.items() if name in curves}
    is_given = {"lr", "server_lr"} & {*texts.read_settings(arguments)}
    if tuned and not arguments.json and not is_given:
        values = {name: (f"{key} {own[key]:g}" for key in own) for name, own in tuned.items()}
        chosen = "; ".join(f"{name} {', '.join(own)}" for name, own in values.items())
        where = "Settings chosen on validation images (experiments/baselines)"
        tables.print_sentence(f"{where}: {chosen}.")


def _read(arguments: argparse.Namespace) -> Study:
    """Read and check the words, and load the data."""
    part, precision = parts.read_part(arguments.part), arguments.precision or "float32"
    max_lanes = texts.read_value("max_lanes", arguments.max_lanes, None, Count)
    placement.check_precision(precision)
    if arguments.any_jax and not arguments.resume and part is None:
        raise ConfigError("any_jax", True, "given together with --resume")
    # --max-lanes has the other field.
    layout = texts.read_fields("--layout", Layout, [*Layout().deciding()], arguments.layout)
    measures, is_kept = read_measures(arguments), arguments.keep_samples
    options = {
        "num_evals": texts.read_value("evals", arguments.evals, 25, Count),
        "layout": layout._replace(max_lanes=max_lanes),
        "precision": precision,
        "keep": Keep(
            models=is_kept,
            client_variance=arguments.client_variance,
            measures=measures,
            output="mean" if arguments.mean_model else "server",
        ),
    }
    saved = {
        "every": texts.read_value("checkpoint_every", arguments.checkpoint_every, 20.0, Above0),
        "resume": request.ANY_JAX if arguments.any_jax and arguments.resume else arguments.resume,
    }
    for name in _trackers(arguments):
        trackers.check_tracker(name)
    asked = comparison.read_asked(arguments)
    # Other processes must not see that the first one has made it.
    folder = processes.on_first(
        lambda: texts.find_folder(arguments, "results", resume=arguments.resume)
    )
    data = load_data(arguments, asked)
    asked = asked._replace(contenders=[data.with_names(each) for each in asked.contenders])
    return Study(arguments, asked, data, folder, part, options, saved)


def _trackers(arguments: argparse.Namespace) -> list[str]:
    """Read the names of the trackers.

    Raises:
      ConfigError: For an unknown one, and where parts are launched.
    """
    if arguments.tracker is None:
        return []
    if arguments.parts is not None or arguments.launcher is not None:
        allowed = "left out with --parts and --launcher; run --part takes it"
        raise ConfigError("tracker", arguments.tracker, allowed)
    return [*dict.fromkeys(texts.read_names("tracker", arguments.tracker, trackers.TRACKERS))]


def _train(study: Study, identity: Mapping[str, object], *, is_known: bool) -> dict[str, Run]:
    """Run the sweep of each system in this process, or a part of it.

    Args:
      study: What to run.
      identity: What must be equal for a later run to resume this one.
      is_known: Whether an earlier run of the folder has checked the input.
    """
    arguments, folder = study.arguments, study.folder
    compiling.keep_compiled()
    compiling.use_cores()
    placement.check_layout(study.options["layout"])
    grids = study.grids()
    lanes: dict[str, list[int] | None] = dict.fromkeys(grids)
    if study.part is not None:
        units = [
            shares.Unit(tuple((name, lane) for lane in unit.lanes), unit.work)
            for name, grid in grids.items()
            for unit in shares.listed(**grid).units()
        ]
        chosen = study.part.choose(units)
        lanes = {name: [lane for of, lane in chosen if of == name] for name in grids}
    elif not is_known:
        # Some errors show in the schedule alone. They shall come before any training.
        with ThreadPoolExecutor(2) as workers:
            list(workers.map(lambda grid: shares.listed(**grid).check_schedules(), grids.values()))
    processes.on_first(lambda: folder.open(identity) if folder is not None else None)
    try:
        with contextlib.ExitStack() as at_end:
            # The table names these lanes.
            at_end.enter_context(warnings.catch_warnings(action="ignore", category=LaneWarning))
            names = [] if folder is None else _trackers(arguments)
            tracking = [trackers.make_tracker(name, folder.path) for name in names if folder]
            for tracker in tracking:
                at_end.callback(tracker.close)
            watch = Watch(progress=arguments.progress, trackers=tracking)
            asked = {name: grid for name, grid in grids.items() if lanes[name] != []}
            return {n: sweep(**grid, watch=watch, lanes=lanes[n]) for n, grid in asked.items()}
    except InputError:  # A run that is refused leaves no folder.
        if folder is not None:
            folder.withdraw()
        raise


def _join(arguments: argparse.Namespace) -> None:
    """Connect with the other processes, if there are any.

    Raises:
      ConfigError: If they are not found, or if something was asked for that does not work there.
    """
    if not arguments.distributed:
        for name in ("coordinator", "num_processes", "process_id"):
            if (value := getattr(arguments, name)) is not None:
                raise ConfigError(name, value, "given together with --distributed")
        return
    if arguments.resume:
        raise ConfigError("resume", True, "left out with --distributed, which has no checkpoints")
    processes.join_processes(
        arguments.coordinator,
        texts.read_value("num_processes", arguments.num_processes, None, Count),
        texts.read_value("process_id", arguments.process_id, None, Whole),
    )
    compiling.use_cores()
