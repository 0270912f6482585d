"""Lay out timelines for replay: cut them to their budgets and assign rows of the model store.

The store holds the old server models from which clients still work, see `fedjax_sim.engine.store`.
Everything here is NumPy on the host, before anything is compiled.

Dimension letters: those of `fedjax_sim.types`, `V` evaluations, `E` ticks between two evaluations.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedjax_sim.engine.held_models import HeldVersions, held_versions
from fedjax_sim.engine.store import round_up, store_rows
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import EMPTY, Event, Timeline


class Schedule(NamedTuple):
    """The timelines of all lanes, cut to their budgets and laid out for nested scans.

    Attributes:
      events: Leaves `[L, V, E, ...]`. Ticks after a lane's end are empty.
      rows: Rows of the store of old server models, R; the last is a scratch row.
      time: `f64[L, V + 1]`, virtual time at each evaluation, the initial one included.
      ticks: `i64[L, V + 1]`, ticks so far.
      local_steps: `i64[L, V + 1]`, local steps delivered to the server so far.
      messages: `i64[L, V + 1]`, slots filled so far, that is client reports received.
      held: Which versions clients hold; None unless `client_variance` is measured.
    """

    events: Event
    rows: int
    time: np.ndarray
    ticks: np.ndarray
    local_steps: np.ndarray
    messages: np.ndarray
    held: HeldVersions | None = None

    def replayed(self) -> Iterator[np.ndarray]:
        """Iterate over all arrays that the compiled program reads, each with leading axis L."""
        yield from self.events
        yield from self.held or ()

    def take(self, lanes: np.ndarray) -> "Schedule":
        """Select lanes, in the order given."""
        events = Event(*(leaf[lanes] for leaf in self.events))
        held = self.held and HeldVersions(*(leaf[lanes] for leaf in self.held))
        return self._replace(
            events=events,
            time=self.time[lanes],
            ticks=self.ticks[lanes],
            local_steps=self.local_steps[lanes],
            messages=self.messages[lanes],
            held=held,
        )


def lay_out(
    timelines: Timeline,
    ticks: np.ndarray,
    *,
    num_clients: int,
    num_evals: int,
    client_variance: bool = False,
) -> Schedule:
    """Cut timelines to their budgets and lay them out for evaluation after equal numbers of ticks.

    Args:
      timelines: Leaves `[L, T, ...]`.
      ticks: `i64[L]`, number of ticks that belong to each lane.
      num_clients: Number of clients, N.
      num_evals: Largest number of evaluations.
      client_variance: Whether to find out which versions clients hold at each evaluation.

    Raises:
      ConfigError: If the local steps between two evaluations do not fit in 32 bits.
    """
    num_lanes, longest = len(ticks), int(ticks.max())
    per_eval = -(-longest // min(num_evals, longest))
    num_evals = -(-longest // per_eval)
    ends = np.minimum(np.arange(num_evals + 1) * per_eval, ticks[:, None])
    total = num_evals * per_eval
    is_within = np.arange(total) < ticks[:, None]

    def cut(leaf: np.ndarray, fill: int, dtype: type) -> np.ndarray:
        """Keep the ticks of each lane and fill up to the last evaluation: `[L, T, S]`."""
        result: np.ndarray = np.full((num_lanes, total, leaf.shape[2]), fill, dtype)
        known = min(total, leaf.shape[1])
        np.copyto(
            result[:, :known],
            leaf[:, :known],
            where=is_within[:, :known, None],
            casting="unsafe",
        )
        return result

    clients = cut(timelines.clients, EMPTY, np.int32)
    version = cut(timelines.version, 0, np.int32)
    present = clients != EMPTY
    steps = np.where(present, cut(timelines.steps, 0, np.int32), 0)
    store = _assign_stores(version, present, ends[:, -1])
    row_of_version = np.take_along_axis(store.row, version.reshape(num_lanes, -1), axis=1)
    read = np.where(present, row_of_version.reshape(version.shape), store.scratch[:, None, None])
    events = Event(
        tick=np.broadcast_to(np.arange(total, dtype=np.int32), (num_lanes, total)),
        clients=clients,
        steps=steps,
        version=version,
        weight=np.where(present, cut(timelines.weight, 0, np.float64), 0),
        offset=_steps_before_of_lanes(clients, steps, num_clients) * is_within[..., None],
        # Ticks that pad a lane use the last row, which is a scratch row in all lanes.
        read=np.where(is_within[..., None], read, store.rows - 1).astype(np.int32),
        write=np.where(is_within, store.row[:, 1:], store.rows - 1).astype(np.int32),
    )
    shape = (num_lanes, num_evals, per_eval)
    events = Event(*(leaf.reshape(*shape, *leaf.shape[2:]) for leaf in events))
    most_steps = events.steps.max(axis=-1).sum(axis=-1, dtype=np.int64).max()
    if steps.shape[-1] * most_steps >= 2**31:
        allowed = "larger: between two evaluations a lane counts fewer than 2^31 local steps"
        raise ConfigError("num_evals", num_evals, allowed)
    held = None
    if client_variance:
        held = held_versions(clients, timelines.holds, ends, num_clients)
        held = held._replace(write=held.write.reshape(shape))

    def so_far(per_tick: np.ndarray) -> np.ndarray:
        totals = np.cumsum(per_tick, axis=1, dtype=np.int64)
        totals = np.concatenate([np.zeros((num_lanes, 1), np.int64), totals], axis=1)
        return np.take_along_axis(totals, ends, axis=1)

    times = np.concatenate([np.zeros((num_lanes, 1)), timelines.time], axis=1)
    return Schedule(
        events=events,
        rows=store.rows,
        time=np.take_along_axis(times, ends, axis=1),
        ticks=ends,
        local_steps=so_far(steps.sum(axis=2)),
        messages=so_far(present.sum(axis=2)),
        held=held,
    )


class _Stores(NamedTuple):
    """Where each lane keeps its old server models.

    Attributes:
      row: `i32[L, T + 1]`, row of every version.
      scratch: `i32[L]`, each lane's row for versions that nobody reads.
      rows: Rows of the store, the same in all lanes.
    """

    row: np.ndarray
    scratch: np.ndarray
    rows: int


def _assign_stores(version: np.ndarray, present: np.ndarray, ends: np.ndarray) -> _Stores:
    """Assign rows in all lanes. version, present: `[L, T, S]`; ends: `i64[L]`, lanes' ticks."""
    num_lanes, total, _ = version.shape
    row = np.zeros((num_lanes, total + 1), np.int32)
    scratch = np.ones(num_lanes, np.int32)
    is_newest = (version == np.arange(total)[:, None]) | ~present
    has_any = present.any(axis=2) | (np.arange(total) >= ends[:, None])
    if is_newest.all() and has_any.all():
        # Only the next tick reads a version: one row is enough, and the last version is not read.
        row[np.arange(num_lanes), ends] = 1
    else:
        for i, end in enumerate(ends):
            row[i, : end + 1], used = store_rows(version[i, :end], present[i, :end])
            scratch[i] = used - 1
    return _Stores(row, scratch, round_up(int(scratch.max() + 1)))


