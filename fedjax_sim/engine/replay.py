"""Replay timelines through an algorithm: nested scans over lanes, in chunks, with progress and checkpoints."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim.batching import SETTINGS_AXIS, map_lanes
from fedjax_sim.engine.checkpoint import Checkpoint
from fedjax_sim.engine.compile_meter import CompileMeter
from fedjax_sim.engine.lanes import Lanes
from fedjax_sim.engine.placement import Placement
from fedjax_sim.engine.schedule import Schedule
from fedjax_sim.streams import stream
from fedjax_sim.types import Algorithm, Array, Event, Key, Plan, Problem, State, System


class Program(NamedTuple):
    """The static arguments of the compiled program of phase two."""

    system: System
    plan: Plan
    placement: Placement
    keep_models: bool = False


class Curves(NamedTuple):
    """What a replay leaves. V evaluations, and the initial one."""

    metrics: dict[str, np.ndarray]  # [L, V + 1]
    infos: dict[
        str, np.ndarray
    ]  # [L, V]  the system's Info, summed over the ticks between two evaluations
    models: Any  # leaves [L, ...]  final models
    samples: Any = None  # leaves [L, V + 1, ...]  models of all evaluations, if they are kept


def replay_schedule(
    program: Program,
    lanes: Lanes,
    schedule: Schedule,
    *,
    evals_per_chunk: int,
    checkpoint: Checkpoint | None = None,
    report: Callable[[int, dict[str, np.ndarray]], None] = lambda done, metrics: None,
) -> Curves:
    """Phase two: run the schedule in chunks of evaluations, whose number `evals_per_chunk` divides.

    checkpoint: resumed from if it holds something, and written to between chunks. report: called after each chunk with the number of
    evaluations done and the metrics so far.
    """
    num_lanes, num_evals = schedule.events.tick.shape[:2]
    lane_of = program.placement.deal(
        schedule.events.steps.max(axis=-1).sum(axis=(1, 2), dtype=np.int64)
    )
    place_of = np.unique(lane_of, return_index=True)[1]
    replicated = NamedSharding(program.placement.mesh, PartitionSpec())
    split = NamedSharding(program.placement.mesh, PartitionSpec("lanes"))

    def place(tree: Any) -> Any:
        """Put each lane on its device."""
        is_in_order = np.array_equal(lane_of, np.arange(num_lanes))
        return jax.device_put(
            tree if is_in_order else jax.tree.map(lambda leaf: leaf[lane_of], tree), split
        )

    key, hypers, problems = place((lanes.key, lanes.hyper.own, lanes.problem.own))
    common = jax.device_put((lanes.hyper.common, lanes.problem.common), replicated)
    lanes = Lanes(
        key,
        lanes.hyper.replace(own=hypers, common=common[0]),
        lanes.problem.replace(own=problems, common=common[1]),
    )

    def chunk(first: int) -> tuple[Event, Array]:
        """Events and holders of the evaluations from `first` on."""
        last = first + evals_per_chunk
        events = jax.tree.map(lambda leaf: leaf[:, first:last], schedule.events)
        return place(events), place(schedule.holders[:, 1 + first : 1 + last])

    holders = place(schedule.holders[:, 0])
    if checkpoint is not None:
        states, _ = jax.eval_shape(partial(_begin, program), lanes, holders)
        checkpoint.open(_digests(program, lanes, schedule, states, chunk(0)))
    states, first = _begin(program, lanes, holders)
    seen = _Seen(place_of, num_evals)
    seen.put(jax.tree.map(lambda leaf: leaf[:, None], first), {}, 0)
    done = 0
    if checkpoint is not None and (saved := checkpoint.load(states)) is not None:
        done, states, seen.kinds = saved
    while done < num_evals:
        states, (observed, info) = _advance(program, lanes, states, *chunk(done))
        seen.put(observed, info._asdict(), 1 + done)
        done += evals_per_chunk
        report(done, seen.kinds["metric"])
        if checkpoint is not None:
            checkpoint.save(done, states, seen.kinds, is_last=done >= num_evals)
    models = jax.tree.map(lambda leaf: leaf[place_of], _final_models(program, lanes, states))
    return Curves(
        seen.kinds["metric"], seen.kinds["info"], models, seen.samples(jax.tree.structure(models))
    )


class _Seen:
    """What evaluations left so far, by kind and name: metrics and models `[L, V + 1, ...]`, infos `[L, V]`."""

    def __init__(self, place_of: np.ndarray, num_evals: int):
        """place_of: `i64[L]`, the row of the device's arrays in which each lane is."""
        self._place_of, self._num_evals = place_of, num_evals
        self.kinds: dict[str, dict[str, np.ndarray]] = {"metric": {}, "model": {}, "info": {}}

    def put(self, observed: tuple[dict[str, Array], Any], infos: dict[str, Array], at: int) -> None:
        """Write evaluations from `at` on, lanes in their own order, spare ones left out. Leaves `[>= L, C, ...]`."""
        metrics, models = observed
        self._put("metric", metrics, at, self._num_evals + 1)
        self._put(
            "model",
            {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(models))},
            at,
            self._num_evals + 1,
        )
        self._put("info", infos, at - 1, self._num_evals)

    def samples(self, structure: Any) -> Any:
        """The models in the structure of one; None if they were not kept."""
        leaves = self.kinds["model"]
        return (
            jax.tree.unflatten(structure, [leaves[str(i)] for i in range(len(leaves))])
            if leaves
            else None
        )

    def _put(self, kind: str, values: dict[str, Array], at: int, length: int) -> None:
        into = self.kinds[kind]
        for name, value in values.items():
            if name not in into:
                into[name] = np.zeros((len(self._place_of), length, *value.shape[2:]), value.dtype)
            into[name][:, at : at + value.shape[1]] = np.asarray(value)[self._place_of]


