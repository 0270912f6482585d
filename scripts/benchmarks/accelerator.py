"""What an accelerator makes of the engine and of its rivals, in eight minutes.

    python scripts/benchmark.py accelerator                all that fits, into the results
    python scripts/benchmark.py accelerator --out FILE     into another file
    python scripts/benchmark.py accelerator --resume FILE  only what FILE does not hold already
    python scripts/benchmark.py accelerator --small        tiny sizes, to try the script on a CPU
    python scripts/benchmark.py accelerator WORD...        only tasks whose names hold one of these

Whole calls of the engine against plain JAX in the same precision, FedJAX, a torch loop and
`torch.func.vmap`; layouts, lanes and convolutions; what a repeated call costs on the host, and a
first one; kernels by the time that they take; and whether every system agrees with the CPU.

Images are random bytes. Every task has its own process and its own limits of time. As many as there
are cores prepare side by side, the most instructive first, and then are measured one at a time;
what is compared in time runs alone. Results are written after every task. What is not installed, no
longer fits into the time, fails or runs out of memory is reported, and the next one runs.
"""

import argparse
import datetime
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.side_by_side import Task, measure

RESULTS = Path(__file__).parents[1] / "benchmark_results.json"
SECONDS = 480.0
"""Time for everything."""
NO_ACCELERATOR = "JAX finds no accelerator; --small tries the script on a CPU."
TF32 = "tensorfloat32"
ROUNDS = {"a": 300, "b": 500, "c": 1000, "a64": 50, "b64": 100, "d": 20, "d8": 8}
"""Rounds of a call of what runs all of them in one program, by workload."""
FEW_ROUNDS = {"fedjax": 5, "torch": 3, "torch vmap": 20}
"""Rounds of a call of the others."""
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "chosen": {},
    "wide": {"slots_at_once": 10**6, "packed": False},
    "slots in turn": {"slots_at_once": 1, "packed": False},
    "packed": {"packed": True},
}
SYSTEMS_AT_ONCE = 4
"""Processes in which the systems run on the accelerator, and as many on the CPU."""
APART: dict[str, Any] = {"prepare": 1e9, "measure": 1e9}
"""Limits of what is not timed, and goes on until the end."""


def contest(who: str, work: str, precision: str = "float32", **options: Any) -> Task:
    """Make the task of one contestant; see `benchmarks.contestants.contestant`."""
    rounds = ROUNDS[work]
    if who in FEW_ROUNDS:
        rounds = FEW_ROUNDS[who] if work == "a" else 4
    chosen = [f"{key} {value}" for key, value in options.items()]
    request = {"do": "contest", "who": who, "work": work, "rounds": rounds, "precision": precision}
    return Task(", ".join([f"({work}) {who}", precision, *chosen]), request | options)


def same_precision(work: str, precision: str = "float32") -> list[Task]:
    """List the engine and plain JAX on one workload."""
    return [contest(who, work, precision) for who in ("engine", "plain")]


def fedavg(hidden: int, batch: int, lanes: int, ticks: int) -> Task:
    """Make the task of a sweep of FedAvg over four rates, or over one for a single lane."""
    rates = [0.1] if lanes == 1 else [0.05, 0.1, 0.15, 0.2]
    problem = {"make": "perceptron", "hidden": hidden, "batch": batch}
    request = {
        "do": "sweep",
        "system": "fedavg",
        "problem": problem | {"clients": 100, "examples": 600},
        "hyper": {"num_clients": 100, "num_selected": 20, "local_steps": 20, "batch_size": batch},
        "seeds": lanes // len(rates),
        "settings": {"lr": rates},
        "ticks": ticks,
        "layout": {},
    }
    return Task(f"FedAvg 784-{hidden}-10, {lanes} lanes", request)


def favano(layout: str, lanes: int = 16) -> Task:
    """Make the task of a sweep of FAVANO with its default settings."""
    request = {
        "do": "sweep",
        "system": "favano",
        "problem": {
            "make": "perceptron",
            "hidden": 32,
            "batch": 128,
            "clients": 100,
            "examples": 600,
        },
        "hyper": {},
        "seeds": lanes,
        "settings": {},
        "ticks": 20,
        "layout": LAYOUTS[layout],
    }
    return Task(f"FAVANO 784-32-10, {lanes} lanes, {layout}", request)


