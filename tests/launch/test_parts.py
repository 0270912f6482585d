"""A study in parts, as a user runs it: whole, by hand and merged, and by launchers.

One small study of two systems, two learning rates and three seeds, with a layout that is given: all
ways must write the same results folder, bit for bit.
"""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import chex
import jax
import pytest
import xarray as xr

import fedjax_sim
from fedjax_sim.cli import training
from fedjax_sim.cli.commands import main
from fedjax_sim.core.lifecycle import STOPPED, PartError, Stopped, read_json, seal_json
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.shares import Part
from fedjax_sim.launch.jobs import Job, Launcher, Started
from fedjax_sim.launch.parts import read_part, read_parts
from fedjax_sim.results.reports import Results, load
from fedjax_sim.results.runs import load_runs
from tests.launch.conftest import ended

ROOT = Path(fedjax_sim.__file__).parents[1]
STUDY = [
    *("fedavg", "favano", "--seeds", "3", "--set", "lr=0.1,0.3", "--model", "logistic"),
    *("--set", "num_clients=5", "--set", "num_selected=2", "--set", "local_steps=2"),
    *("--set", "batch_size=8", "--time-budget", "60", "--evals", "3"),
    *("--layout", "slots_at_once=2,lanes_at_once=false,client_devices=1", "--keep-samples"),
]
CALIBRATION = "reliability.png"
"""The picture that `merge` does not draw, because it has no data."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """Run the whole study in this process."""
    assert main(["run", *STUDY, "--out", str(folder / "whole")]) == 0
    return folder / "whole"


@pytest.fixture(scope="module")
def parts(folder: Path) -> list[Path]:
    """Run three parts by hand in this process."""
    paths = [folder / f"part-{i}" for i in range(3)]
    for i, path in enumerate(paths):
        assert main(["run", *STUDY, "--part", f"{i}/3", "--out", str(path)]) == 0
    return paths


def change_config(folder: Path, change: Callable[[dict], None]) -> None:
    """Write the config.json of a folder as another run would have written it."""
    config = read_json(folder / "config.json")
    change(config)
    (folder / "config.json").write_bytes(seal_json(config))


def without_times(found: Results) -> tuple[dict[str, xr.Dataset], dict, dict]:
    """Leave out the seconds, and the number of programs, which differ."""
    curves = {
        name: data.assign_attrs({key: 0 for key in data.attrs if key != "system"})
        for name, data in found.curves.items()
    }
    return curves, found.summary | {"seconds": 0}, found.config


def assert_equal_folders(ours: Path, theirs: Path) -> None:
    """Assert that two results folders have the same files with the same content."""
    # A whole run keeps what a longer one needs to go on from it.
    here, there = ({path.name for path in folder.iterdir()} for folder in (ours, theirs))
    if CALIBRATION not in here:
        there.discard(CALIBRATION)
    assert "samples.nc" in here
    assert here - {"checkpoint"} == there - {"checkpoint"}
    a, b = without_times(load(ours)), without_times(load(theirs))
    assert list(a[0]) == list(b[0])
    for name, data in a[0].items():
        assert data.identical(b[0][name]), name
        assert [*data.variables] == [*b[0][name].variables]
        assert {key: each.dtype for key, each in data.variables.items()} == {
            key: each.dtype for key, each in b[0][name].variables.items()
        }
    assert a[1] == b[1]
    # Processes have other numbers of devices, and whoever works on the repository changes a commit.
    ours_config, theirs_config = ({**each[2], "device": 0, "commit": 0} for each in (a, b))
    for config in (ours_config, theirs_config):
        config["files"] = [name for name in config["files"] if name in here]
    for config in (ours_config, theirs_config):
        config.pop("command", None)  # It names the folder, and merged folders have none.
    assert json.dumps(ours_config) == json.dumps(theirs_config)
    runs, others = load_runs(ours), load_runs(theirs)
    for name, run in runs.items():
        chex.assert_trees_all_equal(run.models, others[name].models)
        chex.assert_trees_all_equal(run.samples, others[name].samples)
        chex.assert_trees_all_equal(run.models, jax.tree.map(lambda x: x[:, -1], run.samples))
        chex.assert_trees_all_equal(run.timelines, others[name].timelines)
        chex.assert_trees_all_equal(run.hypers, others[name].hypers)
        assert len(run.hypers) == run.curves.failed.size
    for picture in ours.glob("*.png"):
        assert picture.read_bytes() == (theirs / picture.name).read_bytes()


@pytest.mark.slow
def test_merged_parts_are_the_whole(
    whole: Path, parts: list[Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of the folders is of no matter."""
    capsys.readouterr()
    out = folder / "merged"
    assert main(["merge", *map(str, parts[::-1]), "--out", str(out)]) == 0
    assert "favano lr=0.3" in capsys.readouterr().out
    assert_equal_folders(out, whole)


