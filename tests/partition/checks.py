"""Labels to split, and checks that all partitions must pass."""

import numpy as np
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32)


def labels_of(counts, seed=0):
    """Make a shuffled array with a given number of labels of each class."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def members(part):
    """Check the form of a partition and return the clients' examples as lists."""
    assert part.index.dtype == part.counts.dtype == np.int32
    assert part.index.shape == (part.counts.sum(),)
    return [row.tolist() for row in part.rows()]


def assert_disjoint(part, num_examples):
    held = [example for row in members(part) for example in row]
    assert len(set(held)) == len(held)
    assert not held or (min(held) >= 0 and max(held) < num_examples)
