"""Steps that FAVANO's program runs in the setting of Table 2, over those that are needed.

Only schedules are drawn and counted; nothing is timed. Programs of three of the layouts were
compiled for an H200 (784-32-10, batches of 128, 100 ticks, jax 0.10.2). Steps run over steps needed
are those of the 714 ticks of a run; a local step of all slots takes the launches L, a tick 20 L and
those besides:

    lanes  layout             run / needed    L  besides  temporaries
        1  one wide batch             2.22   15       27        13 MB
        1  rows                       1.55   17       32        11 MB
        8  one wide batch             2.23   18       29       117 MB
        8  rows of each lane          1.67   19       32        88 MB
        8  rows of all lanes          1.18   17       32        71 MB
       32  one wide batch             2.23   20       28       469 MB
       32  rows of each lane          1.78   20       32       370 MB
       32  rows of all lanes          1.10   18       32       266 MB
      128  one wide batch             2.23   21       28     1,874 MB
      128  rows of each lane          1.79   21       32     1,558 MB
      128  rows of all lanes          1.05   19       33     1,033 MB

Blocks of slots that are sorted by their steps launch the kernels of a step once per trip of each
block: of 32 lanes, four blocks make 51 trips a tick instead of 20, run 1.42 times the steps that
are needed, and gather and scatter the models of every block.
"""

from typing import Any

import numpy as np

from fedjax_sim.core.types import Ticks
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.systems import favano

TICKS = 714
"""Ticks of a run of Table 2."""


def bench_packing(turns: int) -> dict[str, Any]:
    """Count for 1, 8, 32 and 128 lanes. turns: not used."""
    del turns
    lanes = (1, 8, 32, 128)
    hyper = favano.paper()
    schedules = Schedules(favano.system, range(max(lanes)), [hyper] * max(lanes), Ticks(TICKS))
    timelines, _ = schedules.request()
    steps = np.asarray(timelines.steps)[:, :TICKS]
    return {f"lanes {num}": count(steps[:num]) for num in lanes}


def count(steps: np.ndarray) -> dict[str, Any]:
    """Count what each layout runs, with sizes that are the same at every tick.

    Args:
      steps: `i32[L, T, S]`, local steps of all slots.

    Returns:
      For each layout the steps run over those needed, the slots that run at once, and the trips of
      all loops of a tick.
    """
    num_lanes, num_ticks, num_slots = steps.shape
    length, needed = int(steps.max()), int(steps.sum(dtype=np.int64))
    pooled = steps.transpose(1, 0, 2).reshape(1, num_ticks, -1)

    def facts(rows: int, trips: int, run: int | None = None) -> dict[str, Any]:
        executed = num_ticks * (rows * trips if run is None else run)
        return {"run / needed": round(executed / needed, 3), "at once": rows, "trips": trips}

    def blocks(each: np.ndarray, num: int) -> dict[str, Any]:
        """Sort the slots of each tick into equal blocks of at least the trips of their longest."""
        trips = np.sort(each, axis=-1)[..., :: -(each.shape[-1] // num)].max(axis=(0, 1))
        size = num_lanes * num_slots // num
        return facts(size, int(trips.sum()))

    def rows(each: np.ndarray) -> int:
        return -(-int(each.sum(axis=-1, dtype=np.int64).max()) // length)

    found = {"one wide batch": facts(num_lanes * num_slots, length)}
    for num in (2, 4, 5, 10):
        found[f"{num} blocks of each lane"] = blocks(steps, num)
        found[f"{num} blocks of all lanes"] = blocks(pooled, num)
    found["rows of each lane"] = facts(num_lanes * rows(steps), length)
    found["rows of all lanes"] = facts(rows(pooled), length)
    return found
