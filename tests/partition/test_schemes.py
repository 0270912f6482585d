"""The usual partitions: nothing is shared or invented, and sizes are as promised."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim import partition
from fedjax_sim.core.settings import ConfigError
from tests.partition.checks import SEEDS, assert_disjoint, labels_of, members


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=6), data=st.data(), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_iid_gives_equal_parts(counts, data, seed):
    labels = labels_of(counts)
    num_clients = data.draw(st.integers(1, len(labels)))
    part = partition.iid(labels, num_clients=num_clients, seed=seed)
    assert_disjoint(part, len(labels))
    assert (part.counts == len(labels) // num_clients).all() and len(part.counts) == num_clients


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(
        lambda counts: sum(counts) >= 40
    ),
    num_clients=st.integers(1, 8),
    alpha=st.floats(0.3, 100),
    seed=SEEDS,
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_gives_every_example_away(counts, num_clients, alpha, seed):
    labels = labels_of(counts)
    part = partition.dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed)
    assert_disjoint(part, len(labels))
    assert (
        part.counts.sum() == len(labels)
        and part.counts.min() >= 1
        and len(part.counts) == num_clients
    )
    np.testing.assert_array_equal(
        partition.label_histogram(part, labels, len(counts)).sum(axis=0), counts
    )


def test_dirichlet_draws_until_all_have_enough_or_says_so():
    labels = labels_of([50] * 10)
    assert (
        partition.dirichlet(labels, num_clients=10, alpha=0.5, min_examples=20, seed=0).counts.min()
        >= 20
    )
    with pytest.raises(
        ConfigError, match=r"alpha is 0\.001, but must be larger, or min_examples smaller"
    ):
        partition.dirichlet(labels, num_clients=40, alpha=0.001, seed=0)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=6), data=st.data(), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_shards_are_runs_of_the_sorted_labels(counts, data, seed):
    labels = labels_of(counts)
    shards_per_client = data.draw(st.integers(1, len(labels)))
    num_clients = data.draw(st.integers(1, len(labels) // shards_per_client))
    part = partition.shards(
        labels, num_clients=num_clients, shards_per_client=shards_per_client, seed=seed
    )
    assert_disjoint(part, len(labels))
    size = len(labels) // (num_clients * shards_per_client)
    assert (part.counts == size * shards_per_client).all()
    runs = sorted(labels[part.index].reshape(-1, size).tolist())
    assert all(run == sorted(run) for run in runs)
    assert all(before[-1] <= after[0] for before, after in itertools.pairwise(runs))


@pytest.mark.parametrize("ids", [[7, 3, 7, 7, 9, 3], ["b", "a", "b", "b", "c", "a"]])
def test_natural_clients_keep_their_examples(ids):
    part = partition.natural(np.zeros(6, int), client_ids=np.array(ids), num_clients=3, seed=0)
    assert members(part) == [[1, 5], [0, 2, 3], [4]]


def test_natural_chooses_among_more_clients():
    ids = np.repeat(np.arange(10), 3)
    labels = np.zeros(30, int)
    choices = set()
    for seed in range(20):
        rows = members(partition.natural(labels, client_ids=ids, num_clients=4, seed=seed))
        owners = [set(ids[row].tolist()) for row in rows]
        assert [len(row) for row in rows] == [3] * 4 and all(len(owner) == 1 for owner in owners)
        choices.add(tuple(owner.pop() for owner in owners))
    assert len(choices) > 10


def test_poor_clients_are_topped_up_from_the_largest():
    """Of 300 clients with 20 examples on average, some have fewer than eight in every draw."""
    labels = labels_of([600] * 10)
    options = {"num_clients": 300, "alpha": 0.1, "min_examples": 8, "seed": 0}
    part = partition.dirichlet(labels, top_up=True, **options)
    assert_disjoint(part, len(labels))
    assert part.counts.min() == 8 and part.counts.sum() == len(labels)
    # Clients that had too few examples get no more than they need.
    assert np.sum(part.counts == 8) > 50
    with pytest.raises(ConfigError, match=r"alpha is 0\.1"):
        partition.dirichlet(labels, **options)
    rich, plain = (
        partition.dirichlet(labels, num_clients=5, alpha=50.0, top_up=top_up, seed=4)
        for top_up in (True, False)
    )
    assert members(rich) == members(plain)
