"""Convolution and pooling that stay fast in compiled loops and with different weights per client.

On a CPU, XLA's own convolution is tens of times slower inside a loop (`scan`, `fori_loop`) than
outside. Batching over clients with different weights makes it a grouped convolution, which is
slower still. The convolution by patches that is defined here is as fast inside a loop as outside:
it cuts the input into patches by shifted slices and makes one matrix product. Where a 3x3 window
has many channels, Winograd's convolution (`fedjax_sim.kernels.winograd`) is up to 2.6 times as fast
again on a CPU (`scripts/benchmark.py convolution` prints the timings).

On an accelerator patches win too where clients train different weights: they move more bytes, but
XLA's grouped convolution is far from the memory's limits. On an H200, in float32, a local step of
ResNet-20 moved its 30 GB at 2.3 TB/s with patches, and made its 175 GFLOP at 5.0 TFLOP/s with
XLA's convolution: 12.7 ms against 35. One of pfl's CIFAR-10 network in plain JAX took 2.7 ms
against 9.0. At these speeds patches are about twice as fast or more in all compiled programs, of
LeNet and ResNet-18 as well, with one learning rate and with eight (the guide "On a GPU" has the
counts). For lanes with different learning rates XLA's convolution fails there.

Groups of channels are convolved each by its patches. Windows of one channel (depthwise
convolutions) are products of numbers, not of matrices. In a loop on a CPU these take 1/60 to 1/700
of the time of XLA's convolution. Compiled for an H200, a local step of a network with two depthwise
layers, of 16 and 32 channels, launches 36 kernels. It moves 50 MB with one learning rate and 193 MB
with eight; with a product of matrices for each channel it would be 46 and 287 MB. XLA's convolution
launches 42 kernels and moves 35 MB with one learning rate, and fails with eight.

All of them can be differentiated in forward mode (`jax.jvp`) and in reverse mode (`jax.grad`), and
one mode over the other.

A flax network takes a convolution as one argument:
`nn.Conv(features, (3, 3), conv_general_dilated=convolution.auto)`.

Letters: `B` images; `*space` the axes of space, such as `H, W`; `C` input and `F` output channels;
`*window` the axes of the window, one for each axis of space.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.core import targets
from fedjax_sim.kernels import linear
from fedjax_sim.kernels import winograd as tiles

Convolution = Callable[..., Array]
"""A function with the arguments and the result of `lax.conv_general_dilated`."""
Padding = str | Sequence[tuple[int, int]]
"""Padding as the library takes it: "SAME", "VALID", or zeros before and after along each axis."""
Pads = tuple[tuple[int, int], ...]
"""Zeros before and after along each axis of space."""
Saved = tuple[Array, Array, Array]
Pair = tuple[Array, Array]
"""Images and a kernel, or their tangents or cotangents."""
Sizes = tuple[int, ...]
"""A number for each axis of space."""

NARROW = 16
"""Number of output channels below which blocks of neighbouring outputs are computed together.

Without blocks the matrix product would have only a few columns, which is slow.
"""
MANY = 16
"""Channels in and out from which `auto` convolves 3x3 windows by Winograd's way.

On one core, forward and backward, it takes 0.4 to 0.8 of the time of `patches` from 16 channels on,
on 32x32 to 4x4 outputs and for 10 and 32 images, and as long for 8 channels.
"""
BLOCK_BYTES = 2**21
"""Size of the patches that are made together on a CPU, if the patches of all images are too large.

On 32 images, a step of a 3x3 convolution takes 0.6 of the time that it takes with the patches of
all images (29 MB) for 32 channels on 28x28, and 0.7 for 64 channels on 14x14.
"""
SPLIT_ABOVE = 2**23
"""Size of the patches of all images, in bytes, up to which they are made together.

