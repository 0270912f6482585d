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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.types import Array

Padding = str | Sequence[tuple[int, int]]
Pads = tuple[tuple[int, int], ...]

NARROW = 16
"""Fewer output channels than this are computed with channels first: a matrix product of a few columns is a slow one."""


def auto(lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any) -> Array:
    """Convolve as `lax.conv_general_dilated` does, by the way that is fast on the machine at hand.

    On a CPU that is `patches`, except where it does not apply (groups, dilated inputs, other orders of axes); elsewhere `lax`.
    """
    by = patches if jax.default_backend() == "cpu" and _is_plain(lhs, rhs, **options) else lax.conv_general_dilated
    return by(lhs, rhs, window_strides, padding, **options)


def patches(lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Padding, **options: Any) -> Array:
    """Convolve by patches and a matrix product.

    lhs: `[B, *space, C]`. rhs: `[*window, C, F]`. window_strides: one per axis of space. padding: "SAME", "VALID" or pairs of numbers.
    options: those of `lax.conv_general_dilated`, of which rhs_dilation and precision have an effect; ValueError for groups, dilated
    inputs and other orders of axes. Returns `[B, *space, F]`. Patches are as large as the input times the window; all but narrow
    outputs (`NARROW`) make them anew for the gradient rather than keep them.
    """
    if not _is_plain(lhs, rhs, **options):
        raise ValueError("patches neither divides channels into groups nor dilates inputs, and takes channels last; use lax's convolution")
    num_axes = lhs.ndim - 2
    dilation = tuple(options.get("rhs_dilation") or (1,) * num_axes)
    strides = tuple(window_strides) if window_strides else (1,) * num_axes
    window = tuple((size - 1) * step + 1 for size, step in zip(rhs.shape[:-2], dilation, strict=True))
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:-1], window, strides, padding)
    pads = tuple((low, high) for low, high in padding)
    out = tuple((size + sum(pad) - own) // s + 1 for size, pad, own, s in zip(lhs.shape[1:-1], pads, window, strides, strict=True))
    if min(out) < 1:
        raise ValueError(f"a window of {window} does not fit into an input of {lhs.shape[1:-1]} with padding {pads}")
    places = _Places(rhs.shape[:-2], dilation, strides, pads, out)
    convolve = _channels_first if rhs.shape[-1] < NARROW else _channels_last
    return convolve(lhs, rhs, places, options.get("precision"))


CONVOLUTIONS: dict[str, Callable[..., Array]] = {"auto": auto, "patches": patches, "lax": lax.conv_general_dilated}
"""Convolutions by name."""


def max_pool(x: Array, window: int = 2, *, stride: int | None = None, pad: int = 0) -> Array:
    """Maximum over square windows of images `[..., H, W, C]`; `stride` is `window` if None, rows and columns left over are dropped.

    pad: rows and columns of -inf on each side. By reshaping where windows do not overlap, else by shifted slices: the library's
    pooling has a slow gradient inside a loop.
    """
    stride = stride or window
    if pad:
        x = jnp.pad(x, ((0, 0),) * (x.ndim - 3) + ((pad, pad), (pad, pad), (0, 0)), constant_values=-jnp.inf)
    height, width = ((size - window) // stride + 1 for size in x.shape[-3:-1])
    if stride == window:
        cut = x[..., : height * window, : width * window, :]
        return cut.reshape(*x.shape[:-3], height, window, width, window, x.shape[-1]).max((-4, -2))
    rows, columns = ((size - 1) * stride + 1 for size in (height, width))
    pieces = [x[..., i : i + rows : stride, j : j + columns : stride, :] for i, j in itertools.product(range(window), repeat=2)]
    return jax.tree.reduce(jnp.maximum, pieces)


class _Places:
    """Where the elements of a window meet the padded input; static and hashable."""

    def __init__(self, window: Sequence[int], dilation: Sequence[int], strides: Sequence[int], pads: Pads, out: Sequence[int]):
        self.pads, self.out, self.strides = pads, tuple(out), tuple(strides)
        self.starts = tuple(itertools.product(*(range(0, size * step, step) for size, step in zip(window, dilation, strict=True))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Places) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def slices(self, start: Sequence[int]) -> tuple[slice, ...]:
        """The part of the padded input, along its axes of space, that the window's element at `start` meets."""
        return tuple(slice(at, at + (n - 1) * s + 1, s) for at, n, s in zip(start, self.out, self.strides, strict=True))

    def spread(self, piece: Array, start: Sequence[int], space: Sequence[int], first_axis: int) -> Array:
        """The transpose of taking `slices`: put a piece back into zeros as large as the padded input."""
        config = [(0, 0, 0)] * piece.ndim
        for axis, (at, n, s, size) in enumerate(zip(start, self.out, self.strides, space, strict=True)):
            config[first_axis + axis] = (at, size - at - (n - 1) * s - 1, s - 1)
        return lax.pad(piece, jnp.zeros((), piece.dtype), config)


def _is_plain(lhs: Array, rhs: Array, **options: Any) -> bool:
    numbers = options.get("dimension_numbers")
    in_order = tuple(range(lhs.ndim))
    last = (0, lhs.ndim - 1, *in_order[1:-1])
    if numbers is not None and not isinstance(numbers, lax.ConvDimensionNumbers):
        numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
    is_channels_last = numbers is not None and numbers == lax.ConvDimensionNumbers(last, (lhs.ndim - 1, lhs.ndim - 2, *in_order[:-2]), last)
    is_ungrouped = all(options.get(name, 1) == 1 for name in ("feature_group_count", "batch_group_count"))
    return is_channels_last and is_ungrouped and math.prod(options.get("lhs_dilation") or (1,)) == 1


def _padded(x: Array, places: _Places) -> Array:
    return jnp.pad(x, ((0, 0), *places.pads, (0, 0)))


def _channels_first(x: Array, kernel: Array, places: _Places, precision: Any) -> Array:
    """Patches `[window * C, B * space]`; differentiated by JAX, which keeps them."""
    features = kernel.shape[-1]
    whole = jnp.moveaxis(_padded(x, places), -1, 0)
    columns = jnp.stack([whole[(slice(None), slice(None), *places.slices(start))] for start in places.starts])
    product = jnp.matmul(kernel.reshape(-1, features).T, columns.reshape(-1, x.shape[0] * math.prod(places.out)), precision=precision)
    return jnp.moveaxis(product.reshape(features, x.shape[0], *places.out), 0, -1)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _channels_last(x: Array, kernel: Array, places: _Places, precision: Any) -> Array:
    """Patches `[B, *space, window * C]`, made anew for the gradient."""
    return jnp.matmul(_rows(x, places), kernel.reshape(-1, kernel.shape[-1]), precision=precision)


def _rows(x: Array, places: _Places) -> Array:
    whole = _padded(x, places)
    pieces = [whole[(slice(None), *places.slices(start), slice(None))] for start in places.starts]
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)


def _forward(x: Array, kernel: Array, places: _Places, precision: Any) -> tuple[Array, tuple[Array, Array]]:
    return _channels_last(x, kernel, places, precision), (x, kernel)


def _backward(places: _Places, precision: Any, saved: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, kernel = saved
    channels = x.shape[-1]
    all_but_last = tuple(range(slope.ndim - 1))
    of_kernel = lax.dot_general(_rows(x, places), slope, ((all_but_last, all_but_last), ((), ())), precision=precision)
    of_rows = jnp.matmul(slope, kernel.reshape(-1, kernel.shape[-1]).T, precision=precision)
    space = [size + sum(pad) for size, pad in zip(x.shape[1:-1], places.pads, strict=True)]
    of_padded = jnp.zeros((x.shape[0], *space, channels), slope.dtype)
    for i, start in enumerate(places.starts):
        of_padded += places.spread(of_rows[..., i * channels : (i + 1) * channels], start, space, first_axis=1)
    inside = tuple(slice(low, low + size) for (low, _), size in zip(places.pads, x.shape[1:-1], strict=True))
    return of_padded[(slice(None), *inside, slice(None))], of_kernel.reshape(kernel.shape)


_channels_last.defvjp(_forward, _backward)
