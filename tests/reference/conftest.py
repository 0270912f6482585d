"""Fixtures of the reference tests: least squares, and its stochastic gradients by hand."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.clients.mini_batches import shuffled_examples
from fedjax_sim.core.streams import shuffle_bits, shuffled_index, stream
from tests.reference.draws import BATCH, SEED, Gradient, K, N


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    """Least squares with clients of different sizes and gradient noise, in float64."""
    with jax.enable_x64(True):
        return regression(N, dtype="float64", noise=0.2)


class Stochastic(NamedTuple):
    """The k-th stochastic gradient of a client, and the k-th loss."""

    gradient: Gradient
    loss: Callable[[int, int, np.ndarray], float]


@pytest.fixture(scope="module")
def stochastic(problem: Any) -> Callable[..., Stochastic]:
    """Return a function that makes the stochastic gradients and losses of clients.

    They are those of least squares, on the batches and noise of the client's streams. Batches come
    from shuffled epochs, or with `reshuffled` from a new shuffle for each update: its whole
    permutation is looked up and then divided into batches.
    """
    most = 200

    @functools.cache
    def make(*, reshuffled: bool = False) -> Stochastic:
        with jax.enable_x64(True):
            key = stream(stream(jax.random.key(SEED), "learning"), "local")

            def draws(client: jax.Array) -> tuple[jax.Array, jax.Array]:
                client_key = jax.random.fold_in(key, client)
                bits = shuffle_bits(stream(client_key, "batches"))
                noise = stream(client_key, "noise")
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

        def loss(client: int, k: int, model: np.ndarray) -> float:
            x, y = inputs[client, batch(client, k)], targets[client, batch(client, k)]
            return float(np.mean((x @ model - y) ** 2) / 2 + scale * noise[client, k] @ model)

        return Stochastic(one, loss)

    return make


@pytest.fixture(scope="module")
def gradients(stochastic: Callable[..., Stochastic]) -> Callable[..., Gradient]:
    """Return a function that makes the k-th stochastic gradient of a client."""
    return lambda **how: stochastic(**how).gradient


@pytest.fixture(scope="module")
def gradient(gradients: Callable[..., Gradient]) -> Gradient:
    """The gradient with batches from shuffled epochs."""
    return gradients()


@pytest.fixture(scope="module")
def start(problem: Any) -> np.ndarray:
    """The initial model."""
    with jax.enable_x64(True):
        return np.asarray(problem.init(stream(stream(jax.random.key(SEED), "learning"), "init")))
