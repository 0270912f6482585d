"""What benchmarks share: contestants that take turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def in_turns(contestants: dict[str, Callable[[], float]], turns: int) -> dict[str, float]:
    """Median seconds of each contestant over `turns` rounds, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, run in contestants.items():
            seconds = run()
            if turn > 0:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def wall(run: Callable[[], Any]) -> float:
    """Seconds until the result of `run` is there."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began
