"""Everything about an accelerator that choices of the engine depend on, in under nine minutes.

    python scripts/benchmark.py accelerator                all that fits, into the results
    python scripts/benchmark.py accelerator --out FILE     into another file
    python scripts/benchmark.py accelerator --resume FILE  only what FILE does not hold already
    python scripts/benchmark.py accelerator --small        tiny sizes, to try the script on a CPU
    python scripts/benchmark.py accelerator WORD...        only tasks whose names hold one of these

Images are random bytes. Tasks run in order of their value; one that no longer fits into the time is
left out, and the results say so. They run in other processes, one for each set of compiler flags. A
task that runs out of memory, fails, ends its process or exceeds its time is reported, and the next
one runs. Results are written after every task.

Shares are of the limits that the first task measures: arithmetic against the matrix product in the
same precision, bytes against the copy. The bytes are those that a step of one slot must move if
nothing stays in a cache, so that the share of small models can exceed 1.
"""

import argparse
import datetime
import importlib
import itertools
import json
import math
import multiprocessing
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "benchmark_results.json"
BUDGET = 520.0
"""Seconds that everything may take."""
START = "start of a process"
"""Kind of the time that a new process takes, which is estimated as those of tasks are."""
GUESSES = {
    START: 12.0,
    "limits": 10.0,
    "launches": 25.0,
    "small": 20.0,
    "large": 30.0,
    "residual": 75.0,
}
"""Seconds that a task of a kind is expected to take before one of its kind has run."""
MOST = {START: 90.0, "residual": 150.0}
"""Seconds after which a task of a kind is ended; `PATIENCE` for the others."""
PATIENCE = 100.0
STARTS = 2
"""Failed starts of a process with some flags, after which it is not tried again."""
FLAGS = {
    "": "",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "loops in command buffers": "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL",
}
"""Compiler flags by name. A command buffer is what launches several kernels together."""
MEANINGLESS_ON_CPU = {
    "launches": "a CPU launches no kernels; instructions that ran were counted instead",
    "command buffers": "a CPU has none; the flags were accepted and do nothing",
    "precision": "a CPU multiplies float32 arrays in float32 whatever is asked for",
    "memory": "a CPU does not report its memory",
    "rule": "the layouts' order on a CPU says nothing about an accelerator",
}
LANES = (1, 64, 1024, 4096, 256, 16, 4)
"""Lanes of the two perceptrons, the most instructive numbers first."""
TICKS = {1: 40, 4: 40, 16: 40, 64: 20, 256: 10, 1024: 4, 4096: 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "wide": {"slots_at_once": 10**6, "packed": False},
    "blocks of 5": {"slots_at_once": 5, "packed": False},
    "slots in turn": {"slots_at_once": 1, "packed": False},
    "packed": {"packed": True},
    "chosen": {},
}
"""Layouts that are compared; the last is what the engine chooses. Lanes are batched in all."""
BLOCKS = ("blocks of 5", "slots in turn")
"""Layouts of slots that all do the same steps, so that packing gains nothing."""


class Task(NamedTuple):
    """Something to measure.

    Attributes:
      name: Its name in the results.
      kind: Tasks of one kind take about the same time; one of `GUESSES`.
      request: What the other process is asked, see `benchmarks.workloads`.
      flags: Name of the compiler flags.
      family: Tasks that differ in nothing but the number of lanes. If some do not fit into memory,
        more do not either.
    """

    name: str
    kind: str
    request: dict[str, Any]
    flags: str = ""
    family: str = ""


def serve(answers: Connection) -> None:
    """Answer requests in another process; this one never loads JAX, which would take the device."""
    importlib.import_module("benchmarks.workloads").serve(answers)


