"""FAVANO's and FedAvg's experiments on convolutional networks in their smoke sizes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.experiments.running import claims, run


@pytest.mark.slow
def test_fig3a_runs_and_draws_fig6_too(tmp_path: Path) -> None:
    """Six methods on a convolutional network."""
    done = run("favano/fig3a", "--smoke", "--out", "fig3a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = claims(tmp_path / "fig3a")
    assert {id: each["verdict"] for id, each in found.items()} == dict.fromkeys(
        ("favano-13", "favano-20"), "not run"
    )
    assert (tmp_path / "fig3a" / "favano_fig6.png").exists()
    config = json.loads((tmp_path / "fig3a" / "config.json").read_text())
    assert (config["dataset"], config["model"], config["smoke"]) == ("digits", "SmallCNN", True)


@pytest.mark.slow
def test_fig7_compares_bits_on_a_file_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (400, 8, 8, 3)).astype(np.uint8), np.arange(400) % 10
    np.savez(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    done = run("favano/fig7", "--smoke", "--dataset", "own.npz", "--out", "fig7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "fig7" / "config.json").read_text())["settings"]
    pairs = {(each["num_selected"], str(each["low_bit"])) for each in settings.values()}
    assert pairs == {(s, bits) for s in (1, 4, 10) for bits in ("None", "[3, 3, 4]")}
    assert set(claims(tmp_path / "fig7")) == {"favano-15", "favano-25"}
