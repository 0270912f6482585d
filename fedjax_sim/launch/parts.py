"""A part of a study: how it is written, which lanes it has, and its results folder.

A part's folder is a results folder (`fedjax_sim.reporting.results`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from fedjax_sim.engine.division import Unit, divide
from fedjax_sim.engine.run_files import SETTINGS, arrays_of, settings_of
from fedjax_sim.engine.runs import Run
from fedjax_sim.reporting.results import Folder, environment
from fedjax_sim.settings import ConfigError

FOLDER = "parts"
"""Name of the folder in which a launched study keeps its parts until they are merged."""


def read_part(text: str | None) -> tuple[int, int] | None:
    """Read a part such as "0/4", the first of four; None gives None.

    Raises:
      ConfigError: If the text is not of this form.
    """
    if text is None:
        return None
    try:
        number, num_parts = (int(word) for word in text.split("/"))
    except ValueError:
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


def write_runs(folder: Folder, runs: Mapping[str, Run]) -> None:
    """Write what runs returned, apart from their curves, for `fedjax_sim.load`.

    Args:
      folder: An open results folder.
      runs: The runs, whole or of some lanes, by system.

    Raises:
      StorageError: If the disk refuses.
    """
    for name, groups in arrays_of(runs).items():
        folder.write_arrays(name, groups)
    folder.write_bytes(SETTINGS, settings_of(runs))


def save_part(
    folder: Folder,
    part: tuple[int, int],
    curves: Mapping[str, xr.Dataset],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the results folder of a part.

    Args:
      folder: An open results folder.
      part: The part, (i, n).
      curves: The curves of its lanes, by sweep.
      config: The content of config.json of the whole study, apart from versions, commit and device.

    Returns:
      The content of summary.json.

    Raises:
      ConfigError: If the disk refuses.
    """
    summary = {
        "lanes": sum(data.sizes["lane"] for data in curves.values()),
        "failed_lanes": sum(int(data["failed"].sum()) for data in curves.values()),
        "seconds": {
            kind: float(np.sum([data.attrs[f"seconds_{kind}"] for data in curves.values()]))
            for kind in ("compile", "run")
        },
        "systems": {name: {"lanes": data.sizes["lane"]} for name, data in curves.items()},
    }
    folder.write_arrays("results.nc", curves)
    folder.finish({**config, "part": "{}/{}".format(*part), **environment()}, summary)
    return summary
