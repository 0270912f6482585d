"""Assign rows of stores of old server models, so that they are as small as possible.

The engine has two: one for the models from which clients work, and one for those that clients hold
at an evaluation, for the metric `client_variance` (`fedjax_sim.engine.program.replay`).

The first by example. Two clients, A and B; each of four ticks receives one:

    tick                  0   1   2   3
    client                A   B   A   A
    starts from version   0   0   1   3     (tick t makes version t + 1)

Version 0 is in the first row from the start. It is read until tick 1, version 1 at tick 2, version
3 at tick 3; versions 2 and 4 are never read. Tick 0 makes version 1 while version 0 is still
needed, so version 1 gets a second row. Tick 1 makes version 2, which goes to a scratch row because
nobody reads it. Tick 2 makes version 3, which gets the first row, because version 0 is no longer
needed. Two rows and the scratch row are enough however long the two clients go on like this, and
every read finds its version.

Dimension letters: those of `fedjax_sim.core.types`; `R` rows of the second store.
"""

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from fedjax_sim.core.types import EMPTY, Leaf

MANY = 8
"""Schedules from which on it is quicker to go through their ticks together than one by one."""


def round_up(rows: int) -> int:
    """Round rows up to a multiple of 8: sharing one program between sweeps is worth unused rows."""
    return -(-rows // 8) * 8


def assign_rows(last_read: np.ndarray) -> tuple[np.ndarray, int]:
    """Assign rows of the store.

    Args:
      last_read: `i64[T + 1]`, the tick at which each version is read last; -1 if it never is.

    Returns:
      The row of each version, `i32[T + 1]`, and the number of rows. The last row is a scratch row
      for versions that nobody reads. A row is free again after its last read, so there are exactly
      as many rows as versions that are needed at one time.
    """
    row = np.full(len(last_read), -1)
    row[0] = 0
    in_use = [(int(last_read[0]), 0)]
    free: list[int] = []
    used = 1
    for v in range(1, len(last_read)):
        # Version v is written at the end of tick v - 1, after that tick's reads.
        while in_use and in_use[0][0] < v:
            heapq.heappush(free, heapq.heappop(in_use)[1])
        if last_read[v] < v:
            continue
        if not free:
            heapq.heappush(free, used)
            used += 1
        row[v] = heapq.heappop(free)
        heapq.heappush(in_use, (int(last_read[v]), int(row[v])))
    row[row < 0] = used
    return row, used + 1


def assign_rows_of_all(last_read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign rows of the stores of D schedules, as `assign_rows` does.

    Args:
      last_read: `i64[D, T + 1]`.

    Returns:
      The row of each version, `i32[D, T + 1]`, and the numbers of rows, `i64[D]`.
    """
    num, length = last_read.shape
    row = np.full((num, length), -1, np.int32)
    if num < MANY:
        used = np.empty(num, np.int64)
        for i, last in enumerate(last_read):
            row[i], used[i] = assign_rows(last)
        return row, used
    # The last tick at which each row is read; the first one that is free is taken.
    busy = np.full((num, 8), -1, last_read.dtype)
    row[:, 0], busy[:, 0] = 0, last_read[:, 0]
    for v in range(1, length):
        needed = np.flatnonzero(last_read[:, v] >= v)
        is_free = busy[needed] < v
        if not is_free.any(axis=1).all():
            busy = np.pad(busy, ((0, 0), (0, busy.shape[1])), constant_values=-1)
            is_free = busy[needed] < v
        place = is_free.argmax(axis=1)
        row[needed, v], busy[needed, place] = place, last_read[needed, v]
    used = row.max(axis=1).astype(np.int64) + 1
    return np.where(row < 0, used[:, None], row).astype(np.int32), used + 1


class HeldVersions(NamedTuple):
    """Places of the versions that clients hold.

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
    lanes, num_evals = np.arange(num_lanes)[:, None], ends.shape[1]
    held = np.zeros((num_lanes, num_evals, num_clients), np.int32)
    for lane, lane_ends in enumerate(ends):
        for i, (begin, end) in enumerate(itertools.pairwise(lane_ends), start=1):
            present = clients[lane, begin:end] != EMPTY
            held[lane, i] = held[lane, i - 1]
            received = clients[lane, begin:end][present]
            held[lane, i, received] = holds[lane, begin:end][present]
    # An evaluation reads after the write of the tick before it: as late as the next tick.
    last_read = np.full((num_lanes, total + 1), -1)
    for i in range(num_evals):
        last_read[lanes, held[:, i]] = ends[:, i : i + 1]
    rows, used = assign_rows_of_all(last_read)
    num_rows = round_up(int(used.max()))
    # Ticks after a lane's end, and versions that nobody holds, are written to the scratch row.
    is_scratch = np.arange(total + 1) > ends[:, -1:]
    is_scratch |= rows == used[:, None] - 1
    rows[is_scratch] = num_rows - 1
    holders = np.zeros((num_lanes, num_evals, num_rows), np.int32)
    for lane in range(num_lanes):
        versions_held = rows[lane][held[lane]]
        holders[lane] = [np.bincount(row, minlength=num_rows) for row in versions_held]
    return HeldVersions(rows[:, 1:], holders)
