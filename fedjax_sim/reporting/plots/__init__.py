"""Pictures: curves with a band over seeds, and who computed when."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.reporting.results import label, settings_of
from fedjax_sim.types import EMPTY, Timeline

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
STYLES = ("-", "--", "-.", ":")
LABELS = {
    "accuracy": "test accuracy",
    "loss": "test loss (nats)",
    "client_variance": "client variance",
    "objective": "objective F",
    "mean_field": "||h(S)||²",
    "field": "||H||²",
    "memory_error": "mean ||V_i - h_i(S)||²",
    "epochs": "epochs",
    "time": "virtual time",
    "ticks": "server steps",
    "local_steps": "local steps received",
    "uplink_bits": "bits sent to the server",
    "downlink_bits": "bits sent to clients",
}
TITLES = {
    "client_variance": "Client variance: squared distances of the clients' (or groups') models to the server's, summed"
}
GRID_POINTS = 101
SPAN_OF_LOG = 100
"""A metric whose largest value is so many times its median gets a logarithmic axis."""
MOST_CLIENTS_DRAWN = 40
MOST_STALENESS_BARS = 40
LEAST_STALENESS_SHOWN = 6
FACE, GREY = "#333333", "#888888"


def on_grid(x: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Put lanes' curves on a common grid: at each point the last value evaluated so far. x, values: `[L, V]`. Returns `[L, G]`."""
    places = [np.maximum(np.searchsorted(own, grid, side="right") - 1, 0) for own in x]
    return np.stack([value[place] for value, place in zip(values, places, strict=True)])


