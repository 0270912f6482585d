"""What the host reads off timelines before learning starts: ticks in a budget, rows of the store, work, staleness. Plain NumPy.

The store, by example. Two clients, A and B; each of four ticks receives one of them:

    tick                  0   1   2   3
    client                A   B   A   A
    starts from version   0   0   1   3     (version t + 1 is made by tick t)

Version 0 is read until tick 1, version 1 at tick 2, version 3 at tick 3, versions 2 and 4 never. So tick 0 needs a second row for
version 1; tick 1 reads version 0 for the last time and writes version 2, which nobody reads, to the scratch row; tick 2 writes version 3
to the row that version 0 has left. Two rows and the scratch row are enough for any number of ticks, and every read finds its version.
"""

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import EMPTY, Event, Timeline


class Schedule(NamedTuple):
    """The timelines of all lanes, cut to their budgets and laid out for nested scans: `V` evaluations of `E` ticks each."""

    events: Event  # leaves [L, V, E, ...]; ticks past a lane's end are empty
    holders: np.ndarray  # i32[L, V + 1, R]  clients whose base model stands in each row at each evaluation, the initial one included
    rows: int  # R, the last of them a scratch row
    time: np.ndarray  # f64[L, V + 1]  virtual time at each evaluation
    ticks: np.ndarray  # i64[L, V + 1]  ticks so far
    local_steps: np.ndarray  # i64[L, V + 1]  local steps delivered to the server so far
    messages: np.ndarray  # i64[L, V + 1]  slots filled so far: client reports received

    def take(self, lanes: np.ndarray) -> "Schedule":
        """The schedule of some lanes, in the order given."""
        events = Event(*(leaf[lanes] for leaf in self.events))
        rest = {
            name: leaf[lanes]
            for name, leaf in self._asdict().items()
            if name not in ("events", "rows")
        }
        return self._replace(events=events, **rest)


