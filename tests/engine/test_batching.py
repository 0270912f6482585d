"""Maps over slots, lanes and families give the same results in the same order, however they run.

Dimension letters: `S` slots, `L` lanes.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import Plan
from fedjax_sim.core.batching import any_lane, map_families, map_lanes, map_slots
from fedjax_sim.engine.planning.placement import Placement

STEPS = jnp.array([5, 0, 2, 3, 1], "int32")
VALUES = jnp.arange(10.0).reshape(5, 2)


def count(trips: jax.Array, value: jax.Array, steps: jax.Array) -> jax.Array:
    """Add 1 to a value `steps` times, in a loop of `trips` iterations; too few would show."""
    return jax.lax.fori_loop(0, trips, lambda q, x: jnp.where(q < steps, x + 1, x), value)


EXPECTED = np.asarray(VALUES) + np.asarray(STEPS)[:, None]


@pytest.mark.parametrize(
    ("size", "executed"),
    [(1, 11), (2, 5 * 2 + 2 * 2 + 0), (3, 5 * 3 + 1 * 3), (4, 5 * 4), (5, 25), (9, 25)],
)
def test_slots_in_blocks(size: int, executed: int) -> None:
    """Blocks are filled longest slot first, such as 5 3 | 2 1 | 0.

    Every slot of a block, padding included, takes the trips of the block's longest slot.
    """
    results, trips = jax.jit(
        lambda: map_slots(count, Plan(slots_at_once=size), STEPS, VALUES, STEPS)
    )()
    np.testing.assert_array_equal(results, EXPECTED)
    assert trips == executed


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 2])
def test_slots_over_devices(devices: int, size: int) -> None:
    """Results come back in order on every device, even if the devices do not divide the slots.

    The trips are those of all devices together.
    """
    plan = Plan(slots_at_once=size, client_devices=devices)
    mesh = Placement(size, False, 1, devices).mesh
    spec = jax.sharding.PartitionSpec()
    split = jax.shard_map(
        lambda values, steps: map_slots(count, plan, steps, values, steps),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=spec,
        check_vma=False,
    )
    results, trips = jax.jit(split)(VALUES, STEPS)
    np.testing.assert_array_equal(results, EXPECTED)
    assert trips == 11 if size == 1 else trips >= 11


def summed(plan: Plan, values: jax.Array, steps: jax.Array, weights: jax.Array) -> Any:
    """Count as above; only a weighted sum of the counts is made, and trips come back for each."""

    def work(trips: jax.Array, value: jax.Array, steps: jax.Array) -> Any:
        return {"count": count(trips, value, steps)}, steps

    (total, second), trips = map_slots(work, plan, steps, values, steps, weights=weights)
    return total["count"], second, trips


WEIGHTS = jnp.array([0.5, 2.0, 0.0, 1.0, 0.25])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_slots_that_are_only_summed(size: int, devices: int) -> None:
    """Slots that fill up a block or a device do not count; all numbers here are exact."""
    plan = Plan(slots_at_once=size, client_devices=devices)
    run = partial(summed, plan)
    if devices > 1:
        spec = jax.sharding.PartitionSpec()
        run = jax.shard_map(
            run,
            mesh=Placement(size, False, 1, devices).mesh,
            in_specs=(spec,) * 3,
            out_specs=spec,
            check_vma=False,
        )
    total, second, trips = jax.jit(run)(VALUES, STEPS, WEIGHTS)
    np.testing.assert_array_equal(total, np.asarray(WEIGHTS) @ EXPECTED)
    np.testing.assert_array_equal(second, STEPS)
    assert trips >= 11


def test_long_sums_of_short_numbers_keep_32_bits() -> None:
    """512 times 1 / 512 makes 1; added one by one in bfloat16 it would stop at 1 / 2."""
    ones = jnp.ones((512, 3), "bfloat16")

    def work(trips: Any, value: jax.Array) -> Any:
        return value, ()

    weights, steps = jnp.full(512, 1 / 512), jnp.ones(512, "int32")
    (total, _), _ = jax.jit(
        lambda: map_slots(work, Plan(slots_at_once=1), steps, ones, weights=weights)
    )()
    assert total.dtype == "bfloat16"
    np.testing.assert_array_equal(total.astype("float32"), np.ones(3))


def test_summed_slots_are_never_in_memory_together() -> None:
    """50 slots that run one after another need no more memory than two."""

    def temporary(num: int) -> int:
        values, ones = jnp.zeros((num, 2)), jnp.ones(num)

        def run(values: jax.Array) -> Any:
            def work(trips: Any, value: jax.Array) -> Any:
                return jnp.sin(value[0] + jnp.arange(2.0**16)), ()

            steps = jnp.ones(num, "int32")
            return map_slots(work, Plan(slots_at_once=1), steps, values, weights=ones)[0]

        compiled = jax.jit(run).lower(values).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    assert temporary(50) < temporary(2) + 2**16


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("num", [1, 3])
def test_lanes(at_once: bool, num: int) -> None:
    def lane(inputs: Any) -> Any:
        steps, values = inputs
        plan = Plan(slots_at_once=2, lanes_at_once=at_once)
        return map_slots(count, plan, steps, values, steps)[0]

    steps = jnp.stack([jnp.roll(STEPS, i) for i in range(num)])
    found = jax.jit(lambda: map_lanes(lane, (steps, jnp.stack([VALUES] * num)), at_once=at_once))()
    np.testing.assert_array_equal(found, np.asarray(VALUES) + np.asarray(steps)[..., None])


def test_lanes_in_batches() -> None:
    """Trips are common to a batch, not to all lanes."""

    def lane(inputs: Any) -> Any:
        steps, values = inputs
        return map_slots(count, Plan(slots_at_once=5, lanes_at_once=True), steps, values, steps)

    steps = jnp.stack([STEPS, STEPS, 2 * STEPS, 0 * STEPS])
    values = jnp.stack([VALUES] * 4)
    found, trips = jax.jit(lambda: map_lanes(lane, (steps, values), at_once=True, batches=2))()
    np.testing.assert_array_equal(found, np.asarray(values) + np.asarray(steps)[..., None])
    np.testing.assert_array_equal(trips, [25, 25, 50, 50])


def one_after_another(function: Any, inputs: Any) -> Any:
    """Map over families without batching them."""
    return map_lanes(function, inputs, at_once=False)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_families(size: int, at_once: bool) -> None:
    """Six lanes in families of each size: results in order, and trips common to a family."""
    steps = jnp.array([5, 0, 2, 3, 1, 4], "int32")
    shared, varying = jnp.repeat(jnp.arange(6 // size) * 100.0, size), jnp.arange(6.0)
    plan = Plan(family_size=size, lanes_at_once=at_once)

    def lane(inputs: Any) -> Any:
        start, (step, value) = inputs
        begin = (start + value)[None]
        return map_slots(count, plan, step[None], begin, step[None])

    map_over = partial(map_lanes, at_once=at_once)
    found, trips = jax.jit(
        lambda: map_families(lane, shared, (steps, varying), size=size, map_over=map_over)
    )()
    np.testing.assert_array_equal(found[:, 0], shared + varying + steps)
    families = np.arange(6).reshape(1 if at_once else -1, 6 if at_once else size)
    longest = np.asarray(steps)[families].max(axis=1)
    np.testing.assert_array_equal(trips, np.repeat(longest, families.shape[1]))


def test_what_a_family_shares_is_computed_once() -> None:
    """Two families of three lanes with one key each: a loop of two draws of one lane's size."""
    keys = jnp.repeat(jax.random.split(jax.random.key(0), 2), 3)

    def lane(inputs: Any) -> jax.Array:
        key, scale = inputs
        return scale * jax.random.normal(key, (4,))

    def families(size: int) -> Any:
        return lambda keys, scales: map_families(
            lane, keys, scales, size=size, map_over=one_after_another
        )

    scales = jnp.arange(6.0)
    program = str(jax.make_jaxpr(families(3))(keys, scales))
    draws = [line for line in program.splitlines() if "erf_inv" in line]
    assert len(draws) == 1 and "f32[4]" in draws[0]
    chex.assert_trees_all_close(families(3)(keys, scales), families(1)(keys, scales), rtol=1e-6)


