"""Weighted sums of models and rows of client models, against plain NumPy.

Models are pytrees of several leaves.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.clients import write_clients
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.types import Event
from fedjax_sim.server import aggregation

RANDOM = np.random.default_rng(0)


def models(*lead: int) -> dict[str, np.ndarray]:
    """Draw a stack of models with three leaves, one of them a number."""
    shapes = {"kernel": (2, 3), "bias": (3,), "scale": ()}
    return {
        name: RANDOM.normal(size=(*lead, *shape)).astype("float32")
        for name, shape in shapes.items()
    }


def check(found: dict, expected: dict) -> None:
    """Check that models are equal up to float32 rounding, and have the same leaves and type."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == jnp.float32
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


def test_weighted_sum() -> None:
    stack, weight = models(4), np.array([0.5, 0.0, -1.0, 2.0], "float32")
    check(
        aggregation.weighted_sum(jnp.asarray(weight), stack),
        {k: np.einsum("s,s...->...", weight, x) for k, x in stack.items()},
    )


def test_mean_with_server() -> None:
    server, stack = models(), models(4)
    present = np.array([True, False, True, True])
    expected = {k: (server[k] + stack[k][present].sum(0)) / 4 for k in server}
    check(aggregation.mean_with_server(server, stack, jnp.asarray(present)), expected)


def test_with_nobody_present_the_mean_is_the_servers_model_itself() -> None:
    server = models()
    found = aggregation.mean_with_server(server, models(4), jnp.zeros(4, bool))
    for name in server:
        np.testing.assert_array_equal(found[name], server[name])


def test_scaled_progress() -> None:
    start, end, weight = models(3), models(3), np.array([0.0, 1.0, 2.5], "float32")
    found = aggregation.scaled_progress(start, end, jnp.asarray(weight))
    check(
        found,
        {
            k: start[k] + weight.reshape(-1, *[1] * (start[k].ndim - 1)) * (end[k] - start[k])
            for k in start
        },
    )
    for name in start:
        np.testing.assert_array_equal(found[name][0], start[name][0])


def test_clients_rows_are_written_and_empty_slots_are_not() -> None:
    stack, new = models(5), models(3)
    found = write_clients(jax.tree.map(jnp.asarray, stack), jnp.array([4, -1, 1]), new)
    expected = {k: x.copy() for k, x in stack.items()}
    for name in expected:
        expected[name][[4, 1]] = new[name][[0, 2]]
    check(found, expected)


def test_copies_of_a_model() -> None:
    model = models()
    check(replicate(model, 3), {k: np.stack([x] * 3) for k, x in model.items()})


def test_a_tick_without_clients_changes_nothing() -> None:
    """`keep_if_empty` returns the old state, even if the new one is not finite."""
    before, after = models(), jax.tree.map(lambda leaf: leaf * np.nan, models())
    for clients, expected in (([-1, -1], before), ([-1, 3], after)):
        clients = jnp.array(clients, "int32")
        event = Event(*(clients for _ in Event._fields))
        found = aggregation.keep_if_empty(event, after, before)
        chex.assert_trees_all_equal(found, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_types_are_kept(dtype: str) -> None:
    """Results have the type of the models, whatever the type of the weights."""
    stack, server = jnp.ones((3, 2), dtype), jnp.zeros(2, dtype)
    weight = jnp.full(3, 0.5, "float32")
    for found in (
        aggregation.weighted_sum(weight, stack),
        aggregation.mean_with_server(server, stack, jnp.ones(3, bool)),
        aggregation.scaled_progress(stack, stack * 2, weight),
    ):
        assert jax.tree.leaves(found)[0].dtype == dtype
