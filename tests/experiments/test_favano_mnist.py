"""FAVANO's experiments on MNIST in their smoke sizes, as a user calls them, in an empty folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.favano import fig3a, setup, table2
from experiments.harness import ledger
from tests.experiments.running import claims, run, summary

FEW = {
    name: setup.METHODS[name]
    for name in ("FedAvg", "QuAFL", "FedBuff, fresh, lr", "FAVANO, stochastic")
}
"""The methods that are compared by every figure."""


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """Leave out the other methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table2, "METHODS", FEW)
        patch.setattr(fig3a, "SHOWN", FEW)
        yield


@pytest.fixture(scope="module")
def cells(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the table and return its results folder."""
    return run_table(tmp_path_factory.mktemp("table2"))


def run_table(folder: Path) -> Path:
    done = run("favano/table2", "--smoke", "--seeds", "2", "--out", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "FAVANO, stochastic, IID" in done.stdout
    return folder / "results"


@pytest.mark.slow
def test_table2_writes_all_cells_and_claims(cells: Path) -> None:
    check_table(cells, 4)


@pytest.mark.slow
def test_table2_with_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "METHODS", setup.METHODS)
    check_table(run_table(tmp_path), 11)


def check_table(table2: Path, methods: int) -> None:
    written = summary(table2)
    assert len(written["systems"]) == methods * 3 and written["lanes"] == methods * 3 * 2
    found = claims(table2)
    assert set(found) == {f"favano-{number}" for number in (9, 10, 11, 12, 21, 22, 24, 31)}
    assert all(each["verdict"] == "not run" and "smoke" in each["why"] for each in found.values())
    figures = ("fig1", "fig2_left", "fig2_right", "fig5")
    assert {path.name for path in table2.glob("*.png")} == {
        "accuracy.png",
        *(f"favano_{name}.png" for name in figures),
    }


@pytest.mark.slow
def test_another_rate_has_its_own_record(few: None, tmp_path: Path) -> None:
    words = ("--smoke", "--rate", "0.3", "--out", "rate")
    done = run("favano/fig3a", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    entry = ledger.read_entry(tmp_path / "rate")
    assert entry["panel"] == "lr_0.3" and entry["command"].endswith("fig3a --smoke --rate=0.3")
    assert ", lr 0.3," in entry["inputs"]["reduced"]
    config = json.loads((tmp_path / "rate" / "config.json").read_text())
    assert {each["lr"] for each in config["settings"].values()} == {0.3}


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for arguments, word in ((["--seeds", "0"], "seeds"), (["--dataset", "nowhere"], "nowhere")):
        done = run("favano/table2", "--smoke", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert (
            word in done.stderr
            and "Traceback" not in done.stderr
            and len(done.stderr.strip().splitlines()) == 1
        )


def test_a_long_title_ends_before_the_legend() -> None:
    """As in a smoke run of Table 2, whose Fig. 2 title names its data twice."""
    variance = xr.DataArray([[1.0, 2.0, 4.0]], dims=("seed", "eval"))
    time = xr.DataArray([[0.0, 30.0, 60.0]], dims=("seed", "eval"))
    failed = xr.DataArray([False], dims="seed")
    curves = xr.Dataset({"client_variance": variance, "failed": failed}, {"time": time})
    figure = setup.side_by_side(
        {"distances, summed": ({"FAVANO, stochastic": curves}, "client_variance", "time")},
        title="digits, non-IID, 1/9 fast, handwritten digits, 20 clients, lr 0.5: median",
        end=60.0,
        columns=1,
    )
    FigureCanvasAgg(figure).draw()
    title, (legend,) = figure._suptitle, figure.legends  # type: ignore[attr-defined]
    assert title.get_window_extent().x0 >= 0
    assert title.get_window_extent().x1 < legend.get_window_extent().x0
