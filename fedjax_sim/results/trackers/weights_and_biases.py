"""Metrics as runs of Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_sim.core.checking import checked
from fedjax_sim.results.trackers.labels import load_extra, title_of


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

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
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
