"""The request of a caller, checked and listed as lanes.

Lanes may start from given models instead of drawn ones: from a model, or from the models of a run.
A system draws its first model by `problem.init` and by nothing else, whatever else its state
holds. So a lane starts from a given model (from given statistics in expectation maximisation) if
`init` of its problem returns that. Everything else begins as in any run: memories, optimizers and
control variates are fresh. Only a resumed run goes on with these, to the end of the budget that it
began with.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import schedules, settings, trees, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, OneOf, checked
from fedjax_sim.engine import contract, watching
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.planning.lanes import Lane, distinct_objects, groups_of
from fedjax_sim.engine.planning.placement import check_layout
from fedjax_sim.results.curves import Grid, label_of_value
from fedjax_sim.results.records import text_of
from fedjax_sim.results.runs import Run, lane_labels

Precision = Annotated[str, OneOf(types.PRECISIONS)]
"""How exact matrix products are on accelerators."""


ProblemT = TypeVar("ProblemT", bound=types.AnyProblem)


ANY_JAX: Literal["any_jax"] = "any_jax"
"""Value of `resume` that accepts a checkpoint of another version of JAX."""
Resume = bool | Literal["any_jax"]


@checked
@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints are kept, how often they are written, and whether a run goes on from one.

    A resumed run continues from the newest checkpoint, and a run that ended returns its result
    again. It is an error if anything has changed that decides what the run returns: settings,
    budget, data, the code of the problem, the system or a function among the settings, the
    schedule, or the version of this package or of JAX.

        saved = fedjax_sim.Checkpoints(folder / "checkpoints", resume=True)
        budget = fedjax_sim.Ticks(20)
        run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=budget, checkpoints=saved)

    Attributes:
      folder: Their folder. One process at a time writes to it.
      every: Least seconds between two checkpoints. They are further apart where writing them would
        take more than a tenth of the time; with 0 they are as close as can be.
      resume: Whether to continue; otherwise older checkpoints in the folder are removed. "any_jax"
        also accepts another version of JAX. The program is then not compared.
    """

    folder: str | Path
    _: dataclasses.KW_ONLY
    every: AtLeast0 = 20.0
    resume: Resume = False


PLAIN = types.Layout(), types.Keep(), watching.Watch(), None
"""Defaults of the options that depend on the system or the machine."""


