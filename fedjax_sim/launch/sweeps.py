"""Run a sweep in parts from Python."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedjax_sim.core.checking import Count, LaneSeed, checked
from fedjax_sim.core.lifecycle import check_seal, read_record, write_record, write_sealed
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.launch.jobs import Launcher, finish_jobs, jobs_of
from fedjax_sim.launch.local import Local

# JAX is only loaded when a sweep is launched: processes that watch over a part need none.
if TYPE_CHECKING:
    from fedjax_sim.core.types import Budget, HyperT, InfoT, StateT, System
    from fedjax_sim.engine.request import Checkpoints, ProblemT, RunOptions
    from fedjax_sim.results.runs import Run

CALL = "call.pkl"
"""File with the arguments of the sweep, for the parts to read."""
RUN = "run.pkl"
"""File in a part's folder with what its sweep returned."""
RECORD = "sweep.json"
"""File with the number of lanes, for a call that resumes the sweep."""
SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""JAX's switches that change results. Parts set them as they are here."""


@checked
def sweep(
    system: "System[HyperT, StateT, InfoT]",
    problem: "ProblemT | list[ProblemT] | Callable[[int], ProblemT]",
    hyper: "HyperT | None" = None,
    *,
    seeds: Count | Sequence[LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    budget: "Budget",
    checkpoints: "Checkpoints",
    launcher: Launcher = Local(),
    parts: Count | None = None,
    **options: "Unpack[RunOptions]",
) -> "Run[HyperT]":
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
      ConfigError: If the folder is in use, or the problem cannot be carried to another process, or
        a resumed sweep has another number of lanes.
      PartError: If a part failed, such as for input that is not allowed, or because something has
        changed since the part began, such as the budget; or if the launcher cannot start any, in
        which case no folder is made.
    """
    import cloudpickle
    import jax

    from fedjax_sim.engine import request
    from fedjax_sim.engine.watching import Watch
    from fedjax_sim.launch.parts import count_parts
    from fedjax_sim.results.runs import join_runs, warn_of_lanes

    # What cannot be done in several processes.
    launcher.check()
    watch = options.get("watch", Watch())
    if watch.trackers:
        raise ConfigError("trackers", watch.trackers, "left out in a sweep in parts")
    if isinstance(watch.shown, Path):
        raise ConfigError("progress", watch.progress, "true, false or None in a sweep in parts")
    # The folder: a new one, or that of the sweep that is resumed.
    where = Path(checkpoints.folder).absolute()
    grid = request.grid_of(seeds, settings)
    num_lanes = math.prod(grid.shape)
    if checkpoints.resume:
        known = read_record(where / RECORD)
        if known is None:
            allowed = f"one with an unfinished sweep and an undamaged {RECORD}"
            raise ConfigError("folder to resume", str(checkpoints.folder), allowed)
        if known != {"lanes": num_lanes}:
            words = f"{known['lanes']} lanes, as in {where}"
            raise ConfigError("seeds and settings", f"{num_lanes} lanes", words)
    elif where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise ConfigError("folder", str(checkpoints.folder), "new or empty, or else resumed")
    # All checks that `sweep` makes, before any process starts.
    given: Any = {name: value for name, value in options.items() if name != "start"}
    asked = request.Options(budget, **given)
    if not request.has_default_clients(system, hyper, grid):
        request.check_call(system, hyper, grid, asked)
    num_parts = count_parts(launcher, parts, where, num_lanes, resume=bool(checkpoints.resume))
    # A function of the seed is called in the parts.
    if not callable(problem) or isinstance(problem, system.fit.learns):
        request.list_lanes(system, problem, hyper, grid, asked)
    # The parts. Each is a job and has a folder.
    call = where / CALL
    worker = ("-m", "fedjax_sim.launch.worker", str(call))
    jobs = jobs_of(num_parts, where, lambda part, folder: (*worker, part, str(folder)))
    arguments = {"system": system, "problem": problem, "hyper": hyper, "seeds": seeds, **options}
    arguments |= {"settings": settings, "budget": budget, "checkpoints": checkpoints}
    try:
        content = cloudpickle.dumps(
            (arguments, {name: getattr(jax.config, name) for name in SWITCHES})
        )
    except Exception as error:  # Each kind of object has its own.
        allowed = f"something that can be carried to another process ({error})"
        raise ConfigError("problem", type(problem).__name__, allowed) from None
    where.mkdir(parents=True, exist_ok=True)
    write_sealed(call, lambda path: path.write_bytes(content))
    write_record(where / RECORD, {"lanes": num_lanes})
    finish_jobs(launcher, jobs, where, show=watch.progress is not False)
    run = join_runs([read_pickle(job.folder / RUN) for job in jobs])
    warn_of_lanes(run.curves)
    return run


def read_pickle(path: Path) -> Any:
    """Read a sealed pickle that this sweep, or a part of it, has just written.

    Raises:
      InputError: If it is damaged.
    """
    import cloudpickle

    check_seal(path)
    return cloudpickle.loads(path.read_bytes())
