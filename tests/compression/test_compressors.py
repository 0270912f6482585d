"""Compressors by their properties.

They have no bias, the variance that they state, and a constant omega that is attained and never
exceeded. Bits are counted by hand.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.server.compression import (
    COMPRESSORS,
    Compressor,
    Identity,
    RandK,
    RandSparsification,
    parse_compressor,
)
from tests.compression.variances import variance

DIM = 11
DRAWS = 20_000
TEXTS = [
    "identity",
    "block",
    "block:norm=1:block=3",
    "block:norm=inf:block=9",
    "block:norm=1.5:block=0",
    "block:norm=3:block=5",
    "dithering",
    "dithering:norm=1:levels=2",
    "dithering:norm=inf:block=4:levels=3",
    "rounding:width=3",
    "rounding:block=4:width=2",
    "sparsification:keep=0.3",
    "rand_k:kept=3",
    "luq",
    "luq:top=0",
    "luq:top=2",
]
"""All kinds of compressors, with blocks that do not divide the eleven entries."""

random = np.random.default_rng(7)
VECTORS = np.stack(
    [
        random.normal(size=DIM) * np.exp(random.normal(size=DIM)),
        np.r_[0.0, 0, 0, 0, 0, 0, 0, 0, -2.5, 0.3, 7.0],  # with blocks of zeros
        np.r_[np.zeros(5), -3.0, np.zeros(5)],
        np.full(DIM, -0.7),
        np.linspace(-1, 2, DIM) ** 3 * 1e-3,
        np.zeros(DIM),
    ]
)


def neighbours(text: str, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the values below and above each magnitude, directly from the definitions."""
    compressor, size = parse_compressor(text), np.abs(vector)
    name = text.partition(":")[0]
    if name == "identity":
        return size, size
    if name == "sparsification":
        return 0 * size, size / compressor.keep
    if name == "luq":
        levels = size.max() * np.r_[0, 2.0 ** np.arange(-compressor.top, 1)]
        above = np.searchsorted(levels, size)  # levels[above - 1] < size <= levels[above]
        return np.where(levels[above] == size, size, levels[above - 1]), levels[above]
    levels = {
        "block": 1,
        "dithering": getattr(compressor, "levels", 0),
        "rounding": 2 ** (getattr(compressor, "width", 1) - 1) - 1,
    }[name]
    norm = np.inf if name == "rounding" else compressor.norm
    below, above = np.empty_like(size), np.empty_like(size)
    length = compressor.block or len(size)
    for first in range(0, len(size), length):
        part = slice(first, first + length)
        unit = np.linalg.norm(size[part], norm) / levels
        below[part] = unit * np.floor(size[part] / unit + 1e-12) if unit else 0
        above[part] = below[part] + unit
    return below, above


def exact_variance(text: str, vector: np.ndarray) -> float:
    if text.startswith("rand_k"):
        return (len(vector) / parse_compressor(text).kept - 1) * float(vector @ vector)
    below, above = neighbours(text, vector)
    size = np.abs(vector)
    return float(np.sum((size - below) * (above - size)))


@pytest.fixture(scope="module", params=TEXTS)
def drawn(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, np.ndarray]:
    """Return a compressor's text, draws `f64[DRAWS, V, D]` and stated variances `f64[V]`."""
    compressor = parse_compressor(request.param)

    def run(key: jax.Array, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, DRAWS)
        draws = jax.lax.map(
            lambda key: jax.vmap(compressor.apply, in_axes=(0, 0))(
                jax.random.split(key, len(vectors)), vectors
            ),
            keys,
        )
        return draws, jax.vmap(partial(variance, compressor))(vectors)

    with jax.enable_x64(True):
        draws, variances = jax.jit(run)(jax.random.key(3), jnp.asarray(VECTORS))
        return request.param, np.asarray(draws), np.asarray(variances)


