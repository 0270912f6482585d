"""Lanes that do not fit in memory together run in pieces, with the results of the whole."""

import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core import lifecycle
from fedjax_sim.engine.machine import compiling, memory
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.program import replay
from fedjax_sim.engine.running import chunks, pieces
from tests.conftest import Regression
from tests.engine.limited_sweep import Bowl

FEDBUFF = fedjax_sim.SYSTEMS["fedbuff"]
OPTIONS: dict[str, Any] = {
    "settings": {"server_interact": [1.0, 12.0]},
    "seeds": 4,
    "budget": fedjax_sim.Time(60.0),
    "num_evals": 5,
    "layout": Layout(4, False, 1),
    "keep": fedjax_sim.Keep(models=True),
}
"""Eight lanes of different numbers of ticks."""
Sweep = Callable[..., fedjax_sim.Run]


@pytest.fixture(scope="module")
def sweep(regression: Callable[..., Regression], small: Callable) -> Sweep:
    """Return a function that runs the eight lanes, with options that may be changed."""
    return lambda **changes: fedjax_sim.sweep(
        FEDBUFF,
        regression(),
        small(FEDBUFF, restart="after_interaction"),
        **(OPTIONS | changes),
    )


@pytest.fixture
def schedules_that_fit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that leaves memory on the host for some schedules, like the first."""

    def leave(number: int) -> None:
        sizes: list[float] = []

        def free_on_host() -> float:
            return number * sizes[0] / memory.SHARE

        check = drawing._check_size

        def listen(system: Any, hypers: Any, budget: Any, ticks: int) -> None:
            slots = drawing.read_timeline(system, hypers[0]).slots
            sizes.append(1.1 * drawing.BYTES_OF_A_PLANNED_SLOT * ticks * slots)
            check(system, hypers, budget, ticks)

        monkeypatch.setattr(drawing, "BYTES_OF_A_PLANNED_SLOT", 2**30)
        monkeypatch.setattr(drawing, "_check_size", listen)
        monkeypatch.setattr(lifecycle, "free_on_host", free_on_host)

    return leave


@pytest.fixture(scope="module")
def needed() -> list[int]:
    """Bytes that programs turned out to take, in order."""
    return []


@pytest.fixture(scope="module")
def whole(sweep: Sweep, needed: list[int]) -> fedjax_sim.Run:
    """The eight lanes in one piece."""
    say = pieces.Pieces._say_what_is_chosen

    def listen(self: Any, ready: Any, bytes_needed: float, free: float) -> None:
        needed.append(int(bytes_needed))
        say(self, ready, bytes_needed, free)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces.Pieces, "_say_what_is_chosen", listen)
        return sweep()


@pytest.fixture
def lanes_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a growing list: the lanes of every piece that begins to run."""
    numbers: list[int] = []
    replay_group = pieces.replay_group

    def listen(ready: Any) -> Any:
        numbers.append(len(ready.planned.group))
        return replay_group(ready)

    monkeypatch.setattr(pieces, "replay_group", listen)
    return numbers


def assert_equal(run: fedjax_sim.Run, expected: fedjax_sim.Run) -> None:
    """Compare everything that runs return, bit for bit."""
    assert set(run.curves.variables) == set(expected.curves.variables)
    for name in expected.curves.variables:
        np.testing.assert_array_equal(run.curves[name], expected.curves[name], err_msg=name)
    np.testing.assert_array_equal(run.models, expected.models)
    np.testing.assert_array_equal(run.samples, expected.samples)
    for ours, theirs in zip(run.timelines, expected.timelines, strict=True):
        for leaf, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(leaf, other)


def test_what_fits_runs_in_one_piece_and_nothing_is_said(
    sweep: Sweep, whole: fedjax_sim.Run, lanes_run: list[int], capsys: pytest.CaptureFixture
) -> None:
    sweep()
    assert lanes_run == [8]
    assert capsys.readouterr().err == ""


