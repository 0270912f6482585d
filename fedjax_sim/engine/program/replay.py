"""Phase two: replay schedules through an algorithm.

In every lane a scan over evaluations contains a scan over the ticks between two of them. One call
of the compiled program replays a chunk of all lanes: one or more evaluations or, where checkpoints
are written, a stretch of any number of ticks up to the next evaluation. `chunks` calls it.

Dimension letters: those of `fedjax_sim.types`; `D` schedules, `V` evaluations, `C` evaluations of a
chunk, `E` ticks between two evaluations, `H` rows of the store behind `client_variance`.
"""

import copy
import functools
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import unwrap
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim import events, targets, types
from fedjax_sim.batching import LANE_AXIS, map_families, map_lanes
from fedjax_sim.engine.machine import compiling, memory, processes
from fedjax_sim.engine.machine.compiling import RunsOnce
from fedjax_sim.engine.planning.lanes import Lanes
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.planning.schedule import Schedule, Tables, event_at, look_up
from fedjax_sim.engine.program.client_variance import client_variance, first_store, write_version
from fedjax_sim.engine.program.live import happened_of
from fedjax_sim.engine.program.opened import Machine, Opened, learning_key, open_lane
from fedjax_sim.results.metric_names import scalars_of
from fedjax_sim.settings import ConfigError

LIMB_BITS = 11
"""Bits of each limb but the last. A million ticks sum limbs of so many bits within 32."""


MOST_TOGETHER = 1024
"""Numbers of an array up to which it is copied and put on the devices together with others."""


class Limbs(NamedTuple):
    """A sum of whole numbers of 32 bits, which may need more, from the lowest bits up."""

    low: types.Array
    middle: types.Array
    high: types.Array

    def total(self) -> np.ndarray:
        """Put the sum together once it is on the host: `i64`."""
        low, middle, high = (np.asarray(limb).astype("int64") for limb in self)
        return low + (middle << LIMB_BITS) + (high << 2 * LIMB_BITS)


class Program(NamedTuple):
    """The static arguments of the compiled program.

    Attributes:
      system: The system.
      plan: What algorithms are bound to.
      facts: What is known of all ticks.
      placement: Where lanes run.
      chunk: Evaluations of a chunk C, and ticks between two of them E.
      keep_models: Whether the model of every evaluation is returned.
      block: Where a call replays a stretch of ticks, they are a multiple of this number; 0 where it
        replays whole evaluations.
      begins_quickly: As in `Machine`.
      precision: Precision of matrix products, one of `PRECISIONS`.
      can_stop: Whether single lanes may be stopped, and then cost nothing where lanes run one after
        another.
      code: Number of the users' code in the program, see `number_of_code`.
    """

    system: types.System
    plan: types.Plan
    facts: types.Facts
    placement: Placement
    chunk: tuple[int, int]
    keep_models: bool = False
    block: int = 0
    begins_quickly: bool = False
    precision: str = "float32"
    can_stop: bool = False
    code: int = 0

    @property
    def machine(self) -> Machine:
        """The static arguments of the program."""
        return Machine(self.placement.platform, self.precision, self.begins_quickly)


class _Carry(NamedTuple):
    """The state of a lane between two ticks.

    Attributes:
      state: The algorithm's state.
      versions: Server versions that clients hold, leaves `[H, ...]`; () if they are not needed.
    """

    state: Any
    versions: Any