@pytest.mark.few(4)
def test_no_bias(drawn: tuple[str, np.ndarray, np.ndarray]) -> None:
    """Every entry's mean agrees with the vector within 5 standard errors.

    The standard error follows from the two values that an entry may take.
    """
    text, draws, _ = drawn
    for vector, sent in zip(VECTORS, np.moveaxis(draws, 1, 0), strict=True):
        if text.startswith("rand_k"):
            deviation = np.abs(vector) * np.sqrt(len(vector) / 3 - 1)
        else:
            below, above = neighbours(text, vector)
            deviation = np.sqrt(np.maximum((np.abs(vector) - below) * (above - np.abs(vector)), 0))
            values = np.abs(sent)[:, :, None]
            distance = np.abs(values - np.stack([below, above], axis=-1)[None]).min(axis=-1)
            assert distance.max() <= 1e-6 * np.abs(vector).max(initial=0)
        assert (
            np.abs(sent.mean(axis=0) - vector)
            <= 5 * deviation / np.sqrt(DRAWS) + 1e-6 * np.abs(vector)
        ).all()
        assert (np.sign(sent) * np.sign(vector) >= 0).all()


@pytest.mark.few(4)
def test_variance_is_exact(drawn: tuple[str, np.ndarray, np.ndarray]) -> None:
    """The stated variance equals a formula written out here.

    The variance of the draws agrees within 5 standard errors.
    """
    text, draws, stated = drawn
    for vector, sent, known in zip(VECTORS, np.moveaxis(draws, 1, 0), stated, strict=True):
        error = np.sum((sent - vector) ** 2, axis=1)
        assert known == pytest.approx(
            exact_variance(text, vector), rel=1e-5, abs=1e-12 * (vector @ vector)
        )
        assert abs(error.mean() - known) <= 5 * error.std() / np.sqrt(DRAWS) + 1e-6 * (
            vector @ vector
        )


def test_lemma_b() -> None:
    """Block quantization has the variance of Lemma B, ||x||_1 ||x||_p - ||x||_2^2 per block."""
    for norm in (1, 2, np.inf):
        x = VECTORS[0]
        expected = sum(
            np.linalg.norm(part, 1) * np.linalg.norm(part, norm) - part @ part
            for part in (x[:4], x[4:8], x[8:])
        )
        with jax.enable_x64(True):
            found = variance(parse_compressor(f"block:norm={norm}:block=4"), jnp.asarray(x))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_zeros_and_dtypes() -> None:
    """A vector of zeros stays zero without nan, and dtypes are kept.

    Numbers whose squares underflow are not lost.
    """
    compressors = [parse_compressor(text) for text in TEXTS]
    key, block = jax.random.key(1), parse_compressor("block")

    @jax.jit
    def run() -> Any:
        zeros = [
            (each.apply(key, jnp.zeros(DIM)), variance(each, jnp.zeros(DIM)))
            for each in compressors
        ]
        kinds = {
            kind: block.apply(key, jnp.ones(5, kind)) for kind in ("float16", "bfloat16", "float32")
        }
        return zeros, kinds, block.apply(key, jnp.full(40, 1e-30))

    zeros, kinds, tiny = run()
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(zeros))
    assert all(value.dtype == kind for kind, value in kinds.items())
    assert set(np.asarray(tiny).tolist()) == {0.0, float(np.float32(2e-30))}


# Omega


