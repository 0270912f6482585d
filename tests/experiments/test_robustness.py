"""The experiment on robust rules: small, through the command line, and its parts."""

from pathlib import Path

import numpy as np
import pytest

from experiments.harness import Arguments
from experiments.harness.images import pooled
from experiments.robustness import attacks
from fedjax_sim import datasets
from fedjax_sim.core.settings import check, value_of
from tests.experiments.running import FILES, claims, judged, run

PICTURES = {f"{name}.png" for name in ("heat_map", "staleness", "lines_fedavg", "lines_fedbuff")}


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A row for each rule in both systems, a sentence for each rule, and no evidence."""
    done = run("robustness/attacks", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert judged(out) == {f"robustness-{number}": None for number in range(1, 8)}
    assert {each["verdict"] for each in claims(out).values()} == {"not run"}
    assert {path.name for path in out.iterdir()} == FILES | PICTURES | {"rates.png"}
    lines = done.stdout.splitlines()
    for rule in ("mean", "Krum"):
        assert sum(line.startswith(f"| {rule} ") for line in lines) == 2
        assert sum(line.startswith(f"- {rule}: FedBuff against FedAvg ") for line in lines) == 1


@pytest.mark.parametrize("size", ["smoke", "full"])
def test_both_systems_hear_equally_many_clients_that_are_equally_fast(size: str) -> None:
    sizes = attacks.STUDY.choose(Arguments(**{size: True} if size != "full" else {}))
    waiting, buffered = (each.hyper for each in attacks.contests(sizes).values())
    assert value_of(waiting, "num_selected") == value_of(buffered, "buffer_size") == sizes.heard
    for hyper in (waiting, buffered):
        check(hyper)
        assert value_of(hyper, "delays.rate_spread") == value_of(hyper, "delays.slow_fraction") == 0
    assert value_of(buffered, "staleness.rule") == "mean"


def test_rules_expect_what_krum_withstands() -> None:
    """Krum needs 2 f + 2 < n."""
    rules = attacks.rules_of(attacks.STUDY.full)
    krum, trimmed = rules["Krum"].chosen, rules["trimmed mean"].chosen
    assert krum.least_present() == 19 and krum.assumed == 8
    assert trimmed.share * attacks.STUDY.full.heard == pytest.approx(8)


def test_pooled_images_are_means_of_blocks() -> None:
    digits = datasets.load("digits")
    small = pooled(digits, 4)
    assert small.train_images.shape[1:] == (4, 4, 1)
    block = digits.train_images[7, 2:4, 4:6].astype(float).mean()
    assert small.train_images[7, 1, 2, 0] == pytest.approx(block, abs=0.51)
    np.testing.assert_array_equal(pooled(digits, 8).test_images, digits.test_images)
