"""Draw how calibrated averaged predictions are."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedjax_sim.diagnostics.predictions import Reliability
from fedjax_sim.reporting.plots.style import COLORS, FACE, GREY, dress


def reliability_figure(found: Mapping[str, Reliability]) -> Figure:
    """Draw accuracy against confidence, bin by bin; calibrated predictions lie on the diagonal.

    The size of a mark grows with the bin's share of the examples. Empty bins have no mark.

    Args:
      found: Accuracy and confidence by bin, for each of several predictions by name.
    """
    figure = Figure(figsize=(5.2, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    for i, (name, bins) in enumerate(found.items()):
        confidence, accuracy, examples = (np.asarray(leaf) for leaf in bins)
        is_filled = examples > 0
        color = COLORS[i % len(COLORS)]
        axes.plot(confidence[is_filled], accuracy[is_filled], color=color, linewidth=1, label=name)
        axes.scatter(
            confidence[is_filled],
            accuracy[is_filled],
            s=10 + 150 * examples[is_filled] / examples.sum(),
            color=color,
            alpha=0.7,
            linewidths=0,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("confidence", color=FACE)
    axes.set_ylabel("share that is right", color=FACE)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    dress(axes)
    return figure
