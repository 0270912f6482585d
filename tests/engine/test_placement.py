"""Placements: how lanes are dealt to devices, what the measured rules choose, what is refused."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.events import PackedRows
from fedjax_sim.engine.planning.placement import Placement, StepCost, check_layout, choose


def test_lanes_are_dealt_by_their_work() -> None:
    """Batches hold lanes of similar work, the longest first, and every device has a share of each.

    The last lane is repeated until all places are filled.
    """
    work = np.array([5, 1, 9, 7, 3])
    assert Placement(1, True, 1, 1).deal(work).tolist() == [0, 1, 2, 3, 4]
    assert Placement(1, True, 2, 1).deal(work).tolist() == [2, 0, 1, 3, 4, 1]
    assert Placement(1, True, 1, 1, lane_batches=2).deal(work).tolist() == [2, 3, 0, 4, 1, 1]
    assert Placement(1, True, 2, 1, lane_batches=2).deal(work).tolist() == [2, 0, 1, 1, 3, 4, 1, 1]


def test_members_of_a_family_are_dealt_together() -> None:
    """Two families of three, whole or in pairs, the second of which repeats its lane.

    The work of a family is that of its first member.
    """
    work = np.array([1, 1, 1, 7, 7, 7])

    def dealt(
        lanes_at_once: bool, devices: int, *, family_size: int = 1, lane_batches: int = 1
    ) -> list[int]:
        sizes = {"lane_batches": lane_batches, "family_size": family_size, "members": 3}
        return Placement(1, lanes_at_once, devices, 1, **sizes).deal(work).tolist()

    assert dealt(False, 1) == [0, 1, 2, 3, 4, 5]
    assert dealt(False, 1, family_size=3) == [0, 1, 2, 3, 4, 5]
    assert dealt(False, 2, family_size=3) == [3, 4, 5, 0, 1, 2]
    assert dealt(False, 2, family_size=2) == [3, 4, 0, 1, 5, 5, 2, 2]
    assert dealt(True, 1, family_size=3, lane_batches=2) == [3, 4, 5, 0, 1, 2]


def test_families_are_batched_unless_devices_would_idle() -> None:
    """Nine settings of one seed are cut for two devices, of two seeds they take one device each."""
    steps = np.full((18, 1, 1), 5)
    for members, devices, size in ((9, 1, 9), (9, 2, 9), (18, 2, 9), (18, 4, 5), (9, 4, 5)):
        placement = chosen(Layout(lane_devices=devices), steps, num_lanes=18, members=members)
        assert placement.family_size == size
        assert placement.members == members
    # On the eight devices of these tests, nine settings in fives would use two of them, in pairs
    # five.
    placement = chosen(Layout(), steps[:9], num_lanes=9, members=9)
    assert (placement.family_size, placement.lane_devices) == (2, 5)


def test_families_of_large_models_are_not_batched() -> None:
    """A local step of 1e7 operations is the largest that gains; a batch has at most 2e8."""
    steps, one = np.full((18, 1, 1), 5), Layout(lane_devices=1)
    assert chosen(one, steps, num_lanes=18, members=9, parameters=2 * 10**6).family_size == 1
    assert chosen(one, steps, num_lanes=18, members=9, parameters=208_333).family_size == 9
    assert chosen(one, steps, num_lanes=18, members=9, parameters=208_334).family_size == 1
    # Of 500 settings, whose local steps take 1e7 operations each, twenty fit in a batch.
    many = np.full((500, 1, 1), 5)
    placement = chosen(one, many, num_lanes=500, members=500, parameters=208_333)
    assert placement.family_size == 20


@pytest.mark.parametrize("lanes_at_once", [False, True])
def test_a_caller_who_fixes_lanes_gets_no_families(lanes_at_once: bool) -> None:
    """A lane's bits then do not depend on which other lanes run."""
    layout = Layout(lanes_at_once=lanes_at_once, lane_devices=1)
    placement = chosen(layout, np.full((18, 1, 1), 5), num_lanes=18, members=9)
    assert placement.family_size == 1
    assert placement.lanes_at_once == lanes_at_once


def test_slots_of_a_batched_family_are_batched_for_smaller_models_only() -> None:
    """A batch of nine members takes nine times the operations, and so exceeds the cache sooner."""
    steps, one = np.full((18, 1, 4), 5), Layout(lane_devices=1)
    assert chosen(one, steps, num_lanes=18, parameters=50_000).slots_at_once == 4
    placement = chosen(one, steps, num_lanes=18, members=9, parameters=50_000)
    assert (placement.family_size, placement.slots_at_once) == (9, 1)


