"""Runs written into a folder and read back, tables of them, and single lanes."""

import dataclasses
import json
import shutil
from collections.abc import Callable
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
from fedjax_sim.engine.records import to_json
from fedjax_sim.engine.run_files import SETTINGS
from fedjax_sim.engine.summaries import summary
from fedjax_sim.lifecycle import InputError
from fedjax_sim.reporting.results import load
from tests.conftest import Regression
from tests.engine.test_division import assert_equal_runs

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
        num_ticks=4,
        num_evals=2,
        layout=Layout(4, False, 1),
        keep_models=True,
        on_evaluation=lambda progress: [seed == 2 for seed in progress.seeds],
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
    assert (settings["optimizer"], settings["num_clients"]) == ("sgd", run.hypers[0].num_clients)
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
        ({"num_selected": 2, "lr": 1.0, "seed": 2}, r"\(0 lanes have them\)"),
        ({"rate": 1}, "label of a lane is 'rate', but must be one of num_selected, lr, seed"),
    ):
        with pytest.raises(ConfigError, match=words):
            run.lane(**labels)
    for of_run, place, last in ((one, 1, 0), (run, 8, 7), (run, -1, 7)):
        with pytest.raises(ConfigError, match=f"lane is {place}, but must be from 0 to {last}"):
            of_run.model(place)
    for model in (one.model(0), run.model(3)):
        np.testing.assert_array_equal(model["layer/w"].rest[0], one.models["layer/w"].rest[0])


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
