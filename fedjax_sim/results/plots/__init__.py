"""Pictures, as matplotlib figures in one style.

`figures` draws metrics of each seed or with bands, how calibrated predictions are, who computed
when, who holds which examples, how much each client counts and how good a model is for each.
`probability` draws a fitted delay law against measured times.
`style` has their shared parts: `styled` and `look` are for further pictures.
"""

from fedjax_sim.results.plots.figures import ClientShares as ClientShares
from fedjax_sim.results.plots.figures import Row as Row
from fedjax_sim.results.plots.figures import clients_figure as clients_figure
from fedjax_sim.results.plots.figures import curves_figure as curves_figure
from fedjax_sim.results.plots.figures import drawable as drawable
from fedjax_sim.results.plots.figures import holdings_figure as holdings_figure
from fedjax_sim.results.plots.figures import influence_figure as influence_figure
from fedjax_sim.results.plots.figures import metric_figures as metric_figures
from fedjax_sim.results.plots.figures import on_grid as on_grid
from fedjax_sim.results.plots.figures import reliability_figure as reliability_figure
from fedjax_sim.results.plots.figures import timeline_figure as timeline_figure
from fedjax_sim.results.plots.probability import probability_figure as probability_figure
from fedjax_sim.results.plots.style import COLORS as COLORS
from fedjax_sim.results.plots.style import FACE as FACE
from fedjax_sim.results.plots.style import GREY as GREY
from fedjax_sim.results.plots.style import HATCHES as HATCHES
from fedjax_sim.results.plots.style import LABELS as LABELS
from fedjax_sim.results.plots.style import OPEN as OPEN
from fedjax_sim.results.plots.style import look as look
from fedjax_sim.results.plots.style import name_beside as name_beside
from fedjax_sim.results.plots.style import styled as styled