def chains(steps: int, ticks: int, seeds: int = 300) -> Task:
    """Make the task of FA-LD's paper's simulation: 50 clients, exact gradients."""
    request = {
        "do": "sweep",
        "system": "langevin",
        "problem": {"make": "gaussians", "clients": 50},
        "hyper": {"num_clients": 50, "local_steps": steps, "gradient": "exact"},
        "seeds": seeds,
        "settings": {"step_size": [1e-6, 3e-7, 1e-7, 3e-8, 1e-8]},
        "ticks": ticks,
        "layout": {},
    }
    return Task(f"FA-LD, K = {steps}, {5 * seeds} lanes", request)


def residual(convolution: str, **sizes: Any) -> Task:
    """Make the task of ResNet-20 on 32x32x3, 20 clients a round, five steps of batch 32."""
    hyper = {"num_clients": 100, "num_selected": 20, "local_steps": 5, "batch_size": 32}
    problem = {"make": "residual", "convolution": convolution, "batch": 32}
    request = {
        "do": "sweep",
        "system": "fedavg",
        "problem": problem | {"clients": 100, "examples": 100} | sizes,
        "hyper": hyper,
        "seeds": 1,
        "settings": {"lr": [0.1]},
        "ticks": 3,
        "layout": {},
    }
    return Task(f"ResNet-20, {convolution}", request)


def task(name: str, do: str, **request: Any) -> Task:
    """Make a task of any kind."""
    return Task(name, {"do": do, **request})


def repeated(system: str, lanes: int, ticks: int = 40) -> Task:
    """Make the task of repeated calls of a tiny sweep."""
    name = f"repeated calls, {system}, {lanes} lanes"
    return task(name, "calls", system=system, lanes=lanes, ticks=ticks)


def kernels(who: str, work: str, rounds: int, **options: Any) -> Task:
    """Make the task that lists a call's kernels."""
    name = ", ".join(["kernels", f"({work}) {who}", *options.values()])
    return task(name, "trace", who=who, work=work, rounds=rounds, **options)


def all_tasks() -> list[Task]:
    """List all tasks in the order of their worth."""
    patches = {"convolution": "patches"}
    return [
        *itertools.chain.from_iterable(map(same_precision, ("a", "b", "c", "a64", "b64", "d"))),
        contest("plain", "d", **patches),
        contest("engine", "d", **patches),
        contest("plain", "a64", step="cotangent"),
        *same_precision("d8"),
        contest("plain", "d8", **patches),
        contest("engine", "d8", **patches),
        *itertools.chain.from_iterable(
            same_precision(work, TF32) for work in ("a", "a64", "b64", "d", "d8")
        ),
        contest("plain", "d", TF32, **patches),
        contest("plain", "d8", TF32, **patches),
        task("limits", "limits", size=8192, copied=2**30),
        repeated("fedavg", 1),
        repeated("fedavg", 1500),
        repeated("langevin", 1500, 300),
        kernels("engine", "a", 20),
        kernels("engine", "b", 30),
        kernels("plain", "b", 30),
        kernels("engine", "a64", 4),
        kernels("engine", "d8", 2, **patches),
        task("first calls", "first calls", work="a", rounds=20)._replace(measure=90.0),
        *map(favano, LAYOUTS),
        chains(1, 300),
        chains(100, 3),
        *(fedavg(*sizes) for sizes in ((128, 32, 1, 40), (128, 32, 64, 20), (128, 32, 1024, 4))),
        *(fedavg(*sizes) for sizes in ((8, 8, 1, 40), (8, 8, 64, 20), (8, 8, 1024, 4))),
        *(task(f"own loop, {name}", "own loop", system=name) for name in ("fedavg", "favano")),
        *(contest(who, work) for work in ("a", "d") for who in FEW_ROUNDS),
        contest("engine", "d", slots_at_once=1, packed=False),
        *(task(f"launches, {name}", "launches", program=name) for name in _COUNTED),
        *map(residual, ("patches", "lax")),
    ]


_COUNTED = ("fedavg-128", "favano-32")


