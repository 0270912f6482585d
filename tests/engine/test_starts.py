"""Runs that start from a given model, or from the models of another run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.types import LatentProblem, Plan
from tests.conftest import SplitRegression

FEDAVG, FEDEM, LANGEVIN = (fedjax_sim.SYSTEMS[name] for name in ("fedavg", "fedem", "langevin"))
OPTIONS: dict[str, Any] = {
    "budget": fedjax_sim.Ticks(4),
    "num_evals": 2,
    "layout": Layout(4, False, 1),
}


@pytest.mark.parametrize("name", fedjax_sim.SYSTEMS)
def test_every_system_draws_its_model_by_the_problems_init(
    name: str, regression: Callable, noisy_mean: Callable, small: Callable
) -> None:
    """So that a problem whose `init` returns a given model lets the system start from it."""
    system = fedjax_sim.SYSTEMS[name]
    is_latent = system.fit.learns is LatentProblem
    form = {"is_split": name in ("fedper", "fedbn"), "is_whole": name == "vr_diana"}
    problem = noisy_mean(start=None) if is_latent else regression(**form)
    hyper = system.fit.complete(small(system), problem)
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.375, leaf.dtype), shapes)
    object.__setattr__(problem, "init", lambda key: start)
    algorithm = system.algorithm(problem, hyper, Plan(rows=3))
    model = algorithm.model(algorithm.init(jax.random.key(1)))
    # The model of FedPer is a mean over clients.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), model, start)


@pytest.mark.slow
def test_lanes_start_from_the_same_lane_of_a_run(regression: Callable, small: Callable) -> None:
    """By labels, not by position; settings that the first run did not sweep share a lane."""
    problem, hyper = regression(), small(FEDAVG)

    def run(**options: Any) -> fedjax_sim.Run:
        return fedjax_sim.sweep(FEDAVG, problem, hyper, **{**OPTIONS, **options})

    first = run(settings={"lr": [0.02, 0.05]}, seeds=[5, 2])
    again = run(settings={"lr": [0.05, 0.02]}, seeds=[2, 5], start=first)
    np.testing.assert_array_equal(
        [again.curves[f"w{i}"][:, :, 0] for i in range(3)],
        [first.curves[f"w{i}"][::-1, ::-1, -1] for i in range(3)],
    )
    assert (again.curves.loss[..., -1] < first.curves.loss[..., -1].values[::-1, ::-1]).any()
    one = first.lane(lr=0.05, seed=2)
    np.testing.assert_array_equal(one.models, first.models[3])
    for start in (one, np.asarray(one.models, "float64")):
        shared = run(settings={"lr": [0.02, 0.05]}, seeds=[0, 1], start=start)
        for i in range(3):
            assert (shared.curves[f"w{i}"][..., 0] == one.models[i]).all()
    # A lane of a run that swept less is the start of several.
    wider = fedjax_sim.sweep(
        *(FEDAVG, problem, small(FEDAVG, lr=0.05)),
        **OPTIONS,
        settings={"weighting": ["equal", "examples"]},
        seeds=[5, 2],
        start=first,
    )
    np.testing.assert_array_equal(wider.curves.w0[:, :, 0], [first.curves.w0[1, :, -1].values] * 2)


@pytest.mark.slow
def test_systems_of_expectation_maximisation_start_from_statistics(
    noisy_mean: Callable, small: Callable
) -> None:
    """Its final models are statistics, and a second run begins with them."""
    problem = noisy_mean(start=None)
    first = fedjax_sim.sweep(FEDEM, problem, small(FEDEM), seeds=2, **OPTIONS)
    again = fedjax_sim.sweep(FEDEM, problem, small(FEDEM), seeds=2, start=first, **OPTIONS)
    for i in range(first.models.shape[1]):
        np.testing.assert_array_equal(again.curves[f"w{i}"][:, 0], first.models[:, i])
    assert (again.models != first.models).all()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (np.zeros(4), r"start at the model is 'float\d\d\[4\]', but must be float32\[3\], as in"),
        (np.zeros(3, complex), r"start at the model is 'complex"),
        ({"w": np.zeros(3)}, "structure of start is"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    start: Any, words: str, regression: Callable, small: Callable, compiled: list[str]
) -> None:
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.sweep(FEDAVG, problem, hyper, start=start, **OPTIONS)
    assert not [name for name in compiled if "advance" in name]


@pytest.mark.slow
def test_a_resumed_chain_has_the_same_start(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """The start is part of what a resumed run must have in common, and names its lane."""
    start = np.full(3, 0.5, "float32")
    run = partial(
        fedjax_sim.sweep,
        *(LANGEVIN, regression(), small(LANGEVIN)),
        seeds=2,
        settings={"temperature": [1e-3, 1e-2]},
        keep=fedjax_sim.Keep(models=True),
        layout=OPTIONS["layout"],
        budget=fedjax_sim.Ticks(6),
        num_evals=3,
    )
    first = run(start=start, checkpoints=fedjax_sim.Checkpoints(tmp_path))
    again = fedjax_sim.Checkpoints(tmp_path, resume=True)
    np.testing.assert_array_equal(run(start=start, checkpoints=again).samples, first.samples)
    assert (first.samples[:, 0] == 0.5).all() and first.samples.shape[1] == 4
    with pytest.raises(ConfigError, match="differs in start"):
        run(start=2 * start, checkpoints=again)
    with pytest.raises(ConfigError, match=r"one with a lane of temperature=0.001, seed=2, or for"):
        run(seeds=[2], start=first)


@pytest.mark.slow
def test_lanes_that_only_their_labels_tell_apart(regression: Callable, small: Callable) -> None:
    """Functions are labelled by their names: which lane's model is meant would be a guess."""
    rates = [lambda lr: optax.sgd(lr), lambda lr: optax.sgd(lr / 2)]
    given = partial(fedjax_sim.sweep, FEDAVG, regression(), small(FEDAVG), **OPTIONS)
    run = given(settings={"optimizer": rates})
    with pytest.raises(ConfigError, match="one with only one lane of optimizer='<lambda>', seed=0"):
        given(settings={"optimizer": rates[1:]}, start=run)
    alone = given(start=run.model(1))
    np.testing.assert_allclose(alone.curves.loss[0, 0], run.curves.loss[1, 0, -1], rtol=1e-6)


def test_clusters_do_not_start_from_one_model(regression: Callable, small: Callable) -> None:
    """No client would ever find the second of two equal models."""
    ifca = fedjax_sim.SYSTEMS["ifca"]
    with pytest.raises(ConfigError, match="start is 'given', but must be None with num_models = 2"):
        fedjax_sim.sweep(ifca, regression(), small(ifca), start=np.zeros(3), **OPTIONS)


@struct.dataclass
class PartlyTrained(SplitRegression):
    """A model with a part that is averaged and not trained."""

    def untrained(self, params: Any) -> Any:
        return {"body": False, "head": True}


def test_a_problem_that_does_not_suit_is_refused_with_a_start(small: Callable) -> None:
    """A system sees the problem itself, and not the one whose first model is given."""
    fedpa, problem = fedjax_sim.SYSTEMS["fedpa"], PartlyTrained(*[jnp.ones((7, 2, 3))] * 4)
    problem = problem.replace(targets=jnp.ones((7, 2)), counts=jnp.full(7, 2), noise=jnp.float32(0))
    start = {"body": np.zeros(2), "head": np.zeros(1)}
    with pytest.raises(ConfigError, match="one whose model is trained whole"):
        fedjax_sim.sweep(fedpa, problem, small(fedpa), start=start, **OPTIONS)
