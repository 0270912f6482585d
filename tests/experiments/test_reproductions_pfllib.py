"""PFLlib on Fashion-MNIST: its network and splits, rounds computed by hand, and what is printed."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from sklearn.model_selection import train_test_split

import fedjax_sim
from experiments.harness import Arguments, registry
from experiments.reproductions import pfllib
from fedjax_sim import datasets, models, problems
from fedjax_sim.clients import PersonalLeaves
from fedjax_sim.core import trees

FASHION = np.repeat(np.arange(10), 7000)
"""Labels like those of Fashion-MNIST, which has 7,000 images of each class."""
MNIST = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
TRAIN = "1972 374 1222 1905 1437 4641 942 951 2700 3004 2337 2829 2709 1600 4297 4086 2721 4239"
TEST = "658 125 408 636 480 1548 314 318 900 1002 779 943 904 534 1433 1362 907 1414"
"""Numbers of MNIST's images of the first clients, of 20, in the README of the repository."""


def sizes_of(part: list[np.ndarray]) -> list[int]:
    return [len(held) for held in part]


def test_the_network_has_the_sources_parameters() -> None:
    images = jnp.zeros((1, 28, 28, 1))
    shapes = jax.eval_shape(pfllib.Network().init, jax.random.key(0), images)
    number = 32 * 25 + 32 + 64 * 32 * 25 + 64 + 1024 * 512 + 512
    parts = PersonalLeaves().split(shapes)
    counted = [sum(leaf.size for leaf in jax.tree.leaves(part)) for part in parts]
    assert counted == [number, 512 * 10 + 10]  # The body and the head.


def test_dirichlet_shares_are_those_that_the_repository_prints() -> None:
    train, test = pfllib.split_of(MNIST, 20, "Practical")
    assert sizes_of(train)[:18] == [*map(int, TRAIN.split())]
    assert sizes_of(test)[:18] == [*map(int, TEST.split())]
    labels, counts = np.unique(MNIST[np.append(train[0], test[0])], return_counts=True)
    printed = {0: 140, 1: 890, 4: 1, 5: 319, 7: 29, 8: 1067, 9: 184}
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == printed


