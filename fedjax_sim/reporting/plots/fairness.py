"""Draw how much each client counts.

Dimension letters: `N` clients.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedjax_sim.reporting.plots.style import GREY, look, name_beside, styled


class ClientShares(NamedTuple):
    """What each client of one system contributes.

    Attributes:
      share: `f64[N]`, each client's share of all updates received.
      influence: `f64[N]`, each client's influence on the server's model.
    """

    share: np.ndarray
    influence: np.ndarray


@styled()
def influence_figure(systems: Mapping[str, ClientShares]) -> Figure:
    """Draw each client's influence against its share of the updates, which follows its speed.

    On the diagonal, every update counts the same, so influence is proportional to speed. On the
    horizontal line, every client counts the same.

    Args:
      systems: The clients of each system, by name.
    """
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    for i, (name, clients) in enumerate(systems.items()):
        axes.plot(
            clients.share,
            clients.influence,
            label=name,
            **look(i, "only", alpha=0.7),
            clip_on=False,
        )
    num = max(len(clients.share) for clients in systems.values())
    most = 1.08 * max(float(np.nanmax(np.concatenate(clients))) for clients in systems.values())
    reference: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "zorder": 0}
    axes.plot([0, most], [0, most], label="as much as it sends", linestyle=":", **reference)
    axes.axhline(1 / num, label="every client the same", linestyle="--", **reference)
    axes.set(
        xlim=(0, most),
        ylim=(0, most),
        xlabel="share of the updates received",
        ylabel="share of the influence on the server's model",
        title="Each mark is a client",
    )
    name_beside(figure, axes)
    return figure
