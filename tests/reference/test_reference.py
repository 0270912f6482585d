"""Every system against its slow event loop, fed the same random draws: the same schedule exactly, the same models to rounding.

Everything runs in float64. Models agree to 1e-6 of their size, because the weights of slots are handed over in float32; where these are
exact (a quarter, or one), to 1e-11.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.local import shuffled_examples
from fedjax_sim.participation import cohorts
from fedjax_sim.streams import shuffle_bits, stream
from fedjax_sim.timelines import client_rates, runtimes
from fedjax_sim.timelines.laws import update_time
from tests.reference import favano_loop, fedavg_loop, fedbuff_loop, quafl_loop

SEED, N, K, BATCH, LR = 4, 7, 5, 2, 0.05
TICKS = 24


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    with jax.enable_x64(True):
        return regression(N, dtype="float64", noise=0.2)


def simulate(system: fedjax_sim.System, problem: Any, hyper: Any, *, ticks: int = TICKS) -> fedjax_sim.Run:
    with jax.enable_x64(True):
        return fedjax_sim.simulate(system, problem, hyper, seed=SEED, num_ticks=ticks, num_evals=ticks, layout=Layout(4, False, 1))


@pytest.fixture(scope="module")
def gradient(problem: Any) -> Callable[[int, int, np.ndarray], np.ndarray]:
    """The k-th stochastic gradient of a client: least squares by hand, on the batches and noise that the client's streams give."""
    most = 200
    with jax.enable_x64(True):
        key = stream(stream(jax.random.key(SEED), "learning"), "local")

        def draws(client: jax.Array) -> tuple[jax.Array, jax.Array]:
            own = jax.random.fold_in(key, client)
            bits, noise = shuffle_bits(stream(own, "batches")), stream(own, "noise")
            steps = jnp.arange(most)
            examples = jax.vmap(lambda k: shuffled_examples(bits, k, problem.counts[client], BATCH))(steps)
            return examples, jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(noise, k), (3,)))(steps)

        examples, noise = jax.tree.map(np.asarray, jax.jit(jax.vmap(draws))(jnp.arange(N)))
    inputs, targets, scale = np.asarray(problem.inputs), np.asarray(problem.targets), float(problem.noise)

    def one(client: int, k: int, model: np.ndarray) -> np.ndarray:
        x, y = inputs[client, examples[client, k]], targets[client, examples[client, k]]
        return x.T @ (x @ model - y) / BATCH + scale * noise[client, k]

    return one


