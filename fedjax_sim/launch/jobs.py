"""Parts as jobs, commands that run again until they are done, and the launchers that start them.

A launcher starts jobs and returns their exit codes as futures: `Local` in processes of this
machine, `Slurm` as an array job (by submitit), `Ray` as tasks. `finish_jobs` waits for them, shows
the progress of all, and names those that failed.
"""

import contextlib
import dataclasses
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.lifecycle import PartError
from fedjax_sim.engine.shares import check_num_parts

PATIENCE = 600
"""Seconds in which Slurm kills a job that it ends."""
RESUME = "--resume"
PAUSE = 0.2
"""Seconds between two looks at the jobs."""
SETTINGS_OF_JAX = ("JAX_", "XLA_", "FEDJAX_SIM_", "PYTHONPATH")
"""How variables begin that set JAX and this package, and that parts inherit on any machine."""


class Job(NamedTuple):
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
    environment: Mapping[str, str] = {}

    @property
    def log(self) -> Path:
        """The file that takes the command's output."""
        return self.folder.with_suffix(".log")

    @property
    def progress(self) -> Path:
        """The file in which the command says in one line how far it is."""
        return self.folder.with_suffix(".progress")

    def words(self) -> list[str]:
        """Return the command, with `--resume` if the part has begun."""
        has_begun = self.folder.is_dir() and any(self.folder.iterdir())
        return [*self.command, *([RESUME] if has_begun else [])]


def jobs_of(
    num_parts: int, within: Path, command: Callable[[str, Path], Sequence[str]]
) -> list[Job]:
    """List the jobs of a study in parts, each with its folder.

    Args:
      num_parts: Number of parts.
      within: The folder that holds the parts' folders.
      command: From a part, such as "0/4", and its folder to the words after Python's name.
    """
    inherited = {k: value for k, value in os.environ.items() if k.startswith(SETTINGS_OF_JAX)}
    jobs = []
    for number in range(num_parts):
        part, folder = f"{number}/{num_parts}", within.absolute() / f"{number}-of-{num_parts}"
        words = (sys.executable, "-u", *command(part, folder))  # Output is not held back.
        jobs.append(Job(f"part {part}", words, folder, Path.cwd(), inherited))
    return jobs


class Runner:
    """Runs a job's command until it is done, wherever a launcher calls this object."""

    def __init__(self, restarts: int):
        """Take how often a command is restarted after it was asked to end and has saved."""
        self.restarts, self.is_stopped = restarts, False
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, job: Job) -> int:
        """Run the command and return its exit code; its output goes to the job's log.

        On Linux the command is killed when this process ends, however that happens.
        """
        variables = {**os.environ, **job.environment, lifecycle.PARENT: str(os.getpid())}
        for _ in range(self.restarts + 1):
            with open(job.log, "ab", opener=lifecycle.open_own) as log:
                streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log}
                streams |= {"env": variables, "cwd": job.directory, "stderr": subprocess.STDOUT}
                self.process = process = subprocess.Popen(job.words(), **streams)
            try:
                if self.is_stopped:  # By another thread, before there was a process to stop.
                    process.terminate()
                # In short turns, between which Ray and signal handlers can interrupt.
                while process.poll() is None:
                    time.sleep(PAUSE)
            except BaseException:  # Ray cancels a task by a KeyboardInterrupt.
                process.terminate()
                process.wait()
                raise
            if process.returncode != lifecycle.STOPPED or self.is_stopped:
                break
        return process.returncode

    def stop(self) -> None:
        """Ask the command to save and end, for good."""
        self.is_stopped = True
        if self.process is not None:
            self.process.terminate()


Started = tuple[Sequence[Future[int]], Callable[[], object]]
"""The exit code of each job, and a function that asks all jobs at work to save and end."""


class Launcher:
    """Something that starts jobs, such as `Local`, `Slurm` and `Ray`."""

    def check(self) -> None:
        """Check that jobs can be started here, before anything is written.

        Raises:
          ConfigError: If the package that starts them is not installed.
          PartError: If they cannot for another reason.
        """

    def count(self) -> int:
        """Return a fitting number of parts if the user names none; clusters know of none."""
        return 4

    def count_parts(self, asked: int | None, within: Path, num_lanes: int, *, resume: bool) -> int:
        """Choose the number of parts: the one asked for, the earlier one, or a fitting one.

        Args:
          asked: The number that is asked for, if any.
          within: The folder that holds the parts' folders.
          num_lanes: Lanes of the study, the largest number of parts.
          resume: Whether an earlier attempt is resumed.

        Raises:
          ConfigError: If more parts are asked for than there are lanes.
        """
        earlier = [
            path.name.removeprefix("0-of-") for path in within.glob("0-of-*") if path.is_dir()
        ]
        if asked is None and resume and len(earlier) == 1:
            asked = int(earlier[0])
        num_parts = asked or min(self.count(), num_lanes)
        check_num_parts(num_parts, num_lanes)
        return num_parts

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        """Start jobs.

        Args:
          jobs: The jobs.
          folder: A folder for the launcher's files.

        Returns:
          The exit code of each job, which raises an error if the job was ended from outside; and a
          function that stops jobs, and waits for them if it can.
        """
        raise NotImplementedError


