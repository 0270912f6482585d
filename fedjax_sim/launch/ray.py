"""Start parts as tasks of Ray."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.checking import Above0, AtLeast0, Whole, checked
from fedjax_sim.launch.jobs import SAVED, Job, start_job, wait_for
from fedjax_sim.lifecycle import PartError


@checked
@dataclasses.dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster, one for each part.

    The results folder must be on a file system that all nodes share. If Ray runs in this process
    already, it is used as it is.

    Attributes:
      num_cpus: Cores that Ray reserves for each part.
      num_gpus: GPUs that Ray reserves for each part and shows it.
      address: The cluster's address, such as "auto"; None starts Ray on this machine.
      restarts: How often a part is started again that ended with exit code 75, and how often Ray
        runs a task again whose node was lost.
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
        try:
            import ray
        except ImportError:
            raise PartError(
                'launcher is "ray", which is not installed: pip install "fedjax-sim[ray]".', 2
            ) from None
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, include_dashboard=False, log_to_driver=False)
            except ConnectionError as error:
                sentence = f"address is {self.address!r}, but no Ray cluster answers there"
                raise PartError(f"{sentence} ({error}).", 2) from None

    def start(self, jobs: Sequence[Job], folder: Path) -> "RayJobs":
        """Start a task for each job; its arguments are those of `Launcher.start`.

        Raises:
          PartError: As `check`.
        """
        self.check()
        import ray

        task, reserved = ray.remote(run_job), {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        options = {"max_retries": self.restarts, **reserved}
        return RayJobs(
            [task.options(name=job.name, **options).remote(job, self.restarts) for job in jobs]
        )

    def count(self) -> int:
        """Return 4: Ray says how large its cluster is only once it runs."""
        return 4


def run_job(job: Job, restarts: int) -> int:
    """Run a part's command in a Ray worker, again as long as it says that it has saved.

    Args:
      job: The part.
      restarts: How often it is started again.

    Returns:
      The exit code of the last run.
    """
    code = SAVED
    for _ in range(restarts + 1):
        process = start_job(job)
        try:
            code = wait_for(process)
        except BaseException:  # Ray cancels a task by a KeyboardInterrupt.
            process.terminate()
            process.wait()
            raise
        if code != SAVED:
            break
    return code


class RayJobs:
    """Tasks of Ray; see `Running`."""

    def __init__(self, tasks: Sequence[Any]):
        """Take the references to the tasks' results."""
        self._waiting = dict(enumerate(tasks))
        self._codes: list[int | None] = [None] * len(tasks)

    def poll(self) -> Sequence[int | None]:
        """Ask Ray which tasks have ended."""
        import ray

        waiting = dict(self._waiting)
        ended: Sequence[Any] = ()
        if waiting:
            ended, _ = ray.wait([*waiting.values()], num_returns=len(waiting), timeout=0)
        for number, task in waiting.items():
            if task in ended:
                self._codes[number] = self._code_of(self._waiting.pop(number))
        return list(self._codes)

    def stop(self) -> None:
        """Cancel the tasks that have not ended, and wait until their runs have saved."""
        import ray

        waiting = list(self._waiting.values())
        for task in waiting:
            ray.cancel(task)
        if waiting:
            ray.wait(waiting, num_returns=len(waiting))

    def _code_of(self, task: Any) -> int:
        """Return the exit code of a task that has ended; 1 if it was ended from outside."""
        import ray

        try:
            return ray.get(task)
        except (ray.exceptions.RayError, KeyboardInterrupt):
            return 1