def _digests(
    program: Program, lanes: Lanes, schedule: Schedule, states: Any, chunk: tuple[Event, Array]
) -> dict[str, str]:
    """Hashes of the program and of everything that it is given: equal for runs that end with the same bits on one machine."""
    text = _advance.lower(program, lanes, states, *chunk).as_text()
    inputs = hashlib.sha256()
    for leaf in jax.tree.leaves((lanes, schedule.events, schedule.holders)):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        inputs.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    return {"program": hashlib.sha256(text.encode()).hexdigest(), "inputs": inputs.hexdigest()}


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, lanes: Lanes, holders: Array) -> Any:
    """Initial states of all lanes, and what is seen of them. holders: `i32[L, R]`."""

    def begin(algorithm: Algorithm, problem: Problem, key: Key, holders: Array) -> Any:
        state = algorithm.init(stream(key, "init"))
        return state, _observe(program, algorithm, problem, state, holders)

    return _over_lanes(begin, program, lanes, (), (holders,))


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(program: Program, lanes: Lanes, states: State, events: Event, holders: Array) -> Any:
    """Replay a chunk of C evaluations of E ticks. events: leaves `[L, C, E, ...]`; holders: `i32[L, C, R]`."""

    def advance(
        algorithm: Algorithm,
        problem: Problem,
        key: Key,
        state: State,
        events: Event,
        holders: Array,
    ) -> Any:
        def evaluation(state: State, ahead: tuple[Event, Array]) -> Any:
            state, infos = jax.lax.scan(
                lambda state, event: algorithm.step(key, state, event), state, ahead[0]
            )
            return state, (
                _observe(program, algorithm, problem, state, ahead[1]),
                jax.tree.map(lambda info: info.sum(axis=0), infos),
            )

        return jax.lax.scan(evaluation, state, (events, holders))

    return _over_lanes(advance, program, lanes, (states,), (events, holders))


@partial(jax.jit, static_argnums=0)
def _final_models(program: Program, lanes: Lanes, states: State) -> Any:
    return _over_lanes(
        lambda algorithm, problem, key, state: algorithm.model(state), program, lanes, (states,), ()
    )


def _observe(
    program: Program, algorithm: Algorithm, problem: Problem, state: State, holders: Array
) -> tuple[dict[str, Array], Any]:
    """An evaluation's metrics, and the model if it is to be kept, else None."""
    model = algorithm.model(state)
    metrics = {
        **problem.evaluate(model),
        **(algorithm.report(state, holders) if program.plan.reports else {}),
    }
    numbers = [*jax.tree.leaves(model), *metrics.values()]
    metrics["finite"] = jnp.stack([jnp.all(jnp.isfinite(number)) for number in numbers]).all()
    return metrics, model if program.keep_models else None


def _over_lanes(
    run: Callable[..., Any],
    program: Program,
    lanes: Lanes,
    own: tuple[Any, ...],
    common: tuple[Any, ...],
) -> Any:
    """Call `run(algorithm, problem, key, *own, *common)` for every lane, on the devices and in the layout of the program.

    own, common: leaves `[L, ...]`, equal in `common` for lanes that differ in settings alone.
    """
    num_twins = program.placement.settings_at_once

    def on_device(lanes: Lanes, own: tuple[Any, ...], common: tuple[Any, ...]) -> Any:
        def twins(inputs: Any) -> Any:
            (key, of_problem, common), of_lanes = inputs
            problem = lanes.problem.of_lane(of_problem)

            def lane(of_lane: Any) -> Any:
                of_hyper, own = of_lane
                algorithm = program.system.algorithm(
                    problem, lanes.hyper.of_lane(of_hyper), program.plan
                )
                return run(algorithm, problem, stream(key, "learning"), *own, *common)

            return (
                lane(of_lanes)
                if num_twins == 1
                else jax.vmap(lane, axis_name=SETTINGS_AXIS, axis_size=num_twins)(of_lanes)
            )

        inputs = ((lanes.key, lanes.problem.own, common), (lanes.hyper.own, own))
        if num_twins > 1:
            alike, different = jax.tree.map(
                lambda leaf: leaf.reshape(-1, num_twins, *leaf.shape[1:]), inputs
            )
            inputs = (jax.tree.map(lambda leaf: leaf[:, 0], alike), different)
        results = map_lanes(
            twins,
            inputs,
            at_once=program.plan.lanes_at_once,
            batches=program.placement.lane_batches,
        )
        return (
            results
            if num_twins == 1
            else jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)
        )

    split, whole = PartitionSpec("lanes"), PartitionSpec()
    stacked = (each.replace(own=split, common=whole) for each in (lanes.hyper, lanes.problem))
    specs = (Lanes(split, *stacked), split, split)
    sharded = jax.shard_map(
        on_device, mesh=program.placement.mesh, in_specs=specs, out_specs=split, check_vma=False
    )
    return sharded(lanes, own, common)


jax.monitoring.register_event_duration_secs_listener(CompileMeter.listen)
