"""Phase one: draw timelines that are long enough for every budget.

They are drawn on the CPU, whatever learns later: they need sorts in 64 bits and little arithmetic.

Dimension letters: those of `fedjax_sim.core.types`, `D` timelines.
"""

import dataclasses
import functools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_sim.core import lifecycle, streams, targets, trees
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array, Budget, Energy, HyperT, Key, System, Ticks, Timeline
from fedjax_sim.engine.machine import compiling, memory, processes, user_code
from fedjax_sim.engine.planning import budgets, lanes
from fedjax_sim.timelines import checks

BYTES_OF_A_SLOT = 520
"""Memory that drawing takes for each slot of each tick, measured for FAVANO and FedBuff."""


DRAWN_TOGETHER = 2**28
"""Bytes that one call of the drawing program may take; for more timelines there are more calls."""


BYTES_OF_A_PLANNED_SLOT = 40
"""Memory that a drawn and laid out schedule takes for each slot of each tick."""


SECONDS_OF_A_SLOT = 2e-6
"""Time that drawing and laying out takes for each slot of each tick; 0.6 for FedAvg, 1.2 for FAVANO
and 3.8 microseconds for FedBuff were measured with 2,000 clients and 20,000 ticks."""


MOST_SECONDS = 3600.0
"""Longest time that planning may take."""


QUICKLY_COMPILED = 2**17
"""Slots of all ticks up to which the drawing program is compiled quickly instead of well.

Compiling takes 0.4 to 1 second instead of 3 to 4.5, drawing 2 to 4 microseconds a slot instead of
0.3 to 1: up to half a second at this size. The last bit of a time or of a weight may differ between
the two.
"""


ROUNDED_MUCH = 2**13
"""Slots of all ticks up to which many more may be drawn than needed, so that sweeps of many sizes
share a program."""


MOST_REMEMBERED = 8
"""Timelines of quickly compiled programs that are remembered: schedules are drawn to check them and
to run."""


MOST_PROGRAMS = 32
"""Timelines that are kept, because those of other settings may be equal."""


LEAST = (4, 128)
"""Schedules, and ticks of each, that are drawn at least if they have few slots and clients.

Drawing these takes milliseconds, and small sweeps of many sizes share a program.
"""


FEW_ENOUGH = "few enough for the schedule of {} to fit in memory"


CLIENTS_AS_A_SLOT = 8
"""Clients that count as a slot: each takes part in drawing a tick, such as a draw of its cohort."""


def _check_size(system: System, hypers: Sequence[HyperT], budget: Budget, ticks: int) -> None:
    """Refuse timelines that would take hours, or more memory than the host has.

    Args:
      budget: As the caller has given it.
      ticks: Ticks of each.
    """
    num, slots = len(hypers), read_timeline(system, hypers[0], lanes.known_in_all(hypers)).slots
    seconds = SECONDS_OF_A_SLOT * ticks * slots * num
    if seconds > MOST_SECONDS:
        allowed = (
            f"smaller: planning {num} schedules of {ticks} ticks and {slots} slots for "
            f"{system.name} would take about {seconds / 3600:.0f} hours"
        )
        raise ConfigError(*budget.named, allowed)
    needed = BYTES_OF_A_PLANNED_SLOT * ticks * slots * num
    if needed > DRAWN_TOGETHER and needed > memory.SHARE * lifecycle.free_on_host():
        raise memory.DoesNotFitError(*budget.named, FEW_ENOUGH.format(system.name))


