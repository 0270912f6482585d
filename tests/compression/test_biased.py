"""Biased compressors: what they send, their constants, and their bits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.server.compression import Compressor, parse_compressor
from fedjax_sim.systems import fedem, quafl
from tests.compression.variances import variance

DIM = 12
TEXTS = ("top_k", "top_k:kept=5", "top_k:kept=99", "sign", "sign:block=5")
VECTORS = np.concatenate(
    [
        np.random.default_rng(0).normal(size=(40, DIM)) ** 3,
        np.eye(DIM)[:2],
        -np.ones((1, DIM)),
        np.zeros((1, DIM)),
    ]
)


def by_hand(text: str, x: np.ndarray) -> np.ndarray:
    """Compress one vector in NumPy."""
    if text.startswith("sign"):
        blocks = np.split(x, [5, 10]) if "block" in text else [x]
        return np.concatenate([np.abs(b).mean() * np.where(b >= 0, 1, -1) for b in blocks])
    kept = int(text.partition("=")[2] or 1)
    largest = np.argsort(-np.abs(x), kind="stable")[:kept]
    return np.where(np.isin(np.arange(DIM), largest), x, 0)


@pytest.fixture(scope="module")
def sent() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What is sent of every vector, and its squared error, by compressor."""

    @jax.jit
    def run(vectors: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
        found = {}
        for text in TEXTS:
            compressor = parse_compressor(text)
            apply = jax.vmap(compressor.apply, (None, 0))
            errors = jax.vmap(partial(variance, compressor))
            found[text] = apply(jax.random.key(0), vectors), errors(vectors)
        return found

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, run(jnp.asarray(VECTORS)))


@pytest.mark.parametrize("text", TEXTS)
def test_definition(text: str, sent: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    expected = np.array([by_hand(text, x) for x in VECTORS])
    np.testing.assert_allclose(sent[text][0], expected, rtol=1e-12)
    errors = np.sum((expected - VECTORS) ** 2, axis=1)
    np.testing.assert_allclose(sent[text][1], errors, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_contraction(text: str, sent: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """||C(x) - x||^2 is never above (1 - alpha) ||x||^2, and for some vector equal."""
    compressor = parse_compressor(text)
    alpha = 1 / (getattr(compressor, "block", 0) or DIM)
    alpha = min(getattr(compressor, "kept", 0), DIM) / DIM or alpha
    bound = (1 - alpha) * np.sum(VECTORS**2, axis=1)
    gap = bound - sent[text][1]
    assert gap.min() >= -1e-12
    attained = {"sign": 40, "sign:block=5": 40, "top_k": 42, "top_k:kept=5": 42}.get(text, 0)
    assert gap[attained] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("text", ["block", "rand_k:kept=3", "identity", "luq"])
def test_unbiased_compressors_contract_at_their_pace(text: str) -> None:
    """With variance omega ||x||^2, E||Q / (1 + omega) - x||^2 is omega / (1 + omega) ||x||^2."""
    compressor = parse_compressor(text)
    omega, pace = float(compressor.omega(DIM)), float(compressor.pace(DIM))
    assert pace**2 * (1 + omega) - 2 * pace + 1 == pytest.approx(1 - pace, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dim", "bits"),
    [
        ("top_k", 1000, 32 + 10),
        ("top_k:kept=3", 1024, 3 * (32 + 10)),
        ("top_k:kept=3", 1025, 3 * (32 + 11)),
        ("top_k:kept=5", 5, 5 * 32),
        ("top_k:kept=9", 5, 5 * 32),
        ("sign", 1000, 32 + 1000),
        ("sign:block=300", 1000, 4 * 32 + 1000),
    ],
)
def test_bits_counted_by_hand(text: str, dim: int, bits: int) -> None:
    compressor = parse_compressor(text)
    assert compressor.bits(dim) == bits
    signs = {"sign": 1, "sign:block=300": 4}
    num_floats = signs.get(text) or min(getattr(compressor, "kept", 1), dim)
    assert compressor.bits(dim, word=64) == bits + 32 * num_floats


def test_a_code_of_so_many_bits_exists(sent: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """An entry of a signed message takes two values; the largest entries have that many places."""
    for row in sent["sign"][0]:
        assert len(np.unique(row)) <= 2
    for row in sent["sign:block=5"][0]:
        assert all(len(np.unique(block)) <= 2 for block in np.split(row, [5, 10]))
    for row in sent["top_k:kept=5"][0]:
        assert np.count_nonzero(row) <= 5
    assert 2 ** (parse_compressor("top_k").bits(DIM) - 32) >= DIM
    assert 2 ** (parse_compressor("top_k").bits(DIM) - 33) < DIM


def test_systems_that_need_unbiased_messages_refuse_others() -> None:
    biased: Compressor = parse_compressor("top_k:kept=3")
    for system in (quafl, fedem):
        with pytest.raises(ConfigError, match="compression is 'top_k:kept=3', but must be an unb"):
            check(system.paper(compression=biased))
    with pytest.raises(ConfigError, match="must be an unbiased compressor"):
        biased.omega(9)