LeNet-5's patches take 3 MB; making them in two parts is slower on two cores.
"""


def auto(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
) -> Array:
    """Convolve as `lax.conv_general_dilated` does, by the way that is fast on the machine at hand.

    This is `patches`, if that supports the arguments (no groups of images, no dilated inputs, no
    other type of outputs, channels last), and `lax.conv_general_dilated` otherwise. On a CPU it is
    `winograd` for 3x3 windows one step apart with at least `MANY` channels in and out, numbers of
    32 bits or more, and outputs that fill its tiles well.

    Args:
      lhs: Inputs, `[B, *space, C]` unless `dimension_numbers` says otherwise.
      rhs: Kernel, `[*window, C, F]` unless `dimension_numbers` says otherwise.
      window_strides: One stride for each axis of space.
      padding: "SAME", "VALID", or zeros before and after along each axis of space.
      **options: Further arguments of `lax.conv_general_dilated`.

    Returns:
      Outputs, `[B, *space, F]` unless `dimension_numbers` says otherwise.
    """
    convolve: Convolution = lax.conv_general_dilated
    if _is_plain(lhs, rhs, **options):
        convolve, is_wide = patches, min(rhs.shape[-2:]) >= MANY
        is_for_tiles = is_wide and _is_for_winograd(lhs, rhs, window_strides, **options)
        if targets.is_for_cpu() and is_for_tiles:
            geometry = _geometry(lhs, rhs, window_strides, padding, options)
            convolve = winograd if tiles.saves_products(geometry.out) else patches
    return convolve(lhs, rhs, window_strides, padding, **options)


def patches(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
) -> Array:
    """Convolve by cutting the input into patches and multiplying them with the kernel.

    Patches are larger than the input by the size of the window. They are not kept for derivatives
    but made again: in reverse mode once, in forward mode once for each of the two arguments.

    Args:
      lhs: Inputs, `[B, *space, C]`.
      rhs: Kernel, `[*window, C, F]`; for G groups of channels `[*window, C / G, F]`.
      window_strides: One stride for each axis of space.
      padding: "SAME", "VALID", or zeros before and after along each axis of space.
      **options: Further arguments of `lax.conv_general_dilated`. `dimension_numbers` must put
        channels last; `feature_group_count`, `rhs_dilation` and `precision` are respected; groups
        of images, dilated inputs and `preferred_element_type` are not supported.

    Returns:
      Outputs, `[B, *space, F]`.

    Raises:
      ValueError: If channels are not last or not divided by the groups, for groups of images,
        dilated inputs or another type of outputs, or if the window does not fit into the padded
        input.
    """
    if not _is_plain(lhs, rhs, **options):
        raise ValueError(
            "patches supports neither groups of images nor dilated inputs nor another type of "
            "outputs, and needs channels last; use lax.conv_general_dilated"
        )
    groups = options.get("feature_group_count", 1)
    if lhs.shape[-1] != groups * rhs.shape[-2] or rhs.shape[-1] % groups:
        raise ValueError(
            f"a kernel from {rhs.shape[-2]} to {rhs.shape[-1]} channels does not fit an input of "
            f"{lhs.shape[-1]} channels in {groups} groups"
        )
    geometry = _geometry(lhs, rhs, window_strides, padding, options)
    if 0 in (lhs.size, rhs.size):
        return lax.conv_general_dilated(lhs, rhs, geometry.strides, geometry.pads, **options)
    if groups > 1 and rhs.shape[-2] == 1:
        copies = rhs.shape[-1] // groups
        x = jnp.repeat(lhs, copies, axis=-1) if copies > 1 else lhs
        return _convolve_channels(x, rhs[..., 0, :], geometry)
    if groups > 1:
        x, kernel = (each.reshape(*each.shape[:-1], groups, -1) for each in (lhs, rhs))
        options["feature_group_count"] = 1

        def of_group(x: Array, kernel: Array) -> Array:
            return patches(x, kernel, window_strides, padding, **options)

        y = jax.vmap(of_group, in_axes=-2, out_axes=-2)(x, kernel)
        return y.reshape(*y.shape[:-2], -1)
    if rhs.shape[-1] >= NARROW or math.prod(geometry.dilation) > 1:
        return _convolve(lhs, rhs, geometry)
    return _convolve_in_blocks(lhs, rhs, geometry)


def winograd(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
) -> Array:
    """Convolve 3x3 windows by Winograd's way, and others by `patches`.

    Products over channels take a quarter of the multiplications; transforming the image comes on
    top, so that many channels are needed. In 32 bits outputs typically differ from those of a
    direct convolution by a few times 1e-6 of the largest one.

    Args:
      lhs: Inputs, `[B, H, W, C]`.
      rhs: Kernel, `[3, 3, C, F]`; other windows are convolved by `patches`, and so are numbers of
        less than 32 bits, and strides and dilations other than 1.
      window_strides: As for `patches`.
      padding: As for `patches`.
      **options: As for `patches`.

    Returns:
      Outputs, `[B, H', W', F]`.

    Raises:
      ValueError: As `patches`.
    """
    if not _is_for_winograd(lhs, rhs, window_strides, **options):
        return patches(lhs, rhs, window_strides, padding, **options)
    geometry = _geometry(lhs, rhs, window_strides, padding, options)
    return tiles.convolve(_padded(lhs, geometry.pads), rhs, geometry.precision)


CONVOLUTIONS: dict[str, Convolution] = {
    "auto": auto,
    "patches": patches,
    "winograd": winograd,
    "lax": lax.conv_general_dilated,
}
"""Convolutions by name."""


def max_pool(x: Array, window: int = 2, *, stride: int | None = None, pad: int = 0) -> Array:
    """Take the maximum over square windows of images.

    The gradient of the library's pooling is slow inside a loop; this one is not. As with the
    library's, NaN is passed on. Of equal values the first column by column gets the gradient; the
    library takes the first row by row.

    Args:
      x: Images `[..., H, W, C]`.
      window: Height and width of the window.
      stride: Stride along both axes, by default `window`.
      pad: Rows and columns of -inf to add on each side.

    Returns:
      Images of the maxima, `[..., H', W', C]`. Rows and columns that do not fill a window are left
      out.
    """
    stride = stride or window
    if pad:
        sides = ((0, 0),) * (x.ndim - 3) + ((pad, pad), (pad, pad), (0, 0))
        x = jnp.pad(x, sides, constant_values=-jnp.inf)
    for axis in (x.ndim - 3, x.ndim - 2):
        x = _pool(x, window, stride, axis)
    return x


def pooled(convolve: Convolution) -> Convolution:
    """Return a convolution followed by max-pooling over 2x2 windows.

    A layer that adds its bias after the pooling computes the same, because max(y) + b is
    max(y + b). With `patches` and at most `NARROW` output channels the whole is one product, whose
    columns are the four outputs of a pooling window; neither the outputs nor their gradient are
    ever arranged as an image. In that case a gradient that is not finite spreads over its channels,
    and the first of equal maxima is the first row by row, as in the library. Forward mode takes the
    tangent of that one.

    Args:
      convolve: A convolution, such as one of `CONVOLUTIONS`.

    Returns:
      A function with the same arguments, whose outputs are `[B, H / 2, W / 2, F]`, rounded down.
    """

    def convolve_and_pool(
        lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any
    ) -> Array:
        is_narrow_image = lhs.ndim == 4 and lhs.size > 0 < rhs.shape[-1] <= NARROW
        is_plain = _is_plain(lhs, rhs, **options) and options.get("feature_group_count", 1) == 1
        if convolve in (patches, auto) and is_narrow_image and is_plain:
            plain = _geometry(lhs, rhs, window_strides, padding, options)
            blocks = tuple(n // 2 for n in plain.out)
            wide, geometry = _widen(rhs, plain._replace(out=blocks))
            is_whole = min(blocks) > 0 and _images_at_once(lhs, wide, geometry) == len(lhs)
            if plain.dilation == (1, 1) and is_whole:
                largest, _ = _block_maxima_and_places(lhs, wide, geometry)
                return largest.reshape(lhs.shape[0], *geometry.out, -1)
        return max_pool(convolve(lhs, rhs, window_strides, padding, **options))

    return convolve_and_pool


def _pool(x: Array, window: int, stride: int, axis: int) -> Array:
    """Take the maximum over windows along one axis."""
    num = (x.shape[axis] - window) // stride + 1
    is_apart = stride == window
    if is_apart:
        x = lax.slice_in_dim(x, 0, num * window, axis=axis)
        x = x.reshape(*x.shape[:axis], num, window, *x.shape[axis + 1 :])

    def piece(i: int) -> Array:
        """Take the i-th element of every window."""
        if is_apart:
            return x[(slice(None),) * (axis + 1) + (i,)]
        return lax.slice_in_dim(x, i, i + (num - 1) * stride + 1, stride, axis)

    if window == 1:
        return piece(0)
    # Each use takes its piece anew. If uses shared a piece, the compiler would compute it
    # separately, and LeNet's step would take twice as long.
    largest = jnp.where((piece(0) >= piece(1)) | jnp.isnan(piece(0)), piece(0), piece(1))
    for i in range(2, window):
        largest = jnp.where((largest >= piece(i)) | jnp.isnan(largest), largest, piece(i))
    return largest


class _Geometry(NamedTuple):
    """Where windows lie on the padded input, one entry per axis of space. Static and hashable.

    Attributes:
      window: Size of the window.
      dilation: Distance between neighbouring elements of the window.
      strides: Distance between neighbouring windows.
      pads: Zeros before and after the input.
      out: Number of windows: the size of the output.
      precision: Of the products, as for `lax.dot_general`.
    """

    window: Sizes
    dilation: Sizes
    strides: Sizes
    pads: Pads
    out: Sizes
    precision: lax.PrecisionLike = None


def _is_plain(lhs: Array, rhs: Array, **options: Any) -> bool:
    """Tell whether `patches` supports the arguments, with channels last."""
    numbers = options.get("dimension_numbers")
    in_order = tuple(range(lhs.ndim))
    last = (0, lhs.ndim - 1, *in_order[1:-1])
    if numbers is not None and not isinstance(numbers, lax.ConvDimensionNumbers):
        numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
    of_kernel = (lhs.ndim - 1, lhs.ndim - 2, *in_order[:-2])
    has_channels_last = numbers == lax.ConvDimensionNumbers(last, of_kernel, last)
    is_undilated = math.prod(options.get("lhs_dilation") or (1,)) == 1
    is_one = options.get("batch_group_count", 1) == 1 and is_undilated
    return has_channels_last and is_one and options.get("preferred_element_type") is None


def _geometry(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    options: Mapping[str, Any],
) -> _Geometry:
    """Find where windows lie. Raises `ValueError` unless there is at least one output."""
    num_axes = lhs.ndim - 2
    dilation = tuple(options.get("rhs_dilation") or (1,) * num_axes)
    strides = tuple(window_strides) if window_strides else (1,) * num_axes
    reach = zip(rhs.shape[:-2], dilation, strict=True)
    window = tuple((size - 1) * step + 1 for size, step in reach)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:-1], window, strides, padding)
    pads = tuple((low, high) for low, high in padding)
    axes = zip(lhs.shape[1:-1], pads, window, strides, strict=True)
    out = tuple((size + sum(pad) - length) // step + 1 for size, pad, length, step in axes)
    if min(out) < 1:
        raise ValueError(
            f"a window of {rhs.shape[:-2]} does not fit into an input of {lhs.shape[1:-1]} "
            f"with padding {pads}"
        )
    return _Geometry(rhs.shape[:-2], dilation, strides, pads, out, options.get("precision"))


def _is_for_winograd(lhs: Array, rhs: Array, window_strides: Sequence[int], **options: Any) -> bool:
    """Tell whether a 3x3 window takes steps of 1 over arrays of 32 bits or more, none empty."""
    return (
        _is_plain(lhs, rhs, **options)
        and options.get("feature_group_count", 1) == 1
        and rhs.shape[:-2] == (3, 3)
        and 0 not in (lhs.size, rhs.size)
        and math.prod(window_strides or (1,)) == 1
        and math.prod(options.get("rhs_dilation") or (1,)) == 1
        and lhs.dtype == rhs.dtype
        and jnp.issubdtype(lhs.dtype, jnp.floating)
        and jnp.finfo(lhs.dtype).bits >= 32
    )


def _widen(kernel: Array, geometry: _Geometry) -> tuple[Array, _Geometry]:
    """Return a kernel that computes blocks of two neighbouring outputs along each axis of space.

    Its window is one stride longer along each axis. Its channels are those of the outputs of a
    block, ordered with the last axis of space fastest. Its geometry is returned too.

    geometry: The kernel's, but with the number of blocks along each axis in place of outputs.
    """
    copies, strides = [], geometry.strides
    for shift in itertools.product((0, 1), repeat=len(strides)):
        around = [(s * i, s - s * i) for s, i in zip(strides, shift, strict=True)]
        copies.append(jnp.pad(kernel, (*around, (0, 0), (0, 0))))
    window = tuple(n + s for n, s in zip(kernel.shape, strides, strict=False))
    wide = jnp.stack(copies, axis=-2).reshape(*window, kernel.shape[-2], -1)
    return wide, geometry._replace(window=window, strides=tuple(2 * s for s in strides))


def _convolve_in_blocks(x: Array, kernel: Array, geometry: _Geometry) -> Array:
    """Convolve with the outputs of a block as channels, then put them in the order of the image."""
    num_axes, features, out = len(geometry.out), kernel.shape[-1], geometry.out
    blocks = tuple(-(-n // 2) for n in out)
    # An odd number of outputs needs one more stride of zeros to fill the last block.
    axes = zip(geometry.pads, geometry.strides, out, strict=True)
    padded = tuple((low, high + s * (n % 2)) for (low, high), s, n in axes)
    y = _convolve(x, *_widen(kernel, geometry._replace(pads=padded, out=blocks)))
    y = y.reshape(x.shape[0], *blocks, *(2,) * num_axes, features)
    order = [axis for i in range(num_axes) for axis in (1 + i, 1 + num_axes + i)]
    y = y.transpose(0, *order, y.ndim - 1).reshape(x.shape[0], *(2 * n for n in blocks), features)
    return y[(slice(None), *(slice(n) for n in out), slice(None))]


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _block_maxima_and_places(x: Array, wide: Array, geometry: _Geometry) -> Pair:
    """Convolve by blocks of 2x2 outputs; return the maximum of each, and its place in the block.

    wide: A kernel made by `_widen`, with 4 F channels.

    Both are `[windows, F]`.
    """
    y = _outputs_of_blocks(x, wide, geometry)
    largest, place = y[:, 0], jnp.zeros(y[:, 0].shape, y.dtype)
    for i in range(1, 4):
        stays = (largest >= y[:, i]) | jnp.isnan(largest)
        largest, place = jnp.where(stays, largest, y[:, i]), jnp.where(stays, place, i)
    return largest, place


@_block_maxima_and_places.defjvp
def _block_maxima_jvp(geometry: _Geometry, inputs: Pair, tangents: Pair) -> tuple[Pair, Pair]:
    largest, place = _block_maxima_and_places(*inputs, geometry)
    forward = partial(_block_maxima_forward, geometry)
    backward = partial(_block_maxima_backward, geometry)
    saved = (*inputs, place)
    tangent = linear.linear_with_transpose(forward, backward, saved, tangents, like=largest)
    return (largest, place), (tangent, jnp.zeros_like(place))


def _outputs_of_blocks(x: Array, wide: Array, geometry: _Geometry) -> Array:
    """Convolve by blocks; outputs are not in the order of the image: `[windows, 4, F]`."""
    kernel = wide.reshape(-1, wide.shape[-1])
    y = jnp.matmul(_make_patches(x, geometry), kernel, precision=geometry.precision)
    return y.reshape(-1, 4, wide.shape[-1] // 4)


def _block_maxima_forward(geometry: _Geometry, saved: Saved, tangents: Pair) -> Array:
    """Take the tangents of a block's outputs where the maximum is."""
    x, wide, place = saved
    of_x, of_wide = tangents
    y = _outputs_of_blocks(of_x, wide, geometry)
    y += _outputs_of_blocks(x, of_wide, geometry)
    output = jnp.arange(4, dtype=place.dtype)[None, :, None]
    return jnp.sum(jnp.where(place[:, None] == output, y, 0), axis=1)


