"""Trackers: keep the metrics of lanes while they run, for TensorBoard and other tools.

    kept = [trackers.CSV("log.csv"), trackers.TensorBoard("logs")]
    sweep(..., watch=fedjax_sim.Watch(trackers=kept))
    fedjax-sim run favano --tracker csv,tensorboard --out results

A tracker is anything with the methods `log` and `close` of `Tracker`. Each evaluation of each lane
is logged once. A resumed run logs everything from its beginning again, so that its log is whole.
The packages behind TensorBoard, Weights & Biases and MLflow are extras, such as
`pip install "fedjax-sim[tensorboard]"`, and are loaded when such a tracker is made.
"""

import csv
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.settings import OneOf, checked
from fedjax_sim.results.curves import label_of_value

LaneT = TypeVar("LaneT")
TRACKERS = {"csv": "csv", "mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
"""Names on the command line, and the package behind each."""


class Tracker(Protocol):
    """Something that keeps metrics while a run goes on."""

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Keep one evaluation of one lane.

        Args:
          lane: The system's name, the values of the swept settings and the seed, by name: the same
            in all calls for one lane.
          ticks: Server actions before the evaluation.
          values: The metrics that are single numbers, and `evaluation` and `virtual_time`.
        """

    def close(self) -> None:
        """Write everything that is not written yet. The caller of `sweep` closes its trackers."""


def title_of(lane: Mapping[str, object]) -> str:
    """Name a lane in one line, such as "fedavg lr=0.1 seed=0".

    Args:
      lane: As `Tracker.log` receives it: the system, swept settings and the seed.
    """
    values = {name: label_of_value(value) for name, value in lane.items()}
    system = values.pop("system")
    return " ".join([str(system), *(f"{name}={value}" for name, value in values.items())])


COLUMNS = (
    *("lane", "system", "settings", "seed", "ticks", "evaluation", "virtual_time"),
    *("metric", "value"),
)


@checked
class CSV:
    """Writes a line for each metric of each evaluation, since systems have different metrics.

    Columns: `lane` (its title), `system`, `settings` (the swept ones as JSON), `seed`, `ticks`,
    `evaluation`, `virtual_time`, `metric` and `value`. Every evaluation is on the disk at once.
    """

    def __init__(self, path: str | Path):
        """Begin the file. An older one is replaced.

        Args:
          path: The file, encoded as UTF-8.

        Raises:
          InputError: If there is something else of that name, such as a link.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(  # noqa: SIM115 (closed by `close`)
            path, "w", newline="", encoding="utf-8", opener=lifecycle.open_own
        )
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Add the lines of one evaluation; see `Tracker`."""
        swept = {name: value for name, value in lane.items() if name not in ("system", "seed")}
        as_json = json.dumps(swept, default=label_of_value)
        metrics = dict(values)
        at, time = int(metrics.pop("evaluation")), metrics.pop("virtual_time")
        begins = (title_of(lane), lane["system"], as_json, lane["seed"], ticks, at, time)
        self._writer.writerows((*begins, *metric) for metric in metrics.items())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _PerLane(Generic[LaneT]):
    """A tracker with something for each lane, such as a run of another tool."""

    def __init__(
        self,
        begin: Callable[[str, Mapping[str, object]], LaneT],
        write: Callable[[LaneT, int, Mapping[str, float]], None],
        end: Callable[[LaneT], object],
    ):
        """Take functions that begin a lane by its title, write one evaluation, and end a lane."""
        self._begin, self._write, self._end = begin, write, end
        self._lanes: dict[str, LaneT] = {}
        self._titles: list[str] = []

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Write one evaluation; see `Tracker`."""
        title, own = title_of(lane), str(dict(lane))  # Functions of one name differ in the latter.
        if own not in self._lanes:
            self._titles.append(title)
            number = self._titles.count(title)
            self._lanes[own] = self._begin(title + f" ({number})" * (number > 1), lane)
        self._write(self._lanes[own], ticks, values)

    def close(self) -> None:
        """End all lanes."""
        for lane in self._lanes.values():
            self._end(lane)


@checked
class TensorBoard(_PerLane[Any]):
    """Writes a TensorBoard run for each lane: a folder with its title, with steps in ticks."""

    def __init__(self, folder: str | Path):
        """Load tensorboardX.

        Args:
          folder: What `tensorboard --logdir` is to show.

        Raises:
          ConfigError: If it is not installed.
        """
        make = settings.load_extra("tracker", "tensorboard", "tensorboardX").SummaryWriter

        def write(writer: Any, ticks: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, ticks)
            writer.flush()

        super().__init__(
            lambda title, lane: make(str(Path(folder) / title.replace("/", "|"))),
            write,
            lambda writer: writer.close(),
        )


@checked
class WandB(_PerLane[Any]):
    """Makes a run for each lane, with the lane's settings as its configuration.

    Project, entity and whether anything is sent are read from the environment as always
    (WANDB_PROJECT, WANDB_MODE=offline).
    """

    def __init__(self, folder: str | Path, project: str | None = None):
        """Load wandb.

        Args:
          folder: Where it keeps its files.
          project: Name of the project; None for the environment's.

        Raises:
          ConfigError: If it is not installed.
        """
        options = {"project": project, "dir": str(folder), "reinit": "create_new"}
        init = settings.load_extra("tracker", "wandb", "wandb").init
        Path(folder).mkdir(parents=True, exist_ok=True)
        super().__init__(
            lambda title, lane: init(name=title, config=dict(lane), **options),
            lambda run, ticks, values: run.log(dict(values), step=ticks),
            lambda run: run.finish(),
        )


@checked
class MLflow(_PerLane[str]):
    """Makes a run for each lane, with the lane's settings as parameters and steps in ticks."""

    def __init__(self, uri: str | None = None, experiment: str = "fedjax-sim"):
        """Load MLflow, and find or make the experiment.

        Args:
          uri: Where runs are kept, such as "sqlite:///mlflow.db"; None for what MLFLOW_TRACKING_URI
            says.
          experiment: Name of the experiment.

        Raises:
          ConfigError: If it is not installed.
        """
        settings.load_extra("tracker", "mlflow", "mlflow")
        client = settings.load_extra("tracker", "mlflow", "mlflow.tracking").MlflowClient(uri)
        metric = settings.load_extra("tracker", "mlflow", "mlflow.entities").Metric
        known = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if known is None else known.experiment_id

        def begin(title: str, lane: Mapping[str, object]) -> str:
            number: str = client.create_run(place, run_name=title).info.run_id
            for name, value in lane.items():
                client.log_param(number, name, value)
            return number

        def write(number: str, ticks: int, values: Mapping[str, float]) -> None:
            now = int(1000 * time.time())
            metrics = [metric(name, value, now, ticks) for name, value in values.items()]
            client.log_batch(number, metrics=metrics)

        super().__init__(begin, write, client.set_terminated)


def make_tracker(name: Annotated[str, OneOf(tuple(TRACKERS))], folder: str | Path) -> Tracker:
    """Make a tracker that writes into a results folder, and remove its older log there.

    MLflow writes to where MLFLOW_TRACKING_URI says instead, if that is set.

    Args:
      name: One of `TRACKERS`.
      folder: The results folder; the tracker's files get its name there.

    Returns:
      The tracker.

    Raises:
      ConfigError: If a package is not installed.
    """
    within = Path(folder).absolute() / name
    if name == "csv":
        return CSV(within.with_name("log.csv"))
    if name == "tensorboard":
        made: Tracker = TensorBoard(within)
        for path in within.glob("*/events.out.tfevents.*"):
            path.unlink()
        return made
    if name == "wandb":
        return WandB(within, os.environ.get("WANDB_PROJECT", "fedjax-sim"))
    within.mkdir(parents=True, exist_ok=True)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{within / 'mlflow.db'}"
    return MLflow(uri)
