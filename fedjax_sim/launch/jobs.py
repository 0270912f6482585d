"""A part as a job, a command that is run again until it is done; shared by all launchers.

A launcher starts jobs and says how they ended; `fedjax_sim.launch.watch` waits for them, shows the
progress of all, and names those that failed.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedjax_sim.lifecycle import PARENT, open_own

SAVED = 75
"""Exit code of a run that was asked to end, saved what it had, and can be resumed."""
RESUME = "--resume"
PAUSE = 0.2
"""Seconds between two looks at the jobs."""


@dataclasses.dataclass(frozen=True)
class Job:
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
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The file that takes the command's output."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def progress(self) -> Path:
        """The file in which the command says in one line how far it is."""
        return self.folder.with_name(f"{self.folder.name}.progress")

    def words(self) -> list[str]:
        """Return the command, with `--resume` if the part has begun."""
        has_begun = self.folder.is_dir() and any(self.folder.iterdir())
        return [*self.command, *([RESUME] if has_begun else [])]


def jobs_of(
    num_parts: int, within: Path, command: Callable[[str, Path], Sequence[str]]
) -> list[Job]:
    """List the jobs of a study in parts, each with a folder of its own.

    Args:
      num_parts: Number of parts.
      within: The folder that holds the parts' folders.
      command: From a part, such as "0/4", and its folder to the words after Python's name.
    """
    known = ("JAX_", "XLA_", "FEDJAX_SIM_", "PYTHONPATH")  # How JAX and this package are set.
    inherited = {name: value for name, value in os.environ.items() if name.startswith(known)}
    jobs = []
    for number in range(num_parts):
        part, folder = f"{number}/{num_parts}", within.absolute() / f"{number}-of-{num_parts}"
        words = (sys.executable, "-u", *command(part, folder))  # Output is not held back.
        jobs.append(Job(f"part {part}", words, folder, Path.cwd(), inherited))
    return jobs


def start_job(job: Job, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a job's command as a process of this machine; its output goes to the job's log.

    On Linux the process is killed when this one ends, however that happens.

    Args:
      job: The job.
      environment: Further variables, such as the devices that it may use.
    """
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    ends_with = {PARENT: str(os.getpid())}
    variables = {**os.environ, **job.environment, **(environment or {}), **ends_with}
    with open(job.log, "ab", opener=open_own) as log:
        return subprocess.Popen(
            job.words(),
            cwd=job.directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process in short turns, between which Ray and signal handlers can interrupt."""
    while (code := process.poll()) is None:
        time.sleep(PAUSE)
    return code


def last_line(path: Path) -> str:
    """Return the last line of a job's log or progress that is not empty; "" if there is none."""
    with contextlib.suppress(OSError):
        return _last_of(path.read_text(encoding="utf-8", errors="replace"))
    return ""


def _last_of(text: str) -> str:
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip("- ")), "")


class Running(Protocol):
    """Jobs that a launcher has started."""

    def poll(self) -> Sequence[int | None]:
        """Return the exit code of each job, None for one that has not ended."""

    def stop(self) -> None:
        """Ask all jobs to save and end, and wait until they have."""


class Futures:
    """Jobs whose exit codes are futures; see `Running`."""

    def __init__(
        self,
        jobs: Sequence[Job],
        futures: Sequence[Any],
        stop: Callable[[Sequence[int]], object],
    ):
        """Take the jobs, and their exit codes in the same order.

        Args:
          jobs: The jobs.
          futures: Objects with the methods `done` and `result`.
          stop: Stops the jobs of these numbers, which have not ended.
        """
        self._jobs, self._futures, self._stop = jobs, futures, stop
        self._codes: list[int | None] = [None] * len(jobs)

    def poll(self) -> Sequence[int | None]:
        """Return the exit codes of jobs that have ended."""
        for number, future in enumerate(self._futures):
            if self._codes[number] is None and future.done():
                self._codes[number] = self._code_of(number)
        return list(self._codes)

    def stop(self) -> None:
        """Stop the jobs that have not ended."""
        self._stop([number for number, code in enumerate(self.poll()) if code is None])

    def _code_of(self, number: int) -> int:
        """Return the exit code of a job that has ended; 1 if it was ended from outside.

        What is then known of it is added to the job's log, so that it is the job's last line.
        """
        try:
            return self._futures[number].result()
        except Exception as error:  # The launchers' packages raise their own and the job's.
            with open(self._jobs[number].log, "a", encoding="utf-8", opener=open_own) as file:
                file.write(f"{last_words(error)}\n")
            return 1


def last_words(error: Exception) -> str:
    """Return the last line of an error's message, or else its name."""
    return _last_of(str(error)) or type(error).__name__


class Launcher(Protocol):
    """Something that starts jobs, such as `Local`, `Slurm` and `Ray`."""

    def start(self, jobs: Sequence[Job], folder: Path) -> Running:
        """Start jobs.

        Args:
          jobs: The jobs.
          folder: A folder for the launcher's files.

        Returns:
          The jobs that were started, to wait for.
        """

    def check(self) -> None:
        """Check that jobs can be started here, before anything is written.

        Raises:
          PartError: If they cannot, such as without the package that starts them.
        """

    def count(self) -> int:
        """Return a fitting number of parts if the user names none."""
