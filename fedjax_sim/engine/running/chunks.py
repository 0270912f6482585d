"""Replay schedules chunk by chunk, with the work of the host between two calls of the program.

Between chunks the host keeps what evaluations returned, passes it on to whoever watches, ends lanes
that are to stop, writes checkpoints, and stops if it was asked to. Where checkpoints are written,
stretches of ticks are chosen from the speed of the last one, so that they take some seconds.

Dimension letters: those of `fedjax_sim.types`; `V` evaluations, `C` evaluations of a chunk.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.program.replay import Limbs, Replay
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.events import HAPPENED
from fedjax_sim.events.clocks import RUNS
from fedjax_sim.lifecycle import Stopped, asked_to_stop, deferring_stops
from fedjax_sim.results.curves import NEVER, Curves

Report = Callable[[int, Curves], np.ndarray]
"""From the number of evaluations done and what is known so far, without models, to which lanes stop
now, `bool[L]`."""


def replay_schedule(
    replay: Replay, *, checkpoint: Checkpoint | None = None, report: Report | None = None
) -> Curves:
    """Run a schedule in chunks.

    Args:
      replay: The program with its inputs.
      checkpoint: Opened; resumed from if it holds something, and written to between chunks.
      report: Called after each evaluation.

    Raises:
      Stopped: If a signal asked for it, after the chunk that was running and a checkpoint.
    """
    saved = None if checkpoint is None else checkpoint.load(replay.carries())
    replay.prepare(begins=saved is None)
    seen = _Seen(replay.place_of, replay.num_evals)
    per_eval, done = replay.program.chunk[1], 0
    if saved is None:
        carries, first = replay.begin()
        seen.put(jax.tree.map(lambda leaf: leaf[:, None], first), 0)
    else:
        done, carries = saved.done, saved.states
        seen.restore(saved.curves, 1 + done // per_eval)
    pace = _Pace(replay)
    with contextlib.nullcontext() if checkpoint is None else deferring_stops():
        is_live = replay.program.plan.live is not None
        if is_live and saved is None and checkpoint is not None:
            # A longer run may have to go on from here.
            checkpoint.save(0, carries, seen.kinds, now=True)
        while done < replay.num_evals * per_eval and seen.is_running.any():
            end, began = pace.end_after(done), time.monotonic()
            carries, (observed, counted) = replay.advance(carries, done, end, seen.is_running)
            seen.add(counted, done // per_eval)
            if end % per_eval == 0:
                seen.put(observed, 1 + done // per_eval)
            pace.note(done, end, time.monotonic() - began)
            if is_live and checkpoint is not None and seen.ended(end).any():
                checkpoint.keep_before(done)
            done = end
            has_ended = False
            if done % per_eval == 0 and report is not None:
                known = Curves(
                    seen.kinds["metric"], seen.kinds["info"], None, None, seen.stopped_at
                )
                stops = report(done // per_eval, known)
                has_ended = bool(stops.any())
                seen.stop(stops, done // per_eval)
            if checkpoint is not None:
                number = asked_to_stop()
                # A longer run goes on from the tick up to which all lanes ran.
                is_needed = number is not None or has_ended or done == replay.all_run
                checkpoint.save(done, carries, seen.kinds, now=is_needed)
                if number is not None:
                    raise Stopped(number, saved=True)
            if is_live and done % per_eval == 0 and seen.ended(done).all():
                seen.repeat(done // per_eval)
                break
    models = replay.final_models(carries)
    samples = seen.samples(jax.tree.structure(models))
    return Curves(seen.kinds["metric"], seen.kinds["info"], models, samples, seen.stopped_at)


class _Pace:
    """Where chunks end: stretches of ticks that take about `SECONDS`, or whole evaluations."""

    SECONDS = 10.0
    """A third of what is promised, because ticks of equal work may take unequal time."""

    def __init__(self, replay: Replay):
        (num, per_eval), self._block = replay.program.chunk, replay.program.block
        self._all_run, self._per_eval, self._whole = replay.all_run, per_eval, num * per_eval
        self._work = np.concatenate([[0], np.cumsum(replay.work)]) if self._block else np.zeros(0)
        self._per_second = 0.0

    def end_after(self, done: int) -> int:
        """Choose the tick with which the chunk after `done` ticks ends."""
        if not self._block:
            return done + self._whole
        last = (1 + done // self._per_eval) * self._per_eval
        if done < self._all_run < last:
            last = self._all_run
        within = self._work[done] + self._per_second * self.SECONDS
        end = int(np.searchsorted(self._work, within, side="right")) - 1
        return min(last, done + max(1, (end - done) // self._block) * self._block)

    def note(self, begin: int, end: int, seconds: float) -> None:
        """Learn from the seconds that a chunk took."""
        if self._block:
            self._per_second = (self._work[end] - self._work[begin]) / max(seconds, 1e-6)


class _Seen:
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
        """Tell which live lanes did nothing at the last of so many ticks: `bool[L]`."""
        ended = self.kinds["info"][f"{HAPPENED}ended"]
        return ended.reshape(len(ended), -1)[:, done - 1] != RUNS

    def stop(self, stops: np.ndarray, at: int) -> None:
        """End some lanes, `bool[L]`, with evaluation `at`."""
        self.stopped_at[stops] = at
        self.repeat(at, stops)

    def repeat(self, at: int, stops: Any = slice(None)) -> None:
        """Repeat evaluation `at` of some lanes, or of all, in what comes after it."""
        for kind in ("metric", "model"):
            for values in self.kinds[kind].values():
                values[stops, at + 1 :] = values[stops, at : at + 1]

    def restore(self, kinds: dict[str, dict[str, np.ndarray]], known: int) -> None:
        """Take over the first `known` evaluations of an earlier run, which may be a shorter one."""
        for kind in ("metric", "model", "info"):
            for name, values in kinds[kind].items():
                num = min(known, values.shape[1])
                self._into(kind, name, values)[:, :num] = values[:, :num]
        stopped_at = kinds["stop"].get("at", self.stopped_at)
        for at in set(stopped_at.tolist()) - {NEVER}:
            self.stop(stopped_at == at, at)

    def put(self, observed: tuple[dict[str, np.ndarray], Any], at: int) -> None:
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

    def add(self, infos: dict[str, Any], at: int) -> None:
        """Add the counts of evaluations.

        Args:
          infos: The counts on the host, leaves `[>= L, C, ...]`.
          at: Number of the first evaluation.
        """
        for name, value in infos.items():
            counts = value.total() if isinstance(value, Limbs) else value
            into = self._into("info", name, counts)
            into[:, at : at + counts.shape[1]] += counts[self._place_of]

    def samples(self, structure: Any) -> Any:
        """Return the models in the structure of one model; None if they were not kept."""
        leaves = self.kinds["model"]
        if not leaves:
            return None
        return jax.tree.unflatten(structure, [leaves[str(i)] for i in range(len(leaves))])

    def _into(self, kind: str, name: str, like: Any) -> np.ndarray:
        """Find or make the array of a name, with entries of the shape and type of `[L, C, ...]`."""
        if name not in self.kinds[kind]:
            length = self._num_evals + (kind != "info")
            shape = (len(self._place_of), length, *like.shape[2:])
            self.kinds[kind][name] = np.zeros(shape, like.dtype)
        return self.kinds[kind][name]