def _steps_before_of_lanes(clients: np.ndarray, steps: np.ndarray, num_clients: int) -> np.ndarray:
    """Count the steps that each slot's client delivered before, in all lanes: `i32[L, T, S]`."""
    slots = np.sort(clients[:, 0], axis=-1)
    is_constant = (clients == clients[:, :1]).all()
    if is_constant and ((slots[:, 1:] > slots[:, :-1]) | (slots[:, 1:] == EMPTY)).all():
        # The same clients stand in the same slots at all ticks, as in full participation.
        return (np.cumsum(steps, axis=1, dtype=np.int64) - steps).astype(np.int32)
    apart = clients + (num_clients + 1) * np.arange(len(clients))[:, None, None]
    slot_shape = (-1, clients.shape[2])
    return steps_before(apart.reshape(slot_shape), steps.reshape(slot_shape)).reshape(clients.shape)


def steps_before(clients: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Count the local steps that each slot's client delivered before, in slot order.

    Args:
      clients: `i32[T, S]`.
      steps: `i32[T, S]`.

    Returns:
      `i32[T, S]`.
    """
    order = np.argsort(clients.ravel(), kind="stable")
    sorted_clients = clients.ravel()[order]
    total = np.cumsum(steps.ravel()[order], dtype=np.int64)
    before = total - steps.ravel()[order]
    is_first = np.concatenate([[True], sorted_clients[1:] != sorted_clients[:-1]])
    client_index = np.cumsum(is_first) - 1
    result = np.empty(clients.size, np.int64)
    result[order] = before - before[is_first][client_index]
    return result.reshape(clients.shape).astype(np.int32)


def pad_evaluations(schedule: Schedule, num: int) -> Schedule:
    """Append `num` evaluations of empty ticks, so that the schedule divides into equal chunks.

    Only `events` and `held` grow.
    """
    fill = {"clients": EMPTY, "read": schedule.rows - 1, "write": schedule.rows - 1}
    num_lanes, num_evals, per_eval = schedule.events.tick.shape

    def pad(leaf: np.ndarray, value: int) -> np.ndarray:
        tail = np.full((num_lanes, num, *leaf.shape[2:]), value, leaf.dtype)
        return np.concatenate([leaf, tail], axis=1)

    padded = {
        name: pad(leaf, fill.get(name, 0)) for name, leaf in schedule.events._asdict().items()
    }
    tick = np.arange((num_evals + num) * per_eval, dtype=np.int32).reshape(-1, per_eval)
    padded["tick"] = np.tile(tick, (num_lanes, 1, 1))
    held = schedule.held
    if held is not None:
        last = np.repeat(held.holders[:, -1:], num, axis=1)
        scratch = held.holders.shape[2] - 1
        held = HeldVersions(pad(held.write, scratch), np.concatenate([held.holders, last], axis=1))
    return schedule._replace(events=Event(**padded), held=held)
