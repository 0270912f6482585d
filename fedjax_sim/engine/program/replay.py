"""Phase two: replay schedules through an algorithm.

In every lane a scan over evaluations contains a scan over the ticks between two of them. One call
of the compiled program replays a chunk of all lanes: one or more evaluations or, where checkpoints
are written, a stretch of any number of ticks up to the next evaluation. `chunks` calls it.

Dimension letters: those of `core.types`; `D` schedules, `V` evaluations, `C` evaluations of a
chunk, `E` ticks between two evaluations, `H` rows of the store behind `client_variance`.

`client_variance` is sum_i ||w_i - w||^2, where w is the server's model and w_i the model that
client i holds (FAVANO, arXiv 2305.16099, Fig. 2). In most systems a client holds a server version;
the engine then keeps every version that some client holds at some later evaluation. That is the
memory cost: with many slow clients nearly every version is kept, for example 720 models a lane for
10^4 clients and 714 ticks. Systems whose clients hold other models state them as
`Algorithm.client_models`. For FA-LD it measures the server versions that clients hold, not how far
apart local models are before they are averaged.
"""

import functools
import importlib
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import unwrap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import PartitionSpec

from fedjax_sim.core import events, targets, trees, types
from fedjax_sim.core.batching import LANE_AXIS, ResultT, map_families, map_lanes
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.machine import compiling, memory, processes
from fedjax_sim.engine.machine.compiling import RunsOnce
from fedjax_sim.engine.planning.lanes import Lanes
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.planning.schedule import Tables, event_at, look_up
from fedjax_sim.engine.program.live import learn_if, realised_of, zeros_of
from fedjax_sim.engine.program.opened import BoundLane, Machine, learning_key, open_lane
from fedjax_sim.engine.program.placed import PlacedLanes
from fedjax_sim.results.metric_names import scalars_of

LIMB_BITS = 11
"""Bits of each limb but the last. A million ticks sum limbs of so many bits within 32."""


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
      machine: What it is traced for.
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
    machine: Machine = Machine()
    can_stop: bool = False
    code: int = 0


class Carry(NamedTuple):
    """The state of a lane between two ticks.

    Attributes:
      state: The algorithm's state.
      versions: Server versions that clients hold, leaves `[H, ...]`; () if they are not needed.
    """

    state: Any
    versions: Any


Observed = tuple[dict[str, types.Array], types.Params | None]
"""Metrics of evaluations, and their models if these are kept."""

Totals = dict[str, types.Array | Limbs]
"""Sums of the counts of ticks, and who took part in each where steps have changed that."""

Evaluated = tuple[Observed, Totals]
"""Evaluations, with the counts of the ticks before each."""

Counted = tuple[dict[str, types.Array], dict[str, types.Array]]
"""Counts of ticks by name, and who took part where steps have changed that."""

Place = types.Array | tuple[types.Array, types.Array, types.Array]
"""Where a chunk begins and, if it is a stretch, which ticks it has; see `_advance`."""


