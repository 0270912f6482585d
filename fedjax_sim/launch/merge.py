"""Put the results folders of parts together: the folder that the whole run would have written."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.engine.shares import Part
from fedjax_sim.launch.parts import read_part
from fedjax_sim.lifecycle import say
from fedjax_sim.reporting.results import Results, first_difference, load
from fedjax_sim.results.runs import Run, join_runs, load_runs
from fedjax_sim.settings import ConfigError

OWN = ("part", "files", "device")
"""What config.json says about a part alone."""
NEEDED = ("systems", "commit", "device", "dataset", "partition", "model", "seeds")
"""What config.json of a part must have."""
MOST_NAMED = 8
"""Missing parts that a message names."""
CHANGED = "-dirty"
"""How the commit ends if some file of the repository differs from it, be it only the README."""


def read_parts(
    paths: Sequence[str | Path], *, trust: bool = False
) -> tuple[dict[str, Run], dict[str, Any]]:
    """Read the results folders of all parts of a study, and put their lanes together.

    If files of the repository differed from the commit in a part, a sentence on the error stream
    says so, because parts may have had different ones.

    Args:
      paths: The folders, in any order.
      trust: As in `fedjax_sim.load`.

    Returns:
      The runs of the whole by system, and the content of config.json.

    Raises:
      ConfigError: If a folder is not that of a finished part, or if parts do not belong together or
        are missing.
      InputError: If a file is damaged, or needs trust.
    """
    parts = [load(path, trust=trust) for path in paths]
    _check([*map(str, paths)], parts)
    known = [load_runs(path, trust=trust) for path in paths]
    runs = {}
    for name in parts[0].config["systems"]:
        lanes = [part[name] for part in known if name in part]
        if not lanes:
            raise ConfigError("what the parts have", f"no lane of {name}", "all lanes")
        runs[name] = join_runs(lanes)
    commits = [part.config["commit"] for part in parts]
    changed = [commit for commit in commits if commit and commit.endswith(CHANGED)]
    if changed and len(parts) > 1:
        say(
            f"files differed from commit {changed[0].removesuffix(CHANGED)} in {len(changed)} of "
            f"{len(parts)} parts; nothing tells whether all parts ran the same code."
        )
    return runs, {
        **_common(parts[0]),
        "commit": changed[0] if changed else commits[0],
        "device": _device([part.config["device"] for part in parts]),
    }


def _check(paths: Sequence[str], parts: Sequence[Results]) -> None:
    """Check that the parts in some folders are all parts of one study."""
    numbers: dict[Part, str] = {}
    for path, part in zip(paths, parts, strict=True):
        where = read_part(part.config.get("part"))
        if where is None or not {*NEEDED} <= {*part.config}:
            raise ConfigError("part folder", path, "one that was written with --part")
        if where in numbers:
            raise ConfigError("part folder", path, f"left out: {numbers[where]} is {where} already")
        numbers[where] = path
        ours, theirs = _common(part), _common(parts[0])
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                place, here, there = first_difference(name, ours.get(name), theirs.get(name))
                raise ConfigError(f"{place} of {path}", here, f"{there!r}, as in {paths[0]}")
    counts = sorted({part.num_parts for part in numbers})
    if len(counts) > 1:
        raise ConfigError("numbers of parts", counts, "the same in all part folders")
    if len(numbers) < counts[0]:
        whole = (Part(i, counts[0]) for i in range(counts[0]))
        missing = (str(part) for part in whole if part not in numbers)
        names = ", ".join(itertools.islice(missing, MOST_NAMED))
        more = counts[0] - len(numbers) - MOST_NAMED
        names += f" and {more} more" if more > 0 else ""
        raise ConfigError("list of part folders", list(paths), f"complete (missing: {names})")


def _common(part: Results) -> dict[str, Any]:
    """Return config.json of the whole study."""
    config = {name: value for name, value in part.config.items() if name not in OWN}
    return config | {"commit": config["commit"] and config["commit"].removesuffix(CHANGED)}


def _device(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe the devices of all parts; different ones are joined by a plus sign."""
    described = {}
    for name in devices[0]:
        values = list(dict.fromkeys(device.get(name) for device in devices))
        described[name] = values[0] if len(values) == 1 else " + ".join(map(str, values))
    return described
