"""Launchers: processes of this machine, an array job of Slurm (by submitit), tasks of Ray."""

import contextlib
import dataclasses
import importlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from fedjax_sim.core.lifecycle import PartError
from fedjax_sim.core.settings import Above0, AtLeast0, Count, Whole, checked
from fedjax_sim.launch.jobs import Job, Launcher, Runner, Started, last_line

PATIENCE = 600
"""Seconds in which Slurm kills a job that it ends."""


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
        places, here = _places(self.processes, len(jobs)), threading.local()

        def settle() -> None:
            cores, here.device = places.pop()
            if hasattr(os, "sched_setaffinity"):  # This thread's processes have its cores.
                os.sched_setaffinity(0, cores)

        def run(runner: Runner, job: Job) -> int:
            return runner(job._replace(environment={**job.environment, **here.device}))

        runners = [Runner(self.restarts) for _ in jobs]
        threads = ThreadPoolExecutor(len(places), initializer=settle)

        def stop() -> None:
            for runner in runners:
                runner.stop()
            threads.shutdown(cancel_futures=True)

        return [threads.submit(run, *each) for each in zip(runners, jobs, strict=True)], stop

    def count(self) -> int:
        """Return one part for each GPU, or for each core."""
        return self.processes or len(gpus()) or len(_cores())


def gpus() -> list[str]:
    """List the GPUs that processes started here may use, by the names that CUDA takes."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [name for name in shown.split(",") if name]
    found = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in found if name.isdigit()), key=int)


def _places(processes: int | None, num_jobs: int) -> list[tuple[list[int], dict[str, str]]]:
    """Divide the machine among processes, no more than jobs: cores, and the variable of a GPU."""
    devices, cores = gpus(), _cores()
    num = min(processes or len(devices) or len(cores), num_jobs)
    shares = [cores[len(cores) * i // num : len(cores) * (i + 1) // num] for i in range(num)]
    # More processes than cores share all cores.
    shares = shares if num <= len(cores) else [cores] * num
    shown = [{"CUDA_VISIBLE_DEVICES": name} for name in devices] or [{}]
    return list(zip(shares, itertools.cycle(shown), strict=False))


def _cores() -> list[int]:
    """List the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@checked
