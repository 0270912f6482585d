"""The files of checkpoints: their names, and the folders in which they lie."""

import contextlib
import re
from pathlib import Path
from typing import Any

from fedjax_sim.lifecycle import read_record, remove_scratch

CONFIGURATION = "configuration.json"


ANY = "state|drawn|plan|result"
"""The kinds of array files."""


def count_lanes(folder: Path) -> int | None:
    """Count the lanes of an unfinished run in a folder; None if there is none, or it is damaged."""
    known = read_configuration(folder)
    return None if known is None else len(known["asked"]["seeds"])


def folder_of_part(folder: Path, number: int) -> Path:
    """Name the folder of the checkpoints of one of the groups of lanes that share a folder.

    Args:
      folder: Their folder.
      number: The group's number, from 0.
    """
    return folder / f"part_{number}"


def has_states(folder: Path) -> bool:
    """Tell whether a group of lanes has written a state, or its result."""
    return bool(files_in(folder, "state") or files_in(folder, "result"))


def remove_parts(folder: Path) -> None:
    """Remove the checkpoints of all groups of lanes in a folder."""
    for part in folder.glob("part_*"):
        remove_checkpoints(part)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a group of lanes, and their folder if nothing else is in it.

    Args:
      folder: The folder, which need not exist.
    """
    found = [*files_in(folder), *folder.glob(CONFIGURATION)]
    for path in found:
        path.unlink(missing_ok=True)
    remove_scratch(folder)
    if found:
        with contextlib.suppress(OSError):  # raised if it is a link, or not empty
            folder.rmdir()


def ticks_of(path: Path) -> int:
    """Read the ticks in the name of an array file."""
    return int(path.stem.split("-")[1])


def files_in(folder: Path, kind: str = ANY) -> list[Path]:
    """List the array files of a kind in a folder, the newest first, and none of other programs."""
    named = re.compile(rf"(?:{kind})-\d{{12,}}-[0-9a-f]+\.npz")
    return sorted(
        (path for path in folder.glob("*.npz") if named.fullmatch(path.name)), reverse=True
    )


def read_configuration(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of a folder; None if it is missing or damaged."""
    content = read_record(folder / CONFIGURATION)
    return content if content is not None and content.keys() == {"asked", "planned"} else None
