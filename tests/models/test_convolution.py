"""Convolution by patches and pooling against the library's.

Values and gradients are compared over shapes, strides and paddings, inside loops and in batches.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import fedjax_sim
from fedjax_sim.core.targets import tracing_for
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.program import opened
from fedjax_sim.engine.shares import listed
from fedjax_sim.kernels import convolution
from fedjax_sim.models import CONVOLUTIONS, SmallCNN, resnet18
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classification

LAST = ("NHWC", "HWIO", "NHWC")


def library_pooled(*args: Any, **options: Any) -> jax.Array:
    y = lax.conv_general_dilated(*args, **options)
    return nn.max_pool(y, (2, 2), (2, 2))


PAIRS = {
    "patches": (convolution.patches, lax.conv_general_dilated),
    "winograd": (convolution.winograd, lax.conv_general_dilated),
    "pooled": (convolution.pooled(convolution.patches), library_pooled),
}


def compare(
    x: jax.Array,
    kernel: jax.Array,
    strides: Any,
    padding: Any,
    *,
    tolerance: float = 1e-5,
    pair: str = "patches",
    **options: Any,
) -> None:
    """Compare values, and gradients of a weighted sum of them, relative to the largest."""
    options = {"dimension_numbers": LAST, **options}

    def run(by: Any, x: jax.Array, kernel: jax.Array) -> Any:
        def value(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = by(x, kernel, strides, padding, **options)
            weight = jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape)
            return jnp.sum(y.astype("float32") * weight), y

        (_, y), slopes = jax.value_and_grad(value, (0, 1), has_aux=True)(x, kernel)
        return y, *slopes

    # Compiling one program per shape takes a tenth of the time of its operations one by one.
    both = jax.jit(lambda *given: [run(by, *given) for by in PAIRS[pair]])(x, kernel)
    for ours, expected in zip(*both, strict=True):
        assert ours.dtype == expected.dtype
        expected = np.asarray(expected, np.float32)
        np.testing.assert_allclose(
            np.asarray(ours, np.float32),
            expected,
            rtol=0,
            atol=tolerance * (np.abs(expected).max() + 1e-3),
        )


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    most_dilated: int = 2,
    features: tuple[int, ...] = (1, 3, 15, 16, 20),
    beyond: int = 0,
) -> tuple[Any, ...]:
    """Draw shapes of input and kernel, strides, padding and dilation.

    Args:
      draw: Hypothesis's function.
      most_dilated: Largest dilation.
      features: Numbers of output channels to choose from.
      beyond: Least number of strides by which an input is larger than its window.
    """
    window = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, most_dilated)), draw(st.integers(1, most_dilated)))
    pairs = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = draw(st.one_of(st.sampled_from(["SAME", "VALID"]), st.tuples(pairs, pairs)))
    least = [
        (size - 1) * step + 1 + beyond * s
        for size, step, s in zip(window, dilation, strides, strict=True)
    ]
    space = tuple(draw(st.integers(low, 11)) for low in least)
    batch, channels, num = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(features)),
    )
    return (batch, *space, channels), (*window, channels, num), strides, padding, dilation


@pytest.mark.few(4)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("features", "groups"), [(6, 1), (32, 1), (6, 2), (0, 1)])
def test_no_image_and_no_channel(pair: str, features: int, groups: int) -> None:
    """An empty batch has empty outputs, and its derivative of the kernel is 0."""
    for batch, channels in ((0, 4), (2, 0)):
        x = jnp.ones((batch, 8, 8, channels))
        kernel = jnp.ones((3, 3, channels // groups, features))
        options = {"dimension_numbers": LAST, "feature_group_count": groups}
        for convolve in PAIRS[pair]:
            of_both = partial(convolve, window_strides=(1, 1), padding="SAME", **options)
            y, pull_back = jax.vjp(of_both, x, kernel)
            assert y.shape == (batch, *((4, 4) if pair == "pooled" else (8, 8)), features)
            assert not y.any()
            of_x, of_kernel = pull_back(jnp.ones_like(y))
            assert of_x.shape == x.shape
            assert of_kernel.shape == kernel.shape
            assert not of_kernel.any()


@settings(max_examples=12)
@given(case=cases())
def test_equals_the_librarys_convolution(case: tuple[Any, ...]) -> None:
    """Equal up to float32 rounding: sums of at most 100 products are added in another order.

    There are few and many output channels, and square and other windows.
    """
    shape, kernel_shape, strides, padding, dilation = case
    compare(*normal(shape, kernel_shape), strides, padding, rhs_dilation=dilation)


@pytest.mark.parametrize(("channels", "features", "groups"), [(3, 3, 1), (3, 16, 1), (4, 4, 4)])
def test_negative_padding_cuts_the_image(channels: int, features: int, groups: int) -> None:
    x, kernel = normal((2, 8, 7, channels), (3, 2, channels // groups, features))
    options = {"feature_group_count": groups}
    compare(x, kernel, (1, 2), ((-1, 2), (1, -2)), **options)


@pytest.mark.slow
@settings(max_examples=10)
@given(case=cases(most_dilated=1, features=(1, 3, 16), beyond=1))
def test_pooled_equals_the_librarys_convolution_and_pooling(case: tuple[Any, ...]) -> None:
    """Windows may leave rows and columns over; normal draws have no ties."""
    shape, kernel_shape, strides, padding, _ = case
    compare(*normal(shape, kernel_shape), strides, padding, pair="pooled")


@pytest.mark.parametrize(
    "case", [((2, 6, 6, 2), (2, 2, 2, 20), (1, 1)), ((2, 8, 8, 2), (2, 2, 2, 3), (2, 2))]
)
def test_pooled_where_it_is_not_one_product(case: tuple[Any, ...]) -> None:
    """With many channels or dilated windows, convolution and pooling are done separately."""
    shape, kernel_shape, dilation = case
    compare(*normal(shape, kernel_shape), (1, 1), "SAME", rhs_dilation=dilation, pair="pooled")


def test_pooled_gives_the_gradient_to_the_first_of_equals_and_passes_nan_on() -> None:
    """In an image without contrast a window's outputs are equal; the first gets the gradient."""
    x, kernel = normal((2, 8, 8, 3), (3, 3, 3, 6))
    flat = jnp.ones_like(x).at[:, 3:5].set(2.0)

    def slopes(by: Any, x: jax.Array) -> Any:
        return jax.grad(
            lambda x, kernel: jnp.sum(by(x, kernel, (1, 1), "VALID", dimension_numbers=LAST) ** 3),
            (0, 1),
        )(x, kernel)

    for ours, expected in zip(
        *jax.jit(lambda x: [slopes(by, x) for by in PAIRS["pooled"]])(flat), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    lost = convolution.pooled(convolution.patches)(
        x.at[0, 4, 4, 1].set(jnp.nan), kernel, (1, 1), "VALID", dimension_numbers=LAST
    )
    np.testing.assert_array_equal(
        jnp.isnan(lost[0, :, :, 0]),
        [[False, False, False], [False, True, True], [False, True, True]],
    )
    assert not jnp.isnan(lost[1]).any()


@pytest.mark.parametrize("pair", ["patches", "pooled"])
@pytest.mark.parametrize("features", [6, 32])
def test_bfloat16(features: int, pair: str) -> None:
    """Equal up to the rounding of bfloat16, 2^-8 of each number."""
    x, kernel = normal((2, 9, 9, 3), (3, 3, 3, features))
    compare(
        x.astype("bfloat16"), kernel.astype("bfloat16"), (2, 2), "SAME", tolerance=2e-2, pair=pair
    )


def test_one_axis_and_three() -> None:
    compare(*normal((2, 12, 3), (4, 3, 5)), (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    compare(
        *normal((2, 5, 6, 4, 2), (3, 2, 2, 2, 17)),
        (1, 2, 1),
        "VALID",
        dimension_numbers=("NDHWC", "DHWIO", "NDHWC"),
    )


def normal(*shapes: tuple[int, ...]) -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), "float32") for shape in shapes]


