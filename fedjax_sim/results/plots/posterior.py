"""Draw how calibrated averaged predictions are."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedjax_sim.results.diagnostics.predictions import Reliability
from fedjax_sim.results.plots.style import GREY, look, styled


@styled()
def reliability_figure(found: Mapping[str, Reliability]) -> Figure:
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
        style = look(i, "all", linewidth=1)
        axes.plot(x, y, **look(i, "none", linewidth=1), clip_on=False)
        axes.plot([], [], label=name, **style)
        area = 10 + 400 * examples[is_filled] / examples.sum()
        marks = {name: style[name] for name in ("color", "marker")}
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
