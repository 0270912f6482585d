"""FedEM and VR-FedEM, run by the engine, against slow loops with the same random draws.

The model is a mixture, messages are compressed, and some clients take part in each round.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.schedules import InverseSqrt, Table
from fedjax_sim.core.streams import stream
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server.compression import BlockQuantization
from tests.reference import fedem_loop, mixture

SEED, N, M, G, BATCH, TICKS = 3, 5, 12, 2, 3, 18
SETTINGS = {
    "num_clients": N,
    "batch_size": BATCH,
    "participation": 0.6,
    "alpha": 0.3,
    "compression": BlockQuantization(),
}
SETTINGS |= {"gamma": 0.3, "gamma_schedule": InverseSqrt()}


@struct.dataclass
class Watched(latent.GaussianMixture):
    """A mixture that reports every expected statistic as a metric."""

    def metrics(self, statistics: jax.Array, params: Any) -> dict[str, jax.Array]:
        return {f"s{i}": statistics[i] for i in range(statistics.shape[0])}


@pytest.fixture(scope="module")
def data() -> np.ndarray:
    """Draw clients' examples `[N, M, 2]`, for each client mostly from one component."""
    random = np.random.default_rng(0)
    means = np.array([[-1.0, -0.5], [1.5, 1.0]])
    component = random.random((N, M)) < np.linspace(0.1, 0.9, N)[:, None]
    return means[component.astype(int)] + random.normal(size=(N, M, 2))


@pytest.fixture(scope="module")
def problem(data: np.ndarray) -> latent.Estimation:
    partition = Partition(np.arange(N * M), np.full(N, M))
    with jax.enable_x64(True):
        return latent.make_estimation(Watched(G), data.reshape(-1, 2), partition)


@pytest.fixture(scope="module")
def key() -> Any:
    return stream(jax.random.key(SEED), "learning")


@pytest.fixture(scope="module")
def draws(key: Any) -> dict[str, Any]:
    """Mini-batches by client and number, and the compressor with its draws by tick and client."""
    with jax.enable_x64(True):
        batches, compression = stream(key, "batches"), stream(key, "compression")

        def batch(client: jax.Array, number: jax.Array) -> jax.Array:
            batch_key = jax.random.fold_in(jax.random.fold_in(batches, client), number)
            return jax.random.bits(batch_key, (BATCH,), "uint32") % M

        def uniforms(tick: jax.Array, client: jax.Array) -> jax.Array:
            return jax.random.uniform(
                jax.random.fold_in(jax.random.fold_in(compression, tick), client),
                (3 * G,),
                "float64",
            )

        def table(draw: Callable, rows: int, columns: int) -> np.ndarray:
            return np.asarray(
                jax.jit(jax.vmap(jax.vmap(draw, (None, 0)), (0, None)))(
                    jnp.arange(rows), jnp.arange(columns)
                )
            )

        places, lots = table(batch, N, TICKS), table(uniforms, TICKS, N)

    def quantize(tick: int, client: int, x: np.ndarray) -> np.ndarray:
        """Quantize blocks of four by their 2-norm."""
        result = np.zeros_like(x)
        for first in range(0, len(x), 4):
            block = x[first : first + 4]
            norm = np.sqrt((block**2).sum())
            is_kept = lots[tick, client, first : first + 4] * norm < np.abs(block)
            result[first : first + 4] = norm * np.sign(block) * is_kept
        return result

    return {"batch": lambda client, number: places[client, number], "quantize": quantize}


@pytest.fixture(scope="module")
def mixture_steps(data: np.ndarray) -> dict[str, Any]:
    flat = data.reshape(-1, 2)
    return {
        "e_step": mixture.e_step,
        "m_step": partial(mixture.m_step, components=G, second_moment=flat.T @ flat / len(flat)),
    }


def simulate(system: fedjax_sim.System, problem: Any, hyper: Any) -> fedjax_sim.Run:
    """Run one lane in float64, evaluated at every tick."""
    with jax.enable_x64(True):
        return fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=SEED,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS,
            layout=Layout(N, False, 1),
        )


def start_of(problem: latent.Estimation, key: Any) -> np.ndarray:
    """Return the initial statistics."""
    with jax.enable_x64(True):
        return np.asarray(problem.init(stream(key, "init")))


def participation(run: fedjax_sim.Run) -> Callable[[int, int], bool]:
    """Return who takes part in a run, by tick and client."""
    coins = np.asarray(run.timelines[0].weight)
    assert 0.3 < coins.mean() < 0.9
    return lambda tick, client: bool(coins[tick, client])