@pytest.mark.parametrize("pair", ["patches", "pooled", "winograd"])
@pytest.mark.parametrize("features", [6, 32])
def test_weights_per_client_inside_a_loop(features: int, pair: str) -> None:
    """Three clients take steps in a `fori_loop` under vmap.

    Each reaches what it reaches alone, outside any loop, with the library's convolution.
    """
    x, kernels = normal((3, 2, 8, 8, 3), (3, 3, 3, 3, features))
    ours, library = PAIRS[pair]

    def step(by: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
        slope = jax.grad(
            lambda kernel: jnp.mean(
                jnp.square(by(x, kernel, (1, 1), "SAME", dimension_numbers=LAST))
            )
        )(kernel)
        return kernel - 0.1 * slope

    def walk(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda _, kernel: step(ours, x, kernel), kernel)

    alone = jax.jit(partial(step, library))
    for ours, x_alone, expected in zip(
        jax.jit(jax.vmap(walk))(x, kernels), x, kernels, strict=True
    ):
        for _ in range(3):
            expected = alone(x_alone, expected)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


GROUPED: dict[str, tuple[Any, ...]] = {
    "each channel": ((2, 9, 8, 6), (3, 3, 1, 6), (1, 1), "SAME", 6),
    "each channel twice, some strides": ((2, 9, 8, 3), (2, 5, 1, 6), (2, 3), "VALID", 3),
    "each channel, dilated": ((2, 11, 9, 4), (3, 2, 1, 4), (2, 1), ((1, 0), (2, 2)), 4),
    "groups of two": ((2, 9, 8, 4), (3, 3, 2, 6), (1, 1), "SAME", 2),
    "groups to many channels, dilated": ((2, 9, 8, 6), (2, 3, 2, 48), (2, 1), "SAME", 3),
}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("case", GROUPED)
def test_groups_equal_the_librarys(case: str, platform: str) -> None:
    """Values and gradients, as they are written for a CPU and for an accelerator."""
    shape, kernel_shape, strides, padding, groups = GROUPED[case]
    options = {"feature_group_count": groups, "rhs_dilation": (1 + ("dilated" in case), 1)}
    x, kernel = normal(shape, kernel_shape)
    with tracing_for(platform):
        compare(x, kernel, strides, padding, **options)
        if case == "each channel":
            narrow = x.astype("bfloat16"), kernel.astype("bfloat16")
            compare(*narrow, strides, padding, tolerance=2e-2, **options)
            # In forward mode, and with different weights of lanes.
            convolve = partial(
                convolution.auto,
                window_strides=strides,
                padding=padding,
                dimension_numbers=LAST,
                feature_group_count=groups,
            )
            found, slope = jax.jvp(convolve, (x, kernel), (x, kernel))
            np.testing.assert_allclose(slope, 2 * found, rtol=1e-5, atol=1e-5)
            both = jax.vmap(convolve, (None, 0))(x, jnp.stack([kernel, -kernel]))
            np.testing.assert_allclose(both, jnp.stack([found, -found]), rtol=1e-5, atol=1e-5)


def test_groups_of_one_axis_and_pooled() -> None:
    of_one_axis = {"dimension_numbers": ("NWC", "WIO", "NWC"), "feature_group_count": 3}
    compare(*normal((2, 12, 3), (4, 1, 3)), (2,), "SAME", **of_one_axis)
    for pair in ("pooled", "winograd"):
        x, kernel = normal((2, 8, 8, 3), (3, 3, 1, 3))
        compare(x, kernel, (1, 1), "SAME", pair=pair, feature_group_count=3)


class Separable(nn.Module):
    """A depthwise convolution, one of each point, and a dense layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        own = {"feature_group_count": 3, "conv_general_dilated": convolution.auto}
        x = nn.relu(nn.Conv(3, (3, 3), **own)(x))
        x = nn.relu(nn.Conv(8, (1, 1), conv_general_dilated=convolution.auto)(x))
        return nn.Dense(10)(x.mean((1, 2)))


@pytest.mark.few(1)
@pytest.mark.parametrize("network", [SmallCNN(10), Separable()], ids=["small", "separable"])
def test_lanes_of_different_rates_are_lowered_for_a_gpu(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where these are batched under a mesh, the library's convolution cannot be."""
    monkeypatch.setattr(opened, "tracing_for", lambda _: tracing_for("gpu"))
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 8, 8, 3), "uint8")
    labels = random.integers(0, 10, 60, "int32")
    data = Dataset(images[:50], labels[:50], images[50:], labels[50:], 10, "random")
    clients = iid(data.train_labels, num_clients=5, seed=0)
    system = fedjax_sim.SYSTEMS["fedavg"]
    few = {"num_clients": 5, "num_selected": 2, "local_steps": 2, "batch_size": 2}
    (program,) = listed(
        system,
        make_classification(network, data, clients),
        system.paper(**few),
        devices=jax.devices("cpu")[:1],
        seeds=1,
        settings={"lr": [0.1, 0.2]},
        budget=fedjax_sim.Ticks(2),
        num_evals=1,
    ).lower()
    assert "stablehlo.convolution" not in program.as_text()


