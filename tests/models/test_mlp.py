"""Dense networks: sizes, forms of input, initialisation, and logits by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.models import MLP, MODELS, LogisticRegression


def num_parameters(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("logistic", 784 * 10 + 10), ("mlp32", 25450), ("mlp128", 784 * 128 + 128 + 128 * 10 + 10)],
)
def test_number_of_parameters_on_mnist(name, expected):
    line, factory, has_convolutions = MODELS[name]
    assert not has_convolutions
    assert line and "\n" not in line
    params = jax.eval_shape(factory(10, None).init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    assert num_parameters(params) == expected


@pytest.mark.parametrize("name", ["logistic", "mlp32", "mlp128"])
def test_images_are_the_flat_inputs_they_hold(name):
    model = MODELS[name].make(7, None)
    images = jax.random.normal(jax.random.key(1), (2, 5, 4, 4, 3))
    params = model.init(jax.random.key(0), images)
    flat = model.apply(params, images.reshape(10, 48)).reshape(2, 5, 7)
    for of in ((), (0,), (1, 3)):
        np.testing.assert_allclose(model.apply(params, images[of]), flat[of], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model.apply(params, images[0, 0].reshape(48)), flat[0, 0], rtol=1e-5, atol=1e-6
    )


def test_logits_are_those_of_plain_numpy():
    model = MLP((5, 4), 3)
    x = np.asarray(jax.random.normal(jax.random.key(1), (6, 2)))
    params = model.init(jax.random.key(0), x)
    layers = jax.tree.map(np.asarray, [params["params"][f"Dense_{i}"] for i in range(3)])
    hidden = x
    for layer in layers[:-1]:
        hidden = np.maximum(hidden @ layer["kernel"] + layer["bias"], 0)
    np.testing.assert_allclose(
        model.apply(params, x),
        hidden @ layers[-1]["kernel"] + layers[-1]["bias"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_no_hidden_layer_is_logistic_regression():
    x = jax.random.normal(jax.random.key(1), (6, 4))
    params = LogisticRegression(3).init(jax.random.key(0), x)
    np.testing.assert_array_equal(
        LogisticRegression(3).apply(params, x), MLP((), 3).apply(params, x)
    )


@pytest.mark.parametrize(("layer", "fan_in"), [("Dense_0", 100), ("Dense_1", 400)])
def test_weights_and_biases_start_uniform_within_one_over_root_fan_in(layer, fan_in):
    params = MLP((400,), 900).init(jax.random.key(0), jnp.zeros((1, 100)))["params"][layer]
    bound = fan_in**-0.5
    for values in params.values():
        assert jnp.abs(values).max() <= bound
        scaled = np.sort(np.ravel(values) / bound)
        assert scaled[0] < -0.97 and scaled[-1] > 0.97
        distance = np.abs((scaled + 1) / 2 - (np.arange(scaled.size) + 0.5) / scaled.size).max()
        assert distance < 1.95 / np.sqrt(scaled.size)  # Kolmogorov-Smirnov test, p = 0.001


def test_computation_dtype_leaves_parameters_in_float32():
    model = MLP((8,), 3, dtype=jnp.bfloat16)
    x = jnp.ones((2, 4))
    params = model.init(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert model.apply(params, x).dtype == jnp.bfloat16
    assert MLP((8,), 3).apply(params, x).dtype == jnp.float32


def test_modules_are_hashable_and_equal_by_value():
    assert MODELS["mlp32"].make(10, None) == MLP((32,), 10) and hash(
        MODELS["mlp32"].make(10, None)
    ) == hash(MLP((32,), 10))
    assert MLP((32,), 10) != MLP((33,), 10)


def test_an_empty_batch_of_images() -> None:
    outputs = MLP((4,), 3).apply(
        MLP((4,), 3).init(jax.random.key(0), jnp.ones((1, 8, 8, 1))), jnp.ones((0, 8, 8, 1))
    )
    assert outputs.shape == (0, 3)
