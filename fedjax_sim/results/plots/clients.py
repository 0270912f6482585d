"""Draw clients: their examples, their influence, and how good a model is for each.

Dimension letters: `N` clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.results.diagnostics.fairness import summarise_clients
from fedjax_sim.results.plots import style
from fedjax_sim.results.summaries import label_of, settings_of


class ClientShares(NamedTuple):
    """Contributions of the clients of one system.

    Attributes:
      share: `f64[N]`, each client's share of all updates received.
      influence: `f64[N]`, each client's influence on the server's model.
    """

    share: np.ndarray
    influence: np.ndarray


@style.styled()
def influence_figure(systems: Mapping[str, ClientShares]) -> Figure:
    """Draw each client's influence against its share of the updates, which follows its speed.

    On the diagonal, every update counts the same, so influence is proportional to speed. On the
    horizontal line, every client counts the same.

    Args:
      systems: The clients of each system, by name.
    """
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    for i, (name, clients) in enumerate(systems.items()):
        marks = style.look(i, "only", alpha=0.7)
        axes.plot(clients.share, clients.influence, label=name, **marks, clip_on=False)
    num = max(len(clients.share) for clients in systems.values())
    largest = max(float(np.nanmax(np.concatenate(clients))) for clients in systems.values())
    most = 1.08 * largest or 1.0  # Nobody may have reported.
    reference: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "zorder": 0}
    axes.plot([0, most], [0, most], label="as much as it sends", linestyle=":", **reference)
    axes.axhline(1 / num, label="every client the same", linestyle="--", **reference)
    axes.set(
        xlim=(0, most),
        ylim=(0, most),
        xlabel="share of the updates received",
        ylabel="share of the influence on the server's model",
        title="Each mark is a client",
    )
    style.name_beside(figure, axes)
    return figure


BINS = 20
"""Bins of a histogram."""


@style.styled()
def clients_figure(curves: Mapping[str, xr.Dataset], metric: str = "client_accuracy") -> Figure:
    """Draw a histogram of a metric over clients, at the end of the run.

    All lanes that did not fail are counted together. Below the histogram a line leads from each
    system's worst decile, a triangle, to its mean, a dot, both means over seeds.

    Args:
      curves: The curves of `sweep`, by system; systems without the metric are left out.
      metric: A metric with the dimension client, such as "client_loss".

    Returns:
      The figure.
    """
    groups = []
    for name, data in curves.items():
        for point, lanes in settings_of(data) if metric in data else ():
            good = lanes[metric].isel(eval=-1, seed=~lanes["failed"].values)
            if good.sizes["seed"]:
                is_less = bool(lanes[metric].attrs.get("less_is_better", 0))
                groups.append((label_of(name, point), good.values.astype(float), is_less))
    figure = Figure(figsize=(7, 4.8))
    axes = figure.subplots()
    pooled = [values[np.isfinite(values)] for _, values, _ in groups]
    edges = np.histogram_bin_edges(np.concatenate([*pooled, np.zeros(0)]), bins=BINS)
    highest = 0.0
    for i, ((label, _, _), found) in enumerate(zip(groups, pooled, strict=True)):
        shares, line = np.histogram(found, edges)[0] / max(1, len(found)), style.look(i, "none")
        axes.stairs(shares, edges, color=line["color"], linestyle=line["linestyle"], label=label)
        highest = max(highest, shares.max())
    for i, (_, values, is_less) in enumerate(groups):
        mean, worst, _ = summarise_clients(values, less_is_better=is_less)
        ends, below = (worst.mean(), mean.mean()), -0.06 * highest * (1 + i)
        axes.plot(ends, (below, below), **style.look(i, "none"))
        for end, marker in zip(ends, (">" if is_less else "<", "o"), strict=True):
            axes.plot(end, below, marker, color=style.COLORS[i % len(style.COLORS)])
    axes.set(
        xlabel=style.label_of_axis(metric),
        ylabel="share of clients",
        title="Below: from each system's worst decile (triangle) to its mean (dot)",
        yticks=[tick for tick in axes.get_yticks() if 0 <= tick <= 1.05 * highest],
    )
    style.name_beside(figure, axes)
    return figure


MOST_NUMBERED = 20


@style.styled()
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
