"""Checkpoints: a killed run is continued and ends with the same bits.

A checkpoint of another run is refused, a damaged one is passed over, and a folder has one writer.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chex
import jax
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.lifecycle import (
    STOPPED,
    FolderLock,
    InputError,
    StorageError,
    exit_code_of,
    write_sealed,
    write_whole,
)
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.program import prepare
from fedjax_sim.engine.resuming import checkpoint
from fedjax_sim.engine.resuming.checkpoint import Checkpoint
from fedjax_sim.engine.running import pieces
from fedjax_sim.engine.running.chunks import _Pace
from fedjax_sim.results.records import text_of
from fedjax_sim.results.trackers import CSV
from fedjax_sim.server.compression import BlockQuantization, ScaledSign, TopK
from fedjax_sim.timelines import ClientTable, Trace

QUAFL, FAVANO = fedjax_sim.SYSTEMS["quafl"], fedjax_sim.SYSTEMS["favano"]
OPTIONS: dict[str, Any] = {
    "seeds": 3,
    "budget": fedjax_sim.Ticks(8),
    "num_evals": 4,
    "layout": Layout(4, False, 2),
    "keep": fedjax_sim.Keep(models=True, client_variance=True),
}


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write checkpoints between all chunks, however little time has passed."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(checkpoint, "WORK", 0.0)


def note_saves(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None] = lambda number: None
) -> list[int]:
    """Return a growing list of the ticks at which states are saved; call `then` after each save."""
    done: list[int] = []
    whole = Checkpoint.save

    def save(self: Checkpoint, number: int, *arguments: Any, **options: Any) -> None:
        whole(self, number, *arguments, **options)
        done.append(number)
        then(len(done))

    monkeypatch.setattr(Checkpoint, "save", save)
    return done


def kill_after(saves: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupt the run right after a number of checkpoints."""

    def kill(number: int) -> None:
        if number == saves:
            raise KeyboardInterrupt

    return note_saves(monkeypatch, kill)