def test_a_part_says_what_it_is(parts: list[Path]) -> None:
    """A part holds its lanes with their labels, and no two parts the same."""
    lanes = []
    for i, path in enumerate(parts):
        found = load(path)
        assert found.config["part"] == f"{i}/3"
        assert not list(path.glob("*.png")) and (path / "samples.nc").exists()
        assert found.summary["lanes"] == sum(data.sizes["lane"] for data in found.curves.values())
        for name, data in found.curves.items():
            assert set(data["accuracy"].dims) == {"lane", "eval"}
            lanes += [
                (name, lr, seed) for lr, seed in zip(data.lr.values, data.seed.values, strict=True)
            ]
    expected = [
        (s, lr, seed) for s in ("fedavg", "favano") for lr in (0.1, 0.3) for seed in range(3)
    ]
    assert sorted(lanes) == sorted(expected)


@pytest.mark.slow
def test_parts_that_do_not_belong_together_are_refused(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in one sentence with exit code 2, and nothing is written."""

    def changed(name: str, change: Callable[[dict], None]) -> str:
        copy = tmp_path / name
        shutil.copytree(parts[1], copy)
        change_config(copy, change)
        return str(copy)

    first, second, third = map(str, parts)
    of_many = changed("of-many", lambda config: config.update(part="0/99999999999"))
    of_four = changed("of-four", lambda config: config.update(part="1/4"))
    other_commit = changed("commit", lambda config: config.update(commit="f00"))
    slower = changed("slower", lambda config: config["systems"]["favano"].update(lr=[0.1, 0.2]))
    other_data = changed("data", lambda config: config["dataset"].update(sha256="0"))
    other_jax = changed("jax", lambda config: config["versions"].update(jax="0.1"))
    whole_run = changed("whole", lambda config: config.pop("part"))
    wrong_lanes = changed("lanes", lambda config: None)
    for path in parts[0].glob("*.*"):
        shutil.copy(path, wrong_lanes)
    change_config(Path(wrong_lanes), lambda config: config.update(part="1/3"))
    mixed = changed("mixed", lambda config: None)
    shutil.copy(parts[0] / "models.nc", mixed)
    (tmp_path / "unfinished").mkdir()
    for folders, words in (
        ([first, third], "complete (missing: 1/3)"),
        ([first, second, second], f"{second} is 1/3 already"),
        ([first, of_four, third], "the same in all part folders"),
        ([first, slower, third], f"systems.favano.lr of {slower} is [0.1, 0.2]"),
        ([first, other_data, third], f"dataset.sha256 of {other_data} is '0'"),
        ([first, other_jax, third], f"versions.jax of {other_jax} is '0.1'"),
        ([first, other_commit, third], f"commit of {other_commit} is 'f00'"),
        ([whole_run], "one that was written with --part"),
        ([of_many], "1/99999999999, 2/99999999999"),
        ([first, mixed, third], "models.nc is not the file that config.json in its folder lists"),
        ([first, wrong_lanes, third], "what the parts have of "),
        ([first, str(tmp_path / "unfinished"), third], "one of a finished run"),
        ([first, str(tmp_path / "nowhere"), third], "one of a finished run"),
    ):
        assert main(["merge", *folders, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
        assert not (tmp_path / "out").exists()


def test_parts_of_changed_files_are_merged_with_a_word(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their commit says that files differed from it, but not which changes each part had."""
    copies = [Path(shutil.copytree(path, tmp_path / path.name)) for path in parts]
    for commit, is_told in (("f00", False), ("f00-dirty", True)):
        change_config(copies[1], lambda config, commit=commit: config.update(commit=commit))
        for path in (copies[0], copies[2]):
            change_config(path, lambda config: config.update(commit="f00"))
        capsys.readouterr()
        assert read_parts(copies)[1]["commit"] == commit
        said = capsys.readouterr().err
        assert ("files differed from commit f00 in 1 of 3 parts" in said) == is_told, said
        assert said.count("\n") == is_told


@pytest.mark.parametrize("flags", [[], ["--part", "0/2"]])
def test_a_refused_run_leaves_no_folder(
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although it has been opened, and the part has written which lanes it has."""

    def refuse(*_: object, **__: object) -> None:
        assert (tmp_path / "out" / "checkpoint" / "run.json").exists()
        raise ConfigError("this", "so", "otherwise")

    monkeypatch.setattr(training, "sweep", refuse)
    assert main(["run", *STUDY, *flags, "--out", str(tmp_path / "out")]) == 2
    assert "this is 'so', but must be otherwise" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@dataclasses.dataclass
class Here(Launcher):
    """A launcher that runs jobs in this process, which has the programs compiled already."""

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        words = [job.words() for job in jobs]
        codes = [main(each[each.index("fedjax_sim") + 1 :]) for each in words]
        return list(map(ended, codes)), list

    def count(self) -> int:
        return 3


@pytest.mark.slow
def test_parts_that_failed_are_named_and_run_again(
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First no part finds its device. Then one is run alone as the message says, then the rest."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    command = ["run", *STUDY, "--parts", "2", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    error = capfd.readouterr().err.splitlines()
    assert error[0].startswith("part ") and error[0].endswith("of 2 have ended)")
    assert "part 0/2 failed with exit code 1 (" in error[-1] and "nonsense" in error[-1]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    alone = shlex.split(error[-1].partition("--resume runs all that is unfinished, part 0/2: ")[2])
    assert main(alone[alone.index("fedjax_sim") + 1 :]) == 0
    assert main(command) == 2
    assert "unless an unfinished run in it is resumed" in capfd.readouterr().err
    monkeypatch.setitem(training.LAUNCHERS, "local", Here)
    assert main([*command, "--resume"]) == 0
    printed = capfd.readouterr()
    assert "favano lr=0.3" in printed.out
    assert "part 1/2 is done" in printed.err and "of 2 have ended)" in printed.err
    assert_equal_folders(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=["SIGTERM", "SIGUSR2"])
def test_a_signal_stops_a_launched_study_which_is_resumed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The launcher ends with the code of a stop once its parts have; no bit is lost.

    SIGUSR2 goes to all processes, as Slurm sends it.
    """
    command, out = ["run", *STUDY, "--parts", "2", "--out", "out"], tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedjax_sim", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun = [out / "checkpoint" / "parts" / f"{i}-of-2" / "checkpoint" / "run.json" for i in (0, 1)]
    while not all(path.exists() for path in begun):
        assert process.poll() is None
        time.sleep(0.05)
    if number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == STOPPED, error
    said = f"fedjax-sim: {number.name} received; the parts have saved, --resume goes on."
    assert error.splitlines()[-1] == said
    for path in begun:
        log = path.parents[1].with_suffix(".log").read_text()
        assert "stopped by SIG" in log and not (path.parents[1] / "summary.json").exists()
    monkeypatch.setitem(training.LAUNCHERS, "local", Here)
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--resume"]) == 0
    assert_equal_folders(out, whole)


def test_a_study_is_resumed_as_it_was_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many parts as before, or in this process. The launcher fails before parts begin."""
    names: list[str] = []

    def fail(launcher: object, jobs: Sequence[Job], folder: Path) -> Started:
        names[:] = [job.name for job in jobs]
        raise PartError("the queue is closed.", 3)

    def stop(*_: object, **__: object) -> None:
        raise Stopped(15, saved=False)

    monkeypatch.setitem(training.LAUNCHERS, "local", Here)
    monkeypatch.setattr(Here, "start", fail)
    monkeypatch.setattr(training, "sweep", stop)
    launched, here = (["run", *STUDY, "--out", str(tmp_path / name)] for name in ("parts", "here"))
    assert main([*launched, "--parts", "3"]) == 3
    for flags in (["--launcher", "local"], ["--parts", "3"]):
        assert main([*launched, *flags, "--resume"]) == 3
        assert names == ["part 0/3", "part 1/3", "part 2/3"]
    assert main(here) == 75
    for words, said in (
        ([*launched], "is '3', but must be None"),
        ([*launched, "--parts", "2"], "is '3', but must be '2'"),
        ([*here, "--launcher", "local"], "is None, but must be '3'"),
    ):
        capsys.readouterr()
        assert main([*words, "--resume"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fedjax-sim: parts of the checkpoint in ") and said in error, error


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ["slurm", "--resources", "cluster=local"],
            id="submitit",
            marks=pytest.mark.launched_by("submitit"),
        ),
        pytest.param(
            ["ray", "--resources", "num_cpus=0.5"], id="ray", marks=pytest.mark.launched_by("ray")
        ),
    ],
)
def test_other_launchers_give_the_whole(
    flags: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    words = ["--parts", "3", "--launcher", *flags, "--out", str(tmp_path / "out")]
    assert main(["run", *STUDY, *words]) == 0
    assert_equal_folders(tmp_path / "out", whole)


def test_bad_words_about_parts_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and no folder is left."""
    for flags, words in (
        (["--part", "3/3"], "part is '3/3', but must be i/n"),
        (["--part", "1"], "such as 0/4"),
        (["--part", "0/13"], "from 1 to 12, the number of lanes"),
        (["--part", "0/2", "--parts", "2"], "parts is '2', but must be left out with --part"),
        (["--part", "0/2", "--launcher", "local"], "must be left out with --part"),
        (["--part", "0/2", "--plot", "loss"], "plot is 'loss', but must be left out with --part"),
        (["--part", "0/2", "--against", "bits"], "against is 'bits', but must be left out with"),
        (["--parts", "2", "--progress", "how_far"], "progress is 'how_far', but must be left out"),
        (["--parts", "13"], "from 1 to 12, the number of lanes"),
        (["--parts", "0"], "parts is '0', but must be a whole number of at least 1"),
        (["--launcher", "slurmm"], "launcher is 'slurmm', but must be one of local, slurm, ray"),
        (["--resources", "gpus=1"], "left out without a launcher"),
        (["--launcher", "local", "--resources", "gpus=1"], "names of processes, restarts"),
        (
            ["--launcher", "local", "--resources", "processes=x"],
            "processes is 'x', but must be a whole number",
        ),
        (["--launcher", "slurm", "--resources", "cluster=none"], "cluster is 'none'"),
    ):
        assert main(["run", *STUDY, *flags, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
        assert not (tmp_path / "out").exists(), flags


def test_a_part_is_read_from_its_text() -> None:
    assert read_part("0/1") == Part(0, 1) and read_part("3/12") == Part(3, 12)
    assert read_part(None) is None and str(Part(3, 12)) == "3/12"
    for text in ("", "1/1", "-1/2", "1/0", "a/b", "1/2/3", "0.5/2"):
        with pytest.raises(ConfigError, match="such as 0/4"):
            read_part(text)
