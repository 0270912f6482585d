"""A matrix product with a fast gradient if there are few outputs.

On a CPU, XLA takes up to eight times as long for the gradient of `x @ w` with respect to a matrix
`w` with few columns as for the gradient with respect to the transpose of `w`. The product is
therefore computed from the transpose, behind an optimisation barrier, without which XLA would undo
the change.

A flax layer takes this product as one argument: `nn.Dense(10, dot_general=products.auto)`.

Letters: `D` inputs and `F` outputs of a dense layer.
"""

from typing import Any

from jax import Array, lax

from fedjax_sim.core.targets import is_for_cpu

NARROW = 32
"""Number of outputs up to which the transposed product is used.

A local step of logistic regression (784 inputs, 10 outputs, batches of 200) takes 0.55 of the time
of the plain product, and with 32 outputs 0.56. From 50 outputs on there is no gain, and with 128 a
step takes half as much time again.
"""


def auto(
    lhs: Array,
    rhs: Array,
    dimension_numbers: lax.DotDimensionNumbers,
    precision: lax.PrecisionLike = None,
    **options: Any,
) -> Array:
    """Multiply as `lax.dot_general` does, by the way that is fast on the machine at hand.

    On a CPU, the product of a dense layer with at most `NARROW` outputs goes by way of its
    transposed weights; all others are `lax.dot_general`. Derivatives of every kind are defined.

    Args:
      lhs: First factor, `[..., D]` for a dense layer.
      rhs: Second factor, `[D, F]` for a dense layer.
      dimension_numbers: Contracted and batch axes, as for `lax.dot_general`.
      precision: As for `lax.dot_general`.
      **options: Further arguments of `lax.dot_general`.

    Returns:
      The product, `[..., F]` for a dense layer.
    """
    # Nested sequences of any kind, as tuples.
    axes = tuple(tuple(map(tuple, pair)) for pair in dimension_numbers)
    is_dense = rhs.ndim == 2 and axes == (((lhs.ndim - 1,), (0,)), ((), ()))
    if is_dense and rhs.shape[1] <= NARROW and is_for_cpu():
        rhs = lax.optimization_barrier(rhs.T)
        dimension_numbers = (((lhs.ndim - 1,), (1,)), ((), ()))
    return lax.dot_general(lhs, rhs, dimension_numbers, precision=precision, **options)
