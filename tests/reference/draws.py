"""The runs that are compared with reference loops, and the random draws behind them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.timelines import Speeds, draw_client_speeds, draw_runtimes
from fedjax_sim.timelines.cohorts import draw_cohorts
from fedjax_sim.timelines.delays.laws import update_time

SEED, N, K, BATCH, LR = 4, 7, 5, 2, 0.05
TICKS = 24


Gradient = Callable[[int, int, np.ndarray], np.ndarray]


def simulate(
    system: fedjax_sim.System, problem: Any, hyper: Any, *, ticks: int = TICKS
) -> fedjax_sim.Run:
    """Run one lane in float64, evaluated at every tick."""
    with jax.enable_x64(True):
        return fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=SEED,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=ticks,
            layout=Layout(4, False, 1),
            keep=fedjax_sim.Keep(client_variance=system.live is None),
        )


class Clock:
    """The random draws of a schedule: who is contacted, and how long steps take."""

    def __init__(self, hyper: Any):
        with jax.enable_x64(True):
            key = stream(jax.random.key(SEED), "timeline")
            self.key, self.hyper, self.speeds = key, hyper, draw_client_speeds(key, hyper)
            if hasattr(hyper, "num_selected"):
                table = np.asarray(
                    draw_cohorts(stream(key, "cohorts"), N, hyper.num_selected, TICKS)
                )
                self.cohorts: list[list[int]] = table.tolist()
                runtimes_key = stream(key, "runtimes")
                per_tick = jax.jit(
                    jax.vmap(
                        lambda t, speeds: draw_runtimes(
                            jax.random.fold_in(runtimes_key, t), speeds, K, hyper.delays.runtime_law
                        )
                    )
                )
                self.times = np.asarray(
                    per_tick(jnp.arange(TICKS), Speeds(*(leaf[table] for leaf in self.speeds)))
                )

    def by_visit(self) -> Callable[[int, int, int], float]:
        """Return running times by client, number of the contact since which it works, and step.

        Windows that no contact ends have no draws, so no step in them ends.
        """
        visits: dict[tuple[int, int], np.ndarray] = {}
        count = [0] * N
        for tick, cohort in enumerate(self.cohorts):
            for slot, client in enumerate(cohort):
                visits[client, count[client]] = self.times[tick, slot]
                count[client] += 1
        return lambda client, contact, q: (
            float(visits[client, contact][q]) if (client, contact) in visits else np.inf
        )

    def by_round(self) -> Callable[[int, int, int], float]:
        """Return running times by round, client and step."""
        return lambda tick, client, q: float(self.times[tick, self.cohorts[tick].index(client), q])

    def updates(self, most: int = 80) -> Callable[[int, int], float]:
        """Return durations of updates of K steps, by client and number."""
        with jax.enable_x64(True):
            clients, numbers = jnp.divmod(jnp.arange(N * most), most)
            draw = jax.jit(
                lambda c, u: update_time(
                    stream(self.key, "runtimes"), c, u, self.speeds, self.hyper
                )
            )
            table = np.asarray(draw(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])

    def ties(self, most: int = 80) -> Callable[[int, int], float]:
        """Return tie breakers of a server that blocks clients, by client and number of the update.

        If all clients begin again after every tick, the number is that of the tick.
        """
        ties = stream(self.key, "ties")
        clients, numbers = jnp.divmod(jnp.arange(N * most), most)
        with jax.enable_x64(True):
            if self.hyper.clock.restart == "fresh":
                per_tick = jax.vmap(lambda t: jax.random.uniform(jax.random.fold_in(ties, t), (N,)))
                table = np.asarray(jax.jit(per_tick)(jnp.arange(most))).T
            else:
                per_update = jax.vmap(
                    lambda c, u: jax.random.uniform(
                        jax.random.fold_in(jax.random.fold_in(ties, c), u)
                    )
                )
                table = np.asarray(jax.jit(per_update)(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])

    def lots(self, most: int = 80) -> Callable[[int, int], float]:
        """Return tie breakers of clients that never wait, by client and number of the update."""
        ties = stream(self.key, "ties")
        clients, numbers = jnp.divmod(jnp.arange(N * most), most)
        draw = jax.jit(
            jax.vmap(
                lambda c, u: jax.random.bits(
                    jax.random.fold_in(jax.random.fold_in(ties, c), u), (), "uint32"
                )
            )
        )
        table = np.asarray(draw(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])


def assert_same(run: fedjax_sim.Run, records: list[Any], *, tolerance: float) -> None:
    """Compare schedules bit for bit, and models and client variance to the tolerance."""
    schedule = run.timelines[0]
    # Up to rounding, because the compiler may add up times in another order. Who arrives when is
    # exact.
    times = np.array([record.time for record in records])
    np.testing.assert_array_max_ulp(schedule.time, times, maxulp=4)
    np.testing.assert_array_equal(schedule.clients, [record.clients for record in records])
    np.testing.assert_array_equal(schedule.version, [record.versions for record in records])
    if hasattr(records[0], "weights"):
        np.testing.assert_allclose(
            schedule.weight, [record.weights for record in records], rtol=1e-12
        )
    if hasattr(records[0], "steps"):
        np.testing.assert_array_equal(schedule.steps, [record.steps for record in records])
    models = np.stack([run.curves[f"w{i}"].values[1:] for i in range(3)], axis=-1)
    assert models.dtype == np.float64
    np.testing.assert_allclose(models, [record.model for record in records], rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        run.curves.client_variance[1:],
        [record.client_variance for record in records],
        rtol=10 * tolerance,
    )
    np.testing.assert_array_equal(run.models, models[-1])
