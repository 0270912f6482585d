"""Partitions: nothing shared or invented, sizes as promised, the same seed the same draw."""

import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim import partition
from fedjax_sim.partition import parts as partition_parts
from fedjax_sim.settings import ConfigError

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
SEEDS = st.integers(0, 2**32)


def labels_of(counts, seed=0):
    """A shuffled array with this many labels of each class."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def members(part):
    """The clients' examples as lists, after checking the form that all partitions have."""
    assert part.index.dtype == part.counts.dtype == np.int32
    assert part.index.shape == (len(part.counts), part.counts.max())
    assert (part.index[np.arange(part.index.shape[1]) >= part.counts[:, None]] == 0).all()
    return [row[:count].tolist() for row, count in zip(part.index, part.counts, strict=True)]


def assert_disjoint(part, num_examples):
    held = [example for row in members(part) for example in row]
    assert len(set(held)) == len(held)
    assert not held or (min(held) >= 0 and max(held) < num_examples)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=6), data=st.data(), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_iid_gives_equal_parts(counts, data, seed):
    labels = labels_of(counts)
    num_clients = data.draw(st.integers(1, len(labels)))
    part = partition.iid(labels, num_clients=num_clients, seed=seed)
    assert_disjoint(part, len(labels))
    assert (part.counts == len(labels) // num_clients).all() and len(part.counts) == num_clients


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
    """Whether each client has each of 10 classes, two of them per client, for many seeds: `bool[seeds, N, 10]`."""
    labels = labels_of([40] * 10)
    parts = [
        partition.classes_per_client(labels, num_clients=num_clients, classes=2, seed=seed)
        for seed in range(seeds)
    ]
    return np.stack([partition.label_histogram(part, labels, 10) > 0 for part in parts])


def assert_even(counts):
    """Each within five Poisson deviations of their mean."""
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_classes_are_dealt_at_random():
    """Over many seeds all pairs of classes meet equally often, and no client is nearer to a class than another."""
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


def test_dirichlet_shares_have_their_mean_and_variance():
    """Of one class over N clients a share has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    num_clients, alpha, draws = 4, 0.5, 2000
    labels = np.zeros(10_000, int)
    shares = np.empty((draws, num_clients))
    for seed in range(draws):
        rng = partition_parts.make_generator(seed)
        shares[seed] = partition_parts.cut_classes(
            rng, num_clients, alpha, np.array([len(labels)])
        )[0] / len(labels)
    variance = (1 / num_clients) * (1 - 1 / num_clients) / (num_clients * alpha + 1)
    assert np.abs(shares.mean(axis=0) - 1 / num_clients).max() < 5 * np.sqrt(variance / draws)
    squares = (shares - 1 / num_clients) ** 2
    assert np.abs(squares.mean(axis=0) - variance).max() < 5 * squares.std() / np.sqrt(draws)


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


CALLS = {
    "iid": {},
    "classes": {"classes": 3},
    "dirichlet": {"alpha": 0.5},
    "shards": {"shards_per_client": 3},
    "label_groups": {"slow_labels": 3, "held_out": 0.25},
    "dirichlet_groups": {"group_sizes": (3, 7), "alpha": 0.5},
    "disjoint_groups": {"group_sizes": (3, 7)},
    "natural": {"client_ids": np.repeat(np.arange(20), 30)},
}


def test_dirichlet_proportions_over_groups_and_even_shares_within():
    """Shares of a class over four groups have the moments of a Dirichlet distribution; within a group all clients are alike."""
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
            own = histogram[low:high]
            assert np.ptp(part.counts[low:high]) <= 1
            expected = own.sum(axis=0) / (high - low)
            assert np.all(np.abs(own - expected) <= 6 * np.sqrt(expected + 1))
            uneven = max(uneven, float(np.abs(own - expected).max()))
            found[seed, k] = own.sum(axis=0) / 2000
    assert uneven > 20  # within a group examples are dealt at random, not class by class
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


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "dirichlet_groups",
            {"group_sizes": (3, 6), "alpha": 1.0},
            "group_sizes is .3, 6., but must be whole numbers .* num_clients = 10",
        ),
        ("dirichlet_groups", {"group_sizes": (0, 10), "alpha": 1.0}, "group_sizes is .0, 10."),
        ("dirichlet_groups", {"group_sizes": (3, 7), "alpha": 0.0}, "alpha is 0.0"),
        (
            "dirichlet_groups",
            {"group_sizes": (3, 7), "alpha": 1e4, "min_examples": 60},
            "alpha is 10000.0, but must be larger, or min",
        ),
        (
            "disjoint_groups",
            {"group_sizes": (3, 7), "classes": 6},
            "classes is 6, but must be .* at most 5",
        ),
        (
            "disjoint_groups",
            {},
            "option group_sizes of partition disjoint_groups is None, but must be given",
        ),
    ],
)
def test_groups_refuse(name, options, words):
    with pytest.raises(ConfigError, match=words):
        partition.make(name, labels_of([60] * 10), num_clients=10, seed=0, **options)


def test_poor_clients_are_topped_up_from_the_largest():
    """Three hundred clients with twenty examples on average never all have eight by themselves."""
    labels = labels_of([600] * 10)
    options = {"num_clients": 300, "alpha": 0.1, "min_examples": 8, "seed": 0}
    part = partition.dirichlet(labels, top_up=True, **options)
    assert_disjoint(part, len(labels))
    assert part.counts.min() == 8 and part.counts.sum() == len(labels)
    assert np.sum(part.counts == 8) > 50  # who was poor has no more than needed
    with pytest.raises(ConfigError, match=r"alpha is 0\.1"):
        partition.dirichlet(labels, **options)
    rich, plain = (
        partition.dirichlet(labels, num_clients=5, alpha=50.0, top_up=top_up, seed=4)
        for top_up in (True, False)
    )
    assert members(rich) == members(plain)


def test_label_groups_are_those_of_fedstaleweight():
    """Fashion-MNIST's sizes: ten clients with 600 of each of six labels, five with 1200 of each of four; a tenth is held out."""
    labels = np.random.default_rng(0).permutation(labels_of([6000] * 10))
    whole = partition.label_groups(labels, num_clients=15, seed=1)
    assert_disjoint(whole, len(labels))
    assert whole.counts.tolist() == [3600] * 10 + [4800] * 5
    for i in range(15):
        expected = [0] * 4 + [600] * 6 if i < 10 else [1200] * 4 + [0] * 6
        assert (
            np.bincount(labels[whole.index[i, : whole.counts[i]]], minlength=10).tolist()
            == expected
        )
    kept = partition.label_groups(labels, num_clients=15, held_out=0.1, seed=1)
    assert kept.counts.tolist() == [3240] * 10 + [4320] * 5
    assert all(
        set(few) < set(all_) for few, all_ in zip(members(kept), members(whole), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slow_labels": 10}, "slow_labels is 10, but must be .* at most 9"),
        ({"slow_labels": 0}, "slow_labels is 0"),
        (
            {"slow_fraction": 0.95},
            r"number of clients in the last group \(slow_fraction\) is 10, but must be .* at most 9",
        ),
        ({"slow_fraction": -0.1}, "slow_fraction is -0.1"),
        ({"held_out": 1.0}, "held_out is 1.0, but must be at least 0 and below 1"),
    ],
)
def test_label_groups_refuses(options, words):
    with pytest.raises(ConfigError, match=words):
        partition.make("label_groups", labels_of([60] * 10), num_clients=10, seed=0, **options)


@pytest.mark.parametrize("name", partition.PARTITIONS)
def test_same_seed_same_partition_and_other_seed_another(name):
    labels = labels_of([60] * 10)
    first, again, other = (
        partition.make(name, labels, num_clients=10, seed=seed, **CALLS[name]) for seed in (5, 5, 6)
    )
    assert_disjoint(first, len(labels))
    assert members(first) == members(again) != members(other)


@pytest.mark.parametrize("name", partition.PARTITIONS)
def test_registered_functions_share_a_signature_and_refuse_bad_common_values(name):
    function, line = partition.PARTITIONS[name]
    assert line and "\n" not in line
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "labels" and {"num_clients", "seed"} < set(parameters)
    labels = labels_of([60] * 10)
    good = {"labels": labels, "num_clients": 10, "seed": 0, **CALLS[name]}
    for field, value, words in [
        ("num_clients", 0, "num_clients is 0"),
        ("num_clients", 2.0, "num_clients is 2.0"),
        ("num_clients", True, "num_clients is True"),
        ("num_clients", 100_000, "num_clients is 100000"),
        ("seed", -1, "seed is -1"),
        ("seed", "a", "seed is 'a'"),
        ("labels", labels[:0], "shape of labels"),
        ("labels", labels.reshape(20, 30), "shape of labels"),
        ("labels", labels / 2, "dtype of labels"),
        ("labels", labels - 1, "smallest label"),
    ]:
        with pytest.raises(ConfigError, match=words):
            partition.make(name, **{**good, field: value})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "idd",
            {},
            "partition is 'idd', but must be one of iid, classes, dirichlet, shards, label_groups, dirichlet_groups",
        ),
        ("iid", {"alpha": 1.0}, "option of partition iid is 'alpha', but must be left out"),
        (
            "dirichlet",
            {"alhpa": 1.0},
            "option of partition dirichlet is 'alhpa', but must be one of alpha, min_examples",
        ),
        ("dirichlet", {}, "option alpha of partition dirichlet is None, but must be given"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", {"alpha": "1"}, "alpha is '1'"),
        ("dirichlet", {"alpha": 1.0, "min_examples": 0}, "min_examples is 0"),
        (
            "dirichlet",
            {"alpha": 1.0, "min_examples": 61},
            "min_examples is 61, but must be .* at most 60",
        ),
        ("classes", {"classes": 11}, "classes is 11, but must be .* at most 10"),
        ("classes", {"classes": 0}, "classes is 0"),
        ("shards", {"shards_per_client": 0}, "shards_per_client is 0"),
        ("shards", {"shards_per_client": 61}, "num_clients is 10, but must be .* at most 9"),
        ("natural", {}, "option client_ids of partition natural is None"),
        ("natural", {"client_ids": np.arange(5)}, "shape of client_ids"),
        ("natural", {"client_ids": np.zeros(600)}, "dtype of client_ids"),
    ],
)
def test_bad_names_and_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        partition.make(name, labels_of([60] * 10), num_clients=10, seed=0, **options)


