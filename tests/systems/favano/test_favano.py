"""FAVANO: identities, and the paper's illustration, on quadratics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim import Event, Layout, Plan, Timeline
from fedjax_sim.problems import Quadratic
from fedjax_sim.server import Versioned
from tests.systems.hand_made import Located

SYSTEM = fedjax_sim.SYSTEMS["favano"]


def descend(model: np.ndarray, center: np.ndarray, *, rate: float, steps: int) -> np.ndarray:
    """Compute gradient descent on a quadratic in closed form. rate: step size times curvature."""
    return center + (1 - rate) ** steps * (model - center)


def test_identities_of_the_mean_model() -> None:
    """The mean of server and base models moves by the reweighted progress alone, to rounding.

    The server first mixes with the base models of its cohort, and then moves by this progress.
    """
    n, s, ticks, dim, lr = 6, 3, 5, 4, 0.3
    random = np.random.default_rng(0)
    centers, curvature = random.normal(size=(n, dim)), random.uniform(0.2, 2.0, n)
    rows = n + ticks + 1
    with jax.enable_x64(True):
        problem = Quadratic.of(centers, curvature=curvature)
        algorithm = SYSTEM.algorithm(
            problem,
            SYSTEM.paper(num_clients=n, num_selected=s, local_steps=7, lr=lr),
            Plan(rows, s),
        )
        # Client i starts from a different model, in row i; tick t writes row n + t.
        state = Versioned(
            jnp.asarray(random.normal(size=dim)), jnp.asarray(random.normal(size=(rows, dim)))
        )
        row = np.arange(n)
        step = jax.jit(algorithm.step)
        for t in range(ticks):
            bases = np.asarray(state.versions)[row]
            server = np.asarray(state.server)
            clients = random.permutation(n)[:s]
            steps, weight = random.integers(0, 8, s), random.uniform(0.1, 3.0, s)
            whole = (jnp.asarray(x, "int32") for x in (clients, steps, np.zeros(s)))
            event = Event(
                jnp.int32(t),
                *whole,
                jnp.asarray(weight),
                jnp.zeros(s, "int32"),
                jnp.asarray(row[clients]),
                jnp.int32(n + t),
            )
            state, _ = step(jax.random.key(0), state, event)
            row[clients] = n + t
            ends = [
                descend(bases[i], centers[i], rate=lr * curvature[i], steps=k)
                for i, k in zip(clients, steps, strict=True)
            ]
            progress = weight @ (np.array(ends) - bases[clients])

            def mean(server: np.ndarray, bases: np.ndarray) -> np.ndarray:
                return (server + bases.sum(0)) / (n + 1)

            after = mean(np.asarray(state.server), np.asarray(state.versions)[row])
            np.testing.assert_allclose(
                after, mean(server, bases) + progress / (n + 1), rtol=0, atol=1e-13
            )
            mixed = (server + bases[clients].sum(0)) / (s + 1)
            np.testing.assert_allclose(state.server, mixed + progress / (s + 1), rtol=0, atol=1e-13)


def test_three_clients_of_whom_two_are_contacted_at_a_time() -> None:
    """The paper's illustration (Fig. 4).

    At the second tick, client 2 reports from w_0 and client 3 from w_1; client 1 keeps w_1.
    """
    centers = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 3.0]])
    start = np.array([4.0, -1.0])

    def timeline(key: jax.Array, hyper: Any, num_ticks: int) -> Timeline:
        return Timeline(
            time=jnp.array([7.0, 14.0]),
            clients=jnp.array([[0, 2], [1, 2]]),
            steps=jnp.array([[3, 1], [2, 4]]),
            version=jnp.array([[0, 0], [0, 1]]),
            weight=jnp.array([[0.5, 1.0], [0.25, 2.0]]),
            holds=jnp.array([[1, 1], [2, 2]]),
        )

    def report(base: np.ndarray, client: int, steps: int, weight: float) -> np.ndarray:
        return base + weight * (descend(base, centers[client], rate=0.1, steps=steps) - base)

    first = (start + report(start, 0, 3, 0.5) + report(start, 2, 1, 1.0)) / 3
    second = (first + report(start, 1, 2, 0.25) + report(first, 2, 4, 2.0)) / 3
    hyper = SYSTEM.paper(num_clients=3, num_selected=2, local_steps=4, lr=0.1, batch_size=1)
    problem = Located.of(centers.astype("float32"), start=start)
    run = fedjax_sim.simulate(
        SYSTEM._replace(timeline=timeline),
        problem,
        hyper,
        budget=fedjax_sim.Ticks(2),
        layout=Layout(2, False, 1),
        keep=fedjax_sim.Keep(client_variance=True),
    )
    models = np.stack([run.curves.w0, run.curves.w1], axis=-1)
    np.testing.assert_allclose(models, [start, first, second], rtol=1e-6)
    distance = [2 * 0.0, np.sum((start - first) ** 2), np.sum((first - second) ** 2)]
    np.testing.assert_allclose(run.curves.client_variance, distance, rtol=1e-5, atol=1e-6)
    assert run.curves.local_steps.values.tolist() == [0, 4, 10]
