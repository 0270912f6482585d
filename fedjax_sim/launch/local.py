"""Start parts as processes of this machine, one for each device or group of cores."""

import dataclasses
import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedjax_sim.core.checking import Count, Whole, checked
from fedjax_sim.launch.jobs import Job, Launcher, Runner, Started


@checked
@dataclasses.dataclass(frozen=True)
class Local(Launcher):
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

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Start as many jobs as have a place; its arguments are those of `Launcher.start`."""
        free = queue.SimpleQueue[Place]()
        for place in (places := _places(self.processes, len(jobs))):
            free.put(place)
        runners, threads = [Runner(self.restarts) for _ in jobs], ThreadPoolExecutor(len(places))

        def run(runner: Runner, job: Job) -> int:
            place = free.get()
            if hasattr(os, "sched_setaffinity"):  # This thread's processes have its cores.
                os.sched_setaffinity(0, place.cores)
            try:
                return runner(job._replace(environment={**job.environment, **place.environment}))
            finally:
                free.put(place)

        def stop() -> None:
            for runner in runners:
                runner.stop()
            threads.shutdown(cancel_futures=True)

        return [threads.submit(run, *each) for each in zip(runners, jobs, strict=True)], stop

    def count(self) -> int:
        """Return one part for each GPU, or for each core."""
        return self.processes or len(gpus()) or len(_cores())


class Place(NamedTuple):
    """A share of the machine.

    Attributes:
      cores: Numbers of the cores that the process may use.
      environment: Variables that show it its device.
    """

    cores: frozenset[int]
    environment: Mapping[str, str] = MappingProxyType({})


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
