"""`fedjax-sim run --keep-samples`: samples for ArviZ, and a picture of calibration."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import arviz_stats as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.cli.commands import main
from fedjax_sim.cli.plotting import calibration_figures
from fedjax_sim.results import plots
from fedjax_sim.results.diagnostics import average_predictions, reliability, to_arviz

WORDS = "run langevin --model logistic --preset paper --seeds 2 --time-budget 40 --evals 10 --set"
WORDS += " num_clients=3 --set local_steps=2 --set batch_size=8 --set step_size=1e-6"
WORDS += " --set temperature=1,4"


@pytest.mark.slow
def test_failed_lanes_are_left_out_of_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nan of one seed would be in the means of its setting; a setting may have no other seed."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(plots, "reliability_figure", found.update)
    data = datasets.load("digits")
    split = partition.iid(data.train_labels, num_clients=4, seed=0)
    problem = problems.make_classification(models.LogisticRegression(10), data, split)
    fedavg = fedjax_sim.SYSTEMS["fedavg"]
    hyper = fedavg.Hyper(num_clients=4, num_selected=2, local_steps=1)
    run = fedjax_sim.sweep(
        fedavg,
        problem,
        hyper,
        seeds=2,
        settings={"lr": [0.1, 0.2]},
        budget=fedjax_sim.Ticks(2),
        num_evals=2,
        keep=fedjax_sim.Keep(models=True),
    )
    alone = run.lane(lr=0.1, seed=1)
    expected = average_predictions(
        problem, jax.tree.map(lambda leaf: leaf[None], alone.samples)
    ).probabilities[0]
    samples = jax.tree.map(np.array, run.samples)
    for leaf in jax.tree.leaves(samples):
        leaf[[0, 2, 3], 2] = np.nan
    failed = run.curves["failed"].copy(data=[[True, False], [True, True]])
    run = dataclasses.replace(run, samples=samples, curves=run.curves.assign(failed=failed))
    calibration_figures({"fedavg": run}, {"fedavg": [problem]})
    (label,) = found
    assert label.startswith("fedavg lr=0.1, calibration error 0.")
    by_hand = reliability(jnp.asarray(expected), problem.test_labels)
    np.testing.assert_allclose(found[label].accuracy, by_hand.accuracy, rtol=1e-6)


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
