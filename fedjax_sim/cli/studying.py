"""`fedjax-sim tune` and `compare`: from a question to a table."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from fedjax_sim import studies
from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import comparison, plotting, tables
from fedjax_sim.cli.data import Data, load_data, read_options
from fedjax_sim.core.settings import Above0, ConfigError, Count, Fraction, Share, Whole
from fedjax_sim.core.types import AnyProblem, LatentProblem, Time
from fedjax_sim.datasets import Dataset, Text
from fedjax_sim.engine import machine, planning, request, watching
from fedjax_sim.results import plots, records, reports
from fedjax_sim.results.runs import Run
from fedjax_sim.studies import criteria, pictures, tuning

VALIDATION = ("pool", "clients")
CRITERIA = ("final", "area", "time", "worst_client")
TUNING_SEEDS = "1000..1002"
HELD_OUT = 0.2


class Study(NamedTuple):
    """The words of `tune`, read and checked.

    Attributes:
      arguments: The words.
      asked: Systems with their settings, the reported seeds and the time budget.
      tuning_seeds: Seeds by which settings are chosen.
      data: The examples without the test set, partitioned for the tuning seeds.
      validation: Where validation examples are held out of.
      held_out: Their share.
      how: Further arguments of `studies.tune_and_run`.
      options: Arguments of all sweeps.
    """

    arguments: argparse.Namespace
    asked: comparison.Asked
    tuning_seeds: list[int]
    data: Data
    validation: str
    held_out: float
    how: dict[str, Any]
    options: dict[str, Any]

    def config(self) -> dict[str, object]:
        """Return all that decides the results, for config.json and to compare resumed runs."""
        how = self.how | {"criterion": dataclasses.asdict(self.how["criterion"])}
        data = {"validation": self.validation, "held_out": self.held_out}
        about = {"tuning_seeds": self.tuning_seeds, **data, **_as_objects(how)}
        return self.data.described(self.asked, self.options) | about

    def trials(self, num_clients: int) -> list[AnyProblem]:
        """Make the problem of each tuning seed, with the validation part as test set."""
        partitions = self.data.partitions[num_clients]
        if self.validation == "pool":
            return list(self.data.make(partitions))
        dataset: Any = self.data.dataset
        held = studies.hold_out_of_clients(dataset, partitions, self.held_out)
        return [self.data.build(own, [left])[0] for own, left in held]

    def tests(self, num_clients: int) -> Callable[[int], AnyProblem]:
        """Return a function of a reported seed, which reads the test set when first called."""

        @cache
        def made() -> dict[int, AnyProblem]:
            data = load_data(self.arguments, self.asked)
            seeds = self.asked.seeds
            return dict(zip(seeds, data.make(data.partitions[num_clients]), strict=True))

        return lambda seed: made()[seed]


def tune(arguments: argparse.Namespace) -> None:
    """Choose settings on validation data, run the choice with other seeds, and write all of it.

    Args:
      arguments: The parsed words of `tune`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    study = _read(arguments)
    folder = texts.find_folder(arguments, "results-tune", resume=arguments.resume)
    config = study.config()
    if arguments.resume:
        folder.check_resumable(config)
    machine.compiling.keep_compiled()
    machine.compiling.use_cores()
    planning.placement.check_layout(study.options["layout"])
    trials = {num: study.trials(num) for num in study.data.partitions}
    tests = {num: study.tests(num) for num in study.data.partitions}
    folder.open(config)
    every = texts.read_value("checkpoint_every", arguments.checkpoint_every, 20.0, Above0)
    tuned: dict[str, studies.Tuned] = {}
    runs: dict[str, Run] = {}

    def kept(system: str, sweep: str) -> dict[str, Any]:
        place = folder.checkpoints / f"{system}, {sweep}"
        return {"checkpoints": request.Checkpoints(place, every=every, resume=arguments.resume)}

    seeds = {"tuning_seeds": study.tuning_seeds, "seeds": study.asked.seeds}
    shared = {**seeds, "options": study.options, **study.how}
    try:
        for system, hyper, grid in study.asked.contenders:
            contestant = studies.Contestant(system, hyper, grid)
            own = trials[hyper.num_clients], tests[hyper.num_clients]
            tuned[system.name], runs[system.name] = studies.tune_and_run(
                contestant, *own, kept=partial(kept, system.name), **shared
            )
    except ConfigError:  # A run that is refused leaves no folder.
        folder.withdraw()
        raise
    curves = {name: run.curves for name, run in runs.items()}
    chosen = {
        name: {**each._asdict(), "scores": each.scores.reset_coords(drop=True).to_dict()}
        for name, each in tuned.items()
    }
    figures = plots.metric_figures(curves)
    title = f"{study.data.dataset.name}, examples held out of the {study.validation}"
    swept = {name: each for name, each in tuned.items() if each.scores.ndim > 1}
    figures["sensitivity.png"] = pictures.sensitivity_figure(swept, title)
    folder.write_json("choices.json", chosen)
    table = _choices(tuned)
    folder.write_text("choices.md", table.markdown() + "\n")
    _say_how(folder, arguments)
    about = {**config, "command": texts.command_of(arguments), "chosen": chosen}
    summary = reports.save(folder, curves, about, figures, runs=runs, can_go_on=True)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), "chosen": chosen, **summary})
        return
    listed = ", ".join(map(str, study.tuning_seeds))
    tables.print_sentence(f"Chosen on validation data (tuning seeds {listed}):")
    tables.print_table(table.texts())
    if len({each.lanes for each in tuned.values()}) > 1:
        sentence = "The systems were not tuned with equal budgets: see their numbers of lanes."
        tables.print_sentence(sentence)
    print()
    tables.show_results(folder.path, curves, config, summary, as_json=False)


