"""Hierarchical learning through sweeps: the crossing in time, and the work of a sweep.

Dimension letters: `N` clients, `P` parameters.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.results.plots import on_grid
from fedjax_sim.systems.hierarchical import Hyper
from fedjax_sim.timelines import paper_delays

SYSTEM = fedjax_sim.SYSTEMS["hierarchical"]
WHOLE = Layout(2, False, 1)

REPEATS, TIMES = 24, (200, 500, 750, 1000, 1500)
LOSSES = {
    0: (0.55, 0.53, 0.54, 0.56, 0.56),
    5: (0.46, 0.149, 0.116, 0.106, 0.097),
    20: (1.68, 0.91, 0.549, 0.338, 0.146),
}
"""Loss of the last global model finished by `TIMES`, for each sync time.

From another simulation, with errors up to 0.006.
"""


@struct.dataclass
class Valley:
    """Many copies of sum_j h_j w_j^2 / 2 with gradient noise; the loss is their mean.

    Attributes:
      slopes: h, `f[P]`.
      noise: `f[]`, standard deviation of the noise in each coordinate of a gradient.
      counts: `i32[N]`, number of examples of each client.
    """

    slopes: jax.Array
    noise: jax.Array
    counts: jax.Array

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.ones((REPEATS, *self.slopes.shape))

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.sum(jnp.square(params) @ self.slopes) / 2 + jnp.sum(
            self.noise * jax.random.normal(key, params.shape) * params
        )

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {"loss": jnp.mean(jnp.square(params) @ self.slopes) / 2}


@pytest.mark.slow
def test_the_baseline_leads_first_and_loses_later_under_noise() -> None:
    """With the delays of Fig. 7(b), c_g = 30, S = 20 overtakes S = 0 between times 700 and 820.

    Losses at five times agree with another simulation within 5 standard errors. A group of 15
    clients with noise of variance 3 is simulated as one client with noise of variance 3 / 15.
    """
    problem = Valley(jnp.logspace(-2, 0, 20), jnp.sqrt(3 / 15), jnp.ones(2, "int32"))
    law = {**paper_delays(0, 1, 0, 0.1, 0, 30, 0, 1), "lr": 1.0, "batch_size": 1}
    hyper = Hyper(num_clients=2, **law)
    settings = {"sync_time": [float(s) for s in LOSSES]}
    curves = fedjax_sim.sweep(
        SYSTEM,
        problem,
        hyper,
        seeds=12,
        settings=settings,
        budget=fedjax_sim.Time(1500),
        num_evals=1000,
        layout=WHOLE,
    ).curves
    grid = np.concatenate([TIMES, np.arange(300, 1500, 10)])
    means = {}
    for sync_time, expected in LOSSES.items():
        lanes = curves.sel(sync_time=sync_time)
        held = on_grid(lanes.time.values, lanes.loss.values, grid)
        error = held.std(axis=0, ddof=1)[: len(TIMES)] / np.sqrt(12)
        assert (error < 0.04 * np.asarray(expected)).all()
        assert (
            np.abs(held.mean(axis=0)[: len(TIMES)] - expected) < 5 * np.hypot(error, 0.006)
        ).all(), sync_time
        means[sync_time] = held.mean(axis=0)[len(TIMES) :]
    leads = means[20] < means[0]
    assert 700 < grid[len(TIMES) :][np.argmax(leads)] < 820
    assert leads[grid[len(TIMES) :] > 850].all()
    assert (means[5][grid[len(TIMES) :] > 300] < means[0][grid[len(TIMES) :] > 300]).all()


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
