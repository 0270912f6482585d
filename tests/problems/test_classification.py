"""Classification: evaluation, the prior, random streams of models, and a Bayesian perceptron."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_sim
from fedjax_sim import Layout, batching, datasets, partition, problems
from fedjax_sim.core.targets import tracing_for
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import CONVOLUTIONS, MLP, LogisticRegression
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classification, supervision
from fedjax_sim.results import diagnostics
from fedjax_sim.systems import fedavg, langevin

KEY = jax.random.key(0)


def test_evaluation_in_batches_is_evaluation_of_the_whole() -> None:
    """Batches whose size does not divide the test set still count every example once."""
    digits = datasets.load("digits")
    problem = problems.make_classification(
        LogisticRegression(10),
        digits,
        partition.make("iid", digits.train_labels, num_clients=2, seed=0),
    )
    params = problem.init(jax.random.key(0))
    whole = problem.evaluate(params)
    logits = LogisticRegression(10).apply(params, jnp.asarray(digits.test_images, "float32") / 255)
    assert whole["accuracy"] == np.float32((np.argmax(logits, 1) == digits.test_labels).mean())
    picked = jax.nn.log_softmax(logits)[np.arange(360), digits.test_labels]
    np.testing.assert_allclose(whole["loss"], -picked.mean(), rtol=1e-5)
    batches = problem.replace(test_block=100).evaluate(params)
    assert batches["accuracy"] == whole["accuracy"]
    np.testing.assert_allclose(batches["loss"], whole["loss"], rtol=1e-5)


@pytest.mark.slow
def test_few_programs_are_compiled(compiled: list[str]) -> None:
    """None for the problems, whatever their shapes; four for a call.

    They draw schedules, begin, replay, and find the final models.
    """
    digits = datasets.load("digits")
    small = digits._replace(train_images=digits.train_images[:91], train_labels=np.arange(91) % 10)
    splits = [iid(small.train_labels, num_clients=6, seed=seed) for seed in range(2)]
    made = problems.make_classifications(MLP((3,), 10), small, splits, prior_precision=2.5)
    assert compiled == []
    hyper = fedavg.Hyper(num_clients=6, num_selected=2, local_steps=2, batch_size=3)
    alone = Layout(lane_devices=1, client_devices=1)
    ticks = fedjax_sim.Ticks(3)
    fedjax_sim.sweep(fedavg.system, made, hyper, seeds=2, budget=ticks, num_evals=1, layout=alone)
    assert len(compiled) == 4, compiled


def test_a_classification_takes_the_options_of_all_supervised_problems() -> None:
    """With another loss of local steps the model goes where that loss is least."""
    digits = datasets.load("digits")
    split = iid(digits.train_labels, num_clients=2, seed=0)

    def step_loss(params: Any, aux: Any, batch: Any, extras: Any) -> tuple[jax.Array, Any]:
        return sum(jnp.square(leaf - 3).sum() for leaf in jax.tree.leaves(params)) / 2, aux

    make = partial(problems.make_classification, LogisticRegression(10), digits, split)
    hyper = fedavg.Hyper(num_clients=2, num_selected=2, local_steps=2, batch_size=3, lr=1.0)
    made = make(step_loss=step_loss, test_block=7)
    assert made.test_block == 7
    run = fedjax_sim.simulate(fedavg.system, made, hyper, budget=fedjax_sim.Ticks(1))
    for leaf in jax.tree.leaves(run.models):
        np.testing.assert_allclose(leaf, 3, rtol=1e-6)
    with pytest.raises(fedjax_sim.ConfigError, match="test_block is 0, but must be a whole number"):
        problems.make_classifications(LogisticRegression(10), digits, [split], test_block=0)


def test_an_array_of_a_users_may_change_later() -> None:
    """What is put on a device has numbers of its own there."""
    images = np.zeros((64, 4, 4, 1), "float32")
    labels = np.arange(64) % 2
    dataset = Dataset(images, labels, images.copy(), labels, 2, "zeros")
    split = iid(labels, num_clients=2, seed=0)
    problem = problems.make_classification(LogisticRegression(2), dataset, split)
    images[:] = 1
    assert not np.asarray(problem.data[0]).any()


def test_chance_is_what_the_best_constant_guess_attains() -> None:
    digits = datasets.load("digits")
    split = partition.make("iid", digits.train_labels, num_clients=2, seed=0)
    problem = problems.make_classification(LogisticRegression(10), digits, split)
    biases = jax.tree.map(jnp.zeros_like, problem.init(jax.random.key(0)))
    leaves, structure = jax.tree.flatten(biases)
    which = next(i for i, leaf in enumerate(leaves) if leaf.shape == (10,))
    constant = []
    for c in range(10):
        leaves[which] = jnp.zeros(10).at[c].set(1)
        params = jax.tree.unflatten(structure, leaves)
        constant.append(float(problem.evaluate(params)["accuracy"]))
    assert 0 < problem.chance()["accuracy"] - max(constant) < 1 / 360


def test_models_get_random_streams_in_local_steps_only() -> None:
    """A model whose calls take `train` gets it, with one key per stream; evaluation does not."""

    class NoisyLogits:
        def init(self, key: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.zeros(())

        def apply(
            self, params: jax.Array, x: jax.Array, *, train: bool = False, rngs: dict | None = None
        ) -> jax.Array:
            noise = (
                jax.random.normal(rngs["dropout"], (10,))
                + 10 * jax.random.normal(rngs["quantize"], (10,))
                if train
                else jnp.zeros(10)
            )
            return params + jnp.broadcast_to(noise, (x.shape[0], 10))

    digits = datasets.load("digits")
    problem = problems.make_classification(
        NoisyLogits(), digits, partition.make("iid", digits.train_labels, num_clients=2, seed=0)
    )
    params, client, examples = problem.init(jax.random.key(0)), jnp.int32(0), jnp.arange(5)
    losses = [
        float(problem.loss(params, client, examples, jax.random.key(seed))) for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]
    np.testing.assert_allclose(problem.evaluate(params)["loss"], np.log(10), rtol=1e-5)


@pytest.mark.slow
def test_the_prior_adds_a_ridge_to_the_loss_of_every_example(cancer: datasets.Dataset) -> None:
    """Its gradient is precision / n times the parameters: the prior's, divided by n examples."""
    part = iid(cancer.train_labels, num_clients=3, seed=0)
    flat, ridge = (
        make_classification(LogisticRegression(2), cancer, part, prior_precision=prior)
        for prior in (None, 5.0)
    )
    params = flat.init(KEY)
    slopes = [
        jax.jit(jax.grad(problem.loss))(params, 1, jnp.arange(4), KEY) for problem in (flat, ridge)
    ]
    jax.tree.map(
        lambda a, b, w: np.testing.assert_allclose(b - a, 5 / 426 * w, atol=1e-6), *slopes, params
    )
    logits = flat.model.apply(params, jnp.asarray(cancer.test_images))
    np.testing.assert_allclose(flat.predict(params), jax.nn.softmax(logits), rtol=1e-5)