def _read(arguments: argparse.Namespace) -> Study:
    """Read and check the words, and load the data without the test set.

    Raises:
      ConfigError: For input that is not allowed.
    """
    options = read_options(arguments) | {"watch": watching.Watch(progress=arguments.progress)}
    tuning_seeds = texts.read_seeds(arguments.tuning_seeds or TUNING_SEEDS)
    if arguments.tuning_seeds is not None and {*arguments.tuning_seeds} <= {*"0123456789"}:
        tuning_seeds = [1000 + seed for seed in tuning_seeds]  # A number of them.
    validation = texts.check_name("validation", arguments.validation or "pool", VALIDATION)
    held_out = texts.read_value("held_out", arguments.held_out, HELD_OUT, Fraction)
    widenings = texts.read_value("widenings", arguments.widenings, tuning.WIDENINGS, Whole)
    factor = texts.read_value("halving", arguments.halving, None, Count)
    if factor == 1:
        raise ConfigError("halving", 1, "at least 2")
    halving = None if factor is None else tuning.Halving(factor)
    how = {"criterion": read_criterion(arguments), "widenings": widenings, "halving": halving}
    asked = comparison.read_asked(arguments)
    for system, _, swept in asked.contenders:
        if system.fit.learns is LatentProblem:
            raise ConfigError("systems", system.name, "those of gradients, which have a test set")
        if not swept:
            allowed = "several of one setting at least, as in --set lr=0.1,0.3,1"
            raise ConfigError(f"values to choose from for {system.name}", "none", allowed)
        tuning.check_grid(swept, widenings)

    def change(dataset: Any) -> Dataset:
        if isinstance(dataset, Text):
            allowed = "a set of images, of which tune holds some out"
            raise ConfigError("dataset", dataset.name, allowed)
        whole = studies.hold_out(dataset, held_out)
        if validation == "pool":
            return whole
        # Each client's own part is held out later; the given test set is dropped here.
        return dataset._replace(test_images=whole.test_images, test_labels=whole.test_labels)

    data = load_data(arguments, asked._replace(seeds=tuning_seeds), change)
    named = [data.with_names(each, more_seeds=True) for each in asked.contenders]
    asked = asked._replace(contenders=named)
    options["budget"] = Time(asked.time_budget)
    return Study(arguments, asked, tuning_seeds, data, validation, held_out, how, options)


