"""Convolution and pooling that stay fast inside a compiled loop and with a client axis over the weights.

On a CPU, XLA's own convolution is tens of times slower inside a loop (`scan`, `fori_loop`) than outside, and weights of their own per
client make it a grouped one, slower still. Patches by shifted slices and one matrix product are as fast there as anywhere
(`scripts/benchmark.py convolution` prints the figures). On accelerators the library's convolution is taken.

A flax network takes a convolution by one argument: `nn.Conv(features, (3, 3), conv_general_dilated=convolution.auto)`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.types import Array

Padding = str | Sequence[tuple[int, int]]
Pads = tuple[tuple[int, int], ...]

NARROW = 16
"""Fewer output channels than this are computed in blocks of neighbouring outputs: a matrix product of a few columns is a slow one."""
IN_CACHE = 2**21
"""Bytes of patches made at once on a CPU. A step of a 3x3 convolution of 32 channels on 32 images of 28x28 takes 0.6 of what it takes with
the patches of all images, which are 29 MB, and one of 64 channels on 14x14 0.7."""
FEW = 2**23
"""Bytes of patches of all images up to which they are made at once: LeNet-5's, of 3 MB, are slower in two parts on two cores."""


def auto(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
) -> Array:
    """Convolve as `lax.conv_general_dilated` does, by the way that is fast on the machine at hand.

    On a CPU that is `patches`, except where it does not apply (groups, dilated inputs, other orders of axes); elsewhere `lax`.
    """
    by = (
        patches
        if jax.default_backend() == "cpu" and _is_plain(lhs, rhs, **options)
        else lax.conv_general_dilated
    )
    return by(lhs, rhs, window_strides, padding, **options)


def patches(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
) -> Array:
    """Convolve by patches and a matrix product.

    lhs: `[B, *space, C]`. rhs: `[*window, C, F]`. window_strides: one per axis of space. padding: "SAME", "VALID" or pairs of numbers.
    options: those of `lax.conv_general_dilated`, of which rhs_dilation and precision have an effect; ValueError for groups, dilated
    inputs and other orders of axes. Returns `[B, *space, F]`. Patches are as large as the input times the window, and are made anew
    for the gradient rather than kept.
    """
    if not _is_plain(lhs, rhs, **options):
        raise ValueError(
            "patches neither divides channels into groups nor dilates inputs, and takes channels last; use lax's convolution"
        )
    dilation, strides, pads, out = _sizes(lhs, rhs, window_strides, padding, options)
    if min(out) < 1:
        raise ValueError(
            f"a window of {rhs.shape[:-2]} does not fit into an input of {lhs.shape[1:-1]} with padding {pads}"
        )
    precision = options.get("precision")
    if rhs.shape[-1] >= NARROW or math.prod(dilation) > 1:
        return _convolve(lhs, rhs, _Places(rhs.shape[:-2], dilation, strides, pads, out), precision)
    return _by_blocks(lhs, rhs, strides, pads, out, precision)


CONVOLUTIONS: dict[str, Callable[..., Array]] = {
    "auto": auto,
    "patches": patches,
    "lax": lax.conv_general_dilated,
}
"""Convolutions by name."""


def max_pool(x: Array, window: int = 2, *, stride: int | None = None, pad: int = 0) -> Array:
    """Maximum over square windows of images `[..., H, W, C]`; `stride` is `window` if None, rows and columns left over are dropped.

    pad: rows and columns of -inf on each side. Not the library's, whose gradient is slow inside a loop; as with that, NaN is passed on
    and the gradient goes to the first of equal values.
    """
    stride = stride or window
    if pad:
        x = jnp.pad(
            x, ((0, 0),) * (x.ndim - 3) + ((pad, pad), (pad, pad), (0, 0)), constant_values=-jnp.inf
        )
    for axis in (x.ndim - 3, x.ndim - 2):
        x = _pool(x, window, stride, axis)
    return x


