"""Windows: the examples of files that a chunk reads, in memory while it runs.

Before a chunk is sent, the host finds out which examples its ticks will read (`reads`), reads these
from the files into arrays of one shape, and changes the clients' lists of positions accordingly. It
does so in a thread, while the devices work on the chunk before. So there are two windows at a time.

A window holds example 0, by which models are drawn, and what the ticks read, in the order of the
files. What is not there has the position of the last row, which nothing else has: a program that
looks it up says so, see `reads.checked`.

Dimension letters: those of `fedjax_sim.core.types`; `n` examples in files, `W` examples of a
window, `P` positions of all clients' examples.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import batching, settings, types
from fedjax_sim.core.lifecycle import write_bytes
from fedjax_sim.engine.machine import memory
from fedjax_sim.engine.planning.lanes import Lane, Lanes
from fedjax_sim.engine.planning.schedule import Schedule
from fedjax_sim.engine.program import opened, reads
from fedjax_sim.engine.program.placed import PlacedLanes
from fedjax_sim.engine.request import Options

SHARE = 0.5
"""Share of the free memory that windows may take if nothing else is asked for."""
TOGETHER = 2
"""Windows in memory at a time: of the chunk that runs, and of the next."""


def open_files(group: list[Lane], options: Options) -> tuple[list[Lane], Options]:
    """Put examples that lie in files into memory, or make room for windows.

    Args:
      group: Lanes of equal static settings and shapes, with problems whose data lie in files.
      options: The options; `layout.window` says how many bytes windows may take together.

    Returns:
      The lanes, and the options with the bytes that are taken.

    Raises:
      ConfigError: If windows are asked for where they cannot be.
    """
    first: Any = group[0].problem
    files, layout = first.stored, options.layout
    free = layout.window or int(SHARE * memory.free_here())
    num = free // files.row_bytes
    if num >= files.num:
        data, num = files.whole, 0
    else:
        num = num // TOGETHER - 1
        if num < 1:
            least = write_bytes(2 * TOGETHER * files.row_bytes)
            raise settings.ConfigError("layout.window", write_bytes(free), f"at least {least}")
        if jax.process_count() > 1 or (layout.client_devices or 1) > 1:
            allowed = "in memory on several processes, and with slots split over devices"
            raise settings.ConfigError("data", str(files), allowed)
        layout = layout._replace(client_devices=1, window=free)
        options = dataclasses.replace(options, layout=layout)
        # Placeholders take no memory.
        data = jax.tree.map(
            lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (num + 1, *leaf.shape[1:])),
            first.data,
        )
    different = {id(lane.problem): lane.problem for lane in group}
    made = {key: problem.within(data, num) for key, problem in different.items()}  # type: ignore
    return [lane._replace(problem=made[id(lane.problem)]) for lane in group], options


class Window(NamedTuple):
    """The examples that a chunk reads, on the host.

    Attributes:
      end: The tick after its last.
      data: Examples, `[W + 1, ...]` each.
      places: The clients' positions in them, `i32[P]`, or `i32[L, P]` if lanes have their own.
    """

    end: int
    data: list[np.ndarray]
    places: np.ndarray


class Windows:
    """The windows of a group of lanes, made one after another in a thread."""

    def __init__(self, program: Any, problem: Any, lanes: Lanes, schedule: Schedule):
        """Find out how the ticks of a program's lanes read examples.

        Args:
          program: The static arguments of the program.
          problem: The problem of one of the lanes.
          lanes: The lanes.
          schedule: Their schedules.

        Raises:
          ConfigError: If it is not known before learning which examples are read.
        """
        self._files, self._size = problem.stored, problem.held.window
        self._schedule, self._block = schedule, max(1, program.block)
        self._data_at, self._index_at = _places(problem)
        index = lanes.problem.varying[self._index_at]
        self._index = np.asarray(lanes.problem.shared[self._index_at] if index is None else index)
        self._read = _reads(program, problem, lanes, schedule)
        self._known: dict[int, np.ndarray] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Window]] | None = None
        self._taken: Window | None = None

    def describe(self) -> str:
        """Say in one sentence how large windows are, and how much the first tick reads."""
        self._known[0] = first = self._of_block(0)
        size, row = self._size + 1, self._files.row_bytes
        read = int(first.sum())
        return (
            f"{self._files.num} examples of {write_bytes(self._files.num * row)} lie in files; "
            f"{TOGETHER} windows of {self._size} take {write_bytes(TOGETHER * size * row)}, and "
            f"the first tick reads {read} examples, {write_bytes(read * row)}."
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the window that is made while a chunk runs."""
        return (self._size + 1) * self._files.row_bytes

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, "fedjax_sim-window")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._thread.shutdown(cancel_futures=True)
        self._thread, self._next = None, None

    def prepare(self, begin: int, limit: int) -> None:
        """Begin to make the window of a chunk that ends by a tick, or before."""
        assert self._thread is not None
        self._next = begin, self._thread.submit(self.make, begin, limit)

    def take(self, begin: int, limit: int) -> int:
        """Wait for the window of a chunk, and return the tick after its last.

        Raises:
          InputError: If a file has changed, or cannot be read.
          ConfigError: If a window is too small for a tick.
        """
        if self._next is None or self._next[0] != begin:
            self.prepare(begin, limit)
        assert self._next is not None
        (_, window), self._next = self._next, None
        self._taken = window.result()
        return self._taken.end

    def fill(self, placed: PlacedLanes) -> Lanes:
        """Put the lanes on their devices, with the examples of the window that was taken."""
        window = self._taken or self.make()
        return placed.filled(self._data_at, self._index_at, window.data, window.places)

    def make(self, begin: int = 0, limit: int = 0) -> Window:
        """Read the examples of the ticks from `begin` on, as many ticks as there is room for."""
        flags, end = np.zeros(self._files.num, bool), begin
        flags[0] = True
        while end < limit:
            of_block = self._known.pop(end, None)
            of_block = self._of_block(end) if of_block is None else of_block
            more = flags | of_block
            if (needed := int(more.sum())) > self._size:
                self._known[end] = of_block
                if end == begin:
                    least = write_bytes(TOGETHER * (needed + 1) * self._files.row_bytes)
                    allowed = f"at least {least}, for the {needed} examples that a tick reads"
                    size = write_bytes(TOGETHER * (self._size + 1) * self._files.row_bytes)
                    raise settings.ConfigError("layout.window", size, allowed)
                break
            flags, end = more, end + self._block
        numbers = np.flatnonzero(flags)
        # Without ticks there is example 0 alone, which is known.
        room = self._size + 1
        read = self._files.read(numbers, room) if end > begin else self._files.alone(room)
        data = jax.tree.leaves(read)
        place = np.full(len(flags), self._size, np.int32)
        place[numbers] = np.arange(len(numbers))
        return Window(min(end, limit), data, place[self._index])

    def _of_block(self, begin: int) -> np.ndarray:
        """Find the examples that the ticks of a block read: `bool[n]`."""
        per_eval = self._schedule.shape[2]
        last = min(begin + self._block, self._schedule.shape[1] * per_eval)
        return np.any([self._read(tick, *divmod(tick, per_eval)) for tick in range(begin, last)], 0)


