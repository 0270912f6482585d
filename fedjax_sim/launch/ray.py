"""Start parts as tasks of Ray."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedjax_sim.checking import Above0, AtLeast0, Whole, checked
from fedjax_sim.launch.jobs import SAVED, Futures, Job, start_job, wait_for
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

    def start(self, jobs: Sequence[Job], folder: Path) -> Futures:
        """Start a task for each job; its arguments are those of `Launcher.start`.

        Raises:
          PartError: As `check`.
        """
        self.check()
        import ray

        task = ray.remote(run_job).options(
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            max_retries=self.restarts,
            retry_exceptions=[SavedError],
        )
        tasks = [task.remote(job) for job in jobs]

        def stop(numbers: Sequence[int]) -> None:
            for number in numbers:
                ray.cancel(tasks[number])
            ray.wait(tasks, num_returns=len(tasks))

        return Futures(jobs, [each.future() for each in tasks], stop)

    def count(self) -> int:
        """Return 4: Ray says how large its cluster is only once it runs."""
        return 4


class SavedError(Exception):
    """A run that has saved and is to be resumed: Ray runs its task again."""


def run_job(job: Job) -> int:
    """Run a part's command in a Ray worker, and return its exit code.

    Raises:
      SavedError: If it says that it has saved.
    """
    process = start_job(job)
    try:
        code = wait_for(process)
    except BaseException:  # Ray cancels a task by a KeyboardInterrupt.
        process.terminate()
        process.wait()
        raise
    if code == SAVED:
        raise SavedError
    return code
