"""Schedules of many lanes, drawn without learning anything.

`L` is the number of lanes, `T` the number of ticks, `S` the number of slots per tick, `N` the
number of clients.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import System, Timeline
from fedjax_sim.engine.planning.drawing import draw_timelines
from fedjax_sim.timelines import Clients, draw_client_rates


def draw(system: System, hypers: Sequence[Any], seeds: int, num_ticks: int) -> Timeline:
    """Draw the schedules that `sweep` would run.

    Args:
      system: The system whose schedule is drawn.
      hypers: Settings of the system, which may differ in traced fields only.
      seeds: Number of seeds; seeds 0, 1, ... are used with each of the settings.
      num_ticks: Number of server actions per lane, `T`.

    Returns:
      A timeline with leaves `[hypers, seeds, T, ...]`.
    """
    numbers = [*range(seeds)] * len(hypers)
    repeated = [hyper for hyper in hypers for _ in range(seeds)]
    drawn = draw_timelines(system, numbers, repeated, num_ticks)
    return jax.tree.map(lambda leaf: leaf.reshape(len(hypers), seeds, *leaf.shape[1:]), drawn)


def are_fast(hyper: Clients, seeds: int) -> np.ndarray:
    """Return which clients are fast in the lane of each seed: `bool[seeds, N]`."""

    def rates(seed: jax.Array) -> jax.Array:
        return draw_client_rates(stream(jax.random.key(seed), "timeline"), hyper)

    with jax.enable_x64(True):
        return (
            np.asarray(jax.vmap(rates)(jnp.arange(seeds, dtype="int32"))) == hyper.delays.rate_fast
        )


def by_speed(values: np.ndarray, clients: np.ndarray, is_fast: np.ndarray) -> np.ndarray:
    """Average values over the slots of fast clients and over those of slow clients.

    Args:
      values: `[L, T, S, ...]`, what is averaged.
      clients: `[L, T, S]`, the client in each slot.
      is_fast: `bool[L, N]`, which clients are fast in each lane.

    Returns:
      `[L, 2, ...]`, the mean over slots of fast clients, then of slow ones.
    """
    slots_fast = is_fast[np.arange(len(clients))[:, None, None], clients]
    groups = []
    for mask in (slots_fast, ~slots_fast):
        count = mask.sum(axis=(1, 2)).reshape(-1, *[1] * (values.ndim - 3))
        groups.append(np.einsum("lts,lts...->l...", mask.astype(float), values) / count)
    return np.stack(groups, axis=1)
