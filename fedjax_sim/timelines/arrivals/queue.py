"""A queue of clients in order of time: the earliest are taken out and put back with later times.

The queue is a tree of minima. Its leaves are the clients' keys, and every node above has the
smallest key of its `FAN` children. The Z smallest keys of a level lie below the Z smallest keys of
the level above it, so the search follows Z nodes from the top down and compares `FAN * Z` keys on
each level. Taking Z clients and putting them back costs O(Z log(Z) log(N / Z)), and nothing as
large as the queue is copied: the changed nodes are written in place.

A key is a row of numbers: the time, and optionally a tie breaker. Clients with equal keys are in
order of their numbers.

Dimension letters: `N` clients, `Z` clients taken at a time, `D` numbers of a key, `M` nodes of a
level.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.targets import IN_BOUNDS, take_rows
from fedjax_sim.core.types import Array

FAN = 4
"""Children of a node. With 20 clients taken at a time, 8, 16 and 32 were slower on a CPU."""


class Queue(NamedTuple):
    """A queue of clients.

    Attributes:
      levels: The levels of the tree, `f64[M, D]` each. The first holds the clients' keys, padded by
        `inf`.
    """

    levels: tuple[Array, ...]

    @classmethod
    def of(cls, keys: Array, num: int) -> "Queue":
        """Put all clients into a queue.

        Args:
          keys: Keys of the clients, `f64[N, D]`.
          num: Number of clients that are taken at a time, Z, at most N.
        """
        levels = []
        while len(keys) > FAN * num:
            padding = jnp.full((-len(keys) % FAN, keys.shape[1]), jnp.inf)
            levels.append(jnp.concatenate([keys, padding]))
            keys = _smallest(levels[-1].reshape(-1, FAN, keys.shape[1]))
        return cls((*levels, keys))

    def earliest(self, num: int) -> tuple[Array, Array]:
        """Find the clients with the smallest keys, which stay in the queue.

        Args:
          num: Number of clients to find, Z, as given to `of`.

        Returns:
          The clients in order, `i32[Z]`, all different; and their keys, `f64[Z, D]`.
        """
        *levels, keys = self.levels
        nodes, keys = _first(jnp.arange(len(keys), dtype="int32"), keys, num)
        for level in reversed(levels):
            keys = _children(level, nodes).reshape(-1, keys.shape[1])
            candidates = (nodes[:, None] * FAN + jnp.arange(FAN, dtype="int32")[None]).ravel()
            nodes, keys = _first(candidates, keys, num)
        return nodes, keys

    def replaced(self, clients: Array, keys: Array) -> "Queue":
        """Give some clients new keys.

        Args:
          clients: Any clients, `i32[Z]`. The same one may be given twice with the same key.
          keys: Their new keys, `f64[Z, D]`.
        """
        changed: list[Array] = []
        for level in self.levels:
            if changed:
                clients = clients // FAN
                keys = _smallest(_children(changed[-1], clients))
            # Nodes above several clients are written several times, with the same key.
            changed.append(level.at[clients].set(keys, **IN_BOUNDS))
        return Queue(tuple(changed))


def put_rows(table: Array, rows: Array, values: Array) -> Array:
    """Replace rows by their distinct numbers, none negative: `i[Z]`, or `i[]` for one row."""
    return table.at[rows].set(values, unique_indices=True, **IN_BOUNDS)


def _children(level: Array, parents: Array) -> Array:
    """Look up the keys of the children of nodes of the next level: `f64[Z, FAN, D]`."""
    return take_rows(level.reshape(-1, FAN, level.shape[1]), parents)


def _first(nodes: Array, keys: Array, num: int) -> tuple[Array, Array]:
    """Select the nodes with the smallest keys, in order: nodes `i32[Z]`, keys `f64[Z, D]`."""
    *columns, nodes = jax.lax.sort((*keys.T, nodes), num_keys=keys.shape[1] + 1)
    return nodes[:num], jnp.stack([column[:num] for column in columns], axis=1)


def _smallest(keys: Array) -> Array:
    """Find the smallest of each group of keys `f64[..., FAN, D]`, column by column: `f64[..., D]`.

    Padding can be chosen only from groups without clients, because its key is never smaller.
    """
    is_smallest = jnp.ones(keys.shape[:-1], bool)
    columns = []
    for column in jnp.moveaxis(keys, -1, 0):
        least = jnp.where(is_smallest, column, jnp.inf).min(axis=-1, keepdims=True)
        is_smallest &= column == least
        columns.append(least)
    return jnp.concatenate(columns, axis=-1)