@settings.checked
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

    processes: settings.Count | None = None
    restarts: settings.Whole = 100

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
        return [name for name in shown.split(",") if name not in ("", "-1")]  # "-1" shows none.
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


@settings.checked
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

    timeout_min: settings.Count = 60
    signal_delay_s: settings.Whole = 120
    gpus: settings.Whole = 0
    cpus: settings.Count = 1
    mem_gb: settings.Above0 | None = None
    partition: str | None = None
    account: str | None = None
    at_once: settings.Count = 256
    restarts: settings.Whole = 100
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: Literal["slurm", "local"] = "slurm"

    def check(self) -> None:
        """Check that submitit and Slurm are there.

        Raises:
          ConfigError: If submitit is not installed.
          PartError: If there is no Slurm on this machine.
        """
        submitit = settings.load_extra("launcher", "slurm", "submitit")
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


@settings.checked
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

    num_cpus: settings.Above0 = 1.0
    num_gpus: settings.AtLeast0 = 0.0
    address: str | None = None
    restarts: settings.Whole = 100

    def check(self) -> None:
        """Start Ray, or connect with its cluster.

        Raises:
          ConfigError: If Ray is not installed.
          PartError: If the cluster cannot be reached.
        """
        ray = settings.load_extra("launcher", "ray", "ray")
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


def finish_jobs(
    launcher: Launcher, jobs: Sequence[Job], folder: Path, *, show: bool = True
) -> None:
    """Make the jobs' folders, start the jobs, and wait until all have ended.

    Args:
      launcher: What starts them.
      jobs: The jobs.
      folder: A folder for the launcher's files.
      show: Whether to show their progress: lines that are kept up to date on a terminal, and a
        line on the error stream when a job ends.

    Raises:
      ConfigError: If the launcher's package is not installed.
      PartError: If a job failed, or if a signal asked this process to end (SIGTERM, ...): then the
        jobs were asked to save and end first.
    """
    launcher.check()
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    is_quiet, shows = not show or sys.stderr is None, lifecycle.is_terminal(sys.stderr)
    console = Console(file=sys.stderr, quiet=is_quiet, force_terminal=shows, soft_wrap=True)
    endings: dict[str, tuple[int, str]] = {}
    began = time.monotonic()
    with lifecycle.listening(), lifecycle.deferring_stops():
        codes, stop = launcher.start(jobs, folder)
        try:
            with console.status("") as lines:
                while len(endings) < len(jobs) and not lifecycle.asked_to_stop():
                    left = [job for job in jobs if job.name not in endings]
                    shown = (f"{job.name}  waits or runs  {_text_of(job.progress)}" for job in left)
                    lines.update(Text("\n".join(map(str.strip, shown))))
                    time.sleep(PAUSE)
                    for job, code in zip(jobs, codes, strict=True):
                        if job.name not in endings and code.done():
                            number, _ = endings[job.name] = _ending(job, code)
                            how = f"failed (exit code {number})" if number else "is done"
                            after = f"after {time.monotonic() - began:.0f} s"
                            of_all = f"({len(endings)} of {len(jobs)} have ended)"
                            console.print(job.name, how, after, of_all, highlight=False)
        finally:
            stop()
        received = lifecycle.asked_to_stop()
    if received:
        name = signal.Signals(received).name
        sentence = f"{name} received; the parts have saved, --resume goes on."
        raise PartError(sentence, lifecycle.STOPPED)
    failed = [(job, *endings[job.name]) for job in jobs if endings[job.name][0]]
    if failed:
        sentences = [
            f"{job.name} failed with exit code {number} ({words or 'it printed nothing'})"
            for job, number, words in failed
        ]
        first, number, _ = failed[0]
        again = f"{first.name}: {shlex.join(first.words())}"
        sentences.append(f"{RESUME} runs all that is unfinished, {again}")
        raise PartError("; ".join(sentences), max(number, 1))


def _ending(job: Job, code: Future[int]) -> tuple[int, str]:
    """Return the exit code of a job that has ended, and the last line that it or its error says."""
    try:
        return code.result(), last_line(_text_of(job.log))
    except Exception as error:  # The launchers' packages raise their own and the job's.
        return 1, last_line(str(error)) or type(error).__name__


def _text_of(path: Path) -> str:
    """Read a job's log or progress, which it may not have begun."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty; "" if there is none."""
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip("- ")), "")
