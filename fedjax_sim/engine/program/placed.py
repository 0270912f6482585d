"""The lanes of a program on their devices, with the schedules that they read.

Lanes are dealt so that devices have equal work. Each device holds the schedules to which its lanes
point, numbered from 0, and all hold what lanes share.

Dimension letters: those of `fedjax_sim.core.types`; `D` schedules, `H` rows of the store behind
`client_variance`.
"""

import copy
import functools
from collections.abc import Collection, Hashable
from typing import Self, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim.core import types
from fedjax_sim.engine.machine import processes
from fedjax_sim.engine.planning.lanes import Lanes
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.planning.schedule import Schedule, Tables

MOST_TOGETHER = 1024
"""Numbers of an array up to which it is copied and put on the devices together with others."""

TreeT = TypeVar("TreeT")
"""A pytree of arrays."""


class PlacedLanes:
    """Lanes and their schedules, which go to the devices when a program first needs them.

    Attributes:
      schedule: The schedules, of whole chunks.
      lane_of: `i64[>= L]`, the lane in each row of the devices' arrays.
      place_of: `i64[L]`, the row in which each lane stands.
      is_described: Whether arrays are only described, to compile programs and not to run them.
    """

    def __init__(
        self,
        placement: Placement,
        lanes: Lanes,
        schedule: Schedule,
        starts: types.Params | None = None,
        windowed: Collection[types.Leaf] = (),
    ):
        """Deal lanes to their devices.

        Args:
          placement: Where lanes run.
          lanes: L lanes.
          schedule: Their schedules, of whole chunks; `lanes.row` says which is whose.
          starts: Models that the lanes start from, leaves `[L, ...]`; None to draw them.
          windowed: Those shared leaves of the problems that each chunk has in other arrays.
        """
        chex.assert_equal_shape([lanes.row, lanes.seed])
        self.schedule, self.is_described = schedule, bool(placement.devices)
        self._placement, row = placement, np.asarray(lanes.row)
        self.lane_of = placement.deal(schedule.work.sum(axis=1, dtype=np.int64)[row])
        self.place_of = np.unique(self.lane_of, return_index=True)[1]
        self._is_in_order = np.array_equal(self.lane_of, np.arange(len(row)))
        per_device = row[self.lane_of].reshape(placement.lane_devices, -1)
        wanted = list(map(np.unique, per_device))
        most = max(map(len, wanted))
        padded = [np.pad(rows, (0, most - len(rows)), mode="edge") for rows in wanted]
        self._rows = np.concatenate(padded)
        local = list(map(np.searchsorted, wanted, per_device))
        self._split = NamedSharding(placement.mesh, PartitionSpec("lanes"))
        self._whole = NamedSharding(placement.mesh, PartitionSpec())
        self._given = lanes._replace(row=np.concatenate(local).astype("int32"))
        self._starts, self._windowed = starts, set(map(id, windowed))

    def described(self) -> Self:
        """Return the same lanes with arrays that are described and never put on devices."""
        other = copy.copy(self)
        other.is_described, other._windowed = True, set()
        for name in ("lanes", "starts"):
            vars(other).pop(name, None)
        return other

    @property
    def form(self) -> Hashable:
        """Structure, shapes and types of all arrays: equal ones are inputs of equal programs."""
        inputs = self._given, self.schedule.stored, self.schedule.held, self._starts
        leaves, structure = jax.tree.flatten(inputs)
        shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        return structure, shapes, len(self.lane_of), len(self._rows), self._is_in_order

    @property
    def dealt(self) -> tuple[np.ndarray, ...]:
        """The seeds, and the numbers of the schedules, in the order of the devices."""
        return np.asarray(self._given.seed)[self.lane_of], self._given.row, self._rows

    @functools.cached_property
    def starts(self) -> types.Params | None:
        """Models that the lanes start from, on their devices; None to draw them."""
        return self.put(jax.tree.map(lambda leaf: leaf[self.lane_of], self._starts))

    @functools.cached_property
    def lanes(self) -> Lanes:
        """The lanes: varying leaves on their lane's device, shared ones on all devices."""
        lanes, lane_of = self._given, self.lane_of
        dealt = (lanes.seed, lanes.hyper.varying, lanes.problem.varying)
        if self.is_described:
            dealt = jax.tree.map(lambda x: _described(x, (len(lane_of), *x.shape[1:])), dealt)
        elif not self._is_in_order:
            dealt = jax.tree.map(lambda leaf: leaf[lane_of], dealt)
        seed, hypers, problems, row = self.put((*dealt, lanes.row))
        of_problem = [None if id(x) in self._windowed else x for x in lanes.problem.shared]
        shared = self._share((lanes.hyper.shared, of_problem))
        hyper = lanes.hyper.replace(varying=hypers, shared=shared[0])
        return Lanes(seed, row, hyper, lanes.problem.replace(varying=problems, shared=shared[1]))

    def filled(self, window: dict[int, np.ndarray]) -> Lanes:
        """Return the lanes on their devices, with arrays of a chunk for the leaves left out.

        Args:
          window: The arrays, by the `id` of the leaf that each stands for.
        """
        # A CPU reads the arrays where they are.
        arrays, problem = self._share(jax.device_put(window, may_alias=True)), self.lanes.problem
        pairs = zip(self._given.problem.shared, problem.shared, strict=True)
        shared = [arrays.get(id(old), new) for old, new in pairs]
        return self.lanes._replace(problem=problem.replace(shared=shared))

    def carried(self, states: TreeT) -> TreeT:
        """Describe states of the lanes on their devices."""
        return jax.tree.map(lambda leaf: _described(leaf, leaf.shape, self._split), states)

    def tables(self, first: int, last: int) -> Tables:
        """Put the schedules from evaluation `first` to before `last` on the devices."""
        return self._of_devices(self.schedule.between(first, last))

    def put(self, tree: TreeT, *, is_whole: bool = False) -> TreeT:
        """Put arrays on devices, or only describe them.

        Args:
          tree: Leaves `[lanes, ...]`, in the order of the devices.
          is_whole: Whether every device gets all of the arrays, and not its lanes' share.
        """
        sharding = self._whole if is_whole else self._split
        if self.is_described:
            return jax.tree.map(lambda leaf: _described(leaf, np.shape(leaf), sharding), tree)
        return processes.put(tree, sharding)

    def _share(self, tree: TreeT) -> TreeT:
        """Put the same arrays on all devices. Devices that are cores of a CPU read one copy."""
        if self.is_described or self._placement.platform != "cpu":
            return self.put(tree, is_whole=True)
        leaves, structure = jax.tree.flatten(tree)
        own: dict[int, types.Leaf] = {}
        for leaf in leaves:
            # An array of NumPy is copied once, as its owner may write into it.
            if not isinstance(leaf, jax.Array) and id(leaf) not in own:
                is_small, kind = np.size(leaf) <= MOST_TOGETHER, jax.dtypes.result_type(leaf)
                own[id(leaf)] = np.array(leaf, kind) if is_small else jnp.array(leaf)
        leaves = [own.get(id(leaf), leaf) for leaf in leaves]
        if len(self._whole.device_set) > 1:
            leaves = list(map(self._on_cores, leaves))
        # Numbers, such as settings, are put together with what is on the only device already.
        return jax.tree.unflatten(structure, self.put(leaves, is_whole=True))

    def _on_cores(self, leaf: types.Leaf) -> types.Leaf:
        """Let all devices read an array that is on one, if NumPy knows its type."""
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not isinstance(leaf, jax.Array) or is_key or getattr(leaf, "weak_type", False):
            return leaf
        view, devices = np.asarray(leaf), self._whole.addressable_devices
        copies = [jax.device_put(view, device, may_alias=True) for device in devices]
        return jax.make_array_from_single_device_arrays(view.shape, self._whole, copies)

    def _of_devices(self, tables: TreeT) -> TreeT:
        """Give each device its rows, and all devices arrays that are equal in all schedules."""
        leaves, structure = jax.tree.flatten(tables)
        given: dict[bool, list[np.ndarray]] = {True: [], False: []}
        for leaf in leaves:
            is_whole = leaf.shape[0] == 1
            is_in_order = is_whole or np.array_equal(self._rows, np.arange(len(leaf)))
            given[is_whole].append(leaf if is_in_order else leaf[self._rows])
        # Those of equal sharding are put together, which takes less time.
        whole, split = iter(self.put(given[True], is_whole=True)), iter(self.put(given[False]))
        placed = [next(whole if leaf.shape[0] == 1 else split) for leaf in leaves]
        return jax.tree.unflatten(structure, placed)


def _described(
    leaf: object, shape: tuple[int, ...], sharding: NamedSharding | None = None
) -> jax.ShapeDtypeStruct:
    """Describe an array, also whether its type is definite, by which programs differ."""
    is_weak = getattr(leaf, "weak_type", False)
    kind = jax.dtypes.result_type(leaf)
    return jax.ShapeDtypeStruct(shape, kind, sharding=sharding, weak_type=is_weak)
