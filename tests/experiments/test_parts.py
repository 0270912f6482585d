"""Experiments in parts: the parts meet in a folder, in as many rounds as the experiment needs."""

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from experiments.harness import Arguments, Outcome, main, queue, registry, run_experiment
from experiments.harness.command import merge_parts, run_methods, run_part, stopping_after
from experiments.harness.parts import ExperimentPart
from experiments.harness.queue import Queued
from fedjax_sim import Layout
from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import read_json
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems import Quadratic
from fedjax_sim.results.reports import load
from tests.engine.test_division import assert_equal_runs
from tests.kept_files import NUM_FLIPS, Touch, count_refusals

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
PINNED = Layout(slots_at_once=4, lanes_at_once=False, client_devices=1)


@pytest.fixture
def tuned(small: Callable) -> Callable[[Arguments], Outcome]:
    """Return an experiment of three sweeps; the third's learning rate depends on the first two.

    The first has one lane, fewer than there are parts. Nobody looks at it before the second.
    """
    problem = Quadratic.of(np.arange(21.0, dtype="float32").reshape(7, 3), noise=0.1)

    def run(arguments: Arguments) -> Outcome:
        def sweep(name: str, lrs: list[float], seeds: int) -> Any:
            return fedjax_sim.sweep(
                FEDAVG,
                problem,
                small(FEDAVG),
                seeds=seeds,
                settings={"lr": lrs},
                budget=fedjax_sim.Ticks(4),
                num_evals=2,
                layout=PINNED,
                **arguments.kept(name),
            )

        first = sweep("one lane/", [0.1], 1)
        tried = sweep("tuning", [0.01, 0.2], 2)
        last = tried.curves.loss.isel(eval=-1).mean("seed") + float(first.models.sum()) * 0
        best = float(tried.curves.lr[int(np.argmin(last.values))])
        final = sweep("final", [best], 4)
        return Outcome({"final": final.curves}, {}, [], {"best": best}, f"best: {best}")

    return run


@pytest.mark.slow
def test_parts_take_two_rounds_and_give_the_whole(
    tuned: Callable[[Arguments], Outcome], tmp_path: Path
) -> None:
    """Each part of the first round runs its lanes of two sweeps, as nobody looks at the first."""
    whole = run_experiment("x/y", tuned, Arguments(out=str(tmp_path / "whole")))
    out = tmp_path / "parts"
    arguments = Arguments(out=str(out))

    def round_of(number: int) -> str:
        return run_part("x/y", tuned, arguments, ExperimentPart(out, number, 2))

    merging = ExperimentPart(out, None, 2)
    assert "part 0/2 is at an end for now: tuning waits for parts 1/2" in round_of(0)
    ran = {path.relative_to(out / "parts").as_posix() for path in merging.files()}
    assert ran == {"one lane of /0-of-2.json", "tuning/0-of-2.json"}
    with pytest.raises(ConfigError, match=r"complete, but .* waits for parts 1/2"):
        merge_parts("x/y", tuned, arguments, 2)
    assert "final waits for parts 0/2" in round_of(1)
    assert "part 0/2 is done, and so are the others" in round_of(0)
    merged = merge_parts("x/y", tuned, arguments, 2)
    assert merged.text == whole.text and not merging.folder.exists()
    ours, theirs = (load(path).curves["final"] for path in (out, tmp_path / "whole"))
    spent = {name: 0 for name in ours.attrs if name != "system"}
    assert ours.assign_attrs(spent).identical(theirs.assign_attrs(spent))
    assert {path.name for path in out.iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }
    other = Arguments(out=str(out), smoke=True)
    run_part("x/y", tuned, arguments, ExperimentPart(out, 0, 2))
    for changed, parts in ((other, 2), (arguments, 3)):
        with pytest.raises(ConfigError, match="as of the other parts"):
            run_part("x/y", tuned, changed, ExperimentPart(out, 0, parts))


