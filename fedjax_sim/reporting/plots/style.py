"""What all pictures share: colours, line styles, names of metrics, and plain axes."""

from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
STYLES = ("-", "--", "-.", ":")
FACE, GREY = "#333333", "#888888"
"""Colours of text, and of axes and auxiliary lines."""
LABELS = {
    "accuracy": "test accuracy",
    "loss": "test loss (nats)",
    "client_accuracy": "accuracy on each client's test examples",
    "client_loss": "loss on each client's test examples (nats)",
    "personal_client_accuracy": "accuracy of each client's model on its test examples",
    "personal_client_loss": "loss of each client's model on its test examples (nats)",
    "client_variance": "client variance",
    "objective": "objective F",
    "mean_field": "||h(S)||²",
    "field": "||H||²",
    "memory_error": "mean ||V_i - h_i(S)||²",
    "epochs": "epochs",
    "time": "virtual time",
    "ticks": "server steps",
    "local_steps": "local steps received",
    "uplink_bits": "bits sent to the server",
    "downlink_bits": "bits sent to clients",
}
"""Labels of axes, by name of the metric or coordinate."""
TITLES = {
    "client_variance": (
        "Client variance: squared distances of the clients' (or groups') models to the server's, "
        "summed"
    )
}
"""Titles of pictures whose metric needs more words than its label."""


def dress(axes: Axes) -> None:
    """Show only the left and the bottom axis, in grey."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY, labelcolor=FACE)
