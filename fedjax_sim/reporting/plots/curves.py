"""Draw curves with a band over seeds.

Dimension letters: `L` lanes, `V` evaluations, `G` points of a grid.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_sim.reporting.plots.fairness import clients_figure
from fedjax_sim.reporting.plots.style import COLORS, FACE, LABELS, STYLES, TITLES, dress
from fedjax_sim.reporting.results import (
    client_metrics_of,
    label_of,
    metrics_of,
    settings_of,
)

GRID_POINTS = 101
LOG_SPAN = 100
"""A metric whose largest value exceeds its median by this factor gets a logarithmic axis."""
MOST_NAMES = 8
"""Lines are named at their ends up to this number, and in a legend beyond it."""


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


def metric_figures(curves: Mapping[str, xr.Dataset]) -> dict[str, Figure]:
    """Draw a picture of every metric, by file name.

    Metrics that are one of many, such as the weight of a mixture's component, are left out, and so
    are those with dimensions, except for metrics of clients, of which a histogram is drawn.

    Args:
      curves: The curves of `sweep`, by system.
    """

    def is_entry(metric: str) -> bool:
        return metric.rsplit("_", 1)[-1].isdigit()

    metrics = dict.fromkeys(
        metric for data in curves.values() for metric in metrics_of(data) if not is_entry(metric)
    )
    of_clients = dict.fromkeys(name for data in curves.values() for name in client_metrics_of(data))
    return {f"{metric}.png": curves_figure(curves, metric) for metric in metrics} | {
        f"{metric}.png": clients_figure(curves, metric) for metric in of_clients
    }


def curves_figure(
    curves: Mapping[str, xr.Dataset], metric: str, *, against: str = "time"
) -> Figure:
    """Draw a metric of all systems: the mean over seeds, and a band of one standard deviation.

    Failed lanes are left out. With one system, every swept setting has a colour; with several,
    every system has a colour and every setting a line style.

    Args:
      curves: The curves of `sweep`, by system.
      metric: Name of the metric.
      against: Coordinate on the horizontal axis, such as "time" or "uplink_bits".
    """
    lines = _lines(curves, metric, against)
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    means = np.concatenate([line.mean for line in lines] or [np.ones(1)])
    is_log = (
        bool(means.min() >= 0 and means.max() > LOG_SPAN * np.median(means))
        or metric == "client_variance"
    )
    if is_log:
        axes.set_yscale("log")
    for line in lines:
        mean = np.where(line.mean > 0, line.mean, np.nan) if is_log else line.mean
        low = np.maximum(mean - line.std, mean / 10) if is_log else mean - line.std
        axes.fill_between(
            line.grid, low, mean + line.std, color=line.color, alpha=0.15, linewidth=0
        )
        axes.plot(
            line.grid, mean, color=line.color, linestyle=line.style, linewidth=1.8, label=line.label
        )
    num_seeds = max((data.sizes.get("seed", 1) for data in curves.values()), default=1)
    dress(axes)
    name = LABELS.get(metric, metric.replace("_", " "))
    axes.set(xlabel=LABELS.get(against, against), ylabel=name)
    if lines:
        axes.set_xlim(0, max(line.grid[-1] for line in lines))
    if metric == "accuracy":
        axes.set_ylim(0, 1)
    title = TITLES.get(metric, name[:1].upper() + name[1:])
    spread = f"\nmean and standard deviation over {num_seeds} seeds" if num_seeds > 1 else ""
    axes.set_title(title + spread, loc="left", fontsize=10, color=FACE)
    _name_lines(figure, axes, lines)
    return figure


class _Line(NamedTuple):
    label: str
    grid: np.ndarray  # f64[G]
    mean: np.ndarray  # f64[G]
    std: np.ndarray  # f64[G]
    color: str
    style: str


def _lines(curves: Mapping[str, xr.Dataset], metric: str, against: str) -> list[_Line]:
    """Average every system and setting over its seeds; leave out what is not finite throughout."""
    lines = []
    shown = [(name, data) for name, data in curves.items() if metric in data]
    for i, (name, data) in enumerate(shown):
        for j, (point, lanes) in enumerate(settings_of(data)):
            good = lanes.isel(seed=~lanes["failed"].values)
            if good.sizes["seed"] == 0:
                continue
            values, x = (
                good[key].transpose("seed", "eval").values.astype(float)
                for key in (metric, against)
            )
            grid = np.linspace(0, x[:, -1].max(), GRID_POINTS)
            held = on_grid(x, values, grid)
            held = np.where(np.isfinite(held), held, np.nan)
            color, style = (
                (COLORS[j % 8], "-") if len(shown) == 1 else (COLORS[i % 8], STYLES[j % 4])
            )
            if np.isfinite(held).all():
                mean, std = held.mean(axis=0), held.std(axis=0)
                lines.append(_Line(label_of(name, point), grid, mean, std, color, style))
    return lines


def _name_lines(figure: Figure, axes: Axes, lines: Sequence[_Line]) -> None:
    """Write each line's name at its end, apart from each other; many lines get a legend."""
    if len(lines) > MOST_NAMES:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return
    figure.draw_without_rendering()  # fixes the limits of the axes, on which places depend
    to_share = axes.transData + axes.transAxes.inverted()
    places = np.array([to_share.transform((line.grid[-1], line.mean[-1]))[1] for line in lines])
    order = np.argsort(places)
    spaced = _spread(places[order], gap=0.06)
    for k, place in zip(order, spaced, strict=True):
        line = lines[k]
        end = to_share.transform((line.grid[-1], line.mean[-1]))[0]
        axes.annotate(
            line.label,
            (end, places[k]),
            (1.03, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.color,
            fontsize=10,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.color,
                "linestyle": line.style,
                "linewidth": 0.8,
                "shrinkA": 2,
                "shrinkB": 0,
            },
        )


def _spread(places: np.ndarray, *, gap: float) -> np.ndarray:
    """Push sorted places apart until neighbours have a gap, each pair by equal shares."""
    spaced = places.copy()
    for _ in range(200):
        for k in range(len(spaced) - 1):
            lacking = gap - (spaced[k + 1] - spaced[k])
            if lacking > 1e-9:
                spaced[k] -= lacking / 2
                spaced[k + 1] += lacking / 2
    return spaced