class RunOptions(TypedDict, total=False):
    """The arguments of `sweep` that other calls pass on; see there."""

    num_evals: Count
    start: Run | types.Params | None
    keep: types.Keep
    watch: watching.Watch
    layout: types.Layout
    precision: Precision


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `sweep` that apply to all lanes; see there.

    Attributes:
      devices: Devices to compile for, if these are only described; () to run on the local ones.
    """

    budget: types.Budget
    num_evals: int = 25
    layout: types.Layout = types.Layout()
    keep: types.Keep = types.Keep()
    watch: watching.Watch = watching.Watch(progress=False)
    checkpoints: Checkpoints | None = None
    precision: str = "float32"
    devices: tuple[jax.Device, ...] = ()

    def __post_init__(self) -> None:
        """Turn numbers of NumPy into those of Python, which files can hold."""
        for name, value in vars(self).items():
            if isinstance(value, types.Layout) and value != types.Layout():
                value = types.Layout(*map(settings.plain, value))
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                for field, each in vars(value).items():
                    if (number := settings.plain(each)) is not each:
                        value = dataclasses.replace(value, **{field: number})
            object.__setattr__(self, name, settings.plain(value))
        object.__setattr__(self, "devices", tuple(self.devices))

    @property
    def folder(self) -> Path | None:
        """The folder of the checkpoints; None if none are written."""
        return None if self.checkpoints is None else Path(self.checkpoints.folder)


def grid_of(seeds: int | Sequence[int], swept: Mapping[str, Sequence[Any]] | None) -> Grid:
    """List seeds and the values of settings, with numbers as Python has them."""
    contract.check_known("settings", dict(swept or {}))
    seeds = settings.plain(seeds)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(map(settings.plain, seeds))
    values = {name: list(map(settings.plain, each)) for name, each in (swept or {}).items()}
    return Grid(values, numbers)


def list_lanes(
    system: types.System,
    problem: Any,
    hyper: types.Settings,
    grid: Grid,
    options: Options,
    start: Run | types.Params | None = None,
) -> list[Lane]:
    """Check the inputs and list the lanes: settings as given, then seeds."""
    seeds, problems = list(grid.seeds), None
    if has_default_clients(system, hyper, grid):
        # Their number is needed for the other checks.
        problems = _problems_of(system, problem, seeds)
        given = system.Hyper() if hyper is None else hyper
        hyper = dataclasses.replace(given, num_clients=problems[0].counts.shape[0])
    points, hypers = check_call(system, hyper, grid, options)
    problems = problems or _problems_of(system, problem, seeds)
    distinct, number = distinct_objects(problems)
    whole: list[Lane] = []
    for point, hyper in zip(points, hypers, strict=True):
        completed = [_completed(system, hyper, one) for one in distinct]
        for seed, one, i in zip(seeds, problems, number, strict=True):
            whole.append(Lane(len(whole), completed[i], one, seed, point))
    if len(distinct) > 1:
        _check_models(distinct)
    whole = whole if start is None else give_starts(whole, start)
    return _with_lengths(system, whole, options.budget)


def _with_lengths(system: types.System, whole: list[Lane], budget: types.Budget) -> list[Lane]:
    """Give schedules of rates without a length the number of their lane's ticks, as planned."""
    hypers = {id(lane.hyper): lane.hyper for lane in whole}  # Thousands of lanes may share one.
    for key, hyper in list(hypers.items()):
        if schedules.with_length(hyper, np.inf) is hyper:
            del hypers[key]
    lacking = [lane for lane in whole if id(lane.hyper) in hypers]
    if not lacking:
        return whole
    if isinstance(budget, types.Ticks) or system.live is not None:
        lengths = [(lane, getattr(budget, "num_ticks", None)) for lane in lacking]
    else:
        drawn = [(each, Schedules.of(system, each, budget)) for each in groups_of(lacking)]
        ticks = [(each, own.count_ticks()[own.row].tolist()) for each, own in drawn]
        lengths = [pair for each, own in ticks for pair in zip(each, own, strict=True)]
    of_length = cache(lambda key, length: schedules.with_length(hypers[key], length))
    for lane, length in lengths:
        whole[lane.place] = lane._replace(hyper=of_length(id(lane.hyper), length))
    return whole


def has_default_clients(system: types.System, hyper: types.Settings, grid: Grid) -> bool:
    """Tell whether nobody has given the number of clients, which the problem then decides."""
    given = system.Hyper() if hyper is None else hyper
    return (
        hasattr(given, "num_clients")
        and not settings.is_given(given, "num_clients")
        and not isinstance(given, type)
        and "num_clients" not in grid.settings
        and bool(grid.seeds)
    )


def _problems_of(system: types.System, problem: Any, seeds: list[int]) -> list[types.AnyProblem]:
    """Return one problem per seed, and check them."""
    problems = [problem] * len(seeds)
    is_one = isinstance(problem, (system.fit.learns, str))
    if callable(problem) and not is_one:
        problems = [problem(seed) for seed in seeds]
    elif isinstance(problem, Sequence) and not is_one:
        if len(problem) != len(seeds):
            raise ConfigError("problem", f"a list of {len(problem)}", f"one per seed, {len(seeds)}")
        problems = list(problem)
    distinct, number = distinct_objects(problems)
    for i, each in enumerate(distinct):
        contract.check_problem(system, each)
        leaves, structure = jax.tree.flatten(each)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):
            # Python's numbers become arrays, which have no definite type either.
            typed = [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves]
            distinct[i] = jax.tree.unflatten(structure, typed)
    return [distinct[i] for i in number]


def _check_models(problems: list[types.AnyProblem]) -> None:
    """Check that models and metrics of problems have one form, so that lanes fit together."""
    first: dict[str, dict[str, tuple[int, ...]]] = {}
    distinct = {
        (trees.typed_structure(each), tuple(map(np.shape, jax.tree.leaves(each)))): each
        for each in problems
    }
    for problem in distinct.values():
        model = trees.shapes_of_model(problem)
        metrics = jax.eval_shape(problem.evaluate, model)
        found = {"model": _shapes_of(model), "metrics": _shapes_of(metrics)}
        for name, shapes in found.items():
            if shapes != first.setdefault(name, shapes):
                allowed = f"those of another problem in the same call, {first[name]}"
                raise ConfigError(f"shapes of a problem's {name}", shapes, allowed)