def _block_maxima_backward(geometry: _Geometry, saved: Saved, slope: Array) -> Pair:
    (x, wide, place), precision = saved, geometry.precision
    features, kernel = wide.shape[-1] // 4, wide.reshape(-1, wide.shape[-1])
    # Channels go first, as the kernel's gradient needs them. The transposition is done by products
    # with the identity: the compiler would merge a plain transposition with the operations around
    # it and repeat it for each of the four outputs of a block.
    identity = jnp.eye(features, dtype=slope.dtype)
    across, place = (
        lax.dot_general(identity, rows, (((1,), (1,)), ((), ())), precision=precision)
        for rows in (slope.reshape(-1, features), place)
    )
    output = jnp.arange(4, dtype=place.dtype)[:, None, None]
    spread = jnp.where(place[None] == output, across[None], 0).reshape(4 * features, -1)
    rows = _make_patches(x, geometry).reshape(-1, kernel.shape[0])
    # The barrier keeps the compiler from turning the transposed product back; see `_backward`.
    of_kernel = lax.optimization_barrier(jnp.matmul(spread, rows, precision=precision))
    of_rows = lax.dot_general(spread, kernel, (((0,), (1,)), ((), ())), precision=precision)
    of_x = _add_patches(of_rows.reshape(x.shape[0], *geometry.out, -1), geometry, x.shape[1:-1])
    return of_x, of_kernel.T.reshape(wide.shape)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _convolve(x: Array, kernel: Array, geometry: _Geometry) -> Array:
    """Multiply patches with the kernel, for a few images at a time: `[B, *geometry.out, F]`.

    Patches are made again for derivatives.
    """

    def product(x: Array) -> Array:
        flat = kernel.reshape(-1, kernel.shape[-1])
        return jnp.matmul(_make_patches(x, geometry), flat, precision=geometry.precision)

    return tiles.map_blocks(product, x, _images_at_once(x, kernel, geometry))


