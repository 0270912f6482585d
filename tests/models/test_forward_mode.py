"""Forward-mode derivatives of convolutions, pooling and networks, and Hessians times vectors.

They are compared with the library's convolution, which JAX differentiates, and with differences.
All is computed in 64 bits.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from fedjax_sim.kernels import convolution, winograd
from fedjax_sim.kernels.rounding import quantized_gradient
from fedjax_sim.models import LeNet, ResNet
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.server.compression import luq
from tests.conftest import slow_but
from tests.models.test_convolution import LAST, PAIRS

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)

CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, int]]] = {
    "patches": ("patches", (3, 7, 6, 2), (3, 2, 2, 17), (1, 1)),
    "patches, strides": ("patches", (3, 9, 8, 2), (3, 3, 2, 17), (2, 2)),
    "patches in blocks": ("patches", (3, 7, 6, 2), (3, 3, 2, 3), (1, 1)),
    "pooled": ("pooled", (2, 8, 8, 3), (3, 3, 3, 4), (1, 1)),
    "winograd": ("winograd", (2, 9, 8, 3), (3, 3, 3, 4), (1, 1)),
}


@pytest.fixture(autouse=True)
def wide_numbers() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def normal(*shapes: tuple[int, ...]) -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape)) for shape in shapes]


def derivatives(value: Callable[..., jax.Array], inputs: Any, dots: Any) -> Any:
    """Return the tangent of a function, and the Hessian of a sum of it, thrice, times a vector."""

    def total(*inputs: jax.Array) -> jax.Array:
        y = value(*inputs)
        return jnp.sum(jnp.sin(y) + y)

    def slope(*inputs: jax.Array) -> jax.Array:
        return jax.jvp(total, inputs, dots)[1]

    def slope_in_reverse(*inputs: jax.Array) -> jax.Array:
        slopes = jax.grad(total, (0, 1))(*inputs)
        return sum(jnp.vdot(*pair) for pair in zip(slopes, dots, strict=True))

    return (
        jax.jvp(value, inputs, dots)[1],
        jax.jvp(lambda kernel: value(inputs[0], kernel), inputs[1:], dots[1:])[1],
        jax.jvp(jax.grad(total, (0, 1)), inputs, dots)[1],
        jax.grad(slope, (0, 1))(*inputs),
        jax.grad(slope_in_reverse, (0, 1))(*inputs),
    )


def compare(ours: Any, library: Any, inputs: Any, dots: Any) -> None:
    """Compare all derivatives; those of the library's are taken by reverse mode over reverse."""
    found, expected = jax.jit(
        lambda *given: [derivatives(value, *given) for value in (ours, library)]
    )(inputs, dots)
    jax.tree.map(close, found, expected)
    # The three Hessians are one.
    for hessian in found[2:4]:
        jax.tree.map(close, hessian, expected[4])


WAYS = ("alone", "vmap", "shared kernel", "shared inputs", "scan")
QUICK = [
    *((case, "vmap") for case in CASES),
    ("patches", "shared kernel"),
    ("patches", "scan"),
    ("patches, strides", "alone"),
    ("patches in blocks", "shared inputs"),
    ("pooled", "shared kernel"),
    ("pooled", "shared inputs"),
    ("winograd", "alone"),
    ("winograd", "scan"),
]
"""Every way of two convolutions at least, and each convolution in two ways or more."""


@pytest.mark.few(2)
@pytest.mark.parametrize("pair", slow_but(QUICK, [(case, way) for case in CASES for way in WAYS]))
def test_equals_the_librarys(pair: tuple[str, str]) -> None:
    """Tangents and Hessians, for clients with weights of their own or shared, and in a loop."""
    case, way = pair
    by_name, shape, kernel_shape, strides = CASES[case]
    ways: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
        "alone": (lambda by: by, (), ()),
        "vmap": (jax.vmap, (2,), (2,)),
        "shared kernel": (lambda by: jax.vmap(by, (0, None)), (2,), ()),
        "shared inputs": (lambda by: jax.vmap(by, (None, 0)), (), (2,)),
        "scan": (in_scan, (2,), ()),
    }
    wrap, of_inputs, of_kernel = ways[way]
    x, kernel, of_x, of_k = normal(*((*of_inputs, *shape), (*of_kernel, *kernel_shape)) * 2)
    ours, library = (
        wrap(partial(by, window_strides=strides, padding="SAME", dimension_numbers=LAST))
        for by in PAIRS[by_name]
    )
    compare(ours, library, (x, kernel), (of_x, of_k))


