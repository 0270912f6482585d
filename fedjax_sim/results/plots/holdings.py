"""Draw who holds which examples."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.results.plots.style import styled

MOST_NUMBERED = 20


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
