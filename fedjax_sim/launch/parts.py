"""A part of a study: how it is named, which lanes it has, and its results folder.

A part's folder is a results folder (`fedjax_sim.reporting.results`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.engine.shares import Unit, divide
from fedjax_sim.lifecycle import read_record, say, write_record
from fedjax_sim.settings import ConfigError

FOLDER = "parts"
"""Name of the folder, next to the checkpoints, in which a launched study keeps its parts."""
LANES = "lanes.json"
"""Name of the file, next to its checkpoints, in which a part keeps the numbers of its lanes."""


def read_part(text: Any) -> tuple[int, int] | None:
    """Read a part such as "0/4", the first of four; None gives None.

    Raises:
      ConfigError: If the text is not of this form.
    """
    if text is None:
        return None
    try:
        number, num_parts = (int(word) for word in text.split("/"))
    except (ValueError, AttributeError):  # No text, as it may be in a file.
        number, num_parts = 0, 0
    if not 0 <= number < num_parts:
        raise ConfigError("part", text, "i/n with whole numbers i from 0 to n - 1, such as 0/4")
    return number, num_parts


def lanes_of_part(
    part: tuple[int, int], surveys: Mapping[str, Sequence[Unit[int]]]
) -> dict[str, list[int]]:
    """Find the lanes of a part of a study of several sweeps.

    Args:
      part: The part, (i, n).
      surveys: The units of each sweep, by its name.

    Returns:
      Numbers of lanes by name of the sweep, for sweeps of which the part has any.

    Raises:
      ConfigError: If there are more parts than lanes.
    """
    units = [
        Unit(tuple((name, lane) for lane in unit.lanes), unit.work)
        for name, units in surveys.items()
        for unit in units
    ]
    found: dict[str, list[int]] = {}
    for name, lane in divide(units, part[1])[part[0]]:
        found.setdefault(name, []).append(lane)
    return found


def keep_lanes(
    path: Path, part: tuple[int, int], survey: Callable[[], Mapping[str, Sequence[Unit[int]]]]
) -> dict[str, list[int]]:
    """Find the lanes of a part that is resumed: those that it had before, if it has begun.

    How lanes are divided depends on their work. A part that goes on to a longer budget must keep
    its lanes although a division by the longer work may be another.

    Args:
      path: The file in which the part keeps the numbers of its lanes.
      part: The part, (i, n).
      survey: Finds the units of each sweep, by its name; called if the part has not begun.

    Returns:
      As `lanes_of_part`.

    Raises:
      ConfigError: If there are more parts than lanes.
    """
    known = read_record(path)
    if known is None and path.exists():
        say(f"{path} is damaged, and the division among the parts is worked out again.")
    if known is not None and known.get("part") == list(part):
        return known["lanes"]
    return lanes_of_part(part, survey())


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


def write_lanes(path: Path, part: tuple[int, int], lanes: Mapping[str, Sequence[int]]) -> None:
    """Keep the lanes of a part, for `keep_lanes`.

    Raises:
      StorageError: If the disk refuses.
    """
    write_record(path, {"part": part, "lanes": lanes})
