"""Partitions of problems: what is refused, padding, and shapes that would broadcast silently."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, datasets
from fedjax_sim.models import LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import (
    GaussianClients,
    Quadratic,
    check_partition,
    latent,
    make_classification,
    make_logistic,
    pad_partitions,
)
from fedjax_sim.problems.client_data import hold_out

KEY = jax.random.key(0)
EXAMPLES = jnp.zeros(1, int)
IMAGES = np.zeros((6, 2, 2, 1), np.uint8)
LABELS = np.array([0, 1, 0, 1, 0, 1])
DATA = datasets.from_arrays(IMAGES, LABELS, IMAGES[:3], LABELS[:3])
PARTITION = Partition(np.arange(6).reshape(2, 3), np.array([3, 2]))


@pytest.mark.parametrize(
    ("index", "counts", "words"),
    [
        ([[0, 1]], [0], "counts is 0, but must be from 1 to 2"),
        ([[0, 1]], [3], "counts is 3, but must be from 1 to 2"),
        ([[0, 6]], [2], "index is 6, but must be from 0 to 5"),
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
    three = Partition(np.arange(3)[:, None], np.ones(3, int))
    for make in (
        lambda: make_classification(LogisticRegression(2), DATA, PARTITION, test_partition=three),
        lambda: make_logistic(DATA, PARTITION, test_partition=three),
    ):
        with pytest.raises(ConfigError, match="clients of test_partition is 3, but must be 2, as"):
            make()


def test_a_share_is_held_out_of_each_client() -> None:
    """0.29 * 100 is below 29 in floating point."""
    split = Partition(np.arange(200).reshape(2, 100), np.array([100, 1]))
    train, test = hold_out(split, 0.29, 0)
    assert (test.counts.tolist(), train.counts.tolist()) == ([29, 0], [71, 1])


def test_who_holds_an_example_and_whether_it_is_held_out_are_independent() -> None:
    """The same seed serves both; the permutations of one stream would be equal."""
    whole = Partition(np.arange(100)[None], np.array([100]))
    for seed in range(3):
        first = iid(np.zeros(100, int), num_clients=1, seed=seed).index[0, :20]
        _, test = hold_out(whole, 0.2, seed)
        assert set(first) != set(test.index[0])


def test_partitions_are_padded_to_one_width() -> None:
    """Positions and counts stay; places beyond the counts are added where another has more."""
    narrow = Partition(np.array([[5], [2]]), np.array([1, 1]))
    (index, counts), (narrow_index, narrow_counts) = pad_partitions([PARTITION, narrow], 6)
    np.testing.assert_array_equal(index, PARTITION.index)
    np.testing.assert_array_equal(counts, PARTITION.counts)
    assert narrow_index.shape == (2, 3)
    np.testing.assert_array_equal(narrow_index[:, :1], narrow.index)
    np.testing.assert_array_equal(narrow_counts, narrow.counts)


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
        lambda: check_partition(PARTITION._replace(counts=np.array([1])), 6),
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
