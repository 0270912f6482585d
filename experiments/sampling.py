"""Schedules of many lanes at once, and what their means say against standard errors."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.support import Verdict, table
from fedjax_sim.engine.drawing import draw_timelines
from fedjax_sim.engine.lanes import keys_of
from fedjax_sim.streams import stream
from fedjax_sim.timelines import ClientDelays, client_rates
from fedjax_sim.types import System, Timeline

FAR = 4.0
"""Standard errors beyond which a difference counts as real."""


class Estimate(NamedTuple):
    """Means over lanes `[...]`, and their standard errors."""

    mean: np.ndarray
    error: np.ndarray

    def deviation(self, expected: Any) -> float:
        """The largest distance from what is expected, in standard errors."""
        return float(np.max(np.abs(self.mean - expected) / self.error))


def estimate(per_lane: np.ndarray) -> Estimate:
    """Average independent lanes. per_lane: `[L, ...]`."""
    return Estimate(per_lane.mean(axis=0), per_lane.std(axis=0, ddof=1) / np.sqrt(len(per_lane)))


def draw(system: System, hypers: Sequence[Any], seeds: int, num_ticks: int) -> Timeline:
    """Draw the schedules that `sweep` would run: leaves `[hypers, seeds, T, ...]`. The hypers differ in traced fields only."""
    keys = keys_of([*range(seeds)] * len(hypers))
    drawn = draw_timelines(
        system, keys, [hyper for hyper in hypers for _ in range(seeds)], num_ticks
    )
    return jax.tree.map(lambda leaf: leaf.reshape(len(hypers), seeds, *leaf.shape[1:]), drawn)


def are_fast(hyper: ClientDelays, seeds: int) -> np.ndarray:
    """Tell the fast clients of each seed's lane: `bool[seeds, N]`."""
    with jax.enable_x64(True):
        keys = jnp.stack([stream(jax.random.key(seed), "timeline") for seed in range(seeds)])
        return np.asarray(jax.vmap(lambda key: client_rates(key, hyper))(keys)) == hyper.rate_fast


def by_speed(values: np.ndarray, clients: np.ndarray, is_fast: np.ndarray) -> np.ndarray:
    """Average over the slots of fast and of slow clients. values: `[L, T, S, ...]`; clients: `[L, T, S]`; is_fast: `[L, N]`.

    Returns `[L, 2, ...]`.
    """
    slots_fast = is_fast[np.arange(len(clients))[:, None, None], clients]
    groups = []
    for mask in (slots_fast, ~slots_fast):
        count = mask.sum(axis=(1, 2)).reshape(-1, *[1] * (values.ndim - 3))
        groups.append(np.einsum("lts,lts...->l...", mask.astype(float), values) / count)
    return np.stack(groups, axis=1)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Lay out what was measured and what it says."""
    words = {True: "holds", False: "fails", None: "not judged"}
    return table(
        ["claim", "verdict", "measured"],
        [[each.id, words[each.holds], each.why] for each in verdicts],
    )
