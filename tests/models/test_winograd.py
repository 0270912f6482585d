"""Winograd's convolution against the library's, and where it is chosen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fedjax_sim.kernels import convolution, winograd
from fedjax_sim.models import CONVOLUTIONS
from tests.models.test_convolution import LAST, compare, normal


def test_matrices_are_exact() -> None:
    """Four outputs of a window of three along one axis, with whole numbers: no rounding at all."""
    random = np.random.default_rng(0)
    tile, kernel = random.integers(-9, 10, 6), random.integers(-9, 10, 3)
    of_kernel = np.rint(24 * winograd._KERNEL).astype(int)
    np.testing.assert_allclose(24 * winograd._KERNEL, of_kernel, rtol=0, atol=1e-14)
    outputs = winograd._OUTPUTS @ ((of_kernel @ kernel) * (winograd._INPUTS @ tile))
    expected = [24 * tile[i : i + 3] @ kernel for i in range(4)]
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    images=st.tuples(st.integers(1, 3), st.integers(1, 11), st.integers(1, 11), st.integers(1, 20)),
    features=st.integers(1, 20),
    padding=st.one_of(
        st.just("SAME"), st.tuples(*[st.tuples(st.integers(1, 3), st.integers(1, 3))] * 2)
    ),
)
def test_equals_the_librarys_convolution(
    images: tuple[int, ...], features: int, padding: Any
) -> None:
    """Values and gradients, for sizes that tiles fill and others; sums have 180 products."""
    x, kernel = normal(images, (3, 3, images[-1], features))
    compare(x, kernel, (1, 1), padding, tolerance=2e-5, pair="winograd")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kernel_shape", "strides", "dilation", "dtype"),
    [
        ((3, 3, 4, 5), (2, 1), (1, 1), "float32"),
        ((3, 3, 4, 5), (1, 1), (1, 2), "float32"),
        ((3, 2, 4, 5), (1, 1), (1, 1), "float32"),
        ((3, 3, 4, 5), (1, 1), (1, 1), "bfloat16"),
    ],
)
def test_other_convolutions_go_by_patches(
    kernel_shape: tuple[int, ...], strides: Any, dilation: Any, dtype: str
) -> None:
    x, kernel = (each.astype(dtype) for each in normal((2, 9, 8, 4), kernel_shape))
    options = {"dimension_numbers": LAST, "rhs_dilation": dilation}
    np.testing.assert_array_equal(
        convolution.winograd(x, kernel, strides, "SAME", **options),
        convolution.patches(x, kernel, strides, "SAME", **options),
    )


def test_a_window_must_fit() -> None:
    x, kernel = normal((1, 2, 6, 4), (3, 3, 4, 4))
    with pytest.raises(ValueError, match="does not fit"):
        convolution.winograd(x, kernel, (1, 1), "VALID", dimension_numbers=LAST)


def test_the_gradient_keeps_no_tiles() -> None:
    """Only the input and the kernel are kept, not the tiles, which are more than twice as large."""
    x, kernel = normal((2, 32, 32, 16), (3, 3, 16, 16))
    _, pull = jax.vjp(
        lambda x, kernel: convolution.winograd(x, kernel, (1, 1), "SAME", dimension_numbers=LAST),
        x,
        kernel,
    )
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size"))
    assert x.size < kept < 1.4 * x.size


def test_a_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of many images are made in blocks, with the same results and bounded memory."""
    x, kernel, weight = normal((6, 9, 8, 3), (3, 3, 3, 5), (6, 9, 8, 5))

    def both(x: jax.Array, kernel: jax.Array) -> Any:
        def value(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = convolution.winograd(x, kernel, (1, 1), "SAME", dimension_numbers=LAST)
            return jnp.sum(y * weight), y

        return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))(x, kernel)

    whole = both(x, kernel)
    monkeypatch.setattr(winograd, "SPLIT_ABOVE", 0)
    monkeypatch.setattr(winograd, "BLOCK_BYTES", 3 * 36 * 6 * 8 * 4)
    assert "length=2" in str(jax.make_jaxpr(both)(x, kernel))
    for ours, expected in zip(
        jax.tree.leaves(both(x, kernel)), jax.tree.leaves(whole), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_memory_of_an_evaluation_is_bounded() -> None:
    """500 images of 64x64 with 64 channels take 524 MB, and all their tiles would take 2.4 GB."""
    x, kernel = (
        jax.ShapeDtypeStruct(shape, "float32") for shape in ((500, 64, 64, 64), (3, 3, 64, 64))
    )

    def forward(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return convolution.auto(x, kernel, (1, 1), "SAME", dimension_numbers=LAST)

    compiled = jax.jit(forward).lower(x, kernel).compile()
    # Besides tiles of a few images, the padded images and the outputs are there.
    assert compiled.memory_analysis().temp_size_in_bytes < 1.3e9


def test_whole_numbers_go_by_patches() -> None:
    x, kernel = jnp.ones((1, 8, 8, 16), "int32"), jnp.ones((3, 3, 16, 16), "int32")
    y = convolution.auto(x, kernel, (1, 1), "VALID", dimension_numbers=LAST)
    np.testing.assert_array_equal(y, np.full((1, 6, 6, 16), 9 * 16))


@pytest.mark.parametrize(
    ("images", "channels", "features", "dtype", "is_taken"),
    [
        ((2, 8, 8), 16, 16, "float32", True),
        ((2, 8, 8), 15, 16, "float32", False),
        ((2, 8, 8), 16, 15, "float32", False),
        ((2, 8, 8), 16, 16, "bfloat16", False),
        ((2, 4, 4), 16, 16, "float32", True),
        ((2, 2, 2), 16, 16, "float32", False),
        ((2, 5, 5), 16, 16, "float32", False),
    ],
)
def test_where_auto_takes_it(
    images: tuple[int, ...], channels: int, features: int, dtype: str, is_taken: bool
) -> None:
    """With many channels, in full precision, and where tiles are well filled."""
    x, kernel = jnp.ones((*images, channels), dtype), jnp.ones((3, 3, channels, features), dtype)

    def program(name: str) -> str:
        by = CONVOLUTIONS[name]
        return str(
            jax.make_jaxpr(lambda x, k: by(x, k, (1, 1), "SAME", dimension_numbers=LAST))(x, kernel)
        )

    assert program("auto") == program("winograd" if is_taken else "patches")
    assert (program("auto") == program("patches")) != is_taken


def test_products_have_the_precision_that_is_asked_for() -> None:
    """Tiles are transformed in full precision even where products may be rounded."""
    x, kernel = normal((1, 6, 6, 4), (3, 3, 4, 4))
    text = str(
        jax.make_jaxpr(
            jax.grad(
                lambda x: convolution.winograd(
                    x,
                    kernel,
                    (1, 1),
                    "SAME",
                    dimension_numbers=LAST,
                    precision=lax.Precision.DEFAULT,
                ).sum()
            )
        )(x)
    )
    assert text.count("Precision.HIGHEST") >= 2 and "Precision.DEFAULT" in text
