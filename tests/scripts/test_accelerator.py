"""The benchmark of accelerators: its pure parts, and all of it with tiny sizes on a CPU."""

import gzip
import importlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import slow_but

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
    assert traces.launches_of(trace) == [traces.Launch("jit__advance", "add.1", 2.0, "add")]


def test_the_newest_trace_of_a_folder_is_read(traces: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no trace"):
        traces.read_trace(tmp_path)
    for day in ("2026_01_02", "2026_01_10"):
        folder = tmp_path / "plugins" / "profile" / day
        folder.mkdir(parents=True)
        with gzip.open(folder / "host.trace.json.gz", "wt") as file:
            json.dump({"traceEvents": [], "day": day}, file)
    assert traces.read_trace(tmp_path)["day"] == "2026_01_10"


WORKER = """
import json, sys, time
request = json.loads(sys.argv[1])
if request["do"] == "end":
    sys.exit(3)
if request["do"] == "missing":
    print(json.dumps({"not run": "torch is not installed"}), flush=True)
    sys.exit()
time.sleep(request.get("prepare", 0))
print(json.dumps({"ready": True, "prepared": 0.5}), flush=True)
sys.stdin.readline()
began = time.monotonic()
time.sleep(request.get("measure", 0))
print(json.dumps({"from": began, "to": time.monotonic()}), flush=True)
"""


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Import the scheduler, whose processes do as `WORKER` says."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = importlib.import_module("benchmarks.side_by_side")
    folder = tmp_path / "scripts" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "on_device.py").write_text(WORKER)
    monkeypatch.setattr(module, "SCRIPTS", tmp_path / "scripts")
    return module


def perform(
    side_by_side: ModuleType,
    batches: list[list[dict[str, Any]]],
    background: tuple[dict[str, Any], ...] = (),
    *,
    seconds: float = 60.0,
    log: Path,
    **limits: float,
) -> dict[str, dict[str, Any]]:
    """Run tasks by their name, and return the answers."""
    answers: dict[str, dict[str, Any]] = {}

    def task(request: dict[str, Any]) -> Any:
        return side_by_side.Task(request["name"], request, **limits)

    side_by_side.measure(
        [[task(each) for each in batch] for batch in batches],
        [task(each) for each in background],
        seconds,
        log / "log.txt",
        lambda task, answer: answers.update({task.name: answer}),
    )
    return answers


def test_tasks_prepare_side_by_side_and_are_measured_one_at_a_time(
    side_by_side: ModuleType, tmp_path: Path
) -> None:
    tasks = [{"name": str(i), "do": "measure", "prepare": 1.0, "measure": 0.3} for i in range(3)]
    began = time.monotonic()
    answers = perform(side_by_side, [tasks], log=tmp_path)
    assert time.monotonic() - began < 3 * 1.3 + 2.0
    spans = [(answers[str(i)]["from"], answers[str(i)]["to"]) for i in range(3)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert answers["0"]["prepared"] == 0.5


@pytest.mark.slow
def test_tasks_that_fail_take_none_of_the_others_with_them(
    side_by_side: ModuleType, tmp_path: Path
) -> None:
    tasks = [
        {"name": "dead", "do": "end"},
        {"name": "missing", "do": "missing"},
        {"name": "never ready", "do": "measure", "prepare": 60.0},
        {"name": "endless", "do": "measure", "measure": 60.0},
        {"name": "good", "do": "measure"},
    ]
    answers = perform(side_by_side, [tasks], log=tmp_path, prepare=4.0, measure=1.0)
    assert answers["dead"] == {"failed": "the process ended with 3"}
    assert answers["missing"] == {"not run": "torch is not installed"}
    assert answers["never ready"]["failed"].startswith("not prepared after 4 s")
    assert answers["endless"]["failed"] == "did not end in time"
    assert "to" in answers["good"]


@pytest.mark.slow
def test_what_is_not_timed_rests_while_others_are_measured(
    side_by_side: ModuleType, tmp_path: Path
) -> None:
    """It would take two seconds; those in which it rests come on top."""
    background = ({"name": "beside", "do": "measure", "measure": 2.0},)
    tasks = [[{"name": "timed", "do": "measure", "measure": 3.0}]]
    answers = perform(side_by_side, tasks, background, log=tmp_path)
    assert "to" in answers["timed"] and answers["beside"]["to"] >= answers["timed"]["to"]


def test_batches_for_which_no_time_is_left_are_named(
    side_by_side: ModuleType, tmp_path: Path
) -> None:
    tasks = [[{"name": "late", "do": "measure"}]]
    answers = perform(side_by_side, tasks, seconds=5.0, log=tmp_path)
    assert answers == {"late": {"not run": "no time was left"}}


@pytest.mark.parametrize("small", [False, True])
def test_tasks_have_different_names_and_known_kinds(
    accelerator: ModuleType, on_device: ModuleType, small: bool
) -> None:
    tasks = accelerator.small_tasks() if small else accelerator.all_tasks()
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names)
    for task in tasks:
        assert task.request["do"] in on_device.PREPARE
        assert json.loads(json.dumps(task.request)) == task.request
    done = {task.request["do"] for task in tasks}
    # "first call" is what "first calls" starts, and "systems" goes on beside all others.
    assert done == set(on_device.PREPARE) - {"first call", "systems"}


