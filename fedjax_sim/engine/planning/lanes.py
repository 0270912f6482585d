"""Lanes of a sweep: which of them share a program, which form families, and how they are stacked.

A *group* is a set of lanes with equal static settings and shapes: they share one compiled program.
A *family* is a set of lanes of a group that have the same seed, problem and schedule, and differ
only in numeric settings. All members of a family draw the same mini-batches and noise, so a batch
of them draws these once.

Dimension letters: `L` lanes.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import known_values
from fedjax_sim.core.trees import TypedStructure, typed_structure
from fedjax_sim.core.types import AnyProblem, Array, HyperT, Leaf, Params

ObjectT = TypeVar("ObjectT")
Known = tuple[tuple[str, float], ...]
"""Names and values of settings that are part of a program."""


class Lane(NamedTuple):
    """One run of a sweep.

    Attributes:
      place: Position among all lanes of the sweep: settings first, then seeds.
      hyper: The settings.
      problem: What is learnt.
      seed: The seed.
      point: The values of the swept settings, by name.
      start: The model that the lane starts from; None to draw it.
    """

    place: int
    hyper: Any
    problem: AnyProblem
    seed: int
    point: Mapping[str, Any] = MappingProxyType({})
    start: Params | None = None


def groups_of(lanes: list[Lane]) -> list[list[Lane]]:
    """Group lanes of equal static settings and shapes."""
    # Thousands of seeds may share settings and problem.
    known: dict[tuple[int, int], list[Lane]] = {}
    groups: dict[Hashable, list[Lane]] = {}
    for lane in lanes:
        objects = id(lane.hyper), id(lane.problem)
        if objects not in known:
            shapes = tuple(map(jax.typeof, jax.tree.leaves(lane.problem)))
            form = typed_structure(lane.hyper), typed_structure(lane.problem), shapes
            known[objects] = groups.setdefault(form, [])
        known[objects].append(lane)
    return list(groups.values())


def column(group: Iterable[Lane], field: str) -> list[Any]:
    """List one field of some lanes."""
    return [getattr(lane, field) for lane in group]


def distinct(keys: Iterable[Hashable]) -> tuple[list[int], np.ndarray]:
    """Find the lanes that differ.

    Args:
      keys: Of L lanes: what must be equal in those that are taken for one.

    Returns:
      The first lane of each key, in order, and for each lane the number of its key, `i64[L]`.
    """
    first: dict[Hashable, int] = {}
    of_lane = list(map(first.setdefault, keys, itertools.count()))
    firsts = list(first.values())  # They rise.
    return firsts, np.searchsorted(firsts, of_lane)


def distinct_objects(each: Sequence[ObjectT]) -> tuple[list[ObjectT], np.ndarray]:
    """Leave out repetitions of an object; thousands of seeds often share settings and problem.

    Args:
      each: An object for each of L lanes.

    Returns:
      The different objects, in order, and for each lane the number of its object, `i64[L]`.
    """
    firsts, number = distinct(map(id, each))
    return list(map(each.__getitem__, firsts)), number


def distinct_rows(*numbers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Find the lanes that differ in some numbers, `i64[L]` each; as `distinct`."""
    return distinct(zip(*map(np.ndarray.tolist, numbers), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stacked:
    """L trees of equal structure, one for each lane. Leaves that are equal in all are held once.

    Attributes:
      varying: One entry per leaf: `[L, ...]`, or None if the leaf is shared.
      shared: One entry per leaf: `[...]`, or None if the leaf varies.
      structure: The trees' structure.
      known: Names and values of settings that are part of the program, because it is simpler with
        them; see `fedjax_sim.core.settings.setting`.
    """

    varying: Sequence[Array | np.ndarray | None]
    shared: Sequence[Array | np.ndarray | None]
    structure: TypedStructure = dataclasses.field(metadata={"static": True})
    known: Known = dataclasses.field(default=(), metadata={"static": True})

    def replace(self, **changes: Any) -> "Stacked":
        """Return the same trees but for some fields."""
        return dataclasses.replace(self, **changes)

    def of_lane(self, varying: Sequence[Array | np.ndarray | None]) -> Any:
        """Build one lane's tree from the lane's entries of `varying`."""
        leaves = [
            here if here is not None else everywhere
            for here, everywhere in zip(varying, self.shared, strict=True)
        ]
        tree = self.structure.unflatten(leaves)
        return dataclasses.replace(tree, **dict(self.known)) if self.known else tree

    def take(self, rows: np.ndarray) -> "Stacked":
        """Select trees by their numbers."""
        varying = [None if leaf is None else leaf[rows] for leaf in self.varying]
        return self.replace(varying=varying)


class Lanes(NamedTuple):
    """The L lanes of one program, stacked.

    Attributes:
      seed: `i32[L]`.
      row: `i32[L]`, the number of each lane's schedule.
      hyper: Settings of all lanes.
      problem: Problems of all lanes.
    """

    seed: Leaf
    row: Leaf
    hyper: Stacked
    problem: Stacked


def stack_settings(hypers: Sequence[HyperT], dtype: np.typing.DTypeLike = float) -> Stacked:
    """Stack settings of equal static parts. Numbers that are equal in all lanes are held once.

    Args:
      hypers: The settings of L lanes.
      dtype: Type of the numbers.
    """
    distinct, rows = distinct_objects(hypers)
    varying, shared = [], []
    for leaves in zip(*map(jax.tree.leaves, distinct), strict=True):
        held = leaves[:1] if len({*map(id, leaves)}) == 1 else leaves  # A table may be large.
        values = np.stack([np.asarray(leaf, float) for leaf in held])
        is_shared = bool((values == values[0]).all())
        values = values.astype(dtype)
        shared.append(values[0] if is_shared else None)
        varying.append(None if is_shared else values[rows])
    return Stacked(varying, shared, typed_structure(hypers[0]), known_in_all(distinct))


def known_in_all(hypers: Sequence[object]) -> Known:
    """Name settings that make programs simpler, and have the value for it in all lanes."""
    known = map(known_values, distinct_objects(hypers)[0])
    return tuple(sorted(set.intersection(*map(set, known))))


def stack_problems(problems: Sequence[AnyProblem]) -> Stacked:
    """Stack problems of equal static parts. Leaves that are the same array are held once."""
    varying, shared = [], []
    distinct, rows = distinct_objects(problems)
    for leaves in zip(*map(jax.tree.leaves, distinct), strict=True):
        is_shared = len({*map(id, leaves)}) == 1
        shared.append(leaves[0] if is_shared else None)
        varying.append(None if is_shared else _stack([leaves[row] for row in rows]))
    return Stacked(varying, shared, typed_structure(problems[0]))


def _stack(leaves: list[Leaf]) -> Array | np.ndarray:
    """Stack leaves of lanes: on the host, which compiles nothing, if NumPy has their type."""
    kind = jax.typeof(leaves[0])
    if kind.weak_type or jnp.issubdtype(kind.dtype, jax.dtypes.extended):
        return jnp.stack(leaves)
    return np.stack([np.asarray(leaf, kind.dtype) for leaf in leaves])