def worst(text: str, dim: int) -> np.ndarray | None:
    """Return a vector whose relative variance is omega, or None if none is known."""
    compressor = parse_compressor(text)
    name = text.partition(":")[0]
    omega = float(compressor.omega(dim))
    one = np.r_[1.0, np.zeros(dim - 1)]
    if name in ("sparsification", "rand_k"):
        return np.linspace(-1, 3, dim)
    if name == "luq":
        below, between = (1 / (2 * (1 + omega)) * 2.0**-compressor.top, 3 / (4 * (1 + omega)))
        return max(
            (one + rest * (1 - one) for rest in (below, between)),
            key=lambda x: exact_variance(text, x) / (x @ x),
        )
    size = min(getattr(compressor, "block", 0) or dim, dim)
    levels = float(getattr(compressor, "num_levels", 1))
    block = np.r_[np.ones(size), np.zeros(dim - size)]
    if name == "rounding" or compressor.norm == np.inf:
        return levels * one + (block - one) / (1 + math.sqrt(1 + (size - 1) / levels**2))
    if compressor.norm <= 2 and (levels == 1 or levels <= size ** (1 / compressor.norm) / 2):
        return block
    return None


ATTAINED = [
    "block",
    "block:norm=1:block=3",
    "block:norm=1.5:block=0",
    "block:norm=inf:block=9",
    "dithering:levels=2",
    "dithering:norm=1:levels=3",
    "dithering:norm=inf:levels=3",
    "rounding:width=3",
    "sparsification:keep=0.3",
    "rand_k:kept=3",
    "luq",
    "luq:top=0",
    "luq:top=2",
    "luq:top=9",
]


@pytest.mark.few(3)
@pytest.mark.parametrize("text", ATTAINED)
def test_omega_is_attained(text: str) -> None:
    for dim in (17, 18):
        vector = worst(text, dim)
        assert vector is not None
        with jax.enable_x64(True):
            compressor = parse_compressor(text)
            ratio = float(variance(compressor, jnp.asarray(vector))) / (vector @ vector)
        assert ratio == pytest.approx(float(compressor.omega(dim)), rel=1e-6)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "text",
    [
        *ATTAINED,
        "identity",
        "block:norm=3:block=5",
        "dithering:levels=9",
        "dithering:norm=1:levels=20",
    ],
)
def test_omega_is_never_exceeded(text: str) -> None:
    """No vector has a relative variance above omega.

    The search starts from vectors of many shapes and climbs the slope of the relative variance.
    It would find a violation if omega were smaller.
    """
    compressor, dim = parse_compressor(text), 17
    spread = np.random.default_rng(5)
    shapes = [
        spread.normal(size=(60, dim)),
        spread.normal(size=(60, dim)) ** 5,
        np.exp(spread.normal(size=(60, dim))),
    ]
    shapes += [spread.choice([0.0, 1.0, 2.0], (60, dim)), 1 + 0.1 * spread.normal(size=(60, dim))]
    vectors = np.concatenate([*shapes, np.eye(dim)])
    vectors = vectors[np.abs(vectors).sum(axis=1) > 0]

    def ratio(x: jax.Array) -> jax.Array:
        return variance(compressor, x) / jnp.sum(jnp.square(x))

    def climb(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, best = carry
            slope = jax.grad(ratio)(x)
            x = x + 0.05 * jnp.linalg.norm(x) * slope / jnp.maximum(jnp.linalg.norm(slope), 1e-9)
            return x, jnp.maximum(best, ratio(x))

        return jax.lax.fori_loop(0, 40, step, (x, ratio(x)))[1]

    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.vmap(climb))(jnp.asarray(vectors)))
    omega = float(compressor.omega(dim))
    assert found.max() <= omega * (1 + 1e-6) + 1e-12
    if text in ATTAINED and omega:
        assert found.max() > 0.75 * omega, (
            "the search would not notice a constant that is too small"
        )


