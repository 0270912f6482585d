"""The comparison of standard algorithms, in its smallest size."""

import json
from pathlib import Path

from fedjax_sim.cli.comparison import MAIN_JOB
from fedjax_sim.cli.defaults import DEFAULTS
from tests.experiments.running import REPOSITORY, run

RESULTS = REPOSITORY / "experiments" / "baselines" / "results"


def test_every_method_is_tuned_and_compared(tmp_path: Path) -> None:
    """Choices are points of the grids, and the table has a row for each method."""
    done = run("baselines/mnist", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    methods = set(config["grids"])
    assert len(config["chosen"]) == len(methods) == 2
    for key, found in config["chosen"].items():
        grid = config["grids"][key.split(", ")[-1]]
        assert all(value in grid[name] for name, value in found["choice"].items())
        assert set(found["choice"]) == set(grid)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| fed")]
    assert {line.split()[1] for line in lines} == methods and len(lines) == 2
    assert (tmp_path / "out" / "accuracy_0.png").exists()
    assert (tmp_path / "out" / "sensitivity_0.png").exists()
    # A second run takes over what the first one chose and ran.
    again = run("baselines/mnist", "--smoke", "--results", "out", "--out", "two", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "compiling" not in again.stderr
    second = json.loads((tmp_path / "two" / "config.json").read_text())
    assert second["chosen"] == config["chosen"] and second["results"] == config["results"]
    other = ("--seeds", "3", "--results", "out", "--out", "three")
    refused = run("baselines/mnist", "--smoke", *other, cwd=tmp_path)
    assert refused.returncode == 2 and "same seeds" in refused.stderr


def test_the_main_job_runs_what_validation_chose() -> None:
    """The command line's tuned settings are the committed choices, made inside of the grids."""
    text = json.loads((RESULTS / "digits.json").read_text())["text"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if " lr " in line]
    chosen = {row[0].strip(): row[1].strip() for row in rows}
    tuned = {
        name: ", ".join(f"{key} {value:g}" for key, value in settings.items())
        for name, settings in DEFAULTS["digits"].tuned.items()
    }
    assert {name: chosen[name] for name in MAIN_JOB} == tuned
    assert "edge" not in text
