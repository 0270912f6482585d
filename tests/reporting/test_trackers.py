"""Trackers: what they wrote is read back by their own tools, and equals the curves."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.results import trackers

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
LANES = [(lr, seed) for lr in (0.02, 0.05) for seed in (5, 2)]


@pytest.fixture(scope="module")
def sweep(regression: Callable, small: Callable) -> Callable[..., fedjax_sim.Run]:
    """Return a function that runs four lanes with trackers; those of seed 2 are stopped."""
    problem, hyper = regression(), small(FEDAVG)

    def run(
        given: Sequence[trackers.Tracker], checkpoints: fedjax_sim.Checkpoints
    ) -> fedjax_sim.Run:
        return fedjax_sim.sweep(
            FEDAVG,
            problem,
            hyper,
            seeds=[5, 2],
            settings={"lr": [0.02, 0.05]},
            budget=fedjax_sim.Ticks(6),
            num_evals=3,
            layout=Layout(4, False, 1),
            watch=fedjax_sim.Watch(
                on_evaluation=lambda progress: [seed == 2 for seed in progress.seeds],
                trackers=given,
            ),
            checkpoints=checkpoints,
        )

    return run


@pytest.fixture(scope="module")
def logged(sweep: Callable, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Run with CSV and TensorBoard and a checkpoint."""
    folder = tmp_path_factory.mktemp("logs")
    given = [trackers.make_tracker(name, folder) for name in ("csv", "tensorboard")]
    run = sweep(given, fedjax_sim.Checkpoints(folder / "checkpoint"))
    for tracker in given:
        tracker.close()
    return run, folder


def known(run: fedjax_sim.Run, lr: float, seed: int) -> xr.Dataset:
    """Return the curves of a lane up to its end."""
    lane = run.curves.sel(lr=lr, seed=seed)
    return lane.isel(eval=slice(0, 2 if seed == 2 else 4))


def read_csv(path: Path) -> dict[tuple[float, int, str], list[dict[str, str]]]:
    """Read the lines of each lane and metric."""
    lines: dict[tuple[float, int, str], list[dict[str, str]]] = {}
    with path.open() as file:
        for line in csv.DictReader(file):
            lr = json.loads(line["settings"])["lr"]
            lines.setdefault((lr, int(line["seed"]), line["metric"]), []).append(line)
    return lines


def assert_csv_equals(path: Path, run: fedjax_sim.Run) -> None:
    lines = read_csv(path)
    assert len(lines) == len(LANES) * 4, "loss and three coordinates"
    for (lr, seed, metric), found in lines.items():
        lane = known(run, lr, seed)
        assert [int(line["ticks"]) for line in found] == lane.ticks.values.tolist()
        np.testing.assert_array_equal([float(line["virtual_time"]) for line in found], lane.time)
        values = np.array([line["value"] for line in found], "float32")
        np.testing.assert_array_equal(values, lane[metric])
        assert {line["lane"] for line in found} == {f"fedavg lr={lr} seed={seed}"}


def test_csv_has_every_evaluation_of_every_lane(logged: tuple[Any, Path]) -> None:
    """A stopped lane has lines up to its end only."""
    run, folder = logged
    assert_csv_equals(folder / "log.csv", run)


def test_a_resumed_run_logs_everything_again(
    logged: tuple[Any, Path], sweep: Callable, tmp_path: Path
) -> None:
    """Also what had finished before."""
    run, folder = logged
    tracker = trackers.CSV(tmp_path / "log.csv")
    sweep([tracker], fedjax_sim.Checkpoints(folder / "checkpoint", resume=True))
    tracker.close()
    assert_csv_equals(tmp_path / "log.csv", run)


