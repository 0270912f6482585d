"""Going on from the end of a run to a longer budget: what the two schedules must have in common.

What lanes carry is taken over. Only the store of old server models is rearranged, because which
row a version gets depends on how long it is needed.

Dimension letters: those of `fedjax_sim.types`; `D` schedules.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.planning.schedule import Schedule
from fedjax_sim.types import EMPTY, AnyProblem, Plan, System

OF_THE_STORE = ("read", "write")
"""Fields that say in which row of the store an old server model is."""


def begins_like(longer: Schedule, shorter: Schedule, ticks: int) -> bool:
    """Tell whether a schedule is the same as a shorter one up to a tick, apart from the store."""
    (num, evals, per_eval), theirs = shorter.shape, longer.shape
    if (num, per_eval) != (theirs[0], theirs[2]):
        return False

    def begin(leaf: np.ndarray, evals: int) -> np.ndarray:
        whole = np.broadcast_to(leaf, (num, evals, per_eval, *leaf.shape[3:]))
        return whole.reshape(num, -1, *leaf.shape[3:])[:, :ticks]

    ours, others = (
        [leaf for name, leaf in each.stored._asdict().items() if name not in OF_THE_STORE]
        for each in (shorter, longer)
    )
    if shorter.held is not None and longer.held is not None:
        known = 1 + ticks // per_eval
        if not np.array_equal(shorter.held.holders[:, :known], longer.held.holders[:, :known]):
            return False
        ours.append(shorter.held.write)
        others.append(longer.held.write)
    return all(
        (a is None) == (b is None)
        and (a is None or np.array_equal(begin(a, evals), begin(b, theirs[1])))
        for a, b in zip(ours, others, strict=True)
    )


def kept_rows(longer: Schedule, shorter: Schedule, ticks: int) -> np.ndarray | None:
    """Find the models that the longer run needs among those that the shorter one has kept.

    Args:
      longer: The schedules of the longer run.
      shorter: The same schedules, cut earlier.
      ticks: The tick at which the longer run goes on.

    Returns:
      `i64[D, R]`, from rows of the longer run's store to those of the shorter one's; None if a
      model that is needed was not kept.
    """
    num, _, per_eval = longer.shape
    events = longer.events
    rows = np.empty((num, longer.rows), np.int64)
    for i in range(num):
        theirs, ours = (_versions_in_store(each, i, ticks) for each in (longer, shorter))
        row_of = {version: row for row, version in enumerate(ours) if version >= 0}
        later = slice(ticks // per_eval, None)
        tick = events.tick[i, later][..., None]
        is_read = (events.clients[i, later] != EMPTY) & (tick >= ticks)
        read = set(np.unique(events.version[i, later][is_read]).tolist())
        if any(version <= ticks and version not in row_of for version in read):
            return None
        rows[i] = [row_of.get(version, shorter.rows - 1) for version in theirs]
    return rows


def _versions_in_store(schedule: Schedule, number: int, ticks: int) -> list[int]:
    """List the version in each row of a schedule's store after so many ticks; -1 for none."""
    versions = np.full(schedule.rows, -1)
    versions[0] = 0
    written = schedule.events.write[number].ravel()[:ticks]
    # Of several versions that were written into a row, the last remains.
    np.maximum.at(versions, written, np.arange(1, ticks + 1))
    versions[-1] = -1
    return versions.tolist()


def store_axes(
    system: System, problem: AnyProblem, hyper: Any, num_leaves: int
) -> list[int | None]:
    """Find the axis of each leaf of a system's state that has the rows of the store.

    Args:
      problem: What a lane learns.
      num_leaves: How many leaves a lane carries: the state's are the first of them.
    """

    def init(rows: int, problem: AnyProblem, hyper: Any) -> Any:
        return system.algorithm(problem, hyper, Plan(rows=rows)).init(jax.random.key(0))

    one, two = (
        jax.tree.leaves(jax.eval_shape(partial(init, rows), problem, hyper)) for rows in (1, 2)
    )
    axes: list[int | None] = [
        next((axis for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]), None)
        for a, b in zip(one, two, strict=True)
    ]
    return axes + [None] * (num_leaves - len(axes))


def rearranged(
    leaf: np.ndarray, place: np.ndarray, rows: np.ndarray | None, axis: int | None
) -> np.ndarray:
    """Put the lanes' states in the order of the longer run.

    Args:
      leaf: `[L, ...]`, of the shorter run.
      place: `i64[L]`, from where a lane stands in the longer run to where it stood in the shorter.
      rows: `i64[L, R]`, from the rows of each lane's store to those of the shorter run; None if
        there is no store.
      axis: The axis of the store in what one lane carries; None if this leaf is none.
    """
    leaf = leaf[place]
    if axis is None or rows is None:
        return leaf
    pairs = zip(leaf, rows, strict=True)
    return np.stack([np.take(of_lane, of_store, axis) for of_lane, of_store in pairs])