def test_lanes_are_split_into_batches_where_much_is_padded() -> None:
    """Of 8 lanes two have ten times the work, and 26 trips are needed at each tick.

    One batch takes 8 x 10 trips, two batches 4 x 10 + 4, and only four at most 1.5 times 26.
    """
    steps = np.ones((8, 6, 2), int)
    steps[[2, 5]] = 10
    batched = Layout(lanes_at_once=True, lane_devices=1)
    assert chosen(batched, steps, num_lanes=8).lane_batches == 4
    assert chosen(batched._replace(lane_batches=2), steps, num_lanes=8).lane_batches == 2
    assert chosen(batched, np.ones((8, 6, 2), int), num_lanes=8).lane_batches == 1
    assert chosen(Layout(lanes_at_once=False, lane_devices=1), steps, num_lanes=8).lane_batches == 1


def chosen(
    layout: Layout, steps: Any, *, num_lanes: int = 4, parameters: int = 10, members: int = 1
) -> Placement:
    """Choose a placement for a model of `parameters` numbers and mini-batches of eight examples."""
    cost = StepCost(6.0 * parameters * 8, 8 * parameters)
    return choose(
        layout,
        rows=np.arange(num_lanes) % len(steps),
        steps=np.asarray(steps),
        cost=cost,
        members=members,
    )


def test_what_a_caller_fixes_stays() -> None:
    found = chosen(Layout(3, True, 2, 2), [[[1, 2, 3, 4]]])
    assert found == Placement(3, True, 2, 2, narrow=found.narrow)
    assert chosen(Layout(9, False, 1, 1), [[[1, 2, 3, 4]]]).slots_at_once == 4


def test_slots_are_batched_where_little_is_padded() -> None:
    """On CPUs, slots of equal steps are batched unless the model is large.

    One long slot among idle ones is run alone.
    """
    assert chosen(Layout(), [[[5, 5, 5, 5]]], parameters=80_000).slots_at_once == 4
    # 4.8e6 operations, which would fit in the cache.
    assert chosen(Layout(), [[[5, 5, 5, 5]]], parameters=100_000).slots_at_once == 1
    assert chosen(Layout(), [[[20, 0, 0, 0]]]).slots_at_once == 1


def test_slots_that_do_not_fit_in_the_cache_are_run_one_by_one() -> None:
    """Four slots of 80,000 numbers take 2.6 MB with their gradients, eight 5.1 MB."""
    for slots, at_once in ((4, 4), (8, 1)):
        steps = np.full((1, 1, slots), 5)
        assert chosen(Layout(), steps, parameters=80_000).slots_at_once == at_once


def test_devices_that_have_no_lane_take_slots() -> None:
    """These tests have eight. Two lanes get four each, if a tick has enough work to share."""
    steps = np.full((2, 1, 20), 5)
    placement = chosen(Layout(), steps, num_lanes=2, parameters=10**4)
    assert (placement.lane_devices, placement.client_devices) == (2, 4)
    assert chosen(Layout(), steps, num_lanes=2, parameters=1000).client_devices == 1
    assert chosen(Layout(), steps[:, :, :3], num_lanes=2, parameters=10**5).client_devices == 3
    assert chosen(Layout(lane_devices=2), steps, num_lanes=2, parameters=10**5).client_devices == 1


def test_lanes_of_tiny_models_are_batched_where_all_do_the_same_steps() -> None:
    """They are not batched if the model is larger, or if lanes or ticks differ in their steps."""
    assert chosen(Layout(), [[[5, 5, 5, 5]]]).lanes_at_once
    assert not chosen(Layout(), [[[5, 5, 5, 5]]], parameters=1000).lanes_at_once
    assert not chosen(Layout(), [[[20, 20, 20, 20]], [[1, 1, 1, 1]], [[1, 1, 1, 1]]]).lanes_at_once
    assert not chosen(Layout(lanes_at_once=False), [[[5, 5, 5, 5]]]).lanes_at_once
    # A batch would take 1000 trips in each of 2.5e6 slots: 2.5e9, which does not fit in 32 bits.
    steps = np.ones((100, 500, 50), np.int32)
    steps[0, 0, 0] = 1000
    assert not chosen(Layout(lane_devices=1), steps, num_lanes=100).lanes_at_once


