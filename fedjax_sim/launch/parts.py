"""Parts of a study: how they are named and put together, and sweeps that run in parts.

A part's folder is a results folder (`fedjax_sim.results.reports`) with these differences: its
`config.json` has an entry `part`, its curves have the dimension `lane` in place of settings and
seeds, its `summary.json` counts lanes, and it has no pictures.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import cloudpickle
import jax

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, Count, LaneSeed, checked
from fedjax_sim.core.types import Budget, HyperT, InfoT, StateT, System
from fedjax_sim.engine import machine, request, shares, sweeps, watching
from fedjax_sim.launch import jobs
from fedjax_sim.results import reports
from fedjax_sim.results.runs import LaneWarning, Run, join_runs, load_runs, warn_of_lanes

FOLDER = "parts"
"""Name of the folder, next to the checkpoints, in which a launched study keeps its parts."""
OWN = ("part", "files", "device", "command")
"""Entries of config.json about a part alone."""
NEEDED = {"systems", "commit", "device", "dataset", "partition", "model", "seeds"}
"""Entries that config.json of a part must have."""
MOST_NAMED = 8
"""Missing parts that a message names."""
CHANGED = "-dirty"
"""How the commit ends if some file of the repository differs from it, be it only the README."""
CALL = "call.pkl"
"""File with the arguments of the sweep, for the parts to read."""
RUN = "run.pkl"
"""File in a part's folder with the result of its sweep."""
SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""JAX's switches that change results. Parts set them as they are here."""


