"""Lanes that are watched and stopped: what the watcher sees, and where stopped lanes end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout, Progress
from fedjax_sim.engine.watching import Display
from fedjax_sim.results.curves import NEVER
from fedjax_sim.results.runs import join_runs, warn_of_lanes
from tests.conftest import Regression
from tests.engine.test_division import assert_equal_runs

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
RATES = [0.02, 0.05, 0.1]
ENDS = {(0.05, 5): 1, (0.1, 2): 2}
"""At which evaluation lanes are stopped, by learning rate and seed."""
STOPPED_AT = [[NEVER, NEVER], [1, NEVER], [NEVER, 2]]
TURNS = Layout(4, False, 2)
Sweep = Callable[..., fedjax_sim.Run]
EVALUATED: list[None] = []


@struct.dataclass
class CountedRegression(Regression):
    """A regression that tells the host of each evaluation that is computed."""

    def evaluate(self, params: jax.Array) -> Any:
        jax.debug.callback(lambda: EVALUATED.append(None))
        return super().evaluate(params)


def stop_some(progress: Progress) -> list[bool]:
    """Stop the lanes of `ENDS`."""
    return [
        ENDS.get((point["lr"], seed)) == progress.evaluation
        for point, seed in zip(progress.settings, progress.seeds, strict=True)
    ]


@pytest.fixture(scope="module")
def sweep(regression: Callable, small: Callable) -> Sweep:
    """Return a function that runs six lanes, of which callers stop some."""
    made = regression()
    fields = {name: getattr(made, name) for name in ("inputs", "targets", "counts", "noise")}
    problem, hyper = CountedRegression(**fields), small(FEDAVG)

    def run(**options: Any) -> fedjax_sim.Run:
        EVALUATED.clear()
        chosen = {
            "seeds": [5, 2],
            "settings": {"lr": RATES},
            "budget": fedjax_sim.Ticks(8),
            "num_evals": 4,
        }
        return fedjax_sim.sweep(
            FEDAVG,
            problem,
            hyper,
            **{**chosen, "layout": TURNS, "keep": fedjax_sim.Keep(models=True), **options},
        )

    return run


@pytest.fixture(scope="module")
def whole(sweep: Sweep) -> fedjax_sim.Run:
    """The lanes, none of them stopped."""
    return sweep()


@pytest.fixture(scope="module")
def stopped(sweep: Sweep) -> tuple[fedjax_sim.Run, int]:
    """The lanes, two of them stopped, and how many evaluations were computed."""
    run = sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some))
    jax.effects_barrier()
    return run, len(EVALUATED)


def test_a_stopped_lane_ends_there_and_others_go_on(
    whole: fedjax_sim.Run, stopped: tuple[fedjax_sim.Run, int]
) -> None:
    """From its end on, a lane repeats its last values: none is NaN, and `eval=-1` is the end."""
    run = stopped[0]
    assert run.curves.stopped_at.values.tolist() == STOPPED_AT
    assert "stopped_at" not in whole.curves
    for i, at in enumerate(np.ravel(STOPPED_AT)):
        last = 4 if at == NEVER else int(at)
        known = np.minimum(np.arange(5), last)
        place = {"lr": i // 2, "seed": i % 2}
        for name in ("loss", "w0", "time", "ticks", "local_steps", "uplink_bits", "downlink_bits"):
            expected = whole.curves[name].isel(place).values[known]
            np.testing.assert_array_equal(run.curves[name].isel(place), expected, err_msg=name)
        np.testing.assert_array_equal(run.samples[i], whole.samples[i][known])
        np.testing.assert_array_equal(run.models[i], whole.samples[i][last])
        timeline, ticks = run.timelines[i], 2 * last
        for ours, theirs in zip(timeline, whole.timelines[i], strict=True):
            np.testing.assert_array_equal(ours, theirs[:ticks])
        lane = run.curves.isel(place)
        staleness = np.arange(ticks)[:, None] - timeline.version
        assert (lane.staleness_mean, lane.staleness_max) == (staleness.mean(), staleness.max())
        assert lane.needed == timeline.steps.sum()
    assert np.isfinite(run.curves.loss).all() and not run.curves.failed.any()


def test_means_over_steps_end_with_a_stopped_lane(sweep: Sweep) -> None:
    """They repeat their last values as other metrics do."""
    keep = fedjax_sim.Keep(measures=("drift",))
    run = sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some), keep=keep)
    for drift, at in zip(run.curves.drift.values.reshape(6, 5), np.ravel(STOPPED_AT), strict=True):
        assert np.isfinite(drift[1:]).all()
        assert at == NEVER or (drift[int(at) :] == drift[int(at)]).all()


def test_a_stopped_lane_costs_nothing_more_where_lanes_take_turns(
    stopped: tuple[fedjax_sim.Run, int],
) -> None:
    """Six initial evaluations, then four of each lane, of the stopped ones one and two."""
    assert stopped[1] == 6 + 4 * 4 + 1 + 2


def test_where_lanes_are_computed_together_a_sentence_says_so(
    sweep: Sweep, stopped: tuple[fedjax_sim.Run, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The results are the same up to rounding, and a sweep whose lanes all stop ends at once."""
    run = sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some), layout=Layout(4, True, 1))
    assert capsys.readouterr().err.count("computed together here") == 1
    assert run.curves.stopped_at.values.tolist() == STOPPED_AT
    np.testing.assert_allclose(run.curves.loss, stopped[0].curves.loss, rtol=1e-5)
    np.testing.assert_allclose(run.models, stopped[0].models, rtol=1e-5)
    ended = sweep(
        watch=fedjax_sim.Watch(on_evaluation=lambda progress: progress.evaluation == 2),
        layout=Layout(4, True, 1),
    )
    jax.effects_barrier()
    assert len(EVALUATED) == 3  # Of all six lanes at once.
    assert (ended.curves.stopped_at == 2).all()
    assert (ended.curves.ticks[..., -1] == 4).all()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("packed", [False, True])
