"""Run a function for every lane, for the lanes of a family, or for every slot of a tick.

Slots, ticks and lanes are explained in `fedjax_sim.core.types`, families in
`fedjax_sim.engine.planning.lanes`.

Each of the three can be batched by `vmap`, which does as many steps of a loop for every member as
the longest of its batch needs, or run one member after another, each with its own number of steps.
Systems do not know which is used; `fedjax_sim.engine.planning.placement` decides.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from fedjax_sim.core import targets
from fedjax_sim.core.types import Array, Params, Plan

TreeT = TypeVar("TreeT")
OtherT = TypeVar("OtherT")
ResultT = TypeVar("ResultT")

LANE_AXIS = "lane"
"""Axis name of lanes that are batched by `vmap`."""
FAMILY_AXIS = "family"
"""Axis name of the members of a family that are batched by `vmap`."""
LOOKED_AHEAD = 2**20
"""Most bytes that `look_ahead` keeps for one slot."""


def map_lanes(
    run: Callable[[TreeT], ResultT],
    lanes: TreeT,
    *,
    at_once: bool,
    batches: int = 1,
    runs: Array | None = None,
) -> ResultT:
    """Apply a function to every lane.

    Args:
      run: From one lane's inputs to its results.
      lanes: Pytree with leading axis L.
      at_once: Whether lanes are batched by `vmap` or run one after another.
      batches: Number of equal batches into which batched lanes are split; it divides L.
      runs: `bool[L]`, the lanes that have not ended; None if none ends.

    Returns:
      The results with leading axis L.
    """
    if at_once:
        batched = jax.vmap(run, axis_name=LANE_AXIS)
        with targets.batching(jax.tree.leaves(lanes)[0].shape[0] // batches):
            return batched(lanes) if batches == 1 else _in_batches(batched, lanes, batches, runs)
    if jax.tree.leaves(lanes)[0].shape[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], run(jax.tree.map(lambda leaf: leaf[0], lanes)))
    return jax.lax.map(run, lanes)


def _in_batches(
    run: Callable[[TreeT], ResultT], lanes: TreeT, num: int, runs: Array | None
) -> ResultT:
    """Run batches of lanes one after another.

    Lanes that have not ended take the places of those that have, and fill the first batches.
    """
    if runs is None:
        return merge(jax.lax.map(run, _split(lanes, num)))
    order = jnp.argsort(~runs)
    taken = jax.tree.map(lambda leaf: leaf[order], lanes)
    results, back = merge(jax.lax.map(run, _split(taken, num))), jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[back], results)


def map_families(
    run: Callable[[tuple[TreeT, OtherT]], ResultT],
    shared: TreeT,
    varying: OtherT,
    *,
    size: int,
    map_over: Callable[[Callable[..., ResultT], tuple[TreeT, OtherT]], ResultT],
) -> ResultT:
    """Apply a function to every lane, batching the members of each family.

    What the members share is passed once for the family, so that everything computed from it alone,
    such as mini-batches and noise, is computed once.

    Args:
      run: From the pair of a lane's shared and varying inputs to its results.
      shared: Pytree with leading axis L, equal within each family.
      varying: Pytree with leading axis L.
      size: Members of a family, adjacent in the leading axis; it divides L.
      map_over: Applies a function to every family, for example `map_lanes`.

    Returns:
      The results with leading axis L.
    """

    def family(inputs: tuple[TreeT, OtherT]) -> ResultT:
        of_family, of_members = inputs
        members = jax.vmap(
            lambda member: run((of_family, member)), axis_name=FAMILY_AXIS, axis_size=size
        )
        with targets.batching(size):
            return members(of_members)

    num = jax.tree.leaves(shared)[0].shape[0] // size
    firsts = jax.tree.map(lambda leaf: leaf[:, 0], _split(shared, num))
    return merge(map_over(family, (firsts, _split(varying, num))))


def map_slots(
    work: Callable[..., Params],
    plan: Plan,
    steps: Array,
    *slots: object,
    trips: int | None = None,
    weights: Array | None = None,
) -> tuple[Params, Array]:
    """Apply a function to every slot of a tick.

    Args:
      work: Called as `work(trips, *slot)`. `trips` is at least the slot's steps and is common to
        all slots and lanes that run together.
      plan: The static plan.
      steps: `i32[S]`, local steps of each slot.
      slots: Pytrees with leading axis S.
      trips: A number of trips that is known before compiling and is enough for all slots at all
        ticks. By default they are counted at each tick.
      weights: `f[S]`; if given, `work` returns a pair, whose first part comes back as the sum over
        slots with these weights. It is added up as it is made, so that a device holds it for as
        many slots as it runs at once.

    Returns:
      The results with leading axis S, or, with weights, the sum without that axis and the second
      parts; and the trips taken by all slots together, `i32[]`.
    """
    if plan.client_devices > 1:
        alone = plan._replace(client_devices=1)

        def share(weights: Array | None, steps: Array, *slots: object) -> tuple[Params, Array]:
            return map_slots(work, alone, steps, *slots, trips=trips, weights=weights)

        return split_over_devices(share, plan, steps, *slots, weights=weights)

    if plan.slots_at_once < steps.shape[0]:
        return _map_blocks(work, plan, (steps, weights, slots), trips)
    taken = _common_trips(steps.max(), plan) if trips is None else trips
    results = jax.vmap(partial(work, taken))(*slots)
    if weights is not None:
        results = weighted_sum(weights, results[0]), results[1]
    return results, jnp.asarray(taken * steps.size)


def _map_blocks(
    work: Callable[..., Params],
    plan: Plan,
    inputs: tuple[Array, Array | None, tuple],
    trips: int | None,
) -> tuple[Params, Array]:
    """Apply a function to one slot after another, or block by block; see `map_slots`."""
    (steps, weights, slots), size = inputs, plan.slots_at_once
    num = steps.shape[0]

    def run(inputs: Params) -> tuple[Params, Array]:
        steps, weights, slots = inputs
        if size > 1:
            return map_slots(work, plan, steps, *slots, trips=trips, weights=weights)
        taken = _common_trips(steps, plan) if trips is None else trips
        results = work(taken, *slots)
        if weights is not None:
            results = _times(weights, results[0]), results[1]
        return results, jnp.asarray(taken)

    if size == 1:
        results, taken = _in_turn(run, inputs)
        return results, taken.sum()
    # Blocks are sorted by steps, so that few steps are padded.
    order = jnp.argsort(-steps)
    order = jnp.concatenate([order, jnp.repeat(order[-1:], -num % size)])
    steps, weights, slots = jax.tree.map(lambda leaf: leaf[order], (steps, weights, slots))
    if weights is not None:
        weights = jnp.where(jnp.arange(order.size) < num, weights, 0)
    blocks = _split((steps, weights, slots), -(-num // size))
    results, taken = _in_turn(run, blocks)
    back = jnp.argsort(order[:num])

    def in_order(results: TreeT) -> TreeT:
        return jax.tree.map(lambda leaf: leaf[:num][back], merge(results))

    if weights is not None:
        return (results[0], in_order(results[1])), taken.sum()
    return in_order(results), taken.sum()


def _in_turn(
    run: Callable[[Params], tuple[Params, Array]], inputs: tuple[Array, Array | None, Params]
) -> tuple[Params, Array]:
    """Run a function for one slot or block after another.

    Args:
      run: From steps, weights and slots to results and trips taken.
      inputs: These, with a leading axis. If there are weights, the results are a pair.

    Returns:
      What `run` returns, with a leading axis; with weights the first of the pair is a sum without.
    """
    if inputs[1] is None:
        return jax.lax.map(run, inputs)

    def add(total: Params, element: Params) -> tuple[Params, tuple[Params, Array]]:
        (first, second), taken = run(element)
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, first), (second, taken)

    def zeros(leaf: Array) -> Array:
        # Long sums are kept in at least 32 bits.
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, "float32"))

    like = jax.eval_shape(run, jax.tree.map(lambda leaf: leaf[0], inputs))[0][0]
    total, (second, taken) = jax.lax.scan(add, jax.tree.map(zeros, like), inputs)
    return (jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, like), second), taken


def look_ahead(draw: Callable[[Array], TreeT], most_steps: int | None) -> Callable[[Array], TreeT]:
    """Draw a client's random numbers for all its steps together, before the first.

    One pass over the numbers of all steps is much cheaper than a pass in each step.

    Args:
      draw: From the number of a step, `i32[]`, to arrays.
      most_steps: Numbers are below this; None if that is not known.

    Returns:
      A function with the same results. It is `draw` itself if more than `LOOKED_AHEAD` bytes
      would have to be kept.
    """
    if not most_steps:
        return draw
    numbers = jnp.arange(most_steps, dtype="int32")
    kept = jax.eval_shape(jax.vmap(draw), numbers)
    if sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)) > LOOKED_AHEAD:
        return draw
    table = jax.vmap(draw)(numbers)

    def look_up(leaf: Array, q: Array) -> Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = look_up(jax.random.key_data(leaf), q)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        if most_steps == 1:
            return leaf[0]
        return jax.lax.dynamic_index_in_dim(leaf, q, keepdims=False)

    return lambda q: jax.tree.map(lambda leaf: look_up(leaf, q), table)


def split_over_devices(
    run: Callable[..., tuple[Params, Array]],
    plan: Plan,
    steps: Array,
    *slots: object,
    weights: Array | None = None,
) -> tuple[Params, Array]:
    """Give each device of the mesh axis "clients" a share of the slots, and gather the results.

    Args:
      run: From weights (None without), steps `i32[S']` and the slots of one device to their
        results, leaves `[S', ...]`, and the steps run, `i32[]`.
      plan: The static plan.
      steps: `i32[S]`, local steps of each slot.
      slots: Pytrees with leading axis S.
      weights: `f[S]` if the results are pairs. The first of each is a device's weighted sum, which
        `map_slots` makes; these sums are added up.

    Returns:
      The results with leading axis S, and the steps run by all devices together, `i32[]`.
    """
    num = steps.shape[0]
    share = -(-num // plan.client_devices)
    places = jax.lax.axis_index("clients") * share + jnp.arange(share)
    rows = jnp.minimum(places, num - 1)
    steps_here = jnp.where(places < num, steps[rows], 0)
    slots_here = jax.tree.map(lambda leaf: leaf[rows], slots)

    def gather(results: TreeT) -> TreeT:
        return jax.tree.map(lambda x: jax.lax.all_gather(x, "clients", tiled=True)[:num], results)

    if weights is None:
        results, taken = run(None, steps_here, *slots_here)
        return gather(results), jax.lax.psum(taken, "clients")
    weights_here = jnp.where(places < num, weights[rows], 0)
    (first, second), taken = run(weights_here, steps_here, *slots_here)
    first, taken = jax.lax.psum((first, taken), "clients")
    return (first, gather(second)), taken


def _common_trips(trips: Array, plan: Plan) -> Array:
    """Make a trip count equal in all lanes that are batched together.

    A `while_loop` whose predicate differs between batched lanes selects its whole state each time.
    """
    trips = jax.lax.pmax(trips, LANE_AXIS) if plan.lanes_at_once else trips
    return jax.lax.pmax(trips, FAMILY_AXIS) if plan.family_size > 1 else trips


@custom_vmap
def any_lane(holds: Array) -> Array:
    """Tell whether something holds in one of the lanes that are batched together: `bool[]`.

    A `jax.lax.cond` whose predicate differs between batched lanes does both branches at every tick.
    With this as the predicate it does costly work only if a lane needs it; the others of its batch
    leave the result aside.

    Args:
      holds: `bool[]`, whether it holds in the lane.
    """
    return holds


@any_lane.def_vmap
def _any_of_lanes(size: int, are_batched: object, holds: Array) -> tuple[Array, bool]:
    return any_lane(holds.any(axis=0)), False


def replicate(model: Params, num: int) -> Params:
    """Return `num` copies of a `model`: leaves `[...]` become `[num, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num, *leaf.shape)), model)


def weighted_sum(weight: Array, models: Params) -> Params:
    """Sum models with weights.

        models = {"w": jnp.ones((4, 3))}  # of four slots
        weighted_sum(jnp.full(4, 1 / 4), models)

    Args:
      weight: `[S]`.
      models: Leaves `[S, ...]`.

    Returns:
      Leaves `[...]` in the models' types. They are summed in at least 32 bits, and so are the
      weights: rounded to bfloat16, those of a mean would not sum to 1.
    """
    chex.assert_tree_shape_prefix(models, weight.shape)

    def total(leaf: Array) -> Array:
        wide = leaf.astype(jnp.promote_types(leaf.dtype, "float32"))
        found = jnp.tensordot(weight.astype(wide.dtype), wide, 1, precision="highest")
        return found.astype(leaf.dtype)

    return jax.tree.map(total, models)


def _times(weight: Array, model: Params) -> Params:
    """Multiply a model by a weight, `f[]`, in at least 32 bits."""

    def product(leaf: Array) -> Array:
        wide = jnp.promote_types(leaf.dtype, "float32")
        return (weight.astype(wide) * leaf).astype(leaf.dtype)

    return jax.tree.map(product, model)


def _split(tree: TreeT, num: int) -> TreeT:
    """Split the leading axis of every leaf into `num` equal parts: `[num, L / num, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(num, -1, *leaf.shape[1:]), tree)


def merge(tree: TreeT) -> TreeT:
    """Merge the two leading axes of every leaf.

    Args:
      tree: Leaves `[A, B, ...]`.

    Returns:
      Leaves `[A B, ...]`.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
