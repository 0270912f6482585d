"""The experiments on FedStaleWeight as a user runs them: small, from the command line, with verdicts that are meant."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.fedstaleweight_fig2 import interval
from tests.experiments.environment import environment

JUDGED = {"fedstaleweight_influence": [*range(1, 8), *range(12, 21)], "fedstaleweight_fig2": []}
NOT_JUDGED = {"fedstaleweight_influence": [], "fedstaleweight_fig2": [8, 9, 10, 11, 19, 20]}
PANELS = [
    f"panel_{letter}_{metric}.png"
    for letter in "AB"
    for metric in ("accuracy", "accuracy_slow_labels", "accuracy_fast_labels")
]
PICTURES = {
    "fedstaleweight_influence": ["influence.png", "buffers.png", "speeds.png", "throttling.png"],
    "fedstaleweight_fig2": PANELS,
}


@pytest.mark.parametrize("name", JUDGED)
def test_smoke_run(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"experiments.{name}", "--smoke", "--out", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "out" / "claims.json").read_text())
    expected = {f"fedstaleweight-{number}": True for number in JUDGED[name]}
    expected |= {f"fedstaleweight-{number}": None for number in NOT_JUDGED[name]}
    assert {claim["id"]: claim["holds"] for claim in claims} == expected
    for claim in claims:
        assert all(
            isinstance(claim[field], str) and claim[field] for field in ("claim", "paper", "why")
        )
        assert f"| {claim['id']} " in done.stdout
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"claims.json", "config.json", "results.nc", "summary.json", *PICTURES[name]}


def test_interval_of_paired_differences() -> None:
    """Two pairs: one degree of freedom, whose 95 % point is 12.7."""
    mean, half = interval(np.array([1.0, 3.0]))
    assert mean == 2
    assert half == pytest.approx(12.706 * np.sqrt(2) / np.sqrt(2))
