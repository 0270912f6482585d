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
from fedjax_sim.clients.gradient_steps import shuffled_examples
from fedjax_sim.server.staleness import staleness_weights
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.timelines import Speeds, client_speeds, runtimes
from fedjax_sim.timelines.cohorts import draw_cohorts
from fedjax_sim.timelines.group_rounds import exchange_times, iteration_times
from fedjax_sim.timelines.laws import update_time
from tests.reference import (
    favano_loop,
    fedavg_loop,
    fedbuff_loop,
    fedstaleweight_loop,
    hierarchical_loop,
    quafl_loop,
)

SEED, N, K, BATCH, LR = 4, 7, 5, 2, 0.05
TICKS = 24


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    with jax.enable_x64(True):
        return regression(N, dtype="float64", noise=0.2)


def simulate(
    system: fedjax_sim.System, problem: Any, hyper: Any, *, ticks: int = TICKS
) -> fedjax_sim.Run:
    with jax.enable_x64(True):
        return fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=SEED,
            num_ticks=ticks,
            num_evals=ticks,
            layout=Layout(4, False, 1),
            client_variance=True,
        )


Gradient = Callable[[int, int, np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def gradients(problem: Any) -> Callable[..., Gradient]:
    """The k-th stochastic gradient of a client: least squares by hand, on the batches and noise that the client's streams give.

    Of shuffled epochs; or of a shuffle of each update's own, whose whole permutation is looked up and then dealt out in batches.
    """
    most = 200

    def make(*, reshuffled: bool = False) -> Gradient:
        with jax.enable_x64(True):
            key = stream(stream(jax.random.key(SEED), "learning"), "local")

            def draws(client: jax.Array) -> tuple[jax.Array, jax.Array]:
                own = jax.random.fold_in(key, client)
                bits, noise = shuffle_bits(stream(own, "batches")), stream(own, "noise")
                steps, m = jnp.arange(most), problem.counts[client]
                if reshuffled:
                    places = jnp.arange(problem.inputs.shape[1])
                    examples = jax.vmap(
                        lambda k: shuffled_index(bits, jnp.minimum(places, m - 1), m, k)
                    )(steps)
                else:
                    examples = jax.vmap(lambda k: shuffled_examples(bits, k, m, BATCH))(steps)
                return examples, jax.vmap(
                    lambda k: jax.random.normal(jax.random.fold_in(noise, k), (3,))
                )(steps)

            examples, noise = jax.tree.map(np.asarray, jax.jit(jax.vmap(draws))(jnp.arange(N)))
        inputs, targets, scale = (
            np.asarray(problem.inputs),
            np.asarray(problem.targets),
            float(problem.noise),
        )
        counts = np.asarray(problem.counts)

        def batch(client: int, k: int) -> np.ndarray:
            if not reshuffled:
                return examples[client, k]
            update, q = divmod(k, K)
            permutation = examples[client, update * K, : counts[client]]
            assert sorted(permutation) == list(range(counts[client]))
            return np.tile(permutation, K * BATCH)[q * BATCH : (q + 1) * BATCH]

        def one(client: int, k: int, model: np.ndarray) -> np.ndarray:
            x, y = inputs[client, batch(client, k)], targets[client, batch(client, k)]
            return x.T @ (x @ model - y) / BATCH + scale * noise[client, k]

        return one

    return make


@pytest.fixture(scope="module")
def gradient(gradients: Callable[..., Gradient]) -> Gradient:
    return gradients()


@pytest.fixture(scope="module")
def start(problem: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(problem.init(stream(stream(jax.random.key(SEED), "learning"), "init")))


class Clock:
    """The random draws behind a schedule: who is contacted, and how long steps take."""

    def __init__(self, hyper: Any):
        with jax.enable_x64(True):
            key = stream(jax.random.key(SEED), "timeline")
            self.key, self.hyper, self.speeds = key, hyper, client_speeds(key, hyper)
            if hasattr(hyper, "num_selected"):
                table = np.asarray(draw_cohorts(stream(key, "cohorts"), N, hyper.num_selected, TICKS))
                self.cohorts: list[list[int]] = table.tolist()
                own = stream(key, "runtimes")
                per_tick = jax.jit(
                    jax.vmap(
                        lambda t, speeds: runtimes(
                            jax.random.fold_in(own, t), speeds, K, hyper.runtime_law
                        )
                    )
                )
                self.times = np.asarray(
                    per_tick(jnp.arange(TICKS), Speeds(*(leaf[table] for leaf in self.speeds)))
                )

    def by_visit(self) -> Callable[[int, int, int], float]:
        """Running times by client, contact since which it works, and step. A window that no contact ends has no draws: no steps."""
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
        return lambda tick, client, q: float(self.times[tick, self.cohorts[tick].index(client), q])

    def updates(self, most: int = 80) -> Callable[[int, int], float]:
        """Durations of updates of K steps, by client and number."""
        with jax.enable_x64(True):
            clients, numbers = jnp.divmod(jnp.arange(N * most), most)
            draw = jax.jit(
                lambda c, u: update_time(
                    stream(self.key, "runtimes"), c, u, self.speeds, self.hyper
                )
            )
            table = np.asarray(draw(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])

    def ties(self) -> Callable[[int, int], float]:
        """Tie breakers of a server that holds clients back: by tick and client."""
        with jax.enable_x64(True):
            own = stream(self.key, "ties")
            table = np.stack(
                [jax.random.uniform(jax.random.fold_in(own, tick), (N,)) for tick in range(TICKS)]
            )
        return lambda tick, client: float(table[tick, client])

    def lots(self, most: int = 80) -> Callable[[int, int], float]:
        """Tie breakers of clients that run free: by client and number of its update."""
        own = stream(self.key, "ties")
        clients, numbers = jnp.divmod(jnp.arange(N * most), most)
        draw = jax.jit(
            jax.vmap(
                lambda c, u: jax.random.bits(
                    jax.random.fold_in(jax.random.fold_in(own, c), u), (), "uint32"
                )
            )
        )
        table = np.asarray(draw(clients, numbers)).reshape(N, most)
        return lambda client, number: float(table[client, number])


def assert_same(run: fedjax_sim.Run, records: list[Any], *, tolerance: float) -> None:
    """Schedules bit for bit; models and the variance of clients' models to the tolerance, relative to their size."""
    schedule = run.timelines[0]
    np.testing.assert_array_equal(schedule.time, [record.time for record in records])
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


CONTACTS = {"server_wait": 3.0, "server_interact": 1.0, "rate_slow": 0.2}


def law_of_steps(rate: float) -> tuple[float, float]:
    """P(E > 0) and E[E ^ K] over windows of 4 R units, R geometric with parameter 4/7."""
    rounds, counts = np.arange(1, 200), np.arange(900)[:, None]
    pmf = stats.binom.pmf(counts, 4 * rounds, rate) @ stats.geom.pmf(rounds, 4 / 7)
    return 1 - pmf[0], float(np.minimum(counts[:, 0], K) @ pmf)


@pytest.mark.parametrize(
    ("reweight", "tolerance"), [("none", 1e-11), ("stochastic", 1e-6), ("deterministic", 1e-6)]
)
def test_favano(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    reweight: str,
    tolerance: float,
) -> None:
    system = fedjax_sim.SYSTEMS["favano"]
    hyper = small(system, lr=LR, reweight=reweight, **CONTACTS)
    clock = Clock(hyper)
    rates = np.asarray(clock.speeds.rate).tolist()
    law = {rate: law_of_steps(rate) for rate in rates}

    def alpha(action: int, client: int, steps: int) -> float:
        any_step, mean = law[rates[client]]
        return {"none": 1.0, "stochastic": any_step * steps, "deterministic": mean}[reweight]

    records = favano_loop.run(
        start=start,
        cohorts=clock.cohorts,
        period=4.0,
        max_steps=K,
        lr=LR,
        runtime=clock.by_visit(),
        gradient=gradient,
        alpha=alpha,
    )
    assert 0 in {steps for record in records for steps in record.steps}
    assert K in {steps for record in records for steps in record.steps}
    assert_same(simulate(system, problem, hyper), records, tolerance=tolerance)


def test_quafl(small: Callable, problem: Any, gradient: Gradient, start: np.ndarray) -> None:
    system = fedjax_sim.SYSTEMS["quafl"]
    hyper = small(system, lr=LR, **CONTACTS)
    clock = Clock(hyper)
    records = quafl_loop.run(
        start=start,
        cohorts=clock.cohorts,
        period=4.0,
        max_steps=K,
        lr=LR,
        runtime=clock.by_visit(),
        gradient=gradient,
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def test_fedavg(small: Callable, problem: Any, gradient: Gradient, start: np.ndarray) -> None:
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
    [
        ("after_interaction", False),
        ("after_interaction", True),
        ("own_finish", True),
        ("fresh", False),
    ],
)
def test_fedbuff(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    restart: str,
    send_old_model: bool,
) -> None:
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(
        system, lr=LR, server_lr=0.7, rate_slow=0.2, restart=restart, send_old_model=send_old_model
    )
    clock = Clock(hyper)
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
        tie=clock.ties(),
        gradient=gradient,
    )
    assert any(len(set(record.versions)) > 1 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def test_fedbuff_with_free_clients(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """Fast clients fill several slots of one buffer, each time from the model that was current when they went on."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(system, lr=LR, server_lr=0.7, restart="free", slow_fraction=0.7)
    clock = Clock(hyper)
    records = fedbuff_loop.run_free(
        start=start,
        num_clients=N,
        num_actions=TICKS,
        buffer_size=4,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        duration=clock.updates(),
        tie=clock.lots(),
        gradient=gradient,
    )
    assert any(len(set(record.clients)) < 4 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def of_stale_clients(
    clock: Clock, gradients: Callable[..., Gradient], start: np.ndarray, **options: Any
) -> list[Any]:
    """Run the loop of FedStaleWeight and FedAsync on a clock's clients."""
    loop = {
        "num_clients": N,
        "num_actions": TICKS,
        "num_steps": K,
        "lr": LR,
        "duration": clock.updates(),
        "pull": clock.hyper.restart,
    }
    return fedstaleweight_loop.run(
        start=start, gradient=gradients(reshuffled=True), **(loop | options)
    )


def has_duplicates(records: list[Any]) -> bool:
    return any(len(set(record.clients)) < len(record.clients) for record in records)


STALE = {"slow_fraction": 0.7, "server_lr": 0.7}
"""Five of seven are slow: two fast ones send most of the updates."""


@pytest.fixture(scope="module")
def stale_run(small: Callable, problem: Any) -> fedjax_sim.Run:
    """A run of FedStaleWeight with its own weights."""
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    return simulate(system, problem, small(system, lr=LR, **STALE))


def weighted_anew(system: fedjax_sim.System, run: fedjax_sim.Run) -> fedjax_sim.System:
    """The system on the arrivals of a run, which its weights do not change: finding them again takes a program for each weighting."""

    def timeline(key: jax.Array, hyper: Any, num_ticks: int) -> fedjax_sim.Timeline:
        known = fedjax_sim.Timeline(*map(jnp.asarray, run.timelines[0]))
        staleness = jnp.arange(num_ticks)[:, None] - known.version
        return known._replace(
            weight=staleness_weights(known.clients, staleness, hyper, num_clients=N)
        )

    return system._replace(timeline=timeline)


def test_fedstaleweight(
    small: Callable, gradients: Callable, start: np.ndarray, stale_run: fedjax_sim.Run
) -> None:
    """As the paper has it, with updates of one client in one buffer."""
    clock = Clock(small(fedjax_sim.SYSTEMS["fedstaleweight"], lr=LR, **STALE))
    server_step = fedstaleweight_loop.reweighted(
        fedstaleweight_loop.Weigher("eq8", num_clients=N), server_lr=0.7
    )
    records = of_stale_clients(clock, gradients, start, buffer_size=4, server_step=server_step)
    assert has_duplicates(records)
    assert_same(stale_run, records, tolerance=1e-6)


WEIGHTS = [
    {"weighting": "eq8", "average": "cumulative"},
    {"weighting": "eq8", "normalised": False},
    {"weighting": "alg1", "window": 3},
    {"weighting": "code_exact"},
    {"weighting": "mean"},
    {"weighting": "polynomial", "normalised": False, "exponent": 0.8},
]


@pytest.mark.parametrize(
    "rule", WEIGHTS, ids=lambda rule: "-".join(str(value) for value in rule.values())
)
def test_fedstaleweight_with_other_weights(
    small: Callable,
    problem: Any,
    gradients: Callable,
    start: np.ndarray,
    stale_run: fedjax_sim.Run,
    rule: dict[str, Any],
) -> None:
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    hyper = small(system, lr=LR, **STALE, **rule)
    server_step = fedstaleweight_loop.reweighted(
        fedstaleweight_loop.Weigher(num_clients=N, **rule), server_lr=0.7
    )
    records = of_stale_clients(
        Clock(hyper), gradients, start, buffer_size=4, server_step=server_step
    )
    run = simulate(weighted_anew(system, stale_run), problem, hyper)
    assert np.abs(run.models - stale_run.models).max() > 1e-4
    assert_same(run, records, tolerance=1e-6)


GEOMETRIC = {
    "runtime_law": "runtime_geom",
    "time_of": "step",
    "rate_fast": 0.9,
    "rate_slow": 0.3,
    "spread_fast": 0.0,
    "spread_slow": 0.0,
}
"""A law of whole numbers, by which many updates arrive at one time; clients then come in order of their numbers."""
READINGS = {
    "free, with ties": ("free", GEOMETRIC),
    "before aggregation": ("before_aggregation", {}),
    "new version": ("new_version", {}),
    "new version, with ties": ("new_version", GEOMETRIC),
    "after interaction, with ties": ("after_interaction", GEOMETRIC),
}


@pytest.mark.parametrize("name", READINGS)
def test_fedstaleweight_with_other_pulls(
    small: Callable, problem: Any, gradients: Callable, start: np.ndarray, name: str
) -> None:
    """Who goes on when, and from which model. Without an exchange, "after_interaction" is one update of each client in a buffer at most."""
    restart, law = READINGS[name]
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    hyper = small(system, lr=LR, restart=restart, **STALE, **law)
    clock = Clock(hyper)

    def reference(**options: Any) -> list[Any]:
        server_step = fedstaleweight_loop.reweighted(
            fedstaleweight_loop.Weigher("eq8", num_clients=N), server_lr=0.7
        )
        return of_stale_clients(
            clock, gradients, start, buffer_size=4, server_step=server_step, **options
        )

    records = reference()
    assert has_duplicates(records) == (restart != "after_interaction")
    # That ties are there shows if they are broken the other way round.
    turned = reference(tie=lambda client, number: -client)
    assert ([each.clients for each in turned] != [each.clients for each in records]) == (
        "ties" in name
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-6)


def test_fedasync(small: Callable, problem: Any, gradients: Callable, start: np.ndarray) -> None:
    """Models are mixed as they arrive, discounted by their staleness; local training is pulled back to where it began."""
    system = fedjax_sim.SYSTEMS["fedasync"]
    hyper = small(system, lr=LR, slow_fraction=0.7, mixing=0.7, proximal=0.3)
    clock = Clock(hyper)
    polynomial = fedstaleweight_loop.mixed(lambda tau: (1 + tau) ** -0.5, mixing=0.7)
    records = of_stale_clients(
        clock, gradients, start, buffer_size=1, proximal=0.3, server_step=polynomial
    )
    assert max(action - record.versions[0] for action, record in enumerate(records)) > 2
    run = simulate(system, problem, hyper)
    assert_same(run, records, tolerance=1e-6)
    hinge = fedstaleweight_loop.mixed(
        lambda tau: 1.0 if tau <= 1 else 1 / (3 * (tau - 1) + 1), mixing=0.7
    )
    records = of_stale_clients(
        clock, gradients, start, buffer_size=1, proximal=0.3, server_step=hinge
    )
    changed = hyper.replace(weighting="hinge", hinge_start=1.0, hinge_slope=3.0)
    other = simulate(weighted_anew(system, run), problem, changed)
    assert np.abs(other.models - run.models).max() > 1e-4
    assert_same(other, records, tolerance=1e-6)


GROUPS = {
    "group_sizes": (1, 3, 2, 1),
    "sampling": "shuffled_epochs",
    "sync_time": 7.0,
    "sync_growth": 1.5,
}
"""Iterations of 2.4 units of time on average: one to about five in a round, whose sync times grow to 7."""
COMBINATIONS = {
    "divide_by_steps": hierarchical_loop.divided_by_steps,
    "average": hierarchical_loop.averaged,
    "fednova": hierarchical_loop.fednova,
}


@pytest.mark.parametrize(
    ("aggregation", "delays"),
    [("divide_by_steps", "group"), ("fednova", "group"), ("average", "client")],
)
def test_hierarchical(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    aggregation: str,
    delays: str,
) -> None:
    """With a model per client there; here a group's step is one batch. To float32's rounding of the groups' weights."""
    system = fedjax_sim.SYSTEMS["hierarchical"]
    clock = (
        {"runtime_law": "runtime_exp", "mean": system.Hyper().mean}
        if delays == "client"
        else {"mean": 1.5}
    )
    hyper = small(system, lr=LR, aggregation=aggregation, delays=delays, **clock, **GROUPS)
    with jax.enable_x64(True):
        key = stream(jax.random.key(SEED), "timeline")
        draw = jax.vmap(
            jax.vmap(lambda u, i: iteration_times(key, hyper, u, i), (None, 0)), (0, None)
        )
        table, exchanges = (
            np.asarray(jax.jit(draw)(jnp.arange(TICKS), jnp.arange(40))),
            np.asarray(exchange_times(key, hyper, TICKS)),
        )
    records = hierarchical_loop.run(
        start=start,
        groups=[[0], [1, 2, 3], [4, 5], [6]],
        num_rounds=TICKS,
        sync_time=lambda number: min(7.0, 1.5 * (number + 1)),
        delay=lambda number, group, iteration: float(table[number, iteration, group]),
        exchange=lambda number: float(exchanges[number]),
        combine=COMBINATIONS[aggregation],
        lr=LR,
        gradient=gradient,
    )
    assert len({tuple(record.steps) for record in records}) > 5
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-6)