def read_part(text: Any) -> shares.Part | None:
    """Read a part such as "0/4", the first of four; None gives None.

    Raises:
      ConfigError: If the text is not of this form.
    """
    if text is None:
        return None
    try:
        return shares.Part(*map(int, text.split("/")))
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
    folders: dict[shares.Part, str] = {}
    for path, config in zip(paths, configs, strict=True):
        where = read_part(config.get("part"))
        if where is None or not {*config} >= NEEDED:
            raise ConfigError("part folder", path, "one that was written with --part")
        if where in folders:
            raise ConfigError("part folder", path, f"left out: {folders[where]} is {where} already")
        folders[where] = path
        if found := reports.first_difference(_common(config), _common(configs[0])):
            place, here, there = found
            raise ConfigError(f"{place} of {path}", here, f"{there!r}, as in {paths[0]}")
    counts = sorted({part.num_parts for part in folders})
    if len(counts) > 1:
        raise ConfigError("numbers of parts", counts, "the same in all part folders")
    if len(folders) < counts[0]:
        whole = (shares.Part(i, counts[0]) for i in range(counts[0]))
        missing = [str(part) for part in whole if part not in folders]
        names = ", ".join(missing[:MOST_NAMED]) + ", ..." * (len(missing) > MOST_NAMED)
        raise ConfigError("list of part folders", list(paths), f"complete (missing: {names})")


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of the whole study."""
    commit = config["commit"] and config["commit"].removesuffix(CHANGED)
    return {name: value for name, value in config.items() if name not in OWN} | {"commit": commit}


@checked
def sweep(
    system: System[HyperT, StateT, InfoT],
    problem: request.ProblemT | list[request.ProblemT] | Callable[[int], request.ProblemT],
    hyper: HyperT | None = None,
    *,
    seeds: Count | Sequence[LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget,
    checkpoints: request.Checkpoints,
    launcher: jobs.Launcher = jobs.Local(),
    parts: Count | None = None,
    **options: Unpack[request.RunOptions],
) -> Run[HyperT]:
    """Run a sweep in parts, each in a process that a launcher starts.

    `seeds`, `settings` and `budget` are those of `fedjax_sim.sweep`.

    Args:
      problem: As in `fedjax_sim.sweep`; anything that `cloudpickle` can carry to other processes. A
        function of the seed is called there, so that no data need to be carried.
      checkpoints: As in `fedjax_sim.sweep`, for every part. The folder, which all machines must
        see, also takes the arguments and the results of the parts. It is new or empty, unless the
        sweep is resumed: parts that have ended well then only check that nothing has changed.
      launcher: What starts the parts: `Local`, `Slurm` or `Ray`.
      parts: Number of parts. None takes as many as before in a resumed sweep, and otherwise as many
        as the launcher thinks fit.
      **options: `num_evals`, `start`, `keep`, `watch`, `layout` and `precision`, as in
        `fedjax_sim.sweep`. `on_evaluation` is called in the parts' processes, each with its own
        lanes. Trackers are refused, as several processes cannot share one, and so is a file for the
        progress.

    Returns:
      What `fedjax_sim.sweep` would have returned.

    Raises:
      ConfigError: If the folder is in use, or the problem cannot be carried to another process.
      PartError: If a part failed, such as for input that is not allowed, or because something has
        changed since the part began, such as the budget; or if the launcher cannot start any, in
        which case no folder is made.
    """
    # What cannot be done in several processes.
    launcher.check()
    watch = options.get("watch", watching.Watch())
    if watch.trackers:
        raise ConfigError("trackers", watch.trackers, "left out in a sweep in parts")
    if isinstance(watch.shown, Path):
        raise ConfigError("progress", watch.progress, "true, false or None in a sweep in parts")
    where = Path(checkpoints.folder).absolute()
    call = where / CALL
    if checkpoints.resume and not call.exists():
        allowed = "one with an unfinished sweep"
        raise ConfigError("folder to resume", str(checkpoints.folder), allowed)
    if not checkpoints.resume and (where.is_file() or (where.is_dir() and any(where.iterdir()))):
        raise ConfigError("folder", str(checkpoints.folder), "new or empty, or else resumed")
    # All checks that `sweep` makes, before any process starts.
    given: Any = {name: value for name, value in options.items() if name != "start"}
    asked, grid = request.Options(budget, **given), request.grid_of(seeds, settings)
    num_lanes, resume = math.prod(grid.shape), bool(checkpoints.resume)
    if not request.has_default_clients(system, hyper, grid):
        request.check_call(system, hyper, grid, asked)
    num_parts = launcher.count_parts(parts, where, num_lanes, resume=resume)
    # A function of the seed is called in the parts.
    if not callable(problem) or isinstance(problem, system.fit.learns):
        request.list_lanes(system, problem, hyper, grid, asked)
    arguments = {"system": system, "problem": problem, "hyper": hyper, "seeds": seeds, **options}
    arguments |= {"settings": settings, "budget": budget, "checkpoints": checkpoints}
    switches = {name: getattr(jax.config, name) for name in SWITCHES}
    try:
        content = cloudpickle.dumps((arguments, switches))
    except Exception as error:  # Each kind of object has its own.
        allowed = f"something that can be carried to another process ({error})"
        raise ConfigError("problem", type(problem).__name__, allowed) from None
    where.mkdir(parents=True, exist_ok=True)
    lifecycle.write_sealed(call, lambda path: path.write_bytes(content))
    words = ("-m", "fedjax_sim.launch", str(call))
    started = jobs.jobs_of(num_parts, where, lambda part, folder: (*words, part, str(folder)))
    jobs.finish_jobs(launcher, started, where, show=watch.progress is not False)
    run = join_runs([read_pickle(job.folder / RUN) for job in started])
    warn_of_lanes(run.curves)
    return run


def run_part(words: Sequence[str]) -> int:
    """Run one part of a launched sweep, and write the result of its sweep into its folder.

    Args:
      words: The file with the sweep's arguments, the part, its folder, and perhaps `--resume`.

    Returns:
      The exit code, see `fedjax_sim.core.lifecycle.EXIT_CODES`.
    """

    def work() -> None:
        folder = Path(words[2])
        arguments, switches = read_pickle(Path(words[0]))
        for name, value in switches.items():
            jax.config.update(name, value)
        machine.compiling.keep_compiled()
        machine.compiling.use_cores()
        # The process that launched this one warns of the lanes of all parts.
        warnings.simplefilter("ignore", LaneWarning)
        saved, watch = arguments["checkpoints"], arguments.get("watch", watching.Watch())
        resume = jobs.RESUME in words and (saved.resume or True)
        place, progress = folder / "checkpoint", folder.with_suffix(".progress")
        arguments["checkpoints"] = dataclasses.replace(saved, folder=place, resume=resume)
        arguments["watch"] = dataclasses.replace(watch, progress=progress)
        arguments["lanes"] = read_part(words[1])
        content = cloudpickle.dumps(sweeps.sweep(**arguments))
        lifecycle.write_sealed(folder / RUN, lambda path: path.write_bytes(content))

    return lifecycle.exit_code_of("fedjax-sim", work)


def read_pickle(path: Path) -> Any:
    """Read a sealed pickle that this sweep, or a part of it, has just written.

    Raises:
      InputError: If it is damaged.
    """
    lifecycle.check_seal(path)
    return cloudpickle.loads(path.read_bytes())
