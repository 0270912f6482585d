"""Linear functions with a transpose of our own, for derivatives in both modes.

A `jax.custom_vjp` cannot be differentiated in forward mode. A `jax.custom_jvp` can, and reverse
mode transposes its rule; the transpose that JAX derives may be much slower than one written by
hand. Here the rule's linear part is given together with its transpose. Forward mode computes the
one, reverse mode the other.

    @jax.custom_jvp
    def double(x):
        return 2 * x

    @double.defjvp
    def rule(inputs, tangents):
        out = double(*inputs)
        forward, backward = (lambda _, tangent: 2 * tangent), (lambda _, slope: 2 * slope)
        return out, linear_with_transpose(forward, backward, (), *tangents, like=out)

JAX's own `jax.custom_derivatives.linear_call` does the same, but not under `vmap`.
"""

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.extend import core
from jax.interpreters import ad, batching, mlir

In = TypeVar("In")
Out = TypeVar("Out")
Kept = TypeVar("Kept")
Flat = Callable[[list[Array], list[Array]], list[Array]]
"""A function of the residuals' leaves and of the leaves in which it is linear."""


class _Linear(NamedTuple):
    """A linear function with its transpose: the primitive's parameter."""

    fun: Flat
    transpose: Flat
    shapes: tuple[tuple[tuple[int, ...], np.dtype], ...]  # of the results
    num_kept: int  # the first arguments are so many residuals

    def of(self, args: Sequence[Any]) -> list[Array]:
        """Compute the results for residuals and tangents."""
        return _linear.bind(*args, linear=self)


def linear_with_transpose(
    fun: Callable[[Kept, In], Out],
    transpose: Callable[[Kept, Out], In],
    residuals: Kept,
    tangents: In,
    *,
    like: Out,
) -> Out:
    """Compute `fun(residuals, tangents)` with a given transpose in the tangents.

    Works under `jit`, `vmap`, `scan`, `jax.checkpoint` and further derivatives. Reverse mode never
    traces `fun`, and forward mode never traces `transpose`. The functions must not use traced
    values other than their arguments.

    Args:
      fun: Takes residuals and tangents, and is linear in the tangents.
      transpose: Takes residuals and cotangents shaped like the result, and returns cotangents
        shaped like the tangents. It runs while the backward pass is traced, and not at all if
        every cotangent is zero; what it raises reaches the caller.
      residuals: Whatever both need: arrays in a pytree.
      tangents: Floating-point arrays in a pytree.
      like: Arrays, or shapes and dtypes, that the result is like. In a rule of `jax.custom_jvp`
        this is the function's output.

    Returns:
      The result of `fun`.
    """
    structure: Any = jax.tree.structure
    kept_tree, given_tree, out_tree = map(structure, (residuals, tangents, like))
    kept, given = jax.tree.leaves(residuals), jax.tree.leaves(tangents)
    fun = _as_now(fun)

    def flat_fun(kept: list[Array], given: list[Array]) -> list[Array]:
        return out_tree.flatten_up_to(fun(kept_tree.unflatten(kept), given_tree.unflatten(given)))

    def flat_transpose(kept: list[Array], slopes: list[Array]) -> list[Array]:
        found = transpose(kept_tree.unflatten(kept), out_tree.unflatten(slopes))
        return given_tree.flatten_up_to(found)

    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(like))
    linear = _Linear(flat_fun, flat_transpose, shapes, len(kept))
    return out_tree.unflatten(linear.of([*kept, *given]))