@_convolve.defjvp
def _convolve_jvp(geometry: _Geometry, inputs: Pair, tangents: Pair) -> Pair:
    convolve = partial(_convolve, geometry=geometry)
    return linear.bilinear_jvp(convolve, partial(_backward, geometry), inputs, tangents)


def _backward(geometry: _Geometry, saved: Pair, slope: Array) -> Pair:
    (x, kernel), precision = saved, geometry.precision
    all_but_last = tuple(range(slope.ndim - 1))
    contracted = ((all_but_last, all_but_last), ((), ()))
    flat = kernel.reshape(-1, kernel.shape[-1])

    def of_both(x: Array, slope: Array) -> Pair:
        # The kernel's gradient is computed transposed, in a form that the compiler does not turn
        # back. With few channels this is several times as fast.
        rows = _make_patches(x, geometry)
        of_kernel = lax.dot_general(slope, rows, contracted, precision=precision)
        of_patches = jnp.matmul(slope, flat.T, precision=precision)
        return _add_patches(of_patches, geometry, x.shape[1:-1]), of_kernel

    few = _images_at_once(x, kernel, geometry)
    turned = jax.ShapeDtypeStruct(flat.shape[::-1], flat.dtype)
    of_x, of_kernel = tiles.backward_in_blocks(of_both, x, slope, few, like=turned)
    return of_x, jnp.moveaxis(of_kernel.reshape(kernel.shape[-1], *kernel.shape[:-1]), 0, -1)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _convolve_channels(x: Array, kernel: Array, geometry: _Geometry) -> Array:
    """Convolve each channel with its own window, `[*window, C]`: `[B, *geometry.out, C]`."""
    return _sum_of_shifts(geometry, x, kernel)


