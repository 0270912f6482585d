"""The arrays behind a picture, read from its panels: lines, error bars, bands, cells, bars, dots.

They are committed with the results, so that the numbers of a picture can be used without its run.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

MOST_POINTS = 120
"""Points kept of a line with a label, and of dots."""
FEW_POINTS = 30
"""Points kept of a band, and of a line without a label: a single seed, or the edge of a band."""
MOST_UNNAMED = 40
"""Lines without a label kept of a panel."""
MOST_CELLS = 4000
"""Cells up to which an image is kept."""


def arrays_of(figure: Figure) -> list[dict[str, Any]]:
    """Return what is drawn in a picture: one mapping for each of its panels that shows something.

    Each has the "title" and the labels of the axes, "x" and "y". Where there are some, it has

    - "lines", those with a label first: "label", "x", "y", and "error", half of the error bars;
    - "bands" between two lines: "x", "low", "high";
    - "cells" of heat maps: "values" `[rows, columns]`, NaN where one is left white, and what is
      written at the "rows" and "columns", or the edges "x" and "y" of a histogram's cells;
    - "bars": "label", and "x", "y", "width" and "height" of each;
    - "dots": "label", "x", "y".

    Backgrounds drawn by contours, and colour bars, are left out.

    Args:
      figure: The picture.
    """
    panels = []
    for axes in figure.axes:
        found = {
            "lines": _lines(axes),
            "bands": _bands(axes),
            "cells": [] if _is_color_bar(axes) else _cells(axes),
            "bars": _bars(axes),
            "dots": _dots(axes),
        }
        found = {name: content for name, content in found.items() if content}
        if found:
            about = {"title": _title(axes), "x": axes.get_xlabel(), "y": axes.get_ylabel()}
            panels.append(about | found)
    return panels


def _title(axes: Axes) -> str:
    return "".join(axes.get_title(place) for place in ("left", "center", "right"))


def _lines(axes: Axes) -> list[dict[str, Any]]:
    errors = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    parts = {part for each in errors for part in (each.lines[0], *each.lines[1])}
    found = [_with_errors(each) for each in errors]
    for line in axes.get_lines():
        label = str(line.get_label())
        if line not in parts:
            found.append(_line("" if label.startswith("_") else label, *line.get_data()))
    named = [line for line in found if line.get("label")]
    unnamed = [line for line in found if line and not line["label"]]
    return named + unnamed[:MOST_UNNAMED]


def _line(label: str, *values: Any, **more: Any) -> dict[str, Any]:
    """Return a line with so many of its points; empty if it has none."""
    x, y = (np.asarray(each, float).ravel() for each in values)
    most = MOST_POINTS if label else FEW_POINTS
    at = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).round().astype(int))
    kept = {name: np.asarray(each)[at].tolist() for name, each in more.items()}
    return {"label": label, "x": x[at].tolist(), "y": y[at].tolist(), **kept} if len(x) else {}


def _with_errors(drawn: ErrorbarContainer) -> dict[str, Any]:
    """Return a line with half the length of its vertical bars, NaN where one is not drawn."""
    line, _, bars = drawn.lines
    label = str(drawn.get_label())
    with np.errstate(invalid="ignore"):  # A bar at infinity is not drawn: inf - inf is NaN.
        halves = [np.ptp(np.asarray(each.vertices)[:, 1]) / 2 for each in bars[-1].get_paths()]
    return _line("" if label.startswith("_") else label, *line.get_data(), error=halves)


def _bands(axes: Axes) -> list[dict[str, Any]]:
    found = []
    for each in axes.collections:
        if isinstance(each, PolyCollection) and each.get_paths():
            points = np.concatenate([np.asarray(path.vertices) for path in each.get_paths()])
            x = np.unique(points[:, 0])
            edges = [points[points[:, 0] == at, 1] for at in x]
            line = _line("", x, [np.min(y) for y in edges], high=[np.max(y) for y in edges])
            found.append({"x": line["x"], "low": line["y"], "high": line["high"]})
    return found


def _cells(axes: Axes) -> list[dict[str, Any]]:
    columns, rows = (
        [label.get_text() for label in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis)
    )
    found = [(_filled(each), {"rows": rows, "columns": columns}) for each in axes.images]
    for each in axes.collections:
        if isinstance(each, QuadMesh):
            x, y = np.moveaxis(np.asarray(each.get_coordinates()), -1, 0)
            found.append((_filled(each), {"x": x[0].tolist(), "y": y[:, 0].tolist()}))
    return [
        {"values": values.tolist(), **about}
        for values, about in found
        if values.ndim == 2 and values.size <= MOST_CELLS
    ]


def _filled(drawn: AxesImage | QuadMesh) -> np.ndarray:
    """Return the values of cells, NaN where one is left white."""
    return np.ma.filled(np.ma.asarray(drawn.get_array(), float), np.nan)


def _bars(axes: Axes) -> list[dict[str, Any]]:
    return [
        {
            "label": str(each.get_label()),
            "x": [bar.get_x() for bar in each],
            "y": [bar.get_y() for bar in each],
            "width": [bar.get_width() for bar in each],
            "height": [bar.get_height() for bar in each],
        }
        for each in axes.containers
        if isinstance(each, BarContainer)
    ]


def _dots(axes: Axes) -> list[dict[str, Any]]:
    found = []
    for each in axes.collections:
        if isinstance(each, PathCollection):
            label, points = str(each.get_label()), np.asarray(each.get_offsets(), float)
            found.append(_line("" if label.startswith("_") else label, *points.T))
    return [line for line in found if line]


def _is_color_bar(axes: Axes) -> bool:
    return axes.get_label() == "<colorbar>"