class Schedules(NamedTuple):
    """The D schedules of a group of lanes, before they are drawn. Lanes may share one.

    Attributes:
      system: What runs.
      seeds: D seeds.
      hypers: D settings of equal static parts.
      budget: How long a run lasts.
      row: `i64[L]`, the number of each lane's schedule.
      metered: The lanes of each schedule, where the budget is one of energy.
    """

    system: System
    seeds: Sequence[int]
    hypers: list[Any]
    budget: Budget
    row: np.ndarray = np.zeros(0, int)
    metered: list[list[lanes.Lane]] | None = None

    @classmethod
    def of(cls, system: System, group: list[lanes.Lane], budget: Budget) -> "Schedules":
        """Find out which lanes share a schedule: those of equal seeds and settings that it reads.

        Args:
          group: L lanes.

        Raises:
          ConfigError: If the budget is one of energy, and a lane's energy is not known.
        """
        known = lanes.known_in_all(lanes.column(group, "hyper"))
        reads = read_timeline(system, group[0].hyper, known).reads
        # Lanes share a schedule that have one seed, and settings that are equal to their timeline.
        different, number = lanes.distinct_objects(lanes.column(group, "hyper"))
        leaves = (compress(jax.tree.leaves(each), reads) for each in different)
        read = [tuple(np.asarray(leaf, float).tobytes() for leaf in own) for own in leaves]
        own = map(read.__getitem__, number.tolist())
        firsts, row = lanes.distinct(zip(lanes.column(group, "seed"), own, strict=True))
        drawn, metered = list(map(group.__getitem__, firsts)), None
        if isinstance(budget, Energy):
            metered = budgets.lanes_to_meter(system, group, row, budget)
        if system.live is not None:  # Lanes that share one need not have equally many ticks.
            budget = budgets.with_most_ticks(system, different, budget)
        seeds, hypers = lanes.column(drawn, "seed"), lanes.column(drawn, "hyper")
        return cls(system, seeds, hypers, budget, row, metered)

    def request(self) -> tuple[Timeline, np.ndarray]:
        """Draw timelines that cover the budget.

        Returns:
          The timelines, leaves `[D, T, ...]`, and the ticks that belong to each, `i64[D]`.

        Raises:
          ConfigError: If the budget is too short for one tick, or too long, also to be drawn within
            an hour.
          OutOfMemoryError: If the timelines do not fit in memory.
        """
        system, hypers, until, energy = self.system, self.hypers, self.budget, None
        if isinstance(until, Ticks):
            first = until.num_ticks
        else:
            until, first = budgets.first_request(system, hypers, until)
        _check_size(system, hypers, self.budget, first)
        draw = partial(draw_timelines, system, self.seeds, hypers)
        try:
            if isinstance(until, Ticks):
                return draw_ticks(draw, until.num_ticks)
            if self.metered is not None and isinstance(until, Energy):
                energy = partial(budgets.energy_used, system, until, self.metered)
            return budgets.lengthen(
                draw, until, first=first, overshoot=system.overshoot, energy=energy
            )
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not memory.is_out_of_memory(error):
                raise
            allowed = FEW_ENOUGH.format(system.name)
            raise memory.OutOfMemoryError(*self.budget.named, allowed) from None

    def count_ticks(self) -> np.ndarray:
        """Count their ticks, `i64[D]`, and keep none: they are halved until they fit."""
        try:
            return self.request()[1]
        except memory.OutOfMemoryError:
            if len(self.seeds) == 1:
                raise
        half = len(self.seeds) // 2
        found = []
        for few in (slice(half), slice(half, None)):
            metered = self.metered and self.metered[few]
            some = self._replace(seeds=self.seeds[few], hypers=self.hypers[few], metered=metered)
            found.append(some.count_ticks())
        return np.concatenate(found)


def draw_ticks(draw: Callable[[int], Timeline], num_ticks: int) -> tuple[Timeline, np.ndarray]:
    """Draw timelines until so many ticks of all lanes are known.

    Args:
      draw: From a number of ticks to leaves `[L, T, ...]`.
      num_ticks: The ticks of each lane.

    Returns:
      The timelines, and `i64[L]`, the ticks of each lane.

    Raises:
      ConfigError: If a recorded trace holds fewer ticks, or too many must be drawn.
    """
    asked = num_ticks
    while asked <= budgets.MAX_TICKS:
        timelines = draw(asked)
        time = timelines.time[:, :num_ticks]
        if (missing := np.isinf(time).any(axis=0)).any():
            allowed = f"at most the {int(np.argmax(missing))} ticks that the trace holds"
            raise ConfigError("num_ticks", num_ticks, allowed)
        if not np.isnan(time).any():
            return timelines, np.full(len(time), num_ticks)
        asked *= 2
    raise ConfigError("num_ticks", num_ticks, f"at most {budgets.MAX_TICKS // 2}")