@pytest.mark.slow
def test_a_bayesian_perceptron_on_digits() -> None:
    """Averaged predictions are more accurate than 0.9.

    Their loss is below the mean loss of the single samples (Jensen's inequality).
    """
    digits = datasets.load("digits")
    problem = make_classification(
        MLP((16,), 10),
        digits,
        iid(digits.train_labels, num_clients=5, seed=0),
        prior_precision=10.0,
    )
    hyper = langevin.paper(num_clients=5, local_steps=5, batch_size=32, step_size=2e-4)
    options = {
        "budget": fedjax_sim.Ticks(60),
        "num_evals": 12,
        "keep": fedjax_sim.Keep(models=True),
        "layout": Layout(5, True, 1),
    }
    run = fedjax_sim.sweep(langevin.system, problem, hyper, seeds=2, **options)
    found = diagnostics.average_predictions(problem, run.samples, burn_in=5)
    assert found.probabilities.shape == (2, 360, 10)
    np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1, rtol=1e-5)
    single = run.curves.loss.values[:, 5:]
    np.testing.assert_allclose(found.curves["nll"][:, 0], single[:, 0], rtol=1e-4)
    assert (found.curves["nll"][:, -1] < single.mean(axis=1)).all()
    assert (found.curves["accuracy"][:, -1] > 0.9).all()


def test_patches_count_as_activations() -> None:
    """Those of 16 channels and a 3x3 window are 144 numbers a place, far more than 16 outputs."""
    network = nn.Conv(16, (3, 3), conv_general_dilated=CONVOLUTIONS["patches"])
    example = jnp.zeros((1, 8, 8, 16))
    params = network.init(jax.random.key(0), example)
    with tracing_for("gpu"):
        at_once = supervision.evaluated_at_once(network.apply, params, example, on_cpu=7)
    assert at_once < supervision.LARGEST // (4 * 64 * 144)