@pytest.fixture
def on_device(accelerator: ModuleType) -> ModuleType:
    """Import what measures."""
    return importlib.import_module("benchmarks.on_device")


def test_every_measurement_in_one_precision_has_plain_jax_beside_it(
    accelerator: ModuleType,
) -> None:
    asked = {
        (task.request["who"], task.request["work"], task.request["precision"])
        for task in accelerator.all_tasks()
        if task.request["do"] == "contest"
    }
    for who, work, precision in asked:
        assert ("plain", work, precision) in asked, (who, work, precision)


def test_systems_are_shared_out_whole(accelerator: ModuleType, tmp_path: Path) -> None:
    tasks = accelerator.systems_tasks(list("abcde"), tmp_path, 2)
    for place in ("here", "cpu"):
        shares = [task.request["names"] for task in tasks if place in task.name]
        assert sorted(itertools.chain.from_iterable(shares)) == list("abcde")
    assert all(("cpu" in task.name) == ("JAX_PLATFORMS" in task.environment) for task in tasks)


def test_agreement_is_relative_and_next_to_that_of_a_larger_step(
    accelerator: ModuleType, tmp_path: Path
) -> None:
    models = np.array([[3.0, 4.0]])
    here = np.array([[3.0, 4.5]])
    np.savez(tmp_path / "here_0.npz", **{"x/models": here, "x/nudged": models})
    np.savez(tmp_path / "cpu_0.npz", **{"x/models": models, "x/nudged": models * 1.01})
    found = accelerator.agreement(tmp_path)
    assert found["x"]["difference"] == pytest.approx(0.1)
    assert found["x"]["of a step larger by 1e-6"] == pytest.approx(0.01)


def test_cells_stand_under_their_headings(accelerator: ModuleType) -> None:
    answer = {
        "rounds per second": 123456.0,
        "microseconds of a step": 60.04,
        "operations per second": 2.5e12,
    }
    row = accelerator.row_of("name", answer)
    assert row.split() == ["name", "1.235e+05", "-", "60.0", "2.50"]
    assert len(row) == len(accelerator.HEADER)
    assert accelerator.row_of("name", {"not run": "no time"}).endswith("not run: no time")
    told = accelerator.row_of("name", {"milliseconds": 3.0, "profile": ["x"]})
    assert told.split(maxsplit=1)[1] == '{"milliseconds": 3.0}'


def record_of(accelerator: ModuleType, out: Path, *, small: bool = False) -> Any:
    """Begin a record with some time left."""
    return accelerator.Record(out, lambda: 10.0, small=small)


def test_results_are_written_after_every_task_next_to_those_of_others(
    accelerator: ModuleType, tmp_path: Path
) -> None:
    out = tmp_path / "results.json"
    out.write_text(json.dumps({"gpu": {"fedavg": {"x": 1}}, "cpu": {"y": 2}}))
    record = record_of(accelerator, out)
    task = accelerator.repeated("fedavg", 1)
    record.report(task, {"machine": {"backend": "gpu", "device": "card"}, "milliseconds": 3.0})
    stored = json.loads(out.read_text())
    assert stored["cpu"] == {"y": 2} and stored["gpu"]["fedavg"] == {"x": 1}
    mine = stored["gpu"]["accelerator"]
    assert mine["machine"]["device"] == "card"
    assert mine["tasks"][task.name] == {"milliseconds": 3.0, "request": task.request}
    record.report(task._replace(name="other"), {"failed": "no"})
    assert set(accelerator.measured_before(out)) == {task.name}


def test_without_an_accelerator_only_tiny_tasks_run(
    accelerator: ModuleType, tmp_path: Path
) -> None:
    answer = {"machine": {"backend": "cpu", "device": "cpu"}}
    task = accelerator.repeated("fedavg", 1)
    with pytest.raises(SystemExit, match="finds no accelerator"):
        record_of(accelerator, tmp_path / "x.json").report(task, dict(answer))
    record_of(accelerator, tmp_path / "x.json", small=True).report(task, dict(answer))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "do",
    slow_but(["contest", "trace"], ["contest", "sweep", "trace", "calls", "own loop"]),
)
def test_what_is_measured_can_be_measured(
    accelerator: ModuleType, on_device: ModuleType, do: str
) -> None:
    """One tiny task of each kind that this process may hold; the others need one of their own."""
    task = next(task for task in accelerator.small_tasks() if task.request["do"] == do)
    request = {key: value for key, value in task.request.items() if key != "do"}
    replay = importlib.import_module("fedjax_sim.engine.program.replay").Replay
    advance = replay.advance
    try:
        answer = on_device.PREPARE[do](**request)()
    finally:
        replay.advance = advance
    assert json.loads(json.dumps(answer, default=float))
    assert answer.get("largest difference", 0.0) == 0.0


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu_with_tiny_sizes(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, str(SCRIPT), "accelerator", "--small", "--seconds", "1200"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["cpu"]["accelerator"]
    assert not [name for name, answer in found["tasks"].items() if "failed" in answer]
    assert found["agreement with the CPU"]["fedavg"]["difference"] == 0.0