@pytest.mark.slow
def test_lanes_of_other_settings_are_not_joined(small: Callable, tmp_path: Path) -> None:
    """The experiment was changed after one part had run."""
    problem = Quadratic.of(np.arange(21.0, dtype="float32").reshape(7, 3), noise=0.1)
    lrs, options = [0.1, 0.2], {"budget": fedjax_sim.Ticks(4), "num_evals": 2, "layout": PINNED}
    systems = [FEDAVG]

    def frozen(*what: Any) -> fedjax_sim.Algorithm:
        bound = FEDAVG.algorithm(*what)
        return bound._replace(
            step=lambda key, state, event: (state, bound.step(key, state, event)[1])
        )

    def run(arguments: Arguments) -> Outcome:
        kept = {"settings": {"lr": lrs}, **options, **arguments.kept("tuning")}
        ran = fedjax_sim.sweep(systems[0], problem, small(FEDAVG), **kept)
        return Outcome({"tuning": ran.curves}, {}, [], {"loss": float(ran.curves.loss.sum())}, "")

    def round_of(number: int) -> str:
        part = ExperimentPart(tmp_path, number, 2)
        return run_part("x/y", run, Arguments(out=str(tmp_path)), part)

    round_of(0)
    lrs[:] = [0.3, 0.4]
    with pytest.raises(ConfigError, match=r"kept lanes of tuning .* differs in settings"):
        round_of(1)
    lrs[:] = [0.1, 0.2]
    assert "and so are the others" in round_of(1)
    share = ExperimentPart(tmp_path, None, 2).of_sweep("tuning")
    asked = read_json(tmp_path / "parts" / "tuning" / "0-of-2.json")["asked"]
    whole = share.find(asked)
    assert whole is not None

    def is_as_before(found: fedjax_sim.Run | None) -> bool:
        assert_equal_runs(found, whole)
        return True

    for name in ("0-of-2.json", "0-of-2/models.nc"):
        path = tmp_path / "parts" / "tuning" / name
        assert count_refusals(path, lambda: share.find(asked), is_as_before) == NUM_FLIPS
    options["budget"] = fedjax_sim.Ticks(6)
    with pytest.raises(ConfigError, match=r"kept lanes of tuning .* differs in num_ticks"):
        merge_parts("x/y", run, Arguments(out=str(tmp_path)), 2)
    options["budget"] = fedjax_sim.Ticks(4)
    systems[0] = FEDAVG._replace(algorithm=frozen)
    with pytest.raises(ConfigError, match=r"kept lanes of tuning .* differs in program"):
        merge_parts("x/y", run, Arguments(out=str(tmp_path)), 2)


def test_parts_of_a_stranger_run_no_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is damaged, or of another form, is one sentence that names the file."""
    (tmp_path / "parts").mkdir()
    touch = pickle.dumps(Touch(tmp_path / "marker"))
    for name in ("experiment.pkl", "experiment.json"):
        (tmp_path / "parts" / name).write_bytes(touch)
        assert main(["merge", str(tmp_path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "marker").exists()
    for content in (b"", b"[]", b"{}", b"3"):
        (tmp_path / "parts" / "experiment.json").write_bytes(content)
        assert main(["merge", str(tmp_path)]) == 2
        assert "experiment.json" in capsys.readouterr().err


def test_parts_may_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second part opens the folder between the first's writing and renaming of its file.

    Parts in containers may have the same process number and name of the machine.
    """
    identity, write = {"experiment": "x/y"}, Path.write_bytes

    def write_and_be_overtaken(path: Path, content: bytes) -> int:
        written = write(path, content)
        monkeypatch.setattr(Path, "write_bytes", write)
        ExperimentPart(tmp_path, 1, 2).open(identity)
        return written

    monkeypatch.setattr(Path, "write_bytes", write_and_be_overtaken)
    ExperimentPart(tmp_path, 0, 2).open(identity)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["experiment.json"]