def kill_while_writing(saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the run while it writes the checkpoint after a number of others."""
    written, whole = itertools.count(-1), np.savez  # Timelines are written before all states.

    def savez(file: Any, **entries: Any) -> None:
        if next(written) == saves:
            file.write(b"half of a file")
            raise KeyboardInterrupt
        whole(file, **entries)

    monkeypatch.setattr(np, "savez", savez)


def assert_same_bits(a: fedjax_sim.Run, b: fedjax_sim.Run) -> None:
    """Assert that models, samples and curves of two runs are equal."""
    chex.assert_trees_all_equal((a.models, a.samples), (b.models, b.samples))
    assert list(a.curves.data_vars) == list(b.curves.data_vars)
    for name in (*a.curves.data_vars, *a.curves.coords):
        np.testing.assert_array_equal(a.curves[name], b.curves[name], err_msg=name)


@pytest.mark.parametrize(
    ("system", "kill"),
    [pytest.param(QUAFL, kill_after, marks=pytest.mark.slow), (FAVANO, kill_while_writing)],
    ids=["after", "during"],
)
def test_a_killed_run_ends_with_the_same_bits(
    system: fedjax_sim.System,
    kill: Callable,
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_pause: None,
) -> None:
    """Kill a run after three of eight ticks, or while the fourth tick's checkpoint is written.

    There are two ticks between evaluations, so it is killed in the middle of one. The unbroken run
    is one call of a program that cannot stop there.
    """
    run = partial(fedjax_sim.sweep, system, regression(), small(system), **OPTIONS)
    unbroken = run()
    with monkeypatch.context() as patch:
        kill(3, patch)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=fedjax_sim.Checkpoints(tmp_path))
    assert len(list(tmp_path.rglob("state-*"))) == 2
    done = note_saves(monkeypatch)
    monkeypatch.setattr(drawing.Schedules, "request", refuse)
    resumed = run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True))
    assert done == [4, 5, 6, 7, 8], "three of the eight ticks had been done"
    assert_same_bits(resumed, unbroken)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_finished_run_is_neither_drawn_nor_run_again(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Timelines are loaded too. If what it returned is damaged, it runs again."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
    whole = run(checkpoints=fedjax_sim.Checkpoints(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(drawing.Schedules, "request", refuse)
        patch.setattr(pieces, "replay_schedule", refuse)
        assert capsys.readouterr().err == ""
        again = run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True))
        said = "fedjax-sim: quafl had ended; its result is read (lanes: 3).\n"
        assert capsys.readouterr().err == said
        assert_same_bits(again, whole)
        for ours, theirs in zip(again.timelines, whole.timelines, strict=True):
            chex.assert_trees_all_equal(ours, theirs)
    flip(result := next(tmp_path.rglob("result-*")))
    done = note_saves(monkeypatch)
    assert_same_bits(run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True)), whole)
    assert max(done) == 8
    assert result.exists(), "it was written again, with the same content"


def refuse(*arguments: Any, **options: Any) -> None:
    """Stand in for what must not be called."""
    raise AssertionError("called")


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    """Cut a file in the middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def forge(path: Path, write: Callable[[Path], Any] = lambda path: np.savez(path, a=1)) -> None:
    """Put other content in the place of a file, with its digest."""
    other = path.with_name("other.npz")
    write(other)
    write_sealed(path, lambda scratch: scratch.write_bytes(other.read_bytes()))
    other.unlink()


def both(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """Damage both states."""
    return lambda folder: [damage(path) for path in folder.glob("state-*")] and None


def newest(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """Damage the newest state, which holds the curves too."""
    return lambda folder: damage(max(folder.glob("state-*")))


def configuration(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """Damage the configuration."""
    return lambda folder: damage(folder / checkpoint.CONFIGURATION)


def drawn(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """Damage the timelines."""
    return lambda folder: damage(next(folder.glob("drawn-*")))


def everything(folder: Path) -> None:
    """Damage both states, and remove the configuration."""
    both(flip)(folder)
    (folder / checkpoint.CONFIGURATION).unlink()


EMPTY = partial(Path.write_bytes, data=b"")
DAMAGES = {
    "configuration missing": (configuration(Path.unlink), 5, "written again"),
    "configuration empty": (configuration(EMPTY), 5, "written again"),
    "configuration half": (configuration(halve), 5, "written again"),
    "one bit of the configuration": (configuration(flip), 5, "written again"),
    "timelines missing": (drawn(Path.unlink), 5, ""),
    "timelines half": (drawn(halve), 5, "is damaged"),
    "newest state missing": (newest(Path.unlink), 4, ""),
    "newest state empty": (newest(EMPTY), 4, "is damaged"),
    "newest state half": (newest(halve), 4, "is damaged"),
    "one bit of the newest state": (newest(flip), 4, "is damaged"),
    "newest state of no run": (newest(forge), 4, "it says not of which run it is"),
    "newest state no archive": (newest(partial(forge, write=EMPTY)), 4, "is damaged"),
    "all states missing": (both(Path.unlink), 0, ""),
    "all states half": (both(halve), None, "no checkpoint in .* is undamaged"),
    "everything": (everything, None, "no checkpoint there is an undamaged one"),
}
"""Damages to a folder with the states of ticks 4 and 5: the tick from which the run goes on, or
None, and what it says."""


FLIPS = 12
"""Damages at random places that a test makes."""


def test_damage_heals_or_is_one_sentence(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_pause: None,
) -> None:
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
    with monkeypatch.context() as patch:
        kill_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=fedjax_sim.Checkpoints(tmp_path / "killed"))
    whole, done = run(), note_saves(monkeypatch)
    for name, (damage, begins, says) in DAMAGES.items():
        folder = tmp_path / name.replace(" ", "_")
        shutil.copytree(tmp_path / "killed", folder)
        damage(folder / "part_0")
        done.clear()
        capsys.readouterr()
        if begins is None:
            with pytest.raises(InputError, match=says):
                run(checkpoints=fedjax_sim.Checkpoints(folder, resume=True))
            assert done == [], name
        else:
            assert_same_bits(run(checkpoints=fedjax_sim.Checkpoints(folder, resume=True)), whole)
            assert done == [*range(begins + 1, 9)], name
            said = capsys.readouterr().err.splitlines()
            where = f"fedjax-sim: quafl goes on after {begins} of 8 ticks (lanes: 3)."
            assert said[-1:] == [where] * bool(begins), name
            assert len(said) == bool(says) + bool(begins) and says in "".join(said), name


def test_no_flipped_bit_or_cut_gives_other_bits(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_pause: None,
) -> None:
    """Any bit of any file of a killed run: a sound resume, or a sentence."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
    with monkeypatch.context() as patch:
        kill_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=fedjax_sim.Checkpoints(tmp_path / "killed"))
    whole, draws = run(), np.random.default_rng(0)
    names = sorted(
        path.relative_to(tmp_path / "killed")
        for path in (tmp_path / "killed").rglob("*")
        if path.is_file() and path.name != ".lock"
    )
    num_resumed = 0
    for i in range(FLIPS):
        folder = tmp_path / str(i)
        shutil.copytree(tmp_path / "killed", folder)
        path = folder / names[i % len(names)]
        content = bytearray(path.read_bytes())
        at = int(draws.integers(len(content)))
        if i % 4 == 3:
            del content[at:]
        else:
            content[at] ^= 1 << int(draws.integers(8))
        path.write_bytes(content)
        try:
            resumed = run(checkpoints=fedjax_sim.Checkpoints(folder, resume=True))
        except (ConfigError, InputError):
            continue
        num_resumed += 1
        assert_same_bits(resumed, whole)
    assert num_resumed > FLIPS // 2


def test_a_configuration_of_another_form_counts_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.CONFIGURATION
    others = ("", "[]", "3", '"x"', "null", "{}", "[" * 100_000, "\xff")
    digest = hashlib.sha256(b"{}").hexdigest()[:16]
    for content in (*others, json.dumps({"sha256": digest})):
        path.write_text(content, encoding="latin-1")
        assert checkpoint.count_lanes(tmp_path) is None
        asked = {"budget": fedjax_sim.Time(1), "versions": {}}
        known = Checkpoint(fedjax_sim.Checkpoints(tmp_path, every=1.0, resume=True), asked)
        assert known.decided == {}


def test_slow_writes_are_further_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of 3 seconds is followed by 27 seconds of work, or by none if `every` is 0."""
    now = 0.0

    def write(*_: object) -> Path:
        nonlocal now
        now += 3
        return tmp_path / "state-000000000000.npz"

    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    monkeypatch.setattr(Checkpoint, "_write", write)
    for every, wait in ((1.0, 27.0), (40.0, 40.0), (0.0, 0.0)):
        known = Checkpoint(fedjax_sim.Checkpoints(tmp_path, every=every), {"versions": {}})
        known.save(1, np.zeros(2), {}, now=True)
        assert known.is_due(within=wait) and not known.is_due(within=wait - 0.5)


def test_a_signal_stops_a_run_after_saving(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_pause: None,
) -> None:
    """The signal arrives after tick 3. Tick 4 is running then, and is done."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
    for number in (signal.SIGTERM, signal.SIGUSR1):

        def tell(saves: int, number: int = number) -> None:
            if saves == 3:
                os.kill(os.getpid(), number)

        with monkeypatch.context() as patch:
            done = note_saves(patch, tell)
            assert (
                exit_code_of("test", lambda: run(checkpoints=fedjax_sim.Checkpoints(tmp_path)))
                == STOPPED
            )
        assert done == [1, 2, 3, 4]
        said = capsys.readouterr().err
        name = signal.Signals(number).name
        assert said == f"test: stopped by {name} after saving; run it again with --resume.\n"
        assert signal.getsignal(number) == signal.SIG_DFL
    assert_same_bits(run(checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True)), run())


def test_one_process_writes_to_a_folder(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """A process that was killed leaves no lock behind."""
    source = (
        "import sys, time; from pathlib import Path; "
        "from fedjax_sim.core.lifecycle import FolderLock; "
        f"lock = FolderLock(Path({str(tmp_path)!r})); print('locked', flush=True); time.sleep(99)"
    )
    root = Path(fedjax_sim.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=root
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
        with pytest.raises(
            InputError, match=f"being written by process {other.pid} on {os.uname()[1]}"
        ):
            run(checkpoints=fedjax_sim.Checkpoints(tmp_path))
        other.kill()
    assert (tmp_path / ".lock").exists()
    FolderLock(tmp_path).release()
    assert not (tmp_path / ".lock").exists()


def test_a_folder_that_is_removed_under_way(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_pause: None,
) -> None:
    """It is not made again, because somebody wanted it gone."""
    note_saves(monkeypatch, lambda number: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(StorageError, match=r"writing to .* failed .No such file or directory"):
        fedjax_sim.sweep(
            QUAFL,
            regression(),
            small(QUAFL),
            checkpoints=fedjax_sim.Checkpoints(tmp_path / "run"),
            **OPTIONS,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_keeps_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def write(path: Path) -> None:
        path.write_text("new")
        with Path("/dev/full").open("w") as full:
            full.write("new")

    with pytest.raises(StorageError, match=r"writing to .*file failed .No space left on device"):
        write_whole(tmp_path / "file", write)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_resumed_run_keeps_the_layout(
    regression: Callable, small: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule would choose another layout for it."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), seeds=3, num_evals=2)
    saved = fedjax_sim.Checkpoints(tmp_path)
    first = run(budget=fedjax_sim.Ticks(4), checkpoints=saved)
    shutil.rmtree(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after(1, patch)
        run(budget=fedjax_sim.Ticks(4), checkpoints=saved)
    choose, chosen = prepare.choose, []

    def other(layout: Layout, **given: Any) -> Any:
        placement = choose(layout, **given)
        if layout == Layout():
            placement = placement._replace(lanes_at_once=not placement.lanes_at_once)
        chosen.append(placement.lanes_at_once)
        return placement

    monkeypatch.setattr(prepare, "choose", other)
    again = run(
        budget=fedjax_sim.Ticks(4), checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True)
    )
    assert len(set(chosen)) == 2
    assert_same_bits(again, first)


def test_a_run_that_was_stopped_at_its_last_tick_is_logged(
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_pause: None,
) -> None:
    """Nothing is left to replay, but trackers get all evaluations."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL), **OPTIONS)
    logs = [tmp_path / f"{name}.csv" for name in ("unbroken", "resumed")]
    run(watch=fedjax_sim.Watch(trackers=[CSV(logs[0])]))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after(8, patch)
        run(checkpoints=fedjax_sim.Checkpoints(tmp_path / "states"))
    run(
        checkpoints=fedjax_sim.Checkpoints(tmp_path / "states", resume=True),
        watch=fedjax_sim.Watch(trackers=[CSV(logs[1])]),
    )
    assert logs[0].read_text() == logs[1].read_text()


def test_stretches_take_about_ten_seconds() -> None:
    """They end at evaluations. Heavy ticks count for more."""
    work = np.array([1] * 50 + [9] * 50)
    placed = SimpleNamespace(schedule=SimpleNamespace(work=work[None] - 1))
    replay = SimpleNamespace(program=SimpleNamespace(chunk=(1, 60), block=1), placed=placed)
    pace, done, ends = _Pace(replay), 0, []  # type: ignore[arg-type]
    while done < 100:
        end = pace.end_after(done) if done < 60 else min(100, pace.end_after(done))
        pace.note(done, end, 0.5 * work[done:end].sum())
        ends.append(end)
        done = end
    # Two units of work a second: 20 ticks, then 2.
    assert ends[:4] == [1, 21, 41, 51]
    assert np.diff(ends[3:]).max() == 2
    assert 60 in ends


def test_a_checkpoint_of_another_configuration_is_refused(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """It is still there afterwards."""
    run = partial(fedjax_sim.sweep, QUAFL, regression())
    run(small(QUAFL), **OPTIONS, checkpoints=fedjax_sim.Checkpoints(tmp_path / "run"))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    other = {**OPTIONS, "checkpoints": fedjax_sim.Checkpoints(tmp_path / "run", resume=True)}
    for differs, hyper, options in (
        (r"settings \(lr 0.05 there, 0.06 here\)", small(QUAFL, lr=0.06), other),
        (
            r"settings \(batch_size 2 there, 3 here; lr 0.05 there, 0.06 here\)",
            small(QUAFL, lr=0.06, batch_size=3),
            other,
        ),
        (r"settings \(delays.rate_slow .* there, 0.3 here\)", small(QUAFL, rate_slow=0.3), other),
        ("settings", small(QUAFL, optimizer=optax.adam), other),
        ("settings", small(QUAFL, optimizer=partial(optax.sgd, momentum=0.5)), other),
        (
            r"seeds \(\[0, 1, 2\] there, \[0, 1, 3\] here\)",
            small(QUAFL),
            other | {"seeds": [0, 1, 3]},
        ),
        ("num_ticks", small(QUAFL), other | {"budget": fedjax_sim.Ticks(7)}),
        ("num_evals", small(QUAFL), other | {"num_evals": 2}),
        (
            r"layout \(slots_at_once 4 there, 1 here\)",
            small(QUAFL),
            other | {"layout": Layout(1, False, 2)},
        ),
        ("layout", small(QUAFL), other | {"layout": Layout(4, False, 3)}),
        ("layout", small(QUAFL), other | {"layout": Layout(4, False, 2, evals_per_chunk=3)}),
        ("client_variance", small(QUAFL), other | {"keep": fedjax_sim.Keep(models=True)}),
        ("keep_models", small(QUAFL), other | {"keep": fedjax_sim.Keep(client_variance=True)}),
    ):
        allowed = "of the same configuration as this run, which differs in"
        with pytest.raises(ConfigError, match=f"{allowed} .*{differs}.*, or removed"):
            run(hyper, **options)
    with pytest.raises(ConfigError, match="same configuration"):
        fedjax_sim.sweep(
            FAVANO,
            regression(),
            small(FAVANO),
            **other,
        )
    for problem in (regression(dim=4), regression(seed=1)):
        with pytest.raises(ConfigError, match="differs in problems"):
            fedjax_sim.sweep(
                QUAFL,
                problem,
                small(QUAFL),
                **other,
            )
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_a_checkpoint_of_other_measures_is_refused(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """By their names; with equal ones the run is continued."""
    run = partial(
        fedjax_sim.sweep,
        QUAFL,
        regression(),
        small(QUAFL),
        budget=fedjax_sim.Ticks(2),
        checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
    )
    measured = run(keep=fedjax_sim.Keep(measures=("drift",)))
    for measures in ((), ("gradient_norm",)):
        there_and_here = re.escape(f"differs in measures (['drift'] there, {[*measures]} here), or")
        with pytest.raises(ConfigError, match=there_and_here):
            run(keep=fedjax_sim.Keep(measures=measures))
    assert_same_bits(run(keep=fedjax_sim.Keep(measures=["drift"])), measured)


@pytest.mark.slow
def test_a_checkpoint_of_other_nested_settings_is_refused(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """The run had finished, so nothing else would show the difference."""
    run = partial(
        fedjax_sim.sweep,
        QUAFL,
        regression(),
        checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
    )
    run(small(QUAFL, compression=BlockQuantization(block=2)), budget=fedjax_sim.Ticks(2))
    with pytest.raises(ConfigError, match=r"differs in settings \(.*block=2.* there, .*block=3"):
        run(small(QUAFL, compression=BlockQuantization(block=3)), budget=fedjax_sim.Ticks(2))


def test_numbers_of_numpy_are_numbers(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """A resumed run may say the same in other types, and another budget is known as one."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), small(QUAFL))
    numbers: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(np.int64(4)),
        "num_evals": np.int32(2),
        "seeds": np.arange(2),
    }
    first = run(
        **numbers, settings={"lr": np.array([0.5])}, checkpoints=fedjax_sim.Checkpoints(tmp_path)
    )
    given: dict[str, Any] = {"settings": {"lr": [0.5]}, "seeds": 2}
    again = run(
        **given,
        budget=fedjax_sim.Ticks(4),
        num_evals=2,
        checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
    )
    assert_same_bits(again, first)
    for num_ticks in (2, 10):
        with pytest.raises(
            ConfigError, match=rf"differs in num_ticks \(4 there, {num_ticks} here\), or removed"
        ):
            run(
                **given,
                budget=fedjax_sim.Ticks(num_ticks),
                num_evals=2,
                checkpoints=fedjax_sim.Checkpoints(tmp_path, resume=True),
            )


def test_without_resume_a_run_starts_anew(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    first = fedjax_sim.sweep(
        QUAFL,
        regression(),
        small(QUAFL),
        checkpoints=fedjax_sim.Checkpoints(tmp_path / "run"),
        **OPTIONS,
    )
    other = fedjax_sim.sweep(
        QUAFL,
        regression(seed=5),
        small(QUAFL),
        checkpoints=fedjax_sim.Checkpoints(tmp_path / "run"),
        **OPTIONS,
    )
    assert not np.array_equal(first.models, other.models)


def test_resuming_without_a_checkpoint_starts_the_run(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    started = fedjax_sim.sweep(
        QUAFL,
        regression(),
        small(QUAFL),
        checkpoints=fedjax_sim.Checkpoints(tmp_path / "none", resume=True),
        **OPTIONS,
    )
    assert_same_bits(started, fedjax_sim.sweep(QUAFL, regression(), small(QUAFL), **OPTIONS))


def test_a_folder_that_cannot_be_written(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="a folder that can be created and written"):
        fedjax_sim.sweep(
            QUAFL,
            regression(),
            small(QUAFL),
            checkpoints=fedjax_sim.Checkpoints(tmp_path / "file"),
            **OPTIONS,
        )
    assert (tmp_path / "file").read_text() == "not a folder"


def test_functions_among_the_settings_have_lasting_names() -> None:
    """A setting's text has no address in memory, because a run is resumed by another process."""

    for value in (
        optax.sgd,
        partial(optax.sgd, momentum=0.9),
        lambda lr: optax.sgd(lr),
        0.5,
        "text",
        None,
    ):
        assert " at 0x" not in text_of(value)


class Recorded:
    """An object that has the default repr."""

    def __init__(self, *rows: float):
        self.rows = np.array(rows)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (0.1, np.float64(0.1), np.float32(0.1)),
        (TopK(kept=10), TopK(kept=10), TopK(kept=100)),
        (TopK(kept=1), TopK(kept=np.int64(1)), ScaledSign()),
        ((1, 2), (np.int64(1), 2), (1, 3)),
        ([TopK(kept=1)], [TopK(kept=1)], [TopK(kept=2)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}),
        ({"a", "b"}, {"b", "a"}, {"a", "c"}),
        (np.arange(3), np.arange(3), np.arange(3.0)),
        (np.zeros(9999), np.zeros(9999), np.eye(1, 9999, 5000)[0]),
        (Trace([0], [1], [2]), Trace([0], [1], [2]), Trace([0], [1], [3])),
        (ClientTable([1, 2]), ClientTable([1, 2]), ClientTable([1, 3])),
        (Recorded(1, 2), Recorded(1, 2), Recorded(1, 3)),
        ((optax.sgd, 1), (optax.sgd, 1), (optax.adam, 1)),
    ],
)
def test_the_text_of_a_setting_shows_what_it_holds(one: Any, same: Any, other: Any) -> None:
    assert text_of(one) == text_of(same) != text_of(other)
    assert " at 0x" not in text_of(one)


def test_a_problem_may_hold_a_random_key() -> None:
    """Problems with different keys have different digests."""
    first, second = (checkpoint._digest_of_tree({"key": jax.random.key(i)}) for i in range(2))
    assert first != second
