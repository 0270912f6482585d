"""Wait for all parts, with their progress in one place, and name those that failed."""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedjax_sim.launch.jobs import PAUSE, RESUME, SAVED, Job, Launcher
from fedjax_sim.lifecycle import PartError, is_terminal


def finish_jobs(
    launcher: Launcher, jobs: Sequence[Job], folder: Path, *, show: bool = True
) -> None:
    """Start jobs and wait until all have ended.

    Args:
      launcher: What starts them.
      jobs: The jobs.
      folder: A folder for the launcher's files.
      show: Whether to show their progress: lines that are kept up to date on a terminal, otherwise
        a line on the error stream when a job ends.

    Raises:
      PartError: If a job failed, or if this process was asked to end (SIGTERM, SIGUSR1): then the
        jobs were asked to save and end first, and the exit code is `SAVED`.
    """
    if not jobs:
        return
    with _signals() as received:
        running = launcher.start(jobs, folder)
        try:
            with contextlib.closing(Watch(jobs, enabled=show)) as watch:
                while None in (codes := running.poll()) and not received:
                    watch.update(codes)
                    time.sleep(PAUSE)
                watch.update(codes)
        finally:
            running.stop()
    if received:
        name = signal.Signals(received[0]).name
        raise PartError(f"{name} received; the parts have saved, --resume goes on.", SAVED)
    failed = [(job, code) for job, code in zip(jobs, codes, strict=True) if code]
    if failed:
        raise PartError(_described(failed), max(failed[0][1] or 1, 1))


def _described(failed: Sequence[tuple[Job, int | None]]) -> str:
    """Name the jobs that failed with their last lines, and say how to run the first again."""
    each = (
        f"{job.name} failed with exit code {code} ({job.last_line() or 'it printed nothing'})"
        for job, code in failed
    )
    again = shlex.join(failed[0][0].words())
    return f"{'; '.join(each)}; {RESUME} runs all that is unfinished, {failed[0][0].name}: {again}"


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGUSR1 in a list; only a process's main thread can."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    numbers = (signal.SIGTERM, signal.SIGUSR1)
    try:
        before = {number: signal.signal(number, note) for number in numbers}
    except ValueError:  # Raised outside of the main thread.
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Shows one line for each job: whether it waits, runs, has ended or failed, and how far it is.

    On a terminal the lines are kept up to date. Elsewhere a line is printed when a job ends.
    """

    def __init__(self, jobs: Sequence[Job], *, enabled: bool):
        """Prepare the lines.

        Args:
          jobs: The jobs.
          enabled: Whether to show anything.
        """
        self._jobs = jobs
        self._codes: list[int | None] = [None] * len(jobs)
        self._began = time.monotonic()
        self._console = Console(
            file=sys.stderr, quiet=not enabled or sys.stderr is None, soft_wrap=True
        )
        is_live = enabled and is_terminal(sys.stderr)
        self._live = Live(console=self._console, transient=True) if is_live else None
        if self._live:
            self._live.start()

    def close(self) -> None:
        """Take the lines that are kept up to date away."""
        if self._live:
            self._live.stop()

    def update(self, codes: Sequence[int | None]) -> None:
        """Show what has changed.

        Args:
          codes: The exit code of each job, None for one that has not ended.
        """
        for job, before, code in zip(self._jobs, self._codes, codes, strict=True):
            if before is None and code is not None:
                num_ended = sum(each is not None for each in codes)
                seconds = time.monotonic() - self._began
                self._console.print(
                    f"{job.name} {_state(code)} after {seconds:.0f} s "
                    f"({num_ended} of {len(codes)} have ended)",
                    highlight=False,
                )
        self._codes = list(codes)
        if self._live:
            table = Table(box=None, show_header=False, padding=(0, 2))
            for job, code in zip(self._jobs, codes, strict=True):
                table.add_row(job.name, _state(code), job.last_progress())
            self._live.update(table)


def _state(code: int | None) -> str:
    """Say how a job is, by its exit code."""
    if code is None:
        return "waits or runs"
    return "is done" if code == 0 else f"failed (exit code {code})"