def test_pieces_give_the_results_of_the_whole(
    sweep: Sweep,
    whole: fedjax_sim.Run,
    needed: list[int],
    lanes_run: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Nine tenths of what the program takes is free, so half of the lanes run at a time.

    The longest lane has more ticks than any lane of the other piece, and yet both are evaluated
    after the same ticks as in the whole.
    """
    free = 0.9 * needed[-1] / memory.SHARE
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    assert_equal(sweep(), whole)
    assert lanes_run == [4, 4]
    said = capsys.readouterr().err
    assert said.startswith("fedjax-sim: 8 lanes of fedbuff run 4 at a time, which takes about ")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_what_cannot_fit_is_not_compiled(
    small: Callable, lanes_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models that twelve lanes carry take three times the memory that is free."""
    compiled: list[int] = []
    prepare = replay.Replay.prepare

    def listen(self: Any, **how: Any) -> int:
        before = self.form in compiling.known_sizes
        size = prepare(self, **how)
        if not before and self.form in compiling.known_sizes:
            compiled.append(len(self.placed.place_of))
        return size

    def run(size: int) -> fedjax_sim.Run:
        return fedjax_sim.sweep(
            fedjax_sim.SYSTEMS["fedavg"],
            Bowl(jnp.ones(7, "int32"), size),
            small(fedjax_sim.SYSTEMS["fedavg"]),
            seeds=12,
            budget=fedjax_sim.Ticks(2),
            num_evals=1,
            layout=Layout(4, True, 1),
        )

    monkeypatch.setattr(replay.Replay, "prepare", listen)
    whole = run(5000)
    assert (compiled, lanes_run) == ([12], [12])
    compiling.known_sizes.clear()
    free = 12 * 5000 * 4 / 3
    monkeypatch.setattr(memory, "free_memory", lambda: free / memory.SHARE)
    np.testing.assert_array_equal(run(5000).models, whole.models)
    assert max(compiled[1:]) <= 3 and sum(lanes_run[1:]) == 12 and max(lanes_run[1:]) <= 3


@pytest.mark.parametrize(("seeds", "max_lanes"), [(1, None), (4, 4), (4, 1)])
def test_a_lane_that_cannot_fit_is_refused_before_it_is_compiled(
    small: Callable, monkeypatch: pytest.MonkeyPatch, seeds: int, max_lanes: int | None
) -> None:
    """Its state takes more than there is, whatever number of lanes was asked for."""
    free = 0.9 * 5003 * 4
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    monkeypatch.setattr(memory, "free_here", lambda: free)
    monkeypatch.setattr(memory, "drop_programs_near_the_limit", lambda: pytest.fail("compiled"))
    with pytest.raises(fedjax_sim.ConfigError, match=r"memory is .* but must be enough for one"):
        fedjax_sim.sweep(
            fedjax_sim.SYSTEMS["fedavg"],
            Bowl(jnp.ones(7, "int32"), 5003),
            small(fedjax_sim.SYSTEMS["fedavg"]),
            seeds=seeds,
            budget=fedjax_sim.Ticks(2),
            num_evals=1,
            layout=Layout(4, True, 1, max_lanes=max_lanes),
        )


def test_running_out_of_memory_halves_the_lanes(
    sweep: Sweep,
    whole: fedjax_sim.Run,
    lanes_run: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The estimate is wrong here: more than four lanes do not fit, whatever was free.

    The lanes of the second piece are the slow ones. Alone they would be evaluated more often.
    """
    fast, slow = whole.curves.ticks.max(["seed", "eval"]).values
    assert -(-slow // OPTIONS["num_evals"]) < -(-fast // OPTIONS["num_evals"])
    replay_group = pieces.replay_group

    def run_few(ready: Any) -> Any:
        if len(ready.planned.group) > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
        return replay_group(ready)

    monkeypatch.setattr(pieces, "replay_group", run_few)
    assert_equal(sweep(), whole)
    assert lanes_run == [4, 4]
    assert capsys.readouterr().err == (
        "fedjax-sim: memory ran out with 8 lanes of fedbuff at a time; from here on 4 run at a "
        "time.\n"
    )


def test_running_out_of_memory_keeps_checkpoints(
    sweep: Sweep, whole: fedjax_sim.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the memory after states have been written."""
    evaluate, calls = chunks.Evaluations.put, itertools.count()

    def put(*given: Any) -> None:
        if next(calls) == 3:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
        evaluate(*given)

    saved = fedjax_sim.Checkpoints(tmp_path, every=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(chunks.Evaluations, "put", put)
        with pytest.raises(ConfigError, match="enough for 8 lanes of fedbuff, whose checkpoints"):
            sweep(checkpoints=saved)
    assert list(tmp_path.rglob("state-*"))
    assert_equal(sweep(checkpoints=dataclasses.replace(saved, resume=True)), whole)


def test_a_lane_that_does_not_fit_is_one_sentence(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_none(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(pieces, "replay_group", run_none)
    with pytest.raises(ConfigError, match=r"^memory is .*enough for one lane of fedbuff: .*\.$"):
        sweep(settings=None, seeds=1)


def test_other_errors_are_not_taken_for_a_lack_of_memory(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(pieces, "replay_group", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        sweep()


def test_a_resumed_run_has_the_pieces_it_had(
    sweep: Sweep,
    whole: fedjax_sim.Run,
    lanes_run: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run in pieces of four is killed in its second piece; by then there is memory for all.

    The first piece has ended and does not run again.
    """
    replay_group = pieces.replay_group

    def run_one(ready: Any) -> Any:
        if ready.planned.options.folder.name == "part_1":
            raise KeyboardInterrupt
        return replay_group(ready)

    stepwise = OPTIONS["layout"]._replace(evals_per_chunk=5)
    with monkeypatch.context() as patch:
        patch.setattr(pieces, "replay_group", run_one)
        with pytest.raises(KeyboardInterrupt):
            sweep(
                checkpoints=fedjax_sim.Checkpoints(tmp_path), layout=stepwise._replace(max_lanes=4)
            )
    assert lanes_run == [4]
    saved = fedjax_sim.Checkpoints(tmp_path, resume=True)
    assert_equal(sweep(checkpoints=saved, layout=stepwise), whole)
    assert lanes_run == [4, 4]


@struct.dataclass
class Large:
    """Least squares whose examples take 4 MB, and are the test examples too.

    Attributes:
      counts: `i32[N]`.
      inputs: `f[N, M, P]`.
      tests: The same array.
      unused: An array that no program reads.
    """

    counts: jax.Array
    inputs: Any
    tests: Any
    unused: Any = None

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.inputs.shape[2])

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.mean(jnp.square(jnp.asarray(self.inputs)[client, examples] @ params - 1))

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        return {"loss": jnp.mean(jnp.square(self.tests[0] @ params - 1))}


@pytest.fixture
def measure(small: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that measures the bytes of a sweep of four lanes on some devices."""
    say, system = pieces.Pieces._say_what_is_chosen, fedjax_sim.SYSTEMS["fedavg"]

    def needs(inputs: Any, lane_devices: int = 1, unused: Any = None) -> int:
        found: list[int] = []

        def listen(self: Any, ready: Any, needed: int, free: float) -> None:
            found.append(needed)
            say(self, ready, needed, free)

        problem = Large(jnp.full(7, 2, "int32"), inputs, inputs, unused)
        layout = Layout(1, False, lane_devices, 1)
        with monkeypatch.context() as patch:
            patch.setattr(pieces.Pieces, "_say_what_is_chosen", listen)
            fedjax_sim.sweep(
                system, problem, small(system), seeds=4, budget=fedjax_sim.Ticks(1), layout=layout
            )
        return found[-1]

    return needs


INPUTS = np.ones((7, 2, 75_000), "float32")


@pytest.mark.parametrize("lane_devices", [1, 4])
def test_data_on_the_devices_are_not_counted_again(
    measure: Callable[..., int], lane_devices: int
) -> None:
    """Neither for each core of a CPU nor for each entry that is the same array."""
    there = measure(jnp.asarray(INPUTS), lane_devices)
    assert measure(INPUTS, lane_devices) == there + INPUTS.nbytes


def test_data_that_no_program_reads_hide_no_other_need(
    measure: Callable[..., int],
) -> None:
    """Lanes take about two models each: what they carry, and a gradient."""
    without = measure(jnp.asarray(INPUTS))
    unused = measure(jnp.asarray(INPUTS), unused=jnp.zeros(10 * INPUTS.size, "float32"))
    assert unused == without
    assert without > 4 * INPUTS[0, 0].nbytes


def test_cores_read_one_copy_of_an_array(small: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that belongs to NumPy, which is copied once."""
    system, replays, replay_group = fedjax_sim.SYSTEMS["fedavg"], [], pieces.replay_group

    def listen(ready: Any) -> Any:
        replays.append(ready.replay)
        return replay_group(ready)

    monkeypatch.setattr(pieces, "replay_group", listen)
    for inputs in (jnp.asarray(INPUTS), INPUTS.copy()):
        problem = Large(jnp.full(7, 2, "int32"), inputs, inputs)
        layout = Layout(1, False, 4, 1)
        fedjax_sim.sweep(
            system, problem, small(system), seeds=4, budget=fedjax_sim.Ticks(1), layout=layout
        )
        _, ours, tests = replays.pop().placed.lanes.problem.shared
        copies = {
            shard.data.unsafe_buffer_pointer()
            for leaf in (ours, tests)
            for shard in leaf.addressable_shards
        }
        assert len(ours.addressable_shards) == 4
        assert len(copies) == 1
        assert (inputs.ctypes.data if isinstance(inputs, np.ndarray) else None) not in copies


@pytest.mark.slow
def test_lanes_whose_schedules_fill_the_host_are_halved_before_they_are_planned(
    sweep: Sweep,
    whole: fedjax_sim.Run,
    lanes_run: list[int],
    schedules_that_fit: Callable[[int], None],
    capsys: pytest.CaptureFixture,
) -> None:
    schedules_that_fit(3)
    assert_equal(sweep(), whole)
    assert lanes_run == [2, 2, 2, 2]
    said = capsys.readouterr().err
    assert said.startswith("fedjax-sim: 8 lanes of fedbuff run 2 at a time, which takes about ")


def test_planning_for_hours_is_refused_before_it_begins(sweep: Sweep, small: Callable) -> None:
    with pytest.raises(ConfigError, match=r"num_ticks is 10000000, .* about [0-9]+ hours\.$"):
        Schedules(FEDBUFF, range(500), [small(FEDBUFF)] * 500, fedjax_sim.Ticks(10**7)).request()
    with pytest.raises(ConfigError, match=r"time_budget is 10000000.0, but must be smaller"):
        sweep(seeds=500, budget=fedjax_sim.Time(1e7))


def test_ticks_are_counted_a_few_schedules_at_a_time(
    small: Callable,
    schedules_that_fit: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are those of all schedules drawn together."""
    seeds, hypers = [*range(4)], [small(FEDBUFF)] * 4
    given = FEDBUFF, seeds, hypers, fedjax_sim.Time(30.0), np.arange(4)
    together = Schedules(*given).count_ticks()
    drawn: list[int] = []
    request = Schedules.request

    def listen(schedules: Schedules) -> Any:
        drawn.append(len(schedules.seeds))
        return request(schedules)

    monkeypatch.setattr(Schedules, "request", listen)
    schedules_that_fit(2)
    alone = Schedules(*given).count_ticks()
    assert drawn == [4, 2, 2]
    np.testing.assert_array_equal(alone, together)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured by /proc")
def test_a_sweep_that_does_not_fit_finishes_in_pieces() -> None:
    """2,000 clients and 256 lanes take 4.1 GB, and a limit of address space leaves 3 GB.

    The peak is what the sentence says, give or take 30 %.
    """
    done = run_limited(str(3 * 10**9))
    said = done.stderr.split()
    assert done.stderr.startswith("fedjax-sim: 256 lanes of fedbuff run 128 at a time, which takes")
    estimate = 1e9 * float(said[said.index("about") + 1])
    assert 0.7 * estimate < int(done.stdout) < 1.3 * estimate


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured by /proc")
def test_lanes_that_were_asked_for_and_do_not_fit_are_halved() -> None:
    """The caller asks for all lanes at a time where a quarter of them fits."""
    done = run_limited(str(15 * 10**8), "256")
    assert done.stderr.startswith("fedjax-sim: 256 lanes of fedbuff run 64 at a time, which takes")


def run_limited(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the sweep of 2,000 clients and 256 lanes in a new process, with little address space."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("limited_sweep.py"), *words],
        env=os.environ | {"PYTHONPATH": str(Path(fedjax_sim.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done
