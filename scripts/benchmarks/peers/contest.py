"""Start workers, let them take turns, and keep what they measured.

Every contestant is measured in up to three settings: one run on one core; one run on all cores, in
whatever way the contestant uses them; and as many runs at a time as there are cores, which is what
a sweep needs. For the third, this engine makes the runs in one process, and the others in one
process per core. Flower has one process per core anyway and makes the runs of a sweep one by one.
"""

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .workloads import WORKLOADS, Workload, job_of, mean_loss, round_operations

WORKERS = Path(__file__).resolve().parent.parent / "peer_workers"
ROOT = WORKERS.parents[2]
ONE_CORE, ONE_RUN, RUN_PER_CORE = "one core", "all cores, one run", "all cores, a run per core"
PATIENCE = 400.0
"""Seconds after which a worker that says nothing is stopped."""


class Contestant(NamedTuple):
    """Somebody who runs workloads.

    Attributes:
      worker: Name of the script `run_NAME.py` in the folder of workers, and of the environment.
      mode: Given to the worker.
      kind: Which number of rounds makes a turn; see `Workload.timed`.
      workloads: Names of the workloads that it runs.
      settings: Settings that it is measured in.
      is_own: Whether it runs in this Python, without an environment of its own.
      is_apart: Whether it has its turns after all others, because it never rests.
    """

    worker: str
    mode: str = ""
    kind: str = "loop"
    workloads: tuple[str, ...] = ("a", "b", "c", "d")
    settings: tuple[str, ...] = (ONE_CORE, ONE_RUN, RUN_PER_CORE)
    is_own: bool = False
    is_apart: bool = False


ENGINE = "this engine"
CONTESTANTS = {
    ENGINE: Contestant("engine", kind="scan", workloads=tuple(WORKLOADS), is_own=True),
    "plain JAX, vmap": Contestant("plain", "vmap", "scan", ("a", "b", "c"), is_own=True),
    "plain JAX, map": Contestant("plain", "map", "scan", ("a", "b", "c"), is_own=True),
    "plain JAX, unrolled": Contestant("plain", "unrolled", "loop", ("d",), is_own=True),
    "plain JAX, vmap over runs": Contestant(
        "plain", "vmap lanes", "scan", ("b64",), (ONE_CORE, RUN_PER_CORE), is_own=True
    ),
    "FedJAX": Contestant("fedjax"),
    "torch loop": Contestant("torch"),
    "pfl": Contestant("pfl"),
    "FLSim": Contestant("flsim", kind="slow"),
    "Flower": Contestant("flower", kind="slow", settings=(ONE_CORE, ONE_RUN), is_apart=True),
}


class WorkerError(Exception):
    """A worker failed, ended or said nothing for too long."""


class Worker:
    """A worker's process.

    Args:
      python: The interpreter.
      script: Name of the script in the folder of workers.
      job: The job; see `peer_workers/protocol.py`.
      cores: Numbers of the cores that it may use.
      folder: Folder for its job and what it prints.
    """

    def __init__(
        self, python: Path, script: str, job: Mapping[str, Any], cores: Sequence[int], folder: Path
    ) -> None:
        """Start the process."""
        name = f"{script}_{len(list(folder.iterdir()))}"
        path, self._log = folder / f"{name}.json", folder / f"{name}.log"
        path.write_text(json.dumps(job))
        is_own = str(python) == sys.executable
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
        } | {
            "JAX_PLATFORMS": "cpu",
            # A cache that is empty at first, so that a first call is a first call.
            "FEDJAX_SIM_CACHE": str(folder / "compiled"),
            "PYTHONPATH": str(ROOT) if is_own else "",
            "OMP_NUM_THREADS": str(len(cores)),
            "OPENBLAS_NUM_THREADS": str(len(cores)),
            "MKL_NUM_THREADS": str(len(cores)),
        }
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # A new process inherits it.
        self._began = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                [str(python), str(WORKERS / f"run_{script}.py"), str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log.open("w"),
                text=True,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, before)

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait for the line that says it is ready, and add the seconds it took."""
        return self.hear() | {"start_seconds": time.perf_counter() - self._began}

    def tell(self, rounds: int, save: Path | None = None) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        command = {"rounds": rounds, "save": None if save is None else str(save)}
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None

    def hear(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
          WorkerError: If the worker says that it failed, has ended, or says nothing.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise WorkerError(f"no answer within {PATIENCE:.0f} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def run(self, rounds: int, save: Path | None = None) -> float:
        """Run some rounds and return the seconds they took."""
        self.tell(rounds, save)
        return float(self.hear()["seconds"])

    def close(self) -> None:
        """End the process and those that it started."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        return ([line for line in lines if line] or ["it ended without a word"])[-1][:200]