def test_tensorboard_reads_its_events(logged: tuple[Any, Path]) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, folder = logged
    for lr, seed in LANES:
        found = events.EventAccumulator(str(folder / f"tensorboard/fedavg lr={lr} seed={seed}"))
        found.Reload()
        lane = known(run, lr, seed)
        scalars = found.Scalars("loss")
        assert [each.step for each in scalars] == lane.ticks.values.tolist()
        np.testing.assert_array_equal([each.value for each in scalars], lane.loss)
        assert found.Scalars("virtual_time")[-1].value == np.float32(lane.time[-1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, by MLflow
def test_lanes_of_functions_of_one_name_are_apart() -> None:
    """Two lambdas have a run each; before, the second one wrote into the first one's."""
    begun, written = list[str](), list[tuple[str, int]]()

    def begin(title: str, lane: Any) -> str:
        begun.append(title)
        return title

    tracker = trackers._PerLane(begin, lambda run, ticks, _: written.append((run, ticks)), print)
    lanes = [{"system": "fedavg", "optimizer": rule, "seed": 0} for rule in (lambda: 1, lambda: 2)]
    for ticks in (0, 1):
        for lane in lanes:
            tracker.log(lane, ticks, {})
    first = "fedavg optimizer=<lambda> seed=0"
    assert begun == [first, f"{first} (2)"]
    assert written == [(title, ticks) for ticks in (0, 1) for title in begun]


def test_mlflow_keeps_runs(
    logged: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    run, _ = logged
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracker = trackers.make_tracker("mlflow", tmp_path)
    log_again(tracker, run)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow/mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'fedjax-sim'")
    runs = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {f"fedavg lr={lr} seed={seed}" for lr, seed in LANES}
    for lr, seed in LANES:
        found, lane = runs[f"fedavg lr={lr} seed={seed}"], known(run, lr, seed)
        assert found.info.status == "FINISHED"
        assert found.data.params == {"system": "fedavg", "lr": str(lr), "seed": str(seed)}
        history = client.get_metric_history(found.info.run_id, "loss")
        assert [each.step for each in history] == lane.ticks.values.tolist()
        np.testing.assert_array_equal([each.value for each in history], lane.loss)


def test_weights_and_biases_works_offline(
    logged: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    run, _ = logged
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = trackers.make_tracker("wandb", tmp_path)
    log_again(tracker, run.lane(lr=0.02, seed=5))
    (file,) = tmp_path.glob("wandb/wandb/offline-run-*/*.wandb")
    losses = [repr(float(loss)).encode() for loss in run.curves.loss.sel(lr=0.02, seed=5)]
    expected = (b"fedavg lr=0.02 seed=5", b"virtual_time", *losses)
    # A process of wandb writes the file, and may be a moment behind.
    until = time.monotonic() + 20
    while not all(words in file.read_bytes() for words in expected):
        assert time.monotonic() < until
        time.sleep(0.05)


def log_again(tracker: trackers.Tracker, run: fedjax_sim.Run) -> None:
    """Log the curves of a run, which spares a sweep."""
    for lr, seed in LANES:
        if "lr" in run.curves.dims:
            lane = known(run, lr, seed)
        elif (lr, seed) == (run.curves.lr.item(), run.curves.seed.item()):
            lane = run.curves
        else:
            continue
        for at in range(lane.sizes["eval"]):
            values = {"loss": float(lane.loss[at]), "evaluation": at, "virtual_time": 0.5}
            label = {"system": "fedavg", "lr": lr, "seed": seed}
            tracker.log(label, int(lane.ticks[at]), values)
    tracker.close()


def test_packages_of_trackers_are_loaded_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the package nor the room of trackers loads them; without one, a sentence says so."""
    names = set(trackers.TRACKERS.values()) - {"csv"}
    command = (
        "import sys, fedjax_sim.engine, fedjax_sim.results.trackers; "
        f"sys.exit(bool({names!r} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", command], check=True)
    for name, package in trackers.TRACKERS.items():
        if name != "csv":
            monkeypatch.setitem(sys.modules, package, None)
            with pytest.raises(ConfigError, match=rf'pip install "fedjax-sim\[{name}\]"'):
                trackers.make_tracker(name, tmp_path)
