"""Pictures, as matplotlib figures in one style.

Pictures draw metrics of each seed or with bands, how calibrated predictions are, who computed when,
who holds which examples, how much each client counts and how good a model is for each.

The style is a style sheet, and looks of lines that survive grey print. Every function that draws
runs within `styled`, as a decorator or as a context. Series number i gets `**look(i)`: a colour, a
dash pattern and a marker, any one of which tells it from the others.

Dimension letters: `L` lanes, `V` evaluations, `G` points of a grid, `N` clients.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedjax_sim.core.settings import ConfigError, Count, Whole
from fedjax_sim.core.types import Timeline
from fedjax_sim.results import diagnostics, summaries
from fedjax_sim.results.reports import ALL_AXES

GRID_POINTS = 1001
LOG_SPAN = 100
"""Ratio of largest value to median from which on a metric gets a logarithmic axis."""
MOST_SEEDS_DRAWN = 40
"""Every seed has a line up to this number of lanes; beyond, bands show their quantiles."""
BAND = (0.1, 0.9)
"""The quantiles."""
BINS = 20
"""Bins of a histogram."""
MOST_NUMBERED = 20
"""Classes that are numbered if they have no names."""
MOST_CLIENTS_DRAWN = 40
MOST_STALENESS_BARS = 40
LEAST_STALENESS_SHOWN = 6
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#808080")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
DASHES: tuple[Any, ...] = (
    *("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1.5))),
    *((0, (10, 2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 4))),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xx", "\\\\\\\\", "++", "oo", "--")
"""Of bars and areas."""
OPEN: dict[str, Any] = {"markerfacecolor": "white", "linewidth": 0.8}
"""Changes of a `look` for a second kind of the same series."""
FACE = "#222222"
"""Colour of text and axes."""
GREY = "#808080"
"""Colour of auxiliary lines."""
SHEET = {
    "axes.edgecolor": FACE,
    "axes.labelcolor": FACE,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "errorbar.capsize": 2.5,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "font.size": 10,
    "hatch.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 3.6,
    "legend.title_fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "text.color": FACE,
}
LABELS = {
    "accuracy": "test accuracy (share of examples)",
    "brier": "Brier score",
    "client_accuracy": "accuracy on each client's test examples",
    "client_loss": "loss on each client's examples (nats)",
    "client_variance": "client variance (squared distance)",
    "downlink_bits": "sent to clients",
    "ece": "expected calibration error",
    "energy": "energy (units of the table of clients)",
    "epochs": "epochs (passes over all examples)",
    "epsilon": "privacy loss ε",
    "field": "squared field ‖H‖²",
    "gradient_square": "squared norm of the gradient",
    "least_eigenvalue": "least eigenvalue of a covariance",
    "least_weight": "least weight of a component",
    "local_steps": "local steps received",
    "loss": "test loss (nats per example)",
    "mean_field": "squared mean field ‖h(S)‖²",
    "memory_error": "squared error of memories, mean ‖V_i - h_i(S)‖²",
    "objective": "objective F (nats per example)",
    "personal_accuracy": "accuracy of personal models (share of examples)",
    "personal_client_accuracy": "accuracy of each client's model on its test examples",
    "personal_client_loss": "loss of each client's model on its test examples (nats)",
    "personal_loss": "loss of personal models (nats per example)",
    "ticks": "server steps (rounds)",
    "time": "virtual time (units)",
    "uplink_bits": "sent to the server",
}
"""Labels of axes with their units, by name of the metric or coordinate."""
TITLES = {
    "client_variance": (
        "Client variance: squared distances of the clients' (or groups')\nmodels to the server's, "
        "summed"
    )
}
"""Titles of pictures, for metrics that need more words than their labels."""


WIDTHS = {"column": 3.3, "text": 6.8}
"""Inches of a column, and of the whole text, of papers in two columns."""


styled = partial(matplotlib.rc_context, SHEET)  # type: ignore[arg-type]
"""Make a context in which everything is drawn in the style of all pictures. It is also a decorator
of a function that draws."""


def look(
    number: Whole,
    marks: Literal["some", "all", "only", "none"] = "some",
    *,
    points: Whole = 0,
    **changes: object,
) -> dict[str, Any]:
    """Choose how series `number` looks: colour, dashes and marker.

    Args:
      number: Which series, from 0.
      marks: Where the marker is put: at "some" places of a curve, at "all" points of a line, at
        points without a line ("only"), or nowhere ("none").
      points: How many points the curve has, which are then marked at regular intervals; otherwise
        the distance along the curve counts, which crowds marks where a curve is noisy.
      **changes: Further keyword arguments of `Axes.plot`, which replace these.

    Returns:
      Keywords for matplotlib's `plot`.
    """
    cycle = number // len(COLORS)
    found: dict[str, Any] = {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[(number + cycle) % len(DASHES)],
        "marker": MARKERS[(number + 3 * cycle) % len(MARKERS)],
    }
    if marks == "some":
        every = max(1, points // 7)
        places = (number % 5 * every // 5, every)
        found["markevery"] = places if points else (0.02 + 0.03 * (number % 5), 0.15)
    elif marks == "only":
        found["linestyle"] = ""
    elif marks == "none":
        del found["marker"]
    return found | changes


def label_of_axis(name: str) -> str:
    """Write the label of a metric or coordinate, with its unit where it is known.

    Args:
      name: The metric's or the coordinate's name in the curves.

    Returns:
      The label: the name in words if nothing else is known.
    """
    return LABELS.get(name, name.replace("_", " "))


def name_beside(figure: Figure, axes: Axes, **options: Any) -> None:
    """Put the legend of `axes` to the right of all panels, where it hides nothing.

    Args:
      figure: The figure; it becomes higher if the legend needs it.
      axes: Has the named lines.
      **options: Of `Figure.legend`.
    """
    handles, labels = options.pop("handles", None), options.pop("labels", None)
    if handles is None:
        handles, labels = axes.get_legend_handles_labels()
    if handles:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, max(height, 0.24 * len(handles) + 0.8))
        figure.legend(handles, labels, loc="outside right upper", **options)


@styled()
def fit_paper(figure: Figure, width: float) -> None:
    """Make a figure as wide as a paper wants it: without titles, its legends below.

    Args:
      figure: The figure.
      width: Inches.
    """
    own_width, height = figure.get_size_inches()
    legends, size = [*figure.legends], 7 if width < own_width / 2 else 8
    for axes in figure.axes:
        axes.set_title("", loc="left")
        axes.set_ylabel(axes.get_ylabel().replace(" (", "\n("))
    figure.suptitle("")
    rows = 0
    for legend in legends:
        handles = [each for each in legend.legend_handles if each is not None]
        labels = [each.get_text() for each in legend.get_texts()]
        columns = max(1, int(width * 72 / (size * (0.6 * max(map(len, labels)) + 5))))
        rows += -(-len(labels) // columns)
        legend.remove()
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    share = min(max(0.62, height / own_width), 1.0)
    figure.set_size_inches(width, share * width + 0.16 * rows)
    for text in figure.findobj(Text):
        text.set_fontsize(size)


def check_axes(curves: Mapping[str, xr.Dataset], axes: Sequence[str]) -> None:
    """Check that curves have the axes against which they are to be drawn.

    Args:
      curves: The curves of `sweep`, by system.
      axes: Names of `fedjax_sim.results.reports.ALL_AXES`.

    Raises:
      ConfigError: If a system lacks one, as those without a table of energies lack energy.
    """
    for axis in axes:
        for name, data in curves.items():
            if ALL_AXES[axis] not in data.variables:
                raise ConfigError("against", axis, f"an axis of all systems, which {name} lacks")


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
    names = [name for name in summaries.metrics_of(data) if {*data[name].dims} <= dims]
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
      against: Names of horizontal axes, of `fedjax_sim.results.reports.ALL_AXES`. File names say
        which, unless it is "time".
    """
    single: dict[str, None] = dict.fromkeys(metrics or ())
    of_clients: dict[str, None] = {}
    for data in curves.values() if metrics is None else ():
        single |= dict.fromkeys(drawable(data))
        of_clients |= dict.fromkeys(summaries.metrics_of(data, "client"))
    pictures = {}
    for metric, axis in itertools.product(single, against):
        name = f"{metric}.png" if axis == "time" else f"{metric}_{axis}.png"
        pictures[name] = curves_figure(curves, metric, against=ALL_AXES[axis])
    return pictures | {f"{metric}.png": clients_figure(curves, metric) for metric in of_clients}


