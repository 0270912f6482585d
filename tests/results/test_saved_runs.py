"""Runs written into a folder and read back, tables of them, and single lanes."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.cli.commands import main
from fedjax_sim.core.lifecycle import InputError, digest_of, read_json, seal_json
from fedjax_sim.results.records import to_json
from fedjax_sim.results.reports import load
from fedjax_sim.results.runs import SETTINGS, lane_labels
from fedjax_sim.results.summaries import summary
from tests.conftest import Regression
from tests.engine.test_division import assert_equal_runs
from tests.kept_files import NUM_FLIPS, Touch, count_refusals

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]


class Pair(NamedTuple):
    """A container of a module that is imported."""

    half: jax.Array
    rest: list[Any]


@struct.dataclass
class NestedRegression(Regression):
    """A model of containers in containers, with bfloat16, a slash in a name, and no array."""

    def init(self, key: jax.Array) -> Any:
        whole = super().init(key)
        return {"layer/w": Pair(whole[:1].astype("bfloat16"), [whole[1:], None]), "layer|w": {}}

    def loss(self, params: Any, *inputs: Any) -> jax.Array:
        return super().loss(_whole(params), *inputs)

    def evaluate(self, params: Any) -> Any:
        return super().evaluate(_whole(params))


def _whole(params: Any) -> jax.Array:
    pair = params["layer/w"]
    return jnp.concatenate([pair.half.astype("float32"), pair.rest[0]])


@pytest.fixture(scope="module")
def run(regression: Callable, small: Callable) -> fedjax_sim.Run:
    """Two programs with different numbers of slots; a setting that is a function."""
    made = regression()
    names = ("inputs", "targets", "counts", "noise")
    problem = NestedRegression(**{name: getattr(made, name) for name in names})
    return fedjax_sim.sweep(
        FEDAVG,
        problem,
        small(FEDAVG),
        seeds=[5, 2],
        settings={"num_selected": [2, 4], "lr": [0.02, 0.05]},
        budget=fedjax_sim.Ticks(4),
        num_evals=2,
        layout=Layout(4, False, 1),
        keep=fedjax_sim.Keep(models=True),
        watch=fedjax_sim.Watch(
            on_evaluation=lambda progress: [seed == 2 for seed in progress.seeds]
        ),
    )


def test_a_run_is_read_back_as_it_was(run: fedjax_sim.Run, tmp_path: Path) -> None:
    run.save(tmp_path)
    found = fedjax_sim.load(tmp_path)
    assert_equal_runs(found, run)
    assert found.curves.identical(run.curves)
    assert jax.tree.structure(found.models) == jax.tree.structure(run.models)
    assert found.models["layer/w"].half.dtype == jnp.bfloat16
    assert type(found) is type(run) and type(found.hypers[0]) is FEDAVG.Hyper
    assert len({id(each) for each in found.timelines}) == len({id(t) for t in run.timelines})
    # Any program that reads netCDF finds labels.
    with xr.open_datatree(tmp_path / "models.nc", engine="h5netcdf") as tree:
        weights = tree["fedavg"]["layer|w.rest.0"].sel(num_selected=4, lr=0.05, seed=5)
        np.testing.assert_array_equal(weights, run.models["layer/w"].rest[0][6])
    with xr.open_datatree(tmp_path / "samples.nc", engine="h5netcdf") as tree:
        sizes = dict(tree["fedavg"].sizes)
        assert {name: sizes[name] for name in ("num_selected", "lr", "seed", "eval")} == {
            "num_selected": 2,
            "lr": 2,
            "seed": 2,
            "eval": 3,
        }
    one = run.lane(num_selected=4, lr=0.02, seed=2)
    one.save(tmp_path)
    assert_equal_runs(fedjax_sim.load(tmp_path, "fedavg"), one)


def test_the_command_line_reads_a_saved_run(
    run: fedjax_sim.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plot` draws it; its files say what those of `fedjax-sim run` say, and no more."""
    run.save(tmp_path / "a")
    kept = load(tmp_path / "a")
    assert kept.curves["fedavg"].identical(run.curves)
    assert kept.summary == json.loads(to_json(summary({"fedavg": run.curves})))
    assert kept.summary["lanes"] == 8 and len(kept.summary["systems"]["fedavg"]["settings"]) == 4
    settings = kept.config["systems"]["fedavg"]
    assert (settings["num_selected"], settings["lr"]) == ([2, 4], [0.02, 0.05])
    assert (settings["training.optimizer"], settings["num_clients"]) == (
        "sgd",
        run.hypers[0].num_clients,
    )
    assert kept.config["seeds"] == [5, 2] and {"versions", "commit", "device"} <= {*kept.config}
    assert {*kept.config["files"]} == {path.name for path in (tmp_path / "a").iterdir()}
    run.lane(num_selected=2, lr=0.02, seed=5).save(tmp_path / "b")
    words = ["plot", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "fedavg (a) num_selected=4 lr=0.05" in capsys.readouterr().out
    assert (tmp_path / "out" / "loss.png").exists()


def test_some_lanes_are_saved_and_not_drawn(
    run: fedjax_sim.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of a sweep comes back as it was; `plot` asks for the whole."""
    curves = run.curves.stack(lane=("num_selected", "lr", "seed")).reset_index("lane")
    curves = curves.transpose("lane", ...).assign_coords(lane=np.arange(8))
    part = dataclasses.replace(run, curves=curves)
    part.save(tmp_path)
    assert_equal_runs(fedjax_sim.load(tmp_path), part)
    assert load(tmp_path).summary["systems"] == {"fedavg": {"lanes": 8}}
    assert main(["plot", str(tmp_path)]) == 2
    assert "merge its parts first" in capsys.readouterr().err


def test_a_lane_is_what_simulate_returns(run: fedjax_sim.Run) -> None:
    one = run.lane(num_selected=2, lr=0.05, seed=2)
    assert dict(one.curves.sizes) == {"eval": 3} and one.lane_dims == ()
    np.testing.assert_array_equal(one.models["layer/w"].rest[0], run.models["layer/w"].rest[0][3])
    assert one.hypers == [run.hypers[3]] and one.hypers[0].lr == 0.05
    assert one.timelines[0].clients.shape == (2, 2)  # Two slots, and stopped after two ticks.
    assert one.lane() is not one and one.lane(seed=2).lane_dims == ()
    for labels, words in (
        ({"seed": 2}, r"those of one lane \(4 lanes have them\)"),
        ({"num_selected": 2, "lr": 1.0, "seed": 2}, r"\(0 lanes have them\), such as {"),
        ({"rate": 1}, "label of a lane is 'rate', but must be one of num_selected, lr, seed"),
    ):
        with pytest.raises(ConfigError, match=words):
            run.lane(**labels)
    for of_run, place, last in ((one, 1, 0), (run, 8, 7), (run, -1, 7)):
        with pytest.raises(ConfigError, match=f"lane is {place}, but must be from 0 to {last}"):
            of_run.model(place)
    for model in (one.model(0), run.model(3)):
        np.testing.assert_array_equal(model["layer/w"].rest[0], one.models["layer/w"].rest[0])


def test_arrays_without_entries_and_with_names_of_settings(
    run: fedjax_sim.Run, tmp_path: Path
) -> None:
    """Such as a layer of no units, and a parameter that is called as a swept setting is."""
    random = np.random.default_rng(0)
    models = {name: random.normal(size=(8, 2)) for name in ("eval", "lr", "seed", "time")}
    models |= {"empty": np.zeros((8, 0, 3), "int32"), "w": random.normal(size=8)}
    samples = jax.tree.map(lambda leaf: np.stack([leaf] * 3, axis=1), models)
    whole = dataclasses.replace(run, models=models, samples=samples)
    for each in (whole, whole.lane(num_selected=4, lr=0.02, seed=2)):
        each.save(tmp_path)
        assert_equal_runs(fedjax_sim.load(tmp_path), each)


def test_why_a_lane_ended_is_not_its_label(regression: Callable, small: Callable) -> None:
    """It is a coordinate of the lanes of live clocks, as their labels are."""
    oort = fedjax_sim.SYSTEMS["oort"]
    inputs = oort, regression(), small(oort)
    budget = fedjax_sim.Ticks(2)
    whole = fedjax_sim.sweep(*inputs, seeds=2, budget=budget, num_evals=1)
    part = fedjax_sim.sweep(*inputs, seeds=2, budget=budget, num_evals=1, lanes=[1])
    assert "ended" in part.curves.coords
    for run in (whole.lane(seed=1), part):
        assert lane_labels(run.curves) == [{"seed": 1}]
    with pytest.raises(ConfigError, match="label of a lane is 'ended', but must be one of seed"):
        whole.lane(seed=1).lane(ended="ticks")


def test_a_table_has_a_row_for_each_lane_and_evaluation(run: fedjax_sim.Run) -> None:
    """Metrics of more numbers, such as one for each client, are left out."""
    per_client = np.zeros((2, 2, 2, 3, 7))
    dims = ("num_selected", "lr", "seed", "eval", "client")
    wide = fedjax_sim.Run(
        run.curves.assign(accuracies=(dims, per_client)), run.models, run.timelines, run.hypers
    )
    table = wide.to_dataframe()
    assert len(table) == 2 * 2 * 2 * 3 and not table.isna().any().any()
    assert [*table.columns[:5]] == ["system", "num_selected", "lr", "seed", "eval"]
    assert {"loss", "time", "uplink_bits", "stopped_at", "failed"} <= {*table.columns}
    assert "accuracies" not in table.columns
    rows = table[(table.num_selected == 4) & (table.lr == 0.05) & (table.seed == 2)]
    np.testing.assert_array_equal(rows.loss, run.curves.loss[1, 1, 1])
    np.testing.assert_array_equal(rows.ticks, [0, 2, 2])
    assert (rows.stopped_at == 1).all() and (rows.system == "fedavg").all()
    assert len(run.lane(num_selected=4, lr=0.05, seed=2).to_dataframe()) == 3


def test_what_is_no_saved_run_is_one_sentence(run: fedjax_sim.Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of a saved run, with results.nc, models.nc, tim"):
        fedjax_sim.load(tmp_path)
    run.save(tmp_path)
    with pytest.raises(ConfigError, match="system is 'favano', but must be one of fedavg"):
        fedjax_sim.load(tmp_path, "favano")
    run.lane(num_selected=2, lr=0.02, seed=5).save(tmp_path / "other")
    for name in ("models.nc", SETTINGS):
        mixed = tmp_path / f"mixed {name}"
        shutil.copytree(tmp_path / "other", mixed)
        shutil.copy(tmp_path / name, mixed)
        with pytest.raises(InputError, match=f"{name} is not the file that config.json in its"):
            fedjax_sim.load(mixed)


def same(run: fedjax_sim.Run, folder: Path) -> bool:
    """Tell whether a folder gives the run back; any other numbers fail."""
    found = fedjax_sim.load(folder)
    assert_equal_runs(found, run)
    return found.curves.identical(run.curves)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name", ["results.nc", "models.nc", "samples.nc", "timelines.nc", SETTINGS, "config.json"]
)
def test_no_flipped_bit_gives_other_numbers(run: fedjax_sim.Run, tmp_path: Path, name: str) -> None:
    """Neither does a file that is cut, empty, missing or a folder."""
    run.save(tmp_path)
    path = tmp_path / name
    refused = count_refusals(path, lambda: same(run, tmp_path), lambda is_same: is_same)
    assert refused == NUM_FLIPS
    sound = path.read_bytes()
    for content in (b"", b"[]", sound[: len(sound) // 2], sound[:-1], sound + b"x"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(str(path))):
            fedjax_sim.load(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match="one of a saved run"):
        fedjax_sim.load(tmp_path)
    path.mkdir()
    with pytest.raises(InputError, match=f"{name} is not a file"):
        fedjax_sim.load(tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["results.nc", "summary.json", "config.json"])
def test_what_plot_reads_is_checked(run: fedjax_sim.Run, tmp_path: Path, name: str) -> None:
    run.save(tmp_path)
    sound = load(tmp_path)

    def is_sound(found: Any) -> bool:
        return found.curves["fedavg"].identical(sound.curves["fedavg"]) and found[1:] == sound[1:]

    assert count_refusals(tmp_path / name, lambda: load(tmp_path), is_sound) == NUM_FLIPS


def test_a_killed_writer_leaves_one_run_or_a_sentence(
    run: fedjax_sim.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs with equal lanes and labels differ in numbers alone: half of each is no run."""
    run = dataclasses.replace(run.lane(num_selected=2, lr=0.02, seed=5), samples=None)
    other = dataclasses.replace(run, models=jax.tree.map(lambda leaf: leaf + 1, run.models))
    other = dataclasses.replace(other, curves=run.curves.assign(loss=run.curves.loss + 1))
    replace, found = Path.replace, []
    run.save(tmp_path / "first")
    num_files = len([*(tmp_path / "first").iterdir()])
    for num_written in range(num_files + 1):
        folder = tmp_path / str(num_written)
        shutil.copytree(tmp_path / "first", folder)
        left = iter(range(num_written))

        def replace_some(path: Path, target: Path, left: Iterator[int] = left) -> Path:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_some)
            if num_written < num_files:
                with pytest.raises(KeyboardInterrupt):
                    other.save(folder)
            else:
                other.save(folder)
        try:
            loss = fedjax_sim.load(folder).curves.loss
            found.append("old" if loss.identical(run.curves.loss) else "new")
        except InputError as error:
            assert "its writer was killed" in str(error)
            found.append("refused")
    assert found[0] == "old" and found[-1] == "new" and {*found[1:-2]} == {"refused"}


def test_neither_writing_nor_reading_pickles(run: fedjax_sim.Run, tmp_path: Path) -> None:
    """Of an object without a text nothing is kept but a description."""
    marker = tmp_path / "marker"
    one = run.lane(num_selected=2, lr=0.02, seed=5)
    strange = dataclasses.replace(one, hypers=[one.hypers[0].replace(optimizer=Touch(marker))])
    with pytest.raises(ConfigError, match=r"training\.optimizer is <tests\.kept_files\.Touch"):
        strange.save(tmp_path / "new")
    strange.save(tmp_path / "new", without=["optimizer"])
    fedjax_sim.load(tmp_path / "new", trust=True)
    assert not marker.exists()


def replace_settings(folder: Path, content: Any) -> None:
    """Write another settings.json with its digest, and list it in config.json."""
    (folder / SETTINGS).write_bytes(seal_json(content))
    config = read_json(folder / "config.json")
    config["files"][SETTINGS] = digest_of(folder / SETTINGS)
    (folder / "config.json").write_bytes(seal_json(config))


@pytest.mark.parametrize("content", [{}, {"systems": 3}, {"systems": {"fedavg": {}}}])
def test_settings_of_another_form_are_one_sentence(
    run: fedjax_sim.Run, tmp_path: Path, content: dict
) -> None:
    run.lane(num_selected=2, lr=0.02, seed=5).save(tmp_path)
    replace_settings(tmp_path, content)
    with pytest.raises(InputError, match="not of the form in which settings are kept"):
        fedjax_sim.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", b"\x89HDF"])
def test_arrays_that_are_no_netcdf_file_are_one_sentence(
    run: fedjax_sim.Run, tmp_path: Path, content: bytes
) -> None:
    run.lane(num_selected=2, lr=0.02, seed=5).save(tmp_path)
    (tmp_path / "models.nc").write_bytes(content)
    config = read_json(tmp_path / "config.json")
    config["files"]["models.nc"] = digest_of(tmp_path / "models.nc")
    (tmp_path / "config.json").write_bytes(seal_json(config))
    with pytest.raises(InputError, match=r"models\.nc is damaged, or no netCDF file"):
        fedjax_sim.load(tmp_path, trust=True)
