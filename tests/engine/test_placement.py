"""Layouts: what is chosen, what is refused, and that every way of mapping gives the same results in the same order."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, Layout, Plan
from fedjax_sim.batching import map_lanes, map_slots
from fedjax_sim.engine.placement import Placement, check_layout, choose

STEPS = jnp.array([5, 0, 2, 3, 1], "int32")
VALUES = jnp.arange(10.0).reshape(5, 2)


def count(trips: jax.Array, value: jax.Array, steps: jax.Array) -> jax.Array:
    """Add one `steps` times, by a loop of `trips` turns: too few would show."""
    return jax.lax.fori_loop(0, trips, lambda q, x: jnp.where(q < steps, x + 1, x), value)


EXPECTED = np.asarray(VALUES) + np.asarray(STEPS)[:, None]


@pytest.mark.parametrize(
    ("size", "executed"),
    [(1, 11), (2, 5 * 2 + 2 * 2 + 0), (3, 5 * 3 + 1 * 3), (4, 5 * 4), (5, 25), (9, 25)],
)
def test_slots_in_blocks(size: int, executed: int) -> None:
    """Blocks hold the longest together: 5 3 | 2 1 | 0 and so on; each turns as often as its longest slot, padding included."""
    results, trips = jax.jit(
        lambda: map_slots(count, Plan(slots_at_once=size), STEPS, VALUES, STEPS)
    )()
    np.testing.assert_array_equal(results, EXPECTED)
    assert trips == executed


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 2])
def test_slots_over_devices(devices: int, size: int) -> None:
    """Results come back in order on every device, also if devices do not divide the slots; turns are those of all devices."""
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
    """Turns are common to a batch, and not to all lanes."""

    def lane(inputs: Any) -> Any:
        steps, values = inputs
        return map_slots(count, Plan(slots_at_once=5, lanes_at_once=True), steps, values, steps)

    steps = jnp.stack([STEPS, STEPS, 2 * STEPS, 0 * STEPS])
    values = jnp.stack([VALUES] * 4)
    found, trips = jax.jit(lambda: map_lanes(lane, (steps, values), at_once=True, batches=2))()
    np.testing.assert_array_equal(found, np.asarray(values) + np.asarray(steps)[..., None])
    np.testing.assert_array_equal(trips, [25, 25, 50, 50])


def test_lanes_are_dealt_by_their_work() -> None:
    """Batch by batch those of like work, the longest first; of each batch every device has its share. The last is repeated."""
    work = np.array([5, 1, 9, 7, 3])
    assert Placement(1, True, 1, 1).deal(work).tolist() == [0, 1, 2, 3, 4]
    assert Placement(1, True, 2, 1).deal(work).tolist() == [2, 0, 1, 3, 4, 1]
    assert Placement(1, True, 1, 1, lane_batches=2).deal(work).tolist() == [2, 3, 0, 4, 1, 1]
    assert Placement(1, True, 2, 1, lane_batches=2).deal(work).tolist() == [2, 0, 1, 1, 3, 4, 1, 1]


def test_lanes_that_differ_in_settings_alone_stay_together() -> None:
    """Sets of three, whole or in twos, the second of which repeats its lane; the work of a set is that of its first."""
    work = np.array([1, 1, 1, 7, 7, 7])
    assert Placement(1, False, 1, 1, twins=3).deal(work).tolist() == [0, 1, 2, 3, 4, 5]
    assert Placement(1, False, 1, 1, settings_at_once=3, twins=3).deal(work).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert Placement(1, False, 2, 1, settings_at_once=3, twins=3).deal(work).tolist() == [
        3,
        4,
        5,
        0,
        1,
        2,
    ]
    assert Placement(1, False, 2, 1, settings_at_once=2, twins=3).deal(work).tolist() == [
        3,
        4,
        0,
        1,
        5,
        5,
        2,
        2,
    ]
    assert Placement(1, True, 1, 1, 2, settings_at_once=3, twins=3).deal(work).tolist() == [
        3,
        4,
        5,
        0,
        1,
        2,
    ]


def test_settings_are_batched_unless_devices_would_idle() -> None:
    """Nine settings: of one seed, cut for two devices; of two seeds, one each. A large model's, each by itself."""
    steps, one = np.full((18, 1, 1), 5), Layout(lane_devices=1)
    for twins, devices, at_once in ((9, 1, 9), (9, 2, 9), (18, 2, 9), (18, 4, 5), (9, 4, 5)):
        placement = chosen(Layout(lane_devices=devices), steps, num_lanes=18, twins=twins)
        assert placement.settings_at_once == at_once
    # Of the eight devices there are, nine settings in fives would take two, in twos five.
    placement = chosen(Layout(), steps[:9], num_lanes=9, twins=9)
    assert (placement.settings_at_once, placement.lane_devices) == (2, 5)
    assert (
        chosen(
            Layout(lane_devices=1, settings_at_once=4), steps, num_lanes=18, twins=9
        ).settings_at_once
        == 4
    )
    assert chosen(one, steps, num_lanes=18, twins=9, parameters=2 * 10**6).settings_at_once == 1
    # Not more than fit in a cache: of 500 lanes of 4e7 operations a step, five.
    assert (
        chosen(
            one, np.full((500, 1, 1), 5), num_lanes=500, twins=500, parameters=833_333
        ).settings_at_once
        == 5
    )
    # What is batched by settings already is large sooner.
    assert chosen(one, steps[:, :, [0] * 4], num_lanes=18, parameters=10**6).slots_at_once == 4
    assert (
        chosen(one, steps[:, :, [0] * 4], num_lanes=18, twins=9, parameters=10**6).slots_at_once
        == 1
    )


