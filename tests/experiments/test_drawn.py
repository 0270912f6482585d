"""The arrays that are kept of a picture are those that it shows."""

from typing import Literal

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import drawn
from experiments.harness.drawn import arrays_of
from experiments.harness.heatmaps import heat_maps


def test_lines_with_a_label_come_first_and_are_thinned_least() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    axes.plot(range(1000), range(1000), label="line")
    axes.plot(range(1000), range(1000))
    axes.plot([], [], label="nothing")
    axes.set(xlabel="time", ylabel="loss", title="one")
    (panel,) = arrays_of(figure)
    named, short, thinned = panel.pop("lines")
    assert panel == {"title": "one", "x": "time", "y": "loss"}
    assert named["label"] == "line" and short["label"] == thinned["label"] == ""
    assert len(named["x"]) == drawn.MOST_POINTS and named["x"][-1] == named["y"][-1] == 999
    assert short["x"] == [0, 1] and len(thinned["x"]) == drawn.FEW_POINTS
    for _ in range(2 * drawn.MOST_UNNAMED):
        axes.plot([0, 1], [0, 1])
    assert len(arrays_of(figure)[0]["lines"]) == 1 + drawn.MOST_UNNAMED


@pytest.mark.parametrize("place", ["left", "center", "right"])
def test_a_panel_has_its_title_wherever_it_is(place: Literal["left", "center", "right"]) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    axes.set_title("one", loc=place)
    assert [panel["title"] for panel in arrays_of(figure)] == ["one"]


def test_panels_of_heat_maps_keep_their_names() -> None:
    panels = {name: xr.DataArray(np.eye(2), dims=("rule", "T")) for name in ("E = 1", "E = 5")}
    figure = heat_maps(panels, title="", label="points", across="T", limits=(0, 1))
    assert [panel["title"] for panel in arrays_of(figure)] == list(panels)


def test_a_histogram_has_its_counts_and_the_edges_of_its_cells() -> None:
    """Rows are of y, and what is too large is left out."""
    x, y = np.random.default_rng(0).normal(size=(2, 100))
    figure = Figure()
    small, large = figure.subplots(1, 2)
    counts, *edges, _ = small.hist2d(x, y, bins=(3, 5))
    large.hist2d(x, y, bins=100)
    (panel,) = arrays_of(figure)
    (cells,) = panel["cells"]
    np.testing.assert_array_equal(cells["values"], counts.T)
    np.testing.assert_array_equal(cells["x"], edges[0])
    np.testing.assert_array_equal(cells["y"], edges[1])


def test_error_bars_are_half_lengths_of_the_same_line() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.errorbar([1, 2], [5, 6], [0.5, 0.25], label="mean", capsize=2)
    axes.plot([1, 2], [0, 0], label="theory")
    (panel,) = arrays_of(figure)
    mean, theory = sorted(panel["lines"], key=lambda line: line["label"])
    assert mean["error"] == pytest.approx([0.5, 0.25]) and mean["y"] == [5, 6]
    assert "error" not in theory and len(panel["lines"]) == 2


def test_a_bar_of_unknown_length_is_not_a_number() -> None:
    """Points with one seed, and points that were never reached, have no error."""
    figure = Figure()
    means, errors = [5, 6, np.nan, np.inf], [0.5, np.nan, 0.5, 0.5]
    figure.subplots().errorbar([1, 2, 3, 4], means, errors, label="mean")
    ((line,),) = ([*panel["lines"]] for panel in arrays_of(figure))
    np.testing.assert_array_equal(line["error"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(line["y"], means)


@pytest.mark.parametrize("step", [None, "post"])
def test_bands_are_kept_by_their_edges(step: str | None) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.fill_between([1, 2, 3], [0, 1, 2], [5, 7, 9], step=step)
    axes.fill_between([1, 2], [np.nan, np.nan], [1, 1])
    axes.fill_between(range(1000), 0, 1)
    axes.contour(np.eye(3))
    ((band, long),) = (panel["bands"] for panel in arrays_of(figure))
    assert band["x"] == [1, 2, 3] and (band["low"][0], band["high"][-1]) == (0, 9)
    if step is None:
        assert band["low"] == [0, 1, 2] and band["high"] == [5, 7, 9]
    assert len(long["x"]) == drawn.FEW_POINTS and long["x"][-1] == 999


def test_cells_of_heat_maps_keep_their_settings_and_white_ones() -> None:
    values = np.array([[1.5, np.nan, 3], [4, 5, 6]])
    panel = xr.DataArray(values, {"lr": [0.1, 1.0], "S": ["a", "b", "c"]}, ("lr", "S"))
    (found,) = arrays_of(
        heat_maps({"one": panel}, title="", label="points", across="S", limits=(0, 6))
    )  # The colour bar is no panel.
    (cells,) = found["cells"]
    assert cells["rows"] == ["0.1", "1"] and cells["columns"] == ["a", "b", "c"]
    np.testing.assert_array_equal(cells["values"], values)
    figure = Figure()
    figure.subplots().imshow(np.zeros((70, 70)))
    assert arrays_of(figure) == []


def test_bars_and_dots() -> None:
    figure = Figure()
    first, second, _ = figure.subplots(1, 3)
    first.barh([0, 1], [2, 3], 0.5, 4, label="wait")
    second.scatter([1, 2], [3, 4], label="draws")
    bars, dots = arrays_of(figure)  # The third panel is empty.
    assert bars["bars"] == [
        {"label": "wait", "x": [4, 4], "y": [-0.25, 0.75], "width": [2, 3], "height": [0.5, 0.5]}
    ]
    assert dots["dots"] == [{"label": "draws", "x": [1, 2], "y": [3, 4]}]
