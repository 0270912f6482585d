"""Planned clocks as live ones, with the same draws."""

from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim.core.settings import is_known
from fedjax_sim.core.streams import clock_key
from fedjax_sim.core.types import Key, System, Timeline
from fedjax_sim.engine.program.opened import learning_key
from fedjax_sim.server import staleness_weights
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines.live import (
    Asked,
    Choosing,
    Clock,
    Live,
    Selector,
    Sizes,
    live_rounds,
    live_tasks,
    uniform_cohort,
    with_clock,
)


def _rounds(problem: Any, hyper: Any) -> Clock:
    def select(key: Key, now: Choosing) -> Asked:
        return Asked(now.drawn)

    num = hyper.num_selected
    return live_rounds(hyper, Selector(select, draw=uniform_cohort(hyper)), num_used=num)


def _tasks(problem: Any, hyper: Any) -> Clock:
    def weigh(hyper: Any, clients: jax.Array, staleness: jax.Array) -> jax.Array:
        given = clients[None], staleness[None], hyper.staleness
        return staleness_weights(*given, num_clients=hyper.num_clients)[0]

    num = {"num_tasks": hyper.num_at_work, "num_used": hyper.buffer_size}
    return live_tasks(hyper, weigh=weigh, **num)


def _sizes_of_rounds(hyper: Any) -> Sizes:
    is_full = is_known(hyper.delays.drop_rate, 0) and is_known(hyper.clock.deadline, 0)
    return Sizes(hyper.num_selected, hyper.local_steps, is_full=is_full)


def _sizes_of_tasks(hyper: Any) -> Sizes:
    return Sizes(hyper.buffer_size, hyper.local_steps, hyper.num_at_work, is_full=True)


LIVE = {
    "fedavg": with_clock(fedavg.system, Live(_sizes_of_rounds, _rounds), name="live_fedavg"),
    "fedbuff": with_clock(fedbuff.system, Live(_sizes_of_tasks, _tasks), name="live_fedbuff"),
}


@pytest.fixture(scope="session")
def live() -> dict[str, System]:
    """FedAvg and FedBuff with live clocks that follow their planned ones."""
    return LIVE


def planned_as_live(system: System, hyper: Any, *, seed: int, num_ticks: int) -> Timeline:
    """Draw the schedule of a planned system from the key of a lane's live clock, in 64 bits."""
    with jax.enable_x64(True):
        key = clock_key(learning_key(seed))
        return jax.tree.map(np.asarray, system.timeline(key, hyper, num_ticks))