def _shapes_of(tree: object) -> dict[str, tuple[int, ...]]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def _completed(
    system: types.System[types.HyperT, Any, Any], hyper: types.Settings, problem: Any
) -> types.HyperT:
    """Complete settings from a problem."""
    if hyper.num_clients != (num_clients := problem.counts.shape[0]):
        raise ConfigError("num_clients", hyper.num_clients, f"{num_clients}, as in the problem")
    # Names in a table of clients, or a trace, are matched with those of the problem's clients.
    names = problem.client_ids if trees.has(problem, "client_ids") else None
    if names is not None and hasattr(hyper, "delays"):
        hyper = hyper.with_client_names(names)
    whole: Any = system.fit.complete(hyper, problem)
    if getattr(whole, "needs_message_bits", False):  # The clock asks how long messages are.
        bits = system.messages.bits(trees.shapes_of_model(problem), whole)
        whole = whole.with_message_bits(*bits)
    return whole


def settings_completed_from(
    system: types.System, hyper: types.Settings, problem: types.AnyProblem
) -> set[str]:
    """Name the numeric settings from which others follow when settings are completed.

    Each is mapped over once, so that its value is not known. Others follow from it if the settings
    cannot be completed then, are completed to another form, or hold its value elsewhere.

    Args:
      hyper: Settings that are not completed yet.
    """
    whole = trees.typed_structure(_completed(system, hyper, problem))
    leaves, structure = jax.tree.flatten(hyper)
    found = set()

    def note(place: int, name: str, value: Any) -> None:
        given = jax.tree.unflatten(structure, [*leaves[:place], value, *leaves[place + 1 :]])
        try:
            completed = _completed(system, given, problem)
        except (TypeError, ValueError):  # Its value was asked for, or refused.
            found.add(name)
            return
        mapped = [leaf for leaf in jax.tree.leaves(completed) if isinstance(leaf, jax.core.Tracer)]
        if trees.typed_structure(completed) != whole or list(map(id, mapped)) != [id(value)]:
            found.add(name)

    for place, (name, leaf) in enumerate(trees.named_leaves(hyper)):
        jax.vmap(partial(note, place, name))(np.asarray(leaf, float)[None])
    return found


def check_call(
    system: types.System, hyper: types.Settings, grid: Grid, options: Options
) -> tuple[list[dict[str, Any]], list[types.Settings]]:
    """Check everything that can be checked without problems and timelines, or raise a ConfigError.

    Returns:
      The values of the swept settings at each point of the grid, and all settings there.
    """
    if not grid.seeds or len(set(grid.seeds)) < len(grid.seeds):
        raise ConfigError("seeds", grid.seeds, "different whole numbers, at least one")
    if (options.layout, options.keep, options.watch, options.checkpoints) != PLAIN:
        _check_options(system, options)
    contract.check_known("hyper", hyper)
    names = [field.name for field in dataclasses.fields(system.Hyper) if field.compare]
    hyper = system.Hyper() if hyper is None else hyper
    if isinstance(hyper, type) or not all(map(partial(hasattr, hyper), names)):
        kind = hyper if isinstance(hyper, type) else type(hyper)
        allowed = f"settings of {system.name}, an instance of its Hyper"
        raise ConfigError("hyper", f"{kind.__module__}.{kind.__name__}", allowed)
    if "num_clients" not in names:
        allowed = "those of a system, with num_clients among them"
        raise ConfigError(f"settings of {system.name}", ", ".join(names), allowed)
    points: list[dict[str, Any]] = [{}]
    hypers = [hyper]
    if grid.settings:
        _check_swept(system, grid.settings)
        values = itertools.product(*grid.settings.values())
        points = [dict(zip(grid.settings, each, strict=True)) for each in values]
        hypers = [dataclasses.replace(hyper, **point) for point in points]
    settings.check_all(hypers)
    if system.live is not None:
        for each in hypers:
            _check_without_privacy(system, each)
    return points, hypers