class Entry:
    """A contestant's workers for one workload, and the rates that they reached.

    Args:
      contestant: The contestant.
      python: Its interpreter.
      workload: The workload.
      arrays: The file of shared arrays.
      cores: Cores to use.
      folder: Folder for files.
    """

    def __init__(
        self,
        contestant: Contestant,
        python: Path,
        workload: Workload,
        arrays: Path,
        cores: Sequence[int],
        folder: Path,
    ) -> None:
        """Prepare, but start nothing."""
        self._contestant, self._workload = contestant, workload
        self._rounds = workload.timed[contestant.kind]
        self._model = folder / "model.npz"
        self._teams: dict[str, list[Worker]] = {}
        self._workers: list[Worker] = []
        self.rates: dict[str, list[float]] = {}
        self.facts: dict[str, Any] = {}
        self._cores = cores
        self._runs: dict[str, int] = {}

        def worker(cores: Sequence[int], lanes: int) -> Worker:
            job = job_of(
                workload,
                arrays=str(arrays),
                cores=len(cores),
                mode=contestant.mode,
                lanes=lanes,
            )
            self._workers.append(Worker(python, contestant.worker, job, cores, folder))
            return self._workers[-1]

        self._start = worker

    def prepare(self) -> None:
        """Start all workers, let them compile, and keep the model of the first one's first run."""
        lanes, num_rates = self._workload.lanes, max(1, len(self._workload.rates))
        num = len(self._cores)
        settings = [each for each in self._contestant.settings if num > 1 or each == ONE_CORE]
        alone = self._start(self._cores[-1:], lanes)
        ready = alone.wait_until_ready()
        first = alone.run(self._workload.rounds, self._model)
        self.facts = {
            "versions": ready["versions"],
            "note": ready["note"],
            "start_seconds": ready["start_seconds"],
            "first_seconds": first,
        }
        self._teams[ONE_CORE], self._runs[ONE_CORE] = [alone], lanes
        if ONE_RUN in settings and lanes == 1:
            self._teams[ONE_RUN], self._runs[ONE_RUN] = [self._start(self._cores, 1)], 1
        if RUN_PER_CORE in settings:
            if self._contestant.worker == "engine":
                team = [self._start(self._cores, max(lanes, num))]
            elif lanes == 1:
                team = [alone, *(self._start([core], 1) for core in self._cores[:-1])]
            else:
                share = num_rates * -(-lanes // (num_rates * num))
                team = [self._start([core], share) for core in self._cores]
            self._teams[RUN_PER_CORE] = team
            self._runs[RUN_PER_CORE] = (
                max(lanes, num) if team[0] is not alone and len(team) == 1 else num
            )
            if lanes > 1 and len(team) > 1:
                self._runs[RUN_PER_CORE] = share * num
        for each in self._workers[1:]:
            each.wait_until_ready()
        # The rounds of a turn are another program where all of them are compiled together.
        is_whole = self._contestant.kind == "scan"
        warm = [] if not is_whole or self._rounds == self._workload.rounds else [alone]
        warm += self._workers[1:]
        for each in warm:
            each.tell(self._rounds if is_whole else 1)
        for each in warm:
            each.hear()

    def model(self) -> list[np.ndarray]:
        """Read the model of the first run."""
        with np.load(self._model) as file:
            return [file[f"layer_{i}"] for i in range(len(file.files))]

    def turn(self) -> None:
        """Measure each setting once, in rounds of all runs per second."""
        for setting, team in self._teams.items():
            for each in team:
                each.tell(self._rounds)
            seconds = max(float(each.hear()["seconds"]) for each in team)
            rate = self._rounds * self._runs[setting] / seconds
            self.rates.setdefault(setting, []).append(rate)

    def close(self) -> None:
        """End all workers."""
        for each in self._workers:
            each.close()
        self._workers = []


def measure_limits(cores: Sequence[int], folder: Path) -> dict[str, dict[str, float]]:
    """Measure what the machine can do, on one core and on all.

    Returns:
      By setting: "product GFLOP/s" and "copy GB/s".
    """
    limits = {}
    for name, those in ((ONE_CORE, cores[-1:]), ("all cores", cores)):
        job = job_of(WORKLOADS["a"], arrays="", cores=len(those), mode="", lanes=1)
        worker = Worker(Path(sys.executable), "limits", job, those, folder)
        try:
            worker.wait_until_ready()
            worker.tell(0)
            answer = worker.hear()
        finally:
            worker.close()
        limits[name] = {"product GFLOP/s": answer["product"], "copy GB/s": answer["copy"]}
    return limits


def add_initial_model(arrays: dict[str, np.ndarray], workload: Workload, folder: Path) -> Path:
    """Write the shared arrays, with the initial model that this engine draws for its first seed."""
    path, drawn = folder / "arrays.npz", folder / "initial.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    core = sorted(os.sched_getaffinity(0))[-1:]
    job = job_of(workload, arrays=str(path), cores=1, mode="initial", lanes=1) | {"rates": []}
    worker = Worker(Path(sys.executable), "engine", job, core, folder)
    try:
        worker.wait_until_ready()
        worker.run(0, drawn)
    finally:
        worker.close()
    with np.load(drawn) as file:
        np.savez(path, **arrays, **{name: file[name] for name in file.files})  # type: ignore[arg-type]
    return path


def measure(
    workload: Workload,
    arrays: dict[str, np.ndarray],
    rivals: Mapping[str, tuple[Contestant, Path]],
    *,
    cores: Sequence[int],
    turns: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure one workload.

    Args:
      workload: The workload.
      arrays: The shared arrays.
      rivals: The contestants that can run it, with their interpreters.
      cores: Numbers of the cores to use.
      turns: Turns of each contestant.
      say: Reports progress.

    Returns:
      "initial_loss", "contestants" (by name what was measured) and "absent" (by name the reason).
    """
    found: dict[str, Any] = {"contestants": {}, "absent": {}}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        path = add_initial_model(arrays, workload, folder)
        with np.load(folder / "initial.npz") as file:
            initial = [file[f"layer_{i}"] for i in range(len(file.files))]
        found["initial_loss"] = mean_loss(initial, arrays)
        for together in (False, True):
            some = {name: each for name, each in rivals.items() if each[0].is_apart == together}
            _take_turns(some, workload, arrays, path, cores, turns, folder, found, say)
    return found


def _take_turns(
    rivals: Mapping[str, tuple[Contestant, Path]],
    workload: Workload,
    arrays: dict[str, np.ndarray],
    path: Path,
    cores: Sequence[int],
    turns: int,
    folder: Path,
    found: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Prepare some contestants, let them take turns, and add what was measured to `found`."""
    entries: dict[str, Entry] = {}
    losses: dict[str, float] = {}

    def attempt(names: Iterable[str], work: Callable[[str], None]) -> None:
        for name in list(names):
            try:
                work(name)
            except WorkerError as error:
                say(f"  {name} is left out: {error}")
                found["absent"][name] = str(error)
                entries.pop(name).close()

    def prepare(name: str) -> None:
        contestant, python = rivals[name]
        entries[name] = Entry(contestant, python, workload, path, cores, folder)
        began = time.perf_counter()
        entries[name].prepare()
        losses[name] = mean_loss(entries[name].model(), arrays)
        say(f"  {name} is ready after {time.perf_counter() - began:.0f} s")

    try:
        attempt(rivals, prepare)
        for turn in range(turns):
            attempt(entries, lambda name: entries[name].turn())
            say(f"  turn {turn + 1} of {turns}")
    finally:
        for each in entries.values():
            each.close()
    for name, entry in entries.items():
        found["contestants"][name] = {
            "rounds_per_second": {
                setting: statistics.median(rates) for setting, rates in entry.rates.items()
            },
            "rounds_per_second_of_turns": entry.rates,
            "loss": losses[name],
            **entry.facts,
        }


def operations(name: str) -> float:
    """Count the operations of a round of a workload, by the workload's name."""
    return round_operations(WORKLOADS[name])
