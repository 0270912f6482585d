"""Low-bit training: each quantizer by its properties, a model's forward and backward pass against NumPy, and whole runs of the systems."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import struct

import fedjax_sim
from fedjax_sim import Event, Layout, Plan
from fedjax_sim.clients.gradient_steps import local_sgd
from fedjax_sim.datasets import from_arrays
from fedjax_sim.models import MLP, low_bit
from fedjax_sim.models.low_bit import LowBit, quantized_gradient, straight_through, training_bits
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classification
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import LatentProblem

# Compiled, as one operation after the other takes seconds.
luq = jax.jit(low_bit.luq, static_argnames=("bits", "top"))
uniform, sawb, max_abs = (
    jax.jit(q, static_argnames=("bits", "levels"))
    for q in (low_bit.uniform, low_bit.sawb, low_bit.max_abs)
)

# Logarithmic quantizer of gradients ---------------------------------------------------------------------------------------------------

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
    """`f64[count, *shape]`"""
    keys = jax.random.split(jax.random.key(8), count)
    tensor = jnp.asarray(values, dtype)
    drawn = jax.jit(jax.vmap(lambda key: luq(key, tensor, **options)))(keys)
    assert drawn.dtype == tensor.dtype
    return np.asarray(drawn, float)


def neighbours(values: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The levels at or below and above each value; the same for a level."""
    place = np.searchsorted(levels, values, side="right") - 1
    lower = levels[place]
    return lower, np.where(lower == values, lower, levels[np.minimum(place + 1, len(levels) - 1)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_luq_is_unbiased(dtype: str) -> None:
    """Within 5 standard errors, which are those of a choice between the two nearest levels; a level goes to itself."""
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
    """0 and both signs of the largest magnitude times 2^0, ..., 2^-top, exactly; no more."""
    spread = np.concatenate([[0.0], 2.0 ** np.linspace(-top - 1, 0, 40 * (top + 2))])
    drawn = draws_of(LARGEST * np.concatenate([spread, -spread]), 50, **options)
    powers = LARGEST * 2.0 ** -np.arange(top + 1)
    np.testing.assert_array_equal(np.unique(drawn), np.sort(np.concatenate([powers, [0], -powers])))


def test_each_client_has_a_scale_of_its_own_under_vmap() -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    rows = jax.random.normal(jax.random.key(2), (3, 50)) * jnp.array([1.0, 100.0, 1e-4])[:, None]
    together = jax.vmap(luq)(keys, rows)
    np.testing.assert_array_equal(jnp.abs(together).max(1), jnp.abs(rows).max(1))
    for key, row, found in zip(keys, rows, together, strict=True):
        np.testing.assert_array_equal(found, luq(key, row))
        np.testing.assert_array_equal(found * 8, luq(key, row * 8))


def test_luq_of_zeros_and_of_no_numbers() -> None:
    """A client without gradient keeps none; one that diverged is not made to look sane."""
    keys = jax.random.split(jax.random.key(1), 2)
    rows = jnp.stack([jnp.zeros(4), jnp.arange(4.0)])
    np.testing.assert_array_equal(jax.vmap(luq)(keys, rows)[0], jnp.zeros(4))
    assert np.isnan(luq(keys[0], jnp.array([1.0, np.nan]))).all()


def test_more_bits_do_not_make_luq_exact() -> None:
    """The mean error, here relative to the mean square, soon stays the same: levels are added near zero only."""
    values = np.random.default_rng(0).normal(size=300)
    errors = [
        np.mean((draws_of(values, 400, bits=bits) - values) ** 2) / np.mean(values**2)
        for bits in (2, 5, 8)
    ]
    assert errors[0] > 1.2 * errors[1]
    np.testing.assert_allclose(errors[2], errors[1], rtol=0.02)
    assert errors[2] > 0.05


# Uniform quantizers -------------------------------------------------------------------------------------------------------------------


def uniform_in_numpy(x: np.ndarray, low: int, high: int, half_width: float) -> np.ndarray:
    step = 2 * half_width / (high - low)
    return step * np.clip(np.round(x / step), low, high)


def sawb_in_numpy(x: np.ndarray, bits: int, *, signed: bool = True) -> np.ndarray:
    """With the levels of LUQ's code."""
    first, second = {3: (7.4, 6.66), 4: (12.1, 12.2)}[bits]
    clip = first * np.sqrt(np.mean(x**2)) - second * np.mean(np.abs(x))
    return uniform_in_numpy(
        x, *((-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits - 1)), clip
    )


CODES = {
    ("reference", True): (-4, 4),
    ("strict", True): (-4, 3),
    ("reference", False): (0, 7),
    ("strict", False): (0, 7),
}


@pytest.mark.parametrize(("levels", "signed"), CODES)
def test_uniform_quantizer(levels: str, signed: bool) -> None:
    """Levels of 3 bits, the nearest one, and clamping; whether there are signs may be known only at run time."""
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
    known = low_bit.uniform(
        jnp.asarray(x, "float32"), bits=3, scale=half_width, signed=signed, levels=levels
    )
    np.testing.assert_array_equal(known, found)


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("signed", [True, False])
def test_sawb(bits: int, signed: bool) -> None:
    """As written out in NumPy, each row of a batch by itself; the range clips signed values, and the levels are those of the bits."""
    rows = np.random.default_rng(3).standard_t(4, size=(2, 4000)) * np.array([[1.0], [30.0]])
    rows = rows if signed else np.maximum(rows, 0)
    found = np.asarray(
        jax.vmap(partial(sawb, bits=bits, signed=signed))(jnp.asarray(rows, "float32"))
    )
    # Tolerance: float32; no value lies so close to a border between two levels that it goes to another.
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
    """Other bits, and four-bit values all as large, for which c is negative: the largest magnitude is a level. Zeros stay."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=100), "float32")
    for bits in (2, 5):
        for levels in low_bit.LEVELS:
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
    """The range is worked out in 32 bits: half of the digits of a bfloat16 would cancel."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=1000), "bfloat16")
    found = sawb(x, bits=4, signed=True)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        found, sawb(x.astype("float32"), bits=4, signed=True).astype("bfloat16")
    )


# Gradients ----------------------------------------------------------------------------------------------------------------------------


def test_straight_through() -> None:
    """The value is the quantizer's, to the last bit, and the gradient the identity's, beyond the range too."""
    x = jnp.asarray(np.random.default_rng(3).standard_t(1, size=500), "float32")
    quantizer = partial(uniform, bits=3, scale=0.7, signed=True)
    np.testing.assert_array_equal(straight_through(quantizer, x), quantizer(x))
    slope = jnp.arange(500.0)
    np.testing.assert_array_equal(
        jax.grad(lambda x: slope @ straight_through(quantizer, x))(x), slope
    )


def test_cotangent_of_quantized_gradient() -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    x, slope = jax.random.normal(jax.random.key(2), (2, 2, 9))

    def back(x: jax.Array, key: jax.Array, slope: jax.Array, top: int | None = None) -> jax.Array:
        value, pull = jax.vjp(lambda x, key: quantized_gradient(x, key, 3, top), x, key)
        np.testing.assert_array_equal(value, x)
        of_x, of_key = pull(slope)
        assert of_key.dtype == jax.dtypes.float0
        return of_x

    np.testing.assert_array_equal(back(x[0], keys[0], slope[0]), luq(keys[0], slope[0], bits=3))
    np.testing.assert_array_equal(back(x[0], keys[0], slope[0], 2), luq(keys[0], slope[0], top=2))
    batched = jax.jit(
        jax.vmap(jax.grad(lambda x, key, slope: slope @ quantized_gradient(x, key, 3)))
    )(x, keys, slope)
    np.testing.assert_array_equal(
        batched, [luq(*row, bits=3) for row in zip(keys, slope, strict=True)]
    )


# Models -------------------------------------------------------------------------------------------------------------------------------


class CNN(nn.Module):
    """One convolution, one dense layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(3, (2, 2), padding="VALID", bias_init=nn.initializers.normal())(x))
        return nn.Dense(4, bias_init=nn.initializers.normal())(x.reshape(*x.shape[:-3], -1))


class Twice(nn.Module):
    """A layer used twice, and dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        layer = nn.Dense(x.shape[-1])
        return layer(nn.Dropout(0.5, deterministic=not train)(layer(x)))


class Case:
    """A model, its parameters, a batch with negative values, and what is summed into the loss: `slope` times the logits."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], **settings: Any):
        keys = jax.random.split(jax.random.key(5), 3)
        self.low = LowBit(model, **settings)
        self.x = jax.random.normal(keys[0], shape)
        self.params = jax.jit(self.low.init)(keys[1], self.x)
        logits = jax.eval_shape(model.apply, self.params, self.x)
        self.slope = jax.random.normal(keys[2], logits.shape)

    def loss(self, params: Any, key: jax.Array, low: LowBit | None = None) -> jax.Array:
        return jnp.sum(
            self.slope * (low or self.low).apply(params, self.x, train=True, rngs={"quantize": key})
        )

    def train(self, low: LowBit | None = None) -> jax.Array:
        """The logits of a local step."""
        return jax.jit(partial((low or self.low).apply, train=True))(
            self.params, self.x, rngs={"quantize": KEY}
        )

    def gradient(self, low: LowBit | None = None) -> Any:
        return jax.jit(jax.grad(partial(self.loss, low=low)))(self.params, KEY)

    def numbers(self, *path: str) -> tuple[np.ndarray, np.ndarray]:
        """Kernel and bias of a layer."""
        layer = self.params["params"]
        for name in path:
            layer = layer[name]
        return np.asarray(layer["kernel"], float), np.asarray(layer["bias"], float)


KEY = jax.random.key(7)
perceptron = partial(Case, MLP((6,), 4), (5, 8))
convolutional = partial(Case, CNN(), (5, 4, 4, 2))


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Without padding. x: `[B, H, W, C]`. kernel: `[h, w, C, F]`."""
    h, w = kernel.shape[:2]
    out = np.zeros((x.shape[0], x.shape[1] - h + 1, x.shape[2] - w + 1, kernel.shape[-1]))
    for i, j in np.ndindex(h, w):
        out += x[:, i : i + out.shape[1], j : j + out.shape[2]] @ kernel[i, j]
    return out


@pytest.mark.parametrize("bits", [3, 4])
def test_forward_pass_of_a_perceptron(bits: int) -> None:
    """Inputs and kernels are rounded, hidden ones on the unsigned grid as they follow a ReLU; biases are not."""
    case = perceptron(weights=bits, activations=bits)
    (first, bias), (second, offset) = case.numbers("Dense_0"), case.numbers("Dense_1")
    hidden = np.maximum(
        sawb_in_numpy(np.asarray(case.x), bits) @ sawb_in_numpy(first, bits) + bias, 0
    )
    expected = sawb_in_numpy(hidden, bits, signed=False) @ sawb_in_numpy(second, bits) + offset
    found = case.train()
    # Tolerance: float32.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    plain = np.maximum(np.asarray(case.x) @ first + bias, 0) @ second + offset
    as_sent = LowBit(case.low.model, bits, bits, evaluate_quantized=False).apply(
        case.params, case.x
    )
    np.testing.assert_allclose(as_sent, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(case.low.apply)(case.params, case.x), found, rtol=1e-6)


def test_forward_pass_of_a_convolutional_network() -> None:
    case = convolutional(scale="max", levels="strict", weights=4, activations=5)

    def grid(x: np.ndarray, bits: int, *, signed: bool = True) -> np.ndarray:
        largest = np.abs(x).max()
        codes = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return uniform_in_numpy(x, *codes, largest if signed else largest / 2)

    (first, bias), (second, offset) = case.numbers("Conv_0"), case.numbers("Dense_0")
    hidden = np.maximum(convolved(grid(np.asarray(case.x), 5), grid(first, 4)) + bias, 0).reshape(
        5, -1
    )
    expected = grid(hidden, 5, signed=False) @ grid(second, 4) + offset
    found = case.train()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_parts_left_in_full_precision() -> None:
    """Weights alone, activations alone, the second layer alone, nothing."""
    case = perceptron()
    x = np.asarray(case.x)
    (first, bias), (second, offset) = case.numbers("Dense_0"), case.numbers("Dense_1")
    low, unsigned = partial(sawb_in_numpy, bits=3), partial(sawb_in_numpy, bits=3, signed=False)

    def network(*roundings: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        of_x, of_first, of_hidden, of_second = roundings
        return (
            of_hidden(np.maximum(of_x(x) @ of_first(first) + bias, 0)) @ of_second(second) + offset
        )

    expected = {
        LowBit(case.low.model, activations=None, gradients=None): network(
            np.asarray, low, np.asarray, low
        ),
        LowBit(case.low.model, weights=None, gradients=None): network(
            low, np.asarray, unsigned, np.asarray
        ),
        LowBit(case.low.model, gradients=None, full_precision=("Dense_0",)): network(
            np.asarray, np.asarray, unsigned, low
        ),
        LowBit(case.low.model, None, None, None): network(*[np.asarray] * 4),
    }
    for model, logits in expected.items():
        np.testing.assert_allclose(case.train(model), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("levels", "top"), [("reference", 3), ("strict", 2)])
def test_gradient_of_a_perceptron(levels: str, top: int) -> None:
    """Back-propagation written out: at rounded weights and activations, with the gradient at each layer's output quantized."""
    case = perceptron(weights=8, activations=8, gradients=3, levels=levels)
    keys = [jax.random.fold_in(KEY, i) for i in range(2)]
    (first, bias), (second, _) = case.numbers("Dense_0"), case.numbers("Dense_1")
    grid = partial(max_abs, bits=8, levels=levels)
    x, low_first, low_second = (
        np.asarray(grid(jnp.asarray(a, "float32"), signed=True)) for a in (case.x, first, second)
    )
    before = x @ low_first + bias.astype("float32")
    hidden = np.asarray(grid(jnp.maximum(before, 0), signed=False))
    at_logits = np.asarray(luq(keys[1], case.slope, top=top))
    at_hidden = np.asarray(
        luq(keys[0], jnp.asarray((at_logits @ low_second.T) * (before > 0)), top=top)
    )
    found = case.gradient()["params"]
    layers = {
        "Dense_0": (x.T @ at_hidden, at_hidden.sum(0)),
        "Dense_1": (hidden.T @ at_logits, at_logits.sum(0)),
    }
    for name, (of_kernel, of_bias) in layers.items():
        np.testing.assert_allclose(found[name]["kernel"], of_kernel, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[name]["bias"], of_bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [perceptron, convolutional])
def test_gradients_are_unbiased_for_those_without_quantized_cotangents(
    make: Callable[..., Case],
) -> None:
    """Every coordinate over 4000 keys, within 5 standard errors, or to rounding where no draw is involved."""
    case, count = make(), 4000
    exact = case.gradient(LowBit(case.low.model, gradients=None))
    drawn = jax.jit(jax.vmap(jax.grad(case.loss), (None, 0)))(
        case.params, jax.random.split(KEY, count)
    )
    spreads = []
    for sample, expected in zip(jax.tree.leaves(drawn), jax.tree.leaves(exact), strict=True):
        error = np.std(np.asarray(sample, float), axis=0) / np.sqrt(count)
        spreads.append(error.max())
        assert (
            np.abs(np.mean(np.asarray(sample, float), axis=0) - expected) <= 5 * error + 1e-5
        ).all()
    assert min(spreads) > 1e-3, "nothing was quantized"


def test_gradients_of_a_batch_of_clients() -> None:
    """Clients of other models and keys, batched, have the gradients that they have alone: scales are their own."""
    case = perceptron(scale="max")
    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, 3 * leaf, -0.1 * leaf]), case.params)
    keys = jax.random.split(KEY, 3)
    gradient = jax.grad(case.loss)
    together = jax.jit(jax.vmap(gradient))(clients, keys)
    one = jax.jit(gradient)
    for i in range(3):
        alone = one(jax.tree.map(lambda leaf, i=i: leaf[i], clients), keys[i])
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5),
            together,
            alone,
        )