@_convolve_channels.defjvp
def _convolve_channels_jvp(geometry: _Geometry, inputs: Pair, tangents: Pair) -> Pair:
    def backward(saved: Pair, slope: Array) -> Pair:
        return jax.vjp(partial(_sum_of_shifts, geometry), *saved)[1](slope)

    convolve = partial(_convolve_channels, geometry=geometry)
    return linear.bilinear_jvp(convolve, backward, inputs, tangents)


def _sum_of_shifts(geometry: _Geometry, x: Array, kernel: Array) -> Array:
    """Sum the shifted images, each times an entry of the window, in at least 32 bits."""
    kind = jnp.result_type(x, kernel)
    wide = jnp.promote_types(kind, "float32")
    x, kernel = x.astype(wide), kernel.astype(wide)
    padded, channels = _padded(x, geometry.pads), x.shape[-1]
    shifted = []
    for place in itertools.product(*map(range, geometry.window)):
        begin = [i * step for i, step in zip(place, geometry.dilation, strict=True)]
        sizes = zip(begin, geometry.out, geometry.strides, strict=True)
        end = [first + (num - 1) * stride + 1 for first, num, stride in sizes]
        box = (0, *begin, 0), (len(x), *end, channels), (1, *geometry.strides, 1)
        shifted.append(lax.slice(padded, *box))
    entries = kernel.reshape(-1, *(1,) * (x.ndim - 1), channels)
    if targets.is_for_cpu():
        total = sum(image * entry for image, entry in zip(shifted, entries, strict=True))
    else:
        # One kernel instead of one for each entry.
        total = (jnp.stack(shifted) * entries).sum(axis=0)
    return jnp.asarray(total).astype(kind)


