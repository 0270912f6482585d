"""Draw curves of every seed, or with a band over seeds, and the calibration of predictions.

Dimension letters: `L` lanes, `V` evaluations, `G` points of a grid.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fedjax_sim.results.diagnostics import posterior
from fedjax_sim.results.plots import clients, style
from fedjax_sim.results.reports import AXES
from fedjax_sim.results.summaries import label_of, metrics_of, settings_of

GRID_POINTS = 1001
LOG_SPAN = 100
"""Ratio of largest value to median from which on a metric gets a logarithmic axis."""
MOST_SEEDS_DRAWN = 40
"""Every seed has a line up to this number of lanes; beyond, bands show their quantiles."""
BAND = (0.1, 0.9)
"""The quantiles."""


def on_grid(x: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Put the curves of several lanes on a shared grid, holding the last value evaluated so far.

    Args:
      x: `f[L, V]`, where each lane was evaluated, such as virtual times; non-decreasing.
      values: `f[L, V]`, what was found there.
      grid: `f[G]`, points at which the curves are wanted.

    Returns:
      `f[L, G]`. Points before the first evaluation get its value.
    """
    places = [np.maximum(np.searchsorted(lane, grid, side="right") - 1, 0) for lane in x]
    return np.stack([value[place] for value, place in zip(values, places, strict=True)])


def drawable(data: xr.Dataset) -> list[str]:
    """List the metrics of a system of which curves are drawn.

    Metrics that are one of many are left out: the weight of a mixture's component, the accuracy on
    a class, and those with a value for each client.

    Args:
      data: The curves of `sweep`.
    """
    dims = {*data["failed"].dims, "eval"}
    names = [name for name in metrics_of(data) if {*data[name].dims} <= dims]
    return [name for name in names if not name.rsplit("_", 1)[-1].isdigit()]


def metric_figures(
    curves: Mapping[str, xr.Dataset],
    metrics: Sequence[str] | None = None,
    against: Sequence[str] = ("time",),
) -> dict[str, Figure]:
    """Draw a picture of each metric, by file name; metrics of single clients as histograms.

    Args:
      curves: The curves of `sweep`, by system.
      metrics: What to draw; every `drawable` metric if None.
      against: Names of horizontal axes, of `fedjax_sim.results.reports.AXES`. File names say
        which, unless it is "time".
    """
    names = dict.fromkeys(name for data in curves.values() for name in drawable(data))
    of_clients = dict.fromkeys(
        name for data in curves.values() for name in metrics_of(data, "client")
    )
    pictures = {
        f"{metric}.png" if axis == "time" else f"{metric}_{axis}.png": curves_figure(
            curves, metric, against=AXES[axis]
        )
        for metric in (names if metrics is None else metrics)
        for axis in against
    }
    return pictures | {
        f"{metric}.png": clients.clients_figure(curves, metric)
        for metric in (of_clients if metrics is None else ())
    }


