"""Map work over the lanes of a program and over the slots of a tick."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.types import Array, Plan

LANE_AXIS, SETTINGS_AXIS = "lane", "settings"
"""Axis names of lanes batched by vmap, and of those in a batch of their own that differ in settings alone."""


def map_lanes(run: Callable[..., Any], lanes: Any, *, at_once: bool, batches: int = 1) -> Any:
    """Apply `run` to every lane. lanes: a pytree with leading axis L, which `batches` divides."""
    if at_once:
        batched = jax.vmap(run, axis_name=LANE_AXIS)
        if batches == 1:
            return batched(lanes)
        results = jax.lax.map(
            batched, jax.tree.map(lambda leaf: leaf.reshape(batches, -1, *leaf.shape[1:]), lanes)
        )
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)
    if jax.tree.leaves(lanes)[0].shape[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], run(jax.tree.map(lambda leaf: leaf[0], lanes)))
    return jax.lax.map(run, lanes)


def map_slots(work: Callable[..., Any], plan: Plan, steps: Array, *slots: Any) -> tuple[Any, Array]:
    """Apply `work(trips, *slot)` to the slots of a tick; trips is at least the slot's steps and common to all that run at once.

    steps: `i32[S]`; slots: pytrees with leading axis S. Returns the results with leading axis S, and `i32[]`, trips taken in all.
    """
    if plan.client_devices > 1:
        return _split_slots(work, plan, steps, slots)
    num, size = steps.shape[0], plan.slots_at_once
    if size >= num:
        trips = _common(steps.max(), plan)
        return jax.vmap(lambda *slot: work(trips, *slot))(*slots), trips * num
    if size == 1:

        def one(slot: tuple[Array, Any]) -> tuple[Any, Array]:
            trips = _common(slot[0], plan)
            return work(trips, *slot[1]), trips

        results, trips = jax.lax.map(one, (steps, slots))
        return results, trips.sum()
    return _blocks(work, plan, steps, slots)


def _blocks(work: Callable[..., Any], plan: Plan, steps: Array, slots: Any) -> tuple[Any, Array]:
    """Batches of `slots_at_once` slots, the longest together, so that few steps are padded."""
    num, size = steps.shape[0], plan.slots_at_once
    order = jnp.argsort(-steps)
    order = jnp.concatenate([order, jnp.repeat(order[-1:], -num % size)])

    def block(slot: Any) -> tuple[Any, Array]:
        trips = _common(slot[0].max(), plan)
        return jax.vmap(lambda *one: work(trips, *one))(*slot[1]), trips * size

    blocks = jax.tree.map(
        lambda leaf: leaf[order].reshape(-1, size, *leaf.shape[1:]), (steps, slots)
    )
    results, trips = jax.lax.map(block, blocks)
    back = jnp.argsort(order[:num])
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num][back], results
    ), trips.sum()


def _split_slots(
    work: Callable[..., Any], plan: Plan, steps: Array, slots: Any
) -> tuple[Any, Array]:
    """Each device of the mesh axis "clients" takes its share of the slots; the results are gathered on all of them."""
    num = steps.shape[0]
    share = -(-num // plan.client_devices)
    mine = jax.lax.axis_index("clients") * share + jnp.arange(share)
    rows = jnp.minimum(mine, num - 1)
    own_steps = jnp.where(mine < num, steps[rows], 0)
    own = jax.tree.map(lambda leaf: leaf[rows], slots)
    results, trips = map_slots(work, plan._replace(client_devices=1), own_steps, *own)
    gathered = jax.tree.map(
        lambda leaf: jax.lax.all_gather(leaf, "clients", tiled=True)[:num], results
    )
    return gathered, jax.lax.psum(trips, "clients")


def _common(trips: Array, plan: Plan) -> Array:
    """Make a trip count the same for all lanes of a batch: a `while_loop` with a predicate per lane selects its whole state each time."""
    trips = jax.lax.pmax(trips, LANE_AXIS) if plan.lanes_at_once else trips
    return jax.lax.pmax(trips, SETTINGS_AXIS) if plan.settings_at_once > 1 else trips
