"""The experiments on FedEM as a user runs them: small, with verdicts that are meant."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import fedem_ablations, fedem_fig1, fedem_fig2, fedem_fig3, fedem_theory
from experiments.fedem_claims import CLAIMS
from experiments.support import Arguments, Outcome
from fedjax_sim.settings import ConfigError

REPOSITORY = Path(__file__).parents[2]
SMOKE = Arguments(smoke=True, seeds=None, data_dir=None, out="", results=None)
EXPERIMENTS: dict[Callable[[Arguments], Outcome], dict[int, bool | None]] = {
    fedem_theory.run: dict.fromkeys([*range(1, 9), 10, 12, 14], True),
    fedem_ablations.run: dict.fromkeys([9, 11, 13, 15, 16, 17], True),
    fedem_fig1.run: {18: None},
    fedem_fig3.run: {19: None},
    fedem_fig2.run: {20: None},
}
"""What each judges at this size."""


def test_every_claim_is_judged_somewhere() -> None:
    assert sorted(number for judged in EXPERIMENTS.values() for number in judged) == sorted(CLAIMS)


@pytest.mark.parametrize("run", list(EXPERIMENTS)[:-1], ids=lambda run: run.__module__.rpartition(".")[2])
def test_smoke_run(run: Callable[[Arguments], Outcome]) -> None:
    outcome = run(SMOKE)
    assert {each.id: each.holds for each in outcome.verdicts} == {f"fedem-{number}": holds for number, holds in EXPERIMENTS[run].items()}
    assert all(each.why and each.claim and each.paper for each in outcome.verdicts)
    json.dumps(outcome.config)
    assert outcome.figures
    for own in outcome.curves.values():
        assert np.isfinite(own.mean_field.values[..., 0]).all()


def test_from_the_command_line(tmp_path: Path) -> None:
    """The missing values, whole: the folder, the verdict, the text."""
    cache = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05"}
    environment = {**os.environ, **cache, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "experiments.fedem_fig2", "--smoke", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (claim,) = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert (claim["id"], claim["holds"]) == ("fedem-20", None)
    assert "fedem-20" in done.stdout
    found = json.loads((tmp_path / "out" / "config.json").read_text())["found"]
    assert found["ours"]["F"] < found["ours"]["F at first"]
    assert found["ours"]["trend"] > 0.95
    assert abs(found["ours"]["F"] - found["EM, to its end"]["F"]) < 0.01 * abs(found["EM, to its end"]["F"])
    written = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"fig2_papers.png", "fig2_ours.png", "fig2_objective.png"}
    assert written == {"claims.json", "config.json", "results.nc", "summary.json"} | pictures


def write(path: Path, header: str, rows: list[list[object]]) -> Path:
    with path.open("w") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def test_reading_counts(tmp_path: Path) -> None:
    """Months of winters are in order of time, an empty count is 0, observers stay together, and other visits are dealt out."""
    rows: list[list[object]] = [["b", 2, 1, 7, "ann"], ["a", 1, 6, "", "ann"], ["a", 2, 1, 1, "bo"]]
    visits = fedem_fig2.read(write(tmp_path / "a.csv", "site,winter,month,birds,observer", rows))
    assert visits.shape == (2, 2)
    assert visits.site.tolist() == [1, 0, 0]
    assert visits.time.tolist() == [1, 0, 1]
    np.testing.assert_allclose(visits.value, np.log1p([7, 0, 1]))
    assert visits.server[0] == visits.server[1]
    many = fedem_fig2.read(write(tmp_path / "b.csv", "site,time,count", [[i % 5, i, i] for i in range(200)]))
    assert set(many.server.tolist()) == set(range(10))
    assert many.time.tolist() == list(range(200))


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("site,count", ["a", 1], "site, count"),
        ("site,time,count", ["a", 1, "many"], "many"),
        ("site,time,count", ["a", 1, -3], "at least 0"),
    ],
)
def test_counts_that_are_not_allowed(tmp_path: Path, header: str, row: list[object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedem_fig2.read(write(tmp_path / "a.csv", header, [row]))


def test_smoothing_keeps_lines_and_removes_noise() -> None:
    line = 3 + 0.5 * np.arange(40)
    np.testing.assert_allclose(fedem_fig2.smoothed(line), line, atol=1e-9)
    noise = np.random.default_rng(0).normal(size=40)
    assert np.std(fedem_fig2.smoothed(line + noise) - line) < 0.5


def test_additive_means() -> None:
    """Exact on a table that is additive, whatever cells are missing."""
    random = np.random.default_rng(0)
    table = random.normal(size=(6, 1)) + random.normal(size=(1, 8))
    site, time = np.nonzero(random.random(table.shape) < 0.7)
    visits = fedem_fig2.Visits(0 * site, site, time, table[site, time], table.shape)
    np.testing.assert_allclose(fedem_fig2.additive(visits), table, atol=1e-6)