def assert_same(
    run: fedjax_sim.Run, rounds: list[fedem_loop.Round], steps: dict[str, Any], data: np.ndarray
) -> None:
    """Compare statistics, ||H||^2, the objective, ||h||^2 and the memories' error at all ticks."""
    curves = run.curves
    ours = np.stack([curves[f"s{i}"].values[1:] for i in range(3 * G)], axis=-1)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, [each.server for each in rounds], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        curves.field.values[1:], [(each.field**2).sum() for each in rounds], rtol=1e-9
    )
    for tick, each in enumerate(rounds, start=1):
        theta = steps["m_step"](each.server)
        fields = np.stack([steps["e_step"](theta, y).mean(axis=0) for y in data]) - each.server
        assert curves.objective.values[tick] == pytest.approx(
            mixture.loss(theta, data.reshape(-1, 2)), rel=1e-12
        )
        assert curves.mean_field.values[tick] == pytest.approx(
            (fields.mean(axis=0) ** 2).sum(), rel=1e-9
        )
        assert curves.memory_error.values[tick] == pytest.approx(
            ((each.memories - fields) ** 2).sum(axis=1).mean(), rel=1e-9
        )


UNLIKE = np.array([1.0, 0.3, 0.5, 0.9, 0.6])
"""Probabilities p_i."""


def unlike(are_unlike: bool) -> dict[str, Any]:
    """Settings with which clients have different probabilities to take part."""
    schedule = Table(factors=tuple(UNLIKE.tolist()), by="client")
    return {"participation": 1.0, "participation_schedule": schedule} if are_unlike else {}


