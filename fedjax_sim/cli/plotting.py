"""`fedjax-sim plot` and `merge`: draw the metrics of results folders, or put parts together."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import tables
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.launch import parts
from fedjax_sim.results import plots, reports
from fedjax_sim.results.diagnostics import average_predictions, reliability, score_predictions
from fedjax_sim.results.runs import Run
from fedjax_sim.results.summaries import label_of, settings_of, summary


def run(arguments: argparse.Namespace) -> None:
    """Draw the systems of all folders together, and print a table of their final values.

    Args:
      arguments: The parsed words of `plot`.

    Raises:
      ConfigError: For a folder without curves, or an unknown metric.
    """
    axes = texts.read_names("against", arguments.against or "time", reports.AXES)
    curves = read_folders(arguments.folders, trust=arguments.trust)
    drawn = list(dict.fromkeys(name for data in curves.values() for name in plots.drawable(data)))
    metrics = None if arguments.plot is None else texts.read_names("metric", arguments.plot, drawn)
    folder = texts.find_folder(arguments, "results-plot")
    figures = plots.metric_figures(curves, metrics, axes)
    folder.open()
    for name, figure in figures.items():
        folder.write_figure(name, figure)
    content = summary(curves)
    folder.finish({"folders": arguments.folders, "metrics": metrics, "against": axes}, content)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), "pictures": list(figures), **content})
        return
    tables.print_results(curves, content)
    tables.print_sentence(f"Written to {folder.path}: {', '.join(figures)}")


def merge(arguments: argparse.Namespace) -> None:
    """Put the parts of a study together: write the files of the whole run, and print its table.

    How calibrated kept samples are is not drawn, because this needs the data of the study: a run
    with `--parts` has them, and draws it.

    Args:
      arguments: The parsed words of `merge`.

    Raises:
      ConfigError: If the parts do not belong together, or one is missing or unfinished.
    """
    folder = texts.find_folder(arguments, "results")
    runs, config = parts.read_parts(arguments.folders, trust=arguments.trust)
    folder.open()
    curves = {name: run.curves for name, run in runs.items()}
    content = reports.save(folder, curves, config, plots.metric_figures(curves), runs=runs)
    tables.show_results(folder.path, curves, config, content, as_json=arguments.json)


def read_folders(paths: Sequence[str], *, trust: bool) -> dict[str, xr.Dataset]:
    """Read the curves of results folders.

    Args:
      paths: The folders.
      trust: As in `fedjax_sim.results.reports.load`.

    Returns:
      The curves by system; with several folders, each system is named together with its folder.

    Raises:
      ConfigError: If a folder is not that of a finished run, or is named twice.
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("results folders", " ".join(paths), "named once each")
    curves = {path: _curves_in(path, trust=trust) for path in paths}
    if len(paths) == 1:
        return dict(curves[paths[0]])
    short = [Path(path).resolve().name for path in paths]
    names = short if len({*short}) == len(paths) else paths
    pairs = zip(names, curves.values(), strict=True)
    return {f"{system} ({name})": data for name, found in pairs for system, data in found.items()}


def _curves_in(path: str, *, trust: bool) -> Mapping[str, xr.Dataset]:
    """Read the curves of one folder, and refuse schedules and parts, which have none to draw."""
    found = reports.load(path, trust=trust)
    if found.config.get("part") is not None:
        raise ConfigError("results folder", path, "one of a whole run: merge its parts first")
    needed = {"failed", *reports.AXES.values()}
    curves = {name: data for name, data in found.curves.items() if needed <= {*data.variables}}
    if not curves:
        raise ConfigError("results folder", path, "one with curves, as run and merge write them")
    return curves


def calibration_figures(
    runs: Mapping[str, Run], problems: Mapping[str, Sequence[Any]]
) -> dict[str, Figure]:
    """Draw reliability.png: accuracy against confidence of predictions averaged over samples.

    Averages are over the evaluations after the initial one and over seeds, of each setting alone.
    The legend has their expected calibration error. Failed lanes are left out.

    Args:
      runs: What `sweep` returned by system, with kept models.
      problems: Each system's problems, one per seed, which share a test set.

    Returns:
      The picture; none if no problem predicts classes.
    """
    found = {}
    for name, run in runs.items():
        problem = problems[name][0]
        if not (hasattr(problem, "predict") and hasattr(problem, "test_labels")):
            continue
        averages = average_predictions(problem, run.samples).probabilities
        points = list(settings_of(run.curves))
        for (point, lanes), average in zip(points, np.split(averages, len(points)), strict=True):
            good = ~lanes["failed"].values
            if not good.any():
                continue
            probabilities = jnp.asarray(average[good].mean(axis=0))
            scores = jax.tree.map(float, score_predictions(probabilities, problem.test_labels))
            label = f"{label_of(name, point)}, calibration error {scores['ece']:.3f}"
            found[label] = reliability(probabilities, problem.test_labels)
    return {"reliability.png": plots.reliability_figure(found)} if found else {}