def bilinear_jvp(
    fun: Callable[[Array, Array], Array],
    backward: Callable[[tuple[Array, Array], Array], tuple[Array, Array]],
    inputs: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Differentiate a function that is linear in each of its two arguments.

    Args:
      fun: The function, as it is called outside, so that its own rule holds for what it does here.
      backward: Takes the two arguments and the cotangent of the result, and returns the cotangents
        of the arguments.
      inputs: The two arguments.
      tangents: Their tangents.

    Returns:
      The result and its tangent, as a rule of `jax.custom_jvp` returns them.
    """

    def forward(inputs: tuple[Array, Array], tangents: tuple[Array, Array]) -> Array:
        return fun(tangents[0], inputs[1]) + fun(inputs[0], tangents[1])

    out = fun(*inputs)
    return out, linear_with_transpose(forward, backward, inputs, tangents, like=out)


def _as_now(fun: Callable[[Kept, In], Out]) -> Callable[[Kept, In], Out]:
    """Return a function that runs with the settings of now even if it is traced later."""
    context = contextvars.copy_context()
    config: Any = jax.config
    precision, is_wide = config.jax_default_matmul_precision, config.jax_enable_x64

    def run(residuals: Kept, tangents: In) -> Out:
        with jax.default_matmul_precision(precision), jax.enable_x64(is_wide):
            return context.copy().run(fun, residuals, tangents)

    return run


def _compute(*args: Array, linear: _Linear) -> list[Array]:
    return linear.fun(list(args[: linear.num_kept]), list(args[linear.num_kept :]))


def _shapes_of(*args: Array, linear: _Linear) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in linear.shapes]


def _jvp(
    args: Sequence[Array], dots: Sequence[Any], *, linear: _Linear
) -> tuple[list[Array], list[Array]]:
    """Differentiate in both: by the same function in the tangents, by JAX in the residuals."""
    num = linear.num_kept
    kept, given = list(args[:num]), list(args[num:])
    moved = [i for i, dot in enumerate(dots[:num]) if type(dot) is not ad.Zero]
    parts = []
    if any(type(dot) is not ad.Zero for dot in dots[num:]):
        parts.append(linear.of([*kept, *map(ad.instantiate_zeros, dots[num:])]))
    if moved:

        def of_moved(*values: Array) -> list[Array]:
            replaced = dict(zip(moved, values, strict=True))
            return linear.fun([replaced.get(i, each) for i, each in enumerate(kept)], given)

        parts.append(jax.jvp(of_moved, [kept[i] for i in moved], [dots[i] for i in moved])[1])
    return linear.of(args), [sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True)]


def _transpose(slopes: Sequence[Any], *args: Any, linear: _Linear) -> list[Array | None]:
    """Run the given transpose as part of the backward pass, as `jax.custom_vjp` does."""
    kept, given = list(args[: linear.num_kept]), args[linear.num_kept :]
    if all(type(slope) is ad.Zero for slope in slopes):
        return [None] * len(args)
    found = linear.transpose(kept, [ad.instantiate_zeros(slope) for slope in slopes])
    of_given: list[Array | None] = []
    for of_tangent, tangent in zip(found, given, strict=True):
        is_wanted = ad.is_undefined_primal(tangent)
        expected = tangent.aval if is_wanted else jax.typeof(tangent)
        if (of_tangent.shape, of_tangent.dtype) != (expected.shape, expected.dtype):
            raise TypeError(
                f"a transpose returned {jax.typeof(of_tangent)} for a tangent that is {expected}"
            )
        # Known tangents are zeros that JAX has put in for inputs without a derivative.
        of_given.append(of_tangent if is_wanted else None)
    return [None] * len(kept) + of_given


def _batch(
    args: Sequence[Array], dims: Sequence[int | None], *, linear: _Linear
) -> tuple[list[Array], list[int]]:
    """Map both functions. The cotangent of a tangent that is not mapped is summed up."""
    size = next(arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None)
    of_kept, of_given = list(dims[: linear.num_kept]), list(dims[linear.num_kept :])
    axes = [dim or 0 for dim in of_given]
    back = jax.vmap(linear.transpose, in_axes=(of_kept, 0), out_axes=axes)

    def summed(kept: list[Array], slopes: list[Array]) -> list[Array]:
        found = zip(back(kept, slopes), of_given, strict=True)
        return [each.sum(0) if dim is None else each for each, dim in found]

    fun = jax.vmap(linear.fun, in_axes=(of_kept, of_given))
    shapes = tuple(((size, *shape), dtype) for shape, dtype in linear.shapes)
    mapped = linear._replace(fun=fun, transpose=summed, shapes=shapes)
    return mapped.of(args), [0] * len(shapes)


_linear = core.Primitive("linear_with_transpose")
_linear.multiple_results = True
_linear.def_impl(_compute)
_linear.def_abstract_eval(_shapes_of)
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(_linear, mlir.lower_fun(_compute, multiple_results=True))