def test_jit_equals_no_jit() -> None:
    case = perceptron()
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        case.gradient(),
        jax.grad(case.loss)(case.params, KEY),
    )


def test_each_use_of_a_layer_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(x: jax.Array, key: jax.Array, *bits: Any) -> jax.Array:
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return x

    monkeypatch.setattr(low_bit, "quantized_gradient", noted)
    for case in (perceptron(), convolutional()):
        seen.clear()
        case.loss(case.params, KEY)
        assert len(set(seen)) == len(seen) == 2
    seen.clear()
    low, x = LowBit(Twice()), jnp.ones((2, 3))
    low.apply(low.init(KEY, x), x, train=True, rngs={"quantize": KEY, "dropout": KEY})
    assert len(set(seen)) == len(seen) == 2


def test_training_reaches_a_model_that_takes_it() -> None:
    """With its own random streams; evaluation is without dropout and needs none."""
    low, x = LowBit(Twice()), jax.random.normal(jax.random.key(3), (4, 6))
    params = low.init(KEY, x)
    first, again, other = (
        low.apply(params, x, train=True, rngs={"quantize": KEY, "dropout": jax.random.key(i)})
        for i in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    as_sent = LowBit(Twice(), evaluate_quantized=False).apply(params, x)
    np.testing.assert_array_equal(as_sent, Twice().apply(params, x))


def test_low_bit_models_are_static_data() -> None:
    """Equal ones are one program's, and the wrapped module is left as it was."""
    make = partial(LowBit, MLP((6,), 4))
    assert make() == make()
    assert hash(make()) == hash(make(full_precision=()))
    for change in (
        {"weights": 4},
        {"scale": "max"},
        {"full_precision": ("Dense_0",)},
        {"levels": "strict"},
    ):
        assert make(**change) != make()
    traces = []

    @partial(jax.jit, static_argnums=0)
    def apply(low: LowBit, params: Any, x: jax.Array) -> jax.Array:
        traces.append(low)
        return low.apply(params, x, train=True, rngs={"quantize": KEY})

    case = perceptron()
    before = case.low.model.apply(case.params, case.x)
    for low in (make(), make(), make(weights=4)):
        apply(low, case.params, case.x)
    assert len(traces) == 2
    np.testing.assert_array_equal(case.low.model.apply(case.params, case.x), before)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": 1},
        {"weights": 3.0},
        {"activations": 25},
        {"activations": True},
        {"gradients": 9},
        {"scale": "mean"},
        {"levels": "exact"},
        {"full_precision": "Dense_0"},
    ],
)
def test_settings_that_are_not_allowed(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        LowBit(MLP((6,), 4), **change)


def test_training_without_a_key_is_refused() -> None:
    case = perceptron()
    with pytest.raises(ValueError, match="quantize"):
        case.low.apply(case.params, case.x, train=True)


def test_bits_of_the_weights_trained_with() -> None:
    """A perceptron of 8-6-4 has 48 and 24 weights, and 10 biases."""
    case = perceptron()
    bits = partial(training_bits, case.params)
    make = partial(LowBit, case.low.model)
    assert bits(make()) == {"low_bit": 72 * 3 + 10 * 32, "full_precision": 82 * 32}
    assert bits(make(weights=4, full_precision=("Dense_0",)))["low_bit"] == 24 * 4 + 58 * 32
    assert bits(make(weights=None))["low_bit"] == 82 * 32
    shapes = jax.eval_shape(case.low.init, KEY, case.x)
    assert training_bits(shapes, make()) == bits(make())


# Whole runs ---------------------------------------------------------------------------------------------------------------------------


@struct.dataclass
class Blobs:
    """Classes around points, seven clients, a model that trains with a key."""

    inputs: jax.Array  # f[N, M, D]
    labels: jax.Array  # i32[N, M]
    model: LowBit = struct.field(pytree_node=False)

    @property
    def counts(self) -> jax.Array:
        return jnp.full(self.inputs.shape[0], self.inputs.shape[1], "int32")

    def init(self, key: jax.Array) -> Any:
        return self.model.init(key, self.inputs[0, :1])

    def loss(
        self, params: Any, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        logits = self.model.apply(
            params, self.inputs[client, examples], train=True, rngs={"quantize": key}
        )
        return self._cross_entropy(logits, self.labels[client, examples])

    def evaluate(self, params: Any) -> Mapping[str, jax.Array]:
        inputs = self.inputs.reshape(-1, self.inputs.shape[-1])
        return {
            "loss": self._cross_entropy(self.model.apply(params, inputs), self.labels.reshape(-1))
        }

    @staticmethod
    def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.mean(
            jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
        )


TICKS = 12
WHOLE = Layout(slots_at_once=4, lanes_at_once=False, lane_devices=1)


def blobs(**settings: Any) -> Blobs:
    random = np.random.default_rng(2)
    labels = random.integers(0, 4, (7, 12))
    inputs = random.normal(size=(4, 6))[labels] + 0.3 * random.normal(size=(7, 12, 6))
    return Blobs(
        jnp.asarray(inputs, "float32"),
        jnp.asarray(labels, "int32"),
        LowBit(MLP((5,), 4), **settings),
    )


@pytest.fixture(
    params=[
        name for name, system in fedjax_sim.SYSTEMS.items() if system.learns is not LatentProblem
    ]
)
def system(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every system whose clients do gradient steps."""
    return fedjax_sim.SYSTEMS[request.param]


def run(system: Any, problem: Any, hyper: Any) -> fedjax_sim.Run:
    return fedjax_sim.simulate(system, problem, hyper, num_ticks=TICKS, num_evals=3, layout=WHOLE)


def distance(a: Any, b: Any) -> float:
    return float(
        np.sqrt(
            sum(
                np.sum((np.asarray(x) - np.asarray(y)) ** 2)
                for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
            )
        )
    )


def test_every_system_trains_with_few_bits(system: Any, small: Callable) -> None:
    """Its loss falls, in full precision too, and a model of 59 numbers for each slot of a tick is sent as it is."""
    curves = run(system, blobs(), small(system, lr=0.3)).curves
    assert not curves.failed.any()
    loss = curves.loss.values.ravel()
    assert loss[-1] < 0.8 * loss[0]
    slots = {"fedasync": 1, "langevin": 7}.get(system.name, 4)
    assert curves.uplink_bits.values.ravel()[-1] == TICKS * slots * 59 * 32


def test_favano_in_many_bits_tends_to_full_precision(small: Callable) -> None:
    """Monotonically, with `gradients` of None, as quantized ones would stay as noisy."""
    system = fedjax_sim.SYSTEMS["favano"]
    full = run(system, blobs(weights=None, activations=None, gradients=None), small(system)).models
    distances = []
    for bits in (4, 8, 12):
        low = run(
            system,
            blobs(weights=bits, activations=bits, gradients=None, scale="max"),
            small(system),
        ).models
        distances.append(distance(full, low))
    # Each step of four bits divides the rounding error by 16.
    assert (np.array(distances[1:]) < 0.25 * np.array(distances[:-1])).all()
    assert distances[0] > 1e-3


def test_classification_hands_over_the_key(small: Callable) -> None:
    """Its loss has one value and many gradients, by the key."""
    random = np.random.default_rng(2)
    images, labels = random.integers(0, 255, (80, 4, 4, 1), "uint8"), np.arange(80) % 4
    data = from_arrays(images, labels, images[:20], labels[:20])
    problem = make_classification(LowBit(MLP((5,), 4)), data, iid(labels, num_clients=4, seed=0))
    params = problem.init(KEY)
    losses, slopes = jax.jit(jax.vmap(jax.value_and_grad(problem.loss), (None, None, None, 0)))(
        params, jnp.int32(1), jnp.arange(6), jax.random.split(KEY, 3)
    )
    assert np.ptp(losses) == 0
    kernel = np.asarray(slopes["params"]["Dense_0"]["kernel"])
    assert distance(kernel[0], kernel[1]) > 0 < distance(kernel[0], kernel[2])


@pytest.fixture
def key_reuse_check() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield


def test_no_key_is_used_twice(small: Callable, key_reuse_check: None) -> None:
    """Local work of two clients, traced only: that is when keys are checked."""
    problem, hyper = blobs(), small(fedjax_sim.SYSTEMS["favano"])
    whole = jnp.arange(2)
    event = Event(
        jnp.int32(0), whole, whole + 2, whole, whole.astype("float32"), whole, whole, jnp.int32(0)
    )
    start = jax.vmap(problem.init)(jax.random.split(KEY, 2))
    jax.eval_shape(
        jax.jit(partial(local_sgd, problem, hyper, Plan(slots_at_once=2))),
        jax.random.key(1),
        start,
        event,
    )


def test_a_key_used_twice_is_noticed(
    small: Callable, key_reuse_check: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counterpart of the test above: both layers draw by the same key."""
    case = perceptron()
    monkeypatch.setattr(jax.random, "fold_in", lambda key, data: key)
    with pytest.raises(jax.errors.KeyReuseError):
        jax.eval_shape(jax.jit(jax.grad(case.loss)), case.params, KEY)
