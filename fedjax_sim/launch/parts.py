"""A part of a study: how it is named, which lanes it has, and its results folder.

A part's folder is a results folder (`fedjax_sim.reporting.results`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.engine.shares import Listed, Part, Unit, check_num_parts
from fedjax_sim.launch.jobs import Launcher
from fedjax_sim.lifecycle import read_record, say, write_record
from fedjax_sim.results.runs import Run
from fedjax_sim.settings import ConfigError

FOLDER = "parts"
"""Name of the folder, next to the checkpoints, in which a launched study keeps its parts."""
LANES = "lanes.json"
"""Name of the file, next to its checkpoints, in which a part keeps the numbers of its lanes."""


def read_part(text: Any) -> Part | None:
    """Read a part such as "0/4", the first of four; None gives None.

    Raises:
      ConfigError: If the text is not of this form.
    """
    if text is None:
        return None
    try:
        return Part(*map(int, text.split("/")))
    except (ValueError, TypeError, AttributeError, ConfigError):  # No text, as it may be in a file.
        allowed = "i/n with whole numbers i from 0 to n - 1, such as 0/4"
        raise ConfigError("part", text, allowed) from None


@dataclasses.dataclass(frozen=True)
class KeptPart(Part):
    """A part of a study of one or several sweeps, which keeps the numbers of its lanes in a file.

    How lanes are divided depends on their work. A part that goes on to a longer budget must keep
    its lanes although a division by the longer work may be another.

    Attributes:
      file: The file; None keeps nothing.
      is_resumed: Whether the lanes are those of the file, if the part has begun.
    """

    file: Path | None = None
    is_resumed: bool = False

    def find(self, survey: Callable[[], Mapping[str, Sequence[Unit[int]]]]) -> dict[str, list[int]]:
        """Find the lanes of the part.

        Args:
          survey: Finds the units of each sweep, by its name; called if the lanes are not known.

        Returns:
          Numbers of lanes by name of the sweep, for sweeps of which the part has any.

        Raises:
          ConfigError: If there are more parts than lanes.
        """
        if self.is_resumed and self.file is not None:
            known = read_record(self.file)
            if known is None and self.file.exists():
                say(
                    f"{self.file} is damaged, and the division among the parts is worked out again."
                )
            if known is not None and known.get("part") == [self.number, self.num_parts]:
                return known["lanes"]
        units = [
            Unit(tuple((name, lane) for lane in unit.lanes), unit.work)
            for name, units in survey().items()
            for unit in units
        ]
        found: dict[str, list[int]] = {}
        for name, lane in self.choose(units):
            found.setdefault(name, []).append(lane)
        return found

    def keep(self, lanes: Mapping[str, Sequence[int]]) -> None:
        """Keep what `find` found.

        Raises:
          StorageError: If the disk refuses.
        """
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_record(self.file, {"part": [self.number, self.num_parts], "lanes": lanes})

    def run(self, sweep: Listed, run_lanes: Callable[[Collection[int]], Run]) -> Run:
        """Run the lanes of the part, if the study has one sweep only.

        Args:
          sweep: All lanes.
          run_lanes: Runs lanes, by number.
        """
        lanes = self.find(lambda: {"sweep": sweep.units()})
        self.keep(lanes)
        return run_lanes(lanes["sweep"])


def count_parts(
    launcher: Launcher, asked: int | None, within: Path, num_lanes: int, *, resume: bool
) -> int:
    """Choose the number of parts: the one asked for, the earlier one, or the launcher's.

    Args:
      launcher: What starts the parts.
      asked: The number that is asked for, if any.
      within: The folder that holds the parts' folders.
      num_lanes: Lanes of the study, the largest number of parts.
      resume: Whether an earlier attempt is resumed.

    Raises:
      ConfigError: If more parts are asked for than there are lanes.
    """
    usual = parts_in(within) if resume else None
    num_parts = asked or usual or min(launcher.count(), num_lanes)
    check_num_parts(num_parts, num_lanes)
    return num_parts


def parts_in(folder: Path) -> int | None:
    """Find how many parts an earlier attempt had; None if there was none, or several differ.

    Args:
      folder: The folder that holds the parts' folders.
    """
    found = {path.name.rpartition("-of-")[2] for path in folder.glob("*-of-*") if path.is_dir()}
    count = found.pop() if len(found) == 1 else ""
    return int(count) if count.isdecimal() else None


def check_begun(checkpoints: Sequence[Path], name: str, before: float) -> None:
    """Check that all parts have begun, so that their lanes are known, before a budget is longer.

    Args:
      checkpoints: The folders of the parts' checkpoints.
      name: What the budget is called.
      before: The budget for which the parts were started.

    Raises:
      ConfigError: If a part has not begun.
    """
    missing = [path for path in checkpoints if not (path / LANES).is_file()]
    if missing:
        field = f"{name} while {missing[0].parent} has not begun"
        raise ConfigError(field, "longer", f"{before}, as before: resume with it first")
