"""Metrics as runs of MLflow."""

import time
from collections.abc import Mapping
from typing import Any

from fedjax_sim.core.checking import checked
from fedjax_sim.results.trackers.labels import load_extra, title_of


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

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
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