def test_what_patches_do_not_do() -> None:
    """`patches` refuses what it does not support; `auto` leaves it to the library."""
    x, kernel = normal((2, 6, 6, 4), (3, 3, 4, 4))
    grouped = {"dimension_numbers": LAST, "batch_group_count": 2}
    with pytest.raises(ValueError, match="groups"):
        convolution.patches(x, kernel, (1, 1), "SAME", **grouped)
    np.testing.assert_array_equal(
        convolution.auto(x, kernel, (1, 1), "SAME", **grouped),
        lax.conv_general_dilated(x, kernel, (1, 1), "SAME", **grouped),
    )
    with pytest.raises(ValueError, match="groups"):
        convolution.patches(x, kernel, (1, 1), "SAME", dimension_numbers=LAST, lhs_dilation=(2, 2))
    with pytest.raises(ValueError, match="channels last"):
        convolution.patches(x, kernel, (1, 1), "SAME")
    with pytest.raises(ValueError, match="does not fit"):
        convolution.patches(x, normal((7, 3, 4, 4))[0], (1, 1), "VALID", dimension_numbers=LAST)
    wide = {"dimension_numbers": LAST, "preferred_element_type": jnp.float32}
    narrow = x.astype("bfloat16"), kernel.astype("bfloat16"), (1, 1), "SAME"
    with pytest.raises(ValueError, match="another type of outputs"):
        convolution.patches(*narrow, **wide)
    for convolve in (convolution.auto, convolution.pooled(convolution.auto)):
        assert convolve(*narrow, **wide).dtype == "float32"
    three = {"dimension_numbers": LAST, "feature_group_count": 3}
    with pytest.raises(ValueError, match=r"from 1 to 4 channels .* of 4 channels in 3 groups"):
        convolution.patches(x, normal((3, 3, 1, 4))[0], (1, 1), "SAME", **three)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_choice_of_auto(platform: str) -> None:
    """`auto` leaves no convolution in the program, forward or backward; "lax" does."""
    x, kernel = normal((1, 6, 6, 4), (3, 3, 4, 4))

    def text(name: str) -> str:
        def value(kernel: jax.Array) -> jax.Array:
            return jnp.sum(
                CONVOLUTIONS[name](x, kernel, (1, 1), "SAME", dimension_numbers=LAST) ** 2
            )

        with tracing_for(platform):
            return jax.jit(jax.grad(value)).lower(kernel).as_text()

    assert "stablehlo.convolution" not in text("auto")
    assert "stablehlo.convolution" not in text("patches")
    assert "stablehlo.convolution" in text("lax")


