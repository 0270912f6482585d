"""`Keep(output="mean")`: FAVANO's mu_t, the mean of the server's and all clients' models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Checkpoints, ConfigError, Keep, Layout
from fedjax_sim.engine.program.replay import mean_model

TICKS, N = 12, 7
MEAN = Keep(models=True, output="mean")


def run(system: Any, problem: Any, hyper: Any, keep: Keep, **options: Any) -> fedjax_sim.Run:
    """Run one lane in float64, evaluated at every second tick."""
    with jax.enable_x64(True):
        return fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=4,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS // 2,
            layout=Layout(4, False, 1, evals_per_chunk=1),
            keep=keep,
            **options,
        )


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    with jax.enable_x64(True):
        return regression(N, dtype="float64")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["favano", "fedavg", "fedbuff"])
def test_mean_of_the_versions_that_clients_hold(name: str, problem: Any, small: Callable) -> None:
    """By the schedule and the server's models of every tick."""
    system = fedjax_sim.SYSTEMS[name]
    hyper = small(system)
    with jax.enable_x64(True):
        every = fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=4,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS,
            layout=Layout(4, False, 1),
            keep=Keep(models=True),
        )
    found = run(system, problem, hyper, MEAN)
    schedule, versions = every.timelines[0], np.asarray(every.samples)
    held, expected = np.zeros(N, int), [versions[0]]
    for tick in range(TICKS):
        is_there = schedule.clients[tick] >= 0
        held[schedule.clients[tick][is_there]] = schedule.holds[tick][is_there]
        if tick % 2:
            expected.append((versions[tick + 1] + versions[held].sum(axis=0)) / (N + 1))
    np.testing.assert_allclose(found.samples, expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(found.models, found.samples[-1])
    assert np.abs(np.asarray(found.models) - versions[-1]).max() > 1e-4
    with jax.enable_x64(True):
        losses = [float(problem.evaluate(jnp.asarray(w))["loss"]) for w in expected]
    np.testing.assert_allclose(found.curves.loss.values, losses, rtol=1e-5)


def test_mean_of_clients_own_models(problem: Any, small: Callable) -> None:
    """QuAFL's clients mix: the metric client_variance stays the distance to the server's model."""
    system = fedjax_sim.SYSTEMS["quafl"]
    hyper = small(system)
    server = run(system, problem, hyper, Keep(models=True, client_variance=True))
    found = run(system, problem, hyper, MEAN)
    np.testing.assert_array_equal(found.curves.client_variance, server.curves.client_variance)
    with jax.enable_x64(True):
        bound = fedjax_sim.bind(system, problem, hyper, seed=4, budget=fedjax_sim.Ticks(TICKS))
        state = bound.init()
        for tick in range(bound.num_ticks):
            state, _ = bound.step(state, bound.event(tick))
        clients = np.asarray(state.clients)
    expected = (np.asarray(server.models) + clients.sum(axis=0)) / (N + 1)
    np.testing.assert_allclose(found.models, expected, rtol=0, atol=1e-10)


def test_a_resumed_run_goes_on_with_its_mean(problem: Any, small: Callable, tmp_path: Path) -> None:
    system = fedjax_sim.SYSTEMS["favano"]
    whole = run(system, problem, small(system), MEAN)
    found = [
        run(system, problem, small(system), MEAN, checkpoints=Checkpoints(tmp_path, every=0, **how))
        for how in ({}, {"resume": True})
    ]
    for each in found:
        np.testing.assert_array_equal(each.models, whole.models)
        np.testing.assert_array_equal(each.samples, whole.samples)
    with pytest.raises(ConfigError, match="output"):
        run(
            system,
            problem,
            small(system),
            Keep(models=True),
            checkpoints=Checkpoints(tmp_path, every=0, resume=True),
        )


def test_rows_without_holders_are_ignored() -> None:
    models = {"a": jnp.array([[1.0, 2.0], [np.nan, np.nan], [5.0, 6.0]])}
    found = mean_model(models, jnp.array([2, 0, 1]), {"a": jnp.array([0.0, 1.0])})
    np.testing.assert_allclose(found["a"], [7 / 4, 11 / 4], rtol=1e-6)


@pytest.mark.parametrize("name", ["fedem", "oort"])
def test_refusals(name: str, noisy_mean: Callable, regression: Callable, small: Callable) -> None:
    """Statistics are no models, and live clocks do not say what clients hold."""
    system = fedjax_sim.SYSTEMS[name]
    made = noisy_mean() if name == "fedem" else regression(N)
    with pytest.raises(ConfigError, match=f"output is 'mean', but must be server for {name}"):
        fedjax_sim.simulate(
            system, made, small(system), budget=fedjax_sim.Ticks(2), keep=Keep(output="mean")
        )