@pytest.mark.few(1)
@pytest.mark.parametrize("are_unlike", [False, True], ids=["p", "p_i"])
def test_fedem(
    problem: Any,
    data: np.ndarray,
    key: Any,
    draws: dict[str, Any],
    mixture_steps: dict[str, Any],
    are_unlike: bool,
) -> None:
    """The same statistics, metrics and numbers of evaluations."""
    system = fedjax_sim.SYSTEMS["fedem"]
    run = simulate(system, problem, system.paper(**{**SETTINGS, **unlike(are_unlike)}))
    rounds = fedem_loop.fedem(
        start_of(problem, key),
        list(data),
        rounds=TICKS,
        **mixture_steps,
        **draws,
        active=participation(run),
        gamma=lambda tick: 0.3 / np.sqrt(tick + 1),
        alpha=0.3,
        p=UNLIKE if are_unlike else 0.6,
    )
    assert_same(run, rounds, mixture_steps, data)
    # The first pass belongs to no tick; epochs count the mini-batches of all clients.
    assert int(run.curves.needed) == rounds[-1].evaluations - N * M
    np.testing.assert_allclose(
        run.curves.epochs.values, 1 + np.arange(TICKS + 1) * BATCH / M, rtol=1e-12
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("are_unlike", [False, True], ids=["p", "p_i"])
@pytest.mark.parametrize("offline", ["compute", pytest.param("freeze", marks=pytest.mark.slow)])
def test_vr_fedem(
    problem: Any,
    data: np.ndarray,
    key: Any,
    draws: dict[str, Any],
    mixture_steps: dict[str, Any],
    offline: str,
    are_unlike: bool,
) -> None:
    """Three outer loops of six steps.

    The reference loop draws the first mini-batch of each, whose difference is 0.
    """
    system = fedjax_sim.SYSTEMS["vr_fedem"]
    settings = {**SETTINGS, **unlike(are_unlike), "inner_steps": 6.0, "offline": offline}
    run = simulate(system, problem, system.paper(**settings))
    rounds = fedem_loop.vr_fedem(
        start_of(problem, key),
        list(data),
        outer=3,
        inner=6,
        **mixture_steps,
        **draws,
        active=participation(run),
        gamma=lambda tick: 0.3 / np.sqrt(tick + 1),
        alpha=0.3,
        p=UNLIKE if are_unlike else 0.6,
        freeze=offline == "freeze",
    )
    assert_same(run, rounds, mixture_steps, data)
    np.testing.assert_allclose(
        run.curves.epochs.values[1:],
        [each.evaluations / (N * M) for each in rounds][:TICKS],
        rtol=1e-12,
    )


COHORTS = {"rounds": "cohorts", "num_selected": 2, "num_asked": 3, "drop_rate": 0.2}
COHORTS |= {"deadline": 2.0, "server_interact": 0.5, "slow_fraction": 0.4, "rate_slow": 0.3}


def messages_of(run: fedjax_sim.Run) -> list[list[fedem_loop.Message]]:
    """Return the messages of a run's schedule, by tick."""
    found = run.timelines[0]
    rows = zip(found.clients.tolist(), found.weight.tolist(), found.version.tolist(), strict=True)
    return [
        [fedem_loop.Message(*each) for each in zip(*row, strict=True) if each[0] >= 0]
        for row in rows
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedem", "vr_fedem", "async_fedem"])
def test_fedem_on_clocks(
    problem: Any,
    data: np.ndarray,
    key: Any,
    draws: dict[str, Any],
    mixture_steps: dict[str, Any],
    name: str,
) -> None:
    """Cohorts with over-selection, a deadline and losses; and a buffer with stale messages."""
    system = fedjax_sim.SYSTEMS[name]
    given = {each: value for each, value in SETTINGS.items() if each != "participation"}
    clock = {"buffer_size": 2, "rule": "eq8"} if name == "async_fedem" else COHORTS
    more = {"inner_steps": 6.0} if name == "vr_fedem" else {}
    run = simulate(system, problem, system.Hyper(**given, **clock, **more))
    ticks = messages_of(run)
    assert {len(messages) for messages in ticks} == ({2} if name == "async_fedem" else {0, 1, 2})
    staleness = [k - each.version for k, messages in enumerate(ticks) for each in messages]
    assert (max(staleness) > 1) == (name == "async_fedem")
    rounds = fedem_loop.scheduled_fedem(
        start_of(problem, key),
        list(data),
        ticks=ticks,
        **mixture_steps,
        **draws,
        gamma=lambda tick: 0.3 / np.sqrt(tick + 1),
        alpha=0.3,
        inner=int(more.get("inner_steps", 0)),
    )
    # A tick without messages leaves H as it was.
    for k, messages in enumerate(ticks):
        if not messages and k > 0:
            rounds[k] = rounds[k]._replace(field=rounds[k - 1].field)
    assert_same(run, rounds, mixture_steps, data)


def test_em_in_cohorts(problem: Any, data: np.ndarray, key: Any, mixture_steps: Any) -> None:
    """The mean of the statistics of those who are heard of."""
    system = fedjax_sim.SYSTEMS["em"]
    cohorts = {**COHORTS, "num_selected": 4, "num_asked": 5, "drop_rate": 0.0}
    run = simulate(system, problem, system.Hyper(num_clients=N, batch_size=M, **cohorts))
    server, path, heard = start_of(problem, key), [], set()
    e_step, m_step = mixture_steps["e_step"], mixture_steps["m_step"]
    for messages in messages_of(run):
        theta = m_step(server)
        means = [e_step(theta, data[each.client]).mean(axis=0) for each in messages]
        server = np.mean(means, axis=0) if means else server
        path.append(server)
        heard.add(tuple(sorted(each.client for each in messages)))
    assert len(heard) > 2
    ours = np.stack([run.curves[f"s{i}"].values[1:] for i in range(3 * G)], axis=-1)
    np.testing.assert_allclose(ours, path, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_vr_fedem_of_one_client_is_spider_em() -> None:
    """Step by step, without compression, on a noisy mean whose kappa differs between examples."""
    random = np.random.default_rng(1)
    y, kappa = random.normal(size=(M, 2)) + 1, random.uniform(0.2, 0.9, M)
    system = fedjax_sim.SYSTEMS["vr_fedem"]
    hyper = system.paper(num_clients=1, batch_size=BATCH, gamma=0.3, inner_steps=6.0)

    @struct.dataclass
    class WatchedMean(latent.NoisyMean):
        def metrics(self, statistics: jax.Array, params: Any) -> dict[str, jax.Array]:
            return {f"s{i}": statistics[i] for i in range(2)}

    with jax.enable_x64(True):
        one_client = latent.make_estimation(
            WatchedMean(ridge=0.25),
            Seen(y, kappa),
            Partition(np.arange(M), np.array([M])),
            start=np.ones(2),
        )
        batches = jax.random.fold_in(stream(stream(jax.random.key(SEED), "learning"), "batches"), 0)
        places = [
            np.asarray(jax.random.bits(jax.random.fold_in(batches, k), (BATCH,), "uint32") % M)
            for k in range(TICKS)
        ]
    run = simulate(system, one_client, hyper)
    path = fedem_loop.spider_em(
        np.ones(2),
        np.arange(M),
        outer=3,
        inner=6,
        e_step=lambda theta, rows: (
            (1 - kappa[rows])[:, None] * theta + kappa[rows][:, None] * y[rows]
        ),
        m_step=lambda s: s / 1.25,
        batch=lambda k: places[k],
        gamma=0.3,
    )
    ours = np.stack([run.curves[f"s{i}"].values[1:] for i in range(2)], axis=-1)
    np.testing.assert_allclose(ours, path, rtol=1e-12)
