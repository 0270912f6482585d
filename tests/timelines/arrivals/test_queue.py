"""The queue of clients against NumPy's sort of all keys."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.timelines.arrivals.queue import Queue

LANES, TIMES = 3, 12


@partial(jax.jit, static_argnames="num")
def earliest_of_lanes(
    keys: jax.Array, added: jax.Array, num: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take the earliest clients again and again, and put them back with larger keys."""

    def lane(keys: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def once(queue: Queue, added: jax.Array) -> tuple[Queue, tuple[jax.Array, jax.Array]]:
            clients, keys = queue.earliest(num)
            return queue.replaced(clients, keys + added), (clients, keys)

        queue, taken = jax.lax.scan(once, Queue.of(keys, num), added)
        return *taken, queue.levels[0]

    return jax.vmap(lane)(keys, added)


@pytest.mark.parametrize(
    ("num_clients", "num", "columns"),
    [
        (1, 1, 1),
        (4, 4, 2),
        (5, 1, 2),
        (16, 4, 1),
        (17, 4, 2),
        (64, 1, 1),
        (65, 1, 2),
        (257, 2, 2),
        (300, 3, 1),
        (301, 7, 2),
    ],
)
def test_the_earliest_are_those_of_a_sort(num_clients: int, num: int, columns: int) -> None:
    """Keys are whole numbers, so many are equal, and some clients never come."""
    random = np.random.default_rng(num_clients)
    keys = random.integers(0, 6, (LANES, num_clients, columns)).astype(float)
    keys[random.random((LANES, num_clients)) < 0.2, 0] = np.inf
    added = random.integers(0, 3, (LANES, TIMES, num, columns)).astype(float)
    with jax.enable_x64(True):
        clients, found, left = map(
            np.asarray, earliest_of_lanes(jnp.asarray(keys), jnp.asarray(added), num)
        )
    for lane, rows in enumerate(keys):
        for time in range(TIMES):
            order = np.lexsort((np.arange(num_clients), *rows.T[::-1]))[:num]
            np.testing.assert_array_equal(clients[lane, time], order)
            np.testing.assert_array_equal(found[lane, time], rows[order])
            rows[order] += added[lane, time]
        np.testing.assert_array_equal(left[lane, :num_clients], rows)
