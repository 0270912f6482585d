"""The experiments on FAVANO's theory and clock as a user runs them: small, from the command line, with verdicts that are meant."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.environment import environment

JUDGED = {
    "favano_lemmas": [1, 2, 3],
    "favano_theory": [6, 7, 16],
    "favano_clock": [4, 5, 8, 17, 18, 19],
}
NOT_JUDGED = {"favano_lemmas": [], "favano_theory": [], "favano_clock": []}
PICTURES = {
    "favano_lemmas": ["contraction.png"],
    "favano_theory": ["long_run_mean.png", "theorem_1.png"],
    "favano_clock": ["contacts.png", "staleness.png", "step_time.png"],
}


@pytest.mark.parametrize("name", JUDGED)
def test_smoke_run(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"experiments.{name}", "--smoke", "--out", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "out" / "claims.json").read_text())
    expected = {
        **{f"favano-{number}": True for number in JUDGED[name]},
        **{f"favano-{number}": None for number in NOT_JUDGED[name]},
    }
    assert {claim["id"]: claim["holds"] for claim in claims} == expected
    for claim in claims:
        assert set(claim) == {"id", "claim", "paper", "measured", "holds", "why"}
        assert all(
            isinstance(claim[field], str) and claim[field] for field in ("claim", "paper", "why")
        )
        assert isinstance(claim["measured"], dict if claim["holds"] is not None else type(None))
        assert f"| {claim['id']} " in done.stdout
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"claims.json", "config.json", "results.nc", "summary.json", *PICTURES[name]}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["failed_lanes"] == 0
