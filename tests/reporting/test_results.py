"""The results folder: what is checked, written, kept, and read back. The pictures."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fedjax_sim.core.lifecycle import InputError, StorageError, read_json, seal_json
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import EMPTY, Timeline
from fedjax_sim.results import plots, reports
from fedjax_sim.results.reports import Folder
from fedjax_sim.results.runs import WORDS, sentence_of


def curves(accuracy, *, failed=None, swept=None, time=None):
    """Make the curves of one system.

    accuracy: `[..., seeds, evals]`. swept: values of the leading dimensions, by name.
    """
    accuracy = np.asarray(accuracy, float)
    swept = swept or {}
    lanes, dims = (*swept, "seed"), (*swept, "seed", "eval")
    shape = accuracy.shape
    failed = np.zeros(shape[:-1], bool) if failed is None else np.asarray(failed)
    time = np.broadcast_to(np.arange(shape[-1]) * 10.0 if time is None else time, shape)
    ticks = np.broadcast_to(np.arange(shape[-1]), shape)
    coords = {
        "time": (dims, time),
        **{
            name: (dims, ticks * k)
            for k, name in enumerate(("ticks", "local_steps", "uplink_bits"), start=1)
        },
    }
    data = {"accuracy": (dims, accuracy), "failed": (lanes, failed)}
    attrs = {"system": "x", "seconds_compile": 2.0, "seconds_run": 0.5}
    return xr.Dataset(data, {**swept, "seed": np.arange(shape[-2]), **coords}, attrs)


def listing(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_summary_has_the_promised_form():
    data = curves([[0.1, 0.5], [0.1, 0.7], [0.1, 0.9]])
    summary = reports.summary({"x": data, "y": data})
    assert set(summary) == {
        *("lanes", "failed_lanes", "collapsed_lanes", "flagged", "seconds", "systems")
    }
    assert (summary["lanes"], summary["failed_lanes"], summary["seconds"]) == (
        6,
        0,
        {"compile": 4.0, "run": 1.0},
    )
    entry = summary["systems"]["x"]
    assert set(entry) == {"final", "virtual_time", "ticks", "local_steps", "uplink_bits"}
    assert entry["final"]["accuracy"] == pytest.approx(
        {"mean": 0.7, "std": np.std([0.5, 0.7, 0.9]), "median": 0.7, "min": 0.5}
    )
    assert (entry["virtual_time"], entry["ticks"], entry["local_steps"], entry["uplink_bits"]) == (
        10.0,
        1,
        2,
        3,
    )


def test_summary_lists_swept_settings():
    data = curves(
        np.arange(12.0).reshape(2, 3, 1, 2),
        swept={"lr": [0.1, 0.5], "local_steps_setting": [1, 2, 3]},
    )
    entries = reports.summary({"x": data})["systems"]["x"]["settings"]
    assert [entry["set"] for entry in entries] == [
        {"lr": lr, "local_steps": k} for lr in (0.1, 0.5) for k in (1, 2, 3)
    ]
    assert [entry["final"]["accuracy"]["mean"] for entry in entries] == [1, 3, 5, 7, 9, 11]


def test_summary_leaves_failed_lanes_out():
    data = curves([[0.1, np.nan], [0.1, 0.6], [0.1, 0.8]], failed=[True, False, False])
    summary = reports.summary({"x": data})
    assert summary["failed_lanes"] == 1
    assert summary["systems"]["x"]["final"]["accuracy"] == pytest.approx(
        {"mean": 0.7, "std": 0.1, "median": 0.7, "min": 0.6}
    )
    none_left = reports.summary({"x": curves([[0.1, np.nan]], failed=[True])})
    assert set(none_left["systems"]["x"]["final"]["accuracy"].values()) == {None}


def test_summary_names_failed_collapsed_and_stopped_lanes():
    """Collapsed and stopped lanes stay in the means, because their numbers are finite."""
    data = curves(
        [[0.1, np.nan, np.nan], [0.1, 0.6, 0.1], [0.1, 0.8, 0.8]], failed=[True, False, False]
    )
    data = data.assign(failed_at=("seed", [1, -1, -1]), collapsed_at=("seed", [-1, 2, -1]))
    data = data.assign(stopped_at=("seed", [-1, -1, 1]))
    summary = reports.summary({"x": data})
    assert (summary["failed_lanes"], summary["collapsed_lanes"]) == (1, 1)
    entry = {"system": "x", "set": {}}
    assert summary["flagged"] == [
        entry | {"seed": 0, "what": "failed", "evaluation": 1, "tick": 1, "virtual_time": 10.0},
        entry | {"seed": 1, "what": "collapsed", "evaluation": 2, "tick": 2, "virtual_time": 20.0},
        entry | {"seed": 2, "what": "stopped", "evaluation": 1, "tick": 1, "virtual_time": 10.0},
    ]
    assert summary["systems"]["x"]["final"]["accuracy"]["mean"] == pytest.approx(0.45)
    assert {name: sentence_of(data, name, "x") for name in WORDS} == {
        "failed_at": "1 of 3 lanes of x diverged (a number was not finite): "
        "seed=0 from evaluation 1 on.",
        "collapsed_at": "1 of 3 lanes of x ended at chance: seed=1 from evaluation 2 on.",
        "stopped_at": "1 of 3 lanes of x were stopped early, and count with their last values: "
        "seed=2 from evaluation 1 on.",
    }


def test_save_and_load_give_back_everything(tmp_path):
    written = {
        "a": curves([[0.1, 0.5]]),
        "b": curves([[[0.1, np.inf, 0.2]]], swept={"reweight": ["none"]}, failed=[[True]]),
    }
    folder = Folder(tmp_path / "deep" / "out")
    folder.open({"seeds": [0]})
    assert folder.checkpoints.is_dir()
    config = {"seeds": 8, "dataset": "mnist"}  # as an experiment writes them
    picture = plots.curves_figure(written, "accuracy")
    summary = reports.save(folder, written, config, {"accuracy.png": picture})
    read = reports.load(folder.path)
    for name, data in written.items():
        assert read.curves[name].identical(data)
    assert read.summary == summary
    assert config.items() <= read.config.items()
    assert {"versions", "commit", "device", "files"} <= set(read.config)
    assert {"fedjax_sim", "jax", "jaxlib", "flax", "optax", "numpy", "python"} <= set(
        read.config["versions"]
    )
    assert set(listing(folder.path)) == {
        "results.nc",
        "summary.json",
        "config.json",
        "accuracy.png",
    }


def test_load_refuses_what_is_no_results_folder(tmp_path):
    with pytest.raises(ConfigError, match="finished run"):
        reports.load(tmp_path)


def test_looking_creates_nothing(tmp_path):
    Folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_withdrawing_removes_what_opening_made(tmp_path):
    """And nothing else: no checkpoint, and nothing of a run that was there before."""
    path, kept = tmp_path / "new" / "out", {"checkpoint", "checkpoint/run.json"}
    folder = Folder(path)
    folder.open({"seeds": [0]})
    folder.withdraw()
    assert not path.exists()
    folder = Folder(path)
    folder.open({"seeds": [0]})
    (folder.checkpoints / "lanes.json").write_text("{}")
    folder.withdraw()
    assert (folder.checkpoints / "lanes.json").exists()
    again = Folder(path, resume=True)
    again.open({"seeds": [0]})
    again.withdraw()
    found = {str(each.relative_to(path)) for each in path.rglob("*")}
    assert found >= kept | {"checkpoint/lanes.json"}


@pytest.mark.parametrize("flags", [{}, {"resume": True}])
def test_a_folder_in_use_is_refused(tmp_path, flags):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="results folder"):
        Folder(tmp_path, **flags)


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(ConfigError, match="a folder, not a file"):
        Folder(tmp_path / "out", overwrite=True)


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder that even root cannot write to"
)
def test_an_unwritable_place_is_refused():
    with pytest.raises(ConfigError, match="can be created and written"):
        Folder("/proc/fedjax_sim").open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="can be created and written"):
        Folder(tmp_path).open()


def test_a_full_disk_is_refused_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(reports.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    with pytest.raises(ConfigError, match="100"):
        Folder(tmp_path / "a" / "b").open({})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_older_file(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "out")
    folder.open()
    folder.write_json("summary.json", {"old": 1})
    before = listing(folder.path)

    def full(self, content):
        Path.write_text(self, content[:3].decode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left"):
        folder.write_json("summary.json", {"new": 2})
    assert listing(folder.path) == before


def test_overwriting_keeps_the_old_run_until_the_new_one_is_done(tmp_path):
    old = Folder(tmp_path / "out")
    old.open()
    reports.save(
        old, {"a": curves([[0.1, 0.5]])}, {}, {"loss.png": plots.curves_figure({}, "loss")}
    )
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = listing(old.path)
    new = Folder(tmp_path / "out", overwrite=True)
    new.open({"seeds": [1]})
    assert {
        name: content
        for name, content in listing(new.path).items()
        if not name.startswith("checkpoint")
    } == before
    reports.save(new, {"a": curves([[0.1, 0.9]])}, {})
    # The old picture is gone with its run; files that are not of the run stay.
    assert set(listing(new.path)) == {"results.nc", "summary.json", "config.json", "notes.txt"}
    assert reports.load(new.path).summary["systems"]["a"]["final"]["accuracy"]["mean"] == 0.9


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        {"files": [1, [], {}, None, "", ".", "..", "../notes.txt", "inner", "checkpoint"]},
        {"files": {"inner": 1, "..": 2}},
        {"files": "notes"},
        {"files": 3},
        {},
        [],
        3,
        "",
    ],
)
def test_an_odd_config_is_overwritten(tmp_path, content, is_sealed):
    """Whatever it lists, nothing is removed that is no file of the folder."""
    out = tmp_path / "out"
    (out / "inner").mkdir(parents=True)
    for path in (tmp_path / "notes.txt", *(out / name for name in "notes"), out / "inner" / "a"):
        path.write_text("mine")
    text = json.dumps(content) if content != "" else ""
    is_object = is_sealed and isinstance(content, dict)
    (out / "config.json").write_bytes(seal_json(content) if is_object else text.encode())
    new = Folder(out, overwrite=True)
    new.open({"seeds": [1]})
    reports.save(new, {"a": curves([[0.1, 0.9]])}, {})
    assert reports.load(out).summary["lanes"] == 1
    kept = {"results.nc", "summary.json", "config.json", "inner/a", *"notes"}
    assert set(listing(out)) == kept and (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("name", ["config.json", "results.nc", "accuracy.png"])
@pytest.mark.parametrize("flag", ["overwrite", "resume"])
def test_a_folder_in_the_place_of_a_file_is_found_before_the_run(tmp_path, name, flag):
    Folder(tmp_path).open({"seeds": [1]})
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"one in which {name} is a file"):
        Folder(tmp_path, **{flag: True})


def test_an_overwriting_run_that_is_resumed_removes_the_old_files(tmp_path):
    old = Folder(tmp_path / "out")
    old.open()
    reports.save(old, {}, {}, {"loss.png": plots.curves_figure({}, "loss")})
    Folder(tmp_path / "out", overwrite=True).open({"seeds": [1]})
    resumed = Folder(tmp_path / "out", resume=True)
    resumed.open({"seeds": [1]})
    reports.save(resumed, {}, {})
    assert set(listing(resumed.path)) == {"results.nc", "summary.json", "config.json"}


def test_only_the_same_run_resumes(tmp_path):
    Folder(tmp_path / "out").open({"seeds": [0, 1], "systems": {"favano": {"lr": 0.5}}})
    folder = Folder(tmp_path / "out", resume=True)
    folder.check_resumable({"seeds": (0, 1), "systems": {"favano": {"lr": 0.5}}})
    with pytest.raises(
        ConfigError, match=r"systems\.favano\.lr of the checkpoint.* is 0\.5, but must be 0\.1"
    ):
        folder.check_resumable({"seeds": [0, 1], "systems": {"favano": {"lr": 0.1}}})


def test_a_run_that_ended_is_not_resumed_with_another_budget(tmp_path, capsys):
    folder = Folder(tmp_path / "out")
    folder.open({"time_budget": 10.0})
    reports.save(folder, {"a": curves([[0.1, 0.5]])}, {}, can_go_on=True)
    assert (folder.checkpoints / "ended.json").is_file()
    again = Folder(tmp_path / "out", resume=True)
    again.check_resumable({"time_budget": 10.0})
    again.open({"time_budget": 10.0})
    again.finish({}, {}, can_go_on=True)
    for budget in (5.0, 20.0):
        with pytest.raises(ConfigError, match=rf"is 10\.0, but must be {budget}"):
            Folder(tmp_path / "out", resume=True).check_resumable({"time_budget": budget})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [None, "", '{"seeds"', '{"seeds": [1], "sha256": "0"}'])
def test_a_damaged_record_of_the_run_is_written_again(tmp_path, capsys, content):
    """What each system keeps says which run it was, and is compared later."""
    folder = Folder(tmp_path / "out")
    folder.open({"seeds": [0]})
    (folder.checkpoints / "favano").mkdir()
    record = folder.checkpoints / "run.json"
    record.unlink() if content is None else record.write_text(content)
    del folder
    again = Folder(tmp_path / "out", resume=True)
    again.check_resumable({"seeds": [0]})
    again.open({"seeds": [0]})
    assert "is damaged or missing and is written again." in capsys.readouterr().err
    assert again.recorded() == {"seeds": [0]}


def test_a_second_writer_is_refused(tmp_path):
    first = Folder(tmp_path / "out")
    first.open({"seeds": [0]})
    for flag in ("resume", "overwrite"):
        with pytest.raises(InputError, match=f"is being written by process {os.getpid()} on "):
            Folder(tmp_path / "out", **{flag: True}).open({"seeds": [0]})
    assert (first.checkpoints / "run.json").is_file()


def test_resuming_nothing_starts_the_run(tmp_path, capsys):
    folder = Folder(tmp_path / "new", resume=True)
    folder.check_resumable({"seeds": [0]})
    folder.open({"seeds": [0]})
    assert "has no run to resume: starting from the beginning" in capsys.readouterr().err


def test_numbers_that_are_not_finite_become_null(tmp_path):
    folder = Folder(tmp_path)
    folder.open()
    folder.write_json(
        "x.json",
        {
            "a": np.float32(np.nan),
            "b": [np.int64(3), np.inf],
            "c": np.arange(2),
            "d": np.bool_(True),
        },
    )
    assert read_json(tmp_path / "x.json") == {
        "a": None,
        "b": [3, None],
        "c": [0, 1],
        "d": True,
    }


def test_curves_hold_the_previous_value():
    x = np.array([[0.0, 1.0, 4.0], [0.0, 2.0, 3.0]])
    values = np.array([[10.0, 11.0, 14.0], [20.0, 22.0, 23.0]])
    held = plots.on_grid(x, values, np.array([0.0, 0.9, 1.0, 2.5, 9.0]))
    assert held.tolist() == [[10, 10, 11, 11, 14], [20, 20, 20, 22, 23]]


def test_pictures_leave_failed_lanes_out():
    data = {
        "a": curves([[0.1, np.nan], [0.1, 0.6]], failed=[True, False]),
        "b": curves([[0.1, np.nan]], failed=[True]),
    }
    (axes,) = plots.curves_figure(data, "accuracy").axes
    (line,) = axes.lines
    assert line.get_label() == "a (1 of 2 seeds)"
    assert line.get_ydata()[-1] == 0.6
    (axes,) = plots.curves_figure({"b": data["b"]}, "accuracy").axes
    assert [text.get_text() for text in axes.texts] == ["no seed stayed finite"]


def test_a_picture_says_which_seeds_it_leaves_out():
    written = {
        "a": curves([[0.1, 0.5], [0.1, 0.6], [0.1, np.nan]], failed=[False, False, True]),
        "b": curves([[0.1, 0.4]] * 3),
        "c": curves([[0.1, 0.1]] * 3, failed=[True] * 3),
    }
    (axes,) = plots.curves_figure(written, "accuracy").axes
    assert axes.get_legend_handles_labels()[1] == ["a (2 of 3 seeds)", "b"]
    assert axes.get_title(loc="left").endswith("no seed stayed finite of c")
    whole = {"b": written["b"]}
    (axes,) = plots.curves_figure(whole, "accuracy").axes
    assert axes.get_legend_handles_labels()[1] == ["b"]
    assert "finite" not in axes.get_title(loc="left")


def test_a_seed_that_begins_late_is_drawn():
    """Means over local steps are nan up to a lane's first one, which takes other lanes longer."""
    late = [[np.nan, np.nan, 2.0, 3.0], [np.nan, 1.0, np.nan, 0.5], [np.nan] * 4]
    [line], missing = plots._lines({"x": curves(late)}, "accuracy", "time")
    assert line.label == "x (2 of 3 seeds)" and not missing
    assert line.held.tolist() == [[2.0, 2.0, 2.0, 3.0], [1.0, 1.0, 1.0, 0.5]]


