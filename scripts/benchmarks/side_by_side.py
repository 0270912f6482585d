"""Prepare many measurements side by side and make them one after another: see `on_device`."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SCRIPTS = Path(__file__).parents[1]
LEAST = 20.0
"""Seconds left under which no further batch is started."""


class Task(NamedTuple):
    """Something to measure.

    Attributes:
      name: Its name in the results.
      request: What `benchmarks.on_device` is asked.
      prepare: Seconds that preparing may take at most.
      measure: Seconds that measuring may take at most.
      environment: Variables of the process besides those of this one.
    """

    name: str
    request: Mapping[str, Any]
    prepare: float = 100.0
    measure: float = 20.0
    environment: Mapping[str, str] = {}


class Worker:
    """A process with one task."""

    def __init__(self, task: Task, log: Path):
        """Start it."""
        paths = [str(SCRIPTS.parent), str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            # Processes share the card, so none takes its memory before it needs it.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **task.environment,
        }
        self.task, self.began = task, time.monotonic()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchmarks.on_device", json.dumps(task.request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._heard = b""

    def answer(self, until: float) -> dict[str, Any] | None:
        """Wait for a line; None if none has come at the time `until`.

        Args:
          until: Time of `time.monotonic`.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                if not ready.select(max(0.0, until - time.monotonic())):
                    return None
                more = self._process.stdout.read()
                if more == b"":
                    return {"failed": f"the process ended with {self._process.wait()}"}
                self._heard += more or b""
        line, self._heard = self._heard.split(b"\n", 1)
        return json.loads(line)

    def go(self) -> None:
        """Ask it to measure."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def pause(self, is_paused: bool) -> None:
        """Stop the process for a while, or let it go on."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP if is_paused else signal.SIGCONT)

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def measure(
    batches: Sequence[Sequence[Task]],
    background: Sequence[Task],
    seconds: float,
    log: Path,
    report: Callable[[Task, dict[str, Any]], None],
) -> None:
    """Prepare each batch side by side, then measure its tasks one at a time.

    Args:
      batches: Tasks in the order of their worth.
      background: Tasks that are not timed, which go on while others prepare.
      seconds: Time for everything.
      log: File for what the processes print.
      report: Called with each task and its answer.
    """
    end = time.monotonic() + seconds
    started: list[Worker] = []

    def start(task: Task) -> Worker:
        started.append(Worker(task, log))
        return started[-1]

    try:
        untimed = [start(task) for task in background]
        for worker in untimed:
            worker.go()
        for batch in batches:
            if time.monotonic() > end - LEAST:
                for task in batch:
                    report(task, {"not run": "no time was left"})
                continue
            ready = _prepared([start(task) for task in batch], end, report)
            for worker in untimed:
                worker.pause(True)
            for worker, facts in ready:
                worker.go()
                answer = worker.answer(min(time.monotonic() + worker.task.measure, end))
                worker.stop()
                report(worker.task, facts | (answer or {"failed": "did not end in time"}))
            for worker in untimed:
                worker.pause(False)
        for worker in untimed:
            answer = worker.answer(end)
            if answer is not None and "ready" in answer:
                answer = worker.answer(end)
            report(worker.task, answer or {"failed": "did not end in time"})
    finally:
        for worker in started:
            worker.stop()


def _prepared(
    workers: Sequence[Worker], end: float, report: Callable[[Task, dict[str, Any]], None]
) -> list[tuple[Worker, dict[str, Any]]]:
    """Wait until workers have prepared; end and report those that fail or take too long."""
    ready = []
    for worker in workers:
        answer = worker.answer(min(worker.began + worker.task.prepare, end))
        if answer is not None and answer.pop("ready", False):
            ready.append((worker, answer))
            continue
        worker.stop()
        seconds = time.monotonic() - worker.began
        report(worker.task, answer or {"failed": f"not prepared after {seconds:.0f} s"})
    return ready
