"""Start parts as an array job of Slurm, through submitit.

Slurm signals a job `signal_delay_s` seconds before its time limit, and when it is preempted. The
job then asks its run to save and end, and is put in the queue again; there it resumes.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedjax_sim.checking import Above0, Count, Whole, checked
from fedjax_sim.launch.jobs import SAVED, Futures, Job, last_words, start_job, wait_for
from fedjax_sim.lifecycle import PartError

PATIENCE = 600
"""Seconds in which Slurm kills a job that it ends."""


@checked
@dataclasses.dataclass(frozen=True)
class Slurm:
    """An array job of Slurm with one task for each part.

    The results folder must be on a file system that all nodes share.

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
        try:
            import submitit
        except ImportError:
            raise PartError(
                'launcher is "slurm", which needs submitit: pip install "fedjax-sim[slurm]".', 2
            ) from None
        if self.cluster == "slurm" and submitit.SlurmExecutor.affinity() <= 0:
            raise PartError('launcher is "slurm", but there is no Slurm on this machine (srun).', 2)

    def start(self, jobs: Sequence[Job], folder: Path) -> Futures:
        """Submit an array job; its arguments are those of `Launcher.start`.

        Raises:
          PartError: If submitit is not installed, if there is no Slurm on this machine, or if it
            refuses the job.
        """
        self.check()
        executor = self._executor(folder / "submitit" / "%j")
        try:
            submitted = executor.map_array(SlurmTask(), list(jobs))
        except RuntimeError as error:  # All errors of submitit are such.
            raise PartError(f"job is not accepted by Slurm ({last_words(error)}).", 2) from None

        def stop(numbers: Sequence[int]) -> None:
            for number in numbers:  # Slurm signals them, and they save.
                submitted[number].cancel(check=False)

        return Futures(jobs, submitted, stop)

    def _executor(self, logs: Path) -> Any:
        """Make submitit's executor, with the resources of this launcher."""
        import submitit

        common: dict[str, Any] = {"signal_delay_s": self.signal_delay_s, "stderr_to_stdout": True}
        executor: Any
        if self.cluster == "local":
            executor = submitit.LocalExecutor(logs, max_num_timeout=self.restarts)
            executor.update_parameters(
                timeout_min=self.timeout_min, gpus_per_node=self.gpus, **common
            )
            return executor
        executor = submitit.SlurmExecutor(logs, max_num_timeout=self.restarts)
        given = {
            "gpus_per_node": self.gpus or None,
            "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}MB",
            "partition": self.partition,
            "account": self.account,
        }
        executor.update_parameters(
            job_name="fedjax_sim",
            time=self.timeout_min,
            nodes=1,
            ntasks_per_node=1,
            cpus_per_task=self.cpus,
            array_parallelism=self.at_once,
            **common,
            **{name: value for name, value in given.items() if value is not None},
            # Slurm itself puts a job in the queue again whose node failed.
            **{"additional_parameters": {"requeue": True}, **self.options},
        )
        return executor

    def count(self) -> int:
        """Return 4: a cluster says nothing about a fitting number."""
        return 4


class SlurmTask:
    """The function that submitit runs for each part: the part's command, until it is done.

    submitit calls `checkpoint` when Slurm has signalled the job, and puts the job in the queue
    again with what it returns.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, job: Job) -> int:
        """Run a part's command and return its exit code."""
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
        self._process = start_job(job)
        try:
            code = wait_for(self._process)
        except BaseException:
            self._process.terminate()
            raise
        if code == SAVED and ended:
            # Slurm ends all processes of this job, because somebody cancelled it or to put it in
            # the queue again. That is not decided here: a result would mean that the job is done.
            time.sleep(PATIENCE)
        elif code == SAVED:
            # Only the run was signalled. This process now takes the way of a job that was
            # signalled, which ends in the queue.
            import submitit

            os.kill(os.getpid(), getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}"))
            time.sleep(PATIENCE)
        return code

    def checkpoint(self, job: Job) -> Any:
        """Ask the run to save and end; return what is to run next."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None and self._process.returncode is None:
            # Not by methods of Popen: a signal handler calls this, which may have interrupted one
            # of them while it held its lock. Errors mean that the process has ended.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process.pid, signal.SIGTERM)
                os.waitpid(self._process.pid, 0)
        return DelayedSubmission(SlurmTask(), job)
