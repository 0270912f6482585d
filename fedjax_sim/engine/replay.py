"""Phase two: replay schedules through an algorithm.

In every lane a scan over evaluations contains a scan over the ticks between two of them. One call
of the compiled program replays a chunk, which is one or more evaluations of all lanes. Between
chunks the host shows progress and writes checkpoints.

Dimension letters: those of `fedjax_sim.types`; `V` evaluations, `C` evaluations of a chunk, `E`
ticks between two evaluations, `H` rows of the store behind `client_variance`.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim.batching import map_families, map_lanes
from fedjax_sim.engine.checkpoint import Checkpoint
from fedjax_sim.engine.held_models import HeldVersions, client_variance, first_store, write_version
from fedjax_sim.engine.lanes import Lanes
from fedjax_sim.engine.placement import Placement
from fedjax_sim.engine.schedule import Schedule
from fedjax_sim.streams import stream
from fedjax_sim.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System


class Program(NamedTuple):
    """The static arguments of the compiled program.

    Attributes:
      system: The system.
      plan: What algorithms are bound to.
      placement: Where lanes run.
      keep_models: Whether the model of every evaluation is returned.
    """

    system: System
    plan: Plan
    placement: Placement
    keep_models: bool = False


class Curves(NamedTuple):
    """What a replay returns.

    Attributes:
      metrics: Each `[L, V + 1, ...]`, the initial evaluation included.
      infos: Each `[L, V]`, the algorithm's `Info` summed over the ticks between two evaluations.
      models: Final models, leaves `[L, ...]`.
      samples: Models of all evaluations, leaves `[L, V + 1, ...]`; None if they are not kept.
    """

    metrics: dict[str, np.ndarray]
    infos: dict[str, np.ndarray]
    models: Any
    samples: Any = None


class _Carry(NamedTuple):
    """What a lane carries from tick to tick.

    Attributes:
      state: The algorithm's state.
      versions: Server versions that clients hold, leaves `[H, ...]`; () if they are not needed.
    """

    state: Any
    versions: Any


def replay_schedule(
    program: Program,
    lanes: Lanes,
    schedule: Schedule,
    *,
    evals_per_chunk: int,
    checkpoint: Checkpoint | None = None,
    report: Callable[[int, dict[str, np.ndarray]], None] = lambda done, metrics: None,
) -> Curves:
    """Run a schedule in chunks of evaluations.

    Args:
      program: The static arguments.
      lanes: L lanes.
      schedule: Their schedules.
      evals_per_chunk: Evaluations of a chunk, C; it divides V.
      checkpoint: Resumed from if it holds something, and written to between chunks.
      report: Called after each chunk with the number of evaluations done and the metrics so far.
    """
    num_lanes, num_evals = schedule.events.tick.shape[:2]
    chex.assert_shape(schedule.events.clients, (num_lanes, num_evals, None, None))
    chex.assert_shape(lanes.key, (num_lanes,))
    work = schedule.events.steps.max(axis=-1).sum(axis=(1, 2), dtype=np.int64)
    lane_of = program.placement.deal(work)
    place_of = np.unique(lane_of, return_index=True)[1]
    is_in_order = np.array_equal(lane_of, np.arange(num_lanes))
    split = NamedSharding(program.placement.mesh, PartitionSpec("lanes"))

    def place(tree: Any) -> Any:
        """Put each lane on its device."""
        dealt = tree if is_in_order else jax.tree.map(lambda leaf: leaf[lane_of], tree)
        return jax.device_put(dealt, split)

    lanes = _placed(lanes, place, NamedSharding(program.placement.mesh, PartitionSpec()))

    def chunk(first: int) -> tuple[Event, HeldVersions | None]:
        """Select the evaluations from `first` on."""
        last = first + evals_per_chunk
        held = schedule.held and HeldVersions(
            schedule.held.write[:, first:last], schedule.held.holders[:, 1 + first : 1 + last]
        )
        return place((jax.tree.map(lambda leaf: leaf[:, first:last], schedule.events), held))

    holders = None if schedule.held is None else place(schedule.held.holders[:, 0])
    if checkpoint is not None:
        carries, _ = jax.eval_shape(partial(_begin, program), lanes, holders)
        checkpoint.open(_digests(program, lanes, schedule, carries, chunk(0)))
    carries, first = _begin(program, lanes, holders)
    seen = _Seen(place_of, num_evals)
    seen.put(jax.tree.map(lambda leaf: leaf[:, None], first), {}, 0)
    done = 0
    if checkpoint is not None and (saved := checkpoint.load(carries)) is not None:
        done, carries, seen.kinds = saved
    while done < num_evals:
        carries, (observed, info) = _advance(program, lanes, carries, *chunk(done))
        seen.put(observed, info._asdict(), 1 + done)
        done += evals_per_chunk
        report(done, seen.kinds["metric"])
        if checkpoint is not None:
            checkpoint.save(done, carries, seen.kinds, is_last=done >= num_evals)
    models = jax.tree.map(lambda leaf: leaf[place_of], _final_models(program, lanes, carries))
    samples = seen.samples(jax.tree.structure(models))
    return Curves(seen.kinds["metric"], seen.kinds["info"], models, samples)


def _placed(lanes: Lanes, place: Callable[[Any], Any], replicated: NamedSharding) -> Lanes:
    """Put what varies on the lanes' devices, and what is shared on all devices."""
    key, hypers, problems = place((lanes.key, lanes.hyper.varying, lanes.problem.varying))
    shared = jax.device_put((lanes.hyper.shared, lanes.problem.shared), replicated)
    return Lanes(
        key,
        lanes.hyper.replace(varying=hypers, shared=shared[0]),
        lanes.problem.replace(varying=problems, shared=shared[1]),
    )