class Replay:
    """The programs of placed lanes: the first state, a chunk of ticks, and the final models.

    Attributes:
      program: The static arguments.
      placed: The lanes on their devices.
      num_evals: Evaluations of all chunks, V.
    """

    def __init__(self, program: Program, placed: PlacedLanes):
        """Take the static arguments and the lanes. Nothing is compiled yet.

        Raises:
          ConfigError: If several processes have different inputs.
        """
        self.program, self.placed, self.num_evals = program, placed, placed.schedule.shape[1]
        self._begin = _begin.quickly if program.machine.begins_quickly else _begin.well
        if jax.process_count() > 1 and not placed.is_described:
            placed.check_equal((program.plan, program.facts))

    def described(self) -> "Replay":
        """Return the programs of the same lanes, described: to compile and not to run."""
        return Replay(self.program, self.placed.described())

    @functools.cached_property
    def form(self) -> Hashable:
        """The key of compiled programs: static arguments, and shapes of the others.

        The facts of the schedule, the layout and the users' code are among the static arguments.
        """
        # Whether 64 bits are enabled, without which the same inputs have other programs.
        return self.program, self.placed.form, jax.dtypes.result_type(float)

    @property
    def _first(self) -> tuple[Lanes, types.Array | None, types.Params | None]:
        """The inputs of the beginning."""
        return self.placed.lanes, self.placed.first_holders(), self.placed.starts

    def _inputs(
        self, begin: int, end: int, is_running: np.ndarray | None = None
    ) -> tuple[Tables, Place, types.Array | None]:
        """Collect the inputs of a chunk besides lanes and carries, see `_advance`.

        Args:
          begin: Ticks before the chunk.
          end: Ticks after it.
          is_running: `bool[L]`, lanes that are not stopped; None for all.
        """
        num_evals, per_eval = self.program.chunk
        number, placed = begin // per_eval, self.placed
        place: Any = np.int32(number)
        if self.program.block:
            before = number * per_eval
            place = place, np.int32(begin - before), np.int32(end - before)
        runs = None
        if self.program.can_stop:
            lanes = np.ones(len(placed.place_of), bool) if is_running is None else is_running
            runs = placed.put(lanes[placed.lane_of])
        return placed.tables(number, number + num_evals), placed.put(place, is_whole=True), runs

    def begin(self) -> tuple[Carry, Observed]:
        """Begin to compute initial carries and the first evaluation of all lanes."""
        return self._begin(self.program, *self._first)

    def carries(self) -> Carry:
        """Describe the carries: shapes, dtypes and devices."""
        carries, _ = self._begin.eval_shape(self.program, *self._first)
        return self.placed.carried(carries)

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

    def size(self, room: float) -> int:
        """Count the bytes of the programs on each device, without the data that lanes share.

        The programs are compiled, unless their memory is known or the states of the lanes alone
        take more than `room`.
        """
        found = compiling.known_size(self.form)
        if found is None:
            described = self.described()
            states = memory.count_bytes(described.carries())
            found = states // self.program.placement.lane_devices
            if found <= room:
                lanes = described.placed.lanes
                shared = memory.count_bytes((lanes.hyper.shared, lanes.problem.shared))
                found = max(0, memory.measure_programs(described.compile()) - shared)
                compiling.note_known(self.form, found)
        return found

    def compile(self, *, begins: bool = True) -> list[jax.stages.Compiled]:
        """Compile the programs of a chunk and of the beginning, if it `begins`, at the same time.

        Both are traced in this thread, because JAX's settings belong to a thread. JAX keeps what is
        compiled here for the calls that follow.
        """
        memory.drop_programs_near_the_limit()
        with ThreadPoolExecutor(2) as workers:
            begun = [workers.submit(self._begin_lowered.compile)] if begins else []
            chunk = self.lowered
            # Results are made of it, and importing it takes half a second.
            workers.submit(importlib.import_module, "xarray")
            return [chunk.compile(), *(each.result() for each in begun)]

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The program of a chunk."""
        given = self.program, self.placed.lanes, self.carries(), *self._inputs(0, 0)
        return _advance.lower(*given)

    @functools.cached_property
    def _begin_lowered(self) -> jax.stages.Lowered:
        """The program of the beginning."""
        return self._begin.lower(self.program, *self._first)

    def traced(self) -> tuple[ClosedJaxpr, Any]:
        """Trace the programs, whatever JAX has traced before, and describe their results."""

        def results(
            lanes: Lanes, holders: types.Array | None, starts: types.Params | None, *inputs: Any
        ) -> tuple:
            carries, begun = unwrap(_begin.well)(self.program, lanes, holders, starts)
            after, further = unwrap(_advance)(self.program, lanes, carries, *inputs)
            return begun, further, unwrap(_final_models)(self.program, lanes, after)

        return jax.make_jaxpr(results, return_shape=True)(*self._first, *self._inputs(0, 0))

    def advance(
        self, carries: Carry, begin: int, end: int, is_running: np.ndarray | None = None
    ) -> tuple[Carry, Evaluated]:
        """Begin to replay the ticks from `begin` to `end`, a chunk: carries, and evaluations.

        The memory of the old carries is reused, so they must not be read again. If the chunk ends
        between two evaluations, its metrics and models are zeros. If lanes can be stopped, those
        that do not run (`bool[L]`) keep their carries and return zeros.
        """
        inputs = self._inputs(begin, end, is_running)
        return _advance(self.program, self.placed.lanes, carries, *inputs)

    def final_models(self, carries: Carry) -> types.Params:
        """Fetch the models of all lanes, leaves `[L, ...]`."""
        models = _final_models(self.program, self.placed.lanes, carries)
        return jax.tree.map(lambda leaf: leaf[self.placed.place_of], processes.fetch(models))

    def digests(self) -> dict[str, str]:
        """Hash the programs and the schedules.

        Runs of equal problems and settings for which these are equal have equal bits on one
        machine.
        """
        schedule = self.placed.schedule
        drawn = (self.placed.dealt, schedule.stored, schedule.held, schedule.ticks)
        found = processes.hash_arrays(drawn).hexdigest()
        return {"program": self.program_digest(), "schedule": found}

    def program_digest(self) -> str:
        """Hash the texts of all programs: the beginning, a chunk, and the final models."""
        final = _final_models.lower(self.program, self.placed.lanes, self.carries())
        return processes.hash_programs(self._begin_lowered, self.lowered, final)


@partial(RunsOnce, static_argnums=0, keep_unused=True)
def _begin(
    program: Program, lanes: Lanes, holders: types.Array | None, starts: types.Params | None = None
) -> tuple[Carry, Observed]:
    """Compute initial carries and the first evaluation of all lanes.

    Args:
      program: The static arguments.
      lanes: L lanes.
      holders: `i32[D, H]`, who holds the initial model.
      starts: Models to start from, leaves `[L, ...]`; None to draw them.
    """

    def begin(
        lane: BoundLane,
        row: types.Array,
        holders: types.Array | None,
        start: types.Params | None = None,
    ) -> tuple[Carry, Observed]:
        state = lane.init(start)
        carry = Carry(state, ())
        held = None if holders is None else look_up(holders, (row,))
        if held is not None and lane.algorithm.client_models is None:
            carry = Carry(state, first_store(_received(lane, state), held.shape[0]))
        return carry, _observe(program, lane, carry, held)

    varying = () if starts is None else (starts,)
    return _over_lanes(begin, program, lanes, tables=holders, varying=varying)


def _received(lane: BoundLane, state: types.StateT) -> types.Params:
    """Return the model that clients receive of the server's version, for `client_variance`."""
    return (lane.algorithm.received or lane.algorithm.model)(lane.learnt(state))


