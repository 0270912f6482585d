"""Which versions clients hold at each evaluation, and rows of a store for them.

The metric `client_variance` (`fedjax_sim.engine.program.client_variance`) needs them.

Dimension letters: those of `fedjax_sim.types`; here `R` counts the rows of this metric's store.
"""

import itertools
from typing import NamedTuple

import numpy as np

from fedjax_sim.engine.planning.store import round_up, store_rows
from fedjax_sim.types import EMPTY, Leaf


class HeldVersions(NamedTuple):
    """Where the versions that clients hold are kept.

    Attributes:
      write: `i32[L, V, E]`, row for the model that each tick makes; the last row is a scratch row.
      holders: `i32[L, V + 1, R]`, number of clients that hold each row's model at each evaluation.
    """

    write: Leaf
    holders: Leaf


def held_versions(
    clients: np.ndarray,
    holds: np.ndarray,
    ends: np.ndarray,
    num_clients: int,
) -> HeldVersions:
    """Find out which versions clients hold at each evaluation, and assign rows to them.

    Args:
      clients: `i32[L, T, S]`, `EMPTY` in empty slots.
      holds: `i32[L, T, S]`, as in `Timeline`.
      ends: `i64[L, V + 1]`, ticks before each evaluation.
      num_clients: Number of clients, N.

    Returns:
      The rows, with `write` of shape `i32[L, T]`.
    """
    num_lanes, total, _ = clients.shape
    held = np.zeros((num_lanes, ends.shape[1], num_clients), np.int32)
    rows, used = np.zeros((num_lanes, total + 1), np.int32), np.zeros(num_lanes, np.int32)
    for lane, lane_ends in enumerate(ends):
        for i, (begin, end) in enumerate(itertools.pairwise(lane_ends), start=1):
            present = clients[lane, begin:end] != EMPTY
            held[lane, i] = held[lane, i - 1]
            received = clients[lane, begin:end][present]
            held[lane, i, received] = holds[lane, begin:end][present]
        end = lane_ends[-1]
        nobody = np.zeros((end, 0))
        rows[lane, : end + 1], used[lane] = store_rows(
            nobody.astype(np.int32), nobody.astype(bool), held[lane], lane_ends
        )
    num_rows = round_up(int(used.max()))
    # Ticks after a lane's end, and versions that nobody holds, are written to the scratch row.
    is_scratch = np.arange(total + 1) > ends[:, -1:]
    is_scratch |= rows == used[:, None] - 1
    rows[is_scratch] = num_rows - 1
    holders = np.zeros((num_lanes, ends.shape[1], num_rows), np.int32)
    for lane in range(num_lanes):
        versions_held = rows[lane][held[lane]]
        holders[lane] = [np.bincount(row, minlength=num_rows) for row in versions_held]
    return HeldVersions(rows[:, 1:], holders)
