"""`fedjax-sim run --keep-samples`: samples for ArviZ, and a picture of calibration."""

import contextlib
import json
from pathlib import Path

import arviz_stats as az
import jax
import numpy as np
import pytest
import xarray as xr

import fedjax_sim
from fedjax_sim.cli.commands import main
from fedjax_sim.diagnostics import to_arviz

WORDS = "run langevin --model logistic --preset paper --seeds 2 --time-budget 40 --evals 10 --set"
WORDS += " num_clients=3 --set local_steps=2 --set batch_size=8 --set step_size=1e-6"
WORDS += " --set temperature=1,4"


@pytest.mark.slow
def test_samples_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Settings and seeds are dimensions; the last draw is that of the last evaluation."""
    with contextlib.chdir(tmp_path), jax.numpy_rank_promotion("allow"):
        assert main([*WORDS.split(), "--keep-samples", "--out", "out"]) == 0
    out = tmp_path / "out"
    assert (out / "reliability.png").stat().st_size > 10_000
    files = json.loads((out / "config.json").read_text())["files"]
    assert {"samples.nc", "reliability.png"} <= set(files)
    samples = to_arviz(fedjax_sim.load(out, "langevin"), burn_in=0)
    kernel = samples["posterior"]["params.Dense_0.kernel"]
    assert kernel.dims[:3] == ("temperature", "chain", "draw") and kernel.shape[:3] == (2, 2, 11)
    assert np.isfinite(az.rhat(samples["posterior"].to_dataset())["params.Dense_0.bias"]).all()
    curves = xr.open_datatree(out / "results.nc")["langevin"]
    np.testing.assert_array_equal(samples["sample_stats"]["loss"], curves["loss"])
