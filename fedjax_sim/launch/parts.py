"""A part of a study: how it is named, which lanes it has, and its results folder.

A part's folder is a results folder (`fedjax_sim.reporting.results`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.engine.shares import Part, Unit, check_num_parts
from fedjax_sim.launch.jobs import Launcher
from fedjax_sim.settings import ConfigError

FOLDER = "parts"
"""Name of the folder, next to the checkpoints, in which a launched study keeps its parts."""


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


def find_lanes(part: Part, units: Mapping[str, Sequence[Unit[int]]]) -> dict[str, list[int]]:
    """Find the lanes of a part of a study of one or several sweeps.

    Args:
      part: The part.
      units: The units of each sweep, by its name.

    Returns:
      Numbers of lanes by name of the sweep, for sweeps of which the part has any.

    Raises:
      ConfigError: If there are more parts than lanes.
    """
    found: dict[str, list[int]] = {}
    for name, lane in part.choose(
        [
            Unit(tuple((name, lane) for lane in unit.lanes), unit.work)
            for name, of_sweep in units.items()
            for unit in of_sweep
        ]
    ):
        found.setdefault(name, []).append(lane)
    return found


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