@pytest.mark.parametrize("features", [8, 32])
def test_gradients_keep_no_patches(features: int) -> None:
    """The gradient keeps only the input and the kernel, not the nine times larger patches."""
    x, kernel = normal((2, 32, 32, 4), (3, 3, 4, features))
    _, pull = jax.vjp(
        lambda x, kernel: convolution.patches(x, kernel, (1, 1), "SAME", dimension_numbers=LAST),
        x,
        kernel,
    )
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size"))
    assert x.size < kept < 2 * x.size


@pytest.mark.parametrize(
    ("window", "stride", "pad", "shape"),
    [
        (2, None, 0, (3, 8, 6, 2)),
        (2, None, 0, (3, 7, 5, 2)),
        (3, 2, 1, (2, 8, 9, 3)),
        (3, 1, 0, (5, 6, 1)),
        (3, None, 0, (2, 2, 9, 9, 1)),
    ],
)
def test_pooling_equals_the_librarys(
    window: int, stride: int | None, pad: int, shape: tuple[int, ...]
) -> None:
    """Values and gradients are equal; normal draws have no ties."""
    (x,) = normal(shape)
    steps = (stride or window,) * 2
    edges = ((0, 0),) * (len(shape) - 3) + ((pad, pad), (pad, pad), (0, 0))

    def library(x: jax.Array) -> jax.Array:
        ones = (1,) * (x.ndim - 3)
        return lax.reduce_window(
            x, -jnp.inf, lax.max, (*ones, window, window, 1), (*ones, *steps, 1), edges
        )

    def slopes(pool: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = pool(x)
        weight = jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape)
        return y, jax.grad(lambda x: jnp.sum(pool(x) * weight))(x)

    our_pool = partial(convolution.max_pool, window=window, stride=stride, pad=pad)
    ours, expected = jax.jit(lambda x: (slopes(our_pool, x), slopes(library, x)))(x)
    np.testing.assert_array_equal(ours[0], expected[0])
    np.testing.assert_allclose(ours[1], expected[1], rtol=1e-5, atol=1e-6)


