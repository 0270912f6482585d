"""Partitions of problems: what is refused, padding, and shapes that would broadcast silently."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, datasets, problems
from fedjax_sim.core import trees
from fedjax_sim.models import MLP, LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import (
    GaussianClients,
    Quadratic,
    check_partition,
    hold,
    latent,
    make_classification,
    make_logistic,
)
from fedjax_sim.problems.client_data import hold_out

KEY = jax.random.key(0)
EXAMPLES = jnp.zeros(1, int)
IMAGES = np.zeros((6, 2, 2, 1), np.uint8)
LABELS = np.array([0, 1, 0, 1, 0, 1])
DATA = datasets.from_arrays(IMAGES, LABELS, IMAGES[:3], LABELS[:3])
PARTITION = Partition(np.arange(5), np.array([3, 2]))


@pytest.mark.parametrize(
    ("index", "counts", "words"),
    [
        ([0, 1], [2, 0], "counts is 0, but must be at least 1"),
        ([0, 1], [3], "sum of partition.counts is 3, but must be 2, the length of partition.index"),
        ([0, 1], [1], "sum of partition.counts is 1, but must be 2"),
        ([0, 6], [2], "index is 6, but must be from 0 to 5"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(index: list, counts: list, words: str) -> None:
    """The message names the value that is wrong, for every kind of problem."""
    partition = Partition(np.array(index), np.array(counts))
    mixture = latent.GaussianMixture(2)
    makers: list[Callable[[], Any]] = [
        lambda: check_partition(partition, 6),
        lambda: make_classification(LogisticRegression(2), DATA, partition),
        lambda: make_logistic(DATA, partition),
        lambda: latent.make_estimation(mixture, np.ones((6, 2)), partition),
    ]
    for make in makers:
        with pytest.raises(ConfigError, match=words):
            make()


def test_test_examples_of_other_clients_are_refused() -> None:
    """Positions out of range would be clamped, so that clients got others' examples."""
    three = Partition(np.arange(3), np.ones(3, int))
    for make in (
        lambda: make_classification(LogisticRegression(2), DATA, PARTITION, test_partition=three),
        lambda: make_logistic(DATA, PARTITION, test_partition=three),
    ):
        with pytest.raises(ConfigError, match="clients of test_partition is 3, but must be 2, as"):
            make()


def test_own_test_examples_are_not_replaced_by_others() -> None:
    """If one client has none, personal models would be measured on examples of anybody's."""
    own = Partition(np.arange(3), np.array([3, 0]))
    for per_client in (False, True):
        options = {"test_partition": own, "per_client": per_client}
        with pytest.raises(ConfigError, match="test examples of client 1 is 0, but must be at lea"):
            make_classification(LogisticRegression(2), DATA, PARTITION, **options)


def test_a_share_is_held_out_of_each_client() -> None:
    """0.29 * 100 is below 29 in floating point."""
    split = Partition(np.arange(101), np.array([100, 1]))
    train, test = hold_out(split, 0.29, 0)
    assert (test.counts.tolist(), train.counts.tolist()) == ([29, 0], [71, 1])


def test_who_holds_an_example_and_whether_it_is_held_out_are_independent() -> None:
    """The same seed serves both; the permutations of one stream would be equal."""
    whole = Partition(np.arange(100), np.array([100]))
    for seed in range(3):
        first = iid(np.zeros(100, int), num_clients=1, seed=seed).index[:20]
        _, test = hold_out(whole, 0.2, seed)
        assert set(first) != set(test.index)


def test_partitions_of_a_sweep_have_one_form() -> None:
    """Positions and counts stay; the list of a partition with fewer positions is filled up."""
    narrow = Partition(np.array([5, 2]), np.array([1, 1]))
    wide, held, again = hold([PARTITION, narrow, Partition(*map(np.copy, PARTITION))], 6)
    np.testing.assert_array_equal(wide.index, PARTITION.index)
    assert held.index.shape == wide.index.shape and held.most == wide.most == 3
    for client, row in enumerate(narrow.rows()):
        np.testing.assert_array_equal(held.at(client, np.arange(1)), row)
    owner, is_there = map(np.asarray, held.owners())
    assert owner[is_there].tolist() == [0, 1] and is_there.tolist() == [True, True] + [False] * 3
    # Equal partitions are held once.
    assert all(a is b for a, b in zip(jax.tree.leaves(wide), jax.tree.leaves(again), strict=True))