@styled()
def curves_figure(
    curves: Mapping[str, xr.Dataset], metric: str, *, against: str = "time", title: str = ""
) -> Figure:
    """Draw a metric of all systems: the median over seeds, and each seed or a band of quantiles.

    A curve keeps each value until the next evaluation. Failed lanes are left out, which the names
    say, and the title where no lane is left.

    Args:
      curves: The curves of `sweep`, by system.
      metric: Name of the metric.
      against: Coordinate on the horizontal axis, such as "time" or "uplink_bits".
      title: What is shown, above the name of the metric.
    """
    lines, missing = _lines(curves, metric, against)
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
            axes.fill_between(line.grid, low, high, step="post", color=color, alpha=0.15, lw=0)
            axes.plot(line.grid, np.stack([low, high], axis=1), alpha=0.7, **of_seed)
        elif len(line.held) > 1:
            axes.plot(line.grid, line.held.T, alpha=0.4, **of_seed)
        axes.plot(line.grid, line.median, drawstyle="steps-post", label=line.label, **line.look)
    name = label_of_axis(metric)
    axes.set(xlabel=label_of_axis(against), ylabel=name)
    if against.endswith("_bits"):  # Written as 20 Mbit.
        axes.xaxis.set_major_formatter(EngFormatter(unit="bit"))
    if not lines:
        axes.text(0.5, 0.5, "no seed stayed finite", ha="center", transform=axes.transAxes)
    elif (end := max(line.grid[-1] for line in lines)) > 0:
        axes.set_xlim(0, 1.02 * end)
    if "accuracy" in metric:
        axes.set_ylim(0, 1)
    about = TITLES.get(metric, name.partition(" (")[0])
    spread = f"the {BAND[0]:.0%} to {BAND[1]:.0%} band" if has_band else "each seed (thin)"
    num_seeds = max((len(line.held) for line in lines), default=1)
    seeds = f"\nmedian over {num_seeds} seeds, and {spread}" if num_seeds > 1 else ""
    failed = f"\nno seed stayed finite of {', '.join(missing)}" if lines and missing else ""
    whole = (f"{title}\n" if title else "") + about[:1].upper() + about[1:] + seeds + failed
    axes.set_title(whole)
    name_beside(figure, axes)
    return figure