@style.styled()
def curves_figure(
    curves: Mapping[str, xr.Dataset],
    metric: str,
    *,
    against: str = "time",
    title: str = "",
    label: str | None = None,
) -> Figure:
    """Draw a metric of all systems: the median over seeds, and each seed or a band of quantiles.

    A curve keeps each value until the next evaluation. Failed lanes are left out.

    Args:
      curves: The curves of `sweep`, by system.
      metric: Name of the metric.
      against: Coordinate on the horizontal axis, such as "time" or "uplink_bits".
      title: What is shown, above the name of the metric.
      label: What the metric is called, with its unit in brackets; by default a known name.
    """
    lines = _lines(curves, metric, against)
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    medians = np.concatenate([line.median for line in lines] or [np.ones(1)])
    if metric == "client_variance" or (
        medians.min() >= 0 and medians.max() > LOG_SPAN * np.median(medians)
    ):
        axes.set_yscale("log", nonpositive="mask")
    has_band = sum(len(line.held) for line in lines) > MOST_SEEDS_DRAWN
    for line in lines:
        color = line.look["color"]
        of_seed: dict[str, Any] = {"color": color, "linewidth": 0.7, "drawstyle": "steps-post"}
        if has_band and len(line.held) > 1:
            low, high = np.quantile(line.held, BAND, axis=0)
            look_of_band: dict[str, Any] = {"color": color, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(line.grid, low, high, step="post", **look_of_band)
            axes.plot(line.grid, np.stack([low, high], axis=1), alpha=0.7, **of_seed)
        elif len(line.held) > 1:
            axes.plot(line.grid, line.held.T, alpha=0.4, **of_seed)
        axes.plot(line.grid, line.median, drawstyle="steps-post", label=line.label, **line.look)
    name = label or style.label_of_axis(metric)
    axes.set(xlabel=style.label_of_axis(against), ylabel=name)
    style.count_bits(axes, against)
    if not lines:
        axes.text(0.5, 0.5, "no seed stayed finite", ha="center", transform=axes.transAxes)
    elif (end := max(line.grid[-1] for line in lines)) > 0:
        axes.set_xlim(0, 1.02 * end)
    if "accuracy" in metric:
        axes.set_ylim(0, 1)
    about = style.TITLES.get(metric, name.partition(" (")[0])
    spread = f"the {BAND[0]:.0%} to {BAND[1]:.0%} band" if has_band else "each seed (thin)"
    num_seeds = max((len(line.held) for line in lines), default=1)
    seeds = f"\nmedian over {num_seeds} seeds, and {spread}" if num_seeds > 1 else ""
    axes.set_title((f"{title}\n" if title else "") + about[:1].upper() + about[1:] + seeds)
    style.name_beside(figure, axes)
    return figure


class _Line(NamedTuple):
    label: str
    grid: np.ndarray  # f64[G]
    held: np.ndarray  # f64[L, G]: the values of every seed
    median: np.ndarray  # f64[G]
    look: dict[str, Any]


def _lines(curves: Mapping[str, xr.Dataset], metric: str, against: str) -> list[_Line]:
    """Put the seeds of every system and setting on one grid; leave out those that are not finite.

    Lines are in the order of their ends, the highest first, as are the names next to them.
    """
    lines: list[_Line] = []
    all_lanes = [
        (label_of(name, point), lanes)
        for name, data in curves.items()
        for point, lanes in (settings_of(data) if metric in data else ())
    ]
    for number, (label, lanes) in enumerate(all_lanes):
        failed = lanes["failed"]
        values, x = (  # What `simulate` returns has coordinates without seeds.
            lanes[key].broadcast_like(failed).transpose("seed", "eval").values.astype(float)
            for key in (metric, against)
        )
        good = ~failed.values & np.isfinite(values).all(axis=1)
        if not good.any():
            continue
        values, x = values[good], x[good]
        grid = np.unique(x)
        if len(grid) > GRID_POINTS:
            grid = np.linspace(0, grid[-1], GRID_POINTS)
        held = on_grid(x, values, grid)
        shown = style.look(number, points=len(grid))
        lines.append(_Line(label, grid, held, np.median(held, axis=0), shown))
    return sorted(lines, key=lambda line: -line.median[-1])


@style.styled()
def reliability_figure(found: Mapping[str, posterior.Reliability]) -> Figure:
    """Draw accuracy against confidence, bin by bin; calibrated predictions lie on the diagonal.

    The size of a mark grows with the bin's share of the examples. Empty bins have no mark.

    Args:
      found: Accuracy and confidence by bin, for each of several predictions by name.
    """
    figure = Figure(figsize=(5.2, 4.8))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8, linestyle=":", label="calibrated")
    for i, (name, bins) in enumerate(found.items()):
        confidence, accuracy, examples = (np.asarray(leaf) for leaf in bins)
        is_filled = examples > 0
        x, y = confidence[is_filled], accuracy[is_filled]
        shown = style.look(i, "all", linewidth=1)
        axes.plot(x, y, **style.look(i, "none", linewidth=1), clip_on=False)
        axes.plot([], [], label=name, **shown)
        area = 10 + 400 * examples[is_filled] / examples.sum()
        marks = {name: shown[name] for name in ("color", "marker")}
        axes.scatter(x, y, area, **marks, alpha=0.7, linewidths=0, clip_on=False)
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="confidence (mean of a bin)",
        ylabel="share of predictions that are right",
        title="Marks grow with the share of the examples",
    )
    axes.legend(loc="upper left")
    return figure