def pooled(by: Callable[..., Array]) -> Callable[..., Array]:
    """Return a convolution whose outputs are max-pooled over 2x2 windows, and to which a layer then adds its bias: the same as before.

    Of at most NARROW channels by `patches` it is one product, whose columns are the outputs of a window: neither they nor their gradient
    are ever put in the order of the image. There a gradient that is not finite spreads over its channels, and of equal maxima the first
    is the library's, row by row.
    """

    def convolve(
        lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
    ) -> Array:
        is_ours = by is patches or (by is auto and jax.default_backend() == "cpu")
        if is_ours and lhs.ndim == 4 and rhs.shape[-1] <= NARROW and _is_plain(lhs, rhs, **options):
            dilation, strides, pads, out = _sizes(lhs, rhs, window_strides, padding, options)
            wide = _wide(rhs, strides)
            places = _Places(
                wide.shape[:-2],
                (1, 1),
                tuple(2 * s for s in strides),
                pads,
                tuple(n // 2 for n in out),
            )
            if dilation == (1, 1) and min(out) > 1 and _at_once(lhs, wide, places) == lhs.shape[0]:
                return _maxima(lhs, wide, places, options.get("precision"))
        return max_pool(by(lhs, rhs, window_strides, padding, **options))

    return convolve


def _pool(x: Array, window: int, stride: int, axis: int) -> Array:
    num = (x.shape[axis] - window) // stride + 1
    is_apart = stride == window
    if is_apart:
        x = lax.slice_in_dim(x, 0, num * window, axis=axis).reshape(
            *x.shape[:axis], num, window, *x.shape[axis + 1 :]
        )

    def piece(i: int) -> Array:
        if is_apart:
            return x[(slice(None),) * (axis + 1) + (i,)]
        return lax.slice_in_dim(x, i, i + (num - 1) * stride + 1, stride, axis)

    if window == 1:
        return piece(0)
    # Pieces are taken anew at each use: when shared, the compiler computes them by themselves, and LeNet's step takes twice as long.
    largest = jnp.where((piece(0) >= piece(1)) | jnp.isnan(piece(0)), piece(0), piece(1))
    for i in range(2, window):
        largest = jnp.where((largest >= piece(i)) | jnp.isnan(largest), largest, piece(i))
    return largest


class _Places(NamedTuple):
    """Where the elements of a window meet the padded input; one number per axis of space, static and hashable."""

    window: tuple[int, ...]
    dilation: tuple[int, ...]
    strides: tuple[int, ...]
    pads: Pads
    out: tuple[int, ...]


def _is_plain(lhs: Array, rhs: Array, **options: Any) -> bool:
    numbers = options.get("dimension_numbers")
    in_order = tuple(range(lhs.ndim))
    last = (0, lhs.ndim - 1, *in_order[1:-1])
    if numbers is not None and not isinstance(numbers, lax.ConvDimensionNumbers):
        numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
    is_convolve = numbers is not None and numbers == lax.ConvDimensionNumbers(
        last, (lhs.ndim - 1, lhs.ndim - 2, *in_order[:-2]), last
    )
    is_ungrouped = all(
        options.get(name, 1) == 1 for name in ("feature_group_count", "batch_group_count")
    )
    return is_convolve and is_ungrouped and math.prod(options.get("lhs_dilation") or (1,)) == 1


def _sizes(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, options: Any
) -> tuple[Any, Any, Pads, Any]:
    """Dilation, strides, padding and size of the output, one number (or pair) per axis of space."""
    num_axes = lhs.ndim - 2
    dilation = tuple(options.get("rhs_dilation") or (1,) * num_axes)
    strides = tuple(window_strides) if window_strides else (1,) * num_axes
    window = tuple(
        (size - 1) * step + 1 for size, step in zip(rhs.shape[:-2], dilation, strict=True)
    )
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:-1], window, strides, padding)
    pads = tuple((low, high) for low, high in padding)
    out = tuple(
        (size + sum(pad) - own) // s + 1
        for size, pad, own, s in zip(lhs.shape[1:-1], pads, window, strides, strict=True)
    )
    return dilation, strides, pads, out


def _wide(kernel: Array, strides: Sequence[int]) -> Array:
    """A kernel one stride wider, whose channels are those of two neighbouring outputs along each axis of space, the last axis fastest."""
    shifts = list(itertools.product((0, 1), repeat=len(strides)))
    copies = [
        jnp.pad(
            kernel,
            (*((s * i, s - s * i) for s, i in zip(strides, shift, strict=True)), (0, 0), (0, 0)),
        )
        for shift in shifts
    ]
    window = (n + s for n, s in zip(kernel.shape, strides, strict=False))
    return jnp.stack(copies, axis=-2).reshape(*window, kernel.shape[-2], -1)


