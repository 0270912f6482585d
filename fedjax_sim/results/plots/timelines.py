"""Draw schedules: who computed when, and how stale the work was on arrival."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.core.settings import Count
from fedjax_sim.core.types import Timeline
from fedjax_sim.results.diagnostics.fairness import received
from fedjax_sim.results.plots import style

MOST_CLIENTS_DRAWN = 40
MOST_STALENESS_BARS = 40
LEAST_STALENESS_SHOWN = 6


class Row(NamedTuple):
    """One schedule to draw.

    Attributes:
      label: Its name.
      timeline: The schedule.
      num_clients: N, the number of senders that slots name.
      is_fast: `bool[N]`, which clients are fast; None if speeds are not known, as in a recorded
        trace.
      senders: What the senders are called, such as "clients" or "groups".
    """

    label: str
    timeline: Timeline
    num_clients: Count
    is_fast: np.ndarray | None
    senders: str = "clients"


@style.styled()
def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Draw who computed when, and how stale the work was on arrival.

    On the left, a bar for each piece of work: from the server model that it started from to its
    report, coloured by staleness (dotted if no local step was done). The stretch of time is chosen
    to show the first server steps of all schedules. On the right, a histogram of staleness over the
    whole schedule.

    Args:
      rows: The schedules, drawn one below the other.
    """
    end = _stretch(rows)
    shown = min(MOST_CLIENTS_DRAWN, max(row.num_clients for row in rows))
    figure = Figure(figsize=(13, 0.9 + len(rows) * (1.3 + 0.075 * shown)))
    grid = figure.subplots(len(rows), 2, squeeze=False, gridspec_kw={"width_ratios": [3.4, 1]})
    for row, (left, right) in zip(rows, grid, strict=True):
        _draw_work(figure, left, row, end)
        _draw_staleness(right, row)
    for axes in grid[:-1, 0]:
        axes.tick_params(labelbottom=False)
    grid[-1, 0].set_xlabel(
        "virtual time (units); bars: work, from its start to its report; dotted: no local step done"
    )
    grid[-1, 1].set_xlabel("staleness (server steps)")
    return figure


def _stretch(rows: Sequence[Row]) -> float:
    """Choose where drawing ends: after two ticks of the slowest clock and twelve of the fastest."""
    slow = max(float(row.timeline.time[min(1, len(row.timeline.time) - 1)]) for row in rows)
    fast = min(float(row.timeline.time[min(11, len(row.timeline.time) - 1)]) for row in rows)
    return min(max(slow, fast), max(float(row.timeline.time[-1]) for row in rows))


