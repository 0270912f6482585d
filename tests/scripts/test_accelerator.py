"""The benchmark of accelerators: its pure parts, and all of it with tiny sizes on a CPU."""

import gzip
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the benchmark as its script does."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("benchmarks.accelerator")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the reader of traces as its script does."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("benchmarks.traces")


def named(kind: str, name: str, pid: int, tid: int | None = None) -> dict[str, Any]:
    """Name a process or a thread of a trace."""
    thread = {} if tid is None else {"tid": tid}
    return {"ph": "M", "pid": pid, "name": f"{kind}_name", "args": {"name": name}} | thread


def ran(name: str, pid: int, tid: int, dur: float = 2.0, **facts: str) -> dict[str, Any]:
    """Write an event of a trace."""
    arguments = {"args": facts} if facts else {}
    return {"ph": "X", "pid": pid, "tid": tid, "ts": 1.0, "dur": dur, "name": name} | arguments


def gpu_trace() -> dict[str, Any]:
    """Write the trace of two evaluations of two ticks of three steps each, on a GPU.

    A step has two kernels, of which one is of a library that reuses its name, a tick has a kernel
    and a copy, and an evaluation one kernel.
    """
    program = {"hlo_module": "jit__advance"}
    events = [
        named("process", "/device:GPU:0", 1),
        named("thread", "Stream #13(Compute)", 1, 5),
        named("thread", "XLA Modules", 1, 6),
        named("process", "/host:CPU", 2),
        named("thread", "python", 2, 5),
        ran("jit__advance", 1, 6, **program),
        ran("cuLaunchKernel", 2, 5),
        ran("add", 2, 5, hlo_op="add.1", **program),
        ran("loop_fusion", 1, 5, hlo_op="fusion.9", hlo_module="jit__begin"),
    ]
    for _ in range(2):
        for _ in range(2):
            for _ in range(3):
                events.append(ran("gemm", 1, 5, 3.0, hlo_op="custom-call.1", **program))
                events.append(ran("loop_fusion", 1, 5, 1.0, hlo_op="fusion.2", **program))
            events.append(ran("gemm", 1, 5, hlo_op="custom-call.7", **program))
            events.append(ran("MemcpyD2D", 1, 5, memcpy_details="size:8"))
        events.append(ran("reduce", 1, 5, hlo_op="reduce.3", **program))
    return {"traceEvents": [*events, {}]}


def test_launches_are_told_apart_by_how_often_they_ran(traces: ModuleType) -> None:
    launches = traces.launches_of(gpu_trace())
    assert len(launches) == 2 * (2 * (3 * 2 + 2) + 1) + 1
    counted = traces.count_launches(launches, "jit__advance", ticks=4, steps=3)
    assert counted["launches of a local step"] == 2
    assert counted["launches of a tick without steps"] == pytest.approx((4 + 4 + 2) / 4)
    assert counted["launches"] == len(launches) - 1
    assert counted["microseconds of a launch on the device"] == pytest.approx(68 / 34)


def test_what_runs_less_often_than_every_second_tick_is_neither_step_nor_tick(
    traces: ModuleType,
) -> None:
    one = traces.Launch("jit__advance", "reduce.3", 1.0)
    launches = [one, *traces.launches_of(gpu_trace())]
    counted = traces.count_launches([one], "jit__advance", ticks=4, steps=3)
    assert counted["other launches"] == 1
    assert counted["launches of a tick without steps"] == 0
    assert traces.count_launches(launches, "jit_other", ticks=4, steps=3)["launches"] == 4


def test_a_trace_without_a_device_shows_the_instructions_of_the_cpu(traces: ModuleType) -> None:
    trace = gpu_trace()
    trace["traceEvents"] = [each for each in trace["traceEvents"] if each.get("pid") == 2]
    assert traces.launches_of(trace) == [traces.Launch("jit__advance", "add.1", 2.0)]


