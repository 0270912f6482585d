"""`fedjax-sim plot`: draw the metrics of results folders, and compare several folders."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import xarray as xr

from fedjax_sim.cli import comparison, tables
from fedjax_sim.cli.arguments import read_names
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results import plots, reports
from fedjax_sim.results.summaries import summary


def run(arguments: argparse.Namespace) -> None:
    """Draw the systems of all folders together, and print a table of their final values.

    Args:
      arguments: The parsed words of `plot`.

    Raises:
      ConfigError: For a folder without curves, or an unknown metric.
    """
    axes = read_names("against", arguments.against or "time", reports.AXES)
    curves = read_folders(arguments.folders, trust=arguments.trust)
    drawn = list(dict.fromkeys(name for data in curves.values() for name in plots.drawable(data)))
    metrics = None if arguments.plot is None else read_names("metric", arguments.plot, drawn)
    folder = comparison.find_folder(arguments, "results-plot", resume=False)
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
    names = {path: Path(path).resolve().name for path in paths}
    names = names if len({*names.values()}) == len(paths) else {path: path for path in paths}
    return {
        f"{system} ({names[path]})": data
        for path, found in curves.items()
        for system, data in found.items()
    }


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
