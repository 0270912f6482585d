"""FAVANO's experiments on MNIST in their smoke sizes, as a user calls them, in an empty folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.favano import fig1, fig2, fig3a, fig5, fig6, setup, table2
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
        for figure in (fig1, fig2, fig3a, fig5, fig6):
            patch.setattr(figure, "SHOWN", FEW)
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
    assert set(found) == {f"favano-{number}" for number in (9, 10, 11, 12, 24, 31)}
    assert all(each["verdict"] == "not run" and "smoke" in each["why"] for each in found.values())
    assert [path.name for path in table2.glob("*.png")] == ["accuracy.png"]


def draw(name: str, earlier: str, pictures: int, claim: str, cwd: Path) -> dict:
    """Draw a figure from a folder with its runs into one of the figure's name; return its claim."""
    out = cwd / name.removeprefix("favano/")
    done = run(name, "--smoke", "--results", earlier, "--out", out.name, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("*.png"))) == pictures
    found = claims(out)
    assert set(found) == {claim}
    return found[claim]


@pytest.mark.slow
def test_a_figure_draws_from_the_table_or_runs_alone(
    cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings and seeds give the same curves, in another sweep.

    One of the methods is run: each is a sweep of its own.
    """
    drawn = draw("favano/fig1", str(cells), 1, "favano-24", tmp_path)["measured"]
    assert drawn.keys() == fig1.SHOWN.keys()
    one = {method: fig1.SHOWN[method] for method in ("FAVANO, stochastic",)}
    monkeypatch.setattr(fig1, "SHOWN", one)
    done = run("favano/fig1", "--smoke", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = claims(tmp_path / "run")["favano-24"]["measured"]
    assert alone == {method: drawn[method] for method in one}


@pytest.mark.slow
def test_figures_draw_from_the_table_and_from_each_other(cells: Path, tmp_path: Path) -> None:
    """Fig. 2 has the runs of Fig. 5, and a smaller folder than the table."""
    draw("favano/fig2", str(cells), 2, "favano-21", tmp_path)
    draw("favano/fig5", "fig2", 1, "favano-22", tmp_path)


@pytest.mark.slow
def test_figures_of_other_images_draw_from_any_folder_with_their_runs(
    cells: Path, tmp_path: Path
) -> None:
    """Fig. 3a draws and judges from the table, and Fig. 6 from the folder of Fig. 3a."""
    for name, earlier, claim in (
        ("favano/fig3a", str(cells), "favano-13"),
        ("favano/fig6", "fig3a", "favano-20"),
    ):
        out = tmp_path / name.removeprefix("favano/")
        done = run(name, "--results", earlier, "--out", out.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(list(out.glob("*.png"))) == 1
        found = claims(out)
        assert set(found) == {claim} and found[claim]["verdict"] == "not run"
        assert json.loads((out / "config.json").read_text())["smoke"] is True
    words = ("--smoke", "--rate", "0.3", "--out", "rate")
    done = run("favano/fig3a", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    entry = ledger.read_entry(tmp_path / "rate")
    assert entry["panel"] == "lr_0.3" and entry["command"].endswith("fig3a --smoke --rate=0.3")
    assert ", lr 0.3," in entry["inputs"]["reduced"]
    config = json.loads((tmp_path / "rate" / "config.json").read_text())
    assert {each["lr"] for each in config["settings"].values()} == {0.3}
    # Another column than the one that was drawn, and another number of seeds.
    for name, arguments, word in (
        ("favano/fig3b", [], "IID"),
        ("favano/fig6", ["--seeds", "7"], "seeds is 7"),
    ):
        done = run(name, "--results", "fig3a", *arguments, "--out", "none", cwd=tmp_path)
        assert (
            done.returncode == 2
            and word in done.stderr
            and len(done.stderr.strip().splitlines()) == 1
        )


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for arguments, word in ((["--seeds", "0"], "seeds"), (["--results", "nowhere"], "nowhere")):
        done = run("favano/fig1", "--smoke", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert (
            word in done.stderr
            and "Traceback" not in done.stderr
            and len(done.stderr.strip().splitlines()) == 1
        )


def test_a_long_title_ends_before_the_legend() -> None:
    """As in a smoke run of fig2, whose title names its data twice."""
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