def test_the_newest_trace_of_a_folder_is_read(traces: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no trace"):
        traces.read_trace(tmp_path)
    for day in ("2026_01_02", "2026_01_10"):
        folder = tmp_path / "plugins" / "profile" / day
        folder.mkdir(parents=True)
        with gzip.open(folder / "host.trace.json.gz", "wt") as file:
            json.dump({"traceEvents": [], "day": day}, file)
    assert traces.read_trace(tmp_path)["day"] == "2026_01_10"


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_budget_expects_what_it_has_seen(accelerator: ModuleType) -> None:
    clock = Clock()
    budget = accelerator.Budget(200.0, clock)
    assert budget.expected("small") == accelerator.GUESSES["small"]
    for seconds in (50.0, 3.0, 5.0, 4.0):
        budget.note("small", seconds)
    assert budget.expected("small") == 5.0
    assert budget.expected("large") == accelerator.GUESSES["large"]
    clock.time += 60.0
    assert budget.left() == 140.0
    assert budget.most("residual") == 140.0
    assert budget.most("small") == accelerator.PATIENCE


class Machine:
    """What stands for a process: a script of answers, or of exceptions, and of seconds.

    Attributes:
      machine: As of `Worker`.
    """

    machine: Mapping[str, Any] = {"backend": "gpu"}

    def __init__(self, clock: Clock, script: dict[str, Any], log: list[str]) -> None:
        self._clock, self._script, self._log = clock, script, log

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        answer, took = self._script[request["do"]]
        self._log.append(request["do"])
        self._clock.time += min(took, seconds)
        if took > seconds:
            raise TimeoutError
        if isinstance(answer, BaseException):
            raise answer
        return dict(answer)

    def stop(self) -> None:
        self._log.append("stop")


def perform(
    accelerator: ModuleType,
    script: dict[str, Any],
    tasks: list[Any],
    *,
    seconds: float = 100.0,
    broken: tuple[str, ...] = (),
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run tasks on machines that follow a script: answers by task, and what happened."""
    clock, log, answers = Clock(), [], {}

    def start(flags: str, most: float) -> Machine:
        log.append(f"start {flags}".strip())
        clock.time += 1.0
        if flags in broken:
            raise EOFError
        return Machine(clock, script, log)

    def report(machine: Any, task: Any, answer: dict[str, Any]) -> None:
        if task is not None:
            answers[task.name] = answer

    accelerator.run_tasks(tasks, accelerator.Budget(seconds, clock), start, report)
    return answers, log


def test_tasks_that_fail_take_none_of_the_others_with_them(accelerator: ModuleType) -> None:
    script = {
        "good": ({"x": 1}, 2.0),
        "bad": ({"failed": "no"}, 1.0),
        "dead": (EOFError(), 1.0),
        "slow": ({}, 1000.0),
    }
    names = ("good", "bad", "dead", "slow", "good again")
    tasks = [accelerator.Task(name, "small", {"do": name.split()[0]}) for name in names]
    answers, log = perform(accelerator, script, tasks, seconds=200.0)
    assert answers["good"] == {"x": 1, "seconds": 2.0}
    assert answers["bad"] == {"failed": "no", "seconds": 1.0}
    assert "ended by itself" in answers["dead"]["failed"]
    assert answers["slow"]["failed"] == "ended after 100 s (small)"
    # The slow task has raised what is expected of its kind beyond what is left.
    assert answers["good again"]["not run"].endswith("about 101 s needed")
    assert log == ["start", "good", "bad", "dead", "stop", "start", "slow", "stop"]


def test_what_does_not_fit_into_the_time_is_left_out_for_what_does(
    accelerator: ModuleType,
) -> None:
    script = {"long": ({}, 50.0), "short": ({}, 1.0)}
    long = [accelerator.Task(f"long {i}", "residual", {"do": "long"}) for i in range(2)]
    short = accelerator.Task("short", "small", {"do": "short"})
    answers, _ = perform(accelerator, script, [*long, short], seconds=90.0)
    assert "seconds" in answers["long 0"]
    assert answers["long 1"] == {"not run": "39 s were left, about 50 s needed"}
    assert answers["short"] == {"seconds": 1.0}


def test_more_lanes_are_not_tried_where_fewer_did_not_fit(accelerator: ModuleType) -> None:
    script = {"fits": ({}, 1.0), "full": ({"does not fit": "RESOURCE_EXHAUSTED"}, 1.0)}
    tasks = [
        accelerator.Task(str(seeds), "small", {"do": do, "seeds": seeds}, family=family)
        for seeds, do, family in [
            (64, "full", "a"),
            (256, "fits", "a"),
            (16, "fits", "a"),
            (257, "fits", "b"),
        ]
    ]
    answers, log = perform(accelerator, script, tasks)
    assert "does not fit" in answers["64"]
    assert answers["256"] == {"not run": "fewer lanes did not fit into memory"}
    assert log == ["start", "full", "fits", "fits", "stop"]


def test_each_set_of_flags_has_a_process_and_broken_flags_are_given_up(
    accelerator: ModuleType,
) -> None:
    script = {"x": ({}, 1.0)}
    flags = ["", "", "broken", "broken", "broken", "other"]
    tasks = [accelerator.Task(str(i), "small", {"do": "x"}, each) for i, each in enumerate(flags)]
    answers, log = perform(accelerator, script, tasks, broken=("broken",), seconds=200.0)
    assert answers["4"] == {"not run": "no process starts with these flags"}
    assert "seconds" in answers["5"]
    starts = [each for each in log if each.startswith("start")]
    assert starts == ["start", "start broken", "start broken", "start other"]


def serve_script(answers: Connection) -> None:
    """Answer in another process: tell the flags, sleep, or end."""
    answers.send({"flags": os.environ.get("XLA_FLAGS", "")})
    while True:
        request = answers.recv()
        if request["do"] == "end":
            os._exit(3)
        time.sleep(request["seconds"])
        answers.send(request)


def test_a_process_answers_until_it_ends_or_takes_too_long(
    accelerator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--first")
    worker = accelerator.Worker(serve_script, "--second", 30.0)
    assert worker.machine == {"flags": "--first --second"}
    assert os.environ["XLA_FLAGS"] == "--first"
    request = {"do": "sleep", "seconds": 0.0}
    assert worker.ask(request, 10.0) == request
    with pytest.raises(TimeoutError):
        worker.ask({"do": "sleep", "seconds": 60.0}, 0.1)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 30
    other = accelerator.Worker(serve_script, "", 30.0)
    for _ in range(2):
        with pytest.raises(EOFError):
            other.ask({"do": "end"}, 10.0)
    other.stop()


@pytest.mark.parametrize("small", [False, True])
def test_tasks_have_different_names_and_known_kinds(accelerator: ModuleType, small: bool) -> None:
    tasks = accelerator.tasks_of(small=small)
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names)
    # Shares of limits need the limits, which come first.
    assert names[0] == "limits"
    layouts = list(accelerator.LAYOUTS.values())
    for task in tasks:
        assert task.kind in accelerator.GUESSES
        assert task.flags in accelerator.FLAGS
        assert json.loads(json.dumps(task.request)) == task.request
        assert task.request.get("layout", {}) in layouts
    if not small:
        for network in ("784-128-10", "784-8-10"):
            lanes = {
                task.request["seeds"] * len(task.request["settings"]["lr"])
                for task in tasks
                if task.family == network
            }
            assert lanes == {1, 4, 16, 64, 256, 1024, 4096}


def point(accelerator: ModuleType, size: float, **seconds: float) -> Any:
    """Make a point of the rule, with two facts of which one is always the same."""
    layouts = {"wide": "wide", "turn": "slots in turn", "packed": "packed", "chosen": "chosen"}
    return accelerator.Point(
        f"size {size}",
        {"constant": 1.0, "size": size},
        {layouts[name]: value for name, value in seconds.items()},
    )


def test_the_rule_finds_the_fact_and_the_threshold_that_decide(accelerator: ModuleType) -> None:
    points = [
        point(accelerator, 1.0, wide=1.0, turn=4.0),
        point(accelerator, 10.0, wide=1.0, turn=2.0),
        point(accelerator, 1000.0, wide=3.0, turn=1.0),
    ]
    rule = accelerator.fit_rule(points)
    assert rule["suggested"] == {
        "fact": "size",
        "threshold": pytest.approx(100.0),
        "up to": "wide",
        "above": "slots in turn",
        "mean loss": 1.0,
        "worst loss": 1.0,
        "of": 3,
    }
    assert rule["always"] == [
        {"always": "wide", "mean loss": 1.442, "worst loss": 3.0, "of": 3},
        {"always": "slots in turn", "mean loss": 2.0, "worst loss": 4.0, "of": 3},
    ]
    assert [each["best"] for each in rule["points"]] == ["wide", "wide", "slots in turn"]


def test_the_rule_prefers_what_was_measured_everywhere_and_what_is_simple(
    accelerator: ModuleType,
) -> None:
    points = [
        point(accelerator, 1.0, wide=2.0, packed=1.0),
        point(accelerator, 10.0, wide=1.0, turn=1.0),
    ]
    suggested = accelerator.fit_rule(points)["suggested"]
    assert (suggested["of"], suggested["worst loss"], suggested["up to"]) == (2, 1.0, "packed")
    simple = [point(accelerator, size, wide=1.0, turn=2.0) for size in (1.0, 2.0)]
    assert accelerator.fit_rule(simple)["suggested"]["always"] == "wide"
    # What the engine chooses is shown, but not suggested.
    chosen = [point(accelerator, size, wide=2.0, chosen=1.0) for size in (1.0, 2.0)]
    rule = accelerator.fit_rule(chosen)
    assert rule["suggested"] == {"always": "wide", "mean loss": 2.0, "worst loss": 2.0, "of": 2}
    assert rule["always"][1] == {"always": "chosen", "mean loss": 1.0, "worst loss": 1.0, "of": 2}
    assert accelerator.fit_rule([]) == {"points": [], "always": [], "suggested": {}}


def answered(accelerator: ModuleType, layout: str, seconds: float, **changes: Any) -> Any:
    """Make an answer to a sweep, with its request."""
    request = {
        "do": "sweep",
        "system": "favano",
        "problem": {"make": "perceptron"},
        "hyper": {},
        "layout": accelerator.LAYOUTS[layout],
        "seeds": 2,
    } | changes.pop("request", {})
    return {
        "request": request,
        "flags": "",
        "lanes": 2,
        "slots": 20,
        "replay seconds": seconds,
        "operations of a step": 100.0,
        "least bytes of a step": 10.0,
    } | changes


def test_points_are_workloads_that_differ_in_nothing_but_the_layout(
    accelerator: ModuleType,
) -> None:
    done = {
        "a": answered(accelerator, "wide", 1.0),
        "b": answered(accelerator, "slots in turn", 2.0),
        "other flags": answered(accelerator, "blocks of 5", 3.0, flags="--x"),
        "other lanes": answered(accelerator, "blocks of 5", 4.0, request={"seeds": 3}),
        "failed": {"failed": "no", "request": {}, "flags": ""},
    }
    (found,) = accelerator.points_of(done)
    assert found.seconds == {"wide": 1.0, "slots in turn": 2.0}
    assert found.facts["operations of all slots"] == 100 * 20 * 2
    assert found.facts["bytes of all slots"] == 10 * 20 * 2


def test_shares_are_of_the_limits_in_the_same_precision(accelerator: ModuleType) -> None:
    limits = {
        "operations per second": {"float32": 1000.0, "bfloat16": 4000.0},
        "bytes per second": 500.0,
    }
    answer = {
        "steps per second": 2.0,
        "operations of a step": 100.0,
        "least bytes of a step": 50.0,
    }
    exact = accelerator.with_shares(answer, "float32", limits)
    assert (exact["share of product"], exact["share of copy"]) == (0.2, 0.2)
    assert accelerator.with_shares(answer, "bfloat16", limits)["share of product"] == 0.05
    assert accelerator.with_shares(answer, "float32", None) == answer
    assert accelerator.with_shares({"failed": "no"}, "float32", limits) == {"failed": "no"}


def test_cells_stand_under_their_headings(accelerator: ModuleType) -> None:
    answer = {
        "compile seconds": 12.34,
        "call seconds": 0.5,
        "replay seconds": 0.25,
        "rounds per second": 123456.0,
        "microseconds of a local step": 60.04,
        "peak bytes": 2.5e9,
        "share of product": 0.123,
    }
    row = accelerator.row_of("FedAvg", answer)
    assert row.split() == [
        "FedAvg",
        "12.3",
        "0.500",
        "0.250",
        "1.235e+05",
        "60.0",
        "2.50",
        "12.3%",
        "-",
    ]
    assert len(row) == len(accelerator.HEADER)
    longest = max(len(task.name) for task in accelerator.tasks_of(small=False))
    assert longest < len(accelerator.HEADER) - len(accelerator.HEADER.lstrip())
    assert accelerator.row_of("x", {"not run": "why"}).split() == ["x", "not", "run:", "why"]
    assert accelerator.row_of("x", {"y": 1, "request": {}}) == 'x: {"y": 1}'


def test_counts_of_the_compiled_program_are_found(accelerator: ModuleType) -> None:
    facts = {
        "local steps": [{"launches": 17}, {"launches": 2}],
        "tick without steps": {"launches": 20},
    }
    stored = {"cuda (compiled only)": {"programs": {"programs": {"favano-32": facts}}}}
    assert accelerator.counted_launches(stored, "favano-32") == {
        "launches of a local step": 19,
        "launches of a tick without steps": 20,
    }
    assert accelerator.counted_launches(stored, "other") is None
    assert accelerator.counted_launches({}, "favano-32") is None


def test_results_are_written_after_every_task_next_to_those_of_others(
    accelerator: ModuleType, tmp_path: Path
) -> None:
    out = tmp_path / "results.json"
    out.write_text(json.dumps({"cpu": {"fedavg": 1}, "gpu": {"other": 2}}))
    record = accelerator.Record(out, lambda: 7.04, small=False)
    record.report({"backend": "gpu"}, None, {})
    for name in ("first", "second"):
        task = accelerator.Task(name, "small", {"do": "sweep"})
        record.report({"backend": "gpu"}, task, {"failed": name})
        stored = json.loads(out.read_text())
        assert stored["gpu"]["accelerator"]["tasks"][name]["failed"] == name
    assert stored["cpu"] == {"fedavg": 1}
    assert stored["gpu"]["other"] == 2
    assert stored["gpu"]["accelerator"]["seconds left"] == 7.0
    assert "meaningless here" not in stored["gpu"]["accelerator"]


def test_an_earlier_run_is_resumed_with_what_it_did_not_measure(
    accelerator: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.92")  # or it would stay set
    file = tmp_path / "earlier.json"
    tasks: dict[str, Any] = {task.name: {"x": 1} for task in accelerator.tasks_of(small=True)}
    tasks["FedAvg perceptron, 1 lane"] = {"not run": "no time"}
    tasks["FA-LD, K = 2"] = {"failed": "no"}
    file.write_text(json.dumps({"cpu": {"accelerator": {"tasks": tasks}}}))
    found = accelerator.measured_before(file, "cpu")
    assert tasks.keys() - found.keys() == {"limits", "FedAvg perceptron, 1 lane", "FA-LD, K = 2"}
    # Without time, what is left is listed and nothing runs.
    out = tmp_path / "results.json"
    with pytest.raises(SystemExit):
        accelerator.main(
            ["--small", "--seconds", "0", "--resume", str(file), "--out", str(out), "FA", "Res"]
        )
    stored = json.loads(out.read_text())["unknown"]["accelerator"]["tasks"]
    assert stored["ResNet-20, lax, wide"] == {"x": 1}
    assert "0 s were left" in stored["FA-LD, K = 2"]["not run"]
    assert "limits" not in stored
    assert "nothing was measured" in capsys.readouterr().err


def test_without_an_accelerator_only_tiny_tasks_run(
    accelerator: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="no accelerator"):
        accelerator.Record(None, lambda: 1.0, small=False).report({"backend": "cpu"}, None, {})
    accelerator.Record(None, lambda: 1.0, small=True).report({"backend": "cpu"}, None, {})


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu_with_tiny_sizes(accelerator: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, str(SCRIPT), "accelerator", "--small", "--out", str(out)]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,  # type: ignore[attr-defined]
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads(out.read_text())["cpu"]["accelerator"]
    tasks = stored["tasks"]
    assert list(tasks) == [task.name for task in accelerator.tasks_of(small=True)]
    wrong = {
        name: answer
        for name, answer in tasks.items()
        if "failed" in answer or ("not run" in answer and "pack" not in answer["not run"])
    }
    assert not wrong
    assert stored["meaningless here"] == accelerator.MEANINGLESS_ON_CPU
    assert stored["machine"]["device"] == "cpu"
    assert [tasks[f"FedAvg perceptron, {lanes}"]["lanes"] for lanes in ("1 lane", "4 lanes")] == [
        1,
        4,
    ]
    for name, answer in tasks.items():
        if answer["request"]["do"] == "sweep" and "not run" not in answer:
            assert 0 < answer["replay seconds"] <= answer["call seconds"], name
            assert answer["share of product"] > 0, name
            assert f"\n{name} " in done.stdout
    assert tasks["launches of fald-1"]["launches"] > 0
    (compared,) = stored["rule"]["points"]
    assert {"wide", "slots in turn"} <= set(compared["replay seconds"])
    assert '"suggested"' in done.stdout
