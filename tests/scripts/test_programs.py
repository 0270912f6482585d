"""Ceilings for what replay programs launch on an H200, which need its compiler but no H200.

And the table of these figures, which needs neither.
"""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

import fedjax_sim

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"
COMPILERS = ("jax-cuda13-plugin", "nvidia-cuda-nvcc")
LEVEL = "TF_CPP_MIN_LOG_LEVEL"

# Launches, which are kernels and copies.
FEDAVG_STEP = 18
"""Of a local step of FedAvg, 784-128-10, batches of 32, twenty slots."""
FAVANO_STEP = 17
"""Of a local step of FAVANO, 784-32-10, batches of 128, four seeds with twenty slots each."""
FALD_TICK = 13
"""Of a tick of FA-LD with one step of exact gradients, 30 seeds of two step sizes, 50 slots."""
MEDIAN_TICK = 60
"""Of a tick of FedAvg with medians, without its steps; by bisection it would be 540."""


TOO_SMALL = """
import jax, jax.numpy as jnp
import fedjax_sim
from benchmarks.programs import TARGETS
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

facts = TARGETS["h200"].facts
size = "device_memory_size: 150000000000"
small = facts["target_config"].replace(size, "device_memory_size: 1000000")
described = topologies.get_topology_desc(platform="cuda", **facts | {"target_config": small})
place = jax.sharding.SingleDeviceSharding(described.devices[0])
x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
lowered = jax.jit(lambda x: jnp.sin(x @ x) @ x, in_shardings=place, out_shardings=place).lower(x)
jax.config.update("jax_enable_compilation_cache", False)
compilation_cache.reset_cache()
print(lowered.compile().memory_analysis().temp_size_in_bytes)
"""
"""Compiles a program for an H200 of 1 MB, and prints the bytes of its temporaries."""


