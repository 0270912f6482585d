"""Table 2 over its open readings: which is nearest, and the smallest run."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from experiments.favano import table2_grid
from experiments.favano.setup import COLUMNS
from experiments.favano.table2 import PAPER
from experiments.favano.table2_grid import CLOCKS, INPUTS, METHODS, OWN, RATES
from tests.experiments.running import run


@pytest.fixture
def accuracy() -> xr.DataArray:
    """Make a table that is 10 points off everywhere, apart from one reading."""
    coords = {"method": [*METHODS], "inputs": [*INPUTS], "column": [*COLUMNS], "lr": [*RATES]}
    found = xr.DataArray(np.zeros([len(each) for each in coords.values()]), coords, [*coords])
    for method in METHODS:
        row = PAPER["FedBuff" if method in CLOCKS else method]
        for column, (mean, _) in row.items():
            found.loc[{"method": method, "column": column}] = mean - 10
    return found


@pytest.mark.slow
def test_the_nearest_reading_is_found(accuracy: xr.DataArray) -> None:
    """The distance is over all 12 cells of one clock, inputs, rate, and rate of FedBuff."""
    best = accuracy.isel(lr=0, drop=True) * 0 + 0.05
    there = {"inputs": "standardised", "lr": 0.2}
    for method in ("FedAvg", "FAVANO", "QuAFL"):
        accuracy.loc[{"method": method, **there}] += 10
    accuracy.loc[{"method": "FedBuff, fresh", "inputs": "standardised", "lr": 0.05}] += 10
    accuracy.loc[{"method": "QuAFL", "column": "IID", **there}] -= 6
    near = table2_grid.readings(accuracy, best)
    assert len(near) == len(CLOCKS) * len(INPUTS) * (len(RATES) ** 2 + 1)
    first, second = near[:2]
    assert str(first) == "lr 0.2, FedBuff 0.05, FedBuff, fresh, inputs standardised"
    assert first.distance == pytest.approx(np.sqrt(36 / 12))
    assert first.largest == pytest.approx(6) and first.cell == "QuAFL, IID -6.0"
    # Another clock, or rate of FedBuff, misses its three cells by 10 points.
    assert (second.rate, second.inputs) == ("0.2", "standardised")
    assert second.distance == pytest.approx(np.sqrt((36 + 300) / 12))
    # What validation chooses is a reading too, and can be another rate in each cell.
    best.loc[{"inputs": "standardised"}] = 0.2
    best.loc[{"inputs": "standardised", "method": "FedBuff, fresh"}] = 0.05
    own = table2_grid.readings(accuracy, best)[:2]
    assert {each.rate for each in own} == {"0.2", OWN}
    accuracy.loc[{"method": "QuAFL", "lr": 0.2}] = np.nan
    assert not any(each.rate == "0.2" for each in table2_grid.readings(accuracy, best))


def test_the_best_rate_is_that_of_validation(accuracy: xr.DataArray) -> None:
    """A mean over seeds decides; a cell that has not run has none."""
    validated = accuracy.expand_dims(seed=[0, 1], axis=-1).copy()
    validated.loc[{"lr": 0.1, "seed": 0}] += 5
    validated.loc[{"lr": 0.35}] += 3
    validated.loc[{"method": "QuAFL"}] = np.nan
    best = table2_grid.best_rates(validated)
    assert best.sel({"method": "QuAFL"}).isnull().all()
    assert (best.drop_sel({"method": "QuAFL"}) == 0.35).all()


def test_the_chosen_rate_of_each_method_is_framed(accuracy: xr.DataArray) -> None:
    best = accuracy.isel(lr=0, drop=True) * 0 + 0.2
    best.loc[{"method": "QuAFL"}] = 0.5
    figure = table2_grid._figure(accuracy.expand_dims(seed=[0], axis=-1), best, "title")
    panels = figure.axes[:-1]  # The last one is the scale of colours.
    assert len(panels) == len(INPUTS) * len(COLUMNS)
    methods = list(METHODS)
    for axes in panels:
        places = sorted((round(frame.get_y()), round(frame.get_x())) for frame in axes.patches)
        assert places == [(row, 4 if methods[row] == "QuAFL" else 2) for row in range(len(methods))]


def test_the_second_stage_runs_own_rates_on_both_inputs(accuracy: xr.DataArray) -> None:
    best = accuracy.isel(lr=0, drop=True) * 0 + 0.2
    best.loc[{"inputs": "standardised"}] = 0.1
    near = table2_grid.readings(accuracy, best)
    chosen = table2_grid._chosen(near, best)
    common = next(each for each in near if each.rate != OWN)
    names = [f"{OWN}, inputs {inputs}" for inputs in INPUTS]
    assert list(chosen) == [*names, common.rates]
    for name, inputs, rate in zip(names, INPUTS, (0.2, 0.1), strict=True):
        cells = chosen[name]
        assert {each[1:2] + each[3:] for each in cells} == {(inputs, rate)}
        assert {each[0] for each in cells} == {*METHODS, *table2_grid.ABLATIONS}
        assert len(set(cells)) == (len(METHODS) + 1) * len(COLUMNS)
    assert {each[1] for each in chosen[common.rates]} == {common.inputs}
    assert list(table2_grid._chosen([], best)) == names


@pytest.mark.slow
def test_both_stages_run(tmp_path: Path) -> None:
    done = run("favano/table2_grid", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    first = {name: xr.DataArray.from_dict(each) for name, each in config["first_stage"].items()}
    place = {"method": "FedAvg", "inputs": "[0, 1]", "column": "non-IID, 1/9 fast"}
    for name in ("validation", "test"):
        assert (first[name].sel(place).sel(lr=[0.1, 0.5]) > 0).all()
    # Validation and test images differ, and so do the accuracies.
    assert not np.array_equal(first["test"].sel(place), first["validation"].sel(place))
    rate = float(first["best"].sel(place))
    assert f"FedAvg | [0, 1] | non-IID, 1/9 fast | lr {rate:g}" in done.stdout
    assert (tmp_path / "out" / "test.png").exists()
