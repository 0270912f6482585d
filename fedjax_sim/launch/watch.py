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

from fedjax_sim.launch.jobs import PAUSE, RESUME, SAVED, Job, Launcher, last_line
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
    console = Console(file=sys.stderr, quiet=not show or sys.stderr is None, soft_wrap=True)
    live = Live(console=console, transient=True) if show and is_terminal(sys.stderr) else None
    codes: Sequence[int | None] = [None] * len(jobs)
    began = time.monotonic()
    with _signals() as received:
        running = launcher.start(jobs, folder)
        try:
            with live or contextlib.nullcontext():
                while None in codes and not received:
                    time.sleep(PAUSE)
                    before, codes = codes, running.poll()
                    _show_ended(console, jobs, before, codes, time.monotonic() - began)
                    if live is not None:
                        live.update(_table(jobs, codes))
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
        f"{job.name} failed with exit code {code} ({last_line(job.log) or 'it printed nothing'})"
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


def _show_ended(
    console: Console,
    jobs: Sequence[Job],
    before: Sequence[int | None],
    codes: Sequence[int | None],
    seconds: float,
) -> None:
    """Print a line for each job that has ended since the codes before."""
    num_ended = sum(code is not None for code in codes)
    for job, was, code in zip(jobs, before, codes, strict=True):
        if was is None and code is not None:
            console.print(
                f"{job.name} {_state(code)} after {seconds:.0f} s "
                f"({num_ended} of {len(codes)} have ended)",
                highlight=False,
            )


def _table(jobs: Sequence[Job], codes: Sequence[int | None]) -> Table:
    """Make a table with a line for each job: how it is, and how far."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for job, code in zip(jobs, codes, strict=True):
        table.add_row(job.name, _state(code), last_line(job.progress))
    return table


def _state(code: int | None) -> str:
    """Say how a job is, by its exit code."""
    if code is None:
        return "waits or runs"
    return "is done" if code == 0 else f"failed (exit code {code})"
