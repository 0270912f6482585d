"""FedNova's Table 1: the network, the split, the rounds and the steps of Flower's code."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from flax import struct

import fedjax_sim
from experiments.harness import Arguments, Sizes
from experiments.reproductions import fednova
from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import as_array
from fedjax_sim.problems import Quadratic

EXAMPLES = np.array([10, 40, 100])
PASSES = np.array([1, 2, 4])
"""Mini-batches of 32 in an epoch."""
CENTERS = np.array([[3.0, -1.0], [0.5, 2.0], [-2.0, 1.0]])
CURVATURE = np.array([0.5, 1.0, 2.0])
START = np.array([1.0, -2.0])


@struct.dataclass
class OfExamples(Quadratic):
    """Quadratics of three clients with 10, 40 and 100 examples."""

    @property
    def counts(self) -> jax.Array:
        """The numbers: `i32[N]`."""
        return as_array(EXAMPLES, "int32")


def run_quadratics(row: str, rounds: int) -> fedjax_sim.Run:
    """Run a row on three quadratics, in float64."""
    system, hyper = fednova.system_and_settings(row, rounds)
    with jax.enable_x64(True):
        problem = OfExamples.of(CENTERS, curvature=CURVATURE, start=START)
        return fedjax_sim.simulate(
            system,
            problem,
            hyper.replace(num_clients=3, num_selected=3),
            budget=fedjax_sim.Ticks(rounds),
            num_evals=rounds,
            keep=fedjax_sim.Keep(models=True),
        )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "row",
    [
        "FedAvg momentum 2",
        "FedAvg proximal 2",
        "FedNova vanilla 2",
        "FedNova proximal 2",
        "FedNova hybrid random",
    ],
)
def test_four_rounds_by_hand(row: str) -> None:
    """The rates are lower in rounds 2 and 3 of 4; sizes are counted step by step."""
    name, solver, epochs = row.split()
    first = 0.02 if solver in ("momentum", "hybrid") else 0.05
    rho = 0.9 if solver in ("momentum", "hybrid") else 0.0
    mu = 0.005 if solver == "proximal" else 0.0
    found, server, velocity = run_quadratics(row, 4), START, np.zeros(2)
    all_steps = found.timelines[0].steps
    if epochs == "2":
        np.testing.assert_array_equal(all_steps, [2 * PASSES] * 4)
    assert found.samples is not None
    for t, lr in enumerate(first * np.array([1, 0.1, 0.01, 1])):
        progress, sizes = np.zeros((3, 2)), np.zeros(3)
        for i in range(3):
            model, buffer, grown = server, np.zeros(2), 0.0
            for _ in range(int(all_steps[t, i])):
                buffer = rho * buffer + CURVATURE[i] * (model - CENTERS[i])
                model = model - lr * (buffer + mu * (model - server))
                grown = rho * grown + 1
                sizes[i] = sizes[i] + grown if rho else sizes[i] * (1 - lr * mu) + 1
            progress[i] = model - server
        weights = EXAMPLES / sizes if name == "FedNova" else EXAMPLES
        mean = weights @ progress / weights.sum()
        velocity = 0.9 * velocity + mean if solver == "hybrid" else mean
        server = server + velocity
        np.testing.assert_allclose(found.samples[t + 1], server, rtol=0, atol=1e-12)


def test_random_epochs_are_two_to_four_along_diagonals() -> None:
    system, hyper = fednova.system_and_settings("FedAvg vanilla random", 300)
    hyper = hyper.replace(num_clients=3, num_selected=3)
    with jax.enable_x64(True):
        hyper = hyper.completed(OfExamples.of(CENTERS))
        rounds = jax.jit(system.timeline, static_argnums=2)(jax.random.key(0), hyper, 300)
    np.testing.assert_allclose(rounds.weight, [EXAMPLES / 150] * 300)
    epochs = np.asarray(rounds.steps) / PASSES
    np.testing.assert_array_equal(epochs[1:, :-1], epochs[:-1, 1:])
    counts = np.bincount(epochs[:, 0].astype(int), minlength=5)
    assert counts[:2].sum() == 0 and counts.sum() == 300
    np.testing.assert_allclose(counts[2:], 100, atol=5 * (300 * 2 / 9) ** 0.5)


def test_rates_are_low_in_two_rounds_only() -> None:
    factors = fednova.factors(100)
    assert len(factors) == 100 and factors[49] == 0.1 and factors[74] == 0.01
    assert set(factors[:49] + factors[50:74] + factors[75:]) == {1.0}


def test_the_network_is_the_sources() -> None:
    """The number of parameters is the one on the page."""
    network, images = fednova.VGG(), jnp.ones((2, 32, 32, 3))
    shapes = jax.eval_shape(network.init, jax.random.key(0), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 9_750_922
    small = fednova.VGG(((64,),), 100)
    images = jax.random.normal(jax.random.key(2), (2, 8, 8, 3))
    params = jax.jit(small.init)(jax.random.key(1), images)
    kernel, bias = (params["params"]["Conv_0"][part] for part in ("kernel", "bias"))
    wanted = (2 / (9 * 64)) ** 0.5
    assert abs(float(kernel.std()) - wanted) < 5 * wanted / (2 * kernel.size) ** 0.5
    assert not bias.any()
    for part in ("kernel", "bias"):
        assert 0.09 < float(jnp.abs(params["params"]["Dense_1"][part]).max()) < 0.1
    apply = jax.jit(small.apply, static_argnames="train")
    dropped = apply(params, images, train=True, rngs={"dropout": jax.random.key(3)})
    assert float(jnp.abs(apply(params, images) - dropped).min()) > 0


def test_clients_have_the_sources_examples() -> None:
    """The sizes follow from the seed 2020 and from 5,000 images of each class."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    split = fednova.split_of(labels)
    np.testing.assert_array_equal(np.sort(split.index), np.arange(50_000))
    wanted = [298, 1077, 4862, 1743, 3713, 3867, 1600, 3271]
    wanted += [3825, 6520, 4596, 1270, 3437, 4750, 248, 4923]
    assert split.counts.tolist() == wanted
    with pytest.raises(ConfigError, match="split by Dirichlet"):
        fednova.split_of(labels[:150])  # too few for ten each