def test_lanes_are_split_into_batches_where_much_is_padded() -> None:
    """Of 8 lanes two have ten times the work: 8 x 10 turns for 26, in two batches 4 x 10 + 4, and only in four at most 1.5 times 26."""
    steps = np.ones((8, 6, 2), int)
    steps[[2, 5]] = 10
    batched = Layout(lanes_at_once=True, lane_devices=1)
    assert chosen(batched, steps, num_lanes=8).lane_batches == 4
    assert chosen(batched._replace(lane_batches=2), steps, num_lanes=8).lane_batches == 2
    assert chosen(batched, np.ones((8, 6, 2), int), num_lanes=8).lane_batches == 1
    assert chosen(Layout(lanes_at_once=False, lane_devices=1), steps, num_lanes=8).lane_batches == 1


def chosen(
    layout: Layout, steps: Any, *, num_lanes: int = 4, parameters: int = 10, twins: int = 1
) -> Placement:
    return choose(
        layout,
        num_lanes=num_lanes,
        steps=np.asarray(steps),
        operations=6.0 * parameters * 8,
        twins=twins,
    )


def test_what_a_caller_fixes_stays() -> None:
    assert chosen(Layout(3, True, 2, 2), [[[1, 2, 3, 4]]]) == Placement(3, True, 2, 2)
    assert chosen(Layout(9, False, 1, 1), [[[1, 2, 3, 4]]]).slots_at_once == 4


def test_slots_are_batched_where_little_is_padded() -> None:
    """On CPUs. Equal steps: all at once, unless they are large. One long slot among idle ones: each by itself."""
    assert chosen(Layout(), [[[5, 5, 5, 5]]], parameters=10**6).slots_at_once == 4
    assert chosen(Layout(), [[[5, 5, 5, 5]]], parameters=2 * 10**6).slots_at_once == 1
    assert chosen(Layout(), [[[20, 0, 0, 0]]]).slots_at_once == 1


def test_lanes_of_tiny_models_are_batched_where_all_do_the_same() -> None:
    """Not if the model is larger, nor if lanes or ticks differ in their steps."""
    assert chosen(Layout(), [[[5, 5, 5, 5]]]).lanes_at_once
    assert not chosen(Layout(), [[[5, 5, 5, 5]]], parameters=1000).lanes_at_once
    assert not chosen(Layout(), [[[20, 20, 20, 20]], [[1, 1, 1, 1]], [[1, 1, 1, 1]]]).lanes_at_once
    assert not chosen(Layout(lanes_at_once=False), [[[5, 5, 5, 5]]]).lanes_at_once
    steps = np.ones(
        (100, 500, 50), np.int32
    )  # 25 for 1000 trips in every slot: 2.5e9, beyond 32 bits
    steps[0, 0, 0] = 1000
    assert not chosen(Layout(lane_devices=1), steps, num_lanes=100).lanes_at_once


def test_lanes_take_the_devices_there_are() -> None:
    """Eight, in these tests."""
    assert chosen(Layout(), [[[1]]], num_lanes=3).lane_devices == 3
    assert chosen(Layout(), [[[1]]], num_lanes=30).lane_devices == 8
    assert chosen(Layout(client_devices=4), [[[1]]], num_lanes=30).lane_devices == 2


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(slots_at_once=0), "layout.slots_at_once is 0"),
        (Layout(lane_devices=-1), "layout.lane_devices is -1"),
        (Layout(client_devices=0), "layout.client_devices is 0"),
        (Layout(lane_batches=0), "layout.lane_batches is 0"),
        (Layout(settings_at_once=0), "layout.settings_at_once is 0"),
        (Layout(lane_devices=3, client_devices=3), "at most the 8"),
    ],
)
def test_layouts_that_cannot_be(layout: Layout, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_layout(layout)


def test_cores_become_devices() -> None:
    """In a process of its own, as the backend must not run yet; afterwards it only tells how many there are."""
    code = "import fedjax_sim, jax; print(fedjax_sim.use_cores(3), len(jax.devices()), fedjax_sim.use_cores(5))"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["3", "3", "3"]
