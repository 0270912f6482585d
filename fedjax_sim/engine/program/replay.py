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

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from inspect import unwrap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import PartitionSpec

from fedjax_sim.clients import rows
from fedjax_sim.core import batching, events, targets, trees, types
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.machine import compiling, memory, processes
from fedjax_sim.engine.planning.lanes import Lanes
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.planning.schedule import look_up
from fedjax_sim.engine.program import opened, reads
from fedjax_sim.engine.program.placed import PlacedLanes
from fedjax_sim.results.curves import scalars_of

LIMB_BITS = 11
"""Bits of each limb but the last. A million ticks sum limbs of so many bits within 32."""


OUTSIDE = "outside"
"""Name of the count of chunks that looked up an example that is not in their window."""


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
      held_rows: Rows of the store behind `client_variance`, H; 0 if that is not measured.
      has_mean: Whether the mean of the server's and all clients' models is evaluated.
      code: Number of the users' code in the program, see `number_of_code`.
    """

    system: types.System
    plan: types.Plan
    facts: types.Facts
    placement: Placement
    chunk: tuple[int, int]
    keep_models: bool = False
    block: int = 0
    machine: opened.Machine = opened.Machine()
    can_stop: bool = False
    held_rows: int = 0
    has_mean: bool = False
    code: int = 0


class Carry(NamedTuple):
    """The state of a lane between two ticks.

    Attributes:
      state: The algorithm's state.
      versions: Server versions that clients hold, leaves `[H, ...]`; () if they are not needed.
      output: The mean model of the last evaluation, if that is evaluated; otherwise ().
    """

    state: Any
    versions: Any
    output: Any = ()


Observed = tuple[dict[str, types.Array], types.Params | None]
"""Metrics of evaluations, and their models if these are kept."""

Totals = dict[str, types.Array | Limbs]
"""Sums of the counts of ticks, and who took part in each where steps have changed that."""

Evaluated = tuple[Observed, Totals]
"""Evaluations, with the counts of the ticks before each."""

Counted = tuple[dict[str, types.Array], dict[str, types.Array]]
"""Counts of ticks by name, and who took part where steps have changed that."""


class Replay:
    """The programs of placed lanes: the first state, a chunk of ticks, and the final models.

    Attributes:
      program: The static arguments.
      placed: The lanes on their devices.
      num_evals: Evaluations of all chunks, V.
      window: The examples of the next chunk, see `PlacedLanes.filled`; none if all are in memory.
      make_window: Reads the examples of the next chunk, see `Windows.make`; None if there are none.
    """

    def __init__(self, program: Program, placed: PlacedLanes):
        """Take the static arguments and the lanes. Nothing is compiled yet."""
        self.program, self.placed, self.num_evals = program, placed, placed.schedule.shape[1]
        self.window: dict[int, np.ndarray] = {}
        self.make_window: Callable[[int, int], tuple[int, dict[int, np.ndarray]]] | None = None
        self._begin = _begin.quickly if program.machine.begins_quickly else _begin.well
        self._described = placed.described()

    @functools.cached_property
    def form(self) -> Hashable:
        """The key of compiled programs: static arguments, and shapes of the others.

        The facts of the schedule, the layout and the users' code are among the static arguments.
        """
        # Whether 64 bits are enabled, without which the same inputs have other programs.
        return self.program, self.placed.form, jax.dtypes.result_type(float)

    def begin(self) -> tuple[Carry, Observed]:
        """Begin to compute initial carries and the first evaluation of all lanes."""
        return self._begin(self.program, self._lanes(), None, self.placed.starts)

    def _lanes(self) -> Lanes:
        """Put the lanes on their devices, with the examples of a window if these lie in files."""
        return self.placed.filled(self.window) if self.window else self.placed.lanes

    def advance(
        self, carries: Carry, begin: int, end: int, is_running: np.ndarray | None = None
    ) -> tuple[Carry, Evaluated]:
        """Begin to replay the ticks from `begin` to `end`, a chunk: carries, and evaluations.

        The memory of the old carries is reused, so they must not be read again. If the chunk ends
        between two evaluations, its metrics and models are zeros. If lanes can be stopped, those
        that do not run (`bool[L]`) keep their carries and return zeros. If examples lie in files,
        `window` has those of the chunk.
        """
        lanes = self._lanes()
        return _advance(*self._inputs(self.placed, lanes, carries, begin, end, is_running))

    def final_models(self, carries: Carry) -> types.Params:
        """Fetch the models of all lanes, leaves `[L, ...]`."""
        models = _final_models(self.program, self._lanes(), None, carries)
        return jax.tree.map(lambda leaf: leaf[self.placed.place_of], processes.fetch(models))

    def _inputs(
        self,
        placed: PlacedLanes,
        lanes: Lanes,
        carries: Carry,
        begin: int = 0,
        end: int = 0,
        is_running: np.ndarray | None = None,
    ) -> tuple:
        """Collect the inputs of a chunk, see `_advance`."""
        (num_evals, per_eval), runs = self.program.chunk, None
        number, before = begin // per_eval, begin // per_eval * per_eval
        place = np.array([[number, begin - before, end - before]], "int32")
        if self.program.can_stop:
            asked = np.ones(len(placed.place_of), bool) if is_running is None else is_running
            runs = placed.put(asked[placed.lane_of])
        given = placed.tables(number, number + num_evals), placed.put(place, is_whole=True)
        return self.program, lanes, given, carries, runs

    def carries(self) -> Carry:
        """Describe the carries: shapes, dtypes and devices."""
        lanes, starts = self._described.lanes, self._described.starts
        carries, _ = self._begin.eval_shape(self.program, lanes, None, starts)
        return self.placed.carried(carries)

    def prepare(self, *, begins: bool = True, room: float = math.inf) -> int:
        """Compile the programs of a chunk and of the beginning, unless equal ones are known.

        They are compiled at the same time, and traced in this thread, because JAX's settings belong
        to a thread. JAX keeps what is compiled here for the calls that follow. The beginning is
        left out unless it `begins`. If the states of the lanes alone take more than `room` bytes,
        they are counted and nothing is compiled.

        Returns:
          The bytes of the programs on each device, without the data that lanes share.
        """
        if self.form in compiling.known_sizes:
            return compiling.known_sizes[self.form]
        carries, lanes = self.carries(), self._described.lanes
        if (size := memory.count_bytes(carries) // self.program.placement.lane_devices) > room:
            return size
        memory.drop_programs_near_the_limit()
        with ThreadPoolExecutor(2) as workers:
            lowered = self.lowered_beginning() if begins else None
            begun = lowered and workers.submit(lowered.compile)
            chunk = _advance.lower(*self._inputs(self._described, lanes, carries))
            # Results are made of it, and importing it takes half a second.
            workers.submit(importlib.import_module, "xarray")
            programs = [chunk.compile()]
            if begun:
                programs.append(begun.result())
        shared = memory.count_bytes((lanes.hyper.shared, lanes.problem.shared))
        size = max(0, memory.measure_programs(programs) - shared)
        if begins:
            compiling.known_sizes[self.form] = size
        return size

    def lowered(self) -> jax.stages.Lowered:
        """Lower the program of a chunk."""
        described = self._described
        return _advance.lower(*self._inputs(described, described.lanes, self.carries()))

    def lowered_beginning(self) -> jax.stages.Lowered:
        """Lower the program of the beginning."""
        placed = self._described
        return self._begin.lower(self.program, placed.lanes, None, placed.starts)

    def traced(self) -> tuple[ClosedJaxpr, Any]:
        """Trace the programs, whatever JAX has traced before, and describe their results."""

        def results(lanes: Lanes, *inputs: Any) -> tuple:
            starts, given, runs = inputs
            carries, begun = unwrap(_begin.well)(self.program, lanes, None, starts)
            after, further = unwrap(_advance)(self.program, lanes, given, carries, runs)
            return begun, further, unwrap(_final_models)(self.program, lanes, None, after)

        described = self._described
        _, lanes, given, _, runs = self._inputs(described, described.lanes, Carry((), ()))
        return jax.make_jaxpr(results, return_shape=True)(lanes, described.starts, given, runs)

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
        final = _final_models.lower(self.program, self._described.lanes, None, self.carries())
        return processes.hash_programs(self.lowered_beginning(), self.lowered(), final)


@dataclasses.dataclass(eq=False)
class ReplayedLane:
    """A lane within the trace of a program.

    Attributes:
      program: The static arguments.
      lane: The lane.
      row: `i32[]`, the number of its schedule.
      tables: The schedules, where a chunk is replayed.
      place: `i32[1, 3]`: the number of the chunk's first evaluation and, of a stretch of ticks, its
        first tick and the tick after its last, counted from the evaluation before it.
      num_ticks: `i32[]`, ticks of the lane; None if those that pad it do nothing.
    """

    program: Program
    lane: opened.BoundLane
    row: types.Array
    tables: Any = None
    place: Any = None
    num_ticks: types.Array | None = None

    def __post_init__(self) -> None:
        """Look up the ticks of the lane, unless its step does nothing at those that pad it."""
        if self.tables and self.tables.num_ticks is not None and not self.lane.rests:
            self.num_ticks = look_up(self.tables.num_ticks, (self.row,))

    def begin(self, start: types.Params | None) -> tuple[Carry, Observed]:
        """Compute the initial carry and the first evaluation, from a model or a drawn one."""
        carry, held, holders = Carry(self.lane.init(start), ()), self.program.held_rows, None
        if held:
            # All clients hold the initial model.
            holders = jnp.zeros(held, "int32").at[0].set(self.lane.num_clients)
            if self.lane.algorithm.client_models is None:
                store = rows.first_rows(self.lane.received(carry.state), held)
                carry = carry._replace(versions=store)
        output, observed = self.observe(carry, holders)
        return carry._replace(output=output), observed

    def final_model(self, carry: Carry) -> types.Params:
        """Return the model of the last state, or of the last evaluation if that is a mean."""
        if self.program.has_mean:
            return carry.output
        return self.lane.algorithm.model(self.lane.learnt(carry.state))

    def advance(self, carry: Carry, runs: types.Array | None = None) -> tuple[Carry, Evaluated]:
        """Replay a chunk.

        Args:
          carry: The carry.
          runs: `bool[]`, whether the lane goes on; None if none is stopped.
        """
        if runs is not None:
            return self.advance_if(runs, carry)
        if self.program.placement.window:
            return self.within_window(carry)
        if self.tables.until is not None:
            # Limits belong to the schedule: states begin without them.
            until = jax.tree.map(lambda leaf: look_up(leaf, (self.row,)), self.tables.until)
            carry = carry._replace(state=carry.state._replace(until=until))
        if self.program.block:
            return self.stretch(carry)
        evaluations = jnp.arange(self.program.chunk[0], dtype="int32")
        return jax.lax.scan(self.evaluation, carry, evaluations)

    def advance_if(self, runs: types.Array, carry: Carry) -> tuple[Carry, Evaluated]:
        """Replay a chunk if the lane goes on, `bool[]`."""
        advance = functools.partial(opened.take_if, runs, self.advance)
        if not self.program.placement.refills:
            return advance(carry)
        # A batch whose lanes have all ended costs nothing.
        some = jax.lax.pmax(runs.astype("int32"), batching.LANE_AXIS) > 0
        return opened.take_if(some, advance, carry)

    def within_window(self, carry: Carry) -> tuple[Carry, Evaluated]:
        """Replay a chunk, and tell whether it looked up an example that is not in its window."""
        lane: Any = self.lane
        program = self.program._replace(placement=self.program.placement._replace(window=None))

        def chunk(data: Any, carry: Carry) -> tuple[Carry, Evaluated]:
            problem = dataclasses.replace(lane.problem, data=data)
            same = type(lane)(lane.system, problem, lane.hyper, lane.key, lane.plan)
            return dataclasses.replace(self, lane=same, program=program).advance(carry)

        (carry, (observed, totals)), outside = reads.check(chunk, lane.problem.data, carry)
        carry = opened.nan_if(carry, [outside])
        return carry, (observed, {**totals, OUTSIDE: outside[None].astype("int32")})

    def stretch(self, carry: Carry) -> tuple[Carry, Evaluated]:
        """Replay a chunk that is a stretch of ticks up to the next evaluation, or not so far."""
        # The bounds are no part of the program, so stretches of all lengths share one.
        per_eval, size = self.program.chunk[1], self.program.block
        first, (_, begin, end) = jnp.int32(0), self.place[0]
        nothing, totals = opened.zeros_of(lambda carry: self.evaluation(carry, first)[1], carry)
        both = jax.lax.fori_loop(begin // size, end // size, self.block, (carry, totals))
        carry, totals = both
        output, observed = jax.lax.cond(
            end == per_eval,
            lambda carry: self.observe(carry, self.holders(first)),
            lambda carry: (carry.output, nothing),
            carry,
        )
        return carry._replace(output=output), jax.tree.map(lambda x: x[None], (observed, totals))

    def evaluation(self, carry: Carry, number: types.Array) -> tuple[Carry, Evaluated]:
        """Take the ticks before an evaluation, and compute the metrics of the model after them."""
        ticks = self.ticks(carry, number, 0, self.program.chunk[1])
        carry, (counts, realised) = self.scan(self.tick, carry, ticks)
        means = "", "client_"  # names of the metrics that sums of measures become
        names = [name.replace(events.MEASURED, each) for name in counts for each in means]
        output, observed = self.observe(carry, self.holders(number), names)
        return carry._replace(output=output), (observed, {**_summed(counts), **realised})

    def block(self, i: types.Array, both: tuple[Carry, Any]) -> tuple[Carry, Totals]:
        """Take a block of ticks, with counts that add up until the evaluation."""
        carry, totals = both
        size = self.program.block
        ticks = self.ticks(carry, jnp.int32(0), i * size, size)
        carry, (counts, realised) = self.scan(self.tick, carry, ticks)
        after = {
            name: jax.tree.map(jnp.add, totals[name], count)
            for name, count in _summed(counts).items()
        }
        for name, piece in realised.items():
            after[name] = jax.lax.dynamic_update_slice_in_dim(totals[name], piece, i * size, 0)
        return carry, after

    def ticks(
        self, carry: Carry, number: types.Array, begin: types.Array | int, length: int
    ) -> tuple[tuple[types.Array, types.Array], object]:
        """Collect the inputs of ticks before an evaluation of the chunk, see `tick`.

        Args:
          number: Number of the evaluation within the chunk.
          begin: The first tick, counted from the evaluation before it.
          length: How many.
        """
        places = jnp.full(length, number), begin + jnp.arange(length, dtype="int32")
        return places, self.lane.draw_ahead(carry.state, length)

    @property
    def scan(self) -> Callable[..., tuple[Carry, Counted]]:
        """The function that takes ticks one after another, as `jax.lax.scan` does."""
        # Lanes that are batched together may end at different ticks.
        may_differ = self.num_ticks is not None and self.program.plan.lanes_at_once
        if may_differ and len(self.tables.num_ticks) > 1:
            return self.scan_unequal
        return jax.lax.scan if targets.is_for_cpu() else targets.packed_scan

    def scan_unequal(self, _: object, carry: Carry, ticks: tuple) -> tuple[Carry, Counted]:
        """Take ticks of lanes some of which end before others.

        First the ticks of all lanes, without a copy of their states; then, until the last lane
        ends, those of some, where the states of the others are selected.
        """
        (number, begin), length = (each[0] for each in ticks[0]), len(ticks[0][0])
        before = (self.place[0, 0] + number) * self.program.chunk[1] + begin
        left = jnp.clip(self.num_ticks - before, 0, length)
        shortest, longest = (of(left, batching.LANE_AXIS) for of in (jax.lax.pmin, jax.lax.pmax))

        def take(
            i: types.Array, both: tuple[Carry, Counted], **of_all: bool
        ) -> tuple[Carry, Counted]:
            carry, found = self.tick(both[0], ((number, begin + i), None), **of_all)
            return carry, jax.tree.map(lambda all, one: all.at[i].set(one), both[1], found)

        found = jax.eval_shape(lambda: self.tick(carry, ((number, begin + 0), None))[1])
        found = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), found)
        take_all = functools.partial(take, is_of_all=True)
        both = jax.lax.fori_loop(0, shortest, take_all, (carry, found))
        return jax.lax.fori_loop(shortest, longest, take, both)

    @jax.named_scope("tick")
    def tick(
        self, carry: Carry, inputs: tuple[tuple[types.Array, Any], Any], *, is_of_all: bool = False
    ) -> tuple[Carry, Counted]:
        """Take a tick.

        Args:
          inputs: Its place among evaluations and ticks, and what was drawn ahead.
          is_of_all: Whether it is known to pad no lane.
        """
        lane, tables, (place, ahead) = self.lane, self.tables, inputs
        number = (self.place[0, 0] + place[0]) * self.program.chunk[1] + place[1]
        event = tables.ticks.event(self.row, number, place, self.program.facts)
        if self.num_ticks is None or is_of_all:
            state, info = lane.step(carry.state, event, ahead)
        else:  # Ticks that pad a lane change nothing and count nothing.
            state, info = opened.learn_if(number < self.num_ticks, lane.step, carry.state, event)
        counts, realised = _counts_of(info, event, lane.problem.counts.shape[0])
        realised |= lane.realised(state, info)
        carry = carry._replace(state=state)
        if tables.held is not None and lane.algorithm.client_models is None:
            if realised and not info.event.facts.keeps("clients"):
                allowed = "false where a step changes who takes part: which models clients hold"
                raise ConfigError("client_variance", True, f"{allowed} follows from the schedule")
            written = look_up(tables.held.write, (self.row, *place))
            store = rows.write_row(carry.versions, written, lane.received(state))
            carry = carry._replace(versions=store)
        return carry, (counts, realised)

    def holders(self, number: types.Array) -> types.Array | None:
        """Count the clients that hold each version at an evaluation, by its number: `i32[H]`."""
        held = self.tables.held
        return None if held is None else look_up(held.holders, (self.row, number))

    @jax.named_scope("evaluation")
    def observe(
        self, carry: Carry, holders: types.Array | None, counted: Collection[str] = ()
    ) -> tuple[Any, Observed]:
        """Compute an evaluation's metrics; also return the model if models are kept, else None.

        The `holders` of each version are given if `client_variance` is measured. `counted` are
        names of the algorithm's `Info`. The first result is the model if it is a mean, otherwise
        ().
        """
        lane, has_mean, models = self.lane, self.program.has_mean, carry.versions
        if holders is not None and lane.algorithm.client_models is not None:
            models, holders = lane.algorithm.client_models(lane.learnt(carry.state))
        if has_mean and holders is not None:
            of_all = functools.partial(mean_model, models, holders)
            model, metrics = lane.evaluate(carry.state, counted, of_all)
        else:
            model, metrics = lane.evaluate(carry.state, counted)
        if holders is not None:
            server = lane.algorithm.model(lane.learnt(carry.state)) if has_mean else model
            metrics["client_variance"] = client_variance(models, holders, server)
        numbers = [*jax.tree.leaves(model), *scalars_of(metrics)]
        metrics["finite"] = jnp.stack([jnp.all(jnp.isfinite(number)) for number in numbers]).all()
        observed = metrics, model if self.program.keep_models else None
        return model if has_mean else (), observed


def of_lanes(
    run: Callable[..., batching.ResultT],
    program: Program,
    lanes: Lanes,
    tables: tuple | None,
    varying: tuple,
) -> batching.ResultT:
    """Call `run(lane, *varying)` for every lane of a device.

    Args:
      run: The function of a `ReplayedLane` and of its entries of `varying`.
      program: The static arguments.
      lanes: L lanes.
      tables: What lanes read together, `tables` and `place` of a `ReplayedLane`; None for nothing.
      varying: Leaves `[L, ...]`.
    """
    placement = program.placement

    def lane(inputs: tuple) -> batching.ResultT:
        (seed, row, problem), (hyper, varying) = inputs
        both = lanes.problem.of_lane(problem), lanes.hyper.of_lane(hyper)
        key = opened.learning_key(seed)
        found = opened.lane_of(program.system, *both, key, program.plan)
        return run(ReplayedLane(program, found, row, *(tables or ())), *varying)

    at_once, batches = placement.lanes_at_once, placement.lane_batches
    runs = varying[1] if tables and placement.refills else None
    map_over = functools.partial(batching.map_lanes, at_once=at_once, batches=batches, runs=runs)
    shared, size = (lanes.seed, lanes.row, lanes.problem.varying), placement.family_size
    varying = lanes.hyper.varying, varying
    if size == 1:
        return map_over(lane, (shared, varying))
    return batching.map_families(lane, shared, varying, size=size, map_over=map_over)


def _over_lanes(name: str, run: Callable[..., batching.ResultT]) -> Callable[..., batching.ResultT]:
    """Make a program of all lanes, of some name, from `run(lane, *varying)` of one lane.

    Returns:
      `run_all(program, lanes, tables, *varying)`, from the static arguments; L lanes; arrays that
      all lanes of a device read, leaves `[D, ...]`, or `[1, ...]` if they are the same for all
      devices, which are the `tables` of a lane; and leaves `[L, ...]`.
    """

    def run_all(
        program: Program, lanes: Lanes, tables: tuple | None, *varying: object
    ) -> batching.ResultT:
        split, whole = PartitionSpec("lanes"), PartitionSpec()
        stacked = (
            each.replace(varying=split, shared=whole) for each in (lanes.hyper, lanes.problem)
        )
        of_tables = jax.tree.map(lambda leaf: split if leaf.shape[0] > 1 else whole, tables)
        specs = Lanes(split, split, *stacked), of_tables, split
        on_device, mesh = functools.partial(of_lanes, run, program), program.placement.mesh
        with program.machine.tracing():
            return jax.shard_map(
                on_device, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False
            )(lanes, tables, varying)

    run_all.__name__ = name
    return run_all


_begin = compiling.RunsOnce(
    _over_lanes("_begin", ReplayedLane.begin), static_argnums=0, keep_unused=True
)
_advance = jax.jit(
    _over_lanes("_advance", ReplayedLane.advance),
    static_argnums=0,
    donate_argnums=3,
    keep_unused=True,
)
_final_models = jax.jit(_over_lanes("_final_models", ReplayedLane.final_model), static_argnums=0)


def _counts_of(info: types.Work, event: types.Event, num_clients: int) -> Counted:
    """Split an `Info` into numbers, by name, and who took part if the step has changed that."""
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
        if info.measured:
            counts |= _measured(info.measured, changed if realised else event, num_clients)
    return counts, realised


def _measured(
    sums: Mapping[str, types.Array], event: types.Event, num_clients: int
) -> dict[str, types.Array]:
    """Sum measures, and the steps over which they were taken, for each client: `f[N]` by name."""
    places = jnp.where(event.clients < 0, num_clients, event.clients)
    none = jnp.zeros(num_clients, "float32")
    return {
        f"{events.MEASURED}{name}": none.at[places].add(each, mode="drop")
        for name, each in {**sums, "": event.steps}.items()
    }


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


def mean_model(models: types.Params, holders: types.Array, server: types.Params) -> types.Params:
    """Mean of the server's and all clients' models, mu = (w + sum_i w_i) / (n + 1): leaves `[...]`.

    The arguments are those of `client_variance`.
    """

    def held(leaf: types.Array) -> types.Array:
        """Replace models without holders, which need not be finite, by 0."""
        return jnp.where((holders > 0).reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

    share = 1 / (1 + holders.sum())
    total = batching.weighted_sum(holders * share, jax.tree.map(held, models))
    return jax.tree.map(lambda w, each: (w * share + each).astype(w.dtype), server, total)
