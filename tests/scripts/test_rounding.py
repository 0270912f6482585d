"""Products with factors of fewer bits."""

import importlib
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.models import MLP

RANDOM = np.random.default_rng(0)
NUMBERS = jnp.asarray(RANDOM.normal(size=1000) * 10.0 ** RANDOM.integers(-30, 30, 1000), "float32")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the benchmark as its script does."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return importlib.import_module("benchmarks.rounding")


def test_seven_bits_are_those_of_bfloat16(module: ModuleType) -> None:
    odd = jnp.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8], "float32")
    values = jnp.concatenate([NUMBERS, odd])
    expected = values.astype("bfloat16").astype("float32")
    np.testing.assert_array_equal(module.rounded(values, 7), expected)


def test_ten_bits_are_as_near_as_they_can_be(module: ModuleType) -> None:
    found = module.rounded(NUMBERS, 10)
    error = np.abs(found / NUMBERS - 1)
    assert 2**-12 < error.max() <= 2**-11
    np.testing.assert_array_equal(module.rounded(found, 10), found)
    np.testing.assert_array_equal(module.rounded(NUMBERS, 23), NUMBERS)


@pytest.mark.parametrize("bits", [10, 23])
def test_gradients_have_rounded_factors_too(bits: int, module: ModuleType) -> None:
    x, w = (jnp.asarray(RANDOM.normal(size=shape), "float32") for shape in ((5, 4), (4, 3)))
    g = jnp.asarray(RANDOM.normal(size=(5, 3)), "float32")
    found, back = jax.vjp(lambda x, w: module.product(x, w, bits), x, w)
    x, w, g_rounded = (np.float64(module.rounded(each, bits)) for each in (x, w, g))
    np.testing.assert_allclose(found, x @ w, rtol=1e-5)
    for gradient, expected in zip(back(g), (g_rounded @ w.T, x.T @ g_rounded), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_the_network_is_the_perceptron(module: ModuleType) -> None:
    images, key = jnp.asarray(RANDOM.normal(size=(6, 4, 4, 1)), "float32"), jax.random.key(0)
    usual, own = MLP((8,), 10), module.Rounded(8, 10, 23)
    params = usual.init(key, images)
    jax.tree.map(np.testing.assert_array_equal, own.init(key, images), params)
    np.testing.assert_allclose(own.apply(params, images), usual.apply(params, images), rtol=1e-5)
    coarse = module.Rounded(8, 10, 7).apply(params, images)
    assert 1e-4 < np.abs(coarse - usual.apply(params, images)).max() < 0.1