@pytest.mark.slow
def test_weights_decay_and_images_are_normalised() -> None:
    data = datasets.load("digits")
    problem: Any = fednova.problem_of(data, fednova.VGG(((4,),), 8))
    params = jax.tree.map(lambda leaf: 10 * leaf, problem.init(jax.random.key(0)))
    bare = problem.replace(prior_precision=None)
    rows, key = jnp.arange(4), jax.random.key(1)
    both = (jax.jit(each.loss)(params, jnp.int32(0), rows, key) for each in (problem, bare))
    with_decay, without = both
    squares = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(params))
    assert np.isclose(with_decay - without, 1e-4 / 2 * squares, rtol=1e-2)
    images = problem.prepare((jnp.full((1, 8, 8, 1), 255, "uint8"), rows[:1]))[0]
    np.testing.assert_allclose(images, (1 - 0.4914) / 0.2023, rtol=1e-6)
    assert problem.augmentation.change == fedjax_sim.problems.Augmentation(pad=4, flip=True)


def test_other_data_and_diverged_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file nothing is judged; a run whose loss is nan does not count."""
    data, file = datasets.load("digits"), tmp_path / "mine.npz"
    np.savez(file, **{name: getattr(data, name) for name in datasets.arrays.ARRAYS})
    full = Sizes(3, dataset="cifar10", rounds=2, stages=((4,),), units=8)
    monkeypatch.setattr(fednova, "STUDY", fednova.STUDY._replace(full=full))
    last = {"loss": [1.0, np.nan, 1.0], "accuracy": [0.62, 0.1, 0.6201]}
    curves = xr.Dataset({name: (("seed", "eval"), [[x] for x in of]) for name, of in last.items()})
    asked: list[dict[str, Any]] = []

    def sweep(*args: Any, **options: Any) -> SimpleNamespace:
        asked.append(options)
        return SimpleNamespace(curves=curves)

    monkeypatch.setattr(fedjax_sim, "sweep", sweep)
    row = "FedAvg vanilla 2"
    outcome = fednova.run(Arguments(dataset=str(file), only=row))
    assert "mine.npz in place of cifar10: no row is judged" in outcome.text
    assert "| not run" in outcome.text and f"{row}: 1 diverged" in outcome.text
    ours = outcome.config["ours"][row]
    assert ours.seeds == 2 and np.isclose(ours.mean, 62.005)
    assert [options["seeds"] for options in asked] == [3]
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: data)
    outcome = fednova.run(Arguments(only=row))
    assert "in place of" not in outcome.text and "| holds" in outcome.text


def test_rows_are_those_of_the_page() -> None:
    """Twelve numbers; proximal steps for random numbers of epochs are not among them."""
    printed = fednova.PRINTED
    assert len(printed) == 12 and "FedNova proximal random" not in printed
    row = printed["FedNova momentum random"]
    assert (row.number, row.digit, row.runs) == (74.26, 0.01, 2)
    assert row.quote == '"Random(2-5) | Momentum | 72.75 ± 1.28 | 74.26 ± 0.39"'
