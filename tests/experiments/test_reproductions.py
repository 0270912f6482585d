"""Numbers of others: the criterion, the data, the networks, and DP-SGD by clients."""

import re
from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Sample, registry
from experiments.reproductions import (
    fednova,
    fedprox,
    flute,
    nanogpt,
    niid_bench,
    nvflare,
    pfllib,
    rows,
    tf_privacy,
    two_repositories,
)
from fedjax_sim import datasets
from fedjax_sim.partition import label_histogram
from fedjax_sim.server.privacy import FixedClipping
from fedjax_sim.systems import fedavg

PRINTED = rows.Printed("row", "source", "quote", number=90.0, digit=1.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((90.9, 91.0, 90.95), "holds"),  # half a digit and half a point
        ((91.3, 91.31, 91.29), "fails"),
        ((92.0, 91.0, 91.5), "undecided"),  # t is 4.3: the interval is 2.5 points
        ((90.0, 90.5, 91.0, 91.5, 90.75), "holds"),
        ((90.0,), "undecided"),
        ((float("nan"), 90.0), "undecided"),
    ],
)
def test_a_number_is_repeated_fails_or_is_open(values: tuple[float, ...], said: str) -> None:
    assert rows.verdict(PRINTED, Sample.of(values)) == said


def test_more_runs_of_the_source_narrow_the_interval() -> None:
    sample = Sample.of([1.0, 2.0, 3.0])
    assert rows.half_width(sample, 10) < rows.half_width(sample, 1)
    assert np.isclose(rows.half_width(sample, 1), 4.30265 * np.sqrt(4 / 3))


def test_smoke_runs_have_no_verdict() -> None:
    found = [(PRINTED, Sample.of([90.0, 90.0, 90.1]))]
    assert "| holds" in rows.report(found, is_smoke=False)
    assert "| not run" in rows.report(found, is_smoke=True)


def test_images_are_dealt_as_by_fedprox() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 700))
    owner = flute.owners(labels, 100, np.random.default_rng(1))
    sizes = np.bincount(owner[owner >= 0], minlength=100)
    assert sizes.min() >= 10 and sizes.max() > 10 * np.median(sizes)
    for user in range(100):
        digits, counts = np.unique(labels[owner == user], return_counts=True)
        assert set(digits) == {user % 10, (user + 1) % 10} and counts.min() >= 5


def test_the_transformer_looks_back_only_and_has_nanogpts_parameters() -> None:
    network = nanogpt.GPT(letters=65, layers=4, width=128)
    text = jax.random.randint(jax.random.key(0), (1, nanogpt.CONTEXT), 0, 65)
    params = network.init(jax.random.key(1), text)
    number = sum(leaf.size for leaf in jax.tree.leaves(params)) - nanogpt.CONTEXT * 128
    assert number == 795_904  # "number of parameters: 0.80M"
    other = text.at[0, 40].set((text[0, 40] + 1) % 65)
    before, after = (network.apply(params, each) for each in (text, other))
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert (jnp.abs(before - after)[:, 40:].max(-1) > 1e-6).all()


def test_rates_of_the_transformer() -> None:
    """A step of AdamW with a constant gradient moves every number by about the rate."""
    made = nanogpt.optimizer_of(2000, 100)(1.0)
    params = {"bias": jnp.zeros(3)}

    def take(state: optax.OptState, _: None) -> tuple[optax.OptState, jax.Array]:
        update, state = made.update({"bias": jnp.full(3, 0.1)}, state, params)
        return state, -update["bias"][0]

    moves = jax.lax.scan(take, made.init(params), None, length=2000)[1]
    assert np.isclose(moves[0], 1e-3 / 101, rtol=1e-3)
    assert np.isclose(moves[99], 1e-3 * 100 / 101, rtol=1e-3)
    assert np.isclose(moves[1050], 5.5e-4, rtol=1e-3) and np.isclose(moves[-1], 1e-4, rtol=1e-2)


def test_epsilons_are_the_tutorials() -> None:
    """The tutorial has orders between whole ones too; the simulator's own conversion is tighter."""
    for setting in tf_privacy.SETTINGS.values():
        if setting.noise:
            ours = tf_privacy.epsilon_of(setting)
            assert abs(ours - setting.epsilon) < 0.02
            assert 0.75 * ours < tf_privacy.accounted_epsilon(setting) < ours