def test_in_batches_the_lanes_that_go_on_take_the_places_of_those_that_ended(
    sweep: Sweep, whole: fedjax_sim.Run, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three batches of two: once lanes of two batches have ended, the others fill two of them."""
    slots = None if packed else 4
    layout = Layout(slots, True, 1, lane_batches=3, packed=packed)
    unstopped = sweep(layout=layout)
    run = sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some), layout=layout)
    jax.effects_barrier()
    # Three batches begin and reach the second evaluation with a lane less, two go on from there.
    assert len(EVALUATED) == 3 + 3 + 3 + 2 + 2
    assert capsys.readouterr().err == ""
    assert run.curves.stopped_at.values.tolist() == STOPPED_AT
    for i, at in enumerate(np.ravel(STOPPED_AT)):
        last = 4 if at == NEVER else int(at)
        known = np.minimum(np.arange(5), last)
        np.testing.assert_array_equal(run.samples[i], unstopped.samples[i][known])
        np.testing.assert_array_equal(run.models[i], unstopped.samples[i][last])
    np.testing.assert_allclose(unstopped.models, whole.models, rtol=1e-5)


def test_progress_says_what_is_known(sweep: Sweep, whole: fedjax_sim.Run, tmp_path: Path) -> None:
    """In pieces too: each is watched with its own lanes. After the last one nobody is asked."""
    seen: list[Progress] = []
    run = sweep(
        watch=fedjax_sim.Watch(on_evaluation=seen.append, progress=tmp_path / "line"),
        layout=TURNS._replace(max_lanes=3),
    )
    assert (run.curves.stopped_at == NEVER).all()
    assert [each.evaluation for each in seen] == [1, 2, 3] * 2
    for progress in seen:
        assert (progress.system, progress.num_evals) == ("fedavg", 4)
        assert sorted(progress.lanes) == list(progress.lanes) and len(progress.lanes) == 3
        assert not progress.stopped.any()
        known = 1 + progress.evaluation
        for i, place in enumerate(progress.lanes):
            lane = whole.curves.isel(lr=place // 2, seed=place % 2, eval=slice(known))
            assert progress.settings[i] == {"lr": RATES[place // 2]}
            assert progress.seeds[i] == [5, 2][place % 2]
            assert set(progress.metrics) == {"loss", "w0", "w1", "w2", "finite"}
            for name in ("loss", "w0"):
                np.testing.assert_array_equal(progress.metrics[name][i], lane[name])
            np.testing.assert_array_equal(progress.time[i], lane.time)
            np.testing.assert_array_equal(progress.ticks[i], lane.ticks)
    places = [place for progress in (seen[0], seen[3]) for place in progress.lanes]
    assert sorted(places) == list(range(6))
    assert (tmp_path / "line").read_text().startswith("fedavg: 4 of 4 evaluations, ")


def test_parts_and_a_stop_have_the_bits_of_the_whole(
    sweep: Sweep, stopped: tuple[fedjax_sim.Run, int]
) -> None:
    parts = [
        sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some), lanes=fedjax_sim.Part(i, 2))
        for i in range(2)
    ]
    assert_equal_runs(join_runs(parts), stopped[0])


@pytest.mark.slow
def test_a_stopped_lane_stays_stopped_when_the_run_is_resumed(
    sweep: Sweep, stopped: tuple[fedjax_sim.Run, int], whole: fedjax_sim.Run, tmp_path: Path
) -> None:
    """Killed after the first stop, and in a finished run."""

    def stop_then_die(progress: Progress) -> list[bool]:
        if progress.evaluation == 2:
            raise KeyboardInterrupt
        return stop_some(progress)

    with pytest.raises(KeyboardInterrupt):
        sweep(
            watch=fedjax_sim.Watch(on_evaluation=stop_then_die),
            checkpoints=fedjax_sim.Checkpoints(tmp_path),
        )
    seen: list[Progress] = []

    def stop_late(progress: Progress) -> list[bool] | None:
        seen.append(progress)
        return stop_some(progress) if progress.evaluation == 2 else None

    resumed = sweep(
        watch=fedjax_sim.Watch(on_evaluation=stop_late),
        checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
    )
    assert_equal_runs(resumed, stopped[0])
    assert [each.evaluation for each in seen] == [2, 3]
    assert seen[0].stopped.tolist() == [False, False, True, False, False, False]
    seen.clear()
    again = sweep(
        watch=fedjax_sim.Watch(on_evaluation=stop_late),
        checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
    )
    assert_equal_runs(again, stopped[0])
    assert seen == []
    with pytest.raises(ConfigError, match="which differs in on_evaluation"):
        sweep(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_evaluation": lambda progress: [True]}, "one bool for each of the 6 lanes"),
        (
            {"on_evaluation": lambda progress: 1},
            "what on_evaluation returned is 1, but must be",
        ),
    ],
)
def test_what_watchers_may_not_be(sweep: Sweep, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sweep(watch=fedjax_sim.Watch(**options))


def test_several_processes_cannot_ask_who_stops(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match="None with several processes, which could decide"):
        sweep(watch=fedjax_sim.Watch(on_evaluation=stop_some))


def test_divergence_and_collapse_warn_once(sweep: Sweep) -> None:
    """With the settings and seed of each lane and the evaluation, from the line that called."""
    with pytest.warns(fedjax_sim.LaneWarning) as record:
        run = sweep(settings={"lr": [0.02, 1e30, 0.1]})
    (found,) = record
    assert found.category is fedjax_sim.DivergedWarning
    assert str(found.message) == (
        "2 of 6 lanes of fedavg diverged (a number was not finite): lr=1e+30, seed=5 from "
        "evaluation 1 on; lr=1e+30, seed=2 from evaluation 1 on."
    )
    assert found.filename == __file__

    collapsed = run.curves.assign(
        collapsed_at=run.curves.failed_at * 3, failed_at=-1 + 0 * run.curves.failed_at
    )
    with pytest.warns(fedjax_sim.CollapsedWarning, match="2 of 6 lanes of fedavg ended at chance"):
        warn_of_lanes(collapsed)


def test_progress_in_a_pipe_is_silent_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked, it writes plain lines; on a terminal a bar with rate, virtual time and time left."""
    ticks, metrics = np.array([[0, 10, 20]]), {"finite": np.ones((1, 3), bool)}

    def show(shown: bool | None) -> str:
        display = Display("fedavg", ticks, ticks / 4, shown=shown)
        with display:
            display.update(1, metrics)
            display.update(2, metrics)
        return capsys.readouterr().err

    assert show(None) == show(False) == ""
    lines = show(True).splitlines()
    assert lines[0] == "fedavg: compiling"
    assert lines[-1].startswith("fedavg: 2 of 2 evaluations, ")
    assert "ticks/s, virtual time 5, about 0 s left" in lines[-1]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    shown = show(None)
    assert "ticks/s, virtual time" in shown and "0:00:0" in shown
