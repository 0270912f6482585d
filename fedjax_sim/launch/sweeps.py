"""Run a sweep in parts from Python."""

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
from fedjax_sim.engine import request, sweeps
from fedjax_sim.engine.machine import compiling
from fedjax_sim.engine.request import Checkpoints, ProblemT, RunOptions
from fedjax_sim.engine.watching import Watch
from fedjax_sim.launch import jobs
from fedjax_sim.launch.launchers import Local
from fedjax_sim.launch.parts import read_part
from fedjax_sim.results.runs import LaneWarning, Run, join_runs, warn_of_lanes

CALL = "call.pkl"
"""File with the arguments of the sweep, for the parts to read."""
RUN = "run.pkl"
"""File in a part's folder with the result of its sweep."""
SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""JAX's switches that change results. Parts set them as they are here."""


@checked
def sweep(
    system: System[HyperT, StateT, InfoT],
    problem: ProblemT | list[ProblemT] | Callable[[int], ProblemT],
    hyper: HyperT | None = None,
    *,
    seeds: Count | Sequence[LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget,
    checkpoints: Checkpoints,
    launcher: jobs.Launcher = Local(),
    parts: Count | None = None,
    **options: Unpack[RunOptions],
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
    watch = options.get("watch", Watch())
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
        compiling.keep_compiled()
        compiling.use_cores()
        # The process that launched this one warns of the lanes of all parts.
        warnings.simplefilter("ignore", LaneWarning)
        saved, watch = arguments["checkpoints"], arguments.get("watch", Watch())
        resume = jobs.RESUME in words and (saved.resume or True)
        arguments |= {
            "checkpoints": dataclasses.replace(saved, folder=folder / "checkpoint", resume=resume),
            "watch": dataclasses.replace(watch, progress=folder.with_suffix(".progress")),
            "lanes": read_part(words[1]),
        }
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
