"""Run a sweep in parts from Python."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.checking import Above0, AtLeast0, Count, LaneSeed, checked
from fedjax_sim.launch.jobs import Job, Launcher, inherited, python
from fedjax_sim.launch.local import Local
from fedjax_sim.launch.watch import finish_jobs

# JAX is only loaded when a sweep is launched: processes that watch over a part need none.
if TYPE_CHECKING:
    from fedjax_sim.engine.request import Precision, ProblemT, Resume
    from fedjax_sim.engine.watching import OnEvaluation
    from fedjax_sim.results.runs import Run
    from fedjax_sim.types import HyperT, InfoT, Layout, Params, StateT, System

CALL = "call.pkl"
"""File with the arguments of the sweep, for the parts to read."""
RUN = "run.pkl"
"""File in a part's folder with what its sweep returned."""
RECORD = "sweep.json"
"""File with the number of lanes and the budgets, for a call that resumes the sweep."""
BUDGETS = ("time_budget", "num_ticks")
"""Arguments that may be larger in a resumed sweep."""
SWITCHES = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""JAX's switches that change results. Parts set them as they are here."""


@checked
def sweep(
    system: "System[HyperT, StateT, InfoT]",
    problem: "ProblemT | list[ProblemT] | Callable[[int], ProblemT]",
    hyper: "HyperT | None" = None,
    *,
    folder: str | Path,
    launcher: Launcher = Local(),
    parts: Count | None = None,
    seeds: Count | Sequence[LaneSeed] = 1,
    settings: Mapping[str, Sequence[Any]] | None = None,
    time_budget: Above0 | None = None,
    num_ticks: Count | None = None,
    num_evals: Count = 25,
    layout: "Layout | None" = None,
    max_lanes: Count | None = None,
    client_variance: bool = False,
    keep_models: bool = False,
    checkpoint_every: AtLeast0 = 20.0,
    resume: "Resume" = False,
    progress: bool = True,
    precision: "Precision" = "float32",
    start: "Run | Params | None" = None,
    on_evaluation: "OnEvaluation | None" = None,
) -> "Run[HyperT]":
    """Run a sweep in parts, each in a process that a launcher starts.

    Args:
      system: As in `fedjax_sim.sweep`.
      problem: As in `fedjax_sim.sweep`; anything that `cloudpickle` can carry to other processes. A
        function of the seed is called there, so that no data need to be carried.
      hyper: As in `fedjax_sim.sweep`.
      folder: Folder for the arguments, checkpoints and results of the parts, which all machines
        must see. New or empty, unless the sweep is resumed.
      launcher: What starts the parts: `Local`, `Slurm` or `Ray`.
      parts: Number of parts. None takes as many as before in a resumed sweep, and otherwise as many
        as the launcher thinks fit.
      seeds: As in `fedjax_sim.sweep`.
      settings: As in `fedjax_sim.sweep`.
      time_budget: As in `fedjax_sim.sweep`.
      num_ticks: As in `fedjax_sim.sweep`.
      num_evals: As in `fedjax_sim.sweep`.
      layout: As in `fedjax_sim.sweep`; everything is chosen by the rule if None.
      max_lanes: As in `fedjax_sim.sweep`.
      client_variance: As in `fedjax_sim.sweep`.
      keep_models: As in `fedjax_sim.sweep`.
      checkpoint_every: As in `fedjax_sim.sweep`.
      resume: As in `fedjax_sim.sweep`, for every part. Parts that have ended well only check that
        nothing has changed. Without `time_budget` and `num_ticks` the budget is that of the first
        call; if one of them is longer, all parts go on from their ends.
      progress: Whether to show the progress of all parts.
      precision: As in `fedjax_sim.sweep`.
      start: As in `fedjax_sim.sweep`.
      on_evaluation: As in `fedjax_sim.sweep`, but called in the parts' processes, each with its own
        lanes; anything that `cloudpickle` can carry there.

    Returns:
      What `fedjax_sim.sweep` would have returned. There are no trackers: several processes cannot
      share one.

    Raises:
      ConfigError: If the folder is in use, or the problem cannot be carried to another process, or
        a resumed sweep has another number of lanes or is to end earlier than before.
      PartError: If a part failed, such as for input that is not allowed, or because something has
        changed since the part began; or if the launcher cannot start any, in which case no folder
        is made.
    """
    from fedjax_sim.engine.request import Options, check_call, grid_of, list_lanes
    from fedjax_sim.launch.parts import parts_in
    from fedjax_sim.lifecycle import read_record, write_record
    from fedjax_sim.results.runs import join_runs, warn_of_lanes
    from fedjax_sim.settings import ConfigError, plain
    from fedjax_sim.types import Layout

    launcher.check()
    where = Path(folder).absolute()
    call = where / CALL
    arguments = {
        "system": system,
        "problem": problem,
        "hyper": hyper,
        "seeds": seeds,
        "settings": settings,
        "time_budget": time_budget,
        "num_ticks": num_ticks,
        "num_evals": num_evals,
        "layout": layout or Layout(),
        "max_lanes": max_lanes,
        "client_variance": client_variance,
        "keep_models": keep_models,
        "checkpoint_every": checkpoint_every,
        "resume": resume or True,
        "precision": precision,
        "start": start,
        "on_evaluation": on_evaluation,
    }
    grid = grid_of(seeds, settings)
    num_lanes, usual, known = math.prod(grid.shape), None, None
    if resume:
        known = read_record(where / RECORD)
        if known is None:
            allowed = f"one with an unfinished sweep and an undamaged {RECORD}"
            raise ConfigError("folder to resume", str(folder), allowed)
        if num_lanes != known["lanes"]:
            words = f"{known['lanes']} lanes, as in {where}"
            raise ConfigError("seeds and settings", f"{num_lanes} lanes", words)
        usual = parts_in(where)
    elif where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise ConfigError("folder", str(folder), "new or empty, or else resumed")
    budget = time_budget, num_ticks
    if known is not None and budget == (None, None):
        budget = known["time_budget"], known["num_ticks"]
    options = Options(
        *budget, num_evals, layout or Layout(), max_lanes, client_variance=client_variance
    )
    check_call(system, hyper, grid, options)
    num_parts = parts or usual or min(launcher.count(), num_lanes)
    if not 1 <= num_parts <= num_lanes:
        raise ConfigError("parts", parts, f"from 1 to {num_lanes}, the number of lanes")
    jobs = [_job(call, i, num_parts) for i in range(num_parts)]
    if known is not None:
        arguments |= _lengthened(known, arguments, jobs)
    # A function of the seed is called in the parts.
    if not callable(problem) or isinstance(problem, system.fit.learns):
        list_lanes(system, problem, hyper, grid, options)
    _write_call(call, arguments)
    record = {"lanes": num_lanes} | {name: plain(arguments[name]) for name in BUDGETS}
    if known is None:
        write_record(where / RECORD, record)
    finish_jobs(launcher, jobs, where, show=progress)
    # Only now, because parts may refuse a longer budget.
    write_record(where / RECORD, record)
    run = join_runs([read_pickle(job.folder / RUN) for job in jobs])
    warn_of_lanes(run.curves)
    return run


