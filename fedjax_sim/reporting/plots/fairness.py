"""Draw how much each client counts.

Dimension letters: `N` clients.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedjax_sim.reporting.plots.style import COLORS, FACE, GREY, dress


class ClientShares(NamedTuple):
    """What each client of one system contributes.

    Attributes:
      share: `f64[N]`, each client's share of all updates received.
      influence: `f64[N]`, each client's influence on the server's model.
    """

    share: np.ndarray
    influence: np.ndarray


def influence_figure(systems: Mapping[str, ClientShares]) -> Figure:
    """Draw each client's influence against its share of the updates, which follows its speed.

    On the diagonal, every update counts the same, so influence is proportional to speed. On the
    horizontal line, every client counts the same.

    Args:
      systems: The clients of each system, by name.
    """
    figure = Figure(figsize=(7, 4.8), layout="constrained")
    axes = figure.subplots()
    for i, (name, clients) in enumerate(systems.items()):
        axes.plot(
            clients.share,
            clients.influence,
            linestyle="",
            marker="o",
            markersize=5,
            alpha=0.7,
            color=COLORS[i % len(COLORS)],
            label=name,
        )
    num = max(len(clients.share) for clients in systems.values())
    most = 1.08 * max(float(np.nanmax(np.concatenate(clients))) for clients in systems.values())
    axes.plot([0, most], [0, most], color=GREY, linewidth=0.8, linestyle=":")
    axes.axhline(1 / num, color=GREY, linewidth=0.8)
    axes.annotate(
        "equal",
        (most, 1 / num),
        (-2, 3),
        textcoords="offset points",
        ha="right",
        color=FACE,
        fontsize=9,
    )
    axes.annotate(
        "as fast, as loud",
        (most, most),
        (-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        color=FACE,
        fontsize=9,
    )
    axes.set(xlim=(0, most), ylim=(0, most))
    axes.set_xlabel("share of the updates received", color=FACE)
    axes.set_ylabel("influence on the server's model", color=FACE)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    dress(axes)
    return figure