@pytest.mark.parametrize(
    ("text", "dim", "omega"),
    [
        ("block", 6, 1.0),  # blocks of 4 and 2
        ("block:norm=inf:block=9", 90, 1.0),
        ("block:block=0", 210, math.sqrt(210) - 1),
        ("block:norm=1:block=4", 8, 3.0),
        ("block:block=100", 9, 2.0),
        ("block:block=4:row=3", 9, math.sqrt(3) - 1),
        ("dithering:levels=1", 100, 9.0),
        ("dithering:levels=4", 100, 1.5),  # the paper says about sqrt(q) / s, 2.5
        ("dithering:levels=10", 100, 0.25),
        ("rounding:width=2", 9, 1.0),
        ("sparsification:keep=0.1", 5, 9.0),
        ("rand_k:kept=2", 6, 2.0),
        ("rand_k:kept=20", 6, 0.0),
        ("identity", 6, 0.0),
        ("luq:top=0", 9, 1.0),
    ],
)
def test_values_of_omega(text: str, dim: int, omega: float) -> None:
    assert float(parse_compressor(text).omega(dim)) == pytest.approx(omega, rel=1e-12)


# Bits


@pytest.mark.parametrize(
    ("text", "dim", "bits"),
    [
        ("identity", 6, 192),
        ("block", 6, 2 * 32 + 12),
        ("block", 210, 53 * 32 + 420),
        ("block:block=0", 210, 32 + 420),
        ("block:block=4:row=6", 12, 4 * 32 + 24),
        ("dithering:levels=1", 6, 32 + 6 * 2),
        ("dithering:levels=3", 6, 32 + 6 * 3),
        ("dithering:levels=4", 6, 32 + 6 * 4),
        ("dithering:levels=4:block=4", 6, 64 + 6 * 4),
        ("rounding:width=4", 5, 32 + 5 * 4),
        ("sparsification:keep=0.5", 6, 3 * 32),
        ("rand_k:kept=2", 6, 2 * 32),
        ("rand_k:kept=9", 6, 6 * 32),
        ("luq", 5, 32 + 5 * 4),
        ("luq:top=7", 5, 32 + 5 * 5),
    ],
)
def test_bits_counted_by_hand(text: str, dim: int, bits: int) -> None:
    compressor = parse_compressor(text)
    assert compressor.bits(dim) == bits
    floats = {
        "identity": dim,
        "sparsification": dim * 0.5,
        "rand_k": min(9 if "9" in text else 2, dim),
    }
    num_floats = floats.get(
        compressor.name, 4 if "row" in text else -(-dim // (getattr(compressor, "block", 0) or dim))
    )
    assert compressor.bits(dim, word=64) == bits + 32 * num_floats


@pytest.mark.parametrize(
    "text",
    [
        "block",
        "dithering:levels=4",
        "dithering:norm=1:levels=3",
        "rounding:width=4",
        "luq",
        "luq:top=7",
    ],
)
def test_a_code_of_so_many_bits_exists(text: str) -> None:
    """An entry takes no more values, in units of its block, than its bits can tell apart."""
    compressor, dim = parse_compressor(text), 40
    vectors = jax.random.normal(jax.random.key(0), (300, dim)) ** 3

    @jax.jit
    @jax.vmap
    def run(key: jax.Array, x: jax.Array) -> jax.Array:
        return compressor.apply(key, x) / jnp.broadcast_to(
            compressor.around(jnp.abs(x)).unit, x.shape
        )

    values = np.asarray(run(jax.random.split(jax.random.key(1), 300), vectors))
    codes = np.unique(np.round(values, 5))
    blocks = -(-dim // (getattr(compressor, "block", 0) or dim))
    bits = (compressor.bits(dim) - 32 * blocks) / dim
    assert 2 ** (bits - 1) < len(codes) <= 2**bits


# Under jit and vmap, by name


def test_numbers_are_traced() -> None:
    """Other numbers of levels, bits or kept entries do not need a new program.

    A batch of them equals each alone.
    """
    vector, key = jnp.asarray(VECTORS[0], "float32"), jax.random.key(2)
    for texts in (
        ("dithering:levels=2", "dithering:levels=5"),
        ("rounding:width=3", "rounding:width=24"),
        ("sparsification:keep=0.2", "sparsification:keep=0.9"),
        ("rand_k:kept=2", "rand_k:kept=7"),
    ):
        traces: list[Compressor] = []

        def run(
            compressor: Compressor, traces: list[Compressor] = traces
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            traces.append(compressor)
            return (
                compressor.apply(key, vector),
                jnp.asarray(compressor.omega(DIM), "float32"),
                variance(compressor, vector),
            )

        several = [parse_compressor(text) for text in texts]
        stacked: Any = jax.tree.map(lambda *leaves: jnp.asarray(leaves, "float32"), *several)
        batch = jax.jit(jax.vmap(run))(stacked)
        program = jax.jit(run)
        del traces[:]
        alone = [
            program(jax.tree.map(lambda leaf: jnp.asarray(leaf, "float32"), each))
            for each in several
        ]
        assert len(traces) == 1
        for i, (each, single) in enumerate(zip(several, alone, strict=True)):
            jax.tree.map(
                lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), batch, single
            )
            assert float(single[1]) == pytest.approx(float(each.omega(DIM)), rel=1e-6)


def test_kinds_with_equal_fields_are_different_programs() -> None:
    """JAX compares dataclass pytrees by their fields, so each kind needs a distinguishing field."""
    trees = [jax.tree.structure(kind()) for kind in COMPRESSORS.values()]
    assert all(a != b for i, a in enumerate(trees) for b in trees[:i])
    program: Callable[[Compressor], jax.Array] = jax.jit(
        lambda compressor: compressor.omega(10) * jnp.ones(())
    )
    assert float(program(RandSparsification(keep=1.0))) == 0
    assert float(program(RandK(kept=1.0))) == 9


def test_clients_have_scales_of_their_own() -> None:
    """With a client axis every row equals what it is alone.

    With the setting `row`, blocks end at the rows of a matrix.
    """
    rows = jnp.asarray(VECTORS[:4], "float32") * jnp.array([[1.0], [1e3], [1.0], [1e-3]])
    keys = jax.random.split(jax.random.key(4), 4)
    compressor = parse_compressor("block:block=4")
    as_rows = parse_compressor(f"block:block=4:row={DIM}")

    @jax.jit
    def run() -> Any:
        together = (
            jax.vmap(compressor.apply)(keys, rows),
            jax.vmap(partial(variance, compressor))(rows).sum(),
        )
        alone = jnp.stack([compressor.apply(keys[i], rows[i]) for i in range(4)])
        return (
            together,
            (alone, variance(as_rows, rows.ravel())),
            variance(compressor, rows.ravel()),
        )

    together, alone, across = run()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), together, alone)
    assert float(across) != pytest.approx(float(alone[1]), rel=1e-2)


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_back(text: str) -> None:
    assert parse_compressor(str(parse_compressor(text))) == parse_compressor(text)


def test_text_is_short() -> None:
    assert str(Identity()) == "identity"
    assert str(parse_compressor("block:norm=inf:block=4")) == "block:norm=inf"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blocks", ["'blocks'", "one of identity, block, dithering"]),
        ("block:norm=0.5", ["norm", "0.5", "at least 1"]),
        ("block:norm", ["norm", "name=value"]),
        ("block:block=2:block=3", ["block=3", "each name once"]),
        ("block:levels=3", ["levels", "block"]),
        ("dithering:levels=2.5", ["levels", "2.5", "whole"]),
        ("luq:top=x", ["top", "'x'", "whole number"]),
        ("identity:keep=1", ["keep"]),
    ],
)
def test_text_that_is_not_allowed(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_compressor(text)
    assert all(word in str(caught.value) for word in words)


def test_rows_must_divide_the_vector() -> None:
    compressor = parse_compressor("block:row=4")
    for call in (
        compressor.omega,
        compressor.bits,
        lambda dim: compressor.apply(jax.random.key(0), jnp.ones(dim)),
    ):
        with pytest.raises(ConfigError, match="row is 4, but must be a divisor of the 11"):
            call(DIM)
