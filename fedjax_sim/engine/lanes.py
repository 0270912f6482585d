"""Lanes of a sweep: which of them share a program, which differ in settings alone, and how they are stacked."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.engine.schedule import Schedule
from fedjax_sim.types import AnyProblem, Array, Hyper


class Lane(NamedTuple):
    """One run of a sweep."""

    place: int  # among all lanes of the sweep: settings first, then seeds
    hyper: Hyper
    problem: AnyProblem
    seed: int


def groups_of(lanes: list[Lane], max_lanes: int | None) -> Iterator[list[Lane]]:
    """Lanes that can share a program: those of equal static parts and shapes, at most `max_lanes` at once."""

    def static_part(lane: Lane) -> Any:
        leaves, treedef = jax.tree.flatten(lane.problem)
        return (
            jax.tree.structure(lane.hyper),
            treedef,
            [(np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves],
        )

    distinct: list[tuple[Any, list[Lane]]] = []
    known: dict[
        tuple[int, int], list[Lane]
    ] = {}  # by settings and problem, which thousands of seeds may share
    for lane in lanes:
        same = (id(lane.hyper), id(lane.problem))
        if same not in known:
            own = static_part(lane)
            known[same] = next((members for part, members in distinct if part == own), [])
            if not known[same]:
                distinct.append((own, known[same]))
        known[same].append(lane)
    for _, members in distinct:
        size = max_lanes or len(members)
        yield from (members[i : i + size] for i in range(0, len(members), size))


def twins_of(group: list[Lane], schedule: Schedule) -> tuple[np.ndarray, int]:
    """Find lanes that differ in settings alone: of one seed, one problem and one schedule, as far as learning sees it.

    Returns an order of the lanes `i64[L]` that puts them side by side, and how many belong together: 1 if not equally many do everywhere.
    """
    alike: dict[Any, list[int]] = {}
    for i, lane in enumerate(group):
        alike.setdefault((lane.seed, id(lane.problem)), []).append(i)
    if len(alike) < len(group):
        candidates, alike = alike, {}
        for own, members in candidates.items():
            for i in members:
                seen = hashlib.sha256()
                for leaf in (*schedule.events, schedule.holders):
                    seen.update(leaf[i].tobytes())
                alike.setdefault((*own, seen.digest()), []).append(i)
    sizes = {len(members) for members in alike.values()}
    if sizes == {1} or len(sizes) > 1:
        return np.arange(len(group)), 1
    return np.array(list(alike.values())).ravel(), sizes.pop()


class Stacked(struct.PyTreeNode):
    """Trees of equal structure, one for each of L lanes. What they have in common is held once."""

    own: list[Any]  # an entry per leaf: [L, ...], or None if common
    common: list[Any]  # an entry per leaf: [...], or None if own
    structure: Any = struct.field(pytree_node=False)

    def of_lane(self, own: list[Any]) -> Any:
        """The tree of a lane. own: the lane's entries of `own`."""
        leaves = [
            mine if mine is not None else all_ for mine, all_ in zip(own, self.common, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)


class Lanes(NamedTuple):
    """The L lanes of one program, stacked."""

    key: Any  # key[L]
    hyper: Stacked
    problem: Stacked


def keys_of(seeds: Sequence[int]) -> Array:
    """The keys of seeds, `key[L]`; each is that of `jax.random.key`."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, "int32"))


def stack_settings(hypers: Sequence[Any]) -> Stacked:
    """Stack settings of equal static parts; numbers that are equal in all are kept once."""
    distinct = list(
        {id(hyper): hyper for hyper in hypers}.values()
    )  # Thousands of seeds may share one.
    place = {id(hyper): i for i, hyper in enumerate(distinct)}
    rows = np.array([place[id(hyper)] for hyper in hypers])
    own, common = [], []
    for leaves in zip(*(jax.tree.leaves(hyper) for hyper in distinct), strict=True):
        values = np.stack([np.asarray(leaf, float) for leaf in leaves])
        is_common = bool((values == values[0]).all())
        common.append(values[0] if is_common else None)
        own.append(None if is_common else values[rows])
    return Stacked(own, common, jax.tree.structure(hypers[0]))


def stack_problems(problems: Sequence[Any]) -> Stacked:
    """Stack problems of equal static parts; leaves that are one and the same array are kept once."""
    own, common = [], []
    for leaves in zip(*(jax.tree.leaves(problem) for problem in problems), strict=True):
        is_common = all(leaf is leaves[0] for leaf in leaves)
        common.append(leaves[0] if is_common else None)
        own.append(None if is_common else jnp.stack(leaves))
    return Stacked(own, common, jax.tree.structure(problems[0]))
