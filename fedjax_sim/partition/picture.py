"""A picture of a partition. Matplotlib is imported when a picture is drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_sim.partition.parts import Partition, label_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_histogram(
    partition: Partition,
    labels: np.ndarray,
    num_classes: int,
    *,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> "Figure":
    """Draw how many examples of each class each client holds.

    The picture has a column for each client and a row for each class; darker means more examples.

    Args:
      partition: The clients' examples.
      labels: Class of each training example, integers `[n]`.
      num_classes: Number of classes, above the largest label.
      class_names: Names of the rows, one for each class. By default rows are numbered if there are
        at most 20.
      title: Title of the picture.

    Returns:
      A figure, to be saved by its `savefig`.

    Raises:
      ConfigError: If a label is not below `num_classes`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 1.5 + 0.25 * min(num_classes, 40)), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(
        label_histogram(partition, labels, num_classes).T,
        aspect="auto",
        cmap="Blues",
        interpolation="nearest",
        vmin=0,
    )
    figure.colorbar(picture, label="examples")
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None:
        axes.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        axes.set_yticks(range(num_classes))
    return figure
