"""Lay out timelines for replay: cut them to their budgets and assign rows of the model store.

Everything here is NumPy on the host, before anything is compiled, but `Ticks.event` and `look_up`,
by which a compiled program reads what was laid out.

The store holds the old server models from which clients still work, and is as small as possible. A
second one is for models that clients hold at an evaluation, for the metric `client_variance`
(`fedjax_sim.engine.program.replay`). The first by example. Two clients, A and B; each of four ticks
receives one:

    tick                  0   1   2   3
    client                A   B   A   A
    starts from version   0   0   1   3     (tick t makes version t + 1)

Version 0 is in the first row from the start. It is read until tick 1, version 1 at tick 2, version
3 at tick 3; versions 2 and 4 are never read. Tick 0 makes version 1 while version 0 is still
needed, so version 1 gets a second row. Tick 1 makes version 2, which goes to a scratch row because
nobody reads it. Tick 2 makes version 3, which gets the first row, because version 0 is no longer
needed. Two rows and the scratch row are enough however long the two clients go on like this, and
every read finds its version.

Dimension letters: those of `core.types`, `D` schedules, `V` evaluations, `E` ticks between two
evaluations, `R` rows of the second store.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import clocks, settings, targets
from fedjax_sim.core.types import EMPTY, Array, Event, Facts, Leaf, Timeline


class Ticks(NamedTuple):
    """The arrays on a device from which the event of a tick is built.

    The leading axes of every leaf are schedules D, evaluations V and ticks between two evaluations
    E. An axis along which nothing changes has length 1: with full participation no leaf has a tick
    axis and a slot axis.

    Attributes:
      clients: `i32[D, V, E, S]`, as in `Event`.
      steps: `i32[D, V, E, S]`, as in `Event`.
      staleness: `i32[D, V, E, S]`, tick - version.
      weight: `f[D, V, E, S]`, as in `Event`.
      offset: `i32[D, V, E, S]`, as in `Event`; None if it is tick * steps.
      read: `i32[D, V, E, S]`, as in `Event`.
      write: `i32[D, V, E]`, as in `Event`.
    """

    clients: Leaf
    steps: Leaf
    staleness: Leaf
    weight: Leaf
    offset: Leaf | None
    read: Leaf
    write: Leaf

    def event(
        self, row: Array, tick: Array, place: tuple[Array, Array], facts: Facts = Facts()
    ) -> Event:
        """Build the event of one tick on the device.

        Args:
          row: `i32[]`, which of the schedules.
          tick: `i32[]`, number of the tick since the start of the run.
          place: Where the tick stands in the axes of evaluations and of ticks, `i32[]` each.
          facts: What is known of all ticks.
        """
        at = jax.tree.map(lambda leaf: look_up(leaf, (row, *place)), self)
        offset = tick * at.steps if at.offset is None else at.offset
        slots = at.clients, at.steps, tick - at.staleness, at.weight, offset, at.read, at.write
        return Event(tick, *slots, facts=facts)


class Ends(NamedTuple):
    """Budgets of live lanes; infinite where nothing limits them.

    Attributes:
      time: The virtual time, leaves `[1]`, or `[]` of a lane.
      energy: What the work received and its messages may take, likewise.
      message: `f32[1]`, bytes of a message to a client and back; 0 if energy is not limited.
    """

    time: clocks.Instant
    energy: clocks.Instant
    message: Leaf

    @classmethod
    def never(cls) -> "Ends":
        """Return that nothing limits a lane."""
        return cls(clocks.Instant.at(np.inf), clocks.Instant.at(np.inf), jnp.float32(0))


class HeldVersions(NamedTuple):
    """Places of the versions that clients hold.

    Attributes:
      write: `i32[L, V, E]`, row for the model that each tick makes; the last row is a scratch row.
      holders: `i32[L, V + 1, R]`, number of clients that hold each row's model at each evaluation.
    """

    write: Leaf
    holders: Leaf


class Tables(NamedTuple):
    """The part of the schedules that some evaluations read.

    Attributes:
      ticks: The ticks, leaves `[D, V, E, ...]`.
      held: Versions that clients hold, leaves `[D, V, ...]`; None unless `client_variance` is
        measured.
      until: When live lanes are over, leaves `[1]`; None if schedules are planned.
      num_ticks: `i32[D or 1]`, the ticks of each planned schedule, after which empty ones pad it;
        None if none is padded.
    """

    ticks: Ticks
    held: HeldVersions | None
    until: Ends | None = None
    num_ticks: Leaf | None = None


class Schedule(NamedTuple):
    """Timelines, cut to their budgets and laid out for nested scans.

    Attributes:
      stored: The ticks of D schedules. Ticks after the end of a schedule are empty.
      shape: D, V and E.
      rows: Rows of the store of old server models, R; the last is a scratch row.
      time: `f64[D, V + 1]`, virtual time at each evaluation, the initial one included.
      ticks: `i64[D, V + 1]`, ticks so far.
      local_steps: `i64[D, V + 1]`, local steps delivered to the server so far.
      messages: `i64[D, V + 1]`, slots filled so far, that is client reports received.
      held: Which versions clients hold; None unless `client_variance` is measured.
      until: As in `Tables`.
      live: Limits of live clocks; None if the schedules are planned.
    """

    stored: Ticks
    shape: tuple[int, int, int]
    rows: int
    time: np.ndarray
    ticks: np.ndarray
    local_steps: np.ndarray
    messages: np.ndarray
    held: HeldVersions | None = None
    until: Ends | None = None
    live: clocks.Sizes | None = None

    def take(self, rows: np.ndarray) -> "Schedule":
        """Keep some of the D schedules, by their numbers. The store keeps its size."""

        def some(leaf: np.ndarray) -> np.ndarray:
            return leaf[rows] if len(leaf) == self.shape[0] else leaf

        names = ("stored", "time", "ticks", "local_steps", "messages", "held")
        kept = {name: jax.tree.map(some, getattr(self, name)) for name in names}
        return self._replace(shape=(len(rows), *self.shape[1:]), **kept)

    def between(self, first: int, last: int) -> Tables:
        """Cut out the ticks of the evaluations from `first` to before `last`."""
        ticks = jax.tree.map(lambda x: x[:, first:last] if x.shape[1] > 1 else x, self.stored)
        held = self.held
        if held is not None:
            held = HeldVersions(held.write[:, first:last], held.holders[:, 1 + first : 1 + last])
        num_ticks = None
        if self.until is None and (self.ticks[:, -1] < self.shape[1] * self.shape[2]).any():
            num_ticks = without_repetition(self.ticks[:, -1:].astype(np.int32))[:, 0]
        return Tables(ticks, held, self.until, num_ticks)

    @property
    def work(self) -> np.ndarray:
        """Steps of the longest slot of every tick: `i32[D, V * E]`."""
        longest = np.broadcast_to(self.stored.steps.max(axis=-1, initial=0), self.shape)
        return longest.reshape(self.shape[0], -1)


def lay_out(
    timelines: Timeline,
    ticks: np.ndarray,
    *,
    num_clients: int,
    num_evals: int,
    per_eval: int | None = None,
    client_variance: bool = False,
    longest: int = 0,
) -> Schedule:
    """Cut timelines to their budgets and lay them out for evaluation after equal numbers of ticks.

    Args:
      timelines: Leaves `[D, T, ...]`.
      ticks: `i64[D]`, number of ticks that belong to each timeline.
      num_clients: Number of clients, N.
      num_evals: Largest number of evaluations.
      per_eval: Ticks between two evaluations, in place of their number.
      client_variance: Whether to find out which versions clients hold at each evaluation.
      longest: Ticks of the longest of all schedules, if it is not among these. Those that are laid
        out in several calls are then evaluated after the same ticks as in one.

    Raises:
      ConfigError: If the local steps of a tick do not fit in 32 bits.
    """
    # The grid: V evaluations after equal numbers of ticks, the last of which may be padding.
    num, longest = len(ticks), max(longest, int(ticks.max()))
    per_eval = per_eval or -(-longest // min(num_evals, longest))
    num_evals = -(-longest // per_eval)
    ends = np.minimum(np.arange(num_evals + 1) * per_eval, ticks[:, None])
    total = num_evals * per_eval
    is_within = np.arange(total) < ticks[:, None]
    is_whole = bool(is_within.all())
    shape = num, total, timelines.clients.shape[2]

    def cut(leaf: np.ndarray, fill: int) -> np.ndarray:
        """Keep the ticks of each timeline and fill up to the last evaluation: `[D, total, S]`."""
        if is_whole:
            return without_repetition(leaf[:, :total])
        known = min(total, leaf.shape[1])
        result = np.full(shape, fill, leaf.dtype)
        np.copyto(result[:, :known], leaf[:, :known], where=is_within[:, :known, None])
        return result

    # Slots: what is in them, how old, and nothing where they are empty.
    clients = cut(timelines.clients, EMPTY)
    present = clients != EMPTY
    numbers = np.arange(total, dtype=np.int32)[:, None]
    steps, weight = cut(timelines.steps, 0), cut(timelines.weight, 0)
    staleness = numbers - cut(timelines.version, 0)
    if is_whole:
        staleness = without_repetition(staleness)
    if not present.all():
        steps, weight = np.where(present, steps, 0), np.where(present, weight, 0)
    # Rows of the store: where each slot reads its old model, and where each tick writes its own.
    has_any = present.any(axis=2) | ~is_within
    is_newest = has_any.all() and not (present & (staleness != 0)).any()
    # Where only the next tick reads a version, one row is enough.
    row, rows = np.zeros((num, total + 1), np.int32), _round_up(2)
    read = np.where(present, 0, rows - 1)
    if not is_newest:
        row, read, rows = _assign_stores(numbers - staleness, present, ends[:, -1], shape)
    if not is_whole:
        # Ticks that pad a schedule use the last row, which is a scratch row in all of them.
        read = np.where(is_within[..., None], read, rows - 1)
    write = np.where(is_within, row[:, 1:], rows - 1)
    # Steps that each client did before, which number its random draws; none if the same clients do
    # the same steps at all ticks, each in one slot.
    offset, is_same = None, clients.shape[1] == steps.shape[1] == 1
    if not (is_same and (np.diff(np.sort(clients[:, 0], axis=-1), axis=-1) > 0).all()):
        offset = steps_before(np.broadcast_to(clients, shape), np.broadcast_to(steps, shape))

    def on_grid(leaf: np.ndarray) -> np.ndarray:
        """Split the tick axis into evaluations and the ticks between them."""
        axes = (num_evals, per_eval) if leaf.shape[1] == total else (1, 1)
        return leaf.reshape(leaf.shape[0], *axes, *leaf.shape[2:])

    places = read.astype(np.int32), write.astype(np.int32)
    stored = jax.tree.map(on_grid, Ticks(clients, steps, staleness, weight, offset, *places))
    most_steps = int(stored.steps.max(initial=0))
    if shape[2] * most_steps >= 2**31:
        allowed = f"fewer: of the {shape[2]} slots of a tick, 2^31 or more would be counted"
        raise settings.ConfigError("local_steps", most_steps, allowed)
    # Versions that clients hold at evaluations, for the variance of their models.
    held = None
    if client_variance:
        held = held_versions(np.broadcast_to(clients, shape), timelines.holds, ends, num_clients)
        held = held._replace(write=held.write.reshape(num, num_evals, per_eval))
    times = np.concatenate([np.zeros((num, 1)), timelines.time], axis=1)
    return Schedule(
        stored=stored,
        shape=(num, num_evals, per_eval),
        rows=rows,
        time=np.take_along_axis(times, ends, axis=1),
        ticks=ends,
        local_steps=_so_far(steps.sum(axis=2), ends, total),
        messages=_so_far(present.sum(axis=2), ends, total),
        held=held,
    )


def _so_far(per_tick: np.ndarray, ends: np.ndarray, num_ticks: int) -> np.ndarray:
    """Sum the counts of ticks, `[D or 1, T or 1]`, up to each evaluation: `i64[D, V + 1]`."""
    num = len(ends)
    totals = np.cumsum(np.broadcast_to(per_tick, (num, num_ticks)), axis=1, dtype=np.int64)
    totals = np.concatenate([np.zeros((num, 1), np.int64), totals], axis=1)
    return np.take_along_axis(totals, ends, axis=1)


def as_happened(schedule: Schedule, realised: Mapping[str, Leaf]) -> Schedule:
    """Replace drawn events by those that happened, as a step has changed them or a clock is live.

    Args:
      schedule: The schedules of all lanes, D; empty ones where clocks are live.
      realised: By field of an event, `[D, V, E, ...]`: clients, steps and weight. Of live lanes
        also version, and of each tick its time, `time` and `rest` of an `Instant`, and `ended`,
        which is `RUNS` at the ticks that happened, the first ones.

    Returns:
      The schedules. Live ones are cut to their ends, with as many evaluations as the longest has.
    """
    num, num_evals, per_eval = schedule.shape
    if "ended" in realised:
        ticks = (realised["ended"] == clocks.RUNS).sum(axis=(1, 2))
        num_evals = max(1, -(-int(ticks.max()) // per_eval))
        ends = np.minimum(np.arange(num_evals + 1) * per_eval, ticks[:, None])
        time = clocks.Instant(realised["time"], realised["rest"]).to_float64().reshape(num, -1)
        tick = np.arange(num_evals * per_eval, dtype=np.int32).reshape(num_evals, per_eval, 1)
        schedule = schedule._replace(
            shape=(num, num_evals, per_eval),
            stored=schedule.stored._replace(staleness=tick - realised["version"][:, :num_evals]),
            time=np.take_along_axis(np.pad(time, ((0, 0), (1, 0))), ends, axis=1),
            ticks=ends,
        )
    total = num_evals * per_eval
    is_within = (np.arange(total) < schedule.ticks[:, -1:]).reshape(num, num_evals, per_eval, 1)
    names = "clients", "steps", "weight"
    clients, steps, weight = (realised[name][:, :num_evals] for name in names)
    clients, steps = np.where(is_within, clients, EMPTY), np.where(is_within, steps, 0)

    def counted(values: np.ndarray) -> np.ndarray:
        return _so_far(values.sum(axis=-1).reshape(num, total), schedule.ticks, total)

    stored = schedule.stored._replace(clients=clients, steps=steps, weight=weight)
    steps, messages = counted(steps), counted(clients != EMPTY)
    return schedule._replace(stored=stored, local_steps=steps, messages=messages)


def without_repetition(leaf: np.ndarray) -> np.ndarray:
    """Keep one entry of each of the two leading axes along which an array is constant."""
    for axis in (1, 0):
        first, last = (leaf[(slice(None),) * axis + (at,)] for at in (slice(0, 1), slice(-1, None)))
        if leaf.strides[axis] == 0 or (np.array_equal(first, last) and bool((leaf == first).all())):
            leaf = first
    return leaf


def _assign_stores(
    version: np.ndarray, present: np.ndarray, ends: np.ndarray, shape: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Assign rows of the stores in which schedules keep their old server models.

    Args:
      version: `i32[D or 1, T, S]`, read where slots are present.
      present: `bool[D or 1, T or 1, S]`.
      ends: `i64[D]`, ticks of each schedule.
      shape: D, T and S.

    Returns:
      The row of every version, `i32[D, T + 1]`; the row of each slot's version, `i32[D or 1,
      T or 1, S]`; and the number of rows, the same for all schedules, of which the last is a
      scratch row in all.
    """
    num, total, _ = shape
    present, version = np.broadcast_to(present, shape), np.broadcast_to(version, shape)
    last = np.full((num, total + 1), -1)
    # One schedule at a time, which bounds the memory.
    for i, end in enumerate(ends):
        tick, slot = np.nonzero(present[i, :end])
        np.maximum.at(last[i], version[i][tick, slot], tick)
    row, used = assign_rows(last)
    row[np.arange(total + 1) > ends[:, None]] = 0
    read = np.stack([own[versions] for own, versions in zip(row, version, strict=True)])
    rows = _round_up(int(used.max()))
    # The same scratch row in all schedules, however many rows each of them needs.
    row[row == used[:, None] - 1] = rows - 1
    return row, np.where(present, read, rows - 1), rows


