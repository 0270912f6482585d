"""Run a command in parts: choose the launcher, start the command once for each part, and merge."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_sim import launch
from fedjax_sim.cli import arguments as texts
from fedjax_sim.core.settings import ConfigError, Count, Named
from fedjax_sim.launch import parts
from fedjax_sim.launch.jobs import Launcher, finish_jobs, jobs_of
from fedjax_sim.results.reports import Folder
from fedjax_sim.results.runs import Run

LAUNCHERS = Named[type](
    "launcher", {kind.__name__.lower(): kind for kind in (launch.Local, launch.Slurm, launch.Ray)}
)
OWN_FLAGS = {"systems", "set", "out", "overwrite", "resume", "progress", "tracker"}
OWN_FLAGS |= {"part", "parts", "launcher", "resources", "json", "plot", "against"}
"""Flags that are not handed on to parts as they are."""


def read_launcher(arguments: argparse.Namespace) -> Launcher | None:
    """Read which launcher is to start parts; None if the command is to run here.

    Raises:
      ConfigError: For an unknown launcher or field, a value of the wrong kind, or flags that do not
        fit together.
      PartError: If the launcher cannot start parts here.
    """
    if arguments.part is not None or (arguments.parts is None and arguments.launcher is None):
        where = "without a launcher" if arguments.part is None else "with --part"
        for name in ("parts", "launcher", "resources"):
            if (value := getattr(arguments, name)) is not None:
                raise ConfigError(name, value, f"left out {where}")
        return None
    kind = LAUNCHERS[arguments.launcher or "local"]
    fields = [field.name for field in dataclasses.fields(kind) if field.name != "options"]
    launcher: Launcher = texts.read_fields("--resources", kind, fields, arguments.resources)
    launcher.check()
    return launcher


def count_parts(
    launcher: Launcher, arguments: argparse.Namespace, folder: Folder, num_lanes: int
) -> str:
    """Read the number of parts, or choose it; see `Launcher.count_parts`."""
    number = texts.read_value("parts", arguments.parts, None, Count)
    within = folder.checkpoints / parts.FOLDER
    return str(launcher.count_parts(number, within, num_lanes, resume=arguments.resume))


def launch_parts(
    launcher: Launcher, arguments: argparse.Namespace, folder: Folder, identity: Mapping[str, Any]
) -> tuple[dict[str, Run], dict[str, Any]]:
    """Run a command in parts, and read the results of the whole.

    Parts that ended well in an earlier attempt find their results again, after they have checked
    that nothing has changed.

    Args:
      launcher: What starts the parts.
      arguments: The parsed words of `run`.
      folder: The results folder.
      identity: What must be equal for a later command to resume this one, with the number of parts.

    Returns:
      The runs by system, and the content of config.json.

    Raises:
      ConfigError: If the disk refuses.
      PartError: If a part failed.
    """
    within = (folder.checkpoints / parts.FOLDER).absolute()
    num_parts = int(identity["parts"])
    jobs = jobs_of(num_parts, within, partial(_command, arguments))
    folder.open(identity)
    finish_jobs(launcher, jobs, within)
    return parts.read_parts([job.folder for job in jobs])


def _command(arguments: argparse.Namespace, part: str, folder: Path) -> Sequence[str]:
    """Return the command of one part: the command itself, with --part."""
    flags = {name: value for name, value in vars(arguments).items() if name not in OWN_FLAGS}
    flags |= {"part": part, "out": folder, "progress": folder.with_suffix(".progress")}
    words = ["-m", "fedjax_sim", "run", *arguments.systems]
    words += (f"--set={text}" for text in arguments.set)
    for name, value in flags.items():
        if value not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag}={value}")
    return words
