"""Samples and predictions as ArviZ reads them: a regression, two temperatures, two chains."""

import dataclasses
from pathlib import Path
from typing import Any

import arviz_stats as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from arviz_stats.base import array_stats

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.problems import LogDensity, from_logdensity
from fedjax_sim.results.diagnostics import (
    averaged_predictions,
    calibration,
    predictive,
    score_predictions,
    to_arviz,
)
from fedjax_sim.systems import langevin

X = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
Y = (X @ np.array([1.0, -2.0]) + np.random.default_rng(1).normal(size=20)).astype("float32")
TEMPERATURES = (1.0, 9.0)


def log_likelihood(params: Any, example: Any) -> Any:
    x, y = example
    return -((y - x @ params["w"] - params["b"]["value"]) ** 2) / 2


def log_prior(params: Any) -> Any:
    return -jnp.sum(params["w"] ** 2) / 8


def simulate(key: Any, params: Any, x: Any) -> Any:
    return x @ params["w"] + params["b"]["value"] + jax.random.normal(key)


def probabilities(params: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.stack([0.0, x @ params["w"]]))


def make(**functions: Any) -> LogDensity:
    start = {"w": jnp.zeros(2), "b": {"value": jnp.zeros(())}}
    return from_logdensity(log_likelihood, log_prior, (X, Y), np.arange(20) % 2, start, **functions)


@pytest.fixture(scope="module")
def problem() -> LogDensity:
    return make(simulate=simulate)


@pytest.fixture(scope="module")
def run(problem: LogDensity) -> Any:
    hyper = langevin.paper(num_clients=2, step_size=5e-3, local_steps=3, gradient="exact")
    return fedjax_sim.sweep(
        langevin.system,
        problem,
        hyper,
        seeds=[3, 5],
        settings={"temperature": TEMPERATURES},
        budget=fedjax_sim.Ticks(600),
        num_evals=300,
        keep=fedjax_sim.Keep(models=True),
    )


@pytest.fixture(scope="module")
def tree(run: Any, problem: LogDensity) -> xr.DataTree:
    return to_arviz(run, problem, burn_in=21, thin=2)


def test_groups_and_dimensions(run: Any, tree: xr.DataTree) -> None:
    """A setting is a dimension, a seed a chain, an evaluation a draw, a path a name."""
    found = tree["posterior"]
    assert found["w"].dims == ("temperature", "chain", "draw", "w_dim_0")
    assert found["b.value"].dims == ("temperature", "chain", "draw")
    assert found["temperature"].values.tolist() == list(TEMPERATURES)
    assert found["chain"].values.tolist() == [3, 5]
    assert found["draw"].values.tolist() == list(range(21, 301, 2))
    lane = found["w"].sel(temperature=9.0, chain=3)
    np.testing.assert_array_equal(lane, run.samples["w"][2, 21::2])
    stats = tree["sample_stats"].sel(temperature=1.0, chain=5)
    np.testing.assert_array_equal(stats["lp"], run.curves.log_density[0, 1, 21::2])
    np.testing.assert_array_equal(stats["ticks"], range(42, 601, 4))
    one = tree["log_likelihood"]["y"].sel(temperature=1.0, chain=3, draw=21)
    params = {"w": run.samples["w"][0, 21], "b": {"value": run.samples["b"]["value"][0, 21]}}
    expected = [log_likelihood(params, example) for example in zip(X, Y, strict=True)]
    np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-6)


def test_chains_of_different_settings_are_not_pooled(run: Any, tree: xr.DataTree) -> None:
    """R-hat of each temperature is near 1, although the temperatures' laws differ."""
    summary = az.summary(tree, var_names=["w"], round_to="none")
    assert len(summary) == 4 and (summary["r_hat"] < 1.1).all()
    spread = tree["posterior"]["w"].std(["chain", "draw"])
    assert (spread.sel(temperature=9.0) > 2 * spread.sel(temperature=1.0)).all()
    pooled = array_stats.rhat(run.samples["w"][:, 21:], chain_axis=0, draw_axis=1)
    assert (pooled > 1.1).all()


def test_arviz_reads_one_setting(tree: xr.DataTree) -> None:
    """LOO of a regression with known noise, against the exact posterior."""
    one = tree.sel(temperature=1.0)
    found = az.loo(one)
    precision = np.diag([0.25, 0.25, 0.0])
    inputs = np.c_[X, np.ones(20)]
    exact = []
    for i in range(20):
        rest = np.arange(20) != i
        inverse = np.linalg.inv(inputs[rest].T @ inputs[rest] + precision)
        mean = inputs[i] @ inverse @ inputs[rest].T @ Y[rest]
        variance = 1 + inputs[i] @ inverse @ inputs[i]
        # Without log(2 pi) / 2, which the likelihood leaves out.
        exact.append(-((Y[i] - mean) ** 2) / variance / 2 - np.log(variance) / 2)
    inside = float(one["log_likelihood"]["y"].mean(("chain", "draw")).sum())
    assert abs(found.elpd - np.sum(exact)) < 0.5 < abs(inside - np.sum(exact))


def test_saved_and_loaded(tree: xr.DataTree, problem: LogDensity, tmp_path: Path) -> None:
    """A file predicts like the run that it holds."""
    tree.to_netcdf(tmp_path / "samples.nc")
    loaded = xr.open_datatree(tmp_path / "samples.nc").load()
    xr.testing.assert_identical(loaded, tree)
    both = [predictive(each, problem, X[:3], Y[:3]) for each in (loaded, tree)]
    xr.testing.assert_identical(*both)


