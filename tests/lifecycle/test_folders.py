"""Nothing is truncated, written through or removed that a run did not make."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_sim import Checkpoints, Ticks, Watch, load, sweep
from fedjax_sim.core.lifecycle import FolderLock, InputError, read_record, write_record
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.watching import Display
from fedjax_sim.launch.jobs import Job, Runner
from fedjax_sim.results import trackers
from fedjax_sim.results.reports import Folder
from fedjax_sim.results.runs import files_in
from fedjax_sim.systems import fedavg

CONTENT = "the only copy\n"


def as_link(name: Path, kept: Path) -> None:
    """Give a name to a link that leads to a file."""
    name.symlink_to(kept)


def as_second_name(name: Path, kept: Path) -> None:
    """Give a file a second name."""
    name.hardlink_to(kept)


def as_file(name: Path, kept: Path) -> None:
    """Give a name to a file of another program."""
    name.write_text(CONTENT)


def as_folder(name: Path, kept: Path) -> None:
    """Give a name to a folder."""
    name.mkdir()


def as_pipe(name: Path, kept: Path) -> None:
    """Give a name to a pipe that nobody reads."""
    os.mkfifo(name)


Take = Callable[[Path, Path], None]
NO_FILES = [as_link, as_second_name, as_folder, as_pipe]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Make a file outside of the folder to which something writes."""
    path = tmp_path / "thesis.txt"
    path.write_text(CONTENT)
    return path


@pytest.mark.parametrize("take", [*NO_FILES, as_file])
def test_a_lock_takes_no_file_of_others(take: Take, tmp_path: Path, kept: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    take(folder / ".lock", kept)
    before = (folder / ".lock").lstat()
    with pytest.raises(InputError, match=r"out/\.lock is needed for a file of this program, but"):
        FolderLock(folder)
    assert kept.read_text() == CONTENT
    after = (folder / ".lock").lstat()
    assert os.path.samestat(before, after) and before.st_size == after.st_size


def test_what_a_killed_run_left_is_locked(tmp_path: Path) -> None:
    for left in ("", "process 7 on a node"):
        (tmp_path / ".lock").write_text(left)
        lock = FolderLock(tmp_path)
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(InputError, match=f"written by process {os.getpid()} on"):
            FolderLock(tmp_path)
        lock.release()
        assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("take", NO_FILES)
def test_logs_are_not_written_through_a_link(take: Take, tmp_path: Path, kept: Path) -> None:
    """Neither the metrics of a run, nor what its parts print."""
    take(tmp_path / "log.csv", kept)
    with pytest.raises(InputError, match=r"log\.csv is needed for a file of this program"):
        trackers.CSV(tmp_path / "log.csv")
    take(tmp_path / "0-of-2.log", kept)
    job = Job("part 0/2", (sys.executable, "-c", ""), tmp_path / "0-of-2", tmp_path)
    with pytest.raises(InputError, match=r"0-of-2\.log is needed"):
        Runner(0)(job)
    assert kept.read_text() == CONTENT


def test_progress_takes_no_name_but_its_own(tmp_path: Path, kept: Path) -> None:
    for name in ("line.tmp", ".line.tmp"):
        (tmp_path / name).write_text(CONTENT)
    (tmp_path / "line").symlink_to(kept)
    shown = Display("fedavg", np.zeros((1, 2)), np.zeros((1, 2)), shown=tmp_path / "line")
    shown.__enter__()
    assert (tmp_path / "line").read_text() == "fedavg: compiling\n"
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files.pop("line") and set(files) == {"line.tmp", ".line.tmp", kept.name}
    assert set(files.values()) == {CONTENT}


def test_overwriting_spares_what_no_run_made(tmp_path: Path) -> None:
    """A folder of checkpoints, files that another program's config.json lists, and a probe."""
    files = {"config.json": json.dumps({"files": ["data.bin"]}), "data.bin": CONTENT}
    files |= {".probe": CONTENT, "notes.tmp": CONTENT, ".notes.tmp": CONTENT}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    folder = Folder(tmp_path, overwrite=True)
    folder.open()
    folder.finish({}, {})
    files.pop("config.json")
    assert {name: (tmp_path / name).read_text() for name in files} == files

    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "weights.bin").write_text(CONTENT)
    with pytest.raises(ConfigError, match="checkpoint in the results folder to overwrite"):
        Folder(tmp_path, overwrite=True)
    assert (tmp_path / "checkpoint" / "weights.bin").read_text() == CONTENT