class _Line(NamedTuple):
    label: str
    grid: np.ndarray  # f64[G]
    held: np.ndarray  # f64[L, G]: the values of every seed
    median: np.ndarray  # f64[G]
    look: dict[str, Any]


def _of_seeds(label: str, good: np.ndarray) -> str:
    """Add to a name how many of the seeds are drawn, if some are not."""
    return label if good.all() else f"{label} ({good.sum()} of {len(good)} seeds)"


def _lines(
    curves: Mapping[str, xr.Dataset], metric: str, against: str
) -> tuple[list[_Line], list[str]]:
    """Put the seeds of every system and setting on one grid; leave out those that are not finite.

    Lines are in the order of their ends, the highest first, as are the names next to them. Names
    of which no seed is left come second.
    """
    lines: list[_Line] = []
    missing: list[str] = []
    all_lanes = (point for point in summaries.points_of(curves) if metric in point[1])
    for number, (label, lanes) in enumerate(all_lanes):
        failed = lanes["failed"]
        values, x = (  # What `simulate` returns has coordinates without seeds.
            lanes[key].broadcast_like(failed).transpose("seed", "eval").values.astype(float)
            for key in (metric, against)
        )
        # Means over local steps are nan before the first step, and keep a value if none follows.
        is_nan = np.isnan(values)
        last = np.where(is_nan, is_nan.argmin(axis=1)[:, None], np.arange(values.shape[1]))
        values = np.take_along_axis(values, np.maximum.accumulate(last, axis=1), axis=1)
        good = ~failed.values & np.isfinite(values).all(axis=1)
        if not good.any():
            missing.append(label)
            continue
        values, x = values[good], x[good]
        grid = np.unique(x)
        if len(grid) > GRID_POINTS:
            grid = np.linspace(0, grid[-1], GRID_POINTS)
        held = on_grid(x, values, grid)
        shown = look(number, points=len(grid))
        name = _of_seeds(label, good)
        lines.append(_Line(name, grid, held, np.median(held, axis=0), shown))
    return sorted(lines, key=lambda line: -line.median[-1]), missing


