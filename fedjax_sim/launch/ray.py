"""Start parts as tasks of Ray."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedjax_sim.core.checking import Above0, AtLeast0, Whole, checked
from fedjax_sim.core.lifecycle import PartError
from fedjax_sim.launch.jobs import Job, Launcher, Runner, Started


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
