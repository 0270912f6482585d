"""`fedjax-sim plot` and `merge`: draw the metrics of results folders, or put parts together."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import tables
from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, writing_to
from fedjax_sim.launch import parts
from fedjax_sim.results import diagnostics, plots, reports, summaries
from fedjax_sim.results.runs import Run


def run(arguments: argparse.Namespace) -> None:
    """Draw the systems of all folders together, and print a table of their final values.

    Args:
      arguments: The parsed words of `plot`.

    Raises:
      ConfigError: For a folder without curves, or an unknown metric.
    """
    axes = texts.read_names("against", arguments.against or "time", reports.ALL_AXES)
    kinds, width = read_pictures(arguments)
    curves = read_folders(arguments.folders, trust=arguments.trust)
    plots.check_axes(curves, axes)
    drawn = list(dict.fromkeys(name for data in curves.values() for name in plots.drawable(data)))
    metrics = None if arguments.plot is None else texts.read_names("metric", arguments.plot, drawn)
    is_file = Path(arguments.out or "").suffix[1:] in reports.PICTURES
    folder = None if is_file else texts.find_folder(arguments, "results-plot")
    figures, content = plots.metric_figures(curves, metrics, axes), summaries.summary(curves)
    if folder is None:
        write_one(arguments, figures, width)
        return
    folder.open()
    names = write_pictures(folder, figures, kinds, width)
    about = {"folders": arguments.folders, "metrics": metrics, "against": axes}
    folder.finish({**about, "command": texts.command_of(arguments)}, content)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), "pictures": names, **content})
        return
    tables.print_results(curves, content)
    tables.print_sentence(f"Written to {folder.path}: {', '.join(names)}")


def read_pictures(arguments: argparse.Namespace) -> tuple[list[str], float | None]:
    """Read the kinds of pictures, and their width in inches; None for the usual one.

    Raises:
      ConfigError: For another kind or width.
    """
    kinds = texts.read_names("format", arguments.format or "png", reports.PICTURES)
    if arguments.width is None:
        return kinds, None
    return kinds, plots.WIDTHS[texts.check_name("width", arguments.width, plots.WIDTHS)]


def write_pictures(
    folder: reports.Folder, figures: Mapping[str, Figure], kinds: Sequence[str], width: float | None
) -> list[str]:
    """Write pictures in every kind that is asked for; return the names of their files."""
    names = []
    for name, figure in figures.items():
        if width is not None:
            plots.fit_paper(figure, width)
        names += [str(Path(name).with_suffix(f".{kind}")) for kind in kinds]
        for file in names[-len(kinds) :]:
            folder.write_figure(file, figure)
    return names


def write_one(
    arguments: argparse.Namespace, figures: Mapping[str, Figure], width: float | None
) -> None:
    """Write the only picture to the file that the user names.

    Raises:
      ConfigError: If there are several, or the file is there already or cannot be written.
    """
    path = Path(arguments.out)
    if len(figures) != 1:
        allowed = "a folder, or one metric and axis by --plot and --against"
        raise ConfigError(f"out for {len(figures)} pictures", arguments.out, allowed)
    texts.refuse(arguments, ["format"], f"left out with --out {path}")
    if path.is_dir() or (path.exists() and not arguments.overwrite):
        raise ConfigError("out", arguments.out, "a new file, unless --overwrite is given")
    [figure] = figures.values()
    if width is not None:
        plots.fit_paper(figure, width)
    with writing_to("out", path.parent):
        write = partial(reports.write_picture, figure=figure, name=path.name)
        lifecycle.write_whole(path, write)
    if arguments.json:
        tables.print_json({"picture": str(path)})
    else:
        tables.print_sentence(f"Written to {path}")


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
        averages = diagnostics.average_predictions(problem, run.samples).probabilities
        points = list(summaries.points_of({name: run.curves}))
        for (label, lanes), average in zip(points, np.split(averages, len(points)), strict=True):
            good = ~lanes["failed"].values
            if not good.any():
                continue
            probabilities = jnp.asarray(average[good].mean(axis=0))
            error = float(diagnostics.score_predictions(probabilities, problem.test_labels)["ece"])
            label = f"{label}, calibration error {error:.3f}"
            found[label] = diagnostics.reliability(probabilities, problem.test_labels)
    return {"reliability.png": plots.reliability_figure(found)} if found else {}