class Replay:
    """A program with its inputs, which go to the devices when the program first needs them.

    Attributes:
      program: The static arguments.
      num_evals: Evaluations of all chunks, V.
      place_of: `i64[L]`, the row of the devices' arrays in which each lane stands.
      is_in_order: Whether lanes stand there in their order, each once.
    """

    def __init__(
        self,
        program: Program,
        lanes: Lanes,
        schedule: Schedule,
        *,
        starts: types.Params | None = None,
        is_described: bool = False,
    ):
        """Deal lanes to their devices.

        Args:
          program: The static arguments.
          lanes: L lanes.
          schedule: Their schedules, of whole chunks; `lanes.row` says which is whose.
          starts: Models that the lanes start from, leaves `[L, ...]`; None to draw them.
          is_described: Whether to describe the arrays only, to compile programs and not to run
            them.

        Raises:
          ConfigError: If several processes have different inputs.
        """
        chex.assert_equal_shape([lanes.row, lanes.seed])
        self._is_described = is_described or program.placement.is_described
        self.program, self.num_evals, self._schedule = program, schedule.shape[1], schedule
        self._lowered: dict[str, jax.stages.Lowered] = {}
        self._begin = _begin.quickly if program.begins_quickly else _begin.well
        placement, row = program.placement, np.asarray(lanes.row)
        lane_of = placement.deal(schedule.work.sum(axis=1, dtype=np.int64)[row])
        self.place_of = np.unique(lane_of, return_index=True)[1]
        # Each device holds the schedules that its lanes point to, numbered from 0.
        per_device = row[lane_of].reshape(placement.lane_devices, -1)
        wanted = [np.unique(rows) for rows in per_device]
        most = max(len(rows) for rows in wanted)
        self._rows = np.concatenate(
            [np.pad(rows, (0, most - len(rows)), mode="edge") for rows in wanted]
        )
        local = [np.searchsorted(*pair) for pair in zip(wanted, per_device, strict=True)]
        self._split = NamedSharding(placement.mesh, PartitionSpec("lanes"))
        self._whole = NamedSharding(placement.mesh, PartitionSpec())
        if not self._is_described:
            processes.check_equal(
                (repr((program.plan, program.facts)), lanes, schedule.stored, schedule.held)
            )
        lanes = lanes._replace(row=np.concatenate(local).astype("int32"))
        self.is_in_order = np.array_equal(lane_of, np.arange(len(lanes.seed)))
        self._dealt = np.asarray(lanes.seed)[lane_of], lanes.row, self._rows
        self._given, self._given_starts, self._lane_of = lanes, starts, lane_of

    def described(self) -> "Replay":
        """Return the same lanes, whose arrays are described and never put on devices."""
        other = copy.copy(self)
        other._is_described, other._lowered = True, {}
        for name in ("lanes", "_starts"):
            vars(other).pop(name, None)
        return other

    @functools.cached_property
    def form(self) -> Hashable:
        """The key of compiled programs: static arguments, and shapes of the others.

        The facts of the schedule, the layout and the users' code are among the static arguments.
        """
        inputs = self._given, self._schedule.stored, self._schedule.held, self._given_starts
        leaves, structure = jax.tree.flatten(inputs)
        shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        sizes = len(self._lane_of), len(self._rows), self.is_in_order
        # Whether 64 bits are enabled, without which the same inputs have other programs.
        return self.program, structure, shapes, sizes, jax.dtypes.result_type(float)

    @functools.cached_property
    def _starts(self) -> Any:
        """Models that the lanes start from, on their devices; None to draw them."""
        starts = jax.tree.map(lambda leaf: leaf[self._lane_of], self._given_starts)
        return self._put(starts, self._split)

    @functools.cached_property
    def lanes(self) -> Lanes:
        """The lanes: what varies on its lane's device, and what is shared on all devices."""
        lanes, lane_of = self._given, self._lane_of
        dealt = (lanes.seed, lanes.hyper.varying, lanes.problem.varying)
        if self._is_described:
            dealt = jax.tree.map(
                lambda leaf: _described(leaf, (len(lane_of), *leaf.shape[1:])), dealt
            )
        elif not self.is_in_order:
            dealt = jax.tree.map(lambda leaf: leaf[lane_of], dealt)
        seed, hypers, problems, row = self._put((*dealt, lanes.row), self._split)
        shared = self._share((lanes.hyper.shared, lanes.problem.shared))
        return Lanes(
            seed,
            row,
            lanes.hyper.replace(varying=hypers, shared=shared[0]),
            lanes.problem.replace(varying=problems, shared=shared[1]),
        )

    def _put(self, tree: Any, sharding: NamedSharding) -> Any:
        """Put arrays on devices, or only describe them."""
        if self._is_described:
            return jax.tree.map(lambda leaf: _described(leaf, np.shape(leaf), sharding), tree)
        return processes.put(tree, sharding)

    def _share(self, tree: Any) -> Any:
        """Put the same arrays on all devices. Devices that are cores of a CPU read one copy."""
        placement = self.program.placement
        if self._is_described or placement.platform != "cpu":
            return self._put(tree, self._whole)

        leaves, structure = jax.tree.flatten(tree)
        devices = self._whole.device_set

        def is_there(leaf: Any) -> bool:
            return isinstance(leaf, jax.Array) and len(devices) == 1 and leaf.devices() == devices

        # Numbers, such as settings, are put together with what is on the only device already.
        places = [i for i, leaf in enumerate(leaves) if _is_small(leaf) or is_there(leaf)]
        given = [_own(leaves[i]) for i in places]
        put = dict(zip(places, self._put(given, self._whole), strict=True))
        known: dict[int, jax.Array] = {}

        def share(leaf: Any) -> Any:
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            if is_key or getattr(leaf, "weak_type", False):  # NumPy has neither.
                return self._put(leaf, self._whole)
            # An array of NumPy is copied once, as its owner may write into it.
            if id(leaf) not in known:
                known[id(leaf)] = jnp.array(leaf, copy=not isinstance(leaf, jax.Array))
            view = np.asarray(known[id(leaf)])
            copies = [
                jax.device_put(view, device, may_alias=True)
                for device in self._whole.addressable_devices
            ]
            return jax.make_array_from_single_device_arrays(view.shape, self._whole, copies)

        shared = [put[i] if i in put else share(leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, shared)

    def tables(self, first: int) -> Tables:
        """Put the schedules of the chunk that begins with evaluation `first` on the devices."""
        return self._of_devices(self._schedule.between(first, first + self.program.chunk[0]))

    def first_holders(self) -> types.Array | None:
        """Put the holders of the initial model on the devices: `i32[D, H]`."""
        held = self._schedule.held
        return None if held is None else self._of_devices(held.holders[:, 0])

    def _of_devices(self, tables: Any) -> Any:
        """Give each device its rows. What is equal in all schedules goes to all devices."""

        def give(leaf: np.ndarray) -> Any:
            if leaf.shape[0] == 1:
                return leaf
            if self._is_described:
                return jax.ShapeDtypeStruct((len(self._rows), *leaf.shape[1:]), leaf.dtype)
            is_in_order = np.array_equal(self._rows, np.arange(len(leaf)))
            return leaf if is_in_order else leaf[self._rows]

        leaves, structure = jax.tree.flatten(tables)
        given = list(map(give, leaves))
        # Those of equal sharding are put together, which takes less time.
        whole = iter(self._put([leaf for leaf in given if leaf.shape[0] == 1], self._whole))
        split = iter(self._put([leaf for leaf in given if leaf.shape[0] > 1], self._split))
        placed = [next(whole if leaf.shape[0] == 1 else split) for leaf in given]
        return jax.tree.unflatten(structure, placed)

    @property
    def bytes_of_tables(self) -> int:
        """Count the bytes of the schedules of a chunk."""
        return memory.count_bytes(self._schedule.between(0, self.program.chunk[0]))

    @property
    def work(self) -> np.ndarray:
        """Local steps of all schedules at each tick, and one for the tick: `i64[V * E]`."""
        return 1 + self._schedule.work.sum(axis=0, dtype=np.int64)

    def begin(self) -> Any:
        """Begin to compute initial carries and the first evaluation of all lanes."""
        return self._begin(self.program, self.lanes, self.first_holders(), self._starts)

    def carries(self) -> Any:
        """Describe the carries: shapes, dtypes and devices."""
        carries, _ = self._begin.eval_shape(
            self.program, self.lanes, self.first_holders(), self._starts
        )
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._split), carries
        )

    def prepare(self, *, begins: bool = True) -> None:
        """Compile the programs, unless those of an equal form are known."""
        if not compiling.is_known(self.form):
            self.compile(begins=begins)
            if begins:
                compiling.note_known(self.form)

    @property
    def is_known(self) -> bool:
        """Whether the memory of programs of this form is known, so that none need be compiled."""
        return compiling.known_size(self.form) is not None

    def carried(self) -> int:
        """Count the bytes of the lanes' states on each device, which nothing is compiled for."""
        return memory.count_bytes(self.described().carries()) // self.program.placement.lane_devices

    def size(self) -> int:
        """Count the bytes of the programs on each device, without the data that lanes share.

        The programs are compiled unless their memory is known.
        """
        found = compiling.known_size(self.form)
        if found is None:
            described = self.described()
            shared = described.lanes.hyper.shared, described.lanes.problem.shared
            found = memory.measure_programs(described.compile()) - memory.count_bytes(shared)
            found = max(0, found)
            compiling.note_known(self.form, found)
        return found

    def compile(self, *, begins: bool = True) -> list[jax.stages.Compiled]:
        """Compile the programs of a chunk and of the beginning, if it `begins`, at the same time.

        Both are traced in this thread, because JAX's settings belong to a thread. JAX keeps what is
        compiled here for the calls that follow.
        """
        memory.drop_programs_near_the_limit()
        if not begins:
            return [self.lower().compile()]
        begin = self._lower_begin()
        with ThreadPoolExecutor(1) as worker:
            begun = worker.submit(begin.compile)
            return [self.lower().compile(), begun.result()]

    def lower(self) -> jax.stages.Lowered:
        """Lower the program of a chunk."""
        if "advance" not in self._lowered:
            inputs = self.tables(0), self._place(0, 0), self._running(None)
            lowered = _advance.lower(self.program, self.lanes, self.carries(), *inputs)
            self._lowered["advance"] = lowered
        return self._lowered["advance"]

    def _lower_begin(self) -> jax.stages.Lowered:
        """Lower the program of the beginning."""
        if "begin" not in self._lowered:
            inputs = self.lanes, self.first_holders(), self._starts
            self._lowered["begin"] = self._begin.lower(self.program, *inputs)
        return self._lowered["begin"]

    def traced(self) -> tuple[ClosedJaxpr, Any]:
        """Trace the programs, whatever JAX has traced before, and describe their results."""

        def results(lanes: Lanes, holders: Any, starts: Any, *inputs: Any) -> Any:
            carries, begun = unwrap(_begin.well)(self.program, lanes, holders, starts)
            after, further = unwrap(_advance)(self.program, lanes, carries, *inputs)
            return begun, further, unwrap(_final_models)(self.program, lanes, after)

        inputs = self.tables(0), self._place(0, 0), self._running(None)
        given = self.lanes, self.first_holders(), self._starts, *inputs
        return jax.make_jaxpr(results, return_shape=True)(*given)

    def advance(
        self, carries: Any, begin: int, end: int, is_running: np.ndarray | None = None
    ) -> Any:
        """Begin to replay the ticks from `begin` to `end`, a chunk: carries, and evaluations.

        The carries are given away. If the chunk ends between two evaluations, its metrics and
        models are zeros. If lanes can be stopped, those that do not run (`bool[L]`) keep their
        carries and return zeros.
        """
        first = begin // self.program.chunk[1]
        inputs = self.tables(first), self._place(begin, end), self._running(is_running)
        return _advance(self.program, self.lanes, carries, *inputs)

    def _running(self, is_running: np.ndarray | None) -> Any:
        """Put on the devices which lanes run, all for None; None if no lane can be stopped."""
        if not self.program.can_stop:
            return None
        lanes = np.ones(len(self.place_of), bool) if is_running is None else is_running
        return self._put(lanes[self._lane_of], self._split)

    def _place(self, begin: int, end: int) -> Any:
        """Say where a chunk is: the first evaluation's number and, for a stretch, which ticks."""
        number = begin // self.program.chunk[1]
        if not self.program.block:
            return self._put(np.int32(number), self._whole)
        before = number * self.program.chunk[1]
        return self._put(
            (np.int32(number), np.int32(begin - before), np.int32(end - before)), self._whole
        )

    def final_models(self, carries: Any) -> Any:
        """Fetch the models of all lanes, leaves `[L, ...]`."""
        models = _final_models(self.program, self.lanes, carries)
        return jax.tree.map(lambda leaf: leaf[self.place_of], processes.fetch(models))

    def digests(self) -> dict[str, str]:
        """Hash the programs and the schedules.

        Runs of equal problems and settings for which these are equal have equal bits on one
        machine.
        """
        schedule = self._schedule
        drawn = (self._dealt, schedule.stored, schedule.held, schedule.ticks)
        found = processes.hash_arrays(drawn).hexdigest()
        return {"program": self.program_digest(), "schedule": found}

    def program_digest(self) -> str:
        """Hash the texts of all programs: the beginning, a chunk, and the final models."""
        final = _final_models.lower(self.program, self.lanes, self.carries())
        return processes.hash_programs(self._lower_begin(), self.lower(), final)