@dataclasses.dataclass(frozen=True)
class Slurm(Launcher):
    """An array job of Slurm with one task for each part.

    The results folder must be on a file system that all nodes share. Slurm signals a job
    `signal_delay_s` seconds before its time limit, and when it is preempted. The job then asks its
    run to save and end, and is put in the queue again; there it resumes.

    Attributes:
      timeout_min: Minutes after which Slurm ends a job.
      signal_delay_s: Seconds before that at which a run is asked to save; longer than the run needs
        from one chunk to the next.
      gpus: GPUs for each part.
      cpus: Cores for each part.
      mem_gb: Memory for each part in GB; Slurm's default if None.
      partition: Slurm's partition; its default if None.
      account: Slurm's account; its default if None.
      at_once: Most parts that run at one time.
      restarts: How often a part is put in the queue again after its time limit; preemptions do not
        count.
      options: Further parameters of `submitit.SlurmExecutor` by name, such as
        `{"qos": "long", "setup": ["module load cuda"]}`.
      cluster: "slurm", or "local" to run the same jobs as processes of this machine, by submitit's
        local executor.
    """

    timeout_min: Count = 60
    signal_delay_s: Whole = 120
    gpus: Whole = 0
    cpus: Count = 1
    mem_gb: Above0 | None = None
    partition: str | None = None
    account: str | None = None
    at_once: Count = 256
    restarts: Whole = 100
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: Literal["slurm", "local"] = "slurm"

    def check(self) -> None:
        """Check that submitit and Slurm are there.

        Raises:
          PartError: If submitit is not installed, or there is no Slurm on this machine.
        """
        submitit = _imported("submitit", "slurm")
        if self.cluster == "slurm" and submitit.SlurmExecutor.affinity() <= 0:
            raise PartError('launcher is "slurm", but there is no Slurm on this machine (srun).', 2)

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Submit an array job; its arguments are those of `Launcher.start`.

        Raises:
          PartError: If Slurm refuses the job.
        """
        import submitit

        limits = {f"{cluster}_max_num_timeout": self.restarts for cluster in ("slurm", "local")}
        executor = submitit.AutoExecutor(folder / "submitit" / "%j", self.cluster, **limits)
        executor.update_parameters(
            name="fedjax_sim",
            timeout_min=self.timeout_min,
            nodes=1,
            tasks_per_node=1,
            cpus_per_task=self.cpus,
            gpus_per_node=self.gpus or None,
            mem_gb=self.mem_gb,
            stderr_to_stdout=True,
            slurm_partition=self.partition,
            slurm_account=self.account,
            slurm_array_parallelism=self.at_once,
            # Slurm itself puts a job in the queue again whose node failed.
            slurm_additional_parameters={"requeue": True},
            **{f"slurm_{name}": value for name, value in self.options.items()},
        )
        executor.parameters["signal_delay_s"] = self.signal_delay_s
        try:
            submitted: Any = executor.map_array(SlurmTask(self.restarts), jobs)
        except RuntimeError as error:  # All errors of submitit are such.
            sentence = f"job is not accepted by Slurm ({last_line(str(error))})."
            raise PartError(sentence, 2) from None

        def stop() -> None:
            for each in submitted:
                if not each.done():
                    each.cancel(check=False)  # Slurm signals it, and it saves.

        return submitted, stop


class SlurmTask(Runner):
    """The function that submitit runs for each part.

    submitit calls `checkpoint` when Slurm has signalled the job, and puts the job in the queue
    again with the function and the arguments that this returns.
    """

    def __call__(self, job: Job) -> int:
        """Run a part's command until it is done; see `Runner`."""
        signal.signal(signal.SIGTERM, lambda number, frame: self.stop())
        code = super().__call__(job)
        if self.is_stopped:
            # Slurm ends all processes of this job, because somebody cancelled it or to put it in
            # the queue again. That is not decided here: a result would mean that the job is done.
            time.sleep(PATIENCE)
        return code

    def checkpoint(self, job: Job) -> Any:
        """Ask the run to save and end, and wait until it has."""
        from submitit.helpers import DelayedSubmission

        self.stop()
        if self.process is not None:
            # Not by `Popen.wait`: a signal handler calls this, which may have interrupted a method
            # of `Popen` while it held its lock. An error means that the process has ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.process.pid, 0)
        return DelayedSubmission(SlurmTask(self.restarts), job)


@checked
@dataclasses.dataclass(frozen=True)
class Ray(Launcher):
    """Tasks of a Ray cluster, one for each part.

    The results folder must be on a file system that all nodes share. If Ray runs in this process
    already, it is used as it is.

    Attributes:
      num_cpus: Cores that Ray reserves for each part.
      num_gpus: GPUs that Ray reserves for each part and shows it.
      address: The cluster's address, such as "auto"; None starts Ray on this machine.
      restarts: How often Ray runs a part again that ended with exit code 75 or whose node was lost.
    """

    num_cpus: Above0 = 1.0
    num_gpus: AtLeast0 = 0.0
    address: str | None = None
    restarts: Whole = 100

    def check(self) -> None:
        """Start Ray, or connect with its cluster.

        Raises:
          PartError: If Ray is not installed, or the cluster cannot be reached.
        """
        ray = _imported("ray", "ray")
        try:
            if not ray.is_initialized():
                ray.init(address=self.address, include_dashboard=False, log_to_driver=False)
        except ConnectionError as error:
            sentence = f"address is {self.address!r}, but no Ray cluster answers there"
            raise PartError(f"{sentence} ({error}).", 2) from None

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Start a task for each job; its arguments are those of `Launcher.start`."""
        import ray

        options = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        run = ray.remote(max_retries=self.restarts, **options)(lambda runner, job: runner(job))
        tasks = [run.remote(Runner(self.restarts), job) for job in jobs]
        codes = [task.future() for task in tasks]

        def stop() -> None:
            for task, code in zip(tasks, codes, strict=True):
                if not code.done():
                    ray.cancel(task)
            ray.wait(tasks, num_returns=len(tasks))

        return codes, stop


def _imported(package: str, launcher: str) -> Any:
    """Import the package of a launcher."""
    try:
        return importlib.import_module(package)
    except ImportError:
        sentence = f'launcher is "{launcher}", which needs {package}: '
        raise PartError(f'{sentence}pip install "fedjax-sim[{launcher}]".', 2) from None
