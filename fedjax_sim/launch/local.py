"""Start parts as processes of this machine, one for each device or group of cores."""

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedjax_sim.checking import Count, Whole, checked
from fedjax_sim.launch.jobs import SAVED, Job, start_job


@checked
@dataclasses.dataclass(frozen=True)
class Local:
    """Processes on this machine.

    On a machine with GPUs each process gets one of them, otherwise an equal share of the cores.
    Parts that find no place wait for another to end.

    Attributes:
      processes: Processes at one time; None for one per GPU, or one per core if there are fewer
        cores than parts.
      restarts: How often a part is started again that ended with exit code 75: asked to end, and
        saved.
    """

    processes: Count | None = None
    restarts: Whole = 100

    def start(self, jobs: Sequence[Job], folder: Path) -> "LocalJobs":
        """Start as many jobs as have a place; its arguments are those of `Launcher.start`."""
        return LocalJobs(jobs, _places(self.processes, len(jobs)), self.restarts)

    def check(self) -> None:
        """Return: processes can be started anywhere."""

    def count(self) -> int:
        """Return one part for each GPU, or for each core."""
        return self.processes or len(gpus()) or len(_cores())


@dataclasses.dataclass(frozen=True)
class Place:
    """A share of the machine.

    Attributes:
      cores: Numbers of the cores that the process may use.
      environment: Variables that show it its device.
    """

    cores: frozenset[int]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class LocalJobs:
    """Jobs that run as processes of this machine; see `Running`."""

    def __init__(self, jobs: Sequence[Job], places: Sequence[Place], restarts: int):
        """Begin with the first jobs.

        Args:
          jobs: The jobs.
          places: Places, one process in each.
          restarts: How often a job is started again that ended with `SAVED`.
        """
        self._jobs, self._free = jobs, list(places)
        self._waiting = list(range(len(jobs)))
        self._left = [restarts] * len(jobs)
        self._codes: list[int | None] = [None] * len(jobs)
        self._running: dict[int, tuple[subprocess.Popen[bytes], Place]] = {}
        self._fill()

    def poll(self) -> Sequence[int | None]:
        """Start jobs where others have ended, and return the exit codes."""
        for number, (process, place) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[number]
            self._free.append(place)
            if code == SAVED and self._left[number]:
                self._left[number] -= 1
                self._waiting.append(number)
            else:
                self._codes[number] = code
        self._fill()
        return list(self._codes)

    def stop(self) -> None:
        """Send SIGTERM to all processes and wait for them."""
        self._waiting.clear()
        for process, _ in self._running.values():
            process.terminate()
        for number, (process, _) in self._running.items():
            self._codes[number] = process.wait()
        self._running.clear()

    def _fill(self) -> None:
        """Start waiting jobs while there are free places."""
        while self._waiting and self._free:
            number, place = self._waiting.pop(0), self._free.pop(0)
            with _on_cores(place.cores):
                process = start_job(self._jobs[number], place.environment)
            self._running[number] = process, place


def gpus() -> list[str]:
    """List the GPUs that processes started here may use, by the names that CUDA takes."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [name for name in shown.split(",") if name]
    found = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in found if name.isdigit()), key=int)


def _places(processes: int | None, num_jobs: int) -> list[Place]:
    """Divide the machine among processes, no more of them than jobs."""
    devices, cores = gpus(), _cores()
    num = min(processes or len(devices) or len(cores), num_jobs)
    places = []
    for i in range(num):
        share = cores[len(cores) * i // num : len(cores) * (i + 1) // num]
        shown = {"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {}
        # More processes than cores share all cores.
        places.append(Place(frozenset(share if num <= len(cores) else cores), shown))
    return places


def _cores() -> list[int]:
    """List the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def _on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Let processes that are started in a `with` statement use these cores only."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
