"""3x3 convolution with fewer multiplications (Lavin and Gray 2016, arXiv 1509.09308).

The image is cut into tiles of 6x6 that overlap by two. For a tile d and a kernel g the 4x4 outputs
are, with the matrices of the paper's F(4x4, 3x3),

    A^T [ (G g G^T) * (B^T d B) ] A

where * multiplies number by number. Over all tiles and channels, that is 36 products of matrices
`[tiles, C]` and `[C, F]`, with a quarter of the multiplications of a direct convolution. They are
compiled as one batched product, and each transformation of tiles, which comes on top, as one more,
so that this is fast inside a loop too. Outputs differ from those of a direct convolution by
rounding, in 32 bits typically by a few times 1e-6 of the largest one.

Images are computed in blocks, one after the other, so that each fits into a cache.

Letters: `B` images, `b` of a block, a divisor of `B`; `H`, `W` height and width; `C` input and `F`
output channels; `h`, `w` tiles along the height and the width.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.kernels.linear import bilinear_jvp

Pair = tuple[Array, Array]
"""Images and a kernel, or their tangents or cotangents."""

TILE, STEP = 6, 4
"""Size of a tile, and the distance between neighbouring tiles: a tile has STEP outputs a side."""

BLOCK_BYTES, SPLIT_ABOVE = 2**24, 2**26
"""Bytes of the tiles that are made together, if those of all images take more than the second."""

# The paper's matrices A^T, G and B^T, of which both sides of a tile are multiplied at once.
_OUTPUTS = np.array(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
)
_KERNEL = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
_INPUTS = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
_OF_OUTPUTS, _OF_KERNEL, _OF_INPUTS = (np.kron(m, m) for m in (_OUTPUTS, _KERNEL, _INPUTS))


def saves_products(out: Sequence[int]) -> bool:
    """Tell whether tiles fit outputs so well that at most half of the products are needed.

    Args:
      out: Height and width of the outputs.
    """
    tiles = math.prod(-(-size // STEP) for size in out)
    return 2 * TILE**2 * tiles <= 9 * math.prod(out)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def convolve(x: Array, kernel: Array, precision: lax.PrecisionLike = None) -> Array:
    """Convolve with a 3x3 window and stride 1, without padding.

    Derivatives in forward and in reverse mode are computed by tiles too.

    Args:
      x: Inputs, `[B, H, W, C]`.
      kernel: Kernel, `[3, 3, C, F]`, of the type of x.
      precision: Of the products over channels, as for `lax.dot_general`. Tiles are always
        transformed in full precision.

    Returns:
      Outputs, `[B, H - 2, W - 2, F]`.
    """
    places = _places_of(kernel)

    def outputs(x: Array) -> Array:
        products = _multiply(_tiles_of(x), places, (4, 1), precision)
        return _lay(_transform(_OF_OUTPUTS, products))[:, : x.shape[1] - 2, : x.shape[2] - 2]

    return map_blocks(outputs, x, _images_at_once(x, kernel))


@convolve.defjvp
def _convolve_jvp(precision: lax.PrecisionLike, inputs: Pair, tangents: Pair) -> Pair:
    fun, backward = partial(convolve, precision=precision), partial(_backward, precision)
    return bilinear_jvp(fun, backward, inputs, tangents)


def _backward(precision: lax.PrecisionLike, saved: Pair, slope: Array) -> Pair:
    """Run the forward pass from its end to its beginning, every step transposed.

    The tiles of x, more than twice as large as x, are not kept for this but made again.
    """
    x, kernel = saved
    places, rows = _places_of(kernel), (1, 2, 3)
    contracted = ((rows, rows), ((0,), (0,)))

    def of_both(x: Array, slope: Array) -> Pair:
        of_products = _transform(_OF_OUTPUTS.T, _take_up(_fill(slope, overlap=0)))
        of_tiles = _multiply(of_products, places, (4, 2), precision)
        of_places = lax.dot_general(_tiles_of(x), of_products, contracted, precision=precision)
        of_x = _add_up(_transform(_OF_INPUTS.T, of_tiles))
        return of_x[:, : x.shape[1], : x.shape[2]], of_places

    few = _images_at_once(x, kernel)
    of_x, of_places = backward_in_blocks(of_both, x, slope, few, like=places)
    return of_x, _transform(_OF_KERNEL.T, of_places).reshape(kernel.shape)


def _images_at_once(x: Array, kernel: Array) -> int:
    """Return how many images have their tiles made together: a divisor of their number."""
    num = x.shape[0]
    tiles = math.prod(-(-(size - 2) // STEP) for size in x.shape[1:3])
    each = TILE**2 * tiles * sum(kernel.shape[2:]) * x.dtype.itemsize
    if num * each <= SPLIT_ABOVE:
        return num
    return largest_block(num, each, BLOCK_BYTES)


def _tiles_of(x: Array) -> Array:
    """Cut images into tiles and transform them: `[36, B, h, w, C]`."""
    return _transform(_OF_INPUTS, _cut(_fill(x)))


def _places_of(kernel: Array) -> Array:
    """Transform a kernel: `[36, C, F]`."""
    return _transform(_OF_KERNEL, kernel.reshape(9, *kernel.shape[2:]))


def _transform(matrix: np.ndarray, x: Array) -> Array:
    """Multiply the leading axis by a matrix."""
    turned, rows = jnp.asarray(matrix, x.dtype), x.reshape(x.shape[0], -1)
    product = lax.dot_general(turned, rows, (((1,), (0,)), ((), ())), precision="highest")
    return product.reshape(-1, *x.shape[1:])


def _multiply(a: Array, b: Array, axes: tuple[int, int], precision: lax.PrecisionLike) -> Array:
    """Multiply matrices of channels at each of the 36 places: `[36, B, h, w, channels]`."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((0,), (0,))), precision=precision)