def _described(leaf: Any, shape: tuple[int, ...], sharding: Any = None) -> jax.ShapeDtypeStruct:
    """Describe an array, also whether its type is definite, by which programs differ."""
    is_weak = getattr(leaf, "weak_type", False)
    kind = jax.dtypes.result_type(leaf)
    return jax.ShapeDtypeStruct(shape, kind, sharding=sharding, weak_type=is_weak)


def _own(leaf: Any) -> Any:
    """Copy an array of NumPy, as its owner may write into it."""
    is_array = isinstance(leaf, jax.Array)
    return leaf if is_array else np.array(leaf, jax.dtypes.result_type(leaf))


def _is_small(leaf: Any) -> bool:
    """Tell whether a leaf is a number, or a few numbers on the host."""
    return not isinstance(leaf, jax.Array) and np.size(leaf) <= MOST_TOGETHER


@partial(RunsOnce, static_argnums=0, keep_unused=True)
def _begin(
    program: Program, lanes: Lanes, holders: types.Array | None, starts: types.Params | None = None
) -> Any:
    """Compute initial carries and the first evaluation of all lanes.

    Args:
      program: The static arguments.
      lanes: L lanes.
      holders: `i32[D, H]`, who holds the initial model.
      starts: Models to start from, leaves `[L, ...]`; None to draw them.
    """

    def begin(
        lane: Opened, row: types.Array, holders: Any, start: types.Params | None = None
    ) -> Any:
        state = lane.init(start)
        carry = _Carry(state, ())
        held = None if holders is None else look_up(holders, (row,))
        if held is not None and lane.algorithm.client_models is None:
            carry = _Carry(state, first_store(_received(lane, state), held.shape[0]))
        return carry, _observe(program, lane, carry, held)

    varying = () if starts is None else (starts,)
    return _over_lanes(begin, program, lanes, tables=holders, varying=varying)