@pytest.fixture(scope="module")
def start(problem: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(problem.init(stream(stream(jax.random.key(SEED), "learning"), "init")))


class Clock:
    """The random draws behind a schedule: who is contacted, and how long steps take."""

    def __init__(self, hyper: Any):
        with jax.enable_x64(True):
            key = stream(jax.random.key(SEED), "timeline")
            self.key, self.hyper, self.rates = key, hyper, client_rates(key, hyper)
            if hasattr(hyper, "num_selected"):
                table = np.asarray(cohorts(stream(key, "cohorts"), N, hyper.num_selected, TICKS))
                self.cohorts: list[list[int]] = table.tolist()
                own = stream(key, "runtimes")
                per_tick = jax.jit(jax.vmap(lambda t, rate: runtimes(jax.random.fold_in(own, t), rate, K, hyper.runtime_law)))
                self.times = np.asarray(per_tick(jnp.arange(TICKS), self.rates[table]))

    def by_visit(self) -> Callable[[int, int, int], float]:
        """Running times by client, contact since which it works, and step. A window that no contact ends has no draws: no steps."""
        visits: dict[tuple[int, int], np.ndarray] = {}
        count = [0] * N
        for tick, cohort in enumerate(self.cohorts):
            for slot, client in enumerate(cohort):
                visits[client, count[client]] = self.times[tick, slot]
                count[client] += 1
        return lambda client, contact, q: float(visits[client, contact][q]) if (client, contact) in visits else np.inf

    def by_round(self) -> Callable[[int, int, int], float]:
        return lambda tick, client, q: float(self.times[tick, self.cohorts[tick].index(client), q])

    def updates(self, most: int = 80) -> Callable[[int, int], float]:
        """Durations of updates of K steps, by client and number."""
        with jax.enable_x64(True):
            clients, numbers = jnp.divmod(jnp.arange(N * most), most)
            draw = jax.jit(lambda c, u: update_time(stream(self.key, "runtimes"), c, u, self.rates, self.hyper))
            table = np.asarray(draw(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])

    def ties(self, *, width: int, count: int) -> np.ndarray:
        """Rows of tie breakers: of ticks by client, or of clients by update."""
        with jax.enable_x64(True):
            own = stream(self.key, "ties")
            return np.stack([jax.random.uniform(jax.random.fold_in(own, i), (width,)) for i in range(count)])


def assert_same(run: fedjax_sim.Run, records: list[Any], *, tolerance: float) -> None:
    """Schedules bit for bit; models and the variance of clients' models to the tolerance, relative to their size."""
    schedule = run.timelines[0]
    np.testing.assert_array_equal(schedule.time, [record.time for record in records])
    np.testing.assert_array_equal(schedule.clients, [record.clients for record in records])
    np.testing.assert_array_equal(schedule.version, [record.versions for record in records])
    if hasattr(records[0], "steps"):
        np.testing.assert_array_equal(schedule.steps, [record.steps for record in records])
    models = np.stack([run.curves[f"w{i}"].values[1:] for i in range(3)], axis=-1)
    assert models.dtype == np.float64
    np.testing.assert_allclose(models, [record.model for record in records], rtol=0, atol=tolerance)
    np.testing.assert_allclose(run.curves.client_variance[1:], [record.client_variance for record in records], rtol=10 * tolerance)
    np.testing.assert_array_equal(run.models, models[-1])


CONTACTS = {"server_wait": 3.0, "server_interact": 1.0, "rate_slow": 0.2}


def law_of_steps(rate: float) -> tuple[float, float]:
    """P(E > 0) and E[E ^ K] over windows of 4 R units, R geometric with parameter 4/7."""
    rounds, counts = np.arange(1, 200), np.arange(900)[:, None]
    pmf = stats.binom.pmf(counts, 4 * rounds, rate) @ stats.geom.pmf(rounds, 4 / 7)
    return 1 - pmf[0], float(np.minimum(counts[:, 0], K) @ pmf)


@pytest.mark.parametrize(("reweight", "tolerance"), [("none", 1e-11), ("stochastic", 1e-6), ("deterministic", 1e-6)])
def test_favano(small: Callable, problem: Any, gradient: Callable, start: np.ndarray, reweight: str, tolerance: float) -> None:
    system = fedjax_sim.SYSTEMS["favano"]
    hyper = small(system, lr=LR, reweight=reweight, **CONTACTS)
    clock = Clock(hyper)
    rates = np.asarray(clock.rates).tolist()
    law = {rate: law_of_steps(rate) for rate in rates}

    def alpha(action: int, client: int, steps: int) -> float:
        any_step, mean = law[rates[client]]
        return {"none": 1.0, "stochastic": any_step * steps, "deterministic": mean}[reweight]

    records = favano_loop.run(
        start=start, cohorts=clock.cohorts, period=4.0, max_steps=K, lr=LR, runtime=clock.by_visit(), gradient=gradient, alpha=alpha
    )
    assert 0 in {steps for record in records for steps in record.steps}
    assert K in {steps for record in records for steps in record.steps}
    assert_same(simulate(system, problem, hyper), records, tolerance=tolerance)


def test_quafl(small: Callable, problem: Any, gradient: Callable, start: np.ndarray) -> None:
    system = fedjax_sim.SYSTEMS["quafl"]
    hyper = small(system, lr=LR, **CONTACTS)
    clock = Clock(hyper)
    records = quafl_loop.run(
        start=start, cohorts=clock.cohorts, period=4.0, max_steps=K, lr=LR, runtime=clock.by_visit(), gradient=gradient
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def test_fedavg(small: Callable, problem: Any, gradient: Callable, start: np.ndarray) -> None:
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = small(system, lr=LR, server_interact=2.0)
    clock = Clock(hyper)
    records = fedavg_loop.run(
        start=start,
        num_clients=N,
        cohorts=clock.cohorts,
        interact=2.0,
        num_steps=K,
        lr=LR,
        runtime=clock.by_round(),
        gradient=gradient,
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


@pytest.mark.parametrize(
    ("restart", "send_old_model"),
    [("after_interaction", False), ("after_interaction", True), ("own_finish", True), ("fresh", False)],
)
def test_fedbuff(small: Callable, problem: Any, gradient: Callable, start: np.ndarray, restart: str, send_old_model: bool) -> None:
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(system, lr=LR, server_lr=0.7, rate_slow=0.2, restart=restart, send_old_model=send_old_model)
    clock = Clock(hyper)
    ties = clock.ties(width=N, count=TICKS)
    records = fedbuff_loop.run(
        start=start,
        num_clients=N,
        num_actions=TICKS,
        buffer_size=4,
        interact=3.0,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        restart=restart,
        send_old_model=send_old_model,
        duration=clock.updates(),
        tie=lambda action, client: float(ties[action, client]),
        gradient=gradient,
    )
    assert any(len(set(record.versions)) > 1 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def test_fedbuff_with_free_clients(small: Callable, problem: Any, gradient: Callable, start: np.ndarray) -> None:
    """Fast clients fill several slots of one buffer, each time from the model that was current when they went on."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(system, lr=LR, server_lr=0.7, restart="free", slow_fraction=0.7)
    clock = Clock(hyper)
    most = 80
    ties = clock.ties(width=most, count=N)
    records = fedbuff_loop.run_free(
        start=start,
        num_clients=N,
        num_actions=TICKS,
        buffer_size=4,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        duration=clock.updates(most),
        tie=lambda client, number: float(ties[client, number]),
        gradient=gradient,
    )
    assert any(len(set(record.clients)) < 4 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)
