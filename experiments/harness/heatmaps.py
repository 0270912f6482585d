"""Heat maps: one number, or a word, for each pair of two settings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedjax_sim.results import plots

DARK = 0.45
"""Luminance of a colour below which the number on it is white."""


@plots.styled()
def heat_maps(
    panels: Mapping[str, xr.DataArray],
    *,
    title: str,
    label: str,
    across: str,
    limits: tuple[float, float],
    words: Mapping[str, Any] | None = None,
    marked: Mapping[str, Any] | None = None,
    columns: int = 3,
    colors: str = "viridis",
) -> Figure:
    """Draw heat maps side by side, with one scale of colours.

    Args:
      panels: Arrays with two dimensions each, rows first, by title. NaN is left white.
      title: The title of the picture.
      label: What the colours mean, with the unit.
      across: Label of the horizontal axes.
      limits: Smallest and largest value of the scale of colours.
      words: What is written in the cells of each panel, `[rows, columns]`; the rounded values by
        default.
      marked: Which cells of each panel get a frame, `bool[rows, columns]`.
      columns: Number of panels side by side.
      colors: Name of matplotlib's colour map.
    """
    first = next(iter(panels.values()))
    rows = -(-len(panels) // columns)
    height, width = (0.34 * size for size in first.shape)
    longest = max(len(str(name)) for name in first[first.dims[0]].values)
    size = (
        (1.6 * width + 0.4) * columns + 0.08 * longest + 1.0,
        max(3.4, (height + 0.75) * rows + 0.9),
    )
    figure = Figure(figsize=size)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    scale = Normalize(*limits)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, panel) in zip(grid.flat, panels.items(), strict=False):
        down, along = (panel[dim].values for dim in panel.dims)
        values = panel.values.astype(float)
        image = axes.imshow(values, cmap=colors, norm=scale, aspect="auto")
        written = np.vectorize(lambda value: f"{value:.0f}")(values)
        written = written if words is None else np.asarray(words[name])
        for (i, j), value in np.ndenumerate(values):
            if not np.isfinite(value):
                continue
            red, green, blue, _ = image.cmap(scale(value))
            is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < DARK
            color = "white" if is_dark else "black"
            axes.text(j, i, written[i, j], ha="center", va="center", fontsize=7.5, color=color)
            if marked is not None and bool(np.asarray(marked[name])[i, j]):
                frame: dict[str, Any] = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.6}
                axes.add_patch(Rectangle((j - 0.47, i - 0.46), 0.94, 0.92, **frame))
        axes.set_xticks(range(len(along)), [_tick(each) for each in along])
        axes.set_yticks(range(len(down)), [_tick(each) for each in down])
        axes.tick_params(length=0)
        axes.set_title(name)
    for axes in grid[-1]:
        axes.set_xlabel(across)
    figure.colorbar(image, ax=list(grid.flat), label=label, shrink=0.8)
    figure.suptitle(title)
    return figure


def _tick(value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{value:g}"
