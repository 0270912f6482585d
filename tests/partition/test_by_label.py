"""Partitions by label: classes and slots as promised, groups that differ, and what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim import partition
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.partition import schemes
from tests.partition.checks import SEEDS, assert_disjoint, labels_of, members

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@given(
    counts=st.lists(st.integers(40, 60), min_size=1, max_size=8),
    data=st.data(),
    num_clients=st.integers(1, 30),
    seed=SEEDS,
)
@settings(max_examples=150, deadline=None)
def test_classes_are_distinct_and_slots_even(counts, data, num_clients, seed):
    labels = labels_of(counts)
    classes = data.draw(st.integers(1, len(counts)))
    part = partition.classes_per_client(labels, num_clients=num_clients, classes=classes, seed=seed)
    assert_disjoint(part, len(labels))
    histogram = partition.label_histogram(part, labels, len(counts))
    assert ((histogram > 0).sum(axis=1) == classes).all()
    assert len(set(histogram[histogram > 0].tolist())) == 1
    slots = (histogram > 0).sum(axis=0)
    assert slots.max() - slots.min() <= 1
    size = histogram.max()
    assert size == min(count // n for count, n in zip(counts, slots, strict=True) if n)


def test_classes_of_mnist_are_542_examples_a_client():
    labels = labels_of(MNIST_COUNTS)
    part = partition.classes_per_client(labels, num_clients=100, classes=2, seed=0)
    histogram = partition.label_histogram(part, labels, 10)
    assert (part.counts == 542).all()
    assert ((histogram == 271).sum(axis=1) == 2).all() and ((histogram > 0).sum(axis=0) == 20).all()


def presence(seeds, *, num_clients):
    """Tell which of 10 classes each client has, two per client: `bool[seeds, N, 10]`."""
    labels = labels_of([40] * 10)
    parts = [
        partition.classes_per_client(labels, num_clients=num_clients, classes=2, seed=seed)
        for seed in range(seeds)
    ]
    return np.stack([partition.label_histogram(part, labels, 10) > 0 for part in parts])


def assert_even(counts):
    """Check that all counts are within five Poisson standard deviations of their mean."""
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_classes_are_dealt_at_random():
    """Over many seeds, pairs of classes, and pairs of client and class, are equally frequent."""
    has = presence(100, num_clients=100).astype(int)
    pairs = np.einsum("sni,snj->ij", has, has)[np.triu_indices(10, 1)]
    assert pairs.sum() == 100 * 100
    assert_even(pairs)
    assert_even(has.sum(axis=0))


def test_classes_with_one_more_slot_are_drawn_at_random():
    slots = presence(200, num_clients=7).sum(axis=1)
    assert set(slots.ravel().tolist()) == {1, 2}
    assert_even((slots == 2).sum(axis=0))


def test_all_classes_for_all_clients_is_reached_by_swaps():
    labels = labels_of([100] * 10)
    part = partition.classes_per_client(labels, num_clients=100, classes=10, seed=3)
    assert (partition.label_histogram(part, labels, 10) == 1).all()


def test_dirichlet_proportions_over_groups_and_even_shares_within():
    """Shares of a class have Dirichlet moments over groups, and are even within a group."""
    labels, sizes = labels_of([2000] * 3), (1, 2, 3, 4)
    alpha, seeds = 0.8, 150
    first = np.cumsum((0, *sizes))
    found = np.empty((seeds, 4, 3))
    uneven = 0.0
    for seed in range(seeds):
        part = partition.dirichlet_groups(
            labels, num_clients=10, group_sizes=sizes, alpha=alpha, seed=seed
        )
        assert_disjoint(part, len(labels))
        assert part.counts.sum() == len(labels)
        histogram = partition.label_histogram(part, labels, 3)
        for k, (low, high) in enumerate(itertools.pairwise(first)):
            of_group = histogram[low:high]
            assert np.ptp(part.counts[low:high]) <= 1
            expected = of_group.sum(axis=0) / (high - low)
            assert np.all(np.abs(of_group - expected) <= 6 * np.sqrt(expected + 1))
            uneven = max(uneven, float(np.abs(of_group - expected).max()))
            found[seed, k] = of_group.sum(axis=0) / 2000
    # Within a group examples are dealt at random and not class by class.
    assert uneven > 20
    share = found.transpose(0, 2, 1).reshape(-1, 4)
    variance = 1 / 4 * 3 / 4 / (4 * alpha + 1)
    assert np.all(np.abs(share.mean(axis=0) - 1 / 4) < 5 * np.sqrt(variance / len(share)))
    assert np.all(np.abs((share - 1 / 4).var(axis=0) / variance - 1) < 0.5)


def test_disjoint_groups_share_no_label():
    labels = np.random.default_rng(0).permutation(labels_of([600] * 10))
    dealt = set()
    for seed in range(5):
        part = partition.disjoint_groups(labels, num_clients=20, group_sizes=(5, 15), seed=seed)
        assert_disjoint(part, len(labels))
        held = partition.label_histogram(part, labels, 10) > 0
        assert (held.sum(axis=1) == 2).all()
        groups = [held[:5].any(axis=0), held[5:].any(axis=0)]
        assert groups[0].sum() == groups[1].sum() == 5 and not (groups[0] & groups[1]).any()
        dealt.add(tuple(groups[0].tolist()))
    assert len(dealt) > 2


def test_label_groups_are_those_of_fedstaleweight():
    """Sizes are those of the experiments on Fashion-MNIST, where a tenth is held out.

    Ten clients have 600 examples of each of six labels, five have 1200 of each of four.
    """
    labels = np.random.default_rng(0).permutation(labels_of([6000] * 10))
    whole = partition.label_groups(labels, num_clients=15, seed=1)
    assert_disjoint(whole, len(labels))
    assert whole.counts.tolist() == [3600] * 10 + [4800] * 5
    for i in range(15):
        expected = [0] * 4 + [600] * 6 if i < 10 else [1200] * 4 + [0] * 6
        assert np.bincount(labels[whole.rows()[i]], minlength=10).tolist() == expected
    kept = partition.label_groups(labels, num_clients=15, held_out=0.1, seed=1)
    assert kept.counts.tolist() == [3240] * 10 + [4320] * 5
    assert all(
        set(few) < set(all_) for few, all_ in zip(members(kept), members(whole), strict=True)
    )
    # 0.29 * 200 is below 58 in floating point.
    two = {"num_clients": 2, "slow_fraction": 0.5, "slow_labels": 1, "seed": 0}
    kept = partition.label_groups(labels_of([200, 200]), held_out=0.29, **two)
    assert kept.counts.tolist() == [142, 142]


def test_slot_without_an_example_is_refused():
    labels = labels_of([100, 100, 3])
    assert partition.classes_per_client(
        labels, num_clients=3, classes=3, seed=0
    ).counts.tolist() == [3, 3, 3]
    with pytest.raises(ConfigError, match="num_clients is 4, but must be small enough"):
        partition.classes_per_client(labels, num_clients=4, classes=3, seed=0)


CIFAR100 = """
beaver dolphin otter seal whale
aquarium_fish flatfish ray shark trout
orchid poppy rose sunflower tulip
bottle bowl can cup plate
apple mushroom orange pear sweet_pepper
clock keyboard lamp telephone television
bed chair couch table wardrobe
bee beetle butterfly caterpillar cockroach
bear leopard lion tiger wolf
bridge castle house road skyscraper
cloud forest mountain plain sea
camel cattle chimpanzee elephant kangaroo
fox porcupine possum raccoon skunk
crab lobster snail spider worm
baby boy girl man woman
crocodile dinosaur lizard snake turtle
hamster mouse rabbit shrew squirrel
maple_tree oak_tree palm_tree pine_tree willow_tree
bicycle bus motorcycle pickup_truck train
lawn_mower rocket streetcar tank tractor
"""
"""Classes of the superclasses of CIFAR-100, as its page lists them."""


def test_superclasses_are_those_of_cifar100():
    groups = [line.split() for line in CIFAR100.strip().splitlines()]
    pairs = sorted((name, group) for group, names in enumerate(groups) for name in names)
    assert tuple(group for _, group in pairs) == schemes.CIFAR100_SUPERCLASSES


@pytest.mark.slow
def test_pachinko_draws_superclasses_and_classes_with_the_dirichlets_variances():
    """A share of k under Dirichlet(a) has mean 1/k and variance (1/k)(1 - 1/k) / (k a + 1).

    Each client's first example is drawn before anything runs out. So is the whole of a client if
    there are far more examples than its own.
    """
    superclasses, size, draws = (0, 1, 0, 1, 1, 0), 40, 300
    labels = labels_of([2000] * 6)
    parts = [
        partition.pachinko(
            labels,
            num_clients=len(labels) // size,
            alpha=0.5,
            beta=3.0,
            superclasses=superclasses,
            seed=seed,
        )
        for seed in range(draws // 30)
    ]
    held = (
        np.stack([partition.label_histogram(part, labels, 6)[:30] for part in parts]).reshape(-1, 6)
        / size
    )
    coarse = held[:, np.array(superclasses) == 0].sum(axis=1)
    # Draws of single examples add (mean of p (1 - p)) / size to the variance of a share p.
    spread = 1 / 4 / (2 * 0.5 + 1)
    variance = spread + (1 / 4 - spread) / size
    assert abs(coarse.mean() - 1 / 2) < 5 * np.sqrt(variance / draws)
    squares = (coarse - 1 / 2) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(draws)
    rich = coarse * size >= 10
    within = held[rich, 0] / coarse[rich]
    spread = (1 / 3) * (2 / 3) / (3 * 3.0 + 1)
    variance = spread + (2 / 9 - spread) * np.mean(1 / (coarse[rich] * size))
    assert abs(within.mean() - 1 / 3) < 5 * np.sqrt(variance / rich.sum())
    squares = (within - 1 / 3) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(rich.sum())


def test_pachinko_gives_away_everything_even_with_a_tiny_alpha():
    labels = np.random.default_rng(0).permutation(labels_of([30] * 6))
    part = partition.pachinko(
        labels, num_clients=9, alpha=1e-3, superclasses=(0, 0, 1, 1, 2, 2), seed=1
    )
    assert_disjoint(part, len(labels))
    assert part.counts.tolist() == [20] * 9
    # With so small an alpha a client stays in one superclass until that has run out.
    first = labels[part.rows()[0]]
    assert len(set(first // 2)) == 1
