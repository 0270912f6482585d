"""The kind of machine a program is traced for, and operations that are written differently for it.

The same mathematics is written down differently for a CPU and for an accelerator: a loop that a CPU
runs in its cache is a train of kernel launches on a GPU. The engine states the machine while it
traces; anything traced outside it is for JAX's default backend.

A GPU launches one kernel for all choices between arrays of one shape, and one kernel for every
write into a part of an array. So small arrays are written to by choices there (`put`), and stand
together where a loop carries them (`pack`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

# Context variables, as JAX's own precision of products is: layers of models and losses of problems
# ask for the machine, which users call with arrays alone.
_TARGET: ContextVar[str | None] = ContextVar("target", default=None)
_TOGETHER: ContextVar[int] = ContextVar("together", default=1)

TreeT = TypeVar("TreeT")
"""A pytree of arrays."""
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


IN_BOUNDS: Mapping[str, Any] = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
"""Rows that are there and not negative, which makes reading and writing them quick."""


def take_rows(table: jax.Array, rows: Any) -> jax.Array:
    """Look up rows that are there.

    Args:
      table: `[N, ...]`.
      rows: Their numbers `i32[...]`, none negative; or a tuple of such for several axes.
    """
    return table.at[rows].get(**IN_BOUNDS)


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """State the platform, such as "cpu" or "tpu", of the program traced inside.

    Args:
      platform: The platform.
    """
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


@contextlib.contextmanager
def batching(lanes: int) -> Iterator[None]:
    """State that the program traced inside is computed for several lanes at once.

    Args:
      lanes: How many times as many lanes as outside.
    """
    token = _TOGETHER.set(_TOGETHER.get() * lanes)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def lanes_together() -> int:
    """Return how many lanes the program that is being traced computes at once on a device."""
    return _TOGETHER.get()


def is_for_cpu() -> bool:
    """Tell whether the program that is being traced will run on a CPU."""
    return (_TARGET.get() or jax.default_backend()) == "cpu"


def put(tree: TreeT, place: jax.Array, new: TreeT | ArrayLike) -> TreeT:
    """Replace one row of each array.

    Args:
      tree: Arrays of equally many rows, leaves `[M, ...]`.
      place: `i32[]`, which row, from 0; one that does not exist, such as -1, replaces nothing.
      new: The rows, leaves `[...]`, in the tree's structure.

    Returns:
      The arrays.
    """

    def replace(leaf: jax.Array, row: ArrayLike) -> jax.Array:
        row = jnp.asarray(row, leaf.dtype)
        if is_for_cpu():
            return leaf.at[jnp.where(place < 0, len(leaf), place)].set(row, mode="drop")
        is_place = (jnp.arange(len(leaf)) == place).reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(is_place, row[None], leaf)

    return jax.tree.map(replace, tree, new)


def put_all(tree: TreeT, places: jax.Array, new: TreeT | ArrayLike) -> TreeT:
    """Replace several rows of each array.

    Args:
      tree: Arrays of equally many rows, leaves `[N, ...]`.
      places: `i32[S]`, different rows, from 0; those that do not exist, such as -1, replace
        nothing.
      new: The rows, leaves `[S, ...]` or `[...]`, in the tree's structure.

    Returns:
      The arrays.
    """
    num = len(jax.tree.leaves(tree)[0])
    is_place = jnp.arange(num)[:, None] == places[None]

    def replace(leaf: jax.Array, rows: ArrayLike) -> jax.Array:
        rows = jnp.asarray(rows, leaf.dtype)
        if is_for_cpu():
            return leaf.at[jnp.where(places < 0, num, places)].set(rows, mode="drop")
        rows = jnp.broadcast_to(rows, (len(places), *leaf.shape[1:]))
        is_here = is_place.reshape(*is_place.shape, *(1,) * (leaf.ndim - 1))
        # Looked up by a maximum, in a form that a GPU fuses with its use.
        is_real = jnp.issubdtype(leaf.dtype, jnp.floating)
        if leaf.dtype == bool:
            found = (is_here & rows[None]).any(axis=1)
        else:
            least = jnp.asarray(-jnp.inf if is_real else jnp.iinfo(leaf.dtype).min, leaf.dtype)
            found = jnp.where(is_here, rows[None], least).max(axis=1)
        return jnp.where(is_here.any(axis=1), found, leaf)

    return jax.tree.map(replace, tree, new)


def repeat(number: int, body: Callable[[TreeT], TreeT], begin: TreeT) -> TreeT:
    """Do something a number of times with small arrays.

    Args:
      number: How often.
      body: From arrays to arrays of equal shapes and types.
      begin: The first arrays.

    Returns:
      The last ones.
    """
    if is_for_cpu():
        return jax.lax.fori_loop(0, number, lambda _, tree: body(tree), begin)
    vectors, unpack = pack(begin)
    vectors = jax.lax.fori_loop(0, number, lambda _, packed: pack(body(unpack(packed)))[0], vectors)
    return unpack(vectors)


def repeat_while(
    goes_on: Callable[[TreeT], jax.Array], body: Callable[[TreeT], TreeT], begin: TreeT
) -> TreeT:
    """Do something with small arrays as long as a condition holds.

    Args:
      goes_on: From the arrays to whether to go on: `bool[]`.
      body: As in `repeat`.
      begin: The first arrays.

    Returns:
      The last ones.
    """
    if is_for_cpu():
        return jax.lax.while_loop(goes_on, body, begin)
    vectors, unpack = pack(begin)

    def again(packed: list[jax.Array]) -> list[jax.Array]:
        return pack(body(unpack(packed)))[0]

    return unpack(jax.lax.while_loop(lambda packed: goes_on(unpack(packed)), again, vectors))


def packed_scan(
    step: Callable[[TreeT, InputT], tuple[TreeT, OutputT]], carry: TreeT, inputs: InputT
) -> tuple[TreeT, OutputT]:
    """Do `jax.lax.scan` on an accelerator, where steps return small arrays besides their carry.

    The returned arrays have no derivatives.

    Args:
      step: From what is carried and an input to what is carried then and what is returned.
      carry: What is carried at first.
      inputs: The inputs, leaves `[number of steps, ...]`.

    Returns:
      What is carried at last, and what the steps returned, leaves `[number of steps, ...]`.
    """
    unpack: list[Callable[[list[jax.Array]], OutputT]] = []

    def packed(carry: TreeT, given: InputT) -> tuple[TreeT, list[jax.Array]]:
        carry, returned = step(carry, given)
        vectors, of_vectors = pack(returned, as_bits=True)
        unpack.append(of_vectors)
        return carry, vectors

    carry, vectors = jax.lax.scan(packed, carry, inputs)
    return carry, unpack[-1](vectors)


def pack(
    tree: TreeT, *, as_bits: bool = False
) -> tuple[list[jax.Array], Callable[[list[jax.Array]], TreeT]]:
    """Put small arrays next to each other: one vector for each type, which keeps derivatives.

    Args:
      tree: A pytree of arrays.
      as_bits: Whether floats of 32 bits are stored by their bits in the vector of whole numbers,
        without derivatives.

    Returns:
      The vectors; whole numbers and truth values of up to 32 bits share one. And a function from
      these, which may have further axes before their own, to the tree.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    forms = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    are_bits = [as_bits and leaf.dtype == jnp.float32 for leaf in leaves]
    parts: dict[np.dtype, list[jax.Array]] = {}
    kinds = []
    for leaf, is_bits in zip(leaves, are_bits, strict=True):
        is_whole = jnp.issubdtype(leaf.dtype, jnp.signedinteger) and leaf.dtype.itemsize <= 4
        kind = jnp.dtype("int32") if is_bits or is_whole or leaf.dtype == bool else leaf.dtype
        parts.setdefault(kind, []).append(_cast(leaf.ravel(), kind, is_bits=is_bits))
        kinds.append(kind)

    def unpack(packed: list[jax.Array]) -> TreeT:
        vectors = dict(zip(parts, packed, strict=True))
        begins = dict.fromkeys(parts, 0)
        found = []
        for form, kind, is_bits in zip(forms, kinds, are_bits, strict=True):
            begin, end = begins[kind], begins[kind] + math.prod(form.shape)
            part = jax.lax.slice_in_dim(vectors[kind], begin, end, axis=-1)
            part = part.reshape(*part.shape[:-1], *form.shape)
            found.append(_cast(part, form.dtype, is_bits=is_bits))
            begins[kind] = end
        return jax.tree.unflatten(structure, found)

    return [jnp.concatenate(each) for each in parts.values()], unpack


def _cast(leaf: jax.Array, kind: np.dtype, *, is_bits: bool) -> jax.Array:
    if is_bits:
        return jax.lax.bitcast_convert_type(leaf, kind)
    return leaf if leaf.dtype == kind else leaf.astype(kind)
