"""The server's steps of FedBuff and Generalized AsyncSGD."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Plan
from fedjax_sim.problems import Quadratic
from tests.systems.hand_made import CLIENTS, STEPS, emptied, events_of, replay

FEDBUFF, GEN_ASYNC = fedjax_sim.SYSTEMS["fedbuff"], fedjax_sim.SYSTEMS["gen_async"]


def test_momentum_adds_up_the_servers_steps_and_rests_in_empty_ticks(
    small: Callable, regression: Callable
) -> None:
    """Three ticks, of which the second is empty: the third goes on with the first one's step.

    Without momentum the third tick moves the model elsewhere.
    """
    problem, key, plan = regression(), jax.random.key(1), Plan(rows=3, slots_at_once=4)
    events = events_of(FEDBUFF, CLIENTS, STEPS)
    events = emptied(jax.tree.map(lambda leaf: leaf[jnp.array([0, 2, 1])], events), [0, 1, 0])

    def velocities(momentum: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        hyper = small(FEDBUFF, server_momentum=momentum, server_lr=0.5)
        algorithm = FEDBUFF.algorithm(problem, hyper, plan)

        def step(state: Any, event: Any) -> tuple[Any, Any]:
            state, _ = algorithm.step(key, state, event)
            return state, (state.server, jax.tree.map(jnp.negative, state.memory[0].trace))

        first = algorithm.init(key)
        _, (server, velocity) = jax.jit(lambda: jax.lax.scan(step, first, events))()
        return np.asarray(first.server), np.asarray(server), np.asarray(velocity)

    start, server, velocity = velocities(np.float32(0.9))
    np.testing.assert_allclose(server[0], start + 0.5 * velocity[0], rtol=1e-6)
    np.testing.assert_array_equal(server[1], server[0])
    np.testing.assert_array_equal(velocity[1], velocity[0])
    np.testing.assert_allclose(server[2], server[1] + 0.5 * velocity[2], rtol=1e-6)
    plain, _ = replay(FEDBUFF, plan, problem, small(FEDBUFF, server_lr=0.5), key, events)
    assert not jax.tree.leaves(plain.memory)
    assert np.abs(server[2] - plain.server).max() > 1e-3


@pytest.mark.slow
def test_generalized_asyncsgd_weighs_clients_equally_whatever_their_shares() -> None:
    """With one task and equal curvatures the mean model follows gradient descent on all clients.

    Its weights are 1 / (n p_i), so the mean step is that of the mean of the centers, although two
    clients get most of the tasks. Within five standard errors of 600 runs.
    """
    centers = np.random.default_rng(0).normal(size=(4, 2))
    share = np.array([0.5, 0.3, 0.15, 0.05])
    problem = Quadratic.of(centers, curvature=1.0, start=np.array([2.0, -1.0]))
    hyper = GEN_ASYNC.paper(num_clients=4, num_tasks=1, routing=share, lr=0.02, batch_size=1)
    run = fedjax_sim.sweep(
        GEN_ASYNC, problem, hyper, seeds=600, budget=fedjax_sim.Ticks(60), num_evals=1
    )
    models, fade = np.asarray(run.models), 0.98**60
    error = models.std(axis=0, ddof=1) / np.sqrt(600)
    start = np.array([2.0, -1.0])
    expected = centers.mean(axis=0) + fade * (start - centers.mean(axis=0))
    unweighted = share @ centers + fade * (start - share @ centers)
    assert (np.abs(models.mean(axis=0) - expected) < 5 * error).all()
    assert (np.abs(unweighted - expected) > 20 * error).any()