@partial(jax.jit, static_argnums=0, donate_argnums=2, keep_unused=True)
def _advance(
    program: Program,
    lanes: Lanes,
    carries: Carry,
    tables: Tables,
    place: Place,
    is_running: types.Array | None,
) -> tuple[Carry, Evaluated]:
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

    def advance_or_wait(*inputs: Any) -> tuple[Carry, Evaluated]:
        *lane, carry, runs = inputs
        run: Callable[[Carry], tuple[Carry, Evaluated]] = partial(advance, *lane)
        nothing = zeros_of(lambda carry: run(carry)[1], carry)
        return jax.lax.cond(runs, run, lambda carry: (carry, nothing), carry)

    def advance(
        lane: BoundLane, row: types.Array, given: tuple[Tables, Any], carry: Carry
    ) -> tuple[Carry, Evaluated]:
        tables, place = given
        algorithm = lane.algorithm
        first = place[0] if program.block else place
        # Steps of this package do nothing at the ticks that pad a lane.
        lengths = None if lane.rests else tables.num_ticks
        num_ticks = None if lengths is None else look_up(lengths, (row,))
        # Lanes that are batched together end at different ticks.
        differs = lengths is not None and program.plan.lanes_at_once and len(lengths) > 1
        if tables.until is not None:
            # Limits belong to the schedule: states begin without them.
            until = jax.tree.map(lambda leaf: look_up(leaf, (row,)), tables.until)
            carry = carry._replace(state=carry.state._replace(until=until))

        @jax.named_scope("tick")
        def tick(
            carry: Carry,
            inputs: tuple[tuple[types.Array, types.Array], Any],
            num_ticks: types.Array | None = num_ticks,
        ) -> tuple[Carry, Counted]:
            place, ahead = inputs
            number = (first + place[0]) * per_eval + place[1]
            event = event_at(tables.ticks, row, number, place, facts=program.facts)
            given = () if ahead is None else (ahead,)
            if num_ticks is None:
                state, info = lane.step(carry.state, event, *given)
            else:  # Ticks that pad a lane change nothing and count nothing.
                state, info = learn_if(number < num_ticks, lane.step, carry.state, event)
            counts, realised = _counts_of(info, event, lane.problem.counts.shape[0])
            if lane.live is not None:
                realised |= realised_of(state, info.event)
            has_others = bool(realised) and not info.event.facts.keeps("clients")
            if has_others and tables.held is not None and algorithm.client_models is None:
                allowed = "false where a step changes who takes part: which models clients hold"
                raise ConfigError("client_variance", True, f"{allowed} follows from the schedule")
            versions = carry.versions
            if tables.held is not None and algorithm.client_models is None:
                written = look_up(tables.held.write, (row, *place))
                versions = write_version(versions, written, _received(lane, state))
            return Carry(state, versions), (counts, realised)

        # An evaluation: the ticks before it, and the metrics of the model after them.
        def take_ticks(
            carry: Carry, number: types.Array, begin: types.Array | int, length: int
        ) -> tuple[Carry, Counted]:
            places = jnp.full(length, number), begin + jnp.arange(length, dtype="int32")
            if num_ticks is None or not differs:
                ahead = lane.live and lane.live.draw_ahead(carry.state, length)
                return targets.scan(tick, carry, (places, ahead))
            left = jnp.clip(num_ticks - (first + number) * per_eval - begin, 0, length)
            return _scan_unevenly(tick, carry, lambda i: (number, begin + i), left, length)

        def observe(carry: Carry, number: types.Array, counted: Collection[str] = ()) -> Observed:
            held = tables.held and look_up(tables.held.holders, (row, number))
            return _observe(program, lane, carry, held, counted)

        def evaluation(carry: Carry, number: types.Array) -> tuple[Carry, Evaluated]:
            carry, (counts, realised) = take_ticks(carry, number, 0, per_eval)
            means = "", "client_"  # names of the metrics that sums of measures become
            names = [name.replace(events.MEASURED, each) for name in counts for each in means]
            return carry, (observe(carry, number, names), {**_summed(counts), **realised})

        if not program.block:
            return jax.lax.scan(evaluation, carry, jnp.arange(num_evals, dtype="int32"))

        # A stretch of ticks: block by block, with counts that add up until the
        # evaluation.
        def block(i: types.Array, both: tuple[Carry, Any]) -> tuple[Carry, Totals]:
            carry, totals = both
            begin = i * program.block
            carry, (counts, realised) = take_ticks(carry, jnp.int32(0), begin, program.block)
            after = {
                name: jax.tree.map(jnp.add, totals[name], count)
                for name, count in _summed(counts).items()
            }
            for name, piece in realised.items():
                after[name] = jax.lax.dynamic_update_slice_in_dim(totals[name], piece, begin, 0)
            return carry, after

        # The bounds are no part of the program, so stretches of all lengths share one.
        nothing, infos = zeros_of(lambda carry: evaluation(carry, jnp.int32(0))[1], carry)
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