def test_activations_of_earlier_layers_take_no_room() -> None:
    """A layer's inputs are dropped once it has its outputs, also within inner programs."""

    def at_once(layers: int, width: int = 100) -> int:
        def apply(params: Any, x: Any) -> Any:
            for _ in range(layers):
                x = jax.jit(lambda x: jnp.outer(x, x).sum(axis=0))(x)
            return x

        example = jnp.zeros(width)
        with tracing_for("gpu"):
            return supervision.evaluated_at_once(apply, jnp.zeros(()), example, on_cpu=7)

    assert at_once(20) == at_once(2)
    of_one = supervision.LARGEST // at_once(2)
    assert 4 * 100**2 <= of_one <= 4 * (2 * 100**2 + 10 * 100)


INNER: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda layer: lambda x: jax.lax.cond(x[0] > 0, layer, lambda x: x, x),
    "scan": lambda layer: lambda x: jax.lax.scan(lambda x, _: (layer(x), ()), x, length=2)[0],
}


@pytest.mark.parametrize("name", INNER)
def test_activations_of_all_inner_programs_count(name: str) -> None:
    layer = INNER[name](lambda x: jnp.outer(x, x).sum(axis=0))
    with tracing_for("gpu"):
        at_once = supervision.evaluated_at_once(
            lambda _, x: layer(x), jnp.zeros(()), jnp.zeros(100), on_cpu=7
        )
        nothing = supervision.evaluated_at_once(
            lambda _, x: x, jnp.zeros(()), jnp.zeros((1, 0)), on_cpu=7
        )
    assert at_once <= supervision.LARGEST // (4 * 100**2)
    assert nothing == supervision.LARGEST


def test_parameters_that_are_converted_take_no_room_for_each_example() -> None:
    """Also within inner programs."""

    def apply(params: jax.Array, x: jax.Array) -> jax.Array:
        return jax.jit(lambda w, x: x @ w.astype("bfloat16"))(params, x)

    example = jnp.zeros((1, 1000), "bfloat16")
    with tracing_for("gpu"):
        at_once = supervision.evaluated_at_once(apply, jnp.zeros((1000, 1000)), example, on_cpu=7)
    assert at_once >= supervision.LARGEST // (2 * 1000 * 4)


def test_an_accelerator_evaluates_as_many_examples_together_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them by default; with room for three, in pieces. The metrics stay the same."""
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)
    labels = np.arange(40, dtype=np.int32) % 10
    data = Dataset(images[:30], labels[:30], images[30:], labels[30:], 10, "random")
    problem = make_classification(MLP((5,), 10), data, iid(labels[:30], num_clients=3, seed=0))
    params = problem.init(jax.random.key(0))
    example = jnp.zeros((1, 4, 4, 1))

    def at_once() -> int:
        return supervision.evaluated_at_once(problem.model.apply, params, example, on_cpu=7)

    expected = problem.evaluate(params)
    assert at_once() == 7
    with tracing_for("gpu"):
        of_one = supervision.LARGEST // at_once()
        assert 4 * (16 + 5 + 10) <= of_one <= 4 * 20 * (16 + 5 + 10)
        assert problem._test_places(params, 10).shape == (1, 10)
        monkeypatch.setattr(supervision, "LARGEST", 3 * of_one)
        assert problem._test_places(params, 10).shape == (4, 3)
        found = problem.evaluate(params)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_lanes_that_are_evaluated_at_once_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batched lanes, batches of them, and families of lanes, of two members each here."""
    monkeypatch.setattr(supervision, "LARGEST", 2**11)
    monkeypatch.setattr(supervision, "LARGEST_OF_ALL", 2**13)
    found: list[int] = []

    def evaluate(lane: Any) -> Any:
        at_once = supervision.evaluated_at_once(
            lambda params, x: x + x, jnp.zeros(1), jnp.zeros(1), on_cpu=7
        )
        found.append(at_once)
        return lane

    lanes = jnp.zeros((8, 1))
    with tracing_for("gpu"):
        batching.map_lanes(evaluate, lanes, at_once=True)
        batching.map_lanes(evaluate, lanes, at_once=True, batches=4)
        batching.map_lanes(evaluate, lanes, at_once=False)
        over = partial(batching.map_lanes, at_once=True)
        batching.map_families(evaluate, lanes, lanes, size=2, map_over=over)
    batching.map_lanes(evaluate, lanes, at_once=True)
    assert found[0] == 2**12 // 8 // 4 and found[-1] == 7
    assert found[1:-1] == [2**8, 2**8, 2**12 // 8 // 4]