def in_scan(by: Any) -> Any:
    """Add up what each of several inputs gives, in a loop whose state changes the kernel."""

    def run(x: jax.Array, kernel: jax.Array) -> jax.Array:
        def step(kernel: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = by(x, kernel)
            return kernel + 0.1 * jnp.sin(kernel) * jnp.mean(y), y

        return lax.scan(step, kernel, x)[1]

    return run


@pytest.mark.few(1)
@pytest.mark.parametrize(("pair", "module"), [("patches", convolution), ("winograd", winograd)])
def test_a_few_images_at_a_time(pair: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches or tiles of many images are made in blocks in forward mode too."""
    monkeypatch.setattr(module, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    x, kernel, of_x, of_kernel = normal((4, 9, 8, 3), (3, 3, 3, 17), (4, 9, 8, 3), (3, 3, 3, 17))
    ours, library = (
        partial(by, window_strides=(1, 1), padding="SAME", dimension_numbers=LAST)
        for by in PAIRS[pair]
    )
    tangent = jax.jit(lambda *dots: jax.jvp(ours, (x, kernel), dots)[1])
    assert tangent.lower(of_x, of_kernel).as_text().count("stablehlo.while") >= 2
    compare(ours, library, (x, kernel), (of_x, of_kernel))


def test_pooling() -> None:
    """Forward mode takes the tangent of the first of equal values, as reverse mode does."""
    x, dot = normal((2, 8, 8, 3), (2, 8, 8, 3))
    x = jnp.round(x)

    def ours(x: jax.Array) -> jax.Array:
        return convolution.max_pool(x, 3, stride=2, pad=1)

    tangent = jax.jvp(ours, (x,), (dot,))[1]
    _, pull = jax.vjp(ours, x)
    slope = jnp.cos(jnp.arange(tangent.size, dtype=float)).reshape(tangent.shape)
    close(jnp.vdot(pull(slope)[0], dot), jnp.vdot(slope, tangent))
    spread = x + 1e-3 * dot
    pool = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    close(jax.jvp(ours, (spread,), (dot,))[1], jax.jvp(pool, (spread,), (dot,))[1])


def test_pooled_takes_the_first_of_equals() -> None:
    """Both modes agree where a window's outputs are equal."""
    x, kernel, of_x, of_kernel = normal((2, 8, 8, 3), (3, 3, 3, 4), (2, 8, 8, 3), (3, 3, 3, 4))
    x = jnp.ones_like(x).at[:, 3:5].set(2.0)
    by = partial(PAIRS["pooled"][0], window_strides=(1, 1), padding="VALID", dimension_numbers=LAST)
    tangent = jax.jvp(by, (x, kernel), (of_x, of_kernel))[1]
    slope = jnp.cos(jnp.arange(tangent.size, dtype=float)).reshape(tangent.shape)
    slopes = jax.vjp(by, x, kernel)[1](slope)
    found = jnp.vdot(slopes[0], of_x) + jnp.vdot(slopes[1], of_kernel)
    close(found, jnp.vdot(slope, tangent))


NETWORKS: dict[str, Callable[[Any], nn.Module]] = {
    "lenet": lambda by: LeNet(10, convolution=by),
    "resnet": lambda by: ResNet(10, (16,), 1, convolution=by),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["lenet"], NETWORKS))
def test_losses_of_networks(name: str) -> None:
    """Slopes of two clients' losses along a direction, and Hessians times that direction."""
    (x,) = normal((2, 3, 16, 16, 3))
    make = NETWORKS[name]
    params = make(convolution.auto).init(jax.random.key(0), x[0])
    params = jax.tree.map(lambda leaf: leaf.astype(float), params)
    dots = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)

    def losses(by: Any, params: Any) -> jax.Array:
        logits = jax.vmap(make(by).apply, (None, 0))(params, x)
        return -jnp.mean(nn.log_softmax(logits)[..., 3], axis=1)

    def both(by: Any, params: Any) -> Any:
        def total(params: Any) -> jax.Array:
            return losses(by, params).sum()

        slopes = jax.jvp(partial(losses, by), (params,), (dots,))[1]
        return slopes, jax.jvp(jax.grad(total), (params,), (dots,))[1]

    found, expected = jax.jit(
        lambda params: [both(by, params) for by in (convolution.auto, lax.conv_general_dilated)]
    )(params)
    jax.tree.map(partial(close, rtol=1e-7), found, expected)

    def moved(step: float) -> jax.Array:
        return jax.jit(partial(losses, convolution.auto))(
            jax.tree.map(lambda leaf, dot: leaf + step * dot, params, dots)
        )

    # Pieces of ReLU and pooling rarely change over so short a step.
    np.testing.assert_allclose(found[0], (moved(1e-7) - moved(-1e-7)) / 2e-7, rtol=1e-5)


def test_few_bits() -> None:
    """Forward mode is that of the identity, under vmap too, and in a model with few bits."""
    x, dot = normal((3, 9), (3, 9))
    keys = jax.random.split(jax.random.key(1), 3)
    by = jax.vmap(lambda x, key: quantized_gradient(x, key, partial(luq, bits=3)))
    np.testing.assert_array_equal(jax.jvp(lambda x: by(x, keys), (x,), (dot,))[1], dot)

    images, of_images = normal((2, 16, 16, 3), (2, 16, 16, 3))
    networks = [LowBit(LeNet(10), gradients=bits) for bits in (None, 4)]
    params = jax.jit(networks[0].init)(jax.random.key(0), images)

    def logits(low: LowBit, x: jax.Array) -> jax.Array:
        return low.apply(params, x, train=True, rngs={"quantize": jax.random.key(2)})

    tangents = [
        jax.jit(lambda dot, low=low: jax.jvp(partial(logits, low), (images,), (dot,))[1])(of_images)
        for low in networks
    ]
    np.testing.assert_allclose(*tangents, rtol=1e-12)
