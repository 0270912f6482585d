"""Metrics as event files of TensorBoard, written by tensorboardX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_sim.core.checking import checked
from fedjax_sim.results.trackers.labels import load_extra, title_of


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

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
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