def small_tasks() -> list[Task]:
    """List tasks of every kind, with tiny sizes."""
    tiny = {"clients": 4, "examples": 8, "size": 6, "tests": 8, "batch": 4, "hidden": 4}
    few = {"num_clients": 4, "num_selected": 2, "local_steps": 2, "batch_size": 4}
    packed = favano("packed", 2)
    swept = packed.request | {"problem": packed.request["problem"] | tiny, "hyper": few, "ticks": 2}
    network = residual("lax", clients=4, examples=4, size=8, tests=4, stages=[8], batch=2)
    less = network.request | {"hyper": few | {"batch_size": 2}, "ticks": 1}
    return [
        *(_shrunk(each) for each in same_precision("b")),
        _shrunk(contest("torch", "b", rounds=1)),
        _shrunk(kernels("engine", "b", 2)),
        task("limits", "limits", size=64, copied=2**10, turns=1),
        repeated("fedavg", 2, 4),
        packed._replace(request=swept),
        chains(1, 2, 2),
        network._replace(request=less),
        task("own loop, fedavg", "own loop", system="fedavg", ticks=4),
        _shrunk(task("first calls", "first calls", work="b", rounds=2)),
        task("launches, fald-1", "launches", program="fald-1", ticks=2, seeds=1),
    ]


def _shrunk(each: Task) -> Task:
    return each._replace(request={**each.request, "small": True})


def systems_tasks(names: Sequence[str], folder: Path, at_once: int) -> list[Task]:
    """List tasks that run systems on the accelerator and on the CPU."""
    tasks = []
    for place, variables in (("here", {}), ("cpu", {"JAX_PLATFORMS": "cpu"})):
        for number in range(at_once):
            request = {"do": "systems", "names": list(names[number::at_once])}
            request["file"] = str(folder / f"{place}_{number}.npz")
            name = f"systems, {place}, {number}"
            tasks.append(Task(name, request, environment=variables, **APART))
    return tasks


def agreement(folder: Path) -> dict[str, dict[str, float]]:
    """Compare the final models of systems on the accelerator with those on the CPU.

    Returns:
      For each system the norm of the difference over that of the models, and the same of a run on
      the CPU whose step is larger by 1e-6 of itself: what rounding may grow to.
    """
    found = {
        place: {
            name: array
            for file in sorted(folder.glob(f"{place}_*.npz"))
            for name, array in np.load(file).items()
        }
        for place in ("here", "cpu")
    }
    compared = {}
    for name, models in found["cpu"].items():
        system, what = name.split("/")
        if what == "models" and name in found["here"]:
            size = np.linalg.norm(models)
            nudged = found["cpu"][f"{system}/nudged"]
            compared[system] = {
                "difference": float(np.linalg.norm(found["here"][name] - models) / size),
                "of a step larger by 1e-6": float(np.linalg.norm(nudged - models) / size),
            }
    return compared


_SHOWN = (
    ("rounds/s", "rounds per second", "{:.4g}", 1.0),
    ("replay's", "rounds per second of the replay", "{:.4g}", 1.0),
    ("us/step", "microseconds of a step", "{:.1f}", 1.0),
    ("TFLOP/s", "operations per second", "{:.2f}", 1e-12),
)
HEADER = f"{'':48}" + "".join(f"{title:>10}" for title, *_ in _SHOWN)


def row_of(name: str, answer: Mapping[str, Any]) -> str:
    """Write one line of the table, or what a task says that measures no rounds."""
    for key in ("not run", "does not fit", "failed"):
        if key in answer:
            return f"{name:48}  {key}: {answer[key]}"
    if "rounds per second" not in answer:
        left_out = ("profile", "by time", "platform version")
        told = {key: value for key, value in answer.items() if key not in left_out}
        return f"{name:48}  {json.dumps(told, default=float)[:400]}"
    cells = ""
    for _, key, form, unit in _SHOWN:
        value = answer.get(key)
        cells += f"{'-' if value is None else form.format(value * unit):>10}"
    return f"{name:48}{cells}"


