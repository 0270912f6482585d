"""The host works while devices do: a trace of what it does, in order, and results of equal bits."""

import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.lifecycle import STOPPED, exit_code_of
from fedjax_sim.engine.machine import memory, processes
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.results.runs import Run
from tests.engine.limited_sweep import Bowl
from tests.engine.test_checkpoint import assert_same_bits, kill_after

FEDBUFF, FEDAVG = fedjax_sim.SYSTEMS["fedbuff"], fedjax_sim.SYSTEMS["fedavg"]
OPTIONS: dict[str, Any] = {
    "seeds": 4,
    "budget": fedjax_sim.Ticks(6),
    "num_evals": 3,
    "layout": Layout(4, False, 1, evals_per_chunk=1),
}
"""Three chunks of two ticks."""


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a growing list of what the host does: begin, send, fetch, save, draw."""
    events: list[str] = []

    def note(where: Any, name: str, says: Callable[..., str]) -> None:
        whole = getattr(where, name)

        def noted(*given: Any, **named: Any) -> Any:
            events.append(says(*given))
            return whole(*given, **named)

        monkeypatch.setattr(where, name, noted)

    note(Replay, "begin", lambda *_: "begin")
    note(Replay, "advance", lambda self, carries, begin, *_: f"send {begin}")
    note(Replay, "final_models", lambda *_: "end")
    note(processes, "fetch", lambda *_: "fetch")
    note(Checkpoint, "save", lambda self, done, *_: f"save {done}")
    note(drawing.Schedules, "request", lambda schedules: f"draw {[*schedules.seeds]}")
    return events


@pytest.fixture
def run(regression: Callable, small: Callable) -> Callable[..., Run]:
    """Return a function that runs four lanes."""
    return lambda system=FEDBUFF, **changes: fedjax_sim.sweep(
        system, regression(), small(system), **(OPTIONS | changes)
    )


SENT_AHEAD = ["begin", "send 0", "fetch", "send 2", "fetch", "send 4", "fetch", "fetch"]
IN_ORDER = ["begin", "fetch", "send 0", "fetch", "send 2", "fetch", "send 4", "fetch"]


def test_a_chunk_is_sent_before_the_one_before_is_fetched(
    run: Callable[..., Run], trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless there is little memory, or what a chunk returns decides which lanes go on."""
    drawn = "draw [0, 1, 2, 3]"
    ahead = run()
    assert trace == [drawn, *SENT_AHEAD, "end", "fetch"]
    trace.clear()
    watched = run(watch=fedjax_sim.Watch(on_evaluation=lambda now: False))
    assert trace == [drawn, *IN_ORDER, "end", "fetch"]
    trace.clear()
    monkeypatch.setattr(memory, "AHEAD", 0.0)
    assert_same_bits(run(), ahead)
    assert trace == [drawn, *IN_ORDER, "end", "fetch"]
    np.testing.assert_array_equal(watched.models, ahead.models)


@pytest.mark.slow
def test_lanes_that_may_all_have_ended_run_in_order(
    run: Callable[..., Run], trace: list[str]
) -> None:
    run(fedjax_sim.SYSTEMS["oort"])
    assert trace[1:] == [*IN_ORDER, "end", "fetch"]


def test_a_chunk_is_sent_before_a_state_is_saved(
    run: Callable[..., Run], trace: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved one is a copy, because the chunk takes the state. A killed run goes on from it."""
    whole = run()
    trace.clear()
    with monkeypatch.context() as patch:
        kill_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=fedjax_sim.Checkpoints(tmp_path, every=0.0))
    begun = ["begin", "send 0", "fetch", "send 2", "fetch", "save 2", "send 4", "fetch", "save 4"]
    assert trace[1:] == begun
    trace.clear()
    assert_same_bits(run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True)), whole)
    assert trace == ["send 4", "fetch", "save 6", "end", "fetch"]


def test_a_signal_waits_for_what_was_sent(
    run: Callable[..., Run], trace: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk that was sent has taken the state before it, which was not to be saved."""
    fetch = processes.fetch

    def fetch_and_tell(tree: Any) -> Any:
        if trace[-2:] == ["fetch", "send 2"]:
            os.kill(os.getpid(), signal.SIGTERM)
        return fetch(tree)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "fetch", fetch_and_tell)
        code = exit_code_of("test", lambda: run(checkpoints=fedjax_sim.Checkpoints(tmp_path)))
    assert code == STOPPED
    assert trace[1:] == ["begin", "send 0", "fetch", "send 2", "fetch", "fetch", "save 4"]
    assert_same_bits(run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True)), run())


@struct.dataclass
class Failing(Bowl):
    """A problem whose third evaluation raises an error on the host."""

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        def count(first: Any) -> Any:
            if next(CALLS) == 2:
                raise ValueError("a fault of the problem")
            return first

        first = super().evaluate(params)["first"]
        return {"first": jax.pure_callback(count, first, first, vmap_method="sequential")}


CALLS = itertools.count()


def test_an_error_in_a_chunk_that_was_sent_keeps_what_was_saved(
    small: Callable, trace: list[str], tmp_path: Path
) -> None:
    run = partial(fedjax_sim.simulate, FEDBUFF, Failing(jnp.ones(7, "int32"), 3), small(FEDBUFF))
    saved = fedjax_sim.Checkpoints(tmp_path, every=0.0)
    options = {name: value for name, value in OPTIONS.items() if name != "seeds"}
    with pytest.raises(Exception, match="a fault of the problem"):
        run(**options, checkpoints=saved)
    assert [path.stem[:18] for path in tmp_path.rglob("state-*")] == ["state-000000000002"]
