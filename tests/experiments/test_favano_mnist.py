"""FAVANO's experiments on MNIST in their smoke sizes, as a user calls them, in an empty folder."""

import json
from pathlib import Path

import pytest

from experiments.favano import fig1
from tests.experiments.running import claims, run, summary


@pytest.fixture(scope="module")
def table2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table2")
    done = run("favano/table2", "--smoke", "--seeds", "2", "--out", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "FAVANO, deterministic" in done.stdout and "FedBuff (paper)" in done.stdout
    return folder / "results"


def test_table2_writes_all_cells_and_claims(table2: Path) -> None:
    written = summary(table2)
    assert len(written["systems"]) == 11 * 3 and written["lanes"] == 11 * 3 * 2
    found = claims(table2)
    assert set(found) == {"favano-9", "favano-10", "favano-11", "favano-12"}
    assert all(each["verdict"] == "not run" and "smoke" in each["why"] for each in found.values())
    assert len(list(table2.glob("*.png"))) == 3


def draw(name: str, earlier: str, pictures: int, cwd: Path) -> dict[str, dict]:
    """Draw a figure from a folder with its runs into one of the figure's name."""
    out = cwd / name.removeprefix("favano/")
    done = run(name, "--smoke", "--results", earlier, "--out", out.name, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("*.png"))) == pictures
    found = claims(out)
    assert set(found) == {"favano-9"}
    return found


def test_a_figure_draws_from_the_table_or_runs_alone(
    table2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings and seeds give the same curves, in another sweep.

    Two of the methods are run: each is a sweep of its own.
    """
    drawn = draw("favano/fig1", str(table2), 1, tmp_path)["favano-9"]["measured"]
    assert drawn.keys() == fig1.SHOWN.keys()
    two = {method: fig1.SHOWN[method] for method in ("FedAvg", "FAVANO, stochastic")}
    monkeypatch.setattr(fig1, "SHOWN", two)
    done = run("favano/fig1", "--smoke", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = claims(tmp_path / "run")["favano-9"]["measured"]
    assert alone == {method: drawn[method] for method in two}


def test_figures_draw_from_the_table_and_from_each_other(table2: Path, tmp_path: Path) -> None:
    """Fig. 2 has the runs of Fig. 5, and a smaller folder than the table."""
    draw("favano/fig2", str(table2), 2, tmp_path)
    draw("favano/fig5", "fig2", 9, tmp_path)


def test_figures_of_other_images_draw_from_any_folder_with_their_runs(
    table2: Path, tmp_path: Path
) -> None:
    """Fig. 3a draws and judges from the table, and Fig. 6 from the folder of Fig. 3a."""
    for name, earlier, pictures in (
        ("favano/fig3a", str(table2), 1),
        ("favano/fig6", "fig3a", 9),
    ):
        out = tmp_path / name.removeprefix("favano/")
        done = run(name, "--results", earlier, "--out", out.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(list(out.glob("*.png"))) == pictures
        found = claims(out)
        assert set(found) == {"favano-13"} and found["favano-13"]["verdict"] == "not run"
        assert json.loads((out / "config.json").read_text())["smoke"] is True
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
