"""The events of a schedule that was laid out, as NumPy has them."""

import numpy as np

from fedjax_sim.core.types import Event
from fedjax_sim.engine.planning.schedule import Schedule


def events_of(schedule: Schedule) -> Event:
    """Return the events of all ticks, leaves `[D, V, E, ...]`, which may be views of smaller ones.

    Args:
      schedule: The schedule.
    """
    num_evals, per_eval = schedule.shape[1:]
    numbers = np.arange(num_evals * per_eval, dtype=np.int32).reshape(num_evals, per_eval)
    tick, stored = np.broadcast_to(numbers, schedule.shape), schedule.stored
    clients, steps, staleness, weight, read, write = (
        np.broadcast_to(leaf, (*schedule.shape, *leaf.shape[3:]))
        for leaf in stored._replace(offset=None)
        if leaf is not None
    )
    whole = tick[..., None]
    offset = whole * steps if stored.offset is None else stored.offset
    offset = np.broadcast_to(offset, clients.shape)
    return Event(tick, clients, steps, whole - staleness, weight, offset, read, write)
