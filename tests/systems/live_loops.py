"""What the event loops of live systems share: a problem, clients of fixed speeds, and runs.

The loops are plain NumPy, written from the papers. They add float32 durations in float64, as the
instants of live clocks do to 48 bits.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import fedjax_sim
from fedjax_sim import Keep, System, Ticks, Time
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import Quadratic
from fedjax_sim.timelines.delays.client_table import ClientTable

NUM_TICKS = 40


@struct.dataclass
class Sized(Quadratic):
    """Quadratic losses of clients that say how many examples they have."""

    sizes: Any = struct.field(kw_only=True)

    @property
    def counts(self) -> jax.Array:
        return self.sizes


def problem_of(num_clients: int, seed: int = 0) -> Sized:
    """Make quadratic losses with different centers, curvatures, and numbers of examples."""
    random = np.random.default_rng(seed)
    centers = random.normal(size=(num_clients, 3)).astype("float32")
    curvature = random.uniform(0.5, 2, num_clients).astype("float32")
    known = Quadratic.of(centers, curvature=curvature, start=0.5)
    sizes = jnp.asarray(random.integers(1, 9, num_clients), "int32")
    return Sized(known.centers, known.curvature, known.noise, known.start, sizes=sizes)


def delays_of(num_clients: int, seed: int = 0) -> dict[str, Any]:
    """Make settings with which a client's work always takes the inverse of its own rate."""
    rate = np.random.default_rng(seed).uniform(0.1, 1, num_clients)
    return {
        "runtime_law": "runtime_constant",
        "time_of": "update",
        "client_table": ClientTable(rate=rate),
    }


def times_of(hyper: Any) -> np.ndarray:
    """Return how long each client's work takes, in the precision of a live clock."""
    return np.float32(1) / np.float32(hyper.delays.client_table.rate)


def clock_key(seed: int = 0) -> jax.Array:
    """Return the key of a lane's live clock."""
    return stream(stream(jax.random.key(seed), "learning"), "clock")


def local_work(problem: Any, start: np.ndarray, client: int, hyper: Any) -> np.ndarray:
    """Take a client's gradient steps."""
    center, curvature = np.asarray(problem.centers)[client], np.asarray(problem.curvature)[client]
    model, pull = start.astype("float32"), np.float32(getattr(hyper, "proximal", 0))
    for _ in range(hyper.local_steps):
        slope = curvature * (model - center) + pull * (model - start)
        model = model - np.float32(hyper.lr) * slope
    return model


def loss_of(problem: Any, model: np.ndarray, client: int) -> np.float32:
    """Compute a client's loss."""
    away = model - np.asarray(problem.centers)[client]
    return np.asarray(problem.curvature)[client] / 2 * np.float32((away**2).sum())


class Tick(NamedTuple):
    """A tick of a loop: the time, reports as (client, version, weight), and the model made."""

    time: float
    reports: list[tuple[int, int, float]]
    model: np.ndarray


def ran(system: System, problem: Any, hyper: Any, budget: Any = Ticks(NUM_TICKS)) -> Any:
    """Run a system, and keep the model of every tick."""
    keep = Keep(models=True)
    return fedjax_sim.simulate(
        system, problem, hyper, budget=budget, num_evals=NUM_TICKS, keep=keep
    )


def within_the_last(ticks: list[Tick]) -> Time:
    """Return a budget that ends during the last tick of a loop."""
    return Time((ticks[-2].time + ticks[-1].time) / 2, most_ticks=NUM_TICKS)


def assert_same(run: Any, ticks: list[Tick], rtol: float = 2e-5) -> None:
    """Assert that a run was what a loop says: times, reports in order, and models."""
    found = run.timelines[0]
    assert run.curves.ticks.values[-1] == len(ticks) == len(found.time)
    np.testing.assert_allclose(found.time, [tick.time for tick in ticks], rtol=1e-12)
    for t, tick in enumerate(ticks):
        is_there = found.clients[t] >= 0
        mine = list(zip(found.clients[t][is_there], found.version[t][is_there], strict=True))
        assert mine == [report[:2] for report in tick.reports], t
        weights = [report[2] for report in tick.reports]
        np.testing.assert_allclose(found.weight[t][is_there], weights, rtol=1e-6)
    models = np.asarray(run.samples)[1:].reshape(len(ticks), -1)
    np.testing.assert_allclose(models, [tick.model for tick in ticks], rtol=rtol, atol=rtol)