def test_wrong_shapes_are_refused() -> None:
    """At construction, and when a loss is traced with a model that would broadcast."""
    quadratic = Quadratic.of(np.zeros((2, 3)))
    gaussian = GaussianClients.of(1.0, np.zeros((2, 3)))
    logistic = make_logistic(DATA, PARTITION)
    mixture = latent.make_estimation(latent.GaussianMixture(2), np.eye(6), PARTITION)
    statistics, weight = jnp.ones(14), jnp.ones(1)
    refused: list[Callable[[], Any]] = [
        lambda: Quadratic.of(np.zeros(3)),
        lambda: GaussianClients.of(1.0, np.zeros(3)),
        lambda: check_partition(PARTITION._replace(counts=np.array([[3, 2]])), 6),
        lambda: make_classification(
            LogisticRegression(2), DATA._replace(test_labels=LABELS), PARTITION
        ),
        lambda: latent.make_estimation(latent.GaussianMixture(2), np.ones((6, 1, 1)), PARTITION),
    ]
    for call in refused:
        with pytest.raises(ConfigError, match=r"shape|axes|rank"):
            call()
    calls: list[Callable[[], Any]] = [
        lambda: quadratic.loss(jnp.zeros(1), 0, EXAMPLES, KEY),
        lambda: gaussian.client_loss(jnp.zeros(1), 0, KEY),
        lambda: logistic.loss(jnp.zeros((5, 1)), 0, EXAMPLES, KEY),
        lambda: mixture.statistics(statistics, 0, jnp.array([0, 1]), weight),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match=r"shape|rank"):
            call()


@pytest.fixture(scope="module")
def uneven() -> Partition:
    """2,000 clients with two examples each, and one with 20,000."""
    counts = np.append(np.full(2_000, 2), 20_000)
    return Partition(np.arange(counts.sum()), counts)


@pytest.mark.parametrize("kind", ["supervised", "posterior", "latent"])
def test_a_large_client_makes_the_others_no_larger(kind: str, uneven: Partition) -> None:
    """No array has a place for as many examples of every client as the largest client has."""
    num = len(uneven.index)
    x = np.arange(num, dtype="float32")[:, None] / num
    if kind == "supervised":
        data, test = (x, x[:, 0]), problems.hold_out(uneven, 0.5, 0)[1]
        own = [name for name, row in enumerate(test.rows()) for _ in row]
        made: Any = problems.supervised(
            MLP((2,), 1),
            problems.squared_error,
            data,
            clients=np.repeat(np.arange(2_001), uneven.counts).tolist(),
            test=tuple(each[test.index] for each in data),
            test_clients=own,
            per_client=True,
        )
    elif kind == "posterior":
        made = problems.from_logdensity(
            lambda mean, example: -((example - mean) ** 2).sum(),
            lambda mean: -(mean**2).sum(),
            *(x, uneven, jnp.zeros(1)),
            per_client=True,
        )
    else:
        made = latent.make_estimation(latent.GaussianMixture(2), x, uneven, per_client=True)
    model = made.init(KEY)
    programs = [jax.make_jaxpr(made.evaluate)(model)]
    if kind != "latent":
        slope = jax.grad(made.client_loss)
        programs.append(jax.make_jaxpr(slope)(model, jnp.int32(3), KEY))
    largest = max(_largest_of(each.jaxpr) for each in programs)
    assert largest <= 20 * num < len(uneven.counts) * 20_000 / 10


def _largest_of(program: Any) -> int:
    """Entries of the largest array that a traced program makes."""
    found = [var.aval.size for each in program.eqns for var in each.outvars if var.aval.shape]
    inner = [_largest_of(inner) for each in program.eqns for inner in trees.programs_within(each)]
    return max([0, *found, *inner])


def test_unequal_clients_are_taken_in_blocks_with_the_same_result(uneven: Partition) -> None:
    """Losses, their gradients and statistics are those of each client's examples, by hand."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(uneven.index), 1)).astype("float32")
    made = problems.from_logdensity(
        lambda mean, example: -((example - mean) ** 2).sum(),
        lambda mean: jnp.float32(0.0),
        *(x, uneven, jnp.zeros(1)),
        per_client=True,
    )
    assert made.held.block_size() < made.held.most
    mean = jnp.full(1, 0.3)
    loss_of = jax.jit(jax.value_and_grad(made.client_loss))
    found = made.losses_of_clients(mean)["client_loss[client]"]
    em = latent.make_estimation(latent.GaussianMixture(1), x, uneven, weighting="equal")
    natural = em.natural(em.maximise(em.init(KEY)))
    statistics = em.client_statistics(natural)
    for client in (0, 1_999, 2_000):
        own = x[uneven.rows()[client]].astype(float)
        value, slope = loss_of(mean, jnp.int32(client), KEY)
        expected = np.mean((own - 0.3) ** 2)
        np.testing.assert_allclose((value, found[client]), expected, rtol=1e-5)
        np.testing.assert_allclose(slope, np.mean(2 * (0.3 - own)), rtol=1e-4, atol=1e-5)
        weight = jnp.full(len(own), 1 / len(own), "float32")
        alone = em.statistics(natural, jnp.int32(client), jnp.arange(len(own)), weight)
        np.testing.assert_allclose(statistics[client], alone, rtol=1e-4, atol=1e-5)