def test_four_clients_share_two_classes() -> None:
    train, test = pfllib.split_of(FASHION, 20, "Pathological")
    held = [np.sort(np.append(*pair)) for pair in zip(train, test, strict=True)]
    np.testing.assert_array_equal(np.sort(np.concatenate(held)), np.arange(70_000))
    counts = np.array([np.bincount(FASHION[each], minlength=10) for each in held])
    for client, of_client in enumerate(counts):
        first = client // 4 * 2
        assert np.flatnonzero(of_client).tolist() == [first, first + 1]
        if client % 4 < 3:  # The fourth has what is left.
            assert (of_client[first : first + 2] >= 175).all() and of_client.max() < 1750
        else:
            assert of_client[first : first + 2].min() >= 7000 - 3 * 1749
    assert held[0][-1] < held[1][-1] < held[2][-1] < held[3][-1] == 13_999  # In order.
    assert sum(size // 10 for size in sizes_of(train)) == 5239


@pytest.mark.parametrize("skew", pfllib.CELLS)
def test_images_to_test_on_are_drawn_as_by_scikit_learn(skew: str) -> None:
    """The source seeds NumPy's global generator, and scikit-learn draws from it."""
    known = np.random.get_state()
    np.random.seed(1)
    deal = {"Pathological": pfllib.deal_two_classes, "Practical": pfllib.deal_dirichlet}[skew]
    pairs = [
        train_test_split(held, train_size=0.75, shuffle=True)
        for held in deal(FASHION, 20, np.random)
    ]
    np.random.set_state(known)
    for ours, theirs in zip(
        zip(*pfllib.split_of(FASHION, 20, skew), strict=True), pairs, strict=True
    ):
        for part, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(part, expected)


def test_clients_test_on_their_own_images() -> None:
    data, network = datasets.load("digits"), models.MLP((4,), 10)
    problem = pfllib.problem_of(data, network, 10, "Pathological", per_client=True)
    labels = np.append(data.train_labels, data.test_labels)
    train, test = pfllib.split_of(labels, 10, "Pathological")
    assert problem.test_held is not None
    assert problem.counts.tolist() == sizes_of(train)
    assert problem.test_held.counts.tolist() == sizes_of(test)
    held, tested = problem.test_held, np.asarray(problem.test_data[1])
    for part, offset in zip(test, np.asarray(held.offsets), strict=True):
        places = np.asarray(held.index)[offset : offset + len(part)]
        np.testing.assert_array_equal(tested[places], labels[part])
    ends = jnp.array([0, 255], "uint8"), jnp.zeros(2, "int32")
    assert pfllib.normalised(ends)[0].tolist() == [-1, 1]


COUNTS, LR, MU = (10, 23), 0.5, 0.3


@partial(jax.jit, static_argnames=("name", "network", "steps"))
def trained(name: str, network: Any, start: Any, batch: Any, steps: int) -> Any:
    """Make a client's local steps, all of them on the same mini-batch, by hand."""
    images, labels = pfllib.normalised(batch)

    def loss(model: Any) -> jax.Array:
        logits = network.apply(model, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    own = trees.leaves_that("Dense_1", start)
    turns = ([True], [False]) if name == "FedRep" else ([True, False],)
    mu, model = MU if name == "FedProx" else 0.0, start
    for turn in turns:
        for _ in range(steps):
            slope = jax.grad(loss)(model)
            model = jax.tree.map(
                lambda w, g, w0, part, turn=turn: w - LR * (part in turn) * (g + mu * (w - w0)),
                *(model, slope, start, own),
            )
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("name", pfllib.SYSTEMS)
def test_two_rounds_by_hand(name: str) -> None:
    """One client has ten images. The other has 23 times the same one, and so two whole batches."""
    data, network = datasets.load("digits"), models.MLP((6,), 10)
    rows = np.append(np.arange(10), np.full(23, 11))
    images, labels = data.train_images[rows], data.train_labels[rows].astype("int32")
    problem = problems.supervised(
        *(network, problems.cross_entropy, (images, labels)),
        clients=np.repeat([0, 1], COUNTS).tolist(),
        test=(images, labels),
        prepare=pfllib.normalised,
    )
    system, settings = pfllib.SYSTEMS[name]
    changed = {"lr": LR} | ({"proximal": MU} if name == "FedProx" else {})
    settings = {**pfllib.SETTINGS, "num_clients": 2, "num_selected": 2, **settings, **changed}
    hyper = system.Hyper(**settings)
    bound = fedjax_sim.bind(system, problem, hyper, budget=fedjax_sim.Ticks(2))
    state = bound.init()
    shared, heads = PersonalLeaves().split(bound.model(state))
    own = [heads, heads]
    has_own = name in ("FedPer", "FedRep")
    for tick in range(2):
        state = bound.step(state, bound.event(tick))[0]
        ends = [
            trained(name, network, trees.join(shared, own[client]), batch, steps)
            for client, batch, steps in (
                (0, (images[:10], labels[:10]), 1),
                (1, (images[10:20], labels[10:20]), 2),
            )
        ]
        mean = jax.tree.map(lambda a, b: (10 * a + 23 * b) / 33, *ends)
        shared, heads = PersonalLeaves().split(mean)
        own = [PersonalLeaves().split(end)[1] for end in ends] if has_own else [heads, heads]
    found, expected = [state.server], [shared if has_own else mean]
    if has_own:
        found += [jax.tree.map(lambda leaf, i=i: leaf[i], state.clients) for i in (0, 1)]
        expected += own
    assert len(jax.tree.leaves(found)) == (6 if has_own else 4)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_best_round_of_all_clients_together_counts() -> None:
    of_clients = xr.DataArray([[[1.0, 0.2], [0.5, 0.5]]], dims=("seed", "eval", "client"))
    curves = xr.Dataset({"accuracy": (("seed", "eval"), [[0.7, 0.6], [0.1, 0.3]])})
    np.testing.assert_allclose(pfllib.best_of(curves, np.array([1, 3])), [70, 30])
    curves = xr.Dataset({"accuracy": 0.9, "personal_client_accuracy": of_clients})
    np.testing.assert_allclose(pfllib.best_of(curves, np.array([1, 3])), [50])  # Not 60.


def test_rows_are_chosen_by_name() -> None:
    assert registry.declares("reproductions/pfllib", "ONLY")
    assert len(pfllib.ONLY) == 8 and pfllib.ONLY["FedPer: Practical"][2] == "97.44 ± 0.06"
    for each in pfllib.ONLY:
        arguments = Arguments(only=each)
        assert arguments.chosen(pfllib.ONLY) == [each] and re.fullmatch(r"\w+", arguments.panel)