@styled()
def reliability_figure(found: Mapping[str, diagnostics.Reliability]) -> Figure:
    """Draw accuracy against confidence, bin by bin; calibrated predictions lie on the diagonal.

    The size of a mark grows with the bin's share of the examples. Empty bins have no mark.

    Args:
      found: Accuracy and confidence by bin, for each of several predictions by name.
    """
    figure = Figure(figsize=(5.2, 4.8))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", label="calibrated")
    for i, (name, bins) in enumerate(found.items()):
        confidence, accuracy, examples = (np.asarray(leaf) for leaf in bins)
        is_filled = examples > 0
        x, y = confidence[is_filled], accuracy[is_filled]
        shown = look(i, "all", linewidth=1)
        axes.plot(x, y, **look(i, "none", linewidth=1), clip_on=False)
        axes.plot([], [], label=name, **shown)
        area = 10 + 400 * examples[is_filled] / examples.sum()
        marks = {name: shown[name] for name in ("color", "marker")}
        axes.scatter(x, y, area, **marks, alpha=0.7, linewidths=0, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), title="Marks grow with the share of the examples")
    axes.set(xlabel="confidence (mean of a bin)", ylabel="share of predictions that are right")
    axes.legend(loc="upper left")
    return figure


class ClientShares(NamedTuple):
    """Contributions of the clients of one system.

    Attributes:
      share: `f64[N]`, each client's share of all updates received.
      influence: `f64[N]`, each client's influence on the server's model.
    """

    share: np.ndarray
    influence: np.ndarray


@styled()
def influence_figure(systems: Mapping[str, ClientShares]) -> Figure:
    """Draw each client's influence against its share of the updates, which follows its speed.

    On the diagonal, every update counts the same, so influence is proportional to speed. On the
    horizontal line, every client counts the same.

    Args:
      systems: The clients of each system, by name.
    """
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    num = max(len(clients.share) for clients in systems.values())
    largest = max(float(np.nanmax(np.concatenate(clients))) for clients in systems.values())
    most = 1.08 * largest or 1.0  # Nobody may have reported.
    for i, (name, clients) in enumerate(systems.items()):
        marks = look(i, "only", alpha=0.7)
        points = np.stack(clients)
        # Of marks that no reader can tell apart one is drawn, as a million would take seconds.
        places = np.array([1, GRID_POINTS]) @ np.round(points / most * (GRID_POINTS - 1))
        distinct = np.unique(places, return_index=True)[1]
        axes.plot(*points[:, distinct], label=name, **marks, clip_on=False)
    reference: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "zorder": 0}
    axes.plot([0, most], [0, most], label="as much as it sends", linestyle=":", **reference)
    axes.axhline(1 / num, label="every client the same", linestyle="--", **reference)
    axes.set(xlim=(0, most), ylim=(0, most), title="Each mark is a client")
    axes.set_xlabel("share of the updates received")
    axes.set_ylabel("share of the influence on the server's model")
    name_beside(figure, axes)
    return figure