class _Seen:
    """What evaluations returned so far, by kind and name.

    Metrics and models are `[L, V + 1, ...]`, infos `[L, V]`.
    """

    def __init__(self, place_of: np.ndarray, num_evals: int):
        """Take `place_of`, `i64[L]`: the row of the device's arrays in which each lane stands."""
        self._place_of, self._num_evals = place_of, num_evals
        self.kinds: dict[str, dict[str, np.ndarray]] = {"metric": {}, "model": {}, "info": {}}

    def put(self, observed: tuple[dict[str, Array], Any], infos: dict[str, Array], at: int) -> None:
        """Write evaluations from number `at` on, lanes in their order. Leaves `[>= L, C, ...]`."""
        metrics, models = observed
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(models))}
        self._put("metric", metrics, at, self._num_evals + 1)
        self._put("model", leaves, at, self._num_evals + 1)
        self._put("info", infos, at - 1, self._num_evals)

    def samples(self, structure: Any) -> Any:
        """Return the models in the structure of one model; None if they were not kept."""
        leaves = self.kinds["model"]
        if not leaves:
            return None
        return jax.tree.unflatten(structure, [leaves[str(i)] for i in range(len(leaves))])

    def _put(self, kind: str, values: dict[str, Array], at: int, length: int) -> None:
        into = self.kinds[kind]
        for name, value in values.items():
            if name not in into:
                shape = (len(self._place_of), length, *value.shape[2:])
                into[name] = np.zeros(shape, value.dtype)
            into[name][:, at : at + value.shape[1]] = np.asarray(value)[self._place_of]