def _received(lane: Opened, state: Any) -> types.Params:
    """Return the model that clients receive of the server's version, for `client_variance`."""
    return (lane.algorithm.received or lane.algorithm.model)(lane.learnt(state))


@partial(jax.jit, static_argnums=0, donate_argnums=2, keep_unused=True)
def _advance(
    program: Program,
    lanes: Lanes,
    carries: Any,
    tables: Tables,
    place: Any,
    is_running: types.Array | None,
) -> Any:
    """Replay a chunk.

    Args:
      program: The static arguments.
      lanes: L lanes.
      carries: What they carry, leaves `[L, ...]`.
      tables: Their schedules.
      place: `i32[]`, the number of the chunk's first evaluation; for a stretch of ticks a tuple of
        this, its first tick and the tick after its last, counted from the evaluation before it.
      is_running: `bool[L]`, which lanes are not stopped; None if none can be.
    """
    num_evals, per_eval = program.chunk

    def advance_or_wait(*inputs: Any) -> Any:
        *lane, carry, runs = inputs
        advanced = jax.eval_shape(partial(advance, *lane), carry)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), advanced)
        return jax.lax.cond(runs, partial(advance, *lane), lambda carry: (carry, nothing), carry)

    def advance(lane: Opened, row: types.Array, given: Any, carry: _Carry) -> Any:
        tables, place = given
        algorithm = lane.algorithm
        first = place[0] if program.block else place
        # Steps of this package do nothing at the ticks that pad a lane.
        is_padded = tables.num_ticks is not None and not lane.rests
        num_ticks = look_up(tables.num_ticks, (row,)) if is_padded else None
        # Lanes that are batched together end at different ticks.
        differs = is_padded and program.plan.lanes_at_once and len(tables.num_ticks) > 1
        if tables.until is not None:
            # Limits belong to the schedule: states begin without them.
            until = jax.tree.map(lambda leaf: look_up(leaf, (row,)), tables.until)
            carry = carry._replace(state=carry.state._replace(until=until))

        @jax.named_scope("tick")
        def tick(
            carry: _Carry,
            given: tuple[tuple[types.Array, types.Array], Any],
            num_ticks: types.Array | None = num_ticks,
        ) -> tuple[_Carry, Any]:
            place, ahead = given
            number = (first + place[0]) * per_eval + place[1]
            event = event_at(tables.ticks, row, number, place, facts=program.facts)
            state, info = lane.step(carry.state, event, ahead, num_ticks)
            counts, happened = _counts_of(info)
            if lane.live is not None:
                happened |= happened_of(state, info.event)
            has_others = bool(happened) and not info.event.facts.keeps("clients")
            if has_others and tables.held is not None and algorithm.client_models is None:
                allowed = "false where a step changes who takes part: which models clients hold"
                raise ConfigError("client_variance", True, f"{allowed} follows from the schedule")
            versions = carry.versions
            if tables.held is not None and algorithm.client_models is None:
                written = look_up(tables.held.write, (row, *place))
                versions = write_version(versions, written, _received(lane, state))
            return _Carry(state, versions), (counts, happened)

        # An evaluation: the ticks before it, and the metrics of the model after them.
        def take_ticks(carry: _Carry, number: types.Array, begin: Any, length: int) -> Any:
            places = jnp.full(length, number), begin + jnp.arange(length, dtype="int32")
            if not differs:
                return targets.scan(tick, carry, (places, lane.draw_ahead(carry.state, length)))
            # First the ticks of all lanes, without a copy of their states; then, until the last
            # lane ends, those of some, where the states of the others are selected.
            left = jnp.clip(num_ticks - (first + number) * per_eval - begin, 0, length)
            shortest, longest = jax.lax.pmin(left, LANE_AXIS), jax.lax.pmax(left, LANE_AXIS)

            def take(i: types.Array, both: Any, **last: Any) -> Any:
                carry, found = tick(both[0], ((number, begin + i), None), **last)
                return carry, jax.tree.map(lambda all, one: all.at[i].set(one), both[1], found)

            found = jax.eval_shape(tick, carry, ((number, places[1][0]), None))[1]
            found = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), found)
            both = jax.lax.fori_loop(0, shortest, partial(take, num_ticks=None), (carry, found))
            return jax.lax.fori_loop(shortest, longest, take, both)

        def observe(carry: _Carry, number: types.Array, counted: Collection[str] = ()) -> Any:
            held = tables.held and look_up(tables.held.holders, (row, number))
            return _observe(program, lane, carry, held, counted)

        def evaluation(carry: _Carry, number: types.Array) -> Any:
            carry, (counts, happened) = take_ticks(carry, number, 0, per_eval)
            return carry, (observe(carry, number, counts), {**_summed(counts), **happened})

        if not program.block:
            return jax.lax.scan(evaluation, carry, jnp.arange(num_evals, dtype="int32"))

        # A stretch of ticks: block by block, with counts that add up until the
        # evaluation.
        def block(i: types.Array, both: tuple[_Carry, Any]) -> tuple[_Carry, Any]:
            carry, totals = both
            begin = i * program.block
            carry, (counts, happened) = take_ticks(carry, jnp.int32(0), begin, program.block)
            sums = {
                name: jax.tree.map(jnp.add, totals[name], count)
                for name, count in _summed(counts).items()
            }
            pieces = {
                name: jax.lax.dynamic_update_slice_in_dim(totals[name], piece, begin, axis=0)
                for name, piece in happened.items()
            }
            return carry, {**sums, **pieces}

        # The bounds are no part of the program, so stretches of all lengths share one.
        shapes = jax.eval_shape(lambda carry: evaluation(carry, jnp.int32(0))[1], carry)
        nothing, infos = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        begin, end = place[1] // program.block, place[2] // program.block
        carry, infos = jax.lax.fori_loop(begin, end, block, (carry, infos))
        observed = jax.lax.cond(
            place[2] == per_eval,
            lambda carry: observe(carry, jnp.int32(0)),
            lambda carry: nothing,
            carry,
        )
        return carry, jax.tree.map(lambda leaf: leaf[None], (observed, infos))

    both = (tables, place)
    if is_running is None:
        return _over_lanes(advance, program, lanes, tables=both, varying=(carries,))
    return _over_lanes(advance_or_wait, program, lanes, tables=both, varying=(carries, is_running))