def test_a_cond_on_what_a_family_shares_stays_a_cond() -> None:
    """Only one branch runs. A predicate that varies within a family needs both branches."""

    def lane(inputs: Any) -> jax.Array:
        is_evaluated, value = inputs
        return jax.lax.cond(is_evaluated, jnp.sin, lambda x: x, value)

    def swapped(inputs: Any) -> jax.Array:
        return lane(inputs[::-1])

    flags, values = jnp.array([True] * 3 + [False] * 3), jnp.arange(6.0)
    family = partial(map_families, size=3, map_over=one_after_another)
    shared = str(jax.make_jaxpr(partial(family, lane))(flags, values))
    assert "cond[" in shared and "select_n" not in shared
    varying = str(jax.make_jaxpr(partial(family, swapped))(values, flags))
    assert "cond[" not in varying and "select_n" in varying
    expected = np.where(flags, np.sin(values), values)
    np.testing.assert_allclose(family(lane, flags, values), expected, rtol=1e-6)


@pytest.mark.parametrize("holds", [[False] * 4, [True, False, False, True]])
def test_a_branch_that_some_lane_needs_stays_a_branch(holds: list[bool]) -> None:
    """In lanes, in families of lanes, and where it is differentiated."""

    def lane(is_due: jax.Array, value: jax.Array) -> jax.Array:
        return jax.lax.cond(
            any_lane(is_due), lambda: jnp.where(is_due, value**2, value), lambda: value
        )

    are_due, values = jnp.array(holds), jnp.arange(1.0, 5.0)
    expected, lanes = jnp.where(are_due, values**2, values), jax.vmap(lane)
    np.testing.assert_array_equal(lanes(are_due, values), expected)
    assert "cond[" in str(jax.make_jaxpr(lanes)(are_due, values))
    families, both = jax.vmap(lanes), (are_due.reshape(2, 2), values.reshape(2, 2))
    np.testing.assert_array_equal(families(*both).ravel(), expected)
    assert "cond[" in str(jax.make_jaxpr(families)(*both))
    slope = jax.grad(lambda values: lanes(are_due, values).sum())(values)
    np.testing.assert_array_equal(slope, jnp.where(are_due, 2 * values, 1))
    _, slope = jax.jvp(partial(lanes, are_due), (values,), (jnp.ones(4),))
    np.testing.assert_array_equal(slope, jnp.where(are_due, 2 * values, 1))
