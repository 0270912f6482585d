"""Partitions by name: one signature, the same seed gives the same partition, refused values."""

import inspect

import numpy as np
import pytest

from fedjax_sim import partition
from fedjax_sim.core.settings import ConfigError
from tests.partition.checks import assert_disjoint, labels_of, members

CALLS = {
    "iid": {},
    "classes": {"classes": 3},
    "dirichlet": {"alpha": 0.5},
    "shards": {"shards_per_client": 3},
    "label_groups": {"slow_labels": 3, "held_out": 0.25},
    "dirichlet_groups": {"group_sizes": (3, 7), "alpha": 0.5},
    "disjoint_groups": {"group_sizes": (3, 7)},
    "pachinko": {"superclasses": (0, 1, 2, 3, 4) * 2},
    "natural": {"client_ids": np.repeat(np.arange(20), 30)},
}


@pytest.mark.parametrize("name", partition.PARTITIONS)
def test_same_seed_same_partition_and_other_seed_another(name):
    labels = labels_of([60] * 10)
    first, again, other = (
        partition.make(name, labels, num_clients=10, seed=seed, **CALLS[name]) for seed in (5, 5, 6)
    )
    assert_disjoint(first, len(labels))
    assert members(first) == members(again) != members(other)


@pytest.mark.parametrize("name", partition.PARTITIONS)
def test_registered_functions_share_a_signature_and_refuse_bad_values(name):
    function, line = partition.PARTITIONS[name], partition.summary(name)
    assert all(option in line for option in CALLS[name]) and "\n" not in line
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "labels" and {"num_clients", "seed"} < set(parameters)
    labels = labels_of([60] * 10)
    good = {"labels": labels, "num_clients": 10, "seed": 0, **CALLS[name]}
    for field, value, words in [
        ("num_clients", 100_000, "num_clients is 100000"),
        ("labels", labels[:0], "shape of labels"),
        ("labels", labels.reshape(20, 30), "shape of labels"),
        ("labels", labels / 2, "dtype of labels"),
        ("labels", labels - 1, "smallest label"),
    ]:
        with pytest.raises(ConfigError, match=words):
            partition.make(name, **{**good, field: value})


GROUPS = {"group_sizes": (3, 7), "alpha": 1.0}
REFUSED = [
    ("idd", {}, "partition is 'idd', but must be one of iid, classes, dirichlet, shards, label_gr"),
    ("iid", {"alpha": 1.0}, "option of partition iid is 'alpha', but must be left out"),
    (
        "dirichlet",
        {"alhpa": 1.0},
        "option of partition dirichlet is 'alhpa', .*alpha, min_examples",
    ),
    ("dirichlet", {}, "option alpha of partition dirichlet is None, but must be given"),
    (
        "dirichlet",
        {"alpha": 1.0, "min_examples": 61},
        "min_examples is 61, but must be .* at most 60",
    ),
    ("classes", {"classes": 11}, "classes is 11, but must be .* at most 10"),
    ("shards", {"shards_per_client": 61}, "num_clients is 10, but must be .* at most 9"),
    ("natural", {}, "option client_ids of partition natural is None"),
    ("dirichlet_groups", GROUPS | {"group_sizes": (3, 6)}, "is .3, 6., .* num_clients = 10"),
    ("dirichlet_groups", GROUPS | {"group_sizes": (0, 10)}, "group_sizes is .0, 10."),
    ("dirichlet_groups", GROUPS | {"alpha": 1e4, "min_examples": 60}, "alpha .* larger, or min"),
    ("disjoint_groups", {"group_sizes": (3, 7), "classes": 6}, "classes is 6, .* at most 5"),
    ("disjoint_groups", {}, "option group_sizes of partition disjoint_groups is None, but must be"),
    ("label_groups", {"slow_labels": 10}, "slow_labels is 10, but must be .* at most 9"),
    ("label_groups", {"slow_fraction": 0.95}, "slow_fraction is .* that each group has a client"),
    ("pachinko", {}, "superclasses is None, but must be given for data with 10 classes"),
    ("pachinko", {"superclasses": (0, 1)}, "superclasses is .0, 1., but must be 10 numbers"),
]


@pytest.mark.parametrize(("name", "options", "words"), REFUSED)
def test_bad_names_and_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        partition.make(name, labels_of([60] * 10), num_clients=10, seed=0, **options)
