"""FA-LD against its slow loop with the same random draws: equal models to float64 rounding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.schedules import InverseTime
from fedjax_sim.core.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.systems import langevin
from tests.reference import langevin_loop

SEED, N, K, BATCH, TICKS = 4, 7, 3, 2, 8
MOST = 60  # local steps of a run
TAU, RHO, ETA, DECAY = 0.01, 0.6, 2e-3, 40.0


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    with jax.enable_x64(True):
        return regression(N, dtype="float64", noise=0.2)


class Draws:
    """The random draws of a run, by client and global step."""

    def __init__(self, problem: Any):
        with jax.enable_x64(True):
            key = stream(jax.random.key(SEED), "learning")
            steps = jnp.arange(MOST)

            def normals(key: jax.Array) -> jax.Array:
                return jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(key, k), (3,)))(
                    steps
                )

            def of(client: jax.Array) -> tuple[jax.Array, ...]:
                client_key = jax.random.fold_in(stream(key, "local"), client)
                bits = shuffle_bits(stream(client_key, "batches"))
                count = problem.counts[client]
                # The whole permutation of each step, which begins with its batch.
                places = jnp.minimum(jnp.arange(6), count - 1)
                orders = jax.vmap(lambda k: shuffled_index(bits, places, count, k))(steps)
                gradient_noise = normals(stream(client_key, "noise"))
                return orders, gradient_noise, normals(stream(client_key, "private noise"))

            found = jax.jit(
                lambda: (jax.vmap(of)(jnp.arange(N)), normals(stream(key, "shared noise")))
            )()
            (self.orders, self.gradient_noise, self.private), self.shared = jax.tree.map(
                np.asarray, found
            )
            self.start = np.asarray(problem.init(stream(key, "init")))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("participation", "weights", "averaging"),
    [
        ("full", None, "periodic"),
        ("with_replacement", (1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 5.0), "periodic"),
        ("without_replacement", 1.0, "periodic"),
        ("with_replacement", (1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 5.0), "random"),
    ],
)
def test_langevin(problem: Any, participation: str, weights: Any, averaging: str) -> None:
    """With mini-batches without replacement, gradient noise, weights and a falling step size.

    Clients have different numbers of examples.
    """
    with jax.enable_x64(True):
        hyper = langevin.paper(
            num_clients=N,
            participants=participation,
            averaging=averaging,
            **({} if participation == "full" else {"num_selected": 4}),
            client_weights=weights,
            local_steps=K,
            batch_size=BATCH,
            step_size=ETA,
            step_size_schedule=InverseTime(decay=ETA * DECAY, by="step"),
            temperature=TAU,
            rho=RHO,
        )
        how = {
            "budget": fedjax_sim.Ticks(TICKS),
            "num_evals": TICKS,
            "keep": fedjax_sim.Keep(models=True),
            "layout": Layout(4, False, 1),
        }
        run = fedjax_sim.simulate(langevin.system, problem, hyper, seed=SEED, **how)
    draws = Draws(problem)
    counts, inputs, targets = (
        np.asarray(x) for x in (problem.counts, problem.inputs, problem.targets)
    )
    share = np.asarray(counts if weights is None else np.broadcast_to(weights, (N,)), float)
    share = share / share.sum()

    def gradient(client: int, k: int, model: np.ndarray) -> np.ndarray:
        order = draws.orders[client, k, : counts[client]]
        assert sorted(order) == list(range(counts[client]))
        batch = order[:BATCH]
        slopes = [
            inputs[client, i] * (inputs[client, i] @ model - targets[client, i]) for i in batch
        ]
        mean = sum(slopes) / BATCH + 0.2 * draws.gradient_noise[client, k]
        return counts[client] / share[client] * mean

    schedule = run.timelines[0]
    rounds = [
        [(int(c), float(w)) for c, w in zip(clients, weight, strict=True) if c >= 0]
        for clients, weight in zip(schedule.clients, schedule.weight, strict=True)
    ]
    taken = schedule.steps.max(axis=1)
    assert (len(set(taken)) > 2) == (averaging == "random") and taken.sum() <= MOST
    expected = langevin_loop.run(
        start=draws.start,
        share=share,
        rounds=rounds,
        num_steps=taken.tolist(),
        step_size=lambda k: 1 / (1 / ETA + DECAY * k),
        temperature=TAU,
        rho=RHO,
        gradient=gradient,
        private=lambda client, k: draws.private[client, k],
        shared=lambda k: draws.shared[k],
    )
    np.testing.assert_allclose(run.samples[1:], expected, rtol=0, atol=1e-11)
    # The same draw, up to the rounding of the normal law's quantile in another program.
    np.testing.assert_array_max_ulp(run.samples[0], draws.start, maxulp=4)
    # Virtual time is the number of steps, and all work starts from the newest model.
    np.testing.assert_array_equal(schedule.time, np.cumsum(taken))
    np.testing.assert_array_equal(
        schedule.version[schedule.clients >= 0],
        np.repeat(np.arange(TICKS), [len(each) for each in rounds]),
    )
    assert {"full": 7, "with_replacement": 4, "without_replacement": 4}[
        participation
    ] == schedule.clients.shape[1]
