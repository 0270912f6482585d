"""Means and stores of models, against plain NumPy; models are pytrees of several leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.server import aggregation

RANDOM = np.random.default_rng(0)


def models(*lead: int) -> dict[str, np.ndarray]:
    """A stack of models of three leaves, one of them a number."""
    shapes = {"kernel": (2, 3), "bias": (3,), "scale": ()}
    return {
        name: RANDOM.normal(size=(*lead, *shape)).astype("float32")
        for name, shape in shapes.items()
    }


def check(found: dict, expected: dict) -> None:
    """To float32 rounding, and of the same types."""
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


def test_store_of_versions() -> None:
    first, second = models(), models()
    store = aggregation.store_of(first, 3)
    store = aggregation.write_row(store, jnp.int32(2), second)
    read = aggregation.read_rows(store, jnp.array([2, 0, 2]))
    check(read, {k: np.stack([second[k], first[k], second[k]]) for k in first})


def test_clients_rows_are_written_and_empty_slots_are_not() -> None:
    stack, new = models(5), models(3)
    found = aggregation.write_clients(jax.tree.map(jnp.asarray, stack), jnp.array([4, -1, 1]), new)
    expected = {k: x.copy() for k, x in stack.items()}
    for name in expected:
        expected[name][[4, 1]] = new[name][[0, 2]]
    check(found, expected)


def test_copies_of_a_model() -> None:
    model = models()
    check(aggregation.replicate(model, 3), {k: np.stack([x] * 3) for k, x in model.items()})


def test_variance_of_base_models() -> None:
    """Rows that nobody holds count for nothing, even if they hold no numbers: the scratch row may."""
    store, server = models(4), models()
    for name in store:
        store[name][2] = np.nan
    holders = np.array([2, 1, 0, 3])
    expected = sum(
        holders[r] * sum(np.sum((store[k][r] - server[k]) ** 2) for k in store) for r in (0, 1, 3)
    )
    found = aggregation.base_model_variance(store, jnp.asarray(holders), server)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_types_are_kept(dtype: str) -> None:
    """Whatever the type of the weights."""
    stack, server = jnp.ones((3, 2), dtype), jnp.zeros(2, dtype)
    weight = jnp.full(3, 0.5, "float32")
    for found in (
        aggregation.weighted_sum(weight, stack),
        aggregation.mean_with_server(server, stack, jnp.ones(3, bool)),
        aggregation.scaled_progress(stack, stack * 2, weight),
    ):
        assert jax.tree.leaves(found)[0].dtype == dtype