def _fill(x: Array, overlap: int = TILE - STEP) -> Array:
    """Add zeros until tiles fill the image."""
    height, width = (-(size - overlap) % STEP for size in x.shape[1:3])
    return jnp.pad(x, ((0, 0), (0, height), (0, width), (0, 0)))


def _cut(x: Array) -> Array:
    """Cut images `[B, 4 h + 2, 4 w + 2, C]` into tiles: `[36, B, h, w, C]`."""
    last = [size - TILE + 1 for size in x.shape[1:3]]
    corners = itertools.product(range(TILE), repeat=2)
    return jnp.stack([x[:, i : i + last[0] : STEP, j : j + last[1] : STEP] for i, j in corners])


def _add_up(tiles: Array) -> Array:
    """Add tiles `[36, B, h, w, C]` up at their places: `[B, 4 h + 2, 4 w + 2, C]`.

    This is the transpose of `_cut`.
    """
    rows = tiles.reshape(TILE, TILE, *tiles.shape[1:])
    return _add_along(_add_along(rows.swapaxes(0, 1), 3), 1)


def _add_along(pieces: Array, axis: int) -> Array:
    """Add pieces `[6, ..., t, ...]` up at their places along one axis: `[..., 4 t + 2, ...]`.

    axis: Where t is in the result.
    """
    rest = jnp.pad(pieces[STEP:], ((0, 2 * STEP - TILE), *((0, 0),) * (pieces.ndim - 1)))
    zero = jnp.zeros((), pieces.dtype)
    none = [(0, 0, 0)] * (pieces.ndim - 1)

    def place(part: Array, before: int, after: int) -> Array:
        beside = [*none[:axis], (before, after, 0), *none[axis + 1 :]]
        x = jnp.moveaxis(part, 0, axis + 1)
        return lax.pad(x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), zero, beside)

    overlap = TILE - STEP
    return place(pieces[:STEP], 0, overlap) + place(rest, STEP, overlap - STEP)


def _lay(outputs: Array) -> Array:
    """Lay the outputs of tiles, `[16, B, h, w, F]`, as images `[B, 4 h, 4 w, F]`."""
    _, num, height, width, features = outputs.shape
    rows = outputs.reshape(STEP, STEP, num, height, width, features)
    return rows.transpose(2, 3, 0, 4, 1, 5).reshape(num, STEP * height, STEP * width, features)


def _take_up(y: Array) -> Array:
    """Undo `_lay`, which also is its transpose: `[B, 4 h, 4 w, F]` to `[16, B, h, w, F]`."""
    num, height, width, features = y.shape
    rows = y.reshape(num, height // STEP, STEP, width // STEP, STEP, features)
    rows = rows.transpose(2, 4, 0, 1, 3, 5)
    return rows.reshape(STEP * STEP, num, height // STEP, width // STEP, features)


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
