"""A part as a job: a command that is run again until it is done, and the wait for all of them.

A launcher starts jobs and returns their exit codes as futures. `finish_jobs` waits for them, shows
the progress of all, and names those that failed.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import PartError
from fedjax_sim.engine.shares import check_num_parts

RESUME = "--resume"
PAUSE = 0.2
"""Seconds between two looks at the jobs."""
SETTINGS_OF_JAX = ("JAX_", "XLA_", "FEDJAX_SIM_", "PYTHONPATH")
"""How variables begin that set JAX and this package, and that parts inherit on any machine."""


class Job(NamedTuple):
    """A part of a study as a command.

    Attributes:
      name: What messages call it, such as "part 2/4".
      command: The command's words. `--resume` is added if the part's folder has something in it.
      folder: Folder that the command writes to, absolute.
      directory: Folder in which the command runs.
      environment: Variables that are set for it.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    directory: Path
    environment: Mapping[str, str] = {}

    @property
    def log(self) -> Path:
        """The file that takes the command's output."""
        return self.folder.with_suffix(".log")

    @property
    def progress(self) -> Path:
        """The file in which the command says in one line how far it is."""
        return self.folder.with_suffix(".progress")

    def words(self) -> list[str]:
        """Return the command, with `--resume` if the part has begun."""
        has_begun = self.folder.is_dir() and any(self.folder.iterdir())
        return [*self.command, *([RESUME] if has_begun else [])]


def jobs_of(
    num_parts: int, within: Path, command: Callable[[str, Path], Sequence[str]]
) -> list[Job]:
    """List the jobs of a study in parts, each with its folder.

    Args:
      num_parts: Number of parts.
      within: The folder that holds the parts' folders.
      command: From a part, such as "0/4", and its folder to the words after Python's name.
    """
    inherited = {k: value for k, value in os.environ.items() if k.startswith(SETTINGS_OF_JAX)}
    jobs = []
    for number in range(num_parts):
        part, folder = f"{number}/{num_parts}", within.absolute() / f"{number}-of-{num_parts}"
        words = (sys.executable, "-u", *command(part, folder))  # Output is not held back.
        jobs.append(Job(f"part {part}", words, folder, Path.cwd(), inherited))
    return jobs