def read_pickle(path: Path) -> Any:
    """Read a sealed pickle that this sweep, or a part of it, has just written.

    Args:
      path: The file.

    Raises:
      InputError: If it is damaged.
    """
    import cloudpickle

    from fedjax_sim.lifecycle import InputError, check_seal

    check_seal(path)
    try:
        return cloudpickle.loads(path.read_bytes())
    except Exception as error:  # Pickles raise errors of every kind.
        raise InputError(f"{path} cannot be read here ({error}).") from None


def _lengthened(
    known: Mapping[str, Any], asked: Mapping[str, Any], jobs: Sequence[Job]
) -> dict[str, Any]:
    """Find the budgets of a resumed sweep.

    Args:
      known: What the record of the first call says.
      asked: Those of this call.
      jobs: The parts.

    Returns:
      What both budgets are; those of the first call if this one names none.

    Raises:
      ConfigError: If one is shorter, or of the other kind, or if a part has not begun.
    """
    from fedjax_sim.launch.parts import check_begun
    from fedjax_sim.settings import ConfigError

    budgets = {name: known[name] for name in BUDGETS}
    for name, before in budgets.items():
        budget = asked[name]
        if budget in (None, before):
            continue
        if before is None or budget < before:
            allowed = "left out" if before is None else f"at least {before}"
            raise ConfigError(name, budget, f"{allowed}, as in {jobs[0].folder.parent}")
        check_begun([job.folder / "checkpoint" for job in jobs], name, before)
        budgets[name] = budget
    return budgets


def _write_call(call: Path, arguments: Mapping[str, Any]) -> None:
    """Write the arguments of the sweep and JAX's switches."""
    import cloudpickle
    import jax

    from fedjax_sim.lifecycle import write_sealed
    from fedjax_sim.settings import ConfigError

    switches = {name: getattr(jax.config, name) for name in SWITCHES}
    try:
        content = cloudpickle.dumps((arguments, switches))
    except Exception as error:  # Each kind of object has its own.
        allowed = f"something that can be carried to another process ({error})"
        raise ConfigError("problem", type(arguments["problem"]).__name__, allowed) from None
    call.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(call, lambda path: path.write_bytes(content))


def _job(call: Path, number: int, num_parts: int) -> Job:
    """Make the job of one part."""
    part, folder = f"{number}/{num_parts}", call.with_name(f"{number}-of-{num_parts}")
    command = (*python(), "-m", "fedjax_sim.launch.worker", str(call), part, str(folder))
    return Job(f"part {part}", command, folder, Path.cwd(), inherited())
