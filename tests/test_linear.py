"""Linear functions with a given transpose: both modes, under every transformation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.targets import is_for_cpu, tracing_for
from fedjax_sim.kernels.linear import linear_with_transpose

Product = Callable[[jax.Array, jax.Array], jax.Array]


def product(factor: float) -> Product:
    """Return a product whose reverse-mode derivatives are multiplied by a factor."""

    @jax.custom_jvp
    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    def forward(inputs: Any, tangents: Any) -> jax.Array:
        return tangents[0] * inputs[1] + inputs[0] * tangents[1]

    def backward(inputs: Any, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
        return factor * slope * inputs[1], factor * slope * inputs[0]

    @multiply.defjvp
    def _(inputs: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        out = multiply(*inputs)
        return out, linear_with_transpose(forward, backward, inputs, tangents, like=out)

    return multiply


X, Y, DX, DY = (
    jnp.asarray(each, "float32") for each in np.random.default_rng(0).normal(size=(4, 3))
)


def in_scan(multiply: Product) -> Product:
    def scanned(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, each: (carry, multiply(carry, each)), x, y[None])[1][0]

    return scanned


def in_map(multiply: Product) -> Product:
    return lambda x, y: jax.lax.map(lambda each: jax.jit(multiply)(*each), (x, y))


WAYS: dict[str, Callable[[Product], Product]] = {
    "plain": lambda multiply: multiply,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "vmap of jit": lambda multiply: jax.vmap(jax.jit(multiply)),
    "jit of vmap": lambda multiply: jax.jit(jax.vmap(multiply)),
    "scan": in_scan,
    "jit of scan": lambda multiply: jax.jit(in_scan(multiply)),
    "map of jit": in_map,
    "checkpoint": jax.checkpoint,
    "jit of checkpoint of scan": lambda multiply: jax.jit(jax.checkpoint(in_scan(multiply))),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("way", WAYS)
def test_both_modes(way: str) -> None:
    """Reverse mode is made to count twice here, so that the modes can be told apart."""
    by = WAYS[way](product(2))
    tangent, slopes = DX * Y + X * DY, (2 * DX * Y, 2 * DX * X)
    close = partial(np.testing.assert_allclose, rtol=1e-6)
    out, found = jax.jvp(by, (X, Y), (DX, DY))
    close(out, X * Y)
    close(found, tangent)
    close(jax.jit(lambda *dots: jax.jvp(by, (X, Y), dots)[1])(DX, DY), tangent)
    close(jax.linearize(by, X, Y)[1](DX, DY), tangent)
    for pull in (jax.vjp(by, X, Y)[1], jax.jit(lambda slope: jax.vjp(by, X, Y)[1](slope))):
        for ours, expected in zip(pull(DX), slopes, strict=True):
            close(ours, expected)
    close(jax.jacrev(by)(X, Y), np.diag(2 * Y))
    close(jax.jacfwd(by)(X, Y), np.diag(Y))
    # With one input constant, the other's derivatives stay what they are.
    close(jax.jvp(lambda y: by(X, y), (Y,), (DY,))[1], X * DY)
    close(jax.grad(lambda y: (by(X, y) * DX).sum())(Y), slopes[1])


@pytest.mark.few(4)
@pytest.mark.parametrize("way", WAYS)
def test_second_derivatives(way: str) -> None:
    """Each mode over each gives the Hessian of the sum of (x y)^2, times a vector."""
    by = WAYS[way](product(1))

    def value(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(by(x, y) ** 2)

    def slope(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.jvp(value, (x, y), (DX, DY))[1]

    def slope_in_reverse(x: jax.Array, y: jax.Array) -> jax.Array:
        of_x, of_y = jax.grad(value, (0, 1))(x, y)
        return of_x @ DX + of_y @ DY

    by_x = 2 * Y**2 * DX + 4 * X * Y * DY
    by_y = 2 * X**2 * DY + 4 * X * Y * DX
    close = partial(np.testing.assert_allclose, rtol=1e-4)
    for found in (
        jax.jvp(jax.grad(value, (0, 1)), (X, Y), (DX, DY))[1],
        jax.grad(slope, (0, 1))(X, Y),
        jax.grad(slope_in_reverse, (0, 1))(X, Y),
    ):
        close(found[0], by_x)
        close(found[1], by_y)
    close(jax.jvp(slope, (X, Y), (DX, DY))[1], by_x @ DX + by_y @ DY)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (1, 0), (0, 1), (1, 1)])
def test_axes_of_vmap(axes: tuple[int | None, int | None]) -> None:
    """An input that is shared gets the sum of its derivatives."""
    random = np.random.default_rng(1)
    inputs, dots = (
        [
            jnp.asarray(random.normal(size=(3,) if axis is None else (4, 3)), "float32")
            for axis in axes
        ]
        for _ in range(2)
    )
    turned = [x.T if axis == 1 else x for x, axis in zip(inputs, axes, strict=True)]
    turned_dots = [x.T if axis == 1 else x for x, axis in zip(dots, axes, strict=True)]
    by = jax.vmap(product(2), axes)
    out, found = jax.jvp(by, turned, turned_dots)

    def plain(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x, (4, 3)) * jnp.broadcast_to(y, (4, 3))

    expected, expected_dots = jax.jvp(plain, inputs, dots)
    np.testing.assert_allclose(out, expected)
    np.testing.assert_allclose(found, expected_dots, rtol=1e-5, atol=1e-6)
    expected = jax.vjp(plain, *inputs)[1](2 * found)
    for ours, theirs, axis in zip(jax.vjp(by, *turned)[1](found), expected, axes, strict=True):
        np.testing.assert_allclose(ours.T if axis == 1 else ours, theirs, rtol=1e-5, atol=1e-6)


def test_trees_keys_and_residuals_without_derivative() -> None:
    """Residuals may hold keys and whole numbers, in any tree, also under `vmap`."""

    @jax.custom_jvp
    def noisy(tree: Any, key: jax.Array, count: jax.Array) -> Any:
        return {"sum": tree["a"] + tree["b"][0]}

    @noisy.defjvp
    def _(inputs: Any, tangents: Any) -> Any:
        def add(_: Any, dots: Any) -> Any:
            return {"sum": dots["a"] + dots["b"][0]}

        def spread(kept: Any, slope: Any) -> Any:
            (key, count) = kept
            noise = count * jax.random.normal(key, slope["sum"].shape)
            return {"a": slope["sum"] + noise, "b": (slope["sum"],)}

        out = noisy(*inputs)
        return out, linear_with_transpose(add, spread, inputs[1:], tangents[0], like=out)

    keys, tree = jax.random.split(jax.random.key(0), 3), {"a": X, "b": (Y,)}
    noise = jax.vmap(lambda key: jax.random.normal(key))(keys)
    np.testing.assert_allclose(
        jax.jvp(
            lambda tree: jax.vmap(noisy, (0, 0, None))(tree, keys, 2)["sum"],
            (tree,),
            ({"a": DX, "b": (DY,)},),
        )[1],
        DX + DY,
    )
    slopes = jax.grad(lambda tree: jax.vmap(noisy, (0, 0, None))(tree, keys, 2)["sum"].sum())(tree)
    np.testing.assert_allclose(slopes["a"], 1 + 2 * noise, rtol=1e-6)
    np.testing.assert_allclose(slopes["b"][0], 1)


REFUSAL = ConfigError("derivative", "in reverse mode", "in forward mode")


@jax.custom_jvp
def guarded(x: jax.Array) -> jax.Array:
    """Return x, whose gradient is refused."""
    return x


@guarded.defjvp
def _guarded_jvp(inputs: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    def refuse(residuals: Any, slope: jax.Array) -> jax.Array:
        raise REFUSAL

    (x,), (dot,) = inputs, tangents
    return x, linear_with_transpose(lambda _, dot: dot, refuse, (), dot, like=x)


def guarded_loop(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, _: (guarded(carry) * 2, None), x, length=3)[0]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "by",
    [
        guarded,
        jax.jit(guarded),
        jax.vmap(guarded),
        jax.jit(jax.vmap(guarded)),
        guarded_loop,
        jax.jit(jax.vmap(guarded_loop)),
        jax.checkpoint(guarded_loop),
    ],
)
def test_an_error_of_the_transpose_reaches_the_caller_while_tracing(by: Any) -> None:
    """It is the same error, also where nothing is compiled; forward mode raises none."""

    def total(x: jax.Array) -> jax.Array:
        return by(x).sum()

    jax.jvp(total, (X,), (DX,))
    jax.jacfwd(by)(X)
    for wrap in (
        lambda grad: grad,
        jax.jit,
        lambda grad: partial(jax.eval_shape, grad),
        lambda grad: jax.vmap(lambda x: grad(x[None])[0]),
    ):
        with pytest.raises(ConfigError) as caught:
            wrap(jax.grad(total))(X)
        assert caught.value is REFUSAL
    # Where no derivative passes, nothing is refused.
    jax.grad(lambda x: (x * by(jax.lax.stop_gradient(x))).sum())(X)


def test_a_transpose_must_match_its_tangents() -> None:
    def wrong(_: Any, slope: jax.Array) -> jax.Array:
        return slope[:2]

    def by(x: jax.Array) -> jax.Array:
        return linear_with_transpose(lambda _, x: x, wrong, (), x, like=x).sum()

    with pytest.raises(TypeError, match=r"returned float32\[2\] for a tangent.*float32\[3\]"):
        jax.grad(by)(X)


def test_the_function_sees_the_settings_of_its_call() -> None:
    """It is traced only when the program is lowered, after these settings have ended."""
    seen = []

    def look(_: Any, dot: jax.Array) -> jax.Array:
        seen.append(is_for_cpu())
        return dot @ dot

    def by(dot: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), dot.dtype)
        with tracing_for("gpu"), jax.default_matmul_precision("highest"):
            return linear_with_transpose(look, lambda _, slope: slope * X, (), dot, like=shape)

    traced = jax.jit(by).trace(X)
    assert seen == []
    assert "HIGHEST" in traced.lower().as_text()
    assert seen == [False]
    assert is_for_cpu()
