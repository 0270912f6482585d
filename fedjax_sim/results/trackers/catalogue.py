"""Trackers by name."""

import os
from pathlib import Path
from typing import Annotated

from fedjax_sim.core.checking import OneOf
from fedjax_sim.results.trackers import csv_file, labels
from fedjax_sim.results.trackers.mlflow_runs import MLflow
from fedjax_sim.results.trackers.tensorboard_events import TensorBoard
from fedjax_sim.results.trackers.weights_and_biases import WandB

TRACKERS = {"csv": "csv", "mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
"""Names on the command line, and the package behind each."""


def check_tracker(name: Annotated[str, OneOf(tuple(TRACKERS))]) -> None:
    """Check that the package behind a tracker is installed.

    Args:
      name: One of `TRACKERS`.

    Raises:
      ConfigError: If it is not.
    """
    labels.load_extra(name, TRACKERS[name])


def make_tracker(
    name: Annotated[str, OneOf(tuple(TRACKERS))], folder: str | Path
) -> labels.Tracker:
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
        return csv_file.CSV(within.with_name("log.csv"))
    if name == "tensorboard":
        made: labels.Tracker = TensorBoard(within)
        for path in within.glob("*/events.out.tfevents.*"):
            path.unlink()
        return made
    if name == "wandb":
        return WandB(within, os.environ.get("WANDB_PROJECT", "fedjax-sim"))
    within.mkdir(parents=True, exist_ok=True)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{within / 'mlflow.db'}"
    return MLflow(uri)
