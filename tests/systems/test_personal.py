"""Which leaves of a model are personal, and how personal models are evaluated."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Plan
from fedjax_sim.clients import personal_metrics
from fedjax_sim.core.trees import join
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import MLP
from fedjax_sim.partition import Partition
from fedjax_sim.problems import Quadratic, make_classification
from fedjax_sim.server.privacy import parse_privacy

FEDPER = fedjax_sim.SYSTEMS["fedper"]


@pytest.fixture(scope="module")
def images() -> Any:
    """Three classes of flat images of five numbers; three clients, two of which have one class."""
    random = np.random.default_rng(0)
    train, test = (random.normal(size=(num, 1, 5, 1)).astype("float32") for num in (12, 20))
    # No test example has the last class.
    labels, test_labels = np.arange(12, dtype="int32") % 3, np.arange(20, dtype="int32") % 2
    data = Dataset(train, labels, test, test_labels, 3, "noise")
    index = np.array([0, 3, 6, 9, 1, 4, 7, 0, 1, 2, 5])
    return make_classification(MLP((4,), 3), data, Partition(index, np.array([4, 3, 4])))


@pytest.fixture(scope="module")
def model(images: Any) -> Any:
    """The perceptron's first parameters."""
    return images.init(jax.random.key(0))


@pytest.mark.parametrize(
    ("personal", "expected"),
    [
        ("", ["params/Dense_1/bias", "params/Dense_1/kernel"]),
        ("bias", ["params/Dense_0/bias", "params/Dense_1/bias"]),
        (lambda path: path.endswith("Dense_0/kernel"), ["params/Dense_0/kernel"]),
    ],
)
def test_leaves_are_chosen_by_their_paths(model: Any, personal: Any, expected: list[str]) -> None:
    hyper = FEDPER.paper(personal=personal)
    flags, _ = jax.tree.flatten_with_path(hyper.are_personal(model))
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flags]
    assert [name for name, (_, is_own) in zip(names, flags, strict=True) if is_own] == expected
    shared, own = hyper.split(model)
    assert len(jax.tree.leaves(own)) == len(expected)
    jax.tree.map(np.testing.assert_array_equal, join(shared, own), model)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (["Dense_0", "Encoder_0/Dense_0", "Encoder_0/Block_1/Dense_7"], "Dense_0"),
        (["Dense_2", "Dense_9", "Dense_10", "DenseBlock_3/Conv_0"], "Dense_10"),
        (["Head_0/Dense_1", "Head_0/Dense_0", "Head_0/Rest/Dense_3"], "Head_0/Dense_1"),
    ],
)
def test_the_last_dense_layer_is_the_outermost(layers: list[str], expected: str) -> None:
    """Of several layers of one module it is the one with the largest number."""
    model = {f"params/{layer}": {"kernel": np.zeros(1)} for layer in layers}
    flags = FEDPER.paper().are_personal(model)
    assert [path for path, of_layer in flags.items() if of_layer["kernel"]] == [
        f"params/{expected}"
    ]


def test_dense_layers_of_several_modules_are_refused() -> None:
    model = {part: {"Dense_0": {"kernel": np.zeros(1)}} for part in ("Left_0", "Right_0")}
    words = "personal is '', but must be given, as dense layers are in params/Left_0/, params/Right"
    with pytest.raises(ConfigError, match=words):
        FEDPER.paper().are_personal({"params": model})


@pytest.mark.parametrize("personal", ["Conv", "Dense"])
def test_all_or_nothing_is_refused(images: Any, personal: str) -> None:
    with pytest.raises(ConfigError, match=f"personal is '{personal}', but must be such that some"):
        FEDPER.fit.complete(FEDPER.paper(num_clients=3, personal=personal), images)


def test_only_heads_are_kept_for_every_client(images: Any) -> None:
    """The head of 4 times 3 numbers and 3 biases; its bits are not sent."""
    hyper = FEDPER.paper(num_clients=3, num_selected=3)
    state = jax.eval_shape(FEDPER.algorithm(images, hyper, Plan()).init, jax.random.key(0))
    assert [leaf.shape for leaf in jax.tree.leaves(state.clients)] == [(3, 3), (3, 4, 3)]
    assert [leaf.shape for leaf in jax.tree.leaves(state.server)] == [(4,), (5, 4)]
    assert FEDPER.messages.bits(images.init(jax.random.key(0)), hyper) == (32 * 24,) * 2


def test_own_models_are_evaluated_on_test_examples_of_the_clients_classes(
    images: Any, model: Any
) -> None:
    """Accuracy and loss are means over the test examples of a class, for clients with one class.

    The third client has an example of each of two classes, and two of a class that is not tested.
    """
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), model)
    found = images.evaluate_clients(lambda i: jax.tree.map(lambda leaf: leaf[i], models))
    of_class = []
    for i in range(3):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], models)
        logits = np.asarray(images.model.apply(mine, images.test_data[0]))
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(20), images.test_labels]
        is_right = logits.argmax(axis=1) == images.test_labels
        masks = [np.asarray(images.test_labels) == c for c in (0, 1)]
        of_class.append([(is_right[mask].mean(), losses[mask].mean()) for mask in masks])
    expected = [of_class[0][0], of_class[1][1], np.mean(of_class[2], axis=0)]
    for at, name in enumerate(("accuracy", "loss")):
        np.testing.assert_allclose(found[name], np.array(expected)[:, at], rtol=1e-5)


