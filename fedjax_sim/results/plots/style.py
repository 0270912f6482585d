"""The one style of all pictures: a style sheet, and looks of lines that survive grey print.

Every function that draws runs within `styled`, as a decorator or as a context. Series number i gets
`**look(i)`: a colour, a dash pattern and a marker, any one of which tells it from the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from fedjax_sim.core.settings import Whole

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


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of all pictures; also a decorator of a function that draws."""
    with matplotlib.rc_context(SHEET):  # type: ignore[arg-type]
        yield


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
    """Write the label of a metric or coordinate, with its unit where it is known."""
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
