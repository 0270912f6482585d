"""Start parts as an array job of Slurm, through submitit.

Slurm signals a job `signal_delay_s` seconds before its time limit, and when it is preempted. The
job then asks its run to save and end, and is put in the queue again; there it resumes.
"""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedjax_sim.core.checking import Above0, Count, Whole, checked
from fedjax_sim.core.lifecycle import PartError
from fedjax_sim.launch.jobs import Job, Launcher, Runner, Started, last_line

PATIENCE = 600
"""Seconds in which Slurm kills a job that it ends."""


@checked
@dataclasses.dataclass(frozen=True)
class Slurm(Launcher):
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

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Submit an array job; its arguments are those of `Launcher.start`.

        Raises:
          PartError: If Slurm refuses the job.
        """
        import submitit

        kind = submitit.LocalExecutor if self.cluster == "local" else submitit.SlurmExecutor
        executor: Any = kind(folder / "submitit" / "%j", max_num_timeout=self.restarts)
        parameters: dict[str, Any] = {
            "signal_delay_s": self.signal_delay_s,
            "gpus_per_node": self.gpus,
            "stderr_to_stdout": True,
        }
        if self.cluster == "local":
            parameters["timeout_min"] = self.timeout_min
        else:
            parameters |= {
                "job_name": "fedjax_sim",
                "time": self.timeout_min,
                "nodes": 1,
                "ntasks_per_node": 1,
                "cpus_per_task": self.cpus,
                "gpus_per_node": self.gpus or None,
                "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}MB",
                "partition": self.partition,
                "account": self.account,
                "array_parallelism": self.at_once,
                # Slurm itself puts a job in the queue again whose node failed.
                "additional_parameters": {"requeue": True},
                **self.options,
            }
        executor.update_parameters(**parameters)
        try:
            submitted = executor.map_array(SlurmTask(self.restarts), jobs)
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