@styled()
def clients_figure(curves: Mapping[str, xr.Dataset], metric: str = "client_accuracy") -> Figure:
    """Draw a histogram of a metric over clients, at the end of the run.

    All lanes that did not fail are counted together; names say how many these are if some did.
    Below the histogram a line leads from each system's worst decile, a triangle, to its mean, a
    dot, both means over seeds.

    Args:
      curves: The curves of `sweep`, by system; systems without the metric are left out.
      metric: A metric with the dimension client, such as "client_loss".

    Returns:
      The figure.
    """
    groups = []
    for label, lanes in (point for point in summaries.points_of(curves) if metric in point[1]):
        is_good = ~lanes["failed"].values
        good = lanes[metric].isel(eval=-1, seed=is_good)
        if good.sizes["seed"]:
            is_less = bool(lanes[metric].attrs.get("less_is_better", 0))
            groups.append((_of_seeds(label, is_good), good.values.astype(float), is_less))
    figure = Figure(figsize=(7, 4.8))
    axes = figure.subplots()
    pooled = [values[np.isfinite(values)] for _, values, _ in groups]
    edges = np.histogram_bin_edges(np.concatenate([*pooled, np.zeros(0)]), bins=BINS)
    highest = 0.0
    for i, ((label, _, _), found) in enumerate(zip(groups, pooled, strict=True)):
        shares, line = np.histogram(found, edges)[0] / max(1, len(found)), look(i, "none")
        axes.stairs(shares, edges, color=line["color"], linestyle=line["linestyle"], label=label)
        highest = max(highest, shares.max())
    for i, (_, values, is_less) in enumerate(groups):
        mean, worst, _ = diagnostics.summarise_clients(values, less_is_better=is_less)
        ends, below = (worst.mean(), mean.mean()), -0.06 * highest * (1 + i)
        axes.plot(ends, (below, below), **look(i, "none"))
        for end, marker in zip(ends, (">" if is_less else "<", "o"), strict=True):
            axes.plot(end, below, marker, color=COLORS[i % len(COLORS)])
    ticks = [tick for tick in axes.get_yticks() if 0 <= tick <= 1.05 * highest]
    axes.set(xlabel=label_of_axis(metric), ylabel="share of clients", yticks=ticks)
    axes.set_title("Below: from each system's worst decile (triangle) to its mean (dot)")
    name_beside(figure, axes)
    return figure


