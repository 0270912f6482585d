"""Replay schedules chunk by chunk, with the work of the host between two calls of the program.

After each chunk the host keeps what evaluations returned, passes it on to whoever watches, ends
lanes that are to stop, writes checkpoints, and stops if it was asked to. Meanwhile the devices work
on the next chunk, unless what was returned decides about it. Where checkpoints are written,
stretches of ticks are chosen from the speed of the last one, so that they take some seconds.

Dimension letters: those of `fedjax_sim.core.types`; `V` evaluations, `C` evaluations of a chunk.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import clocks, events, types
from fedjax_sim.core.lifecycle import InputError, Stopped, asked_to_stop, deferring_stops, say
from fedjax_sim.engine.machine import memory, processes
from fedjax_sim.engine.program.replay import OUTSIDE, Carry, Limbs, Observed, Replay
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.results.curves import NEVER, Curves

Report = Callable[[int, "Evaluations"], np.ndarray]
"""From the number of evaluations done, and their values, to the lanes that stop now, `bool[L]`."""


def replay_schedule(
    replay: Replay, report: Report | None, checkpoint: Checkpoint | None = None
) -> Curves:
    """Run a schedule in chunks.

    Args:
      replay: The program with its inputs.
      report: Called after each evaluation, if somebody watches.
      checkpoint: Opened; resumed from if it holds something, and written to between chunks.

    Raises:
      Stopped: If a signal asked for it, after the chunks that were sent and a checkpoint.
    """
    saved = None if checkpoint is None else checkpoint.load(replay.carries())
    replay.prepare(begins=saved is None)
    seen = Evaluations(replay.placed.place_of, replay.num_evals)
    per_eval, done = replay.program.chunk[1], 0
    is_live = replay.program.plan.live is not None
    if replay.make_window is not None:
        _, replay.window = replay.make_window(0, 0)
    if saved is None:
        carries, first = replay.begin()
    else:
        (done, carries, curves), first = saved, None
        name, ticks = replay.program.system.name, replay.num_evals * per_eval
        say(f"{name} goes on after {done} of {ticks} ticks (lanes: {len(replay.placed.place_of)}).")
        seen.restore(curves, 1 + done // per_eval)
    stops_wait = contextlib.nullcontext() if checkpoint is None else deferring_stops()
    with stops_wait, ThreadPoolExecutor(1, "fedjax_sim-window") as thread:
        chunks = _replayed(replay, carries, first, done, seen, checkpoint, thread)
        for begin, done, returned, carries, _ in chunks:
            if done == 0:
                seen.put(jax.tree.map(lambda leaf: leaf[:, None], returned), 0)
                continue
            observed, counted = returned
            if counted.pop(OUTSIDE, np.zeros(1)).any():
                raise InputError(
                    f"ticks {begin} to {done - 1} read examples that are not in their window: "
                    "with data in files, a step must read those of its clients' mini-batches alone"
                )
            seen.add(counted, begin // per_eval)
            has_ended = False
            if done % per_eval == 0:
                seen.put(observed, 1 + begin // per_eval)
                if report is not None:
                    stops = report(done // per_eval, seen)
                    has_ended = bool(stops.any())
                    seen.stop(stops, done // per_eval)
            if checkpoint is not None and carries is not None:
                number = asked_to_stop()
                checkpoint.save(done, carries, seen.kinds, now=number is not None or has_ended)
                if number is not None:
                    raise Stopped(number, saved=True)
            if is_live and done % per_eval == 0 and seen.ended(done).all():
                seen.repeat(done // per_eval)
                break
    models = replay.final_models(carries)
    samples = seen.samples(jax.tree.structure(models))
    return Curves(seen.kinds["metric"], seen.kinds["info"], models, samples, seen.stopped_at)


class _Chunk(NamedTuple):
    """A chunk that was sent to the devices.

    Attributes:
      begin: Ticks before it.
      end: Ticks after it; 0 for the beginning, which has none.
      returned: The evaluation of the beginning, or the evaluations and counts of a chunk, on the
        devices until they are fetched.
      carries: The state after it; None if the next chunk has taken it.
      sent: When it was sent.
    """

    begin: int
    end: int
    returned: Any
    carries: Any
    sent: float


def _replayed(
    replay: Replay,
    carries: Carry,
    first: Observed | None,
    done: int,
    seen: "Evaluations",
    checkpoint: Checkpoint | None,
    thread: ThreadPoolExecutor,
) -> Iterator[_Chunk]:
    """Send chunk after chunk to the devices, and yield each with its results on the host.

    The next chunk is sent before the results of one are fetched, so that the devices need not wait
    for the host. A state that may have to be saved is copied first, as the next chunk takes it.

    The carries are the state after `done` ticks, and `first` is what the beginning returned, if the
    run begins now. Which lanes run is read from `seen` when a chunk is sent. The `thread` reads the
    next chunk's examples if these lie in files.
    """
    # What a chunk returns decides about the next one if lanes may be stopped or may all have ended.
    decides = replay.program.can_stop or replay.program.plan.live is not None
    # A window is made while the chunk before runs, and a third one would be too many.
    make, window = replay.make_window, None
    decides |= make is not None
    num_evals, per_eval = replay.program.chunk
    is_paced = replay.program.block > 0 and checkpoint is not None
    pace = _Pace(replay, 1 if decides else 2) if is_paced else None
    whole = replay.num_evals * per_eval
    waiting: deque[_Chunk] = deque()
    if first is not None:
        waiting.append(_Chunk(0, 0, first, carries, time.monotonic()))
    # When the last chunk was fetched, and how long it took.
    last_ready, lasted = 0.0, 0.0

    def fetch_oldest() -> _Chunk:
        nonlocal last_ready, lasted
        chunk = waiting.popleft()
        returned = processes.fetch(chunk.returned)
        began, last_ready = max(chunk.sent, last_ready), time.monotonic()
        if chunk.end > 0:
            lasted = last_ready - began
            if pace is not None:
                pace.note(chunk.begin, chunk.end, lasted)
        return chunk._replace(returned=returned)

    def may_overtake() -> bool:
        """Tell whether a chunk may be sent although one is waiting.

        Several processes never do: all would have to find room, and what they gather is fetched by
        programs that would wait for the work that was sent ahead.
        """
        if decides or len(waiting) > 1 or asked_to_stop() or jax.process_count() > 1:
            return False
        kept = () if checkpoint is None else carries
        tables = replay.placed.schedule.between(0, num_evals)
        size = memory.count_bytes((waiting[-1].returned, kept, tables))
        return size <= memory.AHEAD * memory.free_here()

    def end_after(done: int) -> int:
        """Choose the tick with which the chunk after `done` ticks ends, at the latest."""
        if pace is not None:
            return pace.end_after(done)
        return (done // per_eval + num_evals) * per_eval

    while waiting or (done < whole and seen.is_running.any()):
        while done < whole and (not waiting or may_overtake()):
            begin, sent = done, time.monotonic()
            try:
                done = end_after(begin)
                if make is not None:
                    done, replay.window = (window or thread.submit(make, begin, done)).result()
                if waiting and checkpoint is not None:
                    # It is saved once the chunk is done, if that is due then.
                    is_saved = checkpoint.is_due(within=lasted)
                    kept = jax.tree.map(jnp.copy, carries) if is_saved else None
                    waiting[-1] = waiting[-1]._replace(carries=kept)
                carries, returned = replay.advance(carries, begin, done, seen.is_running)
                if make is not None and done < whole:
                    window = thread.submit(make, done, end_after(done))
            except Exception as error:
                # Programs that call the host on a CPU run, and may fail, while they are sent.
                # What was done before them is kept, and so it is if a file cannot be read.
                if waiting:
                    yield fetch_oldest()
                if isinstance(error, InputError) and checkpoint is not None and begin > 0:
                    checkpoint.save(begin, carries, seen.kinds, now=True)
                raise
            waiting.append(_Chunk(begin, done, returned, carries, sent))
        yield fetch_oldest()


class _Pace:
    """Where chunks end that are stretches of ticks.

    Those that are sent at a time take about `SECONDS` together, as a run stops after them.
    """

    SECONDS = 10.0
    """A third of the promised time, because ticks of equal work may take unequal time."""

    def __init__(self, replay: Replay, most: int = 1):
        """Take the program and how many chunks are sent at a time."""
        self._seconds = self.SECONDS / most
        self._per_eval, self._block = replay.program.chunk[1], replay.program.block
        # Local steps of all schedules up to each tick, and one for the tick.
        work = 1 + replay.placed.schedule.work.sum(axis=0, dtype=np.int64)
        self._work = np.concatenate([np.zeros(1, np.int64), np.cumsum(work)])
        self._per_second = 0.0

    def end_after(self, done: int) -> int:
        """Choose the tick with which the chunk after `done` ticks ends."""
        last = (1 + done // self._per_eval) * self._per_eval
        within = self._work[done] + self._per_second * self._seconds
        end = int(np.searchsorted(self._work, within, side="right")) - 1
        return min(last, done + max(1, (end - done) // self._block) * self._block)

    def note(self, begin: int, end: int, seconds: float) -> None:
        """Learn from the seconds that a chunk took."""
        self._per_second = (self._work[end] - self._work[begin]) / max(seconds, 1e-3)


class Evaluations:
    """Values of the evaluations so far, by kind and name.

    Metrics and models are `[L, V + 1, ...]`, infos `[L, V]`. A lane that has stopped repeats its
    last metrics and models, and counts nothing more.
    """

    def __init__(self, place_of: np.ndarray, num_evals: int):
        """Take `place_of`, `i64[L]`: the row of the device's arrays in which each lane stands."""
        self._place_of, self._num_evals = place_of, num_evals
        self.stopped_at = np.full(len(place_of), NEVER)
        self.kinds: dict[str, dict[str, np.ndarray]] = {
            "metric": {},
            "model": {},
            "info": {},
            "stop": {"at": self.stopped_at},
        }

    @property
    def is_running(self) -> np.ndarray:
        """Which lanes have not been stopped: `bool[L]`."""
        return self.stopped_at == NEVER

    def ended(self, done: int) -> np.ndarray:
        """Mark the live lanes that did nothing at the last of so many ticks: `bool[L]`."""
        ended = self.kinds["info"][f"{events.HAPPENED}ended"]
        return ended.reshape(len(ended), -1)[:, done - 1] != clocks.RUNS

    def stop(self, stops: np.ndarray, at: int) -> None:
        """End some lanes, `bool[L]`, with evaluation `at`."""
        self.stopped_at[stops] = at
        self.repeat(at, stops)

    def repeat(self, at: int, stops: np.ndarray | slice = slice(None)) -> None:
        """Repeat evaluation `at` of some lanes, or of all, in the evaluations after it."""
        for kind in ("metric", "model"):
            for values in self.kinds[kind].values():
                values[stops, at + 1 :] = values[stops, at : at + 1]

    def restore(self, kinds: dict[str, dict[str, np.ndarray]], known: int) -> None:
        """Take over the first `known` evaluations of the run that is resumed."""
        for kind in ("metric", "model", "info"):
            for name, values in kinds[kind].items():
                num = min(known, values.shape[1])
                self._into(kind, name, values)[:, :num] = values[:, :num]
        stopped_at = kinds["stop"].get("at", self.stopped_at)
        for at in set(stopped_at.tolist()) - {NEVER}:
            self.stop(stopped_at == at, at)

    def put(self, observed: tuple[dict[str, np.ndarray], types.Params | None], at: int) -> None:
        """Write evaluations from number `at` on, lanes in their order.

        Args:
          observed: Metrics and models on the host, leaves `[>= L, C, ...]`.
          at: Number of the first evaluation.
        """
        metrics, models = observed
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(models))}
        for kind, named in (("metric", metrics), ("model", leaves)):
            for name, value in named.items():
                into = self._into(kind, name, value)
                running = self.is_running
                into[running, at : at + value.shape[1]] = value[self._place_of][running]

    def add(self, infos: dict[str, np.ndarray | Limbs], at: int) -> None:
        """Add the counts of evaluations.

        Args:
          infos: The counts on the host, leaves `[>= L, C, ...]`.
          at: Number of the first evaluation.
        """
        for name, value in infos.items():
            counts = value.total() if isinstance(value, Limbs) else value
            into = self._into("info", name, counts)
            into[:, at : at + counts.shape[1]] += counts[self._place_of]

    def samples(self, structure: jax.tree_util.PyTreeDef) -> types.Params | None:
        """Return the models in the structure of one model; None if they were not kept."""
        leaves = self.kinds["model"]
        if not leaves:
            return None
        return jax.tree.unflatten(structure, [leaves[str(i)] for i in range(len(leaves))])

    def _into(self, kind: str, name: str, like: np.ndarray) -> np.ndarray:
        """Find or make the array of a name, with entries of the shape and type of `[L, C, ...]`."""
        if name not in self.kinds[kind]:
            length = self._num_evals + (kind != "info")
            shape = (len(self._place_of), length, *like.shape[2:])
            self.kinds[kind][name] = np.zeros(shape, like.dtype)
        return self.kinds[kind][name]