def _scan_unevenly(
    tick: Callable[..., tuple[Carry, Counted]],
    carry: Carry,
    place_of: Callable[[types.Array], tuple[types.Array, types.Array]],
    left: types.Array,
    length: int,
) -> tuple[Carry, Counted]:
    """Scan `length` ticks of batched lanes, of which each has only so many left.

    First the ticks of all lanes, without a copy of their states; then, until the last lane ends,
    those of some, where the states of the others are selected.
    """
    shortest, longest = jax.lax.pmin(left, LANE_AXIS), jax.lax.pmax(left, LANE_AXIS)

    def take(i: types.Array, both: tuple[Carry, Counted], **last: None) -> tuple[Carry, Counted]:
        carry, found = tick(both[0], (place_of(i), None), **last)
        return carry, jax.tree.map(lambda all, one: all.at[i].set(one), both[1], found)

    found = jax.eval_shape(lambda: tick(carry, (place_of(jnp.int32(0)), None))[1])
    found = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), found)
    both = jax.lax.fori_loop(0, shortest, partial(take, num_ticks=None), (carry, found))
    return jax.lax.fori_loop(shortest, longest, take, both)


def _counts_of(info: types.Work, event: types.Event, num_clients: int) -> Counted:
    """Split an `Info` into numbers, by name, and who took part if the step has changed that.

    Measures are summed for each client, `f[N]`, as are the steps over which their means are taken.
    """
    counts, realised = info._asdict(), dict[str, types.Array]()
    changed: Any = counts.get("event")
    if not isinstance(changed, tuple):  # A number, or nothing.
        return counts, realised
    del counts["event"]
    if isinstance(changed, types.Event) and not changed.facts.is_scheduled:
        names = ("clients", "steps", "weight")
        realised = {f"{events.HAPPENED}{name}": getattr(changed, name) for name in names}
    if isinstance(info, types.Work):
        del counts["seen"], counts["aux"], counts["measured"]  # of live clocks, and of losses
        event = changed if realised else event
        for name, sums in ({**info.measured, "": event.steps} if info.measured else {}).items():
            places = jnp.where(event.clients < 0, num_clients, event.clients)
            of_clients = jnp.zeros(num_clients, "float32").at[places].add(sums, mode="drop")
            counts[f"{events.MEASURED}{name}"] = of_clients
    return counts, realised