def _draw_work(figure: Figure, axes: Axes, row: Row, end: float) -> None:
    """Draw a bar for each piece of work that starts before the end."""
    drawn = _drawn_clients(row)
    place = np.full(row.num_clients, -1)
    place[drawn] = np.arange(len(drawn))
    time, updates = np.asarray(row.timeline.time), received(row.timeline)
    y, staleness = place[updates.client], updates.staleness
    start = np.concatenate([[0.0], time])[updates.tick - staleness]
    stop = time[updates.tick]
    inside = (start < end) & (y >= 0)
    worked = inside & (updates.steps > 0)
    norm = Normalize(0, max(float(staleness[worked].max(initial=0)), 1.0))
    colors = matplotlib.colormaps["viridis_r"]
    bars = np.stack([np.stack([start, y], axis=1), np.stack([stop, y], axis=1)], axis=1)
    width = 0.66 * (1.3 + 0.075 * len(drawn)) * 72 / (len(drawn) + 3) * 0.75
    low, high = -0.9, len(drawn) - 0.1
    axes.vlines(time[time <= end], low, high, color="#dddddd", linewidth=0.6, zorder=0)
    shades = colors(norm(staleness[worked]))
    idle = inside & (updates.steps == 0)
    for lines in (
        LineCollection(list(bars[worked]), colors=shades, linewidths=width, capstyle="butt"),
        LineCollection(list(bars[idle]), colors=style.GREY, linewidths=0.7, linestyles=":"),
    ):
        axes.add_collection(lines)
    reports = inside & (stop <= end)
    axes.plot(stop[reports], y[reports], "k|", markersize=width * 1.15, markeredgewidth=0.9)
    axes.set(xlim=(0, end), ylim=(low, high))
    num_steps = f"{len(time)} server step{'s' * (len(time) > 1)}"
    title = f"{row.label}: who computes when, {num_steps} in {time[-1]:g} units of time"
    axes.set_title(title, fontsize=11)
    _name_speeds(axes, row, drawn)
    axes.set_yticks([])
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=axes, pad=0.01, fraction=0.03)
    bar.set_label("staleness (server steps)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar.outline.set_visible(False)


def _drawn_clients(row: Row) -> np.ndarray:
    """Choose the clients to draw, slow ones below fast ones; evenly spaced if there are many."""
    speed = np.zeros(row.num_clients) if row.is_fast is None else row.is_fast.astype(float)
    order = np.argsort(speed, kind="stable")
    num = min(row.num_clients, MOST_CLIENTS_DRAWN)
    return order[np.linspace(0, row.num_clients - 1, num).round().astype(int)]


def _name_speeds(axes: Axes, row: Row, drawn: np.ndarray) -> None:
    """Label the axis with the number of clients drawn, and the slow and the fast among them."""
    shown = f"{len(drawn)} of " if len(drawn) < row.num_clients else ""
    axes.set_ylabel(f"{shown}{row.num_clients} {row.senders}", labelpad=16)
    if row.is_fast is None:
        return
    is_fast = row.is_fast[drawn]
    beside: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    beside |= {"rotation": 90, "ha": "right", "va": "center"}
    for name, mask in (("slow", ~is_fast), ("fast", is_fast)):
        if mask.any():
            axes.annotate(name, (0, np.flatnonzero(mask).mean()), (-8, 0), **beside)
    if is_fast.any() and not is_fast.all():
        axes.axhline((~is_fast).sum() - 0.5, color=style.FACE, linewidth=0.8)


def _draw_staleness(axes: Axes, row: Row) -> None:
    """Draw a histogram of the staleness of all reports, stacked by speed if speeds are known."""
    updates = received(row.timeline)
    client, staleness = updates.client, updates.staleness
    if not len(client):
        axes.set_axis_off()
        axes.set_title("no reports")
        return
    size = max(1, -(-(int(staleness.max()) + 1) // MOST_STALENESS_BARS))
    edges = np.arange(0, staleness.max() + size + 1, size) - 0.5
    kinds = {f"all {row.senders}": np.full(len(client), True)}
    if row.is_fast is not None:
        kinds = {"fast clients": row.is_fast[client], "slow clients": ~row.is_fast[client]}
    drawn: Any = axes.hist(
        [staleness[mask] for mask in kinds.values()],
        bins=list(edges),
        weights=[np.full(mask.sum(), 1 / len(client)) for mask in kinds.values()],
        color=list(style.COLORS[: len(kinds)]),
        label=[f"{name} ({mask.mean():.0%})" for name, mask in kinds.items()],
        stacked=True,
        rwidth=0.9,
        edgecolor="white",
        linewidth=0,
    )[2]
    for bars, hatch in zip(drawn if len(kinds) > 1 else [drawn], style.HATCHES, strict=False):
        for bar in bars:
            bar.set_hatch(hatch)
    axes.set(
        xlim=(-1, max(edges[-1] + 0.5, LEAST_STALENESS_SHOWN)), ylim=(0, 1.3 * axes.get_ylim()[1])
    )
    axes.legend(loc="upper right")
    axes.set_ylabel("share of reports")
    axes.set_title(f"staleness: mean {staleness.mean():.1f}, largest {staleness.max()}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