def read_criterion(arguments: argparse.Namespace) -> studies.Criterion:
    """Read the criterion of `tune` and `compare`.

    Raises:
      ConfigError: If its parts do not fit together.
    """
    level = texts.read_value("level", arguments.level, None, criteria.Finite)
    kind: Any = texts.check_name("criterion", arguments.criterion or "final", CRITERIA)
    default = "client_accuracy" if kind == "worst_client" else "accuracy"
    return studies.Criterion(arguments.metric or default, kind, level, arguments.against or "time")


def _choices(tuned: Mapping[str, studies.Tuned]) -> studies.Table:
    """Table of the choices, their scores and their costs."""
    rows = []
    for name, each in tuned.items():
        words = ", ".join(f"{key} {value}" for key, value in each.choice.items())
        mean = each.scores.mean("seed", skipna=False)
        best = each.scores.isel(mean.argmax(list(mean.dims))) * each.scores.attrs["sign"]
        found = studies.Sample.of(best.values).interval()
        rows.append([name, words, ", ".join(each.at_edge), found, each.lanes, round(each.time)])
    criterion = next(iter(tuned.values())).scores.attrs["criterion"]
    header = ["system", "chosen", "at an edge", f"validation: {criterion}"]
    return studies.Table([*header, "lanes", "virtual time"], rows)


def compare(arguments: argparse.Namespace) -> None:
    """Compare the systems of results folders, and write tables and pictures.

    Args:
      arguments: The parsed words of `compare`.

    Raises:
      ConfigError: For a folder without curves, or a metric or an axis that they lack.
    """
    criterion = read_criterion(arguments)
    power = texts.read_value("power", arguments.power, 0.8, Share)
    kinds, width = plotting.read_pictures(arguments)
    curves = plotting.read_folders(arguments.folders, trust=arguments.trust)
    plots.check_axes(curves, [criterion.against])
    folder = texts.find_folder(arguments, "results-compare")
    found = studies.compare(curves, criterion, power=power)
    figures = {}
    if criterion.by != "worst_client":
        figures = plots.metric_figures(curves, [criterion.metric], [criterion.against])
    if criterion.by == "time":
        figures["times.png"] = pictures.survival_figure(found)
    folder.open()
    both = {"comparison": found.systems(), "differences": found.differences()}
    for name, table in both.items():
        folder.write_text(f"{name}.md", table.markdown() + "\n")
        folder.write_text(f"{name}.csv", table.csv())
        folder.write_text(f"{name}.tex", table.latex())
    names = plotting.write_pictures(folder, figures, kinds, width)
    _say_how(folder, arguments)
    content: dict[str, Any] = {"criterion": str(criterion), "horizon": found.horizon}
    content |= _as_objects({"systems": found.entries, "pairs": found.pairs})
    about = {"folders": arguments.folders, "command": texts.command_of(arguments)}
    folder.finish({**about, **records.environment()}, content)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), "pictures": names, **content})
        return
    for table in both.values():
        if table.rows:
            tables.print_table(table.texts())
            print()
    files = [f"{name}.{kind}" for name in both for kind in ("md", "csv", "tex")]
    tables.print_sentence(f"Written to {folder.path}: {', '.join([*files, *names])}")


def _as_objects(value: Any) -> Any:
    """Turn named tuples into dictionaries, also those inside lists and dictionaries."""
    held = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(held, dict):
        return {key: _as_objects(each) for key, each in held.items()}
    return [_as_objects(each) for each in held] if isinstance(held, list) else held


def _say_how(folder: reports.Folder, arguments: argparse.Namespace) -> None:
    """Write rerun.sh, which makes the folder again."""
    made: Any = records.environment()
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    lines = ["#!/bin/sh", f"# {versions}", f"# commit {made['commit']}"]
    folder.write_text("rerun.sh", "\n".join([*lines, texts.command_of(arguments), ""]))