@styled()
def holdings_figure(
    histogram: np.ndarray, *, class_names: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Draw how many examples of each class each client holds.

    The picture has a column for each client and a row for each class; darker means more examples.

    Args:
      histogram: Numbers of examples `[N, classes]`, as `fedjax_sim.partition.label_histogram`
        counts them.
      class_names: Names of the rows, one for each class. By default rows are numbered if there are
        at most 20.
      title: Title of the picture.

    Returns:
      A figure, to be saved by its `savefig`.
    """
    num_classes = histogram.shape[1]
    figure = Figure(figsize=(8, 1.5 + 0.25 * min(num_classes, 40)))
    axes = figure.subplots()
    picture = axes.imshow(histogram.T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    figure.colorbar(picture, label="examples")
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None or num_classes <= MOST_NUMBERED:
        axes.set_yticks(range(num_classes), class_names)
    return figure


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


@styled()
def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Draw who computed when, and how stale the work was on arrival.

    On the left, a bar for each piece of work: from the server model that it started from to its
    report, coloured by staleness (dotted if no local step was done). The stretch of time is chosen
    to show the first server steps of all schedules. On the right, a histogram of staleness over the
    whole schedule.

    Args:
      rows: The schedules, drawn one below the other.
    """
    # Two ticks of the slowest clock and twelve of the fastest.
    slow, fast, last = (
        [float(row.timeline.time[min(place, len(row.timeline.time) - 1)]) for row in rows]
        for place in (1, 11, np.iinfo(int).max)
    )
    end = min(max(max(slow), min(fast)), max(last))
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


def _draw_work(figure: Figure, axes: Axes, row: Row, end: float) -> None:
    """Draw a bar for each piece of work that starts before the end."""
    # Slow clients are below fast ones; of many, evenly spaced ones are drawn.
    speed = np.zeros(row.num_clients) if row.is_fast is None else row.is_fast
    num = min(row.num_clients, MOST_CLIENTS_DRAWN)
    places = np.linspace(0, row.num_clients - 1, num).round().astype(int)
    drawn = np.argsort(speed, kind="stable")[places]
    place = np.full(row.num_clients, -1)
    place[drawn] = np.arange(len(drawn))
    time, updates = np.asarray(row.timeline.time), diagnostics.received(row.timeline)
    y, staleness = place[updates.client], updates.staleness
    start = np.concatenate([[0.0], time])[updates.tick - staleness]
    stop = time[updates.tick]
    inside = (start < end) & (y >= 0)
    worked = inside & (updates.steps > 0)
    norm = Normalize(0, max(float(staleness[worked].max(initial=0)), 1.0))
    colors = matplotlib.colormaps["viridis_r"]
    width = 0.66 * (1.3 + 0.075 * len(drawn)) * 72 / (len(drawn) + 3) * 0.75
    low, high = -0.9, len(drawn) - 0.1
    axes.vlines(time[time <= end], low, high, color="#dddddd", linewidth=0.6, zorder=0)
    shades = colors(norm(staleness[worked]))
    idle = inside & (updates.steps == 0)
    axes.hlines(y[worked], start[worked], stop[worked], shades, linewidths=width, capstyle="butt")
    axes.hlines(y[idle], start[idle], stop[idle], GREY, linewidths=0.7, linestyles=":")
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
        axes.axhline((~is_fast).sum() - 0.5, color=FACE, linewidth=0.8)


def _draw_staleness(axes: Axes, row: Row) -> None:
    """Draw a histogram of the staleness of all reports, stacked by speed if speeds are known."""
    updates = diagnostics.received(row.timeline)
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
    parts = [staleness[mask] for mask in kinds.values()]
    shares = [np.full(mask.sum(), 1 / len(client)) for mask in kinds.values()]
    names = [f"{name} ({mask.mean():.0%})" for name, mask in kinds.items()]
    bars: Any = {"stacked": True, "rwidth": 0.9, "edgecolor": "white", "linewidth": 0}
    bars |= {"color": list(COLORS[: len(kinds)]), "label": names}
    drawn: Any = axes.hist(parts, list(edges), weights=shares, **bars)[2]
    for part, hatch in zip(drawn if len(kinds) > 1 else [drawn], HATCHES, strict=False):
        for bar in part:
            bar.set_hatch(hatch)
    axes.set_xlim(-1, max(edges[-1] + 0.5, LEAST_STALENESS_SHOWN))
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.legend(loc="upper right")
    axes.set_ylabel("share of reports")
    axes.set_title(f"staleness: mean {staleness.mean():.1f}, largest {staleness.max()}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


Numbers = npt.NDArray[np.float64]
MOST_LINES = 8
"""Clients in the picture."""


@styled()
def probability_figure(plots: Mapping[str, Numbers], compared: Mapping[str, Numbers]) -> Figure:
    """Draw a probability plot of each client, and measured times over simulated ones.

    Args:
      plots: By client, `f64[2+, ...]`: probabilities of its times by the law, and measured ones.
        Of many clients, some are drawn, evenly spaced.
      compared: `time`; the share of work that took at most that time, `measured`; and `low` and
        `high`, the band of simulated shares.
    """
    figure = Figure(figsize=(9.6, 4.4))
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    names = list(plots)
    for i, place in enumerate(np.unique(np.linspace(0, len(names) - 1, MOST_LINES).astype(int))):
        fitted, measured = plots[names[place]][:2]
        own = look(i, points=len(fitted), linewidth=1)
        left.plot(fitted, measured, **own, label=names[place])
    left.set(xlim=(0, 1), ylim=(0, 1), title="Clients on the diagonal have the law")
    left.set(xlabel="probability by the fitted law", ylabel="measured probability")
    left.legend(loc="upper left")
    time, low, high = (compared[name] for name in ("time", "low", "high"))
    simulated = "simulated (95 % of logs)"
    right.fill_between(time, low, high, color=GREY, alpha=0.4, linewidth=0, label=simulated)
    right.plot(time, compared["measured"], color=FACE, label="measured")
    right.set(xscale="log", ylim=(0, 1), title="All clients")
    right.set_xlabel("time of an update without its messages")
    right.set_ylabel("share of updates that took at most this")
    right.legend(loc="upper left")
    return figure
