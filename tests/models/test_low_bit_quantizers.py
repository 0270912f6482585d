"""The quantizers of low-bit training, each by its properties."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.kernels import rounding
from fedjax_sim.kernels.rounding import quantized_gradient, straight_through
from tests.models.low_bit_reference import luq, max_abs, sawb, sawb_in_numpy, uniform

LARGEST = 3.0

LEAST = LARGEST / 2**7

POWERS = LEAST * 2.0 ** np.arange(8)

ON_LEVELS = np.concatenate([-POWERS, [0.0], POWERS])

BETWEEN = np.array(
    [0.01 * LEAST, 0.7 * LEAST, 1.1 * LEAST, 1.9 * LEAST, 0.1, 0.3, 0.31, 0.99, 1.7, 2.9]
)

VALUES = np.concatenate([ON_LEVELS, BETWEEN, -BETWEEN])


def draws_of(
    values: np.ndarray, count: int, *, dtype: str = "float32", **options: Any
) -> np.ndarray:
    """Draw LUQ of the values many times: `f64[count, *shape]`."""
    keys = jax.random.split(jax.random.key(8), count)
    tensor = jnp.asarray(values, dtype)
    drawn = jax.jit(jax.vmap(lambda key: luq(key, tensor, **options)))(keys)
    assert drawn.dtype == tensor.dtype
    return np.asarray(drawn, float)


def neighbours(values: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels below and above each value; for a level, both are the level itself."""
    place = np.searchsorted(levels, values, side="right") - 1
    lower = levels[place]
    return lower, np.where(lower == values, lower, levels[np.minimum(place + 1, len(levels) - 1)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_luq_is_unbiased(dtype: str) -> None:
    """Means are within 5 standard errors of the values, and levels stay as they are.

    The standard error is that of a random choice between the two nearest levels.
    """
    values = np.asarray(jnp.asarray(VALUES, dtype), float)
    drawn = draws_of(values, 40_000, dtype=dtype)
    lower, upper = neighbours(values, np.sort(ON_LEVELS))
    assert ((drawn == lower) | (drawn == upper)).all()
    error = np.sqrt((values - lower) * (upper - values) / len(drawn))
    assert (error[-2 * len(BETWEEN) :] > 0).all()
    assert (np.abs(drawn.mean(0) - values) <= 5 * error).all()


@pytest.mark.parametrize(
    ("options", "top"),
    [
        ({"bits": 2}, 1),
        ({"bits": 3}, 3),
        ({"bits": 4}, 7),
        ({}, 7),
        ({"top": 6}, 6),
        ({"bits": 8}, 126),
    ],
)
def test_levels_of_luq(options: dict[str, int], top: int) -> None:
    """The levels are 0 and, with both signs, the largest magnitude times 2^0, ..., 2^-top."""
    spread = np.concatenate([[0.0], 2.0 ** np.linspace(-top - 1, 0, 40 * (top + 2))])
    drawn = draws_of(LARGEST * np.concatenate([spread, -spread]), 50, **options)
    powers = LARGEST * 2.0 ** -np.arange(top + 1)
    np.testing.assert_array_equal(np.unique(drawn), np.sort(np.concatenate([powers, [0], -powers])))


def test_each_client_has_another_scale_under_vmap() -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    rows = jax.random.normal(jax.random.key(2), (3, 50)) * jnp.array([1.0, 100.0, 1e-4])[:, None]
    together = jax.vmap(luq)(keys, rows)
    np.testing.assert_array_equal(jnp.abs(together).max(1), jnp.abs(rows).max(1))
    for key, row, found in zip(keys, rows, together, strict=True):
        np.testing.assert_array_equal(found, luq(key, row))
        np.testing.assert_array_equal(found * 8, luq(key, row * 8))


def test_luq_of_zeros_and_of_no_numbers() -> None:
    """Zeros stay zeros, and NaN stays NaN, so that a diverged client can be recognised."""
    keys = jax.random.split(jax.random.key(1), 2)
    rows = jnp.stack([jnp.zeros(4), jnp.arange(4.0)])
    np.testing.assert_array_equal(jax.vmap(luq)(keys, rows)[0], jnp.zeros(4))
    assert np.isnan(luq(keys[0], jnp.array([1.0, np.nan]))).all()


def test_more_bits_do_not_make_luq_exact() -> None:
    """The mean squared error soon stops falling, because levels are added near zero only."""
    values = np.random.default_rng(0).normal(size=300)
    errors = [
        np.mean((draws_of(values, 400, bits=bits) - values) ** 2) / np.mean(values**2)
        for bits in (2, 5, 8)
    ]
    assert errors[0] > 1.2 * errors[1]
    np.testing.assert_allclose(errors[2], errors[1], rtol=0.02)
    assert errors[2] > 0.05


CODES = {
    ("reference", True): (-4, 4),
    ("strict", True): (-4, 3),
    ("reference", False): (0, 7),
    ("strict", False): (0, 7),
}


@pytest.mark.parametrize(("levels", "signed"), CODES)
def test_uniform_quantizer(levels: str, signed: bool) -> None:
    """Values go to the nearest of the levels of 3 bits and are clamped.

    Whether codes are signed may be traced.
    """
    low, high = CODES[levels, signed]
    half_width = 1.75
    step = 2 * half_width / (high - low)
    x = np.linspace(-6, 6, 2001)
    found = uniform(
        jnp.asarray(x, "float32"), bits=3, scale=half_width, signed=signed, levels=levels
    )
    np.testing.assert_allclose(np.unique(found), step * np.arange(low, high + 1), rtol=1e-6)
    inside = (x >= step * low) & (x <= step * high)
    assert np.abs(found - x)[inside].max() <= step / 2 + 1e-6
    assert (found[x < step * low] == step * low).all()
    assert (found[x > step * high] == step * high).all()
    known = rounding.uniform(
        jnp.asarray(x, "float32"), bits=3, scale=half_width, signed=signed, levels=levels
    )
    np.testing.assert_array_equal(known, found)


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("signed", [True, False])
def test_sawb(bits: int, signed: bool) -> None:
    """Each row of a batch is rounded as in NumPy.

    The range clips signed values, and the levels are those of the bits.
    """
    rows = np.random.default_rng(3).standard_t(4, size=(2, 4000)) * np.array([[1.0], [30.0]])
    rows = rows if signed else np.maximum(rows, 0)
    found = np.asarray(
        jax.vmap(partial(sawb, bits=bits, signed=signed))(jnp.asarray(rows, "float32"))
    )
    # The tolerance is that of float32. No value is so close to the middle between two levels that
    # rounding errors decide about its level.
    np.testing.assert_allclose(
        found, [sawb_in_numpy(row, bits, signed=signed) for row in rows], rtol=1e-5
    )
    for row, result in zip(rows, found, strict=True):
        if signed:
            assert len(np.unique(result)) == 2**bits + 1
            assert np.abs(result).max() < np.abs(row).max()
        else:
            assert 2 ** (bits - 1) < len(np.unique(result)) <= 2**bits


def test_sawb_of_bits_and_values_that_it_has_no_range_for() -> None:
    """Without a range of SAWB, the grid reaches the largest magnitude, and zeros stay zeros.

    This is so for other numbers of bits, and for equal magnitudes in four bits, where c is
    negative.
    """
    x = jnp.asarray(np.random.default_rng(3).normal(size=100), "float32")
    for bits in (2, 5):
        for levels in rounding.LEVELS:
            found = sawb(x, bits=bits, signed=True, levels=levels)
            np.testing.assert_array_equal(found, max_abs(x, bits=bits, signed=True, levels=levels))
            assert np.abs(found - x).max() <= jnp.abs(x).max() / (2**bits - 1) * (1 + 1e-5)
    same = jnp.array([1.5, -1.5, 1.5])
    np.testing.assert_allclose(sawb(same, bits=4, signed=True), same, rtol=1e-6)
    np.testing.assert_allclose(sawb(jnp.abs(same), bits=4, signed=False), jnp.abs(same), rtol=1e-6)
    for quantizer in (sawb, max_abs):
        for bits in (3, 5):
            np.testing.assert_array_equal(
                quantizer(jnp.zeros(3), bits=bits, signed=False), jnp.zeros(3)
            )


def test_grids_keep_bfloat16() -> None:
    """The range is computed in 32 bits; in bfloat16 half of the digits would cancel."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=1000), "bfloat16")
    found = sawb(x, bits=4, signed=True)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        found, sawb(x.astype("float32"), bits=4, signed=True).astype("bfloat16")
    )


def test_straight_through() -> None:
    """The value is the quantizer's to the last bit, the gradient that of the identity.

    This is so beyond the range too.
    """
    x = jnp.asarray(np.random.default_rng(3).standard_t(1, size=500), "float32")
    quantizer = partial(uniform, bits=3, scale=0.7, signed=True)
    np.testing.assert_array_equal(straight_through(quantizer, x), quantizer(x))
    slope = jnp.arange(500.0)
    np.testing.assert_array_equal(
        jax.grad(lambda x: slope @ straight_through(quantizer, x))(x), slope
    )


def back_rounded(x: jax.Array, key: jax.Array, top: int | None = None) -> jax.Array:
    """Return x, and round its gradient to 3 bits."""
    return quantized_gradient(x, key, partial(luq, bits=3, top=top))


def test_cotangent_of_quantized_gradient() -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    x, slope = jax.random.normal(jax.random.key(2), (2, 2, 9))

    def back(x: jax.Array, key: jax.Array, slope: jax.Array, top: int | None = None) -> jax.Array:
        value, pull = jax.vjp(lambda x, key: back_rounded(x, key, top), x, key)
        np.testing.assert_array_equal(value, x)
        of_x, of_key = pull(slope)
        assert of_key.dtype == jax.dtypes.float0
        return of_x

    np.testing.assert_array_equal(back(x[0], keys[0], slope[0]), luq(keys[0], slope[0], bits=3))
    np.testing.assert_array_equal(back(x[0], keys[0], slope[0], 2), luq(keys[0], slope[0], top=2))
    batched = jax.jit(jax.vmap(jax.grad(lambda x, key, slope: slope @ back_rounded(x, key))))(
        x, keys, slope
    )
    np.testing.assert_array_equal(
        batched, [luq(*row, bits=3) for row in zip(keys, slope, strict=True)]
    )


def test_cotangent_of_quantized_gradient_with_a_shared_input() -> None:
    """Each key quantizes its own cotangent; the results are added up."""
    keys = jax.random.split(jax.random.key(1), 2)
    x, slope = jax.random.normal(jax.random.key(2), (2, 9))
    found = jax.grad(lambda x: jnp.sum(jax.vmap(lambda key: slope @ back_rounded(x, key))(keys)))(x)
    np.testing.assert_allclose(found, sum(luq(key, slope, bits=3) for key in keys), rtol=1e-6)
