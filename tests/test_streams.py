"""Named streams and the random-access shuffle."""

import ast
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim.core.streams import shuffle_bits, shuffled_index, stream


def names_of_streams() -> set[str]:
    """Collect every name that the package passes to `stream`, `lane_stream` and `tick_key`."""
    names = {"tick"}
    for path in Path(fedjax_sim.__file__).parent.rglob("*.py"):
        if path.name == "streams.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                place = {"stream": 1, "lane_stream": 1, "tick_key": 2}.get(called)
                for name in [] if place is None else node.args[place : place + 1]:
                    said = f"{path.name}: a stream's name is a literal"
                    assert isinstance(name, ast.Constant), said
                    names.add(name.value)
    return names


def test_streams_of_the_names_in_use_are_all_different() -> None:
    """Names are hashed to 31 bits, and no two names in use may have the same hash."""
    names = names_of_streams()
    assert {
        "timeline",
        "learning",
        "local",
        "batches",
        "noise",
        "cohorts",
        "runtimes",
        "speeds",
        "ties",
        "init",
        "choose",
    } <= names
    data = {
        tuple(np.asarray(jax.random.key_data(stream(jax.random.key(3), name))).tolist())
        for name in names
    }
    assert len(data) == len(names)


def test_a_stream_depends_on_key_and_name_alone() -> None:
    again = [jax.random.key_data(stream(jax.random.key(3), "timeline")) for _ in range(2)]
    np.testing.assert_array_equal(*again)
    other = jax.random.key_data(stream(jax.random.key(4), "timeline"))
    assert not np.array_equal(again[0], other)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_every_permutation_is_one(size: int) -> None:
    bits = shuffle_bits(jax.random.key(size))
    tables = shuffled_index(bits, jnp.arange(size)[None], size, jnp.arange(20)[:, None])
    np.testing.assert_array_equal(
        np.sort(tables, axis=1), np.broadcast_to(np.arange(size), (20, size))
    )


def test_positions_looked_up_alone_are_those_of_the_whole() -> None:
    """Single positions agree with whole permutations, also if size and permutation are traced."""
    bits = shuffle_bits(jax.random.key(0))
    whole = shuffled_index(bits, jnp.arange(50)[None], 50, jnp.arange(4)[:, None])
    alone = jax.jit(shuffled_index)(
        bits, jnp.array([49, 3, 17]), jnp.int32(50), jnp.array([2, 0, 3])
    )
    np.testing.assert_array_equal(alone, whole[jnp.array([2, 0, 3]), jnp.array([49, 3, 17])])


def test_largest_size() -> None:
    """With 2^24 positions, those looked up are distinct and in range, and have the right mean."""
    size, num = 2**24, 200_000
    found = np.asarray(shuffled_index(shuffle_bits(jax.random.key(0)), jnp.arange(num), size))
    assert len(np.unique(found)) == num
    assert found.min() >= 0
    assert found.max() < size
    assert abs(found.mean() / size - 0.5) < 5 * np.sqrt(1 / 12 / num)


def permutations_seen(tables: np.ndarray) -> np.ndarray:
    """Count how often each of the n! permutations occurs among the rows."""
    codes = {perm: i for i, perm in enumerate(itertools.permutations(range(tables.shape[1])))}
    return np.bincount([codes[tuple(row)] for row in tables.tolist()], minlength=len(codes))


@pytest.mark.parametrize(("size", "num"), [(4, 12_000), (5, 30_000)])
def test_permutations_are_uniform_over_keys(size: int, num: int) -> None:
    """Chi-square over all n! permutations, each expected hundreds of times; p-value above 1e-3."""
    keys = jax.random.split(jax.random.key(1), num)
    tables = jax.jit(
        jax.vmap(lambda key: shuffled_index(shuffle_bits(key), jnp.arange(size), size))
    )(keys)
    assert stats.chisquare(permutations_seen(np.asarray(tables))).pvalue > 1e-3


@pytest.mark.parametrize(("size", "num"), [(4, 12_000), (5, 30_000)])
def test_permutations_are_uniform_over_epochs(size: int, num: int) -> None:
    """The same for the permutations of one key, which differ by a number mixed into its bits."""
    tables = np.asarray(
        shuffled_index(
            shuffle_bits(jax.random.key(2)), jnp.arange(size)[None], size, jnp.arange(num)[:, None]
        )
    )
    assert stats.chisquare(permutations_seen(tables)).pvalue > 1e-3
    # The position of an element in one epoch says nothing about the next epoch.
    pairs = np.bincount(tables[:-1, 0] * size + tables[1:, 0], minlength=size * size)
    assert stats.chisquare(pairs).pvalue > 1e-3


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 1), (1, 3)])
@pytest.mark.parametrize("outer", [(1,), (3,), (1, 1)])
def test_axes_of_length_one_compile(shape: tuple[int, ...], outer: tuple[int, ...]) -> None:
    """Axes of length one compile: a batch of one example, a cohort of one client, a single lane.

    Compilers can take exponential time and memory over them.
    """

    def look(key: jax.Array) -> jax.Array:
        sample = jax.random.randint(key, shape, 0, 100)
        return shuffled_index(shuffle_bits(key), sample % 5, 5, sample // 5)

    keys = jax.random.split(jax.random.key(0), outer)
    for _ in outer:
        look = jax.vmap(look)
    found = jax.jit(look)(keys)
    assert found.shape == (*outer, *shape)
    assert (np.asarray(found) < 5).all()


def test_bits_of_another_shape_are_refused() -> None:
    with pytest.raises(AssertionError, match="shape"):
        shuffled_index(jnp.zeros((32, 1), "uint32"), jnp.arange(3), 3)
