"""What a client gets by working slower than it could: its utility, from schedules alone.

A client's utility is its influence per server step (Ma, Tu, Chen, Reddi, arXiv 2406.02877, eqs. (4) and (9)). Telling the truth pays where
influence grows with the reported rate up to the true one. For one given composition of a buffer that is so if and only if C r^2 <= A
(`theory.fedstaleweight.is_truthful`); over the compositions of a run it may hold all the same, which is what is measured here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.diagnostics.fairness import influence
from fedjax_sim.engine.drawing import draw_timelines
from fedjax_sim.engine.lanes import keys_of
from fedjax_sim.settings import check
from fedjax_sim.types import System, Timeline


def throttled_influence(
    system: System, hyper: Any, shares: Sequence[float], *, seeds: int, num_ticks: int
) -> np.ndarray:
    """Influence of client 0 if it works at shares of its own rate, all others at theirs: `f64[shares, seeds]`.

    system: one with buffered arrivals, whose settings `hyper` have a `throttle`. Seeds are common to all shares.
    """
    hypers = [hyper.replace(throttle=share) for share in shares]
    for each in hypers:
        check(each)
    keys = keys_of([*range(seeds)] * len(shares))
    drawn = draw_timelines(system, keys, [each for each in hypers for _ in range(seeds)], num_ticks)
    each = [
        influence(Timeline(*(leaf[i] for leaf in drawn)), hyper.num_clients)[0]
        for i in range(len(keys))
    ]
    return np.reshape(each, (len(shares), seeds))
