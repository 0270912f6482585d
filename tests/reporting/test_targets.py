"""When runs reach an accuracy."""

import numpy as np
import xarray as xr

from fedjax_sim.results.summaries import first_reach, median_reach


def test_when_an_accuracy_is_first_reached() -> None:
    """Later falls do not count, and lanes that never reach it are infinitely late."""
    accuracy = [[0.1, 0.5, 0.6, 0.7], [0.1, 0.9, 0.2, 0.1], [0.1, 0.8, np.nan, np.nan]]
    time = [[0, 10, 20, 30], [0, 11, 22, 33], [0, 9, 18, 27]]
    curves = xr.Dataset(
        {"accuracy": (("seed", "eval"), accuracy)},
        {"time": (("seed", "eval"), time), "ticks": ("eval", [0, 1, 2, 3])},
    )
    np.testing.assert_array_equal(first_reach(curves, 0.6), [20, 11, 9])
    np.testing.assert_array_equal(first_reach(curves, 0.6, axis="ticks"), [2, 1, 1])
    np.testing.assert_array_equal(first_reach(curves, 0.85), [np.inf, 11, np.inf])
    assert median_reach(first_reach(curves, 0.6)) == 11
    assert median_reach(first_reach(curves, 0.85)) is None
    # Of two lanes one is not enough.
    assert median_reach(xr.DataArray([11.0, np.inf])) is None
    assert median_reach(xr.DataArray([11.0, 20.0])) == 20
