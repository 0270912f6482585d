"""Pictures, as matplotlib figures.

`curves` draws metrics with a band over seeds, `timelines` who computed when, `fairness` how much
each client counts and how good a model is for each, `posterior` how calibrated predictions are.
`style` has what they share.
"""

from fedjax_sim.reporting.plots.curves import curves_figure, metric_figures, on_grid
from fedjax_sim.reporting.plots.fairness import ClientShares, clients_figure, influence_figure
from fedjax_sim.reporting.plots.posterior import reliability_figure
from fedjax_sim.reporting.plots.style import COLORS, FACE, GREY, LABELS, STYLES, dress
from fedjax_sim.reporting.plots.timelines import Row, timeline_figure

__all__ = [
    "COLORS",
    "FACE",
    "GREY",
    "LABELS",
    "STYLES",
    "ClientShares",
    "Row",
    "clients_figure",
    "curves_figure",
    "dress",
    "influence_figure",
    "metric_figures",
    "on_grid",
    "reliability_figure",
    "timeline_figure",
]