def lay_out(
    timelines: Timeline,
    ticks: np.ndarray,
    *,
    num_clients: int,
    num_evals: int,
    keep_held: bool = True,
) -> Schedule:
    """Cut timelines to their budgets, and lay them out for evaluation after equal numbers of ticks.

    timelines: leaves `[L, T, ...]`. ticks: `i64[L]`, those that belong to each lane. num_evals: at most so many evaluations, of equally
    many ticks each. keep_held: whether models that clients hold stay in the store for `Algorithm.report`, besides those they work from.
    """
    num_lanes, longest = len(ticks), int(ticks.max())
    per_eval = -(-longest // min(num_evals, longest))
    num_evals = -(-longest // per_eval)
    ends = np.minimum(np.arange(num_evals + 1) * per_eval, ticks[:, None])
    total = num_evals * per_eval
    is_own = np.arange(total) < ticks[:, None]

    def cut(leaf: np.ndarray, fill: int, dtype: type) -> np.ndarray:
        """`[L, T, S]` with the ticks that belong to each lane, and `fill` after them up to the end of the last evaluation."""
        result: np.ndarray = np.full((num_lanes, total, leaf.shape[2]), fill, dtype)
        known = min(total, leaf.shape[1])
        np.copyto(
            result[:, :known], leaf[:, :known], where=is_own[:, :known, None], casting="unsafe"
        )
        return result

    clients, version = cut(timelines.clients, EMPTY, np.int32), cut(timelines.version, 0, np.int32)
    present = clients != EMPTY
    steps = np.where(present, cut(timelines.steps, 0, np.int32), 0)
    store = _stores(
        version, clients, present, timelines.holds, ends, num_clients if keep_held else 0
    )
    scratch = store.scratch[:, None, None]
    read = np.where(
        present,
        np.take_along_axis(store.row, version.reshape(num_lanes, -1), axis=1).reshape(
            version.shape
        ),
        scratch,
    )
    events = Event(
        tick=np.broadcast_to(np.arange(total, dtype=np.int32), (num_lanes, total)),
        clients=clients,
        steps=steps,
        version=version,
        weight=np.where(present, cut(timelines.weight, 0, np.float64), 0),
        offset=_steps_before(clients, steps, num_clients) * is_own[..., None],
        # Ticks that pad a lane use the last row, which is scratch for all.
        read=np.where(is_own[..., None], read, store.rows - 1).astype(np.int32),
        write=np.where(is_own, store.row[:, 1:], store.rows - 1).astype(np.int32),
    )
    events = Event(
        *(leaf.reshape(num_lanes, num_evals, per_eval, *leaf.shape[2:]) for leaf in events)
    )
    if steps.shape[-1] * events.steps.max(axis=-1).sum(axis=-1, dtype=np.int64).max() >= 2**31:
        raise ConfigError(
            "num_evals",
            num_evals,
            "larger: between two evaluations a lane counts fewer than 2^31 local steps",
        )

    def so_far(per_tick: np.ndarray) -> np.ndarray:
        totals = np.concatenate(
            [np.zeros((num_lanes, 1), np.int64), np.cumsum(per_tick, axis=1, dtype=np.int64)],
            axis=1,
        )
        return np.take_along_axis(totals, ends, axis=1)

    times = np.concatenate([np.zeros((num_lanes, 1)), timelines.time], axis=1)
    return Schedule(
        events=events,
        holders=store.holders,
        rows=store.rows,
        time=np.take_along_axis(times, ends, axis=1),
        ticks=ends,
        local_steps=so_far(steps.sum(axis=2)),
        messages=so_far(present.sum(axis=2)),
    )


class _Stores(NamedTuple):
    """Where each lane keeps its old server models."""

    row: np.ndarray  # i32[L, T + 1]  of every version
    scratch: np.ndarray  # i32[L]  each lane's own row for versions that nobody reads
    rows: int  # of the store, common to all lanes
    holders: np.ndarray  # i32[L, V + 1, R]


def _stores(
    version: np.ndarray,
    clients: np.ndarray,
    present: np.ndarray,
    holds: np.ndarray,
    ends: np.ndarray,
    num_held: int,
) -> _Stores:
    """Lay out the stores. version, clients, present: `[L, T, S]`; ends: `i64[L, V + 1]`; num_held: clients, if what they hold is kept."""
    num_lanes, total, _ = version.shape
    row, scratch = np.zeros((num_lanes, total + 1), np.int32), np.ones(num_lanes, np.int32)
    held = [np.zeros((ends.shape[1], 0), np.int32)] * num_lanes
    is_newest = (version == np.arange(total)[:, None]) | ~present
    has_any = present.any(axis=2) | (np.arange(total) >= ends[:, -1:])
    if num_held == 0 and is_newest.all() and has_any.all():
        # Every version is read by the next tick alone: one row is enough, and the last version is not read.
        row[np.arange(num_lanes), ends[:, -1]] = 1
    else:
        for i, end in enumerate(ends[:, -1]):
            own = present[i, :end]
            if num_held:
                held[i] = _held_versions(clients[i, :end], holds[i, :end], own, ends[i], num_held)
            row[i, : end + 1], used = store_rows(version[i, :end], own, held[i], ends[i])
            scratch[i] = used - 1
    # Sharing one compiled program between sweeps is worth a few unused rows.
    rows = -(-int(scratch.max() + 1) // 8) * 8
    holders = np.zeros((num_lanes, ends.shape[1], rows), np.int32)
    for i, versions in enumerate(held if num_held else ()):
        holders[i] = [np.bincount(row[i, each], minlength=rows) for each in versions]
    return _Stores(row, scratch, rows, holders)


def _held_versions(
    clients: np.ndarray, holds: np.ndarray, present: np.ndarray, ends: np.ndarray, num_clients: int
) -> np.ndarray:
    """The server version that each client holds at each evaluation: `i32[V + 1, N]`."""
    held = np.zeros((len(ends), num_clients), np.int32)
    for i, (begin, end) in enumerate(itertools.pairwise(ends), start=1):
        held[i] = held[i - 1]
        mask = present[begin:end]
        held[i, clients[begin:end][mask]] = holds[begin:end][mask]
    return held


def store_rows(
    version: np.ndarray, present: np.ndarray, held: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, int]:
    """Give every server version that is read later a row of a store as small as can be.

    version: `i32[T, S]`, read at each tick where present. held: `i32[V + 1, N]`, read at the evaluation after `ends[v]` ticks.
    Returns the row of each version `i32[T + 1]` and the number of rows, of which the last is scratch, for versions nobody reads. A row
    is free again once its last reader has read, so there are exactly as many rows as versions alive at once.
    """
    num_ticks = len(version)
    last_read = np.full(num_ticks + 1, -1)
    tick = np.broadcast_to(np.arange(num_ticks)[:, None], version.shape)
    np.maximum.at(last_read, version[present], tick[present])
    # An evaluation reads after the write of the tick before it: as late as the next tick.
    for end, versions in zip(ends, held, strict=True):
        alive = np.unique(versions)
        last_read[alive] = np.maximum(last_read[alive], end)
    row = np.full(num_ticks + 1, -1)
    row[0] = 0
    in_use = [(int(last_read[0]), 0)]
    free: list[int] = []
    used = 1
    for v in range(1, num_ticks + 1):
        # Version v is written at the end of tick v - 1, when that tick's reads are over.
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


def _steps_before(clients: np.ndarray, steps: np.ndarray, num_clients: int) -> np.ndarray:
    """The same for all lanes at once: `i32[L, T, S]`."""
    slots = np.sort(clients[:, 0], axis=-1)
    if (clients == clients[:, :1]).all() and (
        (slots[:, 1:] > slots[:, :-1]) | (slots[:, 1:] == EMPTY)
    ).all():
        # The same clients in the same slots at all ticks, as where everyone takes part.
        return (np.cumsum(steps, axis=1, dtype=np.int64) - steps).astype(np.int32)
    apart = clients + (num_clients + 1) * np.arange(len(clients))[:, None, None]
    return steps_before(
        apart.reshape(-1, clients.shape[2]), steps.reshape(-1, clients.shape[2])
    ).reshape(clients.shape)


def steps_before(clients: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Local steps that each slot's client delivered before, in slot order: `i32[T, S]`."""
    order = np.argsort(clients.ravel(), kind="stable")
    sorted_clients, total = clients.ravel()[order], np.cumsum(steps.ravel()[order], dtype=np.int64)
    before = total - steps.ravel()[order]
    is_first = np.concatenate([[True], sorted_clients[1:] != sorted_clients[:-1]])
    group = np.cumsum(is_first) - 1
    result = np.empty(clients.size, np.int64)
    result[order] = before - before[is_first][group]
    return result.reshape(clients.shape).astype(np.int32)


def pad_evaluations(schedule: Schedule, num: int) -> Schedule:
    """Append evaluations of empty ticks, so that chunks of equal size fit; only the events and holders grow."""
    fill = {"clients": EMPTY, "read": schedule.rows - 1, "write": schedule.rows - 1}
    num_lanes, num_evals, per_eval = schedule.events.tick.shape

    def pad(name: str, leaf: np.ndarray) -> np.ndarray:
        if name == "tick":
            return np.tile(
                np.arange((num_evals + num) * per_eval, dtype=leaf.dtype).reshape(-1, per_eval),
                (num_lanes, 1, 1),
            )
        return np.concatenate(
            [leaf, np.full((num_lanes, num, *leaf.shape[2:]), fill.get(name, 0), leaf.dtype)],
            axis=1,
        )

    events = Event(**{name: pad(name, leaf) for name, leaf in schedule.events._asdict().items()})
    holders = np.concatenate(
        [schedule.holders, np.repeat(schedule.holders[:, -1:], num, axis=1)], axis=1
    )
    return schedule._replace(events=events, holders=holders)
