"""`fedjax-sim run`: train systems on one data set, compare them, and write the results folder."""

import argparse
import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fedjax_sim import clients, launch
from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import comparison, tables
from fedjax_sim.cli.data import Data, load_data, read_options
from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.settings import Above0, ConfigError, Count, Named, Whole
from fedjax_sim.core.types import Keep, Plan, Time
from fedjax_sim.engine import machine, planning, request, shares, watching
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.launch import jobs, parts
from fedjax_sim.results import reports, trackers
from fedjax_sim.results.runs import LaneWarning, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAUNCHERS = Named[type](
    "launcher", {kind.__name__.lower(): kind for kind in (launch.Local, launch.Slurm, launch.Ray)}
)
OWN_FLAGS = {"systems", "set", "out", "overwrite", "resume", "progress", "tracker"}
OWN_FLAGS |= {"words", "part", "parts", "launcher", "resources", "json", "plot", "against"}
"""Flags that are not handed on to parts as they are."""


class Study(NamedTuple):
    """The words of `run`, read and checked.

    Attributes:
      arguments: The words.
      asked: Systems with their settings, seeds and time budget.
      data: What the systems learn from.
      folder: The results folder; None in processes that write none.
      part: The part of the study to run; None for the whole.
      trackers: Names of trackers.
      options: Arguments that the sweeps of all systems have in common.
      checkpoints: How often checkpoints are written, and whether they are resumed.
    """

    arguments: argparse.Namespace
    asked: comparison.Asked
    data: Data
    folder: reports.Folder | None
    part: shares.Part | None
    trackers: list[str]
    options: dict[str, Any]
    checkpoints: dict[str, Any]

    def config(self) -> dict[str, object]:
        """Return all that decides the results, for config.json and to compare resumed runs."""
        keep = self.options["keep"]
        about = self.data.described(self.asked, self.options)
        about["client_variance"] = keep.client_variance
        about |= {"output": keep.output} if keep.output != "server" else {}
        about |= {"measures": keep.measures} if keep.measures else {}
        return about | {"keep_samples": keep.models}

    def grids(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of each system's sweep."""
        made = {num: list(self.data.make(each)) for num, each in self.data.partitions.items()}
        folder = None if self.arguments.distributed or not self.folder else self.folder.checkpoints
        shared = {"seeds": self.asked.seeds, "budget": Time(self.asked.time_budget), **self.options}
        grids = {}
        for system, hyper, swept in self.asked.contenders:
            own = {"system": system, "hyper": hyper, "settings": swept}
            saved = folder and request.Checkpoints(folder / system.name, **self.checkpoints)
            more = {"problem": made[hyper.num_clients], "checkpoints": saved}
            grids[system.name] = own | more | shared
        return grids

    def metrics(self) -> list[str] | None:
        """Read the metrics to draw: None, which stands for all, if none is named.

        Raises:
          ConfigError: If no contender will have a metric of a name.
        """
        if self.arguments.plot is None:
            return None
        keep = self.options["keep"]
        known: dict[str, object] = dict.fromkeys(keep.measures)
        known |= {"client_variance": None} if keep.of_clients else {}
        for contender in self.asked.contenders:
            system, hyper, _ = contender
            problem = self.data.make(self.data.partitions[hyper.num_clients][:1])[0]

            def observe(problem: Any, hyper: Any, system: Any = system) -> dict[str, Any]:
                made = system.algorithm(problem, hyper, Plan())
                state = made.init(jax.random.key(0))
                return {**problem.evaluate(made.model(state)), **made.metrics(state)}

            for _, point in contender.points():
                known |= jax.eval_shape(observe, problem, system.fit.complete(point, problem))
                known |= {} if getattr(point, "privacy", None) is None else {"epsilon": None}
        return texts.read_names("metric", self.arguments.plot, list(known))


def run(arguments: argparse.Namespace) -> None:
    """Train the systems named, print a table, and write curves, summary and pictures.

    Everything that can be wrong with the input is checked before any training.

    Args:
      arguments: The parsed words of `run`.

    Raises:
      ConfigError: For input that is not allowed.
      PartError: If a part failed that was launched.
    """
    _join(arguments)
    axes = texts.read_names("against", arguments.against or "time", reports.AXES)
    launcher, study = read_launcher(arguments), _read(arguments)
    folder, config, started = study.folder, study.config(), list[jobs.Job]()
    metrics = study.metrics()
    if launcher is not None and folder is not None:
        within = (folder.checkpoints / parts.FOLDER).absolute()
        number = texts.read_value("parts", arguments.parts, None, Count)
        points = sum(len(each.points()) for each in study.asked.contenders)
        num_lanes, resume = len(study.asked.seeds) * points, arguments.resume
        number = launcher.count_parts(number, within, num_lanes, resume=resume)
        started = jobs.jobs_of(number, within, partial(_command, arguments))
    # Versions and programs are compared for every system.
    identity = config | {"part": arguments.part, "parts": str(len(started)) if started else None}
    is_known = arguments.resume and folder is not None and folder.check_resumable(identity)
    if launcher is not None and folder is not None:
        # Parts that ended well in an earlier attempt only check that nothing has changed.
        folder.open(identity)
        jobs.finish_jobs(launcher, started, within)
        runs, config = parts.read_parts([job.folder for job in started])
    else:
        runs = _train(study, identity, is_known=is_known)
    if folder is None:
        return
    curves = {name: each.curves for name, each in runs.items()}
    config |= {"command": texts.command_of(arguments)}
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


def read_launcher(arguments: argparse.Namespace) -> jobs.Launcher | None:
    """Read the launcher that is to start parts; None if the command is to run here.

    Raises:
      ConfigError: For an unknown launcher or field, a value of the wrong kind, or flags that do not
        fit together.
      PartError: If the launcher cannot start parts here.
    """
    if arguments.part is not None or (arguments.parts is None and arguments.launcher is None):
        where = "without a launcher" if arguments.part is None else "with --part"
        drawing = () if arguments.part is None else ("plot", "against")  # Parts have no pictures.
        texts.refuse(arguments, ("parts", "launcher", "resources", *drawing), f"left out {where}")
        return None
    kind = LAUNCHERS[arguments.launcher or "local"]
    fields = [field.name for field in dataclasses.fields(kind) if field.name != "options"]
    launcher: jobs.Launcher = texts.read_fields("--resources", kind, fields, arguments.resources)
    launcher.check()
    return launcher


def _command(arguments: argparse.Namespace, part: str, folder: Path) -> Sequence[str]:
    """Return the command of one part: the command itself, with --part."""
    flags = {name: value for name, value in vars(arguments).items() if name not in OWN_FLAGS}
    flags |= {"part": part, "out": folder, "progress": folder.with_suffix(".progress")}
    words = ["-m", "fedjax_sim", "run", *arguments.systems]
    words += (f"--set={text}" for text in arguments.set)
    for name, value in flags.items():
        if value not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag}={value}")
    return words