def _images_at_once(x: Array, kernel: Array, geometry: _Geometry) -> int:
    """Return how many images have their patches made together: a divisor of their number.

    Their patches may take as many bytes as the kernel, because each block reads the whole kernel.
    """
    num, most = x.shape[0], max(BLOCK_BYTES, kernel.size * kernel.dtype.itemsize)
    each = math.prod(geometry.out) * math.prod(geometry.window) * x.shape[-1] * x.dtype.itemsize
    if not targets.is_for_cpu() or num * each <= max(SPLIT_ABOVE, most):
        return num
    return tiles.largest_block(num, each, most)


def _padded(x: Array, pads: Pads) -> Array:
    """Add zeros to the axes of space, or cut as many entries off where a number is negative."""
    config = [(0, 0, 0), *((*pad, 0) for pad in pads), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _make_patches(x: Array, geometry: _Geometry) -> Array:
    """Cut images `[B, *space, C]` into patches `[B, *geometry.out, product of window * C]`.

    One axis of space is cut after the other, the last one first: this takes few slices, which copy
    long runs of memory.
    """
    x = _padded(x, geometry.pads)
    for axis, size, step, stride, _, num in reversed(_axes(geometry)):
        if _fills_whole_strides(x, axis, size, step, stride):
            x = lax.slice_in_dim(x, 0, (num - 1) * stride + size, axis=axis)
            x = x.reshape(*x.shape[:axis], -1, stride * x.shape[-1])
            size, stride = size // stride, 1
        pieces = [
            lax.slice_in_dim(x, i * step, i * step + (num - 1) * stride + 1, stride, axis)
            for i in range(size)
        ]
        x = pieces[0] if size == 1 else jnp.concatenate(pieces, axis=-1)
    return x


def _add_patches(rows: Array, geometry: _Geometry, space: Sequence[int]) -> Array:
    """Add patches up at their places in images of a size: the transpose of `_make_patches`."""
    zero = jnp.zeros((), rows.dtype)
    axes = zip(_axes(geometry), space, strict=True)
    for (axis, size, step, stride, (low, _), num), length in axes:
        together = stride if _fills_whole_strides(rows, axis, size, step, stride) else 1
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


def _fills_whole_strides(x: Array, axis: int, size: int, step: int, stride: int) -> bool:
    """Tell whether a window of the last axis of space is several whole strides long.

    Then the columns of a stride are next to each other in memory and can be taken as channels.
    """
    return axis == x.ndim - 2 and step == 1 and stride > 1 and size % stride == 0


def _axes(geometry: _Geometry) -> list[tuple[int, int, int, int, tuple[int, int], int]]:
    """List, for each axis of space, its index and its entries of the geometry."""
    return [(i, *of_axis) for i, of_axis in enumerate(zip(*geometry[:5], strict=True), start=1)]