def _counts_of(info: Any) -> tuple[dict[str, types.Array], dict[str, types.Array]]:
    """Split an `Info` into numbers, by name, and who took part if the step has changed that."""
    counts = info._asdict()
    event = counts.get("event")
    if not isinstance(event, tuple):  # A number, or nothing.
        return counts, {}
    del counts["event"]
    if isinstance(info, types.Work):
        del counts["seen"]  # of live clocks
    if not isinstance(event, types.Event) or event.facts.is_scheduled:
        return counts, {}
    return counts, {
        f"{events.HAPPENED}{name}": getattr(event, name) for name in ("clients", "steps", "weight")
    }


def _summed(counts: dict[str, types.Array]) -> dict[str, Any]:
    """Sum the counts of ticks, each `[ticks]`. Whole numbers of 32 bits become `Limbs`."""

    def total(count: types.Array) -> Any:
        if count.dtype.kind not in "biu" or count.dtype.itemsize > 4:
            return count.sum(axis=0)
        count = count.astype("int32")
        most = 2**LIMB_BITS - 1
        limbs = count & most, (count >> LIMB_BITS) & most, count >> 2 * LIMB_BITS
        return Limbs(*(limb.sum(axis=0) for limb in limbs))

    return {name: total(count) for name, count in counts.items()}