def test_draws_of_a_regression(tree: xr.DataTree, problem: LogDensity) -> None:
    """They have the mean of the samples' predictions, and the noise's variance around it."""
    found = predictive(tree, problem, X[:3], Y[:3])
    drawn = found["posterior_predictive"]["y"]
    assert drawn.dims == ("temperature", "chain", "draw", "example")
    samples = tree["posterior"]
    mean = samples["w"].values @ X[:3].T + samples["b.value"].values[..., None]
    noise = (drawn.values - mean).ravel()
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / noise.size)
    expected = -((Y[:3] - mean) ** 2) / 2
    np.testing.assert_allclose(found["log_likelihood"]["y"], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(found["observed_data"]["y"], Y[:3])


def test_class_probabilities_and_calibration(tree: xr.DataTree) -> None:
    """Draws follow the probabilities; averages are over the samples of one setting."""
    labels = np.array([0, 1, 1, 0])
    classes = make(probabilities=probabilities)
    found = predictive(tree, classes, X[:4], labels)
    chances = found["posterior_predictive"]["probability"]
    assert chances.dims == ("temperature", "chain", "draw", "example", "class")
    logits = tree["posterior"]["w"].values @ X[:4].T
    np.testing.assert_allclose(chances[..., 1], 1 / (1 + np.exp(-logits)), rtol=1e-4)
    drawn = found["posterior_predictive"]["y"]
    error = np.sqrt((chances[..., 1] * chances[..., 0]).sum()) / drawn.size
    assert abs(float(drawn.mean() - chances[..., 1].mean())) < 5 * error
    one = found.sel(temperature=1.0)
    averages, targets = averaged_predictions(one)
    np.testing.assert_allclose(averages, chances[0].mean(("chain", "draw")), rtol=1e-5)
    assert targets.tolist() == labels.tolist()
    bins = calibration(one, bins=5)
    right = (np.asarray(averages).argmax(axis=1) == labels).sum()
    assert (bins.accuracy * bins.examples).sum() == pytest.approx(right)
    assert float(score_predictions(averages, targets)["accuracy"]) == right / 4
    with pytest.raises(ConfigError, match=r"of one setting, such as predicted\.sel\(temperature="):
        calibration(found)


def test_one_lane_and_lanes_of_different_lengths(run: Any, problem: LogDensity) -> None:
    alone = dataclasses.replace(
        run,
        curves=run.curves.isel(temperature=0, seed=0),
        samples=jax.tree.map(lambda leaf: leaf[0], run.samples),
    )
    found = to_arviz(alone, burn_in=0)["posterior"]
    assert found["w"].dims == ("chain", "draw", "w_dim_0") and found["chain"].values == [3]
    np.testing.assert_array_equal(found["w"][0], run.samples["w"][0])
    ticks = run.curves["ticks"].values.copy()
    ticks[1, 0, 200:] = ticks[1, 0, 199]
    curves = run.curves.assign_coords(ticks=(run.curves["ticks"].dims, ticks))
    cut = to_arviz(dataclasses.replace(run, curves=curves), burn_in=0)["posterior"]["w"]
    assert np.isnan(cut[1, 0, 200:]).all() and np.isnan(cut).sum() == 2 * 101
    # Samples that do not exist draw no class.
    cut_run = dataclasses.replace(run, curves=curves)
    drawn = predictive(cut_run, make(probabilities=probabilities), X, burn_in=190)
    drawn = drawn["posterior_predictive"]["y"]
    assert np.isnan(drawn[1, 0, 10:]).all() and np.isnan(drawn).sum() == 101 * len(X)
    assert set(np.unique(drawn[1, 1])) == {0, 1}


def test_names_with_slashes_and_equal_names(run: Any) -> None:
    """Such as haiku's; every array has a name of its own."""
    w, b = run.samples["w"], run.samples["b"]["value"]
    other = {"mlp/~/linear_0": {"w": w}, "b.w": b, "b": {"w": b + 1}, "draw": b}
    found = to_arviz(dataclasses.replace(run, samples=other), burn_in=0)["posterior"]
    assert {*found.data_vars} == {"mlp|~|linear_0.w", "b.w", "b.w (1)", "draw (2)"}
    np.testing.assert_array_equal(found["mlp|~|linear_0.w"].values.reshape(w.shape), w)
    np.testing.assert_array_equal(found["b.w"].values.reshape(b.shape), b + 1)
    np.testing.assert_array_equal(found["b.w (1)"].values.reshape(b.shape), b)


def test_what_is_refused(run: Any, tree: xr.DataTree) -> None:
    for options in ({"burn_in": 301}, {"thin": 0}, {"thin": 1.5}):
        with pytest.raises(ConfigError, match="must be a whole number"):
            to_arviz(run, **options)
    with pytest.raises(ConfigError, match=r"keep=Keep\(models=True\)"):
        to_arviz(dataclasses.replace(run, samples=None))
    with pytest.raises(ConfigError, match="problem is 'dict', but must be one of problems"):
        to_arviz(run, {})
    with pytest.raises(ConfigError, match="made with one of them"):
        predictive(tree, make(), X)
    classes = make(probabilities=probabilities)
    with pytest.raises(
        ConfigError, match=r"shape of targets is \(4,\), but must be \(5, \.\.\.\), as of"
    ):
        predictive(tree, classes, X[:5], [0, 1, 1, 0])
    for label in (2, -1):
        with pytest.raises(
            ConfigError, match=f"one of targets is {label}, but must be a class from 0"
        ):
            predictive(tree, classes, X[:4], [0, 1, label, 0])
