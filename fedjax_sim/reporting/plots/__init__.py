"""Pictures, as matplotlib figures in one style.

`curves` draws metrics of each seed or with bands, `timelines` who computed when, `fairness` how
much each client counts and how good a model is for each, `posterior` how calibrated predictions
are, `holdings` who holds which examples. `style` has what they share: `styled` and `look` are for
further pictures.
"""

from fedjax_sim.reporting.plots.curves import curves_figure, drawable, metric_figures, on_grid
from fedjax_sim.reporting.plots.fairness import ClientShares, clients_figure, influence_figure
from fedjax_sim.reporting.plots.holdings import holdings_figure
from fedjax_sim.reporting.plots.posterior import reliability_figure
from fedjax_sim.reporting.plots.style import (
    COLORS,
    FACE,
    GREY,
    HATCHES,
    LABELS,
    OPEN,
    look,
    name_beside,
    styled,
)
from fedjax_sim.reporting.plots.timelines import Row, timeline_figure

__all__ = [
    "COLORS",
    "FACE",
    "GREY",
    "HATCHES",
    "LABELS",
    "OPEN",
    "ClientShares",
    "Row",
    "clients_figure",
    "curves_figure",
    "drawable",
    "holdings_figure",
    "influence_figure",
    "look",
    "metric_figures",
    "name_beside",
    "on_grid",
    "reliability_figure",
    "styled",
    "timeline_figure",
]