def _read(arguments: argparse.Namespace) -> Study:
    """Read and check the words, and load the data."""
    part, options = parts.read_part(arguments.part), read_options(arguments)
    if arguments.any_jax and not arguments.resume and part is None:
        raise ConfigError("any_jax", True, "given together with --resume")
    measures, named = list[str](), list[str]()
    if arguments.measures is not None:
        measures = texts.read_names("measure", arguments.measures, clients.MEASURES)
    is_kept, variance = arguments.keep_samples, arguments.client_variance
    output: Any = "mean" if arguments.mean_model else "server"
    keep = Keep(models=is_kept, client_variance=variance, measures=measures, output=output)
    saved = {
        "every": texts.read_value("checkpoint_every", arguments.checkpoint_every, 20.0, Above0),
        "resume": request.ANY_JAX if arguments.any_jax and arguments.resume else arguments.resume,
    }
    if arguments.parts or arguments.launcher:
        allowed = "left out with --parts and --launcher; run --part takes it"
        texts.refuse(arguments, ("tracker", "progress"), allowed)
    if arguments.tracker is not None:
        named = [*dict.fromkeys(texts.read_names("tracker", arguments.tracker, trackers.TRACKERS))]
    for name in named:
        settings.load_extra("tracker", name, trackers.TRACKERS[name])
    asked = comparison.read_asked(arguments)
    # Other processes must not see that the first one has made it.
    folder = machine.processes.on_first(
        lambda: texts.find_folder(arguments, "results", resume=arguments.resume)
    )
    data = load_data(arguments, asked)
    asked = asked._replace(contenders=[data.with_names(each) for each in asked.contenders])
    return Study(arguments, asked, data, folder, part, named, options | {"keep": keep}, saved)


def _train(study: Study, identity: Mapping[str, object], *, is_known: bool) -> dict[str, Run]:
    """Run the sweep of each system in this process, or a part of it.

    Args:
      study: What to run.
      identity: What must be equal for a later run to resume this one.
      is_known: Whether an earlier run of the folder has checked the input.
    """
    arguments, folder = study.arguments, study.folder
    machine.compiling.keep_compiled()
    machine.compiling.use_cores()
    planning.placement.check_layout(study.options["layout"])
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
    machine.processes.on_first(lambda: folder.open(identity) if folder is not None else None)
    try:
        with contextlib.ExitStack() as at_end:
            # The table names these lanes.
            at_end.enter_context(warnings.catch_warnings(action="ignore", category=LaneWarning))
            tracking = [trackers.make_tracker(n, folder.path) for n in study.trackers if folder]
            for tracker in tracking:
                at_end.callback(tracker.close)
            watch = watching.Watch(progress=arguments.progress, trackers=tracking)
            asked = {name: grid for name, grid in grids.items() if lanes[name] != []}
            return {n: sweep(**grid, watch=watch, lanes=lanes[n]) for n, grid in asked.items()}
    except lifecycle.InputError:  # A run that is refused leaves no folder.
        if folder is not None:
            folder.withdraw()
        raise


def _join(arguments: argparse.Namespace) -> None:
    """Connect with the other processes, if there are any.

    Raises:
      ConfigError: If they are not found, or if something was asked for that does not work there.
    """
    if not arguments.distributed:
        names = ("coordinator", "num_processes", "process_id")
        texts.refuse(arguments, names, "given together with --distributed")
        return
    allowed = "left out with --distributed, which has no checkpoints and no parts"
    texts.refuse(arguments, ("resume", "parts", "launcher"), allowed)
    machine.processes.join_processes(
        arguments.coordinator,
        texts.read_value("num_processes", arguments.num_processes, None, Count),
        texts.read_value("process_id", arguments.process_id, None, Whole),
    )
    machine.compiling.use_cores()