def test_lanes_take_all_devices() -> None:
    """These tests have eight."""
    assert chosen(Layout(), [[[1]]], num_lanes=3).lane_devices == 3
    assert chosen(Layout(), [[[1]]], num_lanes=30).lane_devices == 8
    assert chosen(Layout(client_devices=4), [[[1]]], num_lanes=30).lane_devices == 2


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"lane_devices": 3, "client_devices": 3}, "at most the 8"),
        (
            {"lanes_at_once": False, "lane_batches": 2},
            "lane_batches is 2, but must be left out with lanes_at_once false",
        ),
        ({"packed": True, "slots_at_once": 2}, "packed is True, but must be false with slots_at_o"),
    ],
)
def test_bad_layouts_are_refused(layout: dict[str, Any], words: str) -> None:
    """When they are made, and when a field has been replaced."""
    with pytest.raises(ConfigError, match=words):
        check_layout(Layout(**layout))
    with pytest.raises(ConfigError, match=words):
        check_layout(Layout()._replace(**layout))


def test_cores_become_devices() -> None:
    """`use_cores` works until the backend runs; afterwards it only returns the devices there are.

    It is called in a new process, because the backend of this one already runs.
    """
    code = (
        "import fedjax_sim, jax; "
        "print(fedjax_sim.use_cores(3), len(jax.devices()), fedjax_sim.use_cores(5))"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["3", "3", "3"]


def test_packed_slots_are_refused_in_batches() -> None:
    with pytest.raises(ConfigError, match=r"layout\.packed is True"):
        check_layout(Layout(slots_at_once=4, packed=True))


def test_only_gpus_pack_unless_they_are_asked_to() -> None:
    """Of three slots of 4, 1 and 1 steps half the steps are saved, of three equal ones none."""
    ragged, even = np.array([[[4, 1, 1]]]), np.array([[[4, 4, 4]]])

    def packs(platform: str, steps: np.ndarray, layout: Layout = Layout()) -> bool:
        devices = (SimpleNamespace(platform=platform),)
        facts: dict[str, Any] = {
            "rows": np.arange(4),
            "cost": StepCost(1e5, 100),
            "devices": devices,
        }
        return choose(layout, steps=steps, **facts).packed

    assert packs("gpu", ragged) and not packs("gpu", even)
    assert not packs("gpu", ragged, Layout(packed=False))
    assert not packs("gpu", ragged, Layout(slots_at_once=2))
    for platform in ("cpu", "tpu"):
        assert not packs(platform, ragged)
        assert packs(platform, even, Layout(packed=True))


def test_rows_are_enough_for_the_fullest_tick() -> None:
    """Schedules of two ticks and three slots, whose longest has five steps.

    Ticks take 6 and 9, 10 and 5, 1 and 15 steps, 17 and 29 together.
    """
    steps = np.array([[[5, 1, 0], [5, 4, 0]], [[5, 5, 0], [5, 0, 0]], [[0, 1, 0], [5, 5, 5]]])
    work, row = steps.max(axis=-1), np.array([0, 1, 2])

    def rows(lanes_at_once: bool, lane_devices: int, client_devices: int) -> PackedRows | None:
        placement = Placement(3, lanes_at_once, lane_devices, client_devices, packed=True)
        return placement.count_rows(steps, work, row)

    assert rows(True, 1, 1) == (6, 3, 9, 3)
    assert rows(False, 1, 1) == (3, 3, 3, 3)
    assert rows(True, 3, 1) == (3, 3, 3, 3)
    # Of four lanes in two batches any two may be together: those of schedules 0 and 2 take 24 steps
    # of a tick, more than those dealt into one batch.
    batched = Placement(3, True, 1, 1, lane_batches=2, packed=True)
    assert batched.count_rows(steps, work, np.array([0, 2, 1, 1])) == (5, 3, 6, 3)
    # Slots 0 and 1 on one device, slot 2 on the other.
    assert rows(True, 1, 2) == (5, 2, 6, 2)
    # Members of a family share places, and so do lanes of one schedule.
    of_members = np.repeat(row, 2)
    family = Placement(3, True, 1, 1, family_size=2, members=2, packed=True)
    assert family.count_rows(steps, work, of_members) == (6, 3, 9, 3)
    assert Placement(3, True, 1, 1, packed=True).count_rows(steps[:1], work[:1], row * 0) == (
        2,
        2,
        3,
        3,
    )