@pytest.mark.parametrize(("level", "is_told"), [(None, False), ("1", False), ("0", True)])
def test_a_compiler_that_lacks_memory_is_not_heard(level: str | None, is_told: bool) -> None:
    skip_without_compilers()
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    environment |= {"PYTHONPATH": os.pathsep.join([*map(str, SCRIPT.parents[:2])])}
    environment |= {"JAX_PLATFORMS": "cpu"} | ({} if level is None else {LEVEL: level})
    command = [sys.executable, "-c", TOO_SMALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1_000_000
    assert ("Can't reduce memory use" in done.stderr) == is_told


def skip_without_compilers() -> None:
    """Skip a test that needs what compiles for an H200."""
    installed = {each.metadata["Name"] for each in importlib.metadata.distributions()}
    if missing := [name for name in COMPILERS if name not in installed]:
        pytest.skip(f"needs {' and '.join(missing)}: pip install -e .[aot]")


@pytest.mark.few(1)
@pytest.mark.parametrize(("given", "kept"), [(None, "2"), ("1", "2"), ("0", "0"), ("3", "3")])
def test_the_level_of_messages_is_what_was_asked_for(given: str | None, kept: str) -> None:
    """JAX sets level 1 if there is none, whether it is imported before or after."""
    for first, second in (("jax", "fedjax_sim"), ("fedjax_sim", "jax")):
        environment = {name: value for name, value in os.environ.items() if name != LEVEL}
        environment |= {} if given is None else {LEVEL: given}
        program = f"import os, {first}, {second}; print(os.environ[{LEVEL!r}])"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == kept


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compile four programs, and return what is counted in each."""
    skip_without_compilers()
    out = tmp_path_factory.mktemp("programs") / "results.json"
    names = ["fedavg-128", "favano-32", "fald-1", "fedavg-median"]
    command = [sys.executable, str(SCRIPT), "programs", "--target", "h200", "--out", str(out)]
    # The flags of the tests' own programs are not for a GPU.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([*command, *names], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in names)
    return json.loads(out.read_text())["cuda (compiled only)"]["programs"]["programs"]


def waits(counts: dict[str, int]) -> int:
    """Count how often the host waits for the GPU."""
    return counts["loop checks"] + counts["conditionals"]


def test_a_local_step_of_fedavg_launches_little_and_waits_for_nothing(
    programs: dict[str, Any],
) -> None:
    (step,) = programs["fedavg-128"]["local steps"]
    assert step["trips"] == 20
    assert step["launches"] <= FEDAVG_STEP
    assert waits(step) == waits(programs["fedavg-128"]["tick without steps"]) == 0


def test_a_local_step_of_favano_launches_little(programs: dict[str, Any]) -> None:
    steps = programs["favano-32"]["local steps"]
    assert steps
    assert max(step["launches"] for step in steps) <= FAVANO_STEP


def test_a_tick_of_single_langevin_steps_launches_little_and_waits_for_nothing(
    programs: dict[str, Any],
) -> None:
    # One step of its loop, if XLA has left a loop of one trip.
    parts = [programs["fald-1"]["tick without steps"], *programs["fald-1"]["local steps"]]
    assert sum(part["launches"] for part in parts) <= FALD_TICK
    assert sum(map(waits, parts)) == 0


def test_medians_launch_little(programs: dict[str, Any]) -> None:
    assert programs["fedavg-median"]["tick without steps"]["launches"] <= MEDIAN_TICK


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the benchmark as its script does."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("benchmarks.programs")


def test_every_system_is_compiled_with_its_default_settings(module: ModuleType) -> None:
    for name in fedjax_sim.SYSTEMS:
        assert module.WORKLOADS[name].system == name and not module.WORKLOADS[name].by_hand
        assert not module.WORKLOADS[name].changes


def test_each_further_loop_over_steps_has_a_row_of_the_table(module: ModuleType) -> None:
    hlo = module.hlo
    step = Counter({"fusions": 17, "copies": 2, "bytes": 36_557_000, "operations": 261_816_320})
    tick = Counter({"fusions": 8, "custom calls": 3, "loop checks": 1, "conditionals": 2})
    steps = [hlo.Step(20, "while.1", step), hlo.Step(None, "while.2", Counter({"fusions": 5}))]
    anatomy = hlo.Anatomy(steps, tick, Counter({"fusions": 47}), Counter(), "while.3")
    rows = module.rows_of("fedavg", module.facts_of(anatomy, {"bytes of temporaries": 24_216_520}))
    assert [" ".join(row.split()) for row in rows] == [
        "fedavg 20 19 (17+0+2+0) 0 0 36.6 0.2618 11 (8+3+0+0) 1 2 47 24217",
        "? 5 (5+0+0+0) 0 0 0.0 0",
    ]
    assert max(map(len, [*rows, *module.HEADER.splitlines()])) <= 120
    # Columns stand under their headings.
    assert {len(rows[0]), *map(len, module.HEADER.splitlines())} == {len(rows[0])}


def test_programs_of_the_same_compiler_stay_in_the_file(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, text = tmp_path / "results.json", "ENTRY %main (x: f32[]) -> f32[] {\n}\n"
    empty = module.hlo.Anatomy([], Counter(), Counter(), Counter(), "")
    monkeypatch.setattr(module.hlo, "anatomy", lambda program: empty)

    def stored(name: str, version: str) -> set[str]:
        monkeypatch.setattr(module, "versions", lambda packages: {"compiler": version})
        (tmp_path / f"{name}.hlo").write_text(text)
        (tmp_path / f"{name}.json").write_text('{"bytes of temporaries": 0}')
        module.report("h200", [name], tmp_path, out, detail=False)
        return set(json.loads(out.read_text())["cuda (compiled only)"]["programs"]["programs"])

    assert stored("fedavg", "1") == {"fedavg"}
    assert stored("favano", "1") == {"fedavg", "favano"}
    assert stored("favano", "2") == {"favano"}
    monkeypatch.setattr(module.jax, "__version__", "99.0")
    assert stored("fedavg", "3") == {"favano"}, "another JAX has a table of its own"
    assert list(json.loads(out.read_text())["cuda, JAX 99.0 (compiled only)"]) == ["programs"]


@pytest.mark.parametrize("name", ["plain-fedavg-128", "plain-favano-32-sweep"])
def test_plain_jax_does_the_same_work(module: ModuleType, name: str) -> None:
    """Both make the same matrix products, each in a loop over steps within one over ticks."""
    work, cpu = module.WORKLOADS[name], jax.devices()[0]
    hyper = fedjax_sim.SYSTEMS[work.system].paper(**work.changes)
    text = module.plain(work, hyper, cpu).as_text(debug_info=True)
    assert "tick/" in text and "local_step/" in text
    lanes = work.seeds * len(work.settings.get("lr", [0]))
    slots = hyper.num_selected * (1 if lanes == 1 else lanes)
    hidden, batch = work.problem.network.hidden[0], hyper.batch_size
    forward = f"tensor<{lanes}x{hyper.num_selected}x{batch}x784xf32>"
    if lanes == 1:
        forward = f"tensor<{slots}x{batch}x784xf32>"
    assert re.search(rf"dot_general.*{re.escape(forward)}.*x{hidden}xf32>", text)


def test_a_missing_compiler_is_named(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "versions", lambda packages: {})
    with pytest.raises(SystemExit):
        module.main(["--target", "v5e"])
    assert "v5e needs libtpu: pip install -e .[aot]" in capsys.readouterr().err
