"""The MNIST experiments of FAVANO in their smoke sizes, as a user calls them, in an empty folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.environment import environment


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"experiments.{name}", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment(), timeout=600
    )


def claims(folder: Path) -> dict[str, dict]:
    found = json.loads((folder / "claims.json").read_text())
    assert all(set(each) == {"id", "claim", "paper", "measured", "holds", "why"} for each in found)
    return {each["id"]: each for each in found}


@pytest.fixture(scope="module")
def table2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table2")
    done = run("favano_table2", "--smoke", "--seeds", "2", "--out", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "FAVANO, deterministic" in done.stdout and "FedBuff (paper)" in done.stdout
    return folder / "results"


def test_table2_writes_all_cells_and_claims(table2: Path) -> None:
    summary = json.loads((table2 / "summary.json").read_text())
    assert len(summary["systems"]) == 11 * 3 and summary["lanes"] == 11 * 3 * 2
    assert set(claims(table2)) == {"favano-9", "favano-10", "favano-11", "favano-12"}
    assert all(each["holds"] is None and "smoke" in each["why"] for each in claims(table2).values())
    assert len(list(table2.glob("*.png"))) == 3


@pytest.mark.parametrize(
    ("name", "pictures"), [("favano_fig1", 1), ("favano_fig2", 2), ("favano_fig5", 9)]
)
def test_figures_draw_from_the_table_or_run_by_themselves(
    name: str, pictures: int, table2: Path, tmp_path: Path
) -> None:
    done = run(name, "--smoke", "--results", str(table2), "--out", "drawn", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "drawn").glob("*.png"))) == pictures
    assert set(claims(tmp_path / "drawn")) == {"favano-9"}
    if name == "favano_fig1":
        again = run(name, "--smoke", "--out", "run", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        # The same settings and seeds give the same curves, in another sweep.
        assert (
            claims(tmp_path / "run")["favano-9"]["measured"]
            == claims(tmp_path / "drawn")["favano-9"]["measured"]
        )


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for arguments, word in ((["--seeds", "0"], "seeds"), (["--results", "nowhere"], "nowhere")):
        done = run("favano_fig1", "--smoke", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert (
            word in done.stderr
            and "Traceback" not in done.stderr
            and len(done.stderr.strip().splitlines()) == 1
        )
