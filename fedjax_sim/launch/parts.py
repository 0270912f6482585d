"""Parts of a study: how they are named, and how they are put together.

A part's folder is a results folder (`fedjax_sim.results.reports`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.shares import Part
from fedjax_sim.results import reports
from fedjax_sim.results.runs import Run, join_runs, load_runs

FOLDER = "parts"
"""Name of the folder, next to the checkpoints, in which a launched study keeps its parts."""
OWN = ("part", "files", "device")
"""Entries of config.json about a part alone."""
NEEDED = {"systems", "commit", "device", "dataset", "partition", "model", "seeds"}
"""Entries that config.json of a part must have."""
MOST_NAMED = 8
"""Missing parts that a message names."""
CHANGED = "-dirty"
"""How the commit ends if some file of the repository differs from it, be it only the README."""


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
    configs = [reports.load(path, trust=trust).config for path in paths]
    _check([*map(str, paths)], configs)
    known = [load_runs(path, trust=trust) for path in paths]
    runs = {}
    for name in configs[0]["systems"]:
        lanes = [part[name] for part in known if name in part]
        if not lanes:
            raise ConfigError("what the parts have", f"no lane of {name}", "all lanes")
        runs[name] = join_runs(lanes)
    commits = [config["commit"] for config in configs]
    changed = [commit for commit in commits if commit and commit.endswith(CHANGED)]
    if changed and len(configs) > 1:
        lifecycle.say(
            f"files differed from commit {changed[0].removesuffix(CHANGED)} in {len(changed)} of "
            f"{len(configs)} parts; nothing tells whether all parts ran the same code."
        )
    device = {}
    for name in configs[0]["device"]:
        values = list(dict.fromkeys(config["device"][name] for config in configs))
        device[name] = values[0] if len(values) == 1 else " + ".join(map(str, values))
    return runs, {**_common(configs[0]), "commit": [*changed, *commits][0], "device": device}


def _check(paths: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> None:
    """Check that the parts in some folders are all parts of one study."""
    folders: dict[Part, str] = {}
    for path, config in zip(paths, configs, strict=True):
        where = read_part(config.get("part"))
        if where is None or not {*config} >= NEEDED:
            raise ConfigError("part folder", path, "one that was written with --part")
        if where in folders:
            raise ConfigError("part folder", path, f"left out: {folders[where]} is {where} already")
        folders[where] = path
        ours, theirs = _common(config), _common(configs[0])
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                place, here, there = reports.first_difference(
                    name, ours.get(name), theirs.get(name)
                )
                raise ConfigError(f"{place} of {path}", here, f"{there!r}, as in {paths[0]}")
    counts = sorted({part.num_parts for part in folders})
    if len(counts) > 1:
        raise ConfigError("numbers of parts", counts, "the same in all part folders")
    if len(folders) < counts[0]:
        whole = (Part(i, counts[0]) for i in range(counts[0]))
        missing = (str(part) for part in whole if part not in folders)
        names = ", ".join(itertools.islice(missing, MOST_NAMED))
        more = counts[0] - len(folders) - MOST_NAMED
        names += f" and {more} more" if more > 0 else ""
        raise ConfigError("list of part folders", list(paths), f"complete (missing: {names})")


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of the whole study."""
    commit = config["commit"] and config["commit"].removesuffix(CHANGED)
    return {name: value for name, value in config.items() if name not in OWN} | {"commit": commit}