def _by_blocks(
    x: Array, kernel: Array, strides: Sequence[int], pads: Pads, out: Sequence[int], precision: Any
) -> Array:
    """Blocks of two neighbouring outputs along each axis of space as channels."""
    num_axes, features = len(strides), kernel.shape[-1]
    wide = _wide(kernel, strides)
    blocks = tuple(-(-n // 2) for n in out)
    beyond = tuple(
        (low, high + s * (n % 2)) for (low, high), s, n in zip(pads, strides, out, strict=True)
    )
    y = _convolve(
        x,
        wide,
        _Places(wide.shape[:-2], (1,) * num_axes, tuple(2 * s for s in strides), beyond, blocks),
        precision,
    )
    y = y.reshape(x.shape[0], *blocks, *(2,) * num_axes, features)
    order = [axis for i in range(num_axes) for axis in (1 + i, 1 + num_axes + i)]
    y = y.transpose(0, *order, y.ndim - 1).reshape(x.shape[0], *(2 * n for n in blocks), features)
    return y[(slice(None), *(slice(n) for n in out), slice(None))]


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _maxima(x: Array, wide: Array, places: _Places, precision: Any) -> Array:
    """Convolve by blocks of 2x2 outputs, and take each block's maximum: `[B, *places.out, F]` of a kernel with 4 F channels."""
    return _maxima_forward(x, wide, places, precision)[0]


def _maxima_forward(
    x: Array, wide: Array, places: _Places, precision: Any
) -> tuple[Array, tuple[Array, Array, Array]]:
    features = wide.shape[-1] // 4
    y = jnp.matmul(_rows(x, places), wide.reshape(-1, wide.shape[-1]), precision=precision).reshape(
        -1, 4, features
    )
    largest, place = y[:, 0], jnp.zeros(y[:, 0].shape, y.dtype)
    for i in range(1, 4):
        stays = (largest >= y[:, i]) | jnp.isnan(largest)
        largest, place = jnp.where(stays, largest, y[:, i]), jnp.where(stays, place, i)
    return largest.reshape(x.shape[0], *places.out, features), (x, wide, place)


def _maxima_backward(
    places: _Places, precision: Any, saved: tuple[Array, Array, Array], slope: Array
) -> tuple[Array, Array]:
    x, wide, place = saved
    features, flat = wide.shape[-1] // 4, wide.reshape(-1, wide.shape[-1])
    # Channels first, as the kernel's gradient wants them. By products, which the compiler does not merge with what comes before or after
    # and make anew for each of the four.
    identity = jnp.eye(features, dtype=slope.dtype)
    across, place = (
        lax.dot_general(identity, rows, (((1,), (1,)), ((), ())), precision=precision)
        for rows in (slope.reshape(-1, features), place)
    )
    each = jnp.arange(4, dtype=place.dtype)[:, None, None]
    spread = jnp.where(place[None] == each, across[None], 0).reshape(4 * features, -1)
    rows = _rows(x, places).reshape(-1, flat.shape[0])
    of_kernel = lax.optimization_barrier(
        jnp.matmul(spread, rows, precision=precision)
    )  # see `_backward`
    of_rows = lax.dot_general(spread, flat, (((0,), (1,)), ((), ())), precision=precision)
    of_x = _sum_of_rows(of_rows.reshape(x.shape[0], *places.out, -1), places, x.shape[1:-1])
    return of_x, of_kernel.T.reshape(wide.shape)


_maxima.defvjp(_maxima_forward, _maxima_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, kernel: Array, places: _Places, precision: Any) -> Array:
    """Patches `[B, *space, window * C]`, made for a few examples at a time, and anew for the gradient."""

    def product(x: Array) -> Array:
        return jnp.matmul(
            _rows(x, places), kernel.reshape(-1, kernel.shape[-1]), precision=precision
        )

    few = _at_once(x, kernel, places)
    if few == x.shape[0]:
        return product(x)
    y = jax.lax.map(product, x.reshape(-1, few, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])


def _at_once(x: Array, kernel: Array, places: _Places) -> int:
    """Examples whose patches are made together: a divisor of their number. As many bytes as the kernel has too, which each block reads."""
    num, most = x.shape[0], max(IN_CACHE, kernel.size * kernel.dtype.itemsize)
    each = math.prod(places.out) * math.prod(places.window) * x.shape[-1] * x.dtype.itemsize
    if jax.default_backend() != "cpu" or num * each <= max(FEW, most):
        return num
    return max(
        few for few in range(1, num + 1) if num % few == 0 and (few == 1 or few * each <= most)
    )


def _rows(x: Array, places: _Places) -> Array:
    """An axis of space at a time, the last first: few slices, and long pieces of memory."""
    x = jnp.pad(x, ((0, 0), *places.pads, (0, 0)))
    for axis, size, step, stride, _, num in reversed(_axes(places)):
        if _is_of_strides(x, axis, size, step, stride):
            x = lax.slice_in_dim(x, 0, (num - 1) * stride + size, axis=axis).reshape(
                *x.shape[:axis], -1, stride * x.shape[-1]
            )
            size, stride = size // stride, 1
        pieces = [
            lax.slice_in_dim(x, i * step, i * step + (num - 1) * stride + 1, stride, axis)
            for i in range(size)
        ]
        x = pieces[0] if size == 1 else jnp.concatenate(pieces, axis=-1)
    return x


def _sum_of_rows(rows: Array, places: _Places, space: Sequence[int]) -> Array:
    """The transpose of `_rows`, for an input of a shape."""
    zero = jnp.zeros((), rows.dtype)
    for (axis, size, step, stride, (low, _), num), length in zip(_axes(places), space, strict=True):
        together = stride if _is_of_strides(rows, axis, size, step, stride) else 1
        size, stride = size // together, stride // together
        reach = (num - 1) * stride + (size - 1) * step + 1
        config = [(0, 0, 0)] * rows.ndim
        spread = []
        for i, piece in enumerate(jnp.split(rows, size, axis=-1)):
            config[axis] = (i * step, reach - i * step - (num - 1) * stride - 1, stride - 1)
            spread.append(lax.pad(piece, zero, config))
        rows = sum(spread[1:], spread[0])
        rows = rows.reshape(
            *rows.shape[:axis], -1, *rows.shape[axis + 1 : -1], rows.shape[-1] // together
        )
        config[axis] = (-low, low + length - rows.shape[axis], 0)
        rows = lax.pad(rows, zero, config)
    return rows


def _is_of_strides(x: Array, axis: int, size: int, step: int, stride: int) -> bool:
    """Whether a window of the last axis of space is some whole strides, whose columns then are channels that lie side by side."""
    return axis == x.ndim - 2 and step == 1 and stride > 1 and size % stride == 0


def _axes(places: _Places) -> list[tuple[int, int, int, int, tuple[int, int], int]]:
    """Per axis of space: its index, and window, dilation, stride, padding and size of the output along it."""
    return [
        (1 + i, *of_axis)
        for i, of_axis in enumerate(zip(*places[:3], places.pads, places.out, strict=True))
    ]


def _forward(
    x: Array, kernel: Array, places: _Places, precision: Any
) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, kernel, places, precision), (x, kernel)


def _backward(
    places: _Places, precision: Any, saved: tuple[Array, Array], slope: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    all_but_last = tuple(range(slope.ndim - 1))
    flat = kernel.reshape(-1, kernel.shape[-1])

    def of_both(x: Array, slope: Array) -> tuple[Array, Array]:
        # The transpose of what is wanted, and made so that the compiler does not see it: several times as fast with few channels.
        of_kernel = lax.dot_general(
            slope, _rows(x, places), ((all_but_last, all_but_last), ((), ())), precision=precision
        )
        return _sum_of_rows(
            jnp.matmul(slope, flat.T, precision=precision), places, x.shape[1:-1]
        ), of_kernel

    few = _at_once(x, kernel, places)
    if few == x.shape[0]:
        of_x, of_kernel = of_both(x, slope)
    else:

        def block(total: Array, each: tuple[Array, Array]) -> tuple[Array, Array]:
            of_x, of_kernel = of_both(*each)
            return total + of_kernel.astype(total.dtype), of_x

        blocks = (x.reshape(-1, few, *x.shape[1:]), slope.reshape(-1, few, *slope.shape[1:]))
        wide = jnp.promote_types(jnp.result_type(x, slope), "float32")  # of sums of many blocks
        of_kernel, of_x = lax.scan(block, jnp.zeros(flat.shape[::-1], wide), blocks)
        of_x, of_kernel = of_x.reshape(x.shape), of_kernel.astype(kernel.dtype)
    return of_x, jnp.moveaxis(of_kernel.reshape(kernel.shape[-1], *kernel.shape[:-1]), 0, -1)


_convolve.defvjp(_forward, _backward)
