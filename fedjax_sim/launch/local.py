"""Start parts as processes of this machine, one for each device or group of cores."""

import dataclasses
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedjax_sim.checking import Count, Whole, checked
from fedjax_sim.launch.jobs import SAVED, Futures, Job, start_job


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

    def start(self, jobs: Sequence[Job], folder: Path) -> Futures:
        """Start as many jobs as have a place; its arguments are those of `Launcher.start`."""
        places, here = queue.SimpleQueue[Place](), threading.local()
        for place in (found := _places(self.processes, len(jobs))):
            places.put(place)
        lock, is_stopped = threading.Lock(), threading.Event()
        processes: list[subprocess.Popen[bytes]] = []

        def take_place() -> None:
            cores, here.environment = places.get()
            # This thread's processes have its cores.
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)

        def run(job: Job) -> int:
            code = SAVED
            for _ in range(self.restarts + 1):
                with lock:
                    if is_stopped.is_set():
                        break
                    process = start_job(job, here.environment)
                    processes.append(process)
                code = process.wait()
                if code != SAVED:
                    break
            return code

        def stop(_: Sequence[int]) -> None:
            with lock:
                is_stopped.set()
                for process in processes:
                    process.terminate()
            threads.shutdown(cancel_futures=True)

        threads = ThreadPoolExecutor(len(found), initializer=take_place)
        return Futures(jobs, [threads.submit(run, job) for job in jobs], stop)

    def check(self) -> None:
        """Return: processes can be started anywhere."""

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
