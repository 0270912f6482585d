"""Metrics as lines of a CSV file."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_sim.core import checking, lifecycle
from fedjax_sim.results.trackers.labels import title_of

COLUMNS = (
    *("lane", "system", "settings", "seed", "ticks", "evaluation", "virtual_time"),
    *("metric", "value"),
)


@checking.checked
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

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
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
