"""Convolutional networks: sizes, forms of input, equal logits with either convolution, dropout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_sim.models import (
    CONVOLUTIONS,
    MODELS,
    DoubleConvNet,
    LeNet,
    ResNet,
    SmallCNN,
    resnet18,
    resnet20,
)

SIZES = {
    "lenet on CIFAR-10": (LeNet(10), (32, 32, 3), 62_006),
    "lenet on FEMNIST": (LeNet(62), (28, 28, 1), 48_846),
    "two blocks on Fashion-MNIST": (DoubleConvNet(10), (28, 28, 1), 468_458),
    "three blocks on CIFAR-10": (DoubleConvNet(10, (32, 64, 128)), (32, 32, 3), 551_722),
    # Windows of 3x3x3 and 3x3x32 with biases, 64 channels of 14x14 into 128 units, and into 10.
    "small on CIFAR-10": (
        SmallCNN(10),
        (32, 32, 3),
        27 * 32 + 32 + 288 * 64 + 64 + 64 * 14 * 14 * 128 + 128 + 1290,
    ),
    # Convolutions have no bias; a normalisation has two numbers per channel. In order: the stem,
    # three stages with the convolutions and normalisations of their shortcuts, the logits.
    "resnet20": (
        resnet20(10),
        (32, 32, 3),
        27 * 16 + 32 + 6 * (9 * 256 + 32)
        + (9 * 512 + 64) + 5 * (9 * 1024 + 64) + (512 + 64)
        + (9 * 2048 + 128) + 5 * (9 * 4096 + 128) + (2048 + 128)
        + 650,
    ),
    # As torchvision's network with 200 classes.
    "resnet18": (resnet18(200), (64, 64, 3), 11_279_112),
}  # fmt: skip
SMALL = {
    "lenet": (LeNet, (32, 32, 3), {}),
    "double": (DoubleConvNet, (8, 8, 1), {"blocks": (16, 32)}),
    "small": (SmallCNN, (8, 8, 3), {}),
    # Deeper networks repeat these two stages: one without and one with a shortcut's convolution.
    "resnet": (ResNet, (8, 8, 3), {"stages": (16, 32), "blocks": 1}),
    "resnet for larger images": (
        ResNet,
        (32, 32, 3),
        {"stages": (16, 32), "blocks": 1, "stem": "imagenet"},
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters(name: str) -> None:
    model, shape, expected = SIZES[name]
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *shape)))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


@pytest.mark.parametrize("name", ["lenet", "cnn2", "cnn3", "cnn_small", "resnet20", "resnet18"])
def test_the_command_lines_names_take_a_convolution(name: str) -> None:
    model: Any = MODELS[name].make(10, CONVOLUTIONS["lax"])
    assert model.convolution is lax.conv_general_dilated and model.num_classes == 10
    assert model == MODELS[name].make(10, CONVOLUTIONS["lax"]) and hash(model) == hash(
        MODELS[name].make(10, CONVOLUTIONS["lax"])
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SMALL)
def test_logits_and_slopes_are_the_same_with_either_convolution(name: str) -> None:
    """Equal up to float32 rounding through all layers; an image has the same logits alone."""
    make, shape, options = SMALL[name]
    ours, library = (make(10, convolution=CONVOLUTIONS[by], **options) for by in ("patches", "lax"))
    random = np.random.default_rng(0)
    x = random.normal(size=(3, *shape)).astype("float32")

    def weights(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        """Draw He et al.'s normal weights for kernels, and other parameters around one."""
        values = random.normal(size=leaf.shape) * (2 / np.prod(leaf.shape[:-1])) ** 0.5
        return (values if len(leaf.shape) > 1 else 1 + 0.1 * random.normal(size=leaf.shape)).astype(
            leaf.dtype
        )

    params = jax.tree.map(weights, jax.eval_shape(library.init, jax.random.key(0), x))

    def run(model: Any, params: Any, x: jax.Array) -> Any:
        def value(params: Any) -> tuple[jax.Array, jax.Array]:
            logits = model.apply(params, x)
            return jnp.sum(jnp.cos(jnp.arange(30.0)).reshape(3, 10) * logits), logits

        (_, logits), slopes = jax.value_and_grad(value, has_aux=True)(params)
        return logits, slopes

    def run_all(params: Any, x: jax.Array) -> Any:
        return run(ours, params, x), run(library, params, x), ours.apply(params, x[1])

    (logits, slopes), (expected, other), alone = jax.jit(run_all)(params, x)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3 * float(jnp.abs(b).max()) + 1e-5)
    np.testing.assert_allclose(alone, logits[1], rtol=1e-3, atol=1e-4)


def test_first_convolution_starts_uniform_within_one_over_root_fan_in() -> None:
    params = jax.jit(
        lambda key: SmallCNN(10).init(key, jnp.zeros((1, 8, 8, 3)))["params"]["Conv_1"]
    )(jax.random.key(0))
    bound = (9 * 32) ** -0.5
    for values in params.values():
        assert jnp.abs(values).max() <= bound
    assert jnp.abs(params["kernel"]).max() > 0.99 * bound
    assert abs(float(jnp.std(params["kernel"])) - bound / 3**0.5) < 0.01 * bound


def test_dropout_is_of_whole_channels_and_in_training_alone() -> None:
    model = DoubleConvNet(4, (16,))
    x = jax.random.normal(jax.random.key(1), (2, 6, 6, 1))
    params = jax.jit(model.init)(jax.random.key(0), x)
    plain, untrained = jax.jit(
        lambda params, x: (model.apply(params, x), model.apply(params, x, train=False))
    )(params, x)
    np.testing.assert_array_equal(plain, untrained)

    @jax.jit
    def train(key: jax.Array) -> Any:
        return model.apply(params, x, train=True, rngs={"dropout": key}, capture_intermediates=True)

    (trained, kept), (other, _) = (train(jax.random.key(i)) for i in range(2))
    assert not np.allclose(trained, plain) and not np.allclose(trained, other)
    dropped = np.asarray(kept["intermediates"]["Dropout_0"]["__call__"][0]) == 0
    np.testing.assert_array_equal(dropped.all((1, 2)), dropped.any((1, 2)))
    assert dropped.any() and not dropped.all()


def test_normalisation_is_in_groups_of_four_channels() -> None:
    """Statistics are those of one image: another image in the batch changes nothing."""
    model = DoubleConvNet(4, (16,))
    x = jax.random.normal(jax.random.key(1), (2, 6, 6, 1))
    params = jax.jit(model.init)(jax.random.key(0), x)
    run = jax.jit(lambda x: model.apply(params, x, capture_intermediates=True))
    logits, kept = run(x)
    groups = np.asarray(kept["intermediates"]["GroupNorm_0"]["__call__"][0]).reshape(2, 6, 6, 4, 4)
    np.testing.assert_allclose(groups.mean((1, 2, 4)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.var((1, 2, 4)), 1, atol=2e-2)
    other = x.at[1].set(100.0)
    np.testing.assert_allclose(run(other)[0][0], logits[0], rtol=1e-4, atol=1e-5)