def draw_timelines(
    system: System, seeds: Sequence[int], hypers: Sequence[HyperT], num_ticks: int
) -> Timeline:
    """Draw timelines of `num_ticks` ticks, for D seeds and D settings of equal static parts.

    Returns:
      Leaves `[D, T, ...]` on the host, with times in 64 bits. A leaf that is the same at all ticks
      takes the memory of one. Drawing and laying out takes about 40 bytes for each schedule, tick
      and slot, and `DRAWN_TOGETHER`.
    """
    all_seeds, settings = np.asarray(seeds, "int32"), lanes.stack_settings(hypers)
    read = partial(read_timeline, system, hypers[0], settings.known)
    _, _, slots, code, _ = read()
    if code:  # A user's code may depend on their number.
        code = read(num_ticks).code
    asked: tuple = (system.timeline, settings.structure, settings.known, num_ticks, code)
    asked += _switches(jax.config), all_seeds.tobytes()
    for leaf in (*settings.varying, *settings.shared):
        asked += (None if leaf is None else (leaf.shape, leaf.tobytes()),)
    if (known := _drawn.get(asked)) is not None:
        return known
    # Some more are drawn, so that sweeps of nearly equal size share a program: up to four times as
    # much, and at least `LEAST`, where that takes no time, otherwise an eighth.
    bits = 1 if len(seeds) * num_ticks * slots <= ROUNDED_MUCH else 4
    rounded, size = _round_up(num_ticks, bits), len(seeds)
    if bits == 1:
        size = _round_up(size, 1)
        of_tick = max(slots, getattr(hypers[0], "num_clients", 0) // CLIENTS_AS_A_SLOT)
        while rounded < LEAST[1] and 2 * size * rounded * of_tick <= ROUNDED_MUCH:
            rounded *= 2
        while size < LEAST[0] and 2 * size * rounded * of_tick <= ROUNDED_MUCH:
            size *= 2
    of_one = BYTES_OF_A_SLOT * rounded * slots
    size = min(size, max(1, DRAWN_TOGETHER // of_one))
    is_small = size * rounded * slots <= QUICKLY_COMPILED
    with jax.enable_x64(True), jax.default_device(_cpu()), targets.tracing_for("cpu"):
        draw = partial(_draw_with, read(rounded), is_quick=is_small)
        pieces: list[list[np.ndarray]] = [[] for _ in Timeline._fields]
        for first in range(0, len(seeds), size):
            # The last call draws its last timeline again until it is as large as the others.
            rows = np.minimum(np.arange(first, first + size), len(seeds) - 1)
            timelines = draw(all_seeds[rows], settings.take(rows))
            for leaf, found in zip(timelines, pieces, strict=True):
                found.append(np.asarray(leaf)[: len(seeds) - first, :num_ticks])
    # Leaf by leaf, which frees the pieces of each.
    drawn = Timeline(*(_joined(pieces.pop(0)) for _ in Timeline._fields))
    hyper: Any = hypers[0]
    num_clients = system.messages.num_senders(hyper) or hyper.num_clients
    checks.check_values(system, drawn, num_ticks, num_clients)
    with np.errstate(invalid="ignore"):  # Empty slots may hold anything.
        for name in checks.INTEGERS:
            leaf = getattr(drawn, name)
            once = leaf[:, :1] if leaf.strides[1] == 0 else leaf
            whole = np.broadcast_to(once.astype("int32", copy=False), leaf.shape)
            drawn = drawn._replace(**{name: whole})
    if is_small and len(seeds) <= size:
        for leaf in drawn:
            leaf.setflags(write=False)
        _drawn[asked] = drawn
        for old in list(_drawn)[:-MOST_REMEMBERED]:
            _drawn.pop(old, None)
    return drawn


_drawn: dict[tuple, Timeline] = {}
_switches = operator.attrgetter("jax_default_prng_impl", "jax_threefry_partitionable")
"""From JAX's configuration to the switches that decide which random numbers a program draws."""


def _round_up(number: int, bits: int) -> int:
    """Round up to a number of which only the leading bits are set: at most `bits`."""
    unit = 1 << max(0, (number - 1).bit_length() - bits)
    return -(-number // unit) * unit


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Join timelines of several calls, where one tick is kept if all ticks are the same."""
    whole = np.concatenate(pieces)
    once = whole[:, :1].copy()
    return np.broadcast_to(once, whole.shape) if (whole == once).all() else whole


@functools.cache
def _cpu() -> jax.Device:
    """Return the device that draws.

    Raises:
      ConfigError: If JAX was started without its CPU backend.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        platforms = str(jax.config.jax_platforms)  # type: ignore[attr-defined]
        allowed = f'"{platforms},cpu": schedules are drawn on the CPU'
        raise ConfigError("JAX_PLATFORMS", platforms, allowed) from None


Draw = Callable[[Key, Any, int], Timeline]
"""A system's timeline: from a key, settings and a number of ticks."""


def _draw_with(
    facts: "TimelineFacts", seeds: np.ndarray, hypers: lanes.Stacked, *, is_quick: bool
) -> Timeline:
    """Draw timelines with a program that all settings share which the timeline takes for equal.

    Settings that differ in what learning alone reads, such as a rule of aggregation, are other
    trees and are traced anew, but only the first of equal programs is lowered and compiled.
    """
    draw, timeline, reads = _draw.quickly if is_quick else _draw.well, facts.program, facts.reads
    # What the timeline does not read is no input, so that there may be any number of it.
    varying, shared = list(compress(hypers.varying, reads)), list(compress(hypers.shared, reads))
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return draw(timeline, seeds, varying, shared)
    if not facts.code:  # Programs of users may call functions that are not in their text.
        same, known = user_code.number_of_program, list(_programs)
        timeline = next((old for old in known if same(old) == same(timeline)), timeline)
        if timeline not in known:
            _programs.append(timeline)
    program = draw.lower(timeline, seeds, varying, shared).compile()  # JAX keeps both.

    def run() -> Timeline:
        with jax.enable_x64(True):  # JAX's settings belong to a thread.
            return jax.block_until_ready(program(seeds, varying, shared))

    # A CPU device runs what one thread asks for in its order, and lanes may be running on it.
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(run).result()


_programs: deque[ClosedJaxpr] = deque(maxlen=MOST_PROGRAMS)
"""The first of equal timelines."""


@partial(compiling.RunsOnce, static_argnums=0)
def _draw(
    timeline: ClosedJaxpr, seeds: Array, varying: list[Array | None], shared: list[Array | None]
) -> Timeline:
    """Draw timelines by the program of one. Whole numbers that are floats stay so."""

    def lane(seed: Array, varying: list[Array | None]) -> list[Array]:
        key = streams.stream(jax.random.key(seed), "timeline")
        leaves = [y if x is None else x for x, y in zip(varying, shared, strict=True)]
        return jax.core.eval_jaxpr(timeline.jaxpr, timeline.consts, key, *leaves)

    drawn = Timeline(*jax.vmap(lane)(seeds, varying))
    wide = {name: getattr(drawn, name) for name in checks.INTEGERS}
    whole = {k: x.astype("int32") for k, x in wide.items() if jnp.issubdtype(x.dtype, jnp.integer)}
    return drawn._replace(**whole)


def timeline_digest(system: System, hyper: HyperT) -> str:
    """Hash the program that draws schedules with these settings, or with others of equal parts."""
    program = read_timeline(system, hyper, lanes.known_in_all([hyper])).program
    with jax.enable_x64(True), jax.default_device(_cpu()):
        return processes.hash_programs(jax.jit(jaxpr_as_fun(program)).lower(*program.in_avals))


class TimelineFacts(NamedTuple):
    """Facts read from the program of a timeline.

    Attributes:
      reads: Which leaves of the settings it reads.
      places: Which of them it reads for anything else than weights.
      slots: Slots of a tick, S.
      code: Number of its code, see `number_of_code`.
      program: The program, without the leaves that it does not read.
    """

    reads: list[bool]
    places: list[bool]
    slots: int
    code: int
    program: ClosedJaxpr


def read_timeline(
    system: System, hyper: HyperT, known: lanes.Known = (), num_ticks: int | None = None
) -> TimelineFacts:
    """Trace a short timeline with these settings, or others of equal static parts.

    Args:
      known: Settings that are part of the program.
      num_ticks: Ticks of the timeline; by default two of one that a user wrote, and otherwise as
        many as are often drawn.
    """
    shapes = tuple(map(np.shape, jax.tree.leaves(hyper)))
    given, short = (system.timeline, trees.typed_structure(hyper), shapes, known), num_ticks or 2
    trace = partial(_program_of, *given, short)
    code = user_code.number_of_code(trace, system.timeline, hyper, facts=short)
    kept_for = code, _switches(jax.config)
    return _facts_of(kept_for, *given, short if code else num_ticks or LEAST[1])


def _program_of(
    timeline: Draw,
    structure: trees.TypedStructure,
    shapes: tuple[tuple, ...],
    known: lanes.Known,
    num_ticks: int,
) -> tuple[ClosedJaxpr, Timeline]:
    """Trace a timeline, and describe its result."""

    def drawn(key: Key, leaves: list[Array]) -> Timeline:
        hyper = structure.unflatten(leaves)
        whole = dataclasses.replace(hyper, **dict(known)) if known else hyper
        return timeline(key, whole, num_ticks)

    with jax.enable_x64(True), targets.tracing_for("cpu"):
        leaves = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
        key = jax.eval_shape(lambda: jax.random.key(0))  # Of a known function JAX keeps the kind.
        return jax.make_jaxpr(drawn, return_shape=True)(key, leaves)


@functools.lru_cache(maxsize=256)
def _facts_of(kept_for: tuple[int, Any], *given: Any) -> TimelineFacts:
    closed, drawn = _program_of(*given)
    checks.check_form(drawn)
    is_place = [name != "weight" for name in Timeline._fields]
    key_alone = [True, *[False] * (len(closed.in_avals) - 1)]
    program, reads = dce_jaxpr(closed.jaxpr, True, key_alone)
    places = dce_jaxpr(closed.jaxpr, is_place)[1]
    pruned = ClosedJaxpr(program, closed.consts)
    return TimelineFacts(reads[1:], places[1:], drawn.clients.shape[1], kept_for[0], pruned)