def _check_options(system: types.System, options: Options) -> None:
    """Check options that are not the defaults, as in `check_call`."""
    if isinstance(options.watch.shown, Path):
        watching.check_file(options.watch.shown)
    if options.folder is not None and jax.process_count() > 1:
        allowed = "None with several processes, which cannot write any"
        raise ConfigError("checkpoints", str(options.folder), allowed)
    if options.watch.on_evaluation is not None and jax.process_count() > 1:
        allowed = "None with several processes, which could decide differently"
        raise ConfigError("on_evaluation", options.watch.on_evaluation, allowed)
    check_layout(options.layout)
    if (asked := options.keep.of_clients) is not None:
        usual = f"{getattr(type(options.keep)(), asked[0])} for {system.name}"
        if system.fit.learns is types.LatentProblem:
            raise ConfigError(*asked, f"{usual}, whose clients hold statistics and no models")
        if system.live is not None:
            allowed = f"{usual}: what clients hold is known from planned schedules only"
            raise ConfigError(*asked, allowed)


def _check_swept(system: types.System, swept: Mapping[str, Sequence[object]]) -> None:
    """Check names and values of swept settings, as in `check_call`."""
    owners = [field.name for field in settings.groups(system.Hyper)]
    for name, values in swept.items():
        inside = "" if name in owners else settings.full_name(system.Hyper, name).rpartition(".")[0]
        if inside in swept:
            # The group's label would have another value of the setting.
            raise ConfigError("setting name", name, f"left out with `{inside}`, its group")
        # Long arrays have a shortened repr, functions of one name the same text, 1 is 1.0.
        keys = (x if isinstance(x, int | float) else (repr(x), text_of(x)) for x in values)
        if not values or len({*keys}) < len(values):
            raise ConfigError(f"values of {name}", values, "at least one, all different")


def _check_without_privacy(system: types.System, hyper: types.Settings) -> None:
    """Refuse noise with a live clock: who takes part then follows from clients' data.

    Accountants count how often clients take part, and assume that this does not depend on their
    data. A choice by losses also gives something away, which no accountant counts.
    """
    known = settings.names_of(type(hyper))
    for name in ("privacy", "local_privacy"):
        value = settings.value_of(hyper, known[name]) if name in known else None
        if value is not None and str(value) != "none":
            allowed = (
                f"none for {system.name}: whom a live clock chooses follows from clients' data"
            )
            raise ConfigError(known[name], str(value), allowed)


def give_starts(lanes: Sequence[Lane], start: Run | types.Params) -> list[Lane]:
    """Give each lane the model that it starts from.

    Args:
      lanes: The lanes of a sweep.
      start: A model for all lanes; or a run, of which each lane takes the final model of the lane
        with the same seed and the same values of those settings that the run swept.

    Returns:
      The lanes.

    Raises:
      ConfigError: If the run lacks a lane, or a model is not of the shape that a problem draws.
    """
    found = [_model_of(start, lane) for lane in lanes]
    fitted: dict[tuple[int, int], types.Params] = {}
    for lane, model in zip(lanes, found, strict=True):
        if (id(model), id(lane.problem)) not in fitted:
            start = contract.fit_start(model, lane.problem)
            fitted[id(model), id(lane.problem)] = jax.tree.map(np.asarray, start)
    return [
        lane._replace(start=fitted[id(model), id(lane.problem)])
        for lane, model in zip(lanes, found, strict=True)
    ]


def _model_of(start: Run | types.Params, lane: Lane) -> types.Params:
    """Find the model that a lane starts from."""
    if not isinstance(start, Run):
        return start
    if not start.lane_dims:
        return start.models

    def setting(name: str) -> Any:
        kind = type(lane.hyper)
        known = {
            **settings.names_of(kind),
            **{field.name: field.name for field in settings.groups(kind)},
        }
        return settings.value_of(lane.hyper, known[name]) if name in known else None

    wanted = {
        name: lane.seed if name == "seed" else label_of_value(setting(name))
        for name in lane_labels(start.curves)[0]
    }
    found = [i for i, labels in enumerate(lane_labels(start.curves)) if labels == wanted]
    if len(found) == 1:
        return start.model(found[0])
    words = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
    number = "only one lane" if found else "a lane"
    allowed = f"one with {number} of {words}, or for all lanes one model or one run.lane(...)"
    raise ConfigError("start", f"a run of {start.curves.attrs['system']}", allowed)
