"""Windows: the examples of files that a chunk reads, in memory while it runs.

Before a chunk is sent, the host finds out which examples its ticks will read (`reads`), and reads
these from the files into arrays of one shape. It does so in a thread, while the devices work on the
chunk before. So there are two windows at a time.

A window holds example 0, by which models are drawn, and what the ticks read, in the order of the
files. With it goes the place of each example in the window. What is not there has the place of the
last row, which nothing else has: a program that looks it up says so, see `reads.check`.

Dimension letters: those of `fedjax_sim.core.types`; `n` examples in files, `W` examples of a
window.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_sim.core import settings, types
from fedjax_sim.core.lifecycle import write_bytes
from fedjax_sim.engine.machine import memory
from fedjax_sim.engine.planning.lanes import Lane, Lanes, column, distinct_objects
from fedjax_sim.engine.program import reads
from fedjax_sim.engine.program.replay import Carry, Replay, ReplayedLane, of_lanes
from fedjax_sim.engine.request import Options

SHARE = 0.5
"""Share of the free memory that windows may take if nothing else is asked for."""
TOGETHER = 2
"""Windows in memory at a time: of the chunk that runs, and of the next."""


def open_files(group: list[Lane], options: Options) -> tuple[list[Lane], Options, list[types.Leaf]]:
    """Put examples that lie in files into memory, or make room for windows.

    Args:
      group: Lanes of equal static settings and shapes, with problems whose data lie in files.
      options: The options; `layout.window` says how many bytes windows may take together.

    Returns:
      The lanes; the options with the bytes that are taken; and the leaves of the problems for which
      there are windows: the examples, `[W + 1, ...]`, and last the place of each, `i32[n]`. There
      are none if all examples are in memory.

    Raises:
      ConfigError: If windows are asked for where they cannot be.
    """
    problems, number = distinct_objects(column(group, "problem"))
    first, layout = problems[0], options.layout
    files = first.held.stored
    free = layout.window or int(SHARE * memory.free_here())
    if free >= files.num * files.row_bytes:
        data, where, windowed = files.whole, None, []
    else:
        if jax.process_count() > 1 or (layout.client_devices or 1) > 1:
            allowed = "in memory on several processes, and with slots split over devices"
            raise settings.ConfigError("data", str(files), allowed)
        size = max(1, free // (TOGETHER * files.row_bytes) - 1)
        # Placeholders take no memory.
        data = jax.tree.map(
            lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (size + 1, *leaf.shape[1:])),
            first.data,
        )
        where = np.arange(files.num, dtype=np.int32)
        windowed = [*jax.tree.leaves(data), where]
        layout = layout._replace(client_devices=1, window=free)
        options = dataclasses.replace(options, layout=layout)
    made = [problem.with_examples(data, where) for problem in problems]
    lanes = [lane._replace(problem=made[i]) for lane, i in zip(group, number, strict=True)]
    return lanes, options, windowed


class Windows:
    """The windows of a group of lanes."""

    def __init__(self, problem: Any, windowed: list[types.Leaf], lanes: Lanes, replay: Replay):
        """Find out how the ticks of a program's lanes read examples.

        Args:
          problem: The problem of one of the lanes.
          windowed: The leaves for which there are windows, see `open_files`.
          lanes: The lanes.
          replay: Their program.

        Raises:
          ConfigError: If it is not known before learning which examples are read.
        """
        self._files, self._windowed = problem.held.stored, windowed
        self._size = len(windowed[0]) - 1
        self._block, self._shape = max(1, replay.program.block), replay.placed.schedule.shape
        self._read = _reads(replay, lanes, windowed)
        self._of_block = functools.lru_cache(maxsize=2)(self._read_block)

    def describe(self) -> str:
        """Say in one sentence how large windows are, and how much the first tick reads."""
        row, read = self._files.row_bytes, int(self._of_block(0).sum())
        return (
            f"{self._files.num} examples of {write_bytes(self._files.num * row)} lie in files; "
            f"{TOGETHER} windows of {self._size} take {self._bytes_for(self._size)}, and "
            f"the first tick reads {read} examples, {write_bytes(read * row)}."
        )

    def _bytes_for(self, size: int) -> str:
        """Write how many bytes windows take together."""
        return write_bytes(TOGETHER * (size + 1) * self._files.row_bytes)

    def make(self, begin: int, limit: int) -> tuple[int, dict[int, np.ndarray]]:
        """Read the examples of the ticks from `begin` on, as many ticks as there is room for.

        Args:
          begin: The first tick.
          limit: The tick after the last, at most.

        Returns:
          The tick after the last, and the arrays by the `id` of the leaf that each stands for.

        Raises:
          InputError: If a file has changed, or cannot be read.
          ConfigError: If a window is too small for a tick.
        """
        flags, end = np.zeros(self._files.num, bool), begin
        flags[0] = True
        while end < limit:
            more = flags | self._of_block(end)
            if (needed := int(more.sum())) > self._size:
                break
            flags, end = more, end + self._block
        if begin == end < limit:
            least = self._bytes_for(needed)
            allowed = f"at least {least}, for the {needed} examples that a tick reads"
            raise settings.ConfigError("layout.window", self._bytes_for(self._size), allowed)
        numbers = np.flatnonzero(flags)
        where = np.full(len(flags), self._size, np.int32)
        where[numbers] = np.arange(len(numbers))
        arrays = [*jax.tree.leaves(self._files.read(numbers, self._size + 1)), where]
        return min(end, limit), dict(zip(map(id, self._windowed), arrays, strict=True))

    def _read_block(self, begin: int) -> np.ndarray:
        """Find the examples that the ticks of a block read: `bool[n]`."""
        _, num_evals, per_eval = self._shape
        ticks = range(begin, min(begin + self._block, num_evals * per_eval))
        return np.any([self._read(*divmod(tick, per_eval)) for tick in ticks], axis=0)


def _reads(
    replay: Replay, lanes: Lanes, windowed: list[types.Leaf]
) -> Callable[[int, int], np.ndarray]:
    """Make a function that finds the examples that a tick reads, `bool[n]`.

    Its arguments are the number of the evaluation after the tick, and the place of the tick after
    the evaluation before.
    """
    program, schedule, num = replay.program, replay.placed.schedule, len(windowed[-1])
    together = program.placement.lanes_at_once or program.placement.family_size > 1
    layout: dict[str, Any] = {"lanes_at_once": together, "family_size": 1}
    program = program._replace(
        plan=program.plan._replace(**layout),
        placement=program.placement._replace(**layout, lane_batches=1),
        facts=program.facts.unpacked(),
    )
    tables, start = schedule.between(0, schedule.shape[1]), np.zeros((1, 3), np.int32)

    def begin(lanes: Lanes) -> Any:
        return of_lanes(ReplayedLane.begin, program, lanes, None, (None,))

    def tick(lanes: Lanes, carries: Carry, tables: Any, place: Any) -> Any:
        def run(lane: ReplayedLane, carry: Carry) -> Any:
            return lane.tick(carry, (place, None))

        return of_lanes(run, program, lanes, (tables, start), (carries,))

    leaves, examples = jax.tree.leaves(lanes), set(map(id, windowed[:-1]))
    rows = [reads.Rows(None) if id(leaf) in examples else None for leaf in leaves]
    place = np.int32(0), np.int32(0)
    with program.machine.tracing():
        begun, (carries, _) = jax.make_jaxpr(begin, return_shape=True)(lanes)
        reads.find(begun, rows, num)
        followed = jax.make_jaxpr(tick)(lanes, carries, tables, place)
        learnt = [None] * len(jax.tree.leaves(carries))
        known = [each or leaf for each, leaf in zip(rows, leaves, strict=True)]
        given = jax.device_put([*known, *learnt, *jax.tree.leaves(tables)], jax.devices("cpu")[0])
        find = jax.jit(lambda given, place: reads.find(followed, [*given, *place], num))
        run = find.lower(given, place).compile()
    return lambda *place: np.asarray(run(given, tuple(map(np.int32, place))))
