"""Run a sweep in parts from Python."""

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.checking import Above0, AtLeast0, Count, LaneSeed, checked
from fedjax_sim.launch.jobs import Job, Launcher, inherited, python
from fedjax_sim.launch.local import Local
from fedjax_sim.launch.watch import finish_jobs

# JAX is only loaded when a sweep is launched: processes that watch over a part need none.
if TYPE_CHECKING:
    from fedjax_sim.engine.options import Precision
    from fedjax_sim.engine.placement import Layout
    from fedjax_sim.engine.runs import Run
    from fedjax_sim.engine.sweeps import ProblemT
    from fedjax_sim.engine.watching import OnEvaluation
    from fedjax_sim.types import HyperT, InfoT, Params, StateT, System

CALL = "call.pkl"
"""File with the arguments of the sweep, for the parts to read."""
LONGER = "longer.pkl"
"""The same with a longer budget. It takes the place of `CALL` when all parts have run to its end,
because they may refuse it."""
RUN = "run.pkl"
"""File in a part's folder with the budget of its sweep and what this returned."""
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
    resume: bool = False,
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
      resume: Whether to run only those parts that have not ended well, with the arguments of the
        first call. If `time_budget` or `num_ticks` is longer than there, all parts go on from their
        ends.
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
        a resumed sweep is to end earlier than before.
      PartError: If a part failed, such as for input that is not allowed.
    """
    import cloudpickle

    from fedjax_sim.engine.bad_lanes import warn_of_lanes
    from fedjax_sim.engine.inputs import check_call, grid_of, list_lanes
    from fedjax_sim.engine.options import Options
    from fedjax_sim.engine.placement import Layout
    from fedjax_sim.engine.runs import join_runs
    from fedjax_sim.launch.parts import parts_in
    from fedjax_sim.settings import ConfigError

    where = Path(folder).absolute()
    call = where / CALL
    grid, usual = grid_of(seeds, settings), None
    if resume:
        if not call.is_file():
            raise ConfigError("folder to resume", str(folder), "one with an unfinished sweep")
        known, _ = cloudpickle.loads(call.read_bytes())
        grid, usual = grid_of(known["seeds"], known["settings"]), parts_in(where)
    else:
        options = Options(
            time_budget,
            num_ticks,
            num_evals,
            layout or Layout(),
            max_lanes,
            client_variance=client_variance,
        )
        check_call(system, hyper, grid, options)
    num_lanes = math.prod(grid.shape)
    num_parts = parts or usual or min(launcher.count(), num_lanes)
    if not 1 <= num_parts <= num_lanes:
        raise ConfigError("parts", parts, f"from 1 to {num_lanes}, the number of lanes")
    if resume:
        jobs = [_job(call, i, num_parts) for i in range(num_parts)]
        asked = {"time_budget": time_budget, "num_ticks": num_ticks}
        call, arguments = _lengthen(call, jobs, asked)
    else:
        if where.exists() and (not where.is_dir() or any(where.iterdir())):
            raise ConfigError("folder", str(folder), "new or empty, or else resumed")
        # A function of the seed is called in the parts.
        if not callable(problem) or isinstance(problem, system.fit.learns):
            list_lanes(system, problem, hyper, grid, options)
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
            "precision": precision,
            "start": start,
            "on_evaluation": on_evaluation,
        }
        _write_call(call, arguments)
    jobs = [_job(call, i, num_parts) for i in range(num_parts)]
    unfinished = [job for job in jobs if not _is_done(job.folder, arguments)]
    finish_jobs(launcher, unfinished, where, show=progress)
    call.replace(where / CALL)
    run = join_runs([cloudpickle.loads((job.folder / RUN).read_bytes())[1] for job in jobs])
    warn_of_lanes(run.curves)
    return run


def budgets_of(arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return how long a sweep of these arguments is: its time budget and its number of ticks."""
    return arguments["time_budget"], arguments["num_ticks"]


def _is_done(folder: Path, arguments: Mapping[str, Any]) -> bool:
    """Tell whether a part has run to its end, and for the budget of these arguments."""
    try:
        budgets, _ = pickle.loads((folder / RUN).read_bytes())
    except Exception:  # Damaged files raise errors of many kinds. The part returns at once.
        return False
    return budgets == budgets_of(arguments)


def _lengthen(
    call: Path, jobs: Sequence[Job], asked: Mapping[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Let parts go on if a budget is longer than that of the first call.

    Returns:
      The file of arguments for the parts, and the arguments.

    Raises:
      ConfigError: If it is shorter, or of the other kind, or if a part has not begun.
    """
    import cloudpickle

    from fedjax_sim.launch.parts import check_begun
    from fedjax_sim.lifecycle import write_whole
    from fedjax_sim.settings import ConfigError

    arguments, switches = cloudpickle.loads(call.read_bytes())
    longer = {
        name: budget for name, budget in asked.items() if budget not in (None, arguments[name])
    }
    for name, budget in longer.items():
        known = arguments[name]
        if known is None or budget < known:
            allowed = "left out" if known is None else f"at least {known}"
            raise ConfigError(name, budget, f"{allowed}, as in {call.parent}")
        check_begun([job.folder / "checkpoint" for job in jobs], name, known)
    if longer:
        arguments |= longer
        content = cloudpickle.dumps((arguments, switches))
        call = write_whole(call.with_name(LONGER), lambda path: path.write_bytes(content))
    return call, arguments


def _write_call(call: Path, arguments: Mapping[str, Any]) -> None:
    """Write the arguments of the sweep and JAX's switches."""
    import cloudpickle
    import jax

    from fedjax_sim.lifecycle import write_whole
    from fedjax_sim.settings import ConfigError

    switches = {name: getattr(jax.config, name) for name in SWITCHES}
    try:
        content = cloudpickle.dumps((arguments, switches))
    except Exception as error:  # Each kind of object has its own.
        allowed = f"something that can be carried to another process ({error})"
        raise ConfigError("problem", type(arguments["problem"]).__name__, allowed) from None
    call.parent.mkdir(parents=True, exist_ok=True)
    write_whole(call, lambda path: path.write_bytes(content))


def _job(call: Path, number: int, num_parts: int) -> Job:
    """Make the job of one part."""
    part, folder = f"{number}/{num_parts}", call.with_name(f"{number}-of-{num_parts}")
    command = (*python(), "-m", "fedjax_sim.launch.worker", str(call), part, str(folder))
    return Job(f"part {part}", command, folder, Path.cwd(), inherited())