def test_slot_without_an_example_is_refused():
    labels = labels_of([100, 100, 3])
    assert partition.classes_per_client(
        labels, num_clients=3, classes=3, seed=0
    ).counts.tolist() == [3, 3, 3]
    with pytest.raises(ConfigError, match="num_clients is 4, but must be small enough"):
        partition.classes_per_client(labels, num_clients=4, classes=3, seed=0)


def test_histogram_counts_and_leaves_padding_out():
    part = partition.Partition(
        np.array([[0, 2, 3], [1, 0, 0]], np.int32), np.array([3, 1], np.int32)
    )
    np.testing.assert_array_equal(
        partition.label_histogram(part, np.array([1, 0, 1, 2]), 4), [[0, 2, 1, 0], [1, 0, 0, 0]]
    )
    with pytest.raises(ConfigError, match="largest label is 2"):
        partition.label_histogram(part, np.array([1, 0, 1, 2]), 2)


def test_picture_shows_the_histogram(tmp_path):
    labels = labels_of([30] * 3)
    part = partition.dirichlet(labels, num_clients=5, alpha=0.5, seed=0)
    figure = partition.plot_histogram(
        part, labels, 3, class_names=["coot", "teal", "wigeon"], title="birds"
    )
    axes = figure.axes[0]
    np.testing.assert_array_equal(
        axes.images[0].get_array(), partition.label_histogram(part, labels, 3).T
    )
    assert [text.get_text() for text in axes.get_yticklabels()] == ["coot", "teal", "wigeon"]
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