def _digests(
    program: Program,
    lanes: Lanes,
    schedule: Schedule,
    carries: Any,
    chunk: tuple[Event, HeldVersions | None],
) -> dict[str, str]:
    """Hash the program and its inputs: equal for runs that end with equal bits on one machine."""
    text = _advance.lower(program, lanes, carries, *chunk).as_text()
    inputs = hashlib.sha256()
    for leaf in (*jax.tree.leaves(lanes), *schedule.replayed()):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        inputs.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    program_digest = hashlib.sha256(text.encode()).hexdigest()
    return {"program": program_digest, "inputs": inputs.hexdigest()}


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, lanes: Lanes, holders: Array | None) -> Any:
    """Compute initial carries and the first evaluation of all lanes. holders: `i32[L, H]`."""

    def begin(algorithm: Algorithm, problem: Problem, key: Key, holders: Array | None) -> Any:
        state = algorithm.init(stream(key, "init"))
        carry = _Carry(state, ())
        if holders is not None and algorithm.client_models is None:
            carry = _Carry(state, first_store(algorithm.model(state), holders.shape[0]))
        return carry, _observe(program, algorithm, problem, carry, holders)

    return _over_lanes(begin, program, lanes, shared=holders)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(
    program: Program, lanes: Lanes, carries: Any, events: Event, held: HeldVersions | None
) -> Any:
    """Replay a chunk. events: leaves `[L, C, E, ...]`; held: leaves `[L, C, ...]`."""

    def advance(
        algorithm: Algorithm, problem: Problem, key: Key, inputs: Any, carry: _Carry
    ) -> Any:
        def tick(carry: _Carry, inputs: tuple[Event, Array | None]) -> tuple[_Carry, Any]:
            event, row = inputs
            state, info = algorithm.step(key, carry.state, event)
            versions = carry.versions
            if row is not None and algorithm.client_models is None:
                versions = write_version(versions, row, algorithm.model(state))
            return _Carry(state, versions), info

        def evaluation(carry: _Carry, inputs: tuple[Event, HeldVersions | None]) -> Any:
            events, held = inputs
            rows, holders = (None, None) if held is None else held
            carry, infos = jax.lax.scan(tick, carry, (events, rows))
            observed = _observe(program, algorithm, problem, carry, holders)
            return carry, (observed, jax.tree.map(lambda info: info.sum(axis=0), infos))

        return jax.lax.scan(evaluation, carry, inputs)

    return _over_lanes(advance, program, lanes, shared=(events, held), varying=carries)


@partial(jax.jit, static_argnums=0)
def _final_models(program: Program, lanes: Lanes, carries: Any) -> Any:
    def final(algorithm: Algorithm, problem: Problem, key: Key, _: None, carry: _Carry) -> Params:
        return algorithm.model(carry.state)

    return _over_lanes(final, program, lanes, varying=carries)


def _observe(
    program: Program, algorithm: Algorithm, problem: Problem, carry: _Carry, holders: Array | None
) -> tuple[dict[str, Array], Any]:
    """Compute an evaluation's metrics; also return the model if models are kept, else None."""
    model = algorithm.model(carry.state)
    metrics = {**problem.evaluate(model), **algorithm.metrics(carry.state)}
    if holders is not None:
        models = carry.versions
        if algorithm.client_models is not None:
            models, holders = algorithm.client_models(carry.state)
        metrics["client_variance"] = client_variance(models, holders, model)
    numbers = [*jax.tree.leaves(model), *metrics.values()]
    metrics["finite"] = jnp.stack([jnp.all(jnp.isfinite(number)) for number in numbers]).all()
    return metrics, model if program.keep_models else None


def _over_lanes(
    run: Callable[..., Any],
    program: Program,
    lanes: Lanes,
    *,
    shared: Any = None,
    varying: Any = None,
) -> Any:
    """Call `run(algorithm, problem, key, shared[, varying])` for every lane.

    Args:
      run: Called for one lane.
      program: The static arguments.
      lanes: L lanes.
      shared: Leaves `[L, ...]`, equal for all members of a family.
      varying: Leaves `[L, ...]`.
    """

    def on_device(lanes: Lanes, shared: Any, varying: Any) -> Any:
        def lane(of_family: Any, of_lane: Any) -> Any:
            (key, problem_leaves, shared), (hyper_leaves, varying) = of_family, of_lane
            problem = lanes.problem.of_lane(problem_leaves)
            hyper = lanes.hyper.of_lane(hyper_leaves)
            algorithm = program.system.algorithm(problem, hyper, program.plan)
            inputs = (shared,) if varying is None else (shared, varying)
            return run(algorithm, problem, stream(key, "learning"), *inputs)

        return map_families(
            lane,
            (lanes.key, lanes.problem.varying, shared),
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
    return jax.shard_map(
        on_device,
        mesh=program.placement.mesh,
        in_specs=(Lanes(split, *stacked), split, split),
        out_specs=split,
        check_vma=False,
    )(lanes, shared, varying)