class Runner:
    """Runs a job's command until it is done, wherever a launcher calls this object."""

    def __init__(self, restarts: int):
        """Take how often a command runs again that was asked to end and has saved."""
        self.restarts, self.is_stopped = restarts, False
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, job: Job) -> int:
        """Run the command and return its exit code; its output goes to the job's log.

        On Linux the command is killed when this process ends, however that happens.
        """
        variables = {**os.environ, **job.environment, lifecycle.PARENT: str(os.getpid())}
        for _ in range(self.restarts + 1):
            with open(job.log, "ab", opener=lifecycle.open_own) as log:
                self.process = process = subprocess.Popen(
                    job.words(),
                    cwd=job.directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            try:
                if self.is_stopped:  # By another thread, before there was a process to stop.
                    process.terminate()
                # In short turns, between which Ray and signal handlers can interrupt.
                while process.poll() is None:
                    time.sleep(PAUSE)
            except BaseException:  # Ray cancels a task by a KeyboardInterrupt.
                process.terminate()
                process.wait()
                raise
            if process.returncode != lifecycle.STOPPED or self.is_stopped:
                break
        return process.returncode

    def stop(self) -> None:
        """Ask the command to save and end, for good."""
        self.is_stopped = True
        if self.process is not None:
            self.process.terminate()


Started = tuple[Sequence[Future[int]], Callable[[], object]]
"""The exit code of each job, and a function that asks all jobs at work to save and end."""


class Launcher:
    """Something that starts jobs, such as `Local`, `Slurm` and `Ray`."""

    def check(self) -> None:
        """Check that jobs can be started here, before anything is written.

        Raises:
          PartError: If they cannot, such as without the package that starts them.
        """

    def count(self) -> int:
        """Return a fitting number of parts if the user names none; clusters know of none."""
        return 4

    def count_parts(self, asked: int | None, within: Path, num_lanes: int, *, resume: bool) -> int:
        """Choose the number of parts: the one asked for, the earlier one, or a fitting one.

        Args:
          asked: The number that is asked for, if any.
          within: The folder that holds the parts' folders.
          num_lanes: Lanes of the study, the largest number of parts.
          resume: Whether an earlier attempt is resumed.

        Raises:
          ConfigError: If more parts are asked for than there are lanes.
        """
        earlier = [
            path.name.removeprefix("0-of-") for path in within.glob("0-of-*") if path.is_dir()
        ]
        if asked is None and resume and len(earlier) == 1:
            asked = int(earlier[0])
        num_parts = asked or min(self.count(), num_lanes)
        check_num_parts(num_parts, num_lanes)
        return num_parts

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Start jobs.

        Args:
          jobs: The jobs.
          folder: A folder for the launcher's files.

        Returns:
          The exit code of each job, which raises an error if the job was ended from outside; and a
          function that stops jobs, and waits for them if it can.
        """
        raise NotImplementedError


def finish_jobs(
    launcher: Launcher, jobs: Sequence[Job], folder: Path, *, show: bool = True
) -> None:
    """Make the jobs' folders, start the jobs, and wait until all have ended.

    Args:
      launcher: What starts them.
      jobs: The jobs.
      folder: A folder for the launcher's files.
      show: Whether to show their progress: lines that are kept up to date on a terminal, and a
        line on the error stream when a job ends.

    Raises:
      PartError: If a job failed, or if a signal asked this process to end (SIGTERM, ...): then the
        jobs were asked to save and end first.
    """
    launcher.check()
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    console = Console(
        file=sys.stderr,
        quiet=not show or sys.stderr is None,
        force_terminal=lifecycle.is_terminal(sys.stderr),
        soft_wrap=True,
    )
    endings: dict[str, tuple[int, str]] = {}
    began = time.monotonic()
    with lifecycle.listening(), lifecycle.deferring_stops():
        codes, stop = launcher.start(jobs, folder)
        try:
            with console.status("") as lines:
                while len(endings) < len(jobs) and not lifecycle.asked_to_stop():
                    at_work = [job for job in jobs if job.name not in endings]
                    shown = [
                        f"{job.name}  waits or runs  {_text_of(job.progress)}" for job in at_work
                    ]
                    lines.update(Text("\n".join(map(str.strip, shown))))
                    time.sleep(PAUSE)
                    for job, code in zip(jobs, codes, strict=True):
                        if job.name not in endings and code.done():
                            number, _ = endings[job.name] = _ending(job, code)
                            how = f"failed (exit code {number})" if number else "is done"
                            after = f"after {time.monotonic() - began:.0f} s"
                            of_all = f"({len(endings)} of {len(jobs)} have ended)"
                            console.print(job.name, how, after, of_all, highlight=False)
        finally:
            stop()
        received = lifecycle.asked_to_stop()
    if received:
        name = signal.Signals(received).name
        sentence = f"{name} received; the parts have saved, --resume goes on."
        raise PartError(sentence, lifecycle.STOPPED)
    failed = [(job, *endings[job.name]) for job in jobs if endings[job.name][0]]
    if failed:
        sentences = [
            f"{job.name} failed with exit code {number} ({words or 'it printed nothing'})"
            for job, number, words in failed
        ]
        first, number, _ = failed[0]
        again = f"{first.name}: {shlex.join(first.words())}"
        sentences.append(f"{RESUME} runs all that is unfinished, {again}")
        raise PartError("; ".join(sentences), max(number, 1))


def _ending(job: Job, code: Future[int]) -> tuple[int, str]:
    """Return the exit code of a job that has ended, and the last line that it or its error says."""
    try:
        return code.result(), last_line(_text_of(job.log))
    except Exception as error:  # The launchers' packages raise their own and the job's.
        return 1, last_line(str(error)) or type(error).__name__


def _text_of(path: Path) -> str:
    """Read a job's log or progress, which it may not have begun."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty; "" if there is none."""
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip("- ")), "")