class Record:
    """What was measured so far, on the terminal and in a file."""

    def __init__(self, out: Path | None, left: Callable[[], float], *, small: bool):
        """Begin a record.

        Args:
          out: File of results to update after every task; None to write none.
          left: Returns the seconds left.
          small: Whether tasks are tiny, so that any machine will do.
        """
        self._out, self.left, self._small = out, left, small
        self._started = datetime.datetime.now()
        self.machine: dict[str, Any] = {}
        self.done: dict[str, dict[str, Any]] = {}
        self.agreement: dict[str, Any] = {}

    def report(self, task: Task, answer: dict[str, Any]) -> None:
        """Take in an answer.

        Raises:
          SystemExit: If there is no accelerator, and tasks are not tiny.
        """
        machine = answer.pop("machine", {})
        if "backend" in machine and not task.environment:
            if machine["backend"] == "cpu" and not self._small:
                raise SystemExit(NO_ACCELERATOR)
            if not self.machine:
                print(json.dumps(machine), HEADER, sep="\n", flush=True)
            self.machine = machine | {"torch": self.machine.get("torch")}
        elif "torch" in machine:
            self.machine["torch"] = machine["torch"]
        self.done[task.name] = answer | {"request": dict(task.request)}
        print(row_of(task.name, answer), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file of results, by way of another, so that it is always whole."""
        if self._out is None:
            return
        results = json.loads(self._out.read_text()) if self._out.exists() else {}
        results.setdefault(self.machine.get("backend", "unknown"), {})["accelerator"] = {
            "date": self._started.isoformat(timespec="minutes"),
            "machine": self.machine,
            "is small": self._small,
            "seconds left": round(self.left(), 1),
            "agreement with the CPU": self.agreement,
            "tasks": self.done,
        }
        scratch = self._out.with_suffix(".part")
        scratch.write_text(json.dumps(results, indent=1, default=float) + "\n")
        scratch.replace(self._out)


def measured_before(file: Path) -> dict[str, dict[str, Any]]:
    """Find what an earlier run has measured, on any accelerator."""
    found = json.loads(file.read_text())
    return {
        name: answer
        for backend in found.values()
        for name, answer in backend.get("accelerator", {}).get("tasks", {}).items()
        if "not run" not in answer and "failed" not in answer
    }


def main(arguments: Sequence[str]) -> None:
    """Measure what fits into the time, and print and store it."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only tasks with these names")
    parser.add_argument("--small", action="store_true", help="tiny sizes; stores only with --out")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="that prepare")
    parser.add_argument("--out", type=Path, help=f"file of results; {RESULTS.name} by default")
    parser.add_argument("--log", type=Path, help="file for what the processes print")
    parser.add_argument("--list", action="store_true", help="list the tasks and run none")
    parser.add_argument("--resume", type=Path, help="results of an earlier run, which are kept")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    out = options.out or (None if options.small else RESULTS)
    record = Record(out, lambda: end - time.monotonic(), small=options.small)
    if options.resume is not None:
        record.done |= measured_before(options.resume)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = ["fedavg"] if options.small else _names_of_systems()
        systems = systems_tasks(names, folder, 1 if options.small else SYSTEMS_AT_ONCE)
        tasks, background = (
            [
                each
                for each in listed
                if each.name not in record.done
                and (not options.words or any(word in each.name for word in options.words))
            ]
            for listed in (small_tasks() if options.small else all_tasks(), systems)
        )
        if options.list:
            print(*(each.name for each in (*tasks, *background)), sep="\n")
            return
        size = max(1, options.at_once)
        batches = [tasks[first : first + size] for first in range(0, len(tasks), size)]
        if options.small:  # The machine that tries it may be slow.
            slow = {"prepare": 300.0, "measure": 300.0}
            batches = [[each._replace(**slow) for each in batch] for batch in batches]
        log = options.log or folder / "log.txt"
        measure(batches, background, options.seconds, log, record.report)
        record.agreement = agreement(folder)
    record.write()
    for system, compared in record.agreement.items():
        print(system, *(f"{what} {value:.1e}" for what, value in compared.items()), sep=", ")
    failed = [name for name, answer in record.done.items() if "failed" in answer]
    print(f"{len(record.done)} tasks, {record.left():.0f} s left; failed: {failed or 'none'}")
    if len(failed) == len(record.done):
        parser.exit(1, "nothing was measured\n")


def _names_of_systems() -> list[str]:
    from fedjax_sim import SYSTEMS  # Imports JAX, which takes no device yet.

    return list(SYSTEMS)