def curves_figure(
    curves: Mapping[str, xr.Dataset], metric: str, *, against: str = "time"
) -> Figure:
    """Draw a metric of all systems: mean over seeds, and a band of one standard deviation around it; failed lanes are left out."""
    lines = _lines(curves, metric, against)
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    means = np.concatenate([line.mean for line in lines] or [np.ones(1)])
    is_log = (
        bool(means.min() >= 0 and means.max() > SPAN_OF_LOG * np.median(means))
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
    grid: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    color: str
    style: str


def _lines(curves: Mapping[str, xr.Dataset], metric: str, against: str) -> list[_Line]:
    lines = []
    shown = [(name, data) for name, data in curves.items() if metric in data]
    for i, (name, data) in enumerate(shown):
        points = list(settings_of(data))
        for j, (point, lanes) in enumerate(points):
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
            # One system: a colour per setting; several: a colour each, and a line style per setting.
            color, style = (
                (COLORS[j % 8], "-") if len(shown) == 1 else (COLORS[i % 8], STYLES[j % 4])
            )
            text = label(name, point)
            if np.isfinite(held).all():
                lines.append(_Line(text, grid, held.mean(axis=0), held.std(axis=0), color, style))
    return lines


def _name_lines(figure: Figure, axes: Axes, lines: Sequence[_Line]) -> None:
    """Write each line's name at its end, apart from each other; a legend if there are many."""
    if len(lines) > 8:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return
    figure.draw_without_rendering()  # fixes the limits, which places depend on
    to_share = axes.transData + axes.transAxes.inverted()
    places = np.array([to_share.transform((line.grid[-1], line.mean[-1]))[1] for line in lines])
    gap = 0.06
    order = np.argsort(places)
    spaced = places[order].copy()
    for _ in range(200):
        for k in range(len(spaced) - 1):
            lacking = gap - (spaced[k + 1] - spaced[k])
            if lacking > 1e-9:
                spaced[k] -= lacking / 2
                spaced[k + 1] += lacking / 2
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


class Row(NamedTuple):
    """One schedule to be drawn. N clients."""

    label: str
    timeline: Timeline
    num_clients: int
    is_fast: np.ndarray | None  # bool[N]; None where speeds are not known, as in a recorded trace
    senders: str = "clients"


def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Draw who computed when, and how stale the work was on arrival.

    Left, a bar for each piece of work, from the server model it started from to its report, coloured by staleness (hollow: no local
    step was done), over a stretch of time that shows the first server steps of all; right, staleness over the whole schedule.
    """
    end = _stretch(rows)
    shown = min(MOST_CLIENTS_DRAWN, max(row.num_clients for row in rows))
    figure = Figure(figsize=(13, 0.9 + len(rows) * (1.3 + 0.075 * shown)), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False, gridspec_kw={"width_ratios": [3.4, 1]})
    for row, (left, right) in zip(rows, grid, strict=True):
        _draw_work(figure, left, row, end)
        _draw_staleness(right, row)
    for axes in grid[:-1, 0]:
        axes.tick_params(labelbottom=False)
    grid[-1, 0].set_xlabel(
        "virtual time (bars: work, from its start to its report; dotted: no local step done)"
    )
    grid[-1, 1].set_xlabel("staleness (server steps)")
    return figure


def _stretch(rows: Sequence[Row]) -> float:
    """The end of the stretch of time to draw: two ticks of the slowest clock, at least twelve of the fastest."""
    slow = max(float(row.timeline.time[min(1, len(row.timeline.time) - 1)]) for row in rows)
    fast = min(float(row.timeline.time[min(11, len(row.timeline.time) - 1)]) for row in rows)
    return min(max(slow, fast), max(float(row.timeline.time[-1]) for row in rows))


def _draw_work(figure: Figure, axes: Axes, row: Row, end: float) -> None:
    drawn = _drawn_clients(row)
    place = np.full(row.num_clients, -1)
    place[drawn] = np.arange(len(drawn))
    versions = np.concatenate([[0.0], row.timeline.time])
    tick, slot = np.nonzero(row.timeline.clients != EMPTY)
    client, steps, version = (
        np.asarray(leaf)[tick, slot]
        for leaf in (row.timeline.clients, row.timeline.steps, row.timeline.version)
    )
    start, stop = versions[version], row.timeline.time[tick]
    inside = (start < end) & (place[client] >= 0)
    y, staleness = place[client], tick - version
    worked = inside & (steps > 0)
    norm = Normalize(0, max(float(staleness[worked].max(initial=0)), 1.0))
    colors = matplotlib.colormaps["viridis_r"]
    bars = np.stack([np.stack([start, y], axis=1), np.stack([stop, y], axis=1)], axis=1)
    width = 0.66 * (1.3 + 0.075 * len(drawn)) * 72 / (len(drawn) + 3) * 0.75
    axes.vlines(
        row.timeline.time[row.timeline.time <= end],
        -0.9,
        len(drawn) - 0.1,
        color="#dddddd",
        linewidth=0.6,
        zorder=0,
    )
    axes.add_collection(
        LineCollection(
            list(bars[worked]),
            colors=colors(norm(staleness[worked])),
            linewidths=width,
            capstyle="butt",
        )
    )
    idle = inside & (steps == 0)
    axes.add_collection(
        LineCollection(list(bars[idle]), colors=GREY, linewidths=0.7, linestyles=":")
    )
    reports = inside & (stop <= end)
    axes.plot(
        stop[reports],
        y[reports],
        linestyle="",
        marker="|",
        markersize=width * 1.15,
        color="black",
        markeredgewidth=0.9,
    )
    axes.set(xlim=(0, end), ylim=(-0.9, len(drawn) - 0.1))
    axes.set_title(
        f"{row.label}: who computes when, {len(row.timeline.time)} server steps in {row.timeline.time[-1]:g}",
        loc="left",
        fontsize=11,
    )
    _name_speeds(axes, row, drawn)
    dress(axes)
    axes.set_yticks([])
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=axes, pad=0.01, fraction=0.03)
    bar.set_label("staleness", fontsize=8, color=FACE)
    bar.ax.tick_params(labelsize=8)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar.outline.set_visible(False)


def _drawn_clients(row: Row) -> np.ndarray:
    """Clients to draw, from below: the slow, then the fast; an even choice if there are many."""
    speed = np.zeros(row.num_clients) if row.is_fast is None else row.is_fast.astype(float)
    order = np.argsort(speed, kind="stable")
    picked = (
        np.linspace(0, row.num_clients - 1, min(row.num_clients, MOST_CLIENTS_DRAWN))
        .round()
        .astype(int)
    )
    return order[picked]


def _name_speeds(axes: Axes, row: Row, drawn: np.ndarray) -> None:
    more = (
        f"{len(drawn)} of {row.num_clients}"
        if len(drawn) < row.num_clients
        else f"{row.num_clients}"
    )
    more = f"{more} {row.senders}"
    axes.set_ylabel(more, labelpad=16, color=FACE)
    if row.is_fast is None:
        return
    num_slow = int((~row.is_fast[drawn]).sum())
    middles = {
        "slow": (num_slow - 1) / 2 if num_slow else None,
        "fast": (num_slow + len(drawn) - 1) / 2 if num_slow < len(drawn) else None,
    }
    for name, middle in middles.items():
        if middle is not None:
            axes.annotate(
                name,
                (0, middle),
                (-8, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="center",
            )
    if 0 < num_slow < len(drawn):
        axes.axhline(num_slow - 0.5, color=FACE, linewidth=0.8)


def _draw_staleness(axes: Axes, row: Row) -> None:
    tick, slot = np.nonzero(row.timeline.clients != EMPTY)
    client = np.asarray(row.timeline.clients)[tick, slot]
    staleness = tick - np.asarray(row.timeline.version)[tick, slot]
    size = max(1, -(-(int(staleness.max(initial=0)) + 1) // MOST_STALENESS_BARS))
    edges = np.arange(0, staleness.max(initial=0) + size + 1, size) - 0.5
    kinds: list[tuple[str, Any, str]] = [
        (f"all {row.senders}", np.full(len(client), True), COLORS[0])
    ]
    if row.is_fast is not None:
        kinds = [
            ("fast clients", row.is_fast[client], COLORS[0]),
            ("slow clients", ~row.is_fast[client], COLORS[1]),
        ]
    axes.hist(
        [staleness[mask] for _, mask, _ in kinds],
        bins=list(edges),
        weights=[np.full(mask.sum(), 1 / len(client)) for _, mask, _ in kinds],
        color=[color for *_, color in kinds],
        label=[f"{name} ({mask.mean():.0%})" for name, mask, _ in kinds],
        stacked=True,
        rwidth=0.9,
    )
    axes.set(
        xlim=(-1, max(edges[-1] + 0.5, LEAST_STALENESS_SHOWN)), ylim=(0, 1.3 * axes.get_ylim()[1])
    )
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylabel("share of reports", color=FACE)
    axes.set_title(
        f"staleness: mean {staleness.mean():.1f}, largest {staleness.max()}",
        loc="left",
        fontsize=10,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes)


def dress(axes: Axes) -> None:
    """Leave only the left and the bottom axis, in grey."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY, labelcolor=FACE)
