"""What is written differently for an accelerator says the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core import targets


def tree_of(random: np.random.Generator) -> dict[str, Any]:
    return {
        "floats": jnp.asarray(random.normal(size=(4, 2)), "float32"),
        "narrow": jnp.asarray(random.normal(size=4), "bfloat16"),
        "numbers": jnp.asarray(random.integers(0, 9, 4), "int32"),
        "flags": jnp.asarray([True, False, True, True]),
    }


def equal(found: Any, expected: Any) -> None:
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), expected
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.fixture
def tree() -> dict[str, Any]:
    return tree_of(np.random.default_rng(0))


def test_packed_arrays_are_the_arrays(tree: dict[str, Any]) -> None:
    tree |= {
        "nan": jnp.float32(jnp.nan),
        "small": jnp.int8(-3),
        "large": jnp.uint32(2**32 - 1),
        "nothing": jnp.zeros((0, 3)),
        "key": jax.random.key(7),
    }
    vectors, unpack = targets.pack(tree)
    assert len(vectors) == 5  # float32, bfloat16, int32, uint32 and keys
    found = unpack(vectors)
    assert jax.random.key_data(found.pop("key")).tolist() == [0, 7]
    tree.pop("key")
    equal(found, tree)


def test_packed_arrays_may_have_further_axes(tree: dict[str, Any]) -> None:
    vectors, unpack = targets.pack(tree)
    several = unpack([jnp.stack([leaf, leaf]) for leaf in vectors])
    equal(several, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tree))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("place", [-1, 0, 3, 4, 9])
def test_put_replaces_one_row(platform: str, place: int, tree: dict[str, Any]) -> None:
    new = jax.tree.map(lambda leaf: leaf[0], tree_of(np.random.default_rng(1)))
    with targets.tracing_for(platform):
        found = jax.vmap(targets.put)(
            jax.tree.map(lambda leaf: leaf[None], tree),
            jnp.array([place]),
            jax.tree.map(lambda leaf: leaf[None], new),
        )
    expected = {name: np.array(leaf) for name, leaf in tree.items()}
    if 0 <= place < 4:
        for name, leaf in expected.items():
            leaf[place] = np.asarray(new[name])
    equal(jax.tree.map(lambda leaf: leaf[0], found), jax.tree.map(jnp.asarray, expected))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_put_all_replaces_several_rows(platform: str, tree: dict[str, Any]) -> None:
    new = tree_of(np.random.default_rng(1)) | {"numbers": jnp.int32(77)}
    places = jnp.array([3, 7, 0, -1])
    with targets.tracing_for(platform):
        found = targets.put_all(tree, places, new)
    expected = {name: np.array(leaf) for name, leaf in tree.items()}
    for name, leaf in expected.items():
        rows = np.broadcast_to(new[name], leaf.shape)
        leaf[3], leaf[0] = rows[0], rows[2]
    equal(found, jax.tree.map(jnp.asarray, expected))


def loops(platform: str) -> dict[str, Callable[[Any], Any]]:
    """The loops as functions of the first arrays, each of seven trips."""

    def body(carry: Any) -> Any:
        tree, trips = carry
        place = tree["numbers"][0] % 5
        new = {name: leaf[place % 4] for name, leaf in tree.items()}
        new |= {"floats": 1.5 * new["floats"], "numbers": new["numbers"] + trips}
        return targets.put(tree, place, new), trips + 1

    def step(carry: Any, given: Any) -> Any:
        return body(carry), {"trip": carry[1], "sum": given + carry[0]["floats"].sum()}

    def scanned(tree: Any) -> Any:
        scan = jax.lax.scan if platform == "cpu" else targets.packed_scan
        return scan(step, (tree, jnp.int32(1)), jnp.arange(7.0))

    def within(loop: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(tree: Any) -> Any:
            with targets.tracing_for(platform):
                return jax.jit(loop)(tree)

        return call

    return {
        "repeat": within(lambda tree: targets.repeat(7, body, (tree, jnp.int32(1)))),
        "repeat_while": within(
            lambda tree: targets.repeat_while(lambda c: c[1] < 8, body, (tree, jnp.int32(1)))
        ),
        "scan": within(scanned),
    }


@pytest.mark.parametrize("name", ["repeat", "repeat_while", "scan"])
def test_loops_are_equal_on_all_machines(name: str, tree: dict[str, Any]) -> None:
    # Scattered rows and chosen ones are the same numbers.
    expected, found = loops("cpu")[name](tree), loops("gpu")[name](tree)
    equal(found, expected)
    final = expected[0] if name != "scan" else expected[0][0]
    assert not np.array_equal(final["numbers"], tree["numbers"])


def test_derivatives_go_through_packed_loops(tree: dict[str, Any]) -> None:
    def total(floats: Any, platform: str) -> Any:
        found = loops(platform)["repeat"](tree | {"floats": floats})
        return sum(leaf.sum() for leaf in jax.tree.leaves(found) if leaf.dtype == "float32")

    expected = jax.grad(total)(tree["floats"], "cpu")
    np.testing.assert_allclose(jax.grad(total)(tree["floats"], "gpu"), expected, rtol=1e-6)
    assert np.abs(expected).max() > 1
