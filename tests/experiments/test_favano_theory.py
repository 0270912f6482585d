"""The experiments on FAVANO's theory and clock: small, through the command line, with verdicts."""

from pathlib import Path

import pytest

from tests.experiments.running import FILES, claims, judged, run, summary

JUDGED = {
    "favano/lemmas": [1, 2, 3],
    "favano/theory": [6, 7, 16],
    "favano/clock": [4, 5, 8, 17, 18, 19],
}
PICTURES = {
    "favano/lemmas": {"contraction.png"},
    "favano/theory": {"long_run_mean.png", "theorem_1.png"},
    "favano/clock": {"contacts.png", "staleness.png", "step_time.png"},
}


@pytest.mark.parametrize("name", JUDGED)
def test_smoke_run(name: str, tmp_path: Path) -> None:
    done = run(name, "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert judged(out) == {f"favano-{number}": True for number in JUDGED[name]}
    for id, claim in claims(out).items():
        assert isinstance(claim["measured"], dict)
        assert f"| {id} " in done.stdout
    assert {path.name for path in out.iterdir()} == FILES | PICTURES[name]
    assert summary(out)["failed_lanes"] == 0