def test_few_seeds_are_drawn_each_and_many_as_a_band():
    """Curves are steps at every evaluation of any seed, and no band leaves the values seen."""
    values = [[0.1, 0.3, 0.8], [0.1, 0.5, 0.9], [0.1, 0.1, 0.1]]
    (axes,) = plots.curves_figure({"x": curves(values)}, "accuracy", title="birds").axes
    *seeds, median = axes.lines
    assert len(seeds) == 3
    assert {line.get_drawstyle() for line in axes.lines} == {"steps-post"}
    assert median.get_ydata().tolist() == [0.1, 0.3, 0.8]
    assert axes.get_title(loc="left").splitlines() == [
        *("birds", "Test accuracy", "median over 3 seeds, and each seed (thin)")
    ]
    many = {"x": curves(np.repeat(values, 20, axis=0))}
    (axes,) = plots.curves_figure(many, "accuracy", against="uplink_bits").axes
    low, high, median = (line.get_ydata() for line in axes.lines)
    assert (low.min(), high.max()) == (0.1, 0.9)
    assert median.tolist() == [0.1, 0.3, 0.8]
    assert axes.xaxis.get_major_formatter()(3e6) == "3 Mbit"


def test_no_two_series_look_alike_in_grey():
    looks = [plots.look(i) for i in range(24)]
    assert len({(str(each["linestyle"]), each["marker"]) for each in looks}) == 24
    assert len({(each["color"], str(each["linestyle"])) for each in looks}) == 24


def test_metrics_of_many_numbers_are_no_curves():
    data = curves([[0.1, 0.5]])
    data["accuracy_3"] = data["accuracy"]
    data["client_loss"] = data["accuracy"].expand_dims(client=4)
    figures = plots.metric_figures({"x": data}, against=("time", "rounds"))
    assert set(figures) == {"accuracy.png", "accuracy_rounds.png"}
    assert figures["accuracy_rounds.png"].axes[0].get_xlabel() == "server steps (rounds)"


def test_the_timeline_is_drawn_without_speeds_and_with_empty_slots(tmp_path):
    clients = np.array([[0, 1], [0, EMPTY]])
    timeline = Timeline(
        np.array([1.0, 2.0]),
        clients,
        np.array([[3, 0], [2, 0]]),
        np.array([[0, 0], [1, 0]]),
        np.ones((2, 2)),
        clients,
    )
    for is_fast in (None, np.array([True, False, False])):
        figure = plots.timeline_figure([plots.Row("x", timeline, 3, is_fast)])
        folder = Folder(tmp_path, overwrite=True)
        folder.open()
        folder.write_figure("timeline.png", figure)
        assert (tmp_path / "timeline.png").stat().st_size > 5000