def _summed(counts: dict[str, types.Array]) -> Totals:
    """Sum the counts of ticks, each `[ticks]`. Whole numbers of 32 bits become `Limbs`."""
    sums: Totals = {}
    for name, count in counts.items():
        if count.dtype.kind in "biu" and count.dtype.itemsize <= 4:
            count, most = count.astype("int32"), 2**LIMB_BITS - 1
            limbs = count & most, (count >> LIMB_BITS) & most, count >> 2 * LIMB_BITS
            sums[name] = Limbs(*(limb.sum(axis=0) for limb in limbs))
        else:
            sums[name] = count.sum(axis=0)
    return sums


@partial(jax.jit, static_argnums=0)
def _final_models(program: Program, lanes: Lanes, carries: Carry) -> types.Params:
    def final(lane: BoundLane, row: types.Array, _: None, carry: Carry) -> types.Params:
        return lane.algorithm.model(lane.learnt(carry.state))

    return _over_lanes(final, program, lanes, varying=(carries,))


@jax.named_scope("evaluation")
def _observe(
    program: Program,
    lane: BoundLane,
    carry: Carry,
    holders: types.Array | None,
    counted: Collection[str] = (),
) -> Observed:
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
    run: Callable[..., ResultT],
    program: Program,
    lanes: Lanes,
    *,
    tables: Any = None,
    varying: tuple = (),
) -> ResultT:
    """Call `run(lane, row, tables, *varying)` for every lane.

    Args:
      run: Called for one lane; `row` is the number of its schedule.
      program: The static arguments.
      lanes: L lanes.
      tables: Arrays that all lanes of a device read, leaves `[D, ...]`, or `[1, ...]` or `[]` if
        they are the same for all devices.
      varying: Leaves `[L, ...]`.
    """

    def on_device(lanes: Lanes, tables: Any, varying: tuple) -> ResultT:
        def lane(inputs: tuple) -> ResultT:
            (seed, row, problem_leaves), (hyper_leaves, varying) = inputs
            problem = lanes.problem.of_lane(problem_leaves)
            hyper = lanes.hyper.of_lane(hyper_leaves)
            key = learning_key(seed)
            opened = open_lane(program.system, problem, hyper, key, program.plan)
            return run(opened, row, tables, *varying)

        placement = program.placement
        at_once, batches = placement.lanes_at_once, placement.lane_batches
        map_over = partial(map_lanes, at_once=at_once, batches=batches)
        shared = lanes.seed, lanes.row, lanes.problem.varying
        varying = lanes.hyper.varying, varying
        if placement.family_size == 1:
            return map_over(lane, (shared, varying))
        return map_families(lane, shared, varying, size=placement.family_size, map_over=map_over)

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


def first_store(model: types.Params, rows: int) -> types.Params:
    """Make a store with the initial model in row 0: leaves `[H, ...]`."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype).at[0].set(leaf), model
    )


def write_version(store: types.Params, row: types.Array, model: types.Params) -> types.Params:
    """Write a model into one row of the store. row: `i32[]`."""
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, row, 0), store, model
    )


def client_variance(
    models: types.Params, holders: types.Array, server: types.Params
) -> types.Array:
    """Sum the squared distances of clients' models to the server's: `f[]`.

    Args:
      models: Leaves `[H, ...]`, models that clients hold.
      holders: `[H]`, number of clients that hold each model. Models without holders are ignored.
      server: Leaves `[...]`.
    """
    models, server = trees.in_32_bits((models, server))
    per_leaf = jax.tree.map(
        lambda a, w: jnp.sum(jnp.square(a - w[None]), axis=tuple(range(1, a.ndim))), models, server
    )
    distance = jax.tree.reduce(jnp.add, per_leaf)
    return jnp.where(holders > 0, holders.astype(distance.dtype) * distance, 0.0).sum()
