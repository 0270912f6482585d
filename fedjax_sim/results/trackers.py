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
import importlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Protocol

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, OneOf, checked

TRACKERS = {"csv": "csv", "mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
"""Names on the command line, and the package behind each."""


class Tracker(Protocol):
    """Something that keeps metrics while a run goes on."""

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
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
    values = {name: getattr(value, "__name__", value) for name, value in lane.items()}
    system = values.pop("system")
    return " ".join([str(system), *(f"{name}={value}" for name, value in values.items())])


def load_extra(tracker: str, module: str) -> ModuleType:
    """Import a package that only one tracker needs.

    Args:
      tracker: Name of the tracker, which is that of its extra.
      module: The package.

    Raises:
      ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        allowed = f'one that is installed: pip install "fedjax-sim[{tracker}]" installs it'
        raise ConfigError("tracker", tracker, allowed) from None


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
        own = ("system", "seed")
        swept = {name: value for name, value in lane.items() if name not in own}
        settings = json.dumps(swept, default=lambda value: getattr(value, "__name__", str(value)))
        begins = (title_of(lane), lane["system"], settings, lane["seed"], ticks)
        at, time = int(values["evaluation"]), values["virtual_time"]
        self._writer.writerows(
            (*begins, at, time, name, value)
            for name, value in values.items()
            if name not in ("evaluation", "virtual_time")
        )
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@checked
class TensorBoard:
    """Writes a TensorBoard run for each lane: a folder with its title, with steps in ticks."""

    def __init__(self, folder: str | Path):
        """Load tensorboardX.

        Args:
          folder: What `tensorboard --logdir` is to show.

        Raises:
          ConfigError: If it is not installed.
        """
        self._module = load_extra("tensorboard", "tensorboardX")
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Write one evaluation; see `Tracker`."""
        title = title_of(lane)
        if title not in self._writers:
            self._writers[title] = self._module.SummaryWriter(
                str(self._folder / title.replace("/", "|"))
            )
        for name, value in values.items():
            self._writers[title].add_scalar(name, value, ticks)
        self._writers[title].flush()

    def close(self) -> None:
        """Close all event files."""
        for writer in self._writers.values():
            writer.close()


@checked
class WandB:
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
        self._module = load_extra("wandb", "wandb")
        self._folder, self._project = Path(folder), project
        self._folder.mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, Any] = {}

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Log one evaluation; see `Tracker`."""
        title = title_of(lane)
        if title not in self._runs:
            self._runs[title] = self._module.init(
                project=self._project,
                dir=str(self._folder),
                name=title,
                config=dict(lane),
                reinit="create_new",
            )
        self._runs[title].log(dict(values), step=ticks)

    def close(self) -> None:
        """Finish all runs."""
        for run in self._runs.values():
            run.finish()


@checked
class MLflow:
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
        load_extra("mlflow", "mlflow")
        self._client = load_extra("mlflow", "mlflow.tracking").MlflowClient(uri)
        self._metric = load_extra("mlflow", "mlflow.entities").Metric
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            self._client.create_experiment(experiment) if known is None else known.experiment_id
        )
        self._runs: dict[str, str] = {}

    def log(self, lane: Mapping[str, object], ticks: int, values: Mapping[str, float]) -> None:
        """Log one evaluation; see `Tracker`."""
        title = title_of(lane)
        if title not in self._runs:
            run = self._client.create_run(self._experiment, run_name=title)
            self._runs[title] = run.info.run_id
            for name, value in lane.items():
                self._client.log_param(self._runs[title], name, value)
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, ticks) for name, value in values.items()]
        self._client.log_batch(self._runs[title], metrics=metrics)

    def close(self) -> None:
        """Mark all runs as finished."""
        for number in self._runs.values():
            self._client.set_terminated(number)


def check_tracker(name: Annotated[str, OneOf(tuple(TRACKERS))]) -> None:
    """Check that the package behind a tracker is installed.

    Args:
      name: One of `TRACKERS`.

    Raises:
      ConfigError: If it is not.
    """
    load_extra(name, TRACKERS[name])


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
