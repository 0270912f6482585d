"""Lay the local steps of all slots of a tick end to end in rows of equal length.

Slots differ in their steps. An accelerator that batches all of them, with a trip count that is
known before compiling, makes as many steps for each as the longest slot of any tick needs. Here the
slots are cut from one long line of steps instead (McNaughton's wrap-around rule): the line is laid
into rows of K steps, where K is the most steps of any slot, and one loop of K trips runs a step of
every row. Only the end of the last rows is idle.

A slot that begins at the end of one row continues at the beginning of the next, which is earlier in
the loop. So its first steps are those at the beginning of the next row, and it never runs in two
rows at once, because it has at most K steps. Where a row comes to the end of a slot, or of its part
in this row, it writes the slot's model to an array `[S, P]`; where it comes to the next slot, it
reads that one's model from there.

Dimension letters: those of `core.types`; `K` steps of a row, `W` rows, `F` lanes of a family.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.tree_util import PyTreeDef

from fedjax_sim.core import batching, targets
from fedjax_sim.core.types import Array, PackedRows, Params

LARGEST_COPIED = 2**16
"""Bytes of the arrays that steps read and that differ between lanes, up to which slots have copies.

If they are larger, the lanes of a device do not share rows: each is packed apart from the others.
"""

Rows = tuple[list[Array], Array]
"""The leaves that slots carry in the end, and the steps that were run."""
Step = Callable[[Array, Params], Params]
"""From the number of a slot's step, `i32[]`, and the slot's carry to its next carry."""


def run_in_rows(
    begin: Callable[..., tuple[Params, Step]],
    rows: PackedRows,
    length: int,
    steps: Array,
    *slots: Params,
) -> tuple[Params, Array]:
    """Run the steps of every slot.

    Lanes that are batched by `vmap` share rows. The members of a family that is batched by `vmap`
    have the same schedule and are batched within each step.

    Args:
      begin: Called as `begin(*slot)` before the first step; returns what the slot carries and its
        step. What the step reads of the slot, `begin` looks up or computes once.
      rows: How many rows there are.
      length: Steps of a row, K: the most steps of any slot.
      steps: `i32[S]`, steps of each slot, at most K.
      slots: Pytrees with leading axis S.

    Returns:
      What the slots carry in the end, leaves `[S, ...]`, and the steps that were run, each slot
      with its share of the idle ones, `i32[S]`.
    """
    structures: list[tuple[PyTreeDef, Jaxpr]] = []

    def before(*slot: Params) -> list[Array]:
        carry, step = begin(*slot)
        leaves, structure = jax.tree.flatten(carry)

        def of_leaves(q: Array, *leaves: Array) -> list[Array]:
            return jax.tree.leaves(step(q, jax.tree.unflatten(structure, leaves)))

        program = jax.make_jaxpr(of_leaves)(jnp.int32(0), *leaves)
        structures.append((structure, program.jaxpr))
        return [*leaves, *program.consts]

    described = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), slots)
    program = jax.make_jaxpr(before)(*described)
    ((structure, body),) = structures
    num = structure.num_leaves
    varying = _depending(program.jaxpr)
    is_shared = [not varies for varies in varying[num:]]

    def first(*slot: Params) -> list[Array]:
        return jaxpr_as_fun(program)(*jax.tree.leaves(slot))

    # What does not depend on the slot is not copied for each.
    values = jax.vmap(first, out_axes=[0] * num + [None if it else 0 for it in is_shared])(*slots)
    carries, read = values[:num], values[num:]
    shared = [value for value, it in zip(read, is_shared, strict=True) if it]
    of_slots = [value for value, it in zip(read, is_shared, strict=True) if not it]

    def step(
        shared: list[Array], of_slot: list[Array], q: Array, leaves: list[Array]
    ) -> list[Array]:
        both = iter(shared), iter(of_slot)
        consts = [next(both[0] if is_one else both[1]) for is_one in is_shared]
        return jaxpr_as_fun(ClosedJaxpr(body, consts))(q, *leaves)

    results, executed = _batchable(step, rows, length)(steps, carries, of_slots, shared)
    return jax.tree.unflatten(structure, results), executed


def _depending(program: Jaxpr) -> list[bool]:
    """Mark the results of a program that depend on its inputs, and not only on constants."""
    found = set(program.invars)
    for equation in program.eqns:
        if any(not isinstance(var, Literal) and var in found for var in equation.invars):
            found.update(equation.outvars)
    return [not isinstance(var, Literal) and var in found for var in program.outvars]


def _batchable(
    step: Callable[..., list[Array]], rows: PackedRows, length: int
) -> Callable[..., Rows]:
    """Return `_run` as a function that shares rows between the lanes of a `vmap`.

    step: Called with what all slots share, what belongs to one slot, the number of the step and the
      leaves that the slot carries; returns these leaves after the step.
    """

    pooled = rows.pooled, rows.pooled_slots
    of_lane = rows.of_lane, rows.lane_slots

    @custom_vmap
    def run(steps: Array, carries: list[Array], of_slots: list[Array], shared: list[Array]) -> Rows:
        return _run(step, pooled, length, steps, carries, of_slots, shared)

    @run.def_vmap
    def batched(size: int, which: Any, *inputs: Any) -> Any:
        steps, carries, of_slots, shared = inputs
        are_steps, are_carries, are_of_slots, are_shared = which
        carries = _with_lanes(carries, are_carries, size)
        if not are_steps:
            # Members of a family: each step is batched.
            axes = ([0 if it else None for it in each] for each in (are_shared, are_of_slots))
            of_members = jax.vmap(step, in_axes=(*axes, None, 0))
            carries = [jnp.swapaxes(leaf, 0, 1) for leaf in carries]
            of_slots = [
                jnp.swapaxes(leaf, 0, 1) if it else leaf
                for leaf, it in zip(of_slots, are_of_slots, strict=True)
            ]
            results, executed = _batchable(of_members, rows, length)(
                steps, carries, of_slots, shared
            )
            is_batched = [True] * len(results), False
            return ([jnp.swapaxes(leaf, 0, 1) for leaf in results], executed), is_batched
        # Large shared arrays of each lane stay where they are: every lane has rows of
        # its own.
        varying = [leaf for leaf, it in zip(shared, are_shared, strict=True) if it]
        if sum(leaf.nbytes for leaf in varying) > size * LARGEST_COPIED:
            axes = ([0 if it else None for it in each] for each in (are_of_slots, are_shared))
            run_one = partial(_run, step, of_lane, length)
            lanes = jax.vmap(run_one, in_axes=(0, 0, *axes))
            results, executed = lanes(steps, carries, of_slots, shared)
        else:
            # Otherwise the slots of all lanes share rows, with copies of what
            # differs between lanes.
            num = steps.shape[1]
            of_lanes = steps, carries, _with_lanes(of_slots, are_of_slots, size)
            pooled = batching.merge(of_lanes)
            copies = [
                batching.merge(jnp.broadcast_to(leaf[:, None], (size, num, *leaf.shape[1:])))
                for leaf in varying
            ]

            def with_copies(
                shared: list[Array], of_slot: list[Array], q: Array, leaves: list[Array]
            ) -> list[Array]:
                of_slot, copies = of_slot[: len(of_slots)], iter(of_slot[len(of_slots) :])
                rest = iter(shared)
                shared = [next(copies if it else rest) for it in are_shared]
                return step(shared, of_slot, q, leaves)

            rest = [leaf for leaf, it in zip(shared, are_shared, strict=True) if not it]
            enough = rows
            if size * num > rows.pooled_slots:  # The steps of equal lanes were counted once.
                more = size * rows.pooled_slots
                enough = rows._replace(pooled=size * rows.pooled, pooled_slots=more)
            results, executed = _batchable(with_copies, enough, length)(
                pooled[0], pooled[1], [*pooled[2], *copies], rest
            )
            results, executed = jax.tree.map(
                lambda leaf: leaf.reshape(size, num, *leaf.shape[1:]), (results, executed)
            )
        return (results, executed), ([True] * len(results), True)

    return run


def _with_lanes(leaves: list[Array], are_batched: Sequence[bool], size: int) -> list[Array]:
    """Give every array a leading axis of lanes."""
    return [
        leaf if it else jnp.broadcast_to(leaf, (size, *leaf.shape))
        for leaf, it in zip(leaves, are_batched, strict=True)
    ]


class Places(NamedTuple):
    """The local step at each place of the rows: `[K, W]`.

    Attributes:
      slot: `i32`, the slot of each step; any where a row is idle.
      number: `i32`, which of the slot's steps it is.
      is_first: `bool`, whether a slot, or its part in this row, begins.
      is_last: `bool`, whether it ends.
    """

    slot: Array
    number: Array
    is_first: Array
    is_last: Array


def lay_in_rows(steps: Array, num_rows: int, length: int) -> tuple[Places, Places]:
    """Lay slots into rows.

    Args:
      steps: `i32[S]`, steps of the slots, together at most W * K.
      num_rows: W.
      length: K, at least the steps of any slot.

    Returns:
      What is at each place, and at the one after it, which for the end of a row is the beginning
      of the next row.
    """
    # Both are computed, because an accelerator would need further kernels to shift an array.
    ends, after = jnp.cumsum(steps), jnp.arange(2, dtype="int32")[:, None, None]
    place = jnp.arange(num_rows * length, dtype="int32").reshape(num_rows, length).T[None] + after
    # Unrolled, so that an accelerator has one kernel.
    slot = jnp.searchsorted(ends, place, side="right", method="scan_unrolled")
    is_idle, slot = slot == steps.shape[0], jnp.minimum(slot, steps.shape[0] - 1).astype("int32")
    end = targets.take_rows(ends, slot)
    first = end - targets.take_rows(steps, slot)
    cut = (first // length + 1) * length  # where the next row begins
    carried = jnp.maximum(end - cut, 0)  # steps of the slot in the next row
    number = jnp.where(place < cut, carried + place - first, place - cut)
    is_first = (place == first) | (place == cut)
    is_last = (place == end - 1) | (place == cut - 1)
    both = Places(slot, number, is_first & ~is_idle, is_last & ~is_idle)
    return Places(*(leaf[0] for leaf in both)), Places(*(leaf[1] for leaf in both))


def _run(
    step: Callable[..., list[Array]],
    counted: tuple[int, int],
    length: int,
    steps: Array,
    carries: list[Array],
    of_slots: list[Array],
    shared: list[Array],
) -> Rows:
    """Run the steps of every slot, see `run_in_rows`.

    Args:
      step: As in `_batchable`.
      counted: The rows, and the slots for which they were counted.
      length: Steps of a row.
      steps: `i32[S]`, steps of the slots.
      carries: What slots carry.
      of_slots: What the steps of one slot read.
      shared: What the steps of all slots read.

    Raises:
      ValueError: If there are more slots than were counted, whose steps might not fit.
    """
    num, (num_rows, num_counted) = steps.shape[0], counted
    if num > num_counted:
        raise ValueError(f"{num_rows} rows were counted for {num_counted} slots, not for {num}.")
    places, next_places = lay_in_rows(steps, num_rows, length)
    # Rows that write nothing write behind the end, each elsewhere.
    target = jnp.where(places.is_last, places.slot, num + jnp.arange(num_rows, dtype="int32")[None])
    # What follows each step, in a table that is read at the same place: otherwise XLA keeps two
    # counters. Rows that read nothing read the first slot, which is in the cache then.
    is_next = next_places.is_first
    following = jnp.where(is_next, next_places.slot, 0)
    in_rows = jax.vmap(step, in_axes=(None, 0, 0, 0))
    # The leaves of a slot stand together, one vector for each type, which one kernel writes.
    join = jax.vmap(lambda leaves: targets.pack(leaves)[0])
    split = targets.pack([leaf[0] for leaf in carries])[1]

    def trip(t: Array, state: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
        store, leaves = state
        slot, number, to, is_new, new = (
            jax.lax.dynamic_index_in_dim(each, t, keepdims=False)
            for each in (places.slot, places.number, target, is_next, following)
        )
        leaves = in_rows(
            shared, [targets.take_rows(leaf, slot) for leaf in of_slots], number, leaves
        )
        store = [
            into.at[to].set(leaf, mode="drop", unique_indices=True)
            for into, leaf in zip(store, join(leaves), strict=True)
        ]
        # At the end of a row the next slot does not matter.
        kept = split([targets.take_rows(each, new) for each in store])
        leaves = [
            jnp.where(is_new.reshape(-1, *(1,) * (leaf.ndim - 1)), there, leaf)
            for there, leaf in zip(kept, leaves, strict=True)
        ]
        return store, leaves

    store = join(carries)
    first = split([targets.take_rows(each, places.slot[0]) for each in store])
    store, _ = jax.lax.fori_loop(0, length, trip, (store, first))
    idle = num_rows * length - steps.sum()
    share = idle // num + (jnp.arange(num) < idle % num)
    return split(store), steps + share
