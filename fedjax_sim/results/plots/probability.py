"""The picture of a fitted delay law: its probabilities, and its times, against measured ones."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from fedjax_sim.results.plots import style

Numbers = npt.NDArray[np.float64]
MOST_LINES = 8
"""Clients in the picture."""


@style.styled()
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
    left.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8, linestyle=":")
    names = list(plots)
    for i, place in enumerate(np.unique(np.linspace(0, len(names) - 1, MOST_LINES).astype(int))):
        fitted, measured = plots[names[place]][:2]
        look = style.look(i, points=len(fitted), linewidth=1)
        left.plot(fitted, measured, **look, label=names[place])
    left.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="probability by the fitted law",
        ylabel="measured probability",
        title="Clients on the diagonal have the law",
    )
    left.legend(loc="upper left")
    time = compared["time"]
    right.fill_between(
        time,
        compared["low"],
        compared["high"],
        color=style.GREY,
        alpha=0.4,
        linewidth=0,
        label="simulated (95 % of logs)",
    )
    right.plot(time, compared["measured"], color=style.FACE, label="measured")
    right.set(
        xscale="log",
        ylim=(0, 1),
        xlabel="time of an update without its messages",
        ylabel="share of updates that took at most this",
        title="All clients",
    )
    right.legend(loc="upper left")
    return figure