class Budget:
    """The time that is left, and how long tasks take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        """Start the time.

        Args:
          seconds: The time there is.
          clock: Returns the time in seconds.
        """
        self._clock, self._end = clock, clock() + seconds
        self._seen: dict[str, list[float]] = defaultdict(list)

    def left(self) -> float:
        """Return the seconds left."""
        return self._end - self._clock()

    def expected(self, kind: str) -> float:
        """Return how long a task of a kind takes: the longest of the last three, or a guess."""
        return max(self._seen[kind][-3:], default=GUESSES[kind])

    def note(self, kind: str, seconds: float) -> None:
        """Take note of how long a task took."""
        self._seen[kind].append(seconds)

    def most(self, kind: str) -> float:
        """Return the seconds after which a task is ended."""
        return min(MOST.get(kind, PATIENCE), self.left())


class Worker:
    """Another process that measures, with compiler flags of its own.

    Attributes:
      machine: What its first message tells of the machine.
    """

    def __init__(self, serve: Callable[[Connection], None], flags: str, seconds: float):
        """Start the process and wait until it has found the device.

        Args:
          serve: Runs in the process; sends a description of the machine, then answers requests.
          flags: Compiler flags added to those of this process.
          seconds: How long to wait.

        Raises:
          TimeoutError: If it does not start in this time.
          EOFError: If the process ends instead.
        """
        before = os.environ.get("XLA_FLAGS")
        os.environ["XLA_FLAGS"] = " ".join(filter(None, [before, flags]))
        try:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=serve, args=(other,), daemon=True)
            self._process.start()
        finally:
            if before is None:
                del os.environ["XLA_FLAGS"]
            else:
                os.environ["XLA_FLAGS"] = before
        other.close()
        try:
            self.machine = self._receive(seconds)
        except (TimeoutError, EOFError):
            self.stop()
            raise

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Ask and wait for the answer.

        Raises:
          TimeoutError: If it takes longer than `seconds`.
          EOFError: If the process ends instead.
        """
        try:
            self._connection.send(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict[str, Any]:
        if not self._connection.poll(max(seconds, 0.0)):
            raise TimeoutError
        try:
            return self._connection.recv()
        except ConnectionResetError as error:
            raise EOFError from error

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run_tasks(
    tasks: Sequence[Task],
    budget: Budget,
    start: Callable[[str, float], Worker],
    report: Callable[[Mapping[str, Any], Task | None, dict[str, Any]], None],
) -> None:
    """Run tasks in their order, as far as the time allows.

    Args:
      tasks: The tasks. A change of flags from one to the next starts another process.
      budget: The time.
      start: Starts a process from the name of its flags and the seconds that this may take.
      report: Called with the machine, a task and its answer after each task; with no task when the
        first process has started, before which the machine is {}.
    """
    worker: Worker | None = None
    flags = ""
    machine: dict[str, Any] = {}
    full: dict[str, int] = {}
    broken: Counter[str] = Counter()

    def perform(task: Task) -> dict[str, Any]:
        nonlocal worker, flags, machine
        lanes = task.request.get("seeds", 1)
        if lanes >= full.get(task.family, math.inf):
            return {"not run": "fewer lanes did not fit into memory"}
        if broken[task.flags] >= STARTS:
            return {"not run": "no process starts with these flags"}
        is_new = worker is None or flags != task.flags
        expected = budget.expected(task.kind) + (budget.expected(START) if is_new else 0.0)
        if expected > budget.left():
            return {"not run": f"{budget.left():.0f} s were left, about {expected:.0f} s needed"}
        kind, began = START, budget.left()
        try:
            if is_new:
                if worker is not None:
                    worker.stop()
                    worker = None
                worker, flags = start(task.flags, budget.most(START)), task.flags
                budget.note(START, began - budget.left())
                if not machine:
                    machine = worker.machine
                    report(machine, None, {})
            assert worker is not None
            kind, began = task.kind, budget.left()
            answer = worker.ask(task.request, budget.most(kind))
        except TimeoutError:
            answer = {"failed": f"ended after {began - budget.left():.0f} s ({kind})"}
        except EOFError:
            answer = {"failed": f"the process ended by itself ({kind})"}
        else:
            if "does not fit" in answer and task.family:
                full[task.family] = lanes
            if "not run" not in answer:
                budget.note(kind, began - budget.left())
            return answer | {"seconds": round(began - budget.left(), 1)}
        if kind == START:
            broken[task.flags] += 1
        else:
            budget.note(kind, began - budget.left())
        if worker is not None:
            worker.stop()
            worker = None
        return answer

    try:
        for task in tasks:
            answer = perform(task)
            report(machine, task, answer)
    finally:
        if worker is not None:
            worker.stop()


def tasks_of(*, small: bool) -> list[Task]:
    """List all tasks in the order of their value.

    Args:
      small: Whether to make them tiny, so that the script can be tried on a CPU.
    """
    return _small_tasks() if small else _all_tasks()


def _all_tasks() -> list[Task]:
    lean, heavy = fedavg_tasks("784-8-10", 8, 8), fedavg_tasks("784-128-10", 128, 32)
    early, later, late = LANES[:3], LANES[3:5], LANES[5:]
    tasks = [
        Task("limits", "limits", {"do": "limits", "size": 8192, "copied": 2**30}),
        *_launches("fedavg-128", "favano-32", "fald-1"),
        *(sweep(lanes) for lanes in early for sweep in (heavy, lean)),
        *_favano(16, *LAYOUTS),
        _chains(1, ticks=300),
        _chains(100, ticks=3),
        *(heavy(64, layout=layout) for layout in (*BLOCKS, "chosen")),
        *(lean(64, layout=layout) for layout in BLOCKS),
        *(heavy(64, precision=each) for each in ("tensorfloat32", "bfloat16")),
        *(sweep(lanes) for lanes in later for sweep in (heavy, lean)),
    ]
    for flags in list(FLAGS)[1:]:
        tasks += [
            heavy(1, flags=flags),
            lean(64, flags=flags),
            *_favano(16, "wide", "packed", flags=flags),
            _chains(1, ticks=300, flags=flags),
        ]
    return [
        *tasks,
        *(_residual(name, "wide") for name in _TRIED),
        *(sweep(lanes) for lanes in late for sweep in (heavy, lean)),
        *(_residual(name, "slots in turn") for name in _TRIED),
        *(heavy(lanes, layout=layout) for lanes in (1, 1024) for layout in BLOCKS),
        *_favano(256, *LAYOUTS),
        *_favano(1, *LAYOUTS),
        *(lean(64, precision=each) for each in ("tensorfloat32", "bfloat16")),
        _residual("auto", "wide"),
        *_launches("fedavg-8-sweep"),
    ]


_TRIED = ("lax", "patches")
"""Convolutions that differ on an accelerator; "auto" is "lax" there."""


def _small_tasks() -> list[Task]:
    tiny = fedavg_tasks("perceptron", 4, 4, small=True)
    launches = {"do": "launches", "program": "fald-1", "ticks": 2, "seeds": 1}
    last = list(FLAGS)[-1]
    limits = {"do": "limits", "size": 64, "copied": 2**10, "turns": 1}
    return [
        Task("limits", "limits", limits),
        Task("launches of fald-1", "launches", launches),
        tiny(1),
        tiny(4),
        tiny(4, layout="slots in turn"),
        tiny(4, precision="bfloat16"),
        *_favano(4, "packed", small=True),
        _chains(2, ticks=1, small=True),
        _residual("lax", "wide", small=True),
        Task(f"limits, {last}", "limits", limits, last),
    ]


def lanes_in_words(lanes: int) -> str:
    """Write a number of lanes."""
    return "1 lane" if lanes == 1 else f"{lanes} lanes"


def _launches(*programs: str) -> list[Task]:
    return [
        Task(f"launches of {each}", "launches", {"do": "launches", "program": each})
        for each in programs
    ]


def fedavg_tasks(name: str, hidden: int, batch: int, *, small: bool = False) -> Callable[..., Task]:
    """Return a function that makes tasks of FedAvg, by number of lanes.

    A quarter of the lanes have seeds of their own, the others further learning rates.
    """
    clients, examples, cohort, steps = (4, 8, 2, 2) if small else (100, 600, 20, 20)
    problem = {"make": "perceptron", "hidden": hidden, "batch": batch}
    problem |= {"clients": clients, "examples": examples}
    if small:
        problem |= {"size": 6, "tests": 8}

    def task(
        lanes: int, *, layout: str = "wide", precision: str = "float32", flags: str = ""
    ) -> Task:
        rates = [0.1] if lanes == 1 else [0.05, 0.1, 0.15, 0.2]
        differs = [each for each in (layout, precision) if each not in ("wide", "float32")]
        label = ", ".join(
            [f"FedAvg {name}", lanes_in_words(lanes), *differs, *filter(None, [flags])]
        )
        request = {
            "do": "sweep",
            "system": "fedavg",
            "problem": problem,
            "hyper": {
                "num_clients": clients,
                "num_selected": cohort,
                "local_steps": steps,
                "batch_size": batch,
            },
            "seeds": lanes // len(rates),
            "settings": {"lr": rates},
            "ticks": 1 if small else TICKS[lanes],
            "layout": LAYOUTS[layout],
            "precision": precision,
        }
        kind = "large" if lanes >= 1024 else "small"
        return Task(label, kind, request, flags, "" if differs or flags else name)

    return task


def _favano(lanes: int, *layouts: str, flags: str = "", small: bool = False) -> list[Task]:
    """Make tasks of FAVANO in Table 2's setting, which is that of its default settings."""
    problem = {"make": "perceptron", "hidden": 32, "batch": 128, "clients": 100, "examples": 600}
    hyper: dict[str, Any] = {}
    if small:
        hyper = {"num_clients": 4, "num_selected": 2, "local_steps": 2, "batch_size": 4}
        problem |= {"hidden": 4, "batch": 4, "clients": 4, "examples": 8, "size": 6, "tests": 8}
    return [
        Task(
            ", ".join(filter(None, ["FAVANO", lanes_in_words(lanes), layout, flags])),
            "small",
            {
                "do": "sweep",
                "system": "favano",
                "problem": problem,
                "hyper": hyper,
                "seeds": lanes,
                "settings": {},
                "ticks": 1 if small else 20,
                "layout": LAYOUTS[layout],
                "precision": "float32",
            },
            flags,
        )
        for layout in layouts
    ]


def _chains(steps: int, *, ticks: int, flags: str = "", small: bool = False) -> Task:
    """Make the task of FA-LD's paper's simulation: 1500 lanes of 50 clients, exact gradients."""
    clients, seeds = (3, 2) if small else (50, 300)
    request = {
        "do": "sweep",
        "system": "langevin",
        "problem": {"make": "gaussians", "clients": clients},
        "hyper": {"num_clients": clients, "local_steps": steps, "gradient": "exact"},
        "seeds": seeds,
        "settings": {"step_size": [1e-6, 1e-7] if small else [1e-6, 3e-7, 1e-7, 3e-8, 1e-8]},
        "ticks": ticks,
        "layout": LAYOUTS["wide"],
        "precision": "float32",
    }
    return Task(", ".join(filter(None, [f"FA-LD, K = {steps}", flags])), "small", request, flags)


def _residual(convolution: str, layout: str, *, small: bool = False) -> Task:
    """Make the task of ResNet-20 on 32x32x3, 20 clients a round, five steps of batch 32."""
    clients, cohort, steps, batch = (4, 2, 1, 2) if small else (100, 20, 5, 32)
    problem = {"make": "residual", "convolution": convolution, "batch": batch}
    problem |= {"clients": clients, "examples": 4 if small else 100}
    if small:
        problem |= {"size": 8, "tests": 4, "stages": [8]}
    request = {
        "do": "sweep",
        "system": "fedavg",
        "problem": problem,
        "hyper": {
            "num_clients": clients,
            "num_selected": cohort,
            "local_steps": steps,
            "batch_size": batch,
        },
        "seeds": 1,
        "settings": {"lr": [0.1]},
        "ticks": 1 if small else 3,
        "layout": LAYOUTS[layout],
        "precision": "float32",
    }
    return Task(f"ResNet-20, {convolution}, {layout}", "residual", request)


def with_shares(
    answer: Mapping[str, Any], precision: str, limits: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Add what share of the machine's limits a measurement reached.

    Args:
      answer: What was measured of a sweep; anything else is returned as it is.
      precision: The precision of its matrix products.
      limits: What the task "limits" measured; None if it failed.
    """
    if limits is None or "steps per second" not in answer:
        return dict(answer)
    rate = answer["steps per second"]
    arithmetic = rate * answer["operations of a step"] / limits["operations per second"][precision]
    moved = rate * answer["least bytes of a step"] / limits["bytes per second"]
    return dict(answer) | {"share of product": arithmetic, "share of copy": moved}


class Point(NamedTuple):
    """One workload that ran with several layouts.

    Attributes:
      name: The workload.
      facts: What a layout may be chosen by, all above 0.
      seconds: Seconds of the replay, by layout.
    """

    name: str
    facts: dict[str, float]
    seconds: dict[str, float]


def points_of(done: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """Collect workloads that ran with at least two layouts.

    Args:
      done: Answers to sweeps by the task's name, each with its request.
    """
    names = {json.dumps(layout): name for name, layout in LAYOUTS.items()}
    found: dict[str, Point] = {}
    for answer in done.values():
        request = answer.get("request", {})
        if "replay seconds" not in answer or answer.get("flags"):
            continue
        same = {key: value for key, value in request.items() if key not in ("layout", "do")}
        slots, lanes = answer["slots"], answer["lanes"]
        facts = {
            "operations of a step": answer["operations of a step"],
            "bytes of a step": answer["least bytes of a step"],
            "lanes": lanes,
            "operations of all slots": answer["operations of a step"] * slots * lanes,
            "bytes of all slots": answer["least bytes of a step"] * slots * lanes,
        }
        label = f"{request['system']} {json.dumps(request['problem'])}, {lanes} lanes"
        point = found.setdefault(json.dumps(same), Point(label, facts, {}))
        point.seconds[names[json.dumps(request["layout"])]] = answer["replay seconds"]
    return [point for point in found.values() if len(point.seconds) > 1]


def fit_rule(points: Sequence[Point]) -> dict[str, Any]:
    """Find which layout to choose: always the same, or by a threshold of one fact.

    The loss of a choice is its time over that of the best layout. The suggestion is a choice that
    was measured at the most points, and of these the one with the least mean (geometric) loss; of
    equal ones, the simplest.

    Args:
      points: What was measured.

    Returns:
      The measured points; the losses of choosing always the same; the suggestion, {} if there are
      no points. Each choice names the number of points "of" which its losses are.
    """
    described = [
        point.facts
        | {
            "workload": point.name,
            "replay seconds": point.seconds,
            "best": min(point.seconds, key=lambda name: point.seconds[name]),
        }
        for point in points
    ]
    measured = [name for name in LAYOUTS if any(name in point.seconds for point in points)]
    layouts = [name for name in measured if name != "chosen"]

    def loss_of(choose: Callable[[Point], str]) -> dict[str, float]:
        losses = [
            point.seconds[choose(point)] / min(point.seconds.values())
            for point in points
            if choose(point) in point.seconds
        ]
        mean = math.exp(sum(map(math.log, losses)) / max(len(losses), 1))
        worst = max(losses, default=1.0)
        return {"mean loss": round(mean, 3), "worst loss": round(worst, 3), "of": len(losses)}

    def by_threshold(fact: str, threshold: float, pair: tuple[str, str]) -> Callable[[Point], str]:
        return lambda point: pair[point.facts[fact] > threshold]

    def always(layout: str) -> Callable[[Point], str]:
        return lambda point: layout

    choices: list[dict[str, Any]] = [
        {"always": layout} | loss_of(always(layout)) for layout in layouts
    ]
    fixed = list(choices)
    if "chosen" in measured:
        fixed.append({"always": "chosen"} | loss_of(always("chosen")))
    for fact in points[0].facts if points else ():
        values = sorted({point.facts[fact] for point in points})
        for low, high in itertools.pairwise(values):
            threshold = math.sqrt(low * high)
            for pair in itertools.permutations(layouts, 2):
                loss = loss_of(by_threshold(fact, threshold, (pair[0], pair[1])))
                rule = {"fact": fact, "threshold": threshold, "up to": pair[0], "above": pair[1]}
                choices.append(rule | loss)

    def merit(choice: Mapping[str, Any]) -> tuple[float, ...]:
        return (-choice["of"], choice["mean loss"], choice["worst loss"])

    return {"points": described, "always": fixed, "suggested": min(choices, key=merit, default={})}


_COLUMNS = (
    ("compile/s", "compile seconds", "{:.1f}", 1.0),
    ("call/s", "call seconds", "{:.3f}", 1.0),
    ("replay/s", "replay seconds", "{:.3f}", 1.0),
    ("rounds/s", "rounds per second", "{:.4g}", 1.0),
    ("us/step", "microseconds of a local step", "{:.1f}", 1.0),
    ("peak/GB", "peak bytes", "{:.2f}", 1e-9),
    ("product", "share of product", "{:.1%}", 1.0),
    ("copy", "share of copy", "{:.1%}", 1.0),
)
HEADER = f"{'':58}" + "".join(f"{title:>10}" for title, *_ in _COLUMNS)


def row_of(name: str, answer: Mapping[str, Any]) -> str:
    """Write one line of the table, or what a task says that measures no sweep."""
    for key in ("not run", "does not fit", "failed"):
        if key in answer:
            return f"{name:58}  {key}: {answer[key]}"
    if "replay seconds" not in answer:
        shown = {key: value for key, value in answer.items() if key not in ("request", "flags")}
        return f"{name}: {json.dumps(shown)}"
    cells = ""
    for _, key, form, unit in _COLUMNS:
        value = answer.get(key)
        cells += f"{'-' if value is None else form.format(value * unit):>10}"
    return f"{name:58}{cells}"


def measured_before(file: Path, backend: str = "gpu") -> dict[str, dict[str, Any]]:
    """Find what an earlier run has measured, without the limits, which every run measures.

    Args:
      file: Its file of results.
      backend: Name of the machine's backend.
    """
    tasks = json.loads(file.read_text())[backend]["accelerator"]["tasks"]
    return {
        name: answer
        for name, answer in tasks.items()
        if name != "limits" and "not run" not in answer and "failed" not in answer
    }


def counted_launches(stored: Mapping[str, Any], program: str) -> dict[str, Any] | None:
    """Find what `benchmark.py programs` counted of a program; None if it was never counted."""
    programs = stored.get("cuda (compiled only)", {}).get("programs", {}).get("programs", {})
    if program not in programs:
        return None
    facts = programs[program]
    return {
        "launches of a local step": sum(each["launches"] for each in facts["local steps"]),
        "launches of a tick without steps": facts["tick without steps"]["launches"],
    }


class Record:
    """What was measured so far, on the terminal and in a file."""

    def __init__(self, out: Path | None, left: Callable[[], float], *, small: bool):
        """Begin a record.

        Args:
          out: File of results to update after every task; None to write none.
          left: Returns the seconds left.
          small: Whether tasks are tiny, so that any machine will do.
        """
        self._out, self._left, self._small = out, left, small
        self._started = datetime.datetime.now()
        self._stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.machine: Mapping[str, Any] = {}
        self.done: dict[str, dict[str, Any]] = {}

    def report(self, machine: Mapping[str, Any], task: Task | None, answer: dict[str, Any]) -> None:
        """Take in an answer; see `run_tasks`.

        Raises:
          SystemExit: If there is no accelerator, and tasks are not tiny.
        """
        self.machine = machine
        if task is None:
            if machine["backend"] == "cpu" and not self._small:
                raise SystemExit("JAX finds no accelerator; --small tries the script on a CPU.")
            print(json.dumps(machine), HEADER, sep="\n", flush=True)
            return
        limits = self.done.get("limits", {})
        full = with_shares(
            answer,
            task.request.get("precision", "float32"),
            limits if "bytes per second" in limits else None,
        )
        if task.request["do"] == "launches":
            full["counted without a device"] = counted_launches(
                self._stored, task.request["program"]
            )
        self.done[task.name] = full | {"request": task.request, "flags": FLAGS[task.flags]}
        print(row_of(task.name, full), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file of results, by way of another, so that it is always whole."""
        if self._out is None:
            return
        results = json.loads(self._out.read_text()) if self._out.exists() else {}
        on_cpu = self.machine.get("backend") == "cpu"
        results.setdefault(self.machine.get("backend", "unknown"), {})["accelerator"] = {
            "date": self._started.isoformat(timespec="minutes"),
            "machine": self.machine,
            "is small": self._small,
            "seconds left": round(self._left(), 1),
            **({"meaningless here": MEANINGLESS_ON_CPU} if on_cpu else {}),
            "tasks": self.done,
            "rule": fit_rule(points_of(self.done)),
        }
        beside = self._out.with_suffix(".part")
        beside.write_text(json.dumps(results, indent=1) + "\n")
        beside.replace(self._out)


def main(arguments: Sequence[str]) -> None:
    """Measure what fits into the time, and print and store it."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only tasks with these names")
    parser.add_argument("--small", action="store_true", help="tiny sizes; stores only with --out")
    parser.add_argument("--seconds", type=float, default=BUDGET, help="time for everything")
    parser.add_argument("--out", type=Path, help=f"file of results; {RESULTS.name} by default")
    parser.add_argument("--list", action="store_true", help="list the tasks and run none")
    parser.add_argument("--resume", type=Path, help="results of an earlier run, which are kept")
    options = parser.parse_args(arguments)
    budget = Budget(options.seconds)
    tasks = [
        task
        for task in tasks_of(small=options.small)
        if not options.words or any(word in task.name for word in options.words)
    ]
    if options.list:
        print(*(task.name for task in tasks), sep="\n")
        return

    out = options.out or (None if options.small else RESULTS)
    record = Record(out, budget.left, small=options.small)
    if options.resume is not None:
        record.done |= measured_before(options.resume, "cpu" if options.small else "gpu")
        tasks = [task for task in tasks if task.name not in record.done]
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:  # its name before it was renamed
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.92")
    run_tasks(
        tasks,
        budget,
        lambda flags, seconds: Worker(serve, FLAGS[flags], seconds),
        record.report,
    )
    print("rule", json.dumps(fit_rule(points_of(record.done)), indent=1))
    if record.machine.get("backend") == "cpu":
        print("meaningless here", json.dumps(MEANINGLESS_ON_CPU, indent=1))
    failed = [name for name, answer in record.done.items() if "failed" in answer]
    print(f"{len(record.done)} tasks, {budget.left():.0f} s left; failed: {failed or 'none'}")
    if not any("seconds" in answer and "failed" not in answer for answer in record.done.values()):
        parser.exit(1, "nothing was measured\n")