def test_the_command_line_runs_and_merges_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment without sweeps, which every part runs whole."""
    out = str(tmp_path / "out")
    for part in ("0/2", "1/2"):
        assert main(["run", "fald/privacy", "--smoke", "--part", part, "--out", out]) == 0
        assert f"part {part} is done" in capsys.readouterr().out
    assert main(["run", "fald/privacy", "--part", "0/2", "--out", out]) == 2
    assert "smoke is False, but must be True" in capsys.readouterr().err
    assert main(["merge", out]) == 0
    assert "| fald-16 " in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "claims.json").read_text())
    for words, complaint in (
        (["merge", out], "one of runs with --part"),
        (["run", "fald/privacy", "--part", "2/2"], "part is '2/2'"),
        (["run", "fald/privacy", "--part", "0/2", "--parts", "2"], "left out with --part"),
    ):
        assert main(words) == 2
        assert complaint in capsys.readouterr().err


def test_an_experiment_runs_method_by_method(
    tuned: Callable[[Arguments], Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What other calls have run counts, and the last call writes the bits of a whole run."""
    whole = run_experiment("x/y", tuned, Arguments(out=str(tmp_path / "whole")))
    arguments = Arguments(out=str(tmp_path / "out"))
    assert run_methods("x/y", tuned, arguments, ["final", "one"]) is None
    assert "tuning has not been asked for; name it" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="methods is 'FedSGD', but must be parts of 'one lane/'"):
        run_methods("x/y", tuned, arguments, ["FedSGD"])
    other = arguments._replace(precision="tensorfloat32")
    with pytest.raises(ConfigError, match="precision is 'tensorfloat32'"):
        run_methods("x/y", tuned, other, ["final"])
    assert run_methods("x/y", tuned, arguments, ["tun"]) is None
    joined = run_methods("x/y", tuned, arguments, ["final"])
    assert joined is not None and joined.text == whole.text
    curves = [each.curves["final"].drop_attrs() for each in (joined, whole)]
    assert curves[0].identical(curves[1])


def test_a_run_stops_when_its_minutes_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    """The signal is that of batch systems, so that the run saves and says how to go on."""

    def work() -> None:
        with stopping_after(0.001):
            time.sleep(30)

    assert lifecycle.exit_code_of("experiments", work) == lifecycle.STOPPED
    assert "0.001 minutes are over" in (said := capsys.readouterr().err)
    assert "stopped by SIGUSR1" in said and "--resume" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--minutes", "0"], "minutes is 0.0, but must be a number above 0"),
        (["--minutes", "nan"], "minutes is nan"),
        (["--full", "--smoke"], "a run is of one size"),
        (["--methods", "a", "--part", "0/2"], "methods is 'a', but must be left out with parts"),
        (["--precision", "half"], "precision is 'half'"),
    ],
)
def test_words_that_do_not_fit_are_refused(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fald/privacy", *words, "--out", str(tmp_path / "out")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_queue_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is at an end is not repeated, and one that fails does not hold up the others."""
    runs = {"b": Queued("fald/nothing"), "a": Queued("fald/privacy")}
    monkeypatch.setattr(queue, "RUNS", runs)
    out = str(tmp_path)
    assert main(["queue", "--smoke", "--minutes", "1e-9", "--out", out]) == lifecycle.STOPPED
    assert main(["queue", "--smoke", "--minutes", "30", "--out", out]) == lifecycle.FAULT
    assert "b failed" in capsys.readouterr().err
    before = (tmp_path / "a" / "claims.json").stat().st_mtime_ns
    assert main(["queue", "--smoke", "--minutes", "30", "--out", out]) == lifecycle.FAULT
    assert "a is at an end" in capsys.readouterr().out
    assert (tmp_path / "a" / "claims.json").stat().st_mtime_ns == before


SAVES = """
import pathlib, signal, sys, time
state = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (state.write_text("saved"), sys.exit(75)))
state.touch()
time.sleep(60)
"""
"""A run that saves when it is asked to stop."""


def test_a_queue_that_is_stopped_lets_its_run_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    monkeypatch.setattr(queue, "_words", lambda *_: [sys.executable, "-c", SAVES, str(state)])

    def stop() -> None:
        while not state.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    assert main(["queue", "--out", str(tmp_path / "out")]) == lifecycle.STOPPED
    assert state.read_text() == "saved"
    assert "stopped in fedstaleweight-fig2: stopped by SIGTERM" in capsys.readouterr().err


def test_the_queue_names_experiments() -> None:
    for queued in queue.RUNS.values():
        assert registry.find(queued.name)