def assign_rows(last_read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign rows of the stores of D schedules.

    Args:
      last_read: `i64[D, T + 1]`, the tick at which each version is read last; -1 if it never is.

    Returns:
      The row of each version, `i32[D, T + 1]`, and the numbers of rows, `i64[D]`. The last row is a
      scratch row for versions that nobody reads. A row is free again after its last read, so there
      are exactly as many rows as versions that are needed at one time.
    """
    num, length = last_read.shape
    version = np.arange(length, dtype=np.int32)
    last = np.where(version == 0, np.maximum(last_read, 0), last_read)  # The first one is there.
    is_read = last >= version
    number = np.cumsum(is_read, axis=1, dtype=np.int32) - 1
    # A version is written at the end of the tick before it, after that tick's reads: those read
    # until then are over.
    places = (np.arange(num)[:, None] * (length + 1) + last + 1)[is_read]
    over = np.bincount(places, minlength=num * (length + 1)).reshape(num, -1).cumsum(axis=1)
    used = (number + 1 - over[:, :-1]).max(axis=1, keepdims=True)
    # The first versions get a row each, and every later one that of the version that has been over
    # for longest. The first owner of a row is found by doubling the strides back to it.
    ending = np.argsort(np.where(is_read, last, length), axis=1, kind="stable").astype(np.int32)
    is_later = is_read & (number >= used)
    former = np.take_along_axis(ending, np.where(is_later, number - used, 0), axis=1)
    before, first = version, np.where(is_later, former, version)
    while not np.array_equal(before, first):
        before, first = first, np.take_along_axis(first, first, axis=1)
    row = np.where(is_read, np.take_along_axis(number, first, axis=1), used)
    return row.astype(np.int32), used[:, 0] + 1


def _round_up(rows: int) -> int:
    """Round rows up to a multiple of 8: sharing one program between sweeps is worth unused rows."""
    return -(-rows // 8) * 8


def held_versions(
    clients: np.ndarray, holds: np.ndarray, ends: np.ndarray, num_clients: int
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
    rows, used = assign_rows(last_read)
    num_rows = _round_up(int(used.max()))
    # Ticks after a lane's end, and versions that nobody holds, are written to the scratch row.
    is_scratch = np.arange(total + 1) > ends[:, -1:]
    is_scratch |= rows == used[:, None] - 1
    rows[is_scratch] = num_rows - 1
    holders = np.zeros((num_lanes, num_evals, num_rows), np.int32)
    for lane in range(num_lanes):
        versions_held = rows[lane][held[lane]]
        holders[lane] = [np.bincount(row, minlength=num_rows) for row in versions_held]
    return HeldVersions(rows[:, 1:], holders)


def steps_before(clients: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Count the local steps that each slot's client delivered before, in slot order.

    clients, steps: `i32[..., T, S]`, as the result. No steps are negative.
    """
    *_, num_ticks, num_slots = clients.shape
    flat, steps = (leaf.reshape(-1, num_ticks * num_slots) for leaf in (clients, steps))
    if flat.max(initial=0) < 2**15:  # Numbers of 16 bits are sorted without comparing them.
        flat = flat.astype(np.int16)
    result = np.empty(flat.shape, np.int32)
    # One schedule at a time, because the sort takes about forty bytes for each slot.
    for own, numbers, delivered in zip(result, flat, steps, strict=True):
        order = np.argsort(numbers, kind="stable")
        here, client = delivered[order], numbers[order]
        before = np.cumsum(here, dtype=np.int64) - here
        is_first = np.diff(client, prepend=client[:1] - 1) != 0
        # Less what all clients sorted earlier delivered, which never falls along the slots.
        own[order] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return result.reshape(clients.shape)


def pad_evaluations(schedule: Schedule, num: int) -> Schedule:
    """Append `num` evaluations of empty ticks, so that the schedule divides into equal chunks.

    Only `stored` and `held` grow.
    """
    num_schedules, num_evals, per_eval = schedule.shape
    stored, scratch = schedule.stored, schedule.rows - 1
    fill = Ticks(EMPTY, 0, 0, 0, None if stored.offset is None else 0, scratch, scratch)

    def pad(leaf: np.ndarray, value: int) -> np.ndarray:
        leaf = np.broadcast_to(leaf, (len(leaf), num_evals, *leaf.shape[2:]))
        tail = np.full((len(leaf), num, *leaf.shape[2:]), value, leaf.dtype)
        return np.concatenate([leaf, tail], axis=1)

    stored = jax.tree.map(pad, stored, fill)
    held = schedule.held
    if held is not None:
        last = np.repeat(held.holders[:, -1:], num, axis=1)
        write = pad(held.write, held.holders.shape[2] - 1)
        held = HeldVersions(write, np.concatenate([held.holders, last], axis=1))
    shape = (num_schedules, num_evals + num, per_eval)
    return schedule._replace(stored=stored, shape=shape, held=held)


def look_up(leaf: Array, index: tuple) -> Array:
    """Index the leading axes of an array; the entry of an axis of length 1 is for all."""
    places = tuple(i if length > 1 else 0 for i, length in zip(index, leaf.shape, strict=False))
    return targets.take_rows(jnp.asarray(leaf), places)