@pytest.mark.slow
def test_the_mean_over_clients_is_reported(images: Any, small: Callable) -> None:
    """At the start all personal models are the first one."""
    hyper = small(fedjax_sim.SYSTEMS["ditto"], num_clients=3, num_selected=2)
    run = fedjax_sim.simulate(
        fedjax_sim.SYSTEMS["ditto"], images, hyper, budget=fedjax_sim.Ticks(2), num_evals=1
    )
    found = images.evaluate_clients(lambda i: images.init(_first_key()))
    np.testing.assert_allclose(run.curves.personal_loss[0], found["loss"].mean(), rtol=1e-5)
    assert run.curves.personal_loss[1] < run.curves.personal_loss[0]


@pytest.mark.slow
def test_clients_whose_classes_are_not_tested_are_left_out(
    images: Any, model: Any, small: Callable
) -> None:
    """They have nan, with which no lane fails. A model that diverged is infinitely bad instead."""
    index, counts = jnp.array([[0, 3], [2, 5], [1, 4]]), jnp.array([2, 2, 2])
    problem = images.replace(index=index, counts=counts, per_client=True)
    found = problem.evaluate_clients(lambda i: model)
    for name in ("accuracy", "loss"):
        assert np.isnan(found[name]).tolist() == [False, True, False]
    broken = personal_metrics(problem, lambda i: jax.tree.map(lambda leaf: leaf * jnp.nan, model))
    assert np.isinf(broken["personal_loss"])
    assert np.isnan(broken["personal_client_loss[client]"]).tolist() == [False, True, False]
    ditto = fedjax_sim.SYSTEMS["ditto"]
    hyper = small(ditto, num_clients=3, num_selected=2)
    run = fedjax_sim.simulate(ditto, problem, hyper, budget=fedjax_sim.Ticks(2), num_evals=1)
    assert not run.curves.failed
    final = fedjax_sim.results.summary({"ditto": run.curves})["systems"]["ditto"]["final"]
    for name in ("accuracy", "loss"):
        of_clients = run.curves[f"personal_client_{name}"].values[-1]
        mean = np.mean(of_clients[[0, 2]])
        np.testing.assert_allclose(run.curves[f"personal_{name}"][-1], mean, rtol=1e-6)
        np.testing.assert_allclose(final[f"personal_client_{name}"]["mean"], mean, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["pfedme", "perfedavg"])
def test_adapted_models_are_learnt_with_privacy(name: str) -> None:
    """Reports are changes of the model: their clipped mean, noise on it, and FedAvg's epsilon."""
    system, fedavg = fedjax_sim.SYSTEMS[name], fedjax_sim.SYSTEMS["fedavg"]
    centres = np.random.default_rng(1).normal(size=(6, 300)).astype("float32")
    problem = Quadratic.of(centres)

    def run(system: Any, text: str) -> Any:
        given = {"num_clients": 6, "num_selected": 6, "sampling": "reshuffled", "lr": 0.05}
        hyper = system.Hyper(**given, batch_size=1, privacy=parse_privacy(text))
        return fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(1), num_evals=1)

    # Clients learn alone in cohorts of one.
    learning = []
    for client in range(6):
        alone = Quadratic.of(centres[client : client + 1])
        hyper = system.Hyper(num_clients=1, num_selected=1, lr=0.05, batch_size=1)
        one = fedjax_sim.simulate(system, alone, hyper, budget=fedjax_sim.Ticks(1), num_evals=1)
        learning.append(one.models - np.zeros(300))
    norms = np.linalg.norm(learning, axis=1)
    bound = float(np.sort(norms)[2])  # which three clients exceed
    clipped = np.array(learning) * np.minimum(1, bound / norms)[:, None]
    found = run(system, f"fixed:clip={bound}")
    np.testing.assert_allclose(found.models, clipped.mean(axis=0), rtol=2e-5, atol=1e-7)
    noisy = run(system, f"fixed:clip={bound}:noise=3")
    noise = (noisy.models - found.models) / (3 * bound / 6)
    assert abs(noise.std() - 1) < 5 / 600**0.5 and abs(noise.mean()) < 5 / 300**0.5
    theirs = run(fedavg, f"fixed:clip={bound}:noise=3").curves.epsilon
    np.testing.assert_array_equal(noisy.curves.epsilon, theirs)


def test_nobody_finds_a_model_without_a_loss() -> None:
    """A model of IFCA's that became nan has not the smallest loss, wherever it stands."""
    ifca = fedjax_sim.SYSTEMS["ifca"]
    hyper = ifca.Hyper(num_clients=3, num_selected=3, batch_size=1, num_models=2)
    problem = Quadratic.of(np.eye(3, dtype="float32"))
    bound = fedjax_sim.bind(ifca, problem, hyper, budget=fedjax_sim.Ticks(1))
    first = bound.init()
    broken = first._replace(server=first.server.at[1].set(jnp.nan))
    state, _ = jax.jit(bound.step)(broken, bound.event(0))
    assert state.clients.tolist() == [0, 0, 0]
    assert jnp.isfinite(state.server[0]).all() and (state.server[0] != first.server[0]).any()


def _first_key() -> jax.Array:
    stream = fedjax_sim.core.streams.stream
    return stream(stream(jax.random.key(0), "learning"), "init")
