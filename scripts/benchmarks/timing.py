"""Time contestants that take turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def in_turns(contestants: dict[str, Callable[[], float]], turns: int) -> dict[str, float]:
    """Time contestants in turns.

    Args:
      contestants: By name, functions that run once and return their seconds.
      turns: Number of turns that count, after a first one that does not, for compilation.

    Returns:
      The median seconds of each contestant.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, run in contestants.items():
            seconds = run()
            if turn > 0:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def wall(run: Callable[[], Any]) -> float:
    """Run a function, wait until its arrays are there, and return the seconds it took."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began