def test_a_folder_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "results.nc").mkdir()
    with pytest.raises(ConfigError, match=r"one in which results\.nc is a file"):
        Folder(tmp_path, overwrite=True)


def test_checkpoints_may_be_on_another_disk(tmp_path: Path) -> None:
    """The link stays; what an earlier run kept behind it goes, its record last."""
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    out.mkdir()
    (out / "checkpoint").symlink_to(disk)
    first = Folder(out, overwrite=True)
    first.open({"number": 1})
    first.finish({}, {}, can_go_on=True)
    (disk / "fedavg").mkdir()
    (disk / "fedavg" / "state").write_text("of the first run")
    second = Folder(out, overwrite=True)
    second.open({"number": 2})
    assert [path.name for path in disk.iterdir()] == ["run.json"]
    second.finish({}, {})
    assert (out / "checkpoint").is_symlink() and not any(disk.iterdir())


def test_a_tensorboard_log_replaces_its_own_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    lane = tmp_path / "tensorboard" / "fedavg seed=0"
    lane.mkdir(parents=True)
    (lane / "events.out.tfevents.1.here").write_text("of the run before")
    (tmp_path / "tensorboard" / "notes.txt").write_text(CONTENT)
    trackers.make_tracker("tensorboard", tmp_path).close()
    assert not any(lane.iterdir())
    assert (tmp_path / "tensorboard" / "notes.txt").read_text() == CONTENT


def test_a_sweep_removes_its_own_checkpoints_alone(
    regression: Callable[..., Any],
    small: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor does saving a run remove samples of others. Without an error stream, all is the same."""
    monkeypatch.setattr(sys, "stderr", None)
    for name in ("part_1", "part_of_the_thesis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text-2-ab.npz").write_text(CONTENT)
    for _ in range(2):
        run = sweep(
            fedavg.system,
            regression(),
            small(fedavg.system),
            budget=Ticks(2),
            num_evals=1,
            checkpoints=Checkpoints(tmp_path),
            watch=Watch(progress=True),
        )
    for name in ("part_1", "part_of_the_thesis"):
        assert (tmp_path / name / "text-2-ab.npz").read_text() == CONTENT
    out = tmp_path / "saved"
    out.mkdir()
    (out / "samples.nc").write_text(CONTENT)
    run.save(out)
    assert (out / "samples.nc").read_text() == CONTENT
    (out / "samples.nc").unlink()
    assert load(out).curves.equals(run.curves)
    assert capsys.readouterr().out == ""


def test_files_of_an_older_run_are_still_removed(tmp_path: Path) -> None:
    first = Folder(tmp_path)
    first.open()
    first.write_json("old.json", {})
    first.finish({}, {})
    assert files_in(tmp_path) == {"old.json", "config.json", "summary.json"}
    second = Folder(tmp_path, overwrite=True)
    second.open()
    second.finish({}, {})
    assert not (tmp_path / "old.json").exists()


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    """Every bit of a record is flipped once, and the record cut at every place."""
    path = tmp_path / "run.json"
    content: dict[str, Any] = {"seeds": [0, 12], "lr": 0.5, "part": None, "of": {"b": "ä", "a": 1}}
    assert read_record(path) is None
    write_record(path, content)
    whole = path.read_bytes()
    assert read_record(path) == content
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            assert read_record(path) in (None, content), (at, bit)
        path.write_bytes(whole[:at])
        assert read_record(path) is None
    for other in ("[]", "3", "null", json.dumps(content), '{"sha256": 1}', "[" * 100_000):
        path.write_text(other)
        assert read_record(path) is None
