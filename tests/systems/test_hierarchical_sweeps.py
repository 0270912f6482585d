"""Hierarchical learning through sweeps: the work of a sweep of sync times."""

from collections.abc import Callable

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.systems.hierarchical import Hyper

SYSTEM = fedjax_sim.SYSTEMS["hierarchical"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes_at_once", "lane_devices"), [(False, 2), pytest.param(True, 2, marks=pytest.mark.slow)]
)
def test_a_sweep_of_sync_times_is_one_program_with_little_padding(
    regression: Callable, compiled: list[str], lanes_at_once: bool, lane_devices: int
) -> None:
    """Lanes differ by a factor of five in rounds and of twenty in iterations.

    If lanes run one by one, a tick after a lane's end does no iteration; if they are batched, each
    batch has lanes of similar work. The delays are those of Fig. 7, c_g = 10, 30 and 60.
    """
    settings = {"sync_time": [0.0, 5.0, 12.0, 20.0, 24.0], "exchange_shift": [2.0, 22.0, 52.0]}
    hyper, layout = (
        Hyper(batch_size=2, lr=0.05),
        Layout(lanes_at_once=lanes_at_once, lane_devices=lane_devices),
    )
    run = fedjax_sim.sweep(
        SYSTEM,
        regression(30),
        hyper,
        seeds=2,
        settings=settings,
        budget=fedjax_sim.Time(1000),
        layout=layout,
    )
    assert compiled.count("jit(_advance)") == 1
    assert compiled.count("jit(_draw)") <= 1  # The cases share one program.
    ticks = run.curves.ticks.isel(eval=-1)
    assert ticks.max() > 5 * ticks.min()
    assert 1 < run.curves.executed.sum() / run.curves.needed.sum() <= 1.5
    np.testing.assert_array_equal(run.curves.needed, run.curves.local_steps.isel(eval=-1))
    # Every lane is in its place.
    steps = [timeline.steps.sum() for timeline in run.timelines]
    np.testing.assert_array_equal(run.curves.needed.values.ravel(), steps)
    np.testing.assert_array_equal(
        run.models,
        np.stack([run.curves[f"w{i}"].isel(eval=-1).values.ravel() for i in range(3)], axis=-1),
    )
