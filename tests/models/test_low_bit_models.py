"""Models in low bits: forward and backward pass against NumPy, keys, and refused settings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.kernels import rounding
from fedjax_sim.models import MLP, CharacterTransformer
from fedjax_sim.models.quantized import LowBit
from tests.models.low_bit_reference import luq, max_abs, sawb_in_numpy, uniform_in_numpy


class CNN(nn.Module):
    """A network of one convolution and one dense layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(3, (2, 2), padding="VALID", bias_init=nn.initializers.normal())(x))
        return nn.Dense(4, bias_init=nn.initializers.normal())(x.reshape(*x.shape[:-3], -1))


class Twice(nn.Module):
    """A network that uses one layer twice, with dropout in between."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        layer = nn.Dense(x.shape[-1])
        return layer(nn.Dropout(0.5, deterministic=not train)(layer(x)))


class Case:
    """A model with parameters, a batch with negative values and a loss.

    The loss is the sum of `slope` times the logits.
    """

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
        """Compute the logits of a local step."""
        return jax.jit(partial((low or self.low).apply, train=True))(
            self.params, self.x, rngs={"quantize": KEY}
        )

    def gradient(self, low: LowBit | None = None) -> Any:
        return jax.jit(jax.grad(partial(self.loss, low=low)))(self.params, KEY)

    def numbers(self, *path: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel and the bias of a layer."""
        layer = self.params["params"]
        for name in path:
            layer = layer[name]
        return np.asarray(layer["kernel"], float), np.asarray(layer["bias"], float)


KEY = jax.random.key(7)

perceptron = partial(Case, MLP((6,), 4), (5, 8))

convolutional = partial(Case, CNN(), (5, 4, 4, 2))


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolve x, `[B, H, W, C]`, with a kernel `[h, w, C, F]`, without padding."""
    h, w = kernel.shape[:2]
    out = np.zeros((x.shape[0], x.shape[1] - h + 1, x.shape[2] - w + 1, kernel.shape[-1]))
    for i, j in np.ndindex(h, w):
        out += x[:, i : i + out.shape[1], j : j + out.shape[2]] @ kernel[i, j]
    return out


@pytest.mark.parametrize("bits", [3, 4])
def test_forward_pass_of_a_perceptron(bits: int) -> None:
    """Inputs and kernels are rounded, biases are not.

    Hidden activations are rounded on the unsigned grid, because they follow a ReLU.
    """
    case = perceptron(weights=bits, activations=bits)
    (first, bias), (second, offset) = case.numbers("Dense_0"), case.numbers("Dense_1")
    hidden = np.maximum(
        sawb_in_numpy(np.asarray(case.x), bits) @ sawb_in_numpy(first, bits) + bias, 0
    )
    expected = sawb_in_numpy(hidden, bits, signed=False) @ sawb_in_numpy(second, bits) + offset
    found = case.train()
    # The tolerance is that of float32.
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
    """Only weights, only activations, only the second layer, or nothing is rounded."""
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
    """The gradient is back-propagation at rounded weights and activations.

    The gradient at each layer's output is quantized.
    """
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
    """Means over 4000 keys are within 5 standard errors in every coordinate.

    A coordinate that involves no draw is equal up to rounding.
    """
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
    """Clients with different models and keys have the same gradients in a batch as alone.

    This shows that scales are not shared between clients.
    """
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


@pytest.mark.slow
def test_jit_equals_no_jit() -> None:
    case = perceptron()
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        case.gradient(),
        jax.grad(case.loss)(case.params, KEY),
    )


@pytest.mark.slow
def test_each_use_of_a_layer_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(x: jax.Array, key: jax.Array, *bits: Any) -> jax.Array:
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return x

    monkeypatch.setattr(rounding, "quantized_gradient", noted)
    for case in (perceptron(), convolutional()):
        seen.clear()
        case.loss(case.params, KEY)
        assert len(set(seen)) == len(seen) == 2
    seen.clear()
    low, x = LowBit(Twice()), jnp.ones((2, 3))
    low.apply(low.init(KEY, x), x, train=True, rngs={"quantize": KEY, "dropout": KEY})
    assert len(set(seen)) == len(seen) == 2


def test_training_reaches_a_model_that_takes_it() -> None:
    """Training uses the model's random streams; evaluation has no dropout and needs none."""
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
    """Equal models share one program, and the wrapped module is left unchanged."""
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


def test_a_layer_that_is_not_there_cannot_be_left_alone() -> None:
    """The name of a block is refused too: each of its layers has a path."""
    network = CharacterTransformer(5, width=4, blocks=1, heads=1)
    codes, named = jnp.zeros((1, 3), int), ("Dense_0", "attention_0/query/dense")
    jax.eval_shape(LowBit(network, full_precision=named).init, KEY, codes)
    for path in ("Dense_7", "attention_0"):
        with pytest.raises(ConfigError, match=f"full_precision is '{path}', but .* one of Dense_0"):
            jax.eval_shape(LowBit(network, full_precision=(path,)).init, KEY, codes)


def test_training_without_a_key_is_refused() -> None:
    case = perceptron()
    with pytest.raises(ValueError, match="quantize"):
        case.low.apply(case.params, case.x, train=True)


def test_a_key_used_twice_is_noticed(
    small: Callable, key_reuse_check: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If both layers draw by the same key, the check finds it.

    Counterpart of `test_no_key_is_used_twice` in test_low_bit_runs.py.
    """
    case = perceptron()
    monkeypatch.setattr(jax.random, "fold_in", lambda key, data: key)
    with pytest.raises(jax.errors.KeyReuseError):
        jax.eval_shape(jax.jit(jax.grad(case.loss)), case.params, KEY)