@partial(jax.jit, static_argnums=0)
def _final_models(program: Program, lanes: Lanes, carries: Any) -> Any:
    def final(lane: Opened, row: types.Array, _: None, carry: _Carry) -> types.Params:
        return lane.algorithm.model(lane.learnt(carry.state))

    return _over_lanes(final, program, lanes, varying=(carries,))


@jax.named_scope("evaluation")
def _observe(
    program: Program,
    lane: Opened,
    carry: _Carry,
    holders: types.Array | None,
    counted: Collection[str] = (),
) -> tuple[dict[str, types.Array], Any]:
    """Compute an evaluation's metrics; also return the model if models are kept, else None.

    counted: names of the algorithm's `Info`.
    """
    algorithm = lane.algorithm
    model, metrics = lane.evaluate(carry.state, counted)
    if holders is not None:
        models = carry.versions
        if algorithm.client_models is not None:
            models, holders = algorithm.client_models(lane.learnt(carry.state))
        metrics["client_variance"] = client_variance(models, holders, model)
    numbers = [*jax.tree.leaves(model), *scalars_of(metrics)]
    metrics["finite"] = jnp.stack([jnp.all(jnp.isfinite(number)) for number in numbers]).all()
    return metrics, model if program.keep_models else None


def _over_lanes(
    run: Callable[..., Any],
    program: Program,
    lanes: Lanes,
    *,
    tables: Any = None,
    varying: Any = (),
) -> Any:
    """Call `run(lane, row, tables, *varying)` for every lane.

    Args:
      run: Called for one lane; `row` is the number of its schedule.
      program: The static arguments.
      lanes: L lanes.
      tables: Arrays that all lanes of a device read, leaves `[D, ...]`, or `[1, ...]` or `[]` if
        they are the same for all devices.
      varying: Leaves `[L, ...]`.
    """

    def on_device(lanes: Lanes, tables: Any, varying: Any) -> Any:
        def lane(inputs: Any) -> Any:
            (seed, row, problem_leaves), (hyper_leaves, varying) = inputs
            problem = lanes.problem.of_lane(problem_leaves)
            hyper = lanes.hyper.of_lane(hyper_leaves)
            key = learning_key(seed)
            opened = open_lane(program.system, problem, hyper, key, program.plan)
            return run(opened, row, tables, *varying)

        return map_families(
            lane,
            (lanes.seed, lanes.row, lanes.problem.varying),
            (lanes.hyper.varying, varying),
            size=program.placement.family_size,
            map_over=partial(
                map_lanes,
                at_once=program.plan.lanes_at_once,
                batches=program.placement.lane_batches,
            ),
        )

    split, whole = PartitionSpec("lanes"), PartitionSpec()
    stacked = (each.replace(varying=split, shared=whole) for each in (lanes.hyper, lanes.problem))
    of_tables = jax.tree.map(
        lambda leaf: split if leaf.ndim and leaf.shape[0] > 1 else whole, tables
    )
    with program.machine.tracing():
        return jax.shard_map(
            on_device,
            mesh=program.placement.mesh,
            in_specs=(Lanes(split, split, *stacked), of_tables, split),
            out_specs=split,
            check_vma=False,
        )(lanes, tables, varying)