def _places(problem: Any) -> tuple[list[int], int]:
    """Find the examples, and the clients' positions, among the leaves of a problem."""
    data, index = object(), object()
    both = jax.tree.map(lambda _: data, problem.data), problem.held.replace(index=index)
    leaves = jax.tree.leaves(dataclasses.replace(problem, data=both[0], held=both[1]))
    return [i for i, leaf in enumerate(leaves) if leaf is data], leaves.index(index)


def _reads(
    program: Any, problem: Any, lanes: Lanes, schedule: Schedule
) -> Callable[[int, int, int], np.ndarray]:
    """Make a function from a tick, and its place among evaluations, to the reads `bool[n]`."""
    placement, num = program.placement, problem.stored.num
    together = placement.lanes_at_once or placement.family_size > 1
    plan = program.plan._replace(lanes_at_once=together, family_size=1, client_devices=1)
    rows, system = {*map(id, jax.tree.leaves(problem.data))}, program.system
    tables = schedule.between(0, schedule.shape[1]).ticks

    def over(run: Callable[..., Any], lanes: Lanes, states: Any, *given: Any) -> Any:
        def of_lane(inputs: Any) -> Any:
            (seed, row, problem, hyper), state = inputs
            problem, hyper = lanes.problem.of_lane(problem), lanes.hyper.of_lane(hyper)
            key = opened.learning_key(seed)
            lane = opened.lane_of(system, problem, hyper, key, plan)
            return run(lane, row, state, *given)

        each = lanes.seed, lanes.row, lanes.problem.varying, lanes.hyper.varying
        return batching.map_lanes(of_lane, (each, states), at_once=together)

    def step(lane: Any, row: Any, state: Any, tables: Any, tick: Any, place: Any) -> Any:
        facts = program.facts.unpacked()
        return lane.step(state, tables.event(row, tick, place, facts))[1]

    def outside_of_steps(lane: Any, row: Any, state: Any) -> Any:
        return lane.init(), lane.evaluate(state)

    def followed(run: Callable[..., Any], *given: Any) -> Callable[..., types.Array]:
        """Return a function from known inputs to flags of the examples that are read."""
        closed = jax.make_jaxpr(partial(over, run))(taken[0], states, *given)
        is_row = [id(leaf) in rows for leaf in jax.tree.leaves(taken[0])]

        def noted(known: list, *given: Any) -> types.Array:
            rest, learnt = iter(known), [reads.UNKNOWN] * len(jax.tree.leaves(states))
            leaves = [reads.Rows(None) if each else next(rest) for each in is_row]
            inputs, flags = [*leaves, *learnt, *jax.tree.leaves(given)], jnp.zeros(num, bool)
            return reads.follow(closed.jaxpr, closed.consts, inputs, flags, reads.note_rows)[1]

        return noted

    size = len(lanes.seed)
    parts = [np.arange(size)] if together else list(np.arange(size)[:, None])
    taken = [
        Lanes(lanes.seed[i], lanes.row[i], lanes.hyper.take(i), lanes.problem.take(i))
        for i in parts
    ]
    host = jax.devices("cpu")[0]
    known = [
        jax.device_put([leaf for leaf in jax.tree.leaves(each) if id(leaf) not in rows], host)
        for each in taken
    ]
    given = jax.device_put((tables, np.int32(0), (np.int32(0), np.int32(0))), host)
    try:
        with program.machine.tracing():
            first = partial(over, lambda lane, row, state: lane.init())
            states = jax.eval_shape(first, taken[0], ())
            unknown = [reads.UNKNOWN] * len(known[0])
            jax.eval_shape(partial(followed(outside_of_steps), unknown))
            run = jax.jit(followed(step, *given)).lower(known[0], *given).compile()
    except reads.NotKnownError as error:
        allowed = f"in memory (layout.window), because with {type(problem).__name__} {error}"
        raise settings.ConfigError("data", str(problem.stored), allowed) from None

    def read(tick: int, number: int, within: int) -> np.ndarray:
        where = np.int32(tick), (np.int32(number), np.int32(within))
        return np.any([np.asarray(run(each, given[0], *where)) for each in known], axis=0)

    return read
