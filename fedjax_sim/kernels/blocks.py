"""Blocks of images that are computed one after the other, so that each fits into a cache.

Letters: `B` images, `b` images in a block, a divisor of `B`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax


def largest_block(num: int, bytes_each: int, most_bytes: int) -> int:
    """Find the largest equal blocks of images with at most some bytes, 1 image if all have more."""
    divisors = (few for few in range(1, num + 1) if num % few == 0)
    return max(few for few in divisors if few == 1 or few * bytes_each <= most_bytes)


def map_blocks(fun: Callable[[Array], Array], x: Array, few: int) -> Array:
    """Apply a function of images to blocks of `few` of them; all at once if these are all."""
    if few == x.shape[0]:
        return fun(x)
    y = lax.map(fun, x.reshape(-1, few, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])


def backward_in_blocks(
    fun: Callable[[Array, Array], tuple[Array, Array]],
    x: Array,
    slope: Array,
    few: int,
    like: Array | jax.ShapeDtypeStruct,
) -> tuple[Array, Array]:
    """Compute the cotangents of images, and of a kernel that all images share, in blocks.

    Args:
      fun: From images `[b, ...]` and the cotangents of their outputs to those of the images, and
        to the block's part of that of the kernel.
      x: Images `[B, ...]`.
      slope: Cotangents of their outputs `[B, ...]`.
      few: b.
      like: An array, or its shape and dtype, that the cotangent of the kernel is like.

    Returns:
      The cotangents of the images and of the kernel.
    """
    if few == x.shape[0]:
        return fun(x, slope)

    def add_block(total: Array, block: tuple[Array, Array]) -> tuple[Array, Array]:
        of_x, of_kernel = fun(*block)
        return total + of_kernel.astype(total.dtype), of_x

    blocks = (x.reshape(-1, few, *x.shape[1:]), slope.reshape(-1, few, *slope.shape[1:]))
    # Sums over many blocks are kept in at least 32 bits.
    wide_type = jnp.promote_types(jnp.result_type(x, slope), "float32")
    of_kernel, of_x = lax.scan(add_block, jnp.zeros(like.shape, wide_type), blocks)
    return of_x.reshape(x.shape), of_kernel.astype(like.dtype)