def test_pooling_passes_nan_on_and_gives_the_gradient_to_the_first_of_equals() -> None:
    x = jnp.asarray([[1.0, 1.0, 2.0, 0.0], [1.0, 0.0, 0.0, 2.0]])[..., None]
    slope = jax.jit(jax.grad(lambda x: convolution.max_pool(x).sum()))(x)
    np.testing.assert_array_equal(slope[..., 0], [[1, 0, 1, 0], [0, 0, 0, 0]])
    # The first column by column.
    x = jnp.asarray([[0.0, 1.0], [1.0, 0.0]])[..., None]
    slope = jax.jit(jax.grad(lambda x: convolution.max_pool(x).sum()))(x)
    np.testing.assert_array_equal(slope[..., 0], [[0, 0], [1, 0]])
    with_nan = np.where(np.eye(4), np.nan, 0.0).astype("float32").reshape(4, 2, 2, 1)
    pooled = np.asarray(jax.jit(convolution.max_pool)(with_nan))
    assert pooled.shape == (4, 1, 1, 1) and np.isnan(pooled).all()


@pytest.mark.slow
def test_memory_of_resnet18_is_bounded() -> None:
    """A local step on 32 images of 64x64 needs about the memory of the library's convolution.

    Patches are made for a few images at a time. Winograd's tiles are more than twice as large as
    an image, and not kept.
    """
    images, labels = jnp.zeros((32, 64, 64, 3)), jnp.zeros(32, int)

    def held(by: Any) -> int:
        network = resnet18(200, convolution=by)
        params = jax.eval_shape(network.init, jax.random.key(0), images)

        def loss(params: Any, images: jax.Array) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(
                network.apply(params, images), labels
            ).mean()

        return (
            jax.jit(jax.grad(loss))
            .lower(params, images)
            .compile()
            .memory_analysis()
            .temp_size_in_bytes
        )

    library = held(lax.conv_general_dilated)
    assert held(convolution.auto) < 1.5 * library
    assert held(convolution.patches) < min(1.2 * library, 130 * 2**20)


@pytest.mark.few(1)
@pytest.mark.parametrize(("num", "dtype"), [(6, "float32"), (7, "float32"), (6, "bfloat16")])
def test_few_images_at_a_time_make_no_difference(
    num: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(num)
    shapes = ((2, num, 9, 8, 3), (2, 3, 3, 3, 20), (2, num, 9, 8, 20))
    # Two clients with different weights.
    given = [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]

    def all_of(x: Any, kernel: Any, weight: Any) -> Any:
        by = partial(
            convolution.patches,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return by(x, kernel), jax.grad(
            lambda x, kernel: jnp.sum(by(x, kernel) * weight), argnums=(0, 1)
        )(x, kernel)

    all_of = jax.vmap(all_of)
    whole = jax.jit(all_of)(*given)
    each = 9 * 8 * 27 * given[0].dtype.itemsize
    # Three images fit; of a prime number of images one at a time is taken.
    monkeypatch.setattr(convolution, "BLOCK_BYTES", 3 * each + each // 2)
    monkeypatch.setattr(convolution, "SPLIT_ABOVE", 0)
    jax.clear_caches()
    program = jax.make_jaxpr(all_of)(*given)
    lengths = [
        equation.params["length"] for equation in program.eqns if equation.primitive.name == "scan"
    ]
    assert lengths and set(lengths) == {2 if num == 6 else 7}
    rounding = {"rtol": 2e-2, "atol": 2e-1} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
    for ours, expected in zip(
        jax.tree.leaves(jax.jit(all_of)(*given)), jax.tree.leaves(whole), strict=True
    ):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours.astype("float32"), expected.astype("float32"), **rounding)


def test_a_users_network_takes_it_by_one_argument() -> None:
    class Network(nn.Module):
        convolution: Any

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(nn.Conv(20, (3, 3), strides=2, conv_general_dilated=self.convolution)(x))
            return nn.Conv(5, (1, 1), padding="VALID", conv_general_dilated=self.convolution)(x)

    (x,) = normal((2, 9, 9, 3))
    params = jax.jit(Network(None).init)(jax.random.key(0), x)
    assert jax.tree.structure(
        jax.eval_shape(Network(convolution.auto).init, jax.random.key(0), x)
    ) == jax.tree.structure(params)
    ours, library = jax.jit(
        lambda params, x: (
            Network(convolution.auto).apply(params, x),
            Network(None).apply(params, x),
        )
    )(params, x)
    np.testing.assert_allclose(ours, library, rtol=1e-4, atol=1e-5)