@pytest.mark.slow
def test_clients_of_one_example_are_dp_sgd() -> None:
    """Without noise and with all clients, a round is a step along the mean clipped gradient."""
    whole = datasets.load("digits")
    few = whole._replace(train_images=whole.train_images[:12], train_labels=whole.train_labels[:12])
    problem = tf_privacy.problem_of(few)
    hyper = fedavg.Hyper(
        num_clients=12,
        num_selected=12,
        local_steps=1,
        batch_size=1,
        lr=0.25,
        sampling="reshuffled",
        privacy=FixedClipping(clip=0.25 * 0.5),
    )
    bound = fedjax_sim.bind(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(1))
    start, after = bound.model(bound.init()), bound.step(bound.init(), bound.event(0))[0]
    reached = bound.model(after)
    images, labels = few.train_images.astype("float32") / 255, few.train_labels.astype("int32")

    def loss(params: object, image: jax.Array, label: jax.Array) -> jax.Array:
        logits = tf_privacy.Network().apply(params, image[None])
        return optax.softmax_cross_entropy_with_integer_labels(logits, label[None]).mean()

    total = optax.tree.zeros_like(start)
    for image, label in zip(images, labels, strict=True):
        slope = jax.grad(loss)(start, image, label)
        factor = jnp.minimum(1.0, 0.5 / optax.tree.norm(slope))
        total = optax.tree.add_scale(total, factor / 12, slope)
    expected = optax.tree.add_scale(start, -0.25, total)
    for ours, theirs in zip(jax.tree.leaves(reached), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_two_labels_are_split_evenly_among_their_holders() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    split = niid_bench.two_labels(labels, num_clients=10, seed=3)
    held = label_histogram(split, labels, 10)
    assert held.sum() == 600 and ((held > 0).sum(axis=1) == 2).all()
    assert (np.diag(held) > 0).all()
    for counts in held.T:
        assert np.ptp(counts[counts > 0]) <= 1


@pytest.mark.parametrize(
    ("network", "number"),
    [
        (two_repositories.Convolutions(), 21_840),
        (two_repositories.Perceptron(64), 50_890),
        (two_repositories.Perceptron(200), 159_010),
    ],
)
def test_networks_have_the_repositories_parameters(network: nn.Module, number: int) -> None:
    images = jax.random.normal(jax.random.key(0), (4, 28, 28, 1))
    params = network.init(jax.random.key(1), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == number
    dropped = network.apply(params, images, train=True, rngs={"dropout": jax.random.key(2)})
    assert float(jnp.abs(network.apply(params, images) - dropped).min()) > 0


def test_clients_hold_two_shards_of_which_the_first_images_count() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    deal = partial(two_repositories.split_of, labels, 10)
    whole, part = deal(3, 1.0, is_iid=False), deal(3, 0.8, is_iid=False)
    np.testing.assert_array_equal(np.sort(whole.index), np.arange(600))
    assert (label_histogram(whole, labels, 10).max(axis=1) >= 30).all()
    assert set(part.counts) == {48}
    for held in part.rows():
        shards = labels[held[:30]], labels[held[30:]]
        assert [len(set(labels)) for labels in shards] == [1, 1]  # A whole one, part of another.
    mixed = label_histogram(deal(3, 0.8, is_iid=True), labels, 10)
    assert mixed.sum() == 480 and ((mixed > 0).sum(axis=1) > 6).all()


def test_the_loss_is_minus_the_probability_of_the_right_class() -> None:
    logits, labels = jnp.log(jnp.array([[0.2, 0.8], [0.7, 0.3]])), jnp.array([1, 1])
    found = two_repositories.minus_probability(logits, labels)
    np.testing.assert_allclose(found, [-0.8, -0.3], rtol=1e-6)
    sources = two_repositories.REPOSITORIES.values()
    assert [each.loss is two_repositories.minus_probability for each in sources] == [True, False]


@pytest.mark.parametrize(
    "module", [fednova, fedprox, niid_bench, nvflare, pfllib, tf_privacy, two_repositories]
)
def test_rows_are_chosen_by_name(module: ModuleType) -> None:
    """On the command line too, which refuses `--only` for modules without `ONLY`."""
    name = module.__name__.removeprefix("experiments.").replace(".", "/")
    assert registry.declares(name, "ONLY")
    for each in module.ONLY:
        arguments = Arguments(only=each)
        assert arguments.chosen(module.ONLY) == [each] and re.fullmatch(r"\w+", arguments.panel)
    assert Arguments().panel == ""
