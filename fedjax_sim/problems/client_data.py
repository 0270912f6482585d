"""Clients' examples as positions in shared arrays.

Examples lie on the device once, whatever the number of clients, seeds and problems. A client's
examples are positions in them, padded so that all clients, and all partitions of a sweep, have the
same number of places.

Dimension letters: `N` clients, `M` places for examples of a client (the rest is padding).
"""

from collections.abc import Sequence

import chex
import jax.numpy as jnp
import numpy as np

from fedjax_sim.partition import Partition
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array


def check_partition(partition: Partition, num_examples: int) -> None:
    """Check that every client has an example and that every position exists.

    Args:
      partition: Positions `[N, M]` and counts `[N]`, as the functions of `fedjax_sim.partition`
        return them.
      num_examples: Number of examples that the positions refer to.

    Raises:
      ConfigError: If a client has no example or more than M, or a position is out of range.
      AssertionError: If the shapes are wrong.
    """
    counts, index = np.asarray(partition.counts), np.asarray(partition.index)
    chex.assert_rank(index, 2)
    chex.assert_shape(counts, (len(index),))
    for count in (counts.min(), counts.max()):
        if not 1 <= count <= index.shape[1]:
            allowed = f"from 1 to {index.shape[1]}, the places that a client has for examples"
            raise ConfigError("partition.counts", int(count), allowed)
    for position in (index.min(), index.max()):
        if not 0 <= position < num_examples:
            allowed = f"from 0 to {num_examples - 1}, a position of one of the examples"
            raise ConfigError("partition.index", int(position), allowed)


def pad_partitions(partitions: Sequence[Partition], num_examples: int) -> list[tuple[Array, Array]]:
    """Check partitions, and pad them to one width so that their problems share a program.

    Args:
      partitions: Partitions of the same examples, such as one per seed.
      num_examples: Number of examples that the positions refer to.

    Returns:
      For each partition its positions `i32[N, M]` and counts `i32[N]`, with the same M for all.

    Raises:
      ConfigError: If a client has no example, or a position is out of range.
      AssertionError: If the shapes of a partition are wrong.
    """
    for partition in partitions:
        check_partition(partition, num_examples)
    width = max(partition.index.shape[1] for partition in partitions)
    padded = []
    for partition in partitions:
        padding = ((0, 0), (0, width - partition.index.shape[1]))
        index = np.pad(np.asarray(partition.index, "int32"), padding)
        padded.append((jnp.asarray(index), jnp.asarray(partition.counts, "int32")))
    return padded
