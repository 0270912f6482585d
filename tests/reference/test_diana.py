"""DIANA and VR-DIANA, run by the engine, against slow loops with the same random draws."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import BlockQuantization
from fedjax_sim.systems import diana, fedavg, vr_diana
from tests.reference import diana_loop
from tests.reference.draws import BATCH, SEED, TICKS, Gradient, N

GAMMA, ALPHA, P, REFRESH = 0.05, 0.4, 0.6, 0.3
SETTINGS = {"num_clients": N, "batch_size": BATCH, "lr": GAMMA, "alpha": ALPHA}
SETTINGS |= {"participation": P, "compression": BlockQuantization(block=2)}


@pytest.fixture(scope="module")
def whole_problem(regression: Callable) -> Any:
    """The same problem as `problem`, with exact gradients of clients."""
    with jax.enable_x64(True):
        return regression(N, dtype="float64", noise=0.2, is_whole=True)


def run(system: fedjax_sim.System, problem: Any, hyper: Any) -> tuple[fedjax_sim.Run, np.ndarray]:
    """Run one lane in float64, and return it with the model after each tick."""
    with jax.enable_x64(True):
        found = fedjax_sim.simulate(
            system,
            problem,
            hyper,
            seed=SEED,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS,
            layout=Layout(N, False, 1),
        )
    return found, np.stack([found.curves[f"w{i}"].values[1:] for i in range(3)], axis=-1)


def key_of(name: str, tick: int) -> jax.Array:
    learning = stream(jax.random.key(SEED), "learning")
    return jax.random.fold_in(stream(learning, name), tick)


def quantize(tick: int, client: int, x: np.ndarray) -> np.ndarray:
    """Quantize blocks of two by their 2-norm."""
    with jax.enable_x64(True):
        key = jax.random.fold_in(key_of("compression", tick), client)
        lots = np.asarray(jax.random.uniform(key, x.shape, "float64"))
    blocks = [x[:2], x[2:]]
    norm = np.concatenate([np.full(len(b), np.sqrt((b**2).sum())) for b in blocks])
    return norm * np.sign(x) * (lots * norm < np.abs(x))


def whole(problem: Any) -> diana_loop.Whole:
    fields = problem.inputs, problem.targets, problem.counts
    inputs, targets, counts = (np.asarray(field) for field in fields)

    def gradient(client: int, model: np.ndarray) -> np.ndarray:
        x, y = inputs[client, : counts[client]], targets[client, : counts[client]]
        return x.T @ (x @ model - y) / len(y)

    return gradient


@pytest.mark.parametrize("memory_start", ["zero", "mean_field"])
def test_diana(
    whole_problem: Any, gradient: Gradient, start: np.ndarray, memory_start: str
) -> None:
    found, models = run(
        diana.system, whole_problem, diana.paper(**SETTINGS, memory_start=memory_start)
    )
    of_all = whole(whole_problem)
    first = np.array([of_all(i, start) for i in range(N)]) * (memory_start != "zero")
    active = np.asarray(found.timelines[0].weight) > 0
    assert 0.3 < active.mean() < 0.9
    expected = diana_loop.diana(
        start,
        first,
        active=active,
        slope=gradient,
        quantize=quantize,
        alpha=ALPHA,
        gamma=GAMMA,
        p=P,
    )
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-10)
    assert int(found.curves.needed) == active.sum()
    # Two blocks of a float and two bits per entry from each, and whole means at first.
    bits = 2 * 64 + 3 * 2
    whole_means = 3 * 64 * N * (memory_start != "zero")
    assert int(found.curves.uplink_bits[-1]) == active.sum() * bits + whole_means
    assert int(found.curves.downlink_bits[-1]) == TICKS * N * 3 * 64


def test_vr_diana(whole_problem: Any, gradient: Gradient, start: np.ndarray) -> None:
    hyper = vr_diana.paper(**SETTINGS, refresh=REFRESH)
    found, models = run(vr_diana.system, whole_problem, hyper)
    with jax.enable_x64(True):
        coins = [bool(jax.random.bernoulli(key_of("refresh", k), REFRESH)) for k in range(TICKS)]
    assert 2 < sum(coins) < TICKS / 2
    active = np.asarray(found.timelines[0].weight) > 0
    expected = diana_loop.diana(
        start,
        np.zeros((N, 3)),
        active=active,
        slope=gradient,
        quantize=quantize,
        alpha=ALPHA,
        gamma=GAMMA,
        p=P,
        whole=whole(whole_problem),
        coins=np.array(coins),
    )
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-10)
    passes = -(-np.asarray(whole_problem.counts) // BATCH)
    assert int(found.curves.needed) == 2 * active.sum() + sum(coins) * passes.sum()


def test_diana_without_compression_is_fedavg_with_one_step(problem: Any) -> None:
    """Memories cancel, whatever alpha is, if all take part: both are SGD on the same batches."""
    common = {"num_clients": N, "batch_size": BATCH, "lr": GAMMA}
    _, ours = run(diana.system, problem, diana.paper(**common, alpha=ALPHA))
    _, averaged = run(fedavg.system, problem, fedavg.paper(**common, num_selected=N, local_steps=1))
    np.testing.assert_allclose(ours, averaged, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_vr_diana_on_whole_batches_is_diana_with_exact_gradients(whole_problem: Any) -> None:
    """60 examples are all of a client's, equally often, and the noise cancels."""
    common = {**SETTINGS, "batch_size": 60}
    _, reduced = run(vr_diana.system, whole_problem, vr_diana.paper(**common, refresh=0.4))
    _, exact = run(diana.system, whole_problem, diana.paper(**common, gradient="exact"))
    np.testing.assert_allclose(reduced, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("field_rule", ["fedem", "naive"])
def test_memories_remove_the_error_of_compression(field_rule: str) -> None:
    """Exact gradients of clients that differ: only with memories the step size may be constant."""
    centers = np.random.default_rng(0).normal(size=(5, 4))
    hyper = diana.paper(
        num_clients=5, compression=BlockQuantization(), lr=0.2, field_rule=field_rule
    )
    with jax.enable_x64(True):
        problem, ticks = Quadratic.of(jnp.asarray(centers), start=2.0), fedjax_sim.Ticks(300)
        found = fedjax_sim.simulate(
            diana.system, problem, hyper, seed=SEED, budget=ticks, num_evals=1
        )
    distance = np.abs(np.asarray(found.models) - centers.mean(axis=0)).max()
    assert distance < 1e-8 if field_rule == "fedem" else distance > 1e-2
