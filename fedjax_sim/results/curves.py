"""Label the results of lanes: one dataset over settings, seeds and evaluations.

Metrics may have dimensions, which their names tell: "error[client]" is "error" along "client".

Dimension letters: those of `core.types`; `D` schedules, `V` evaluations, `C` evaluations of a
chunk, `E` ticks between two evaluations, `H` rows of the store behind `client_variance`.
"""

import json
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import clocks, trees
from fedjax_sim.core.settings import ConfigError, OneOfSeveral, plain
from fedjax_sim.core.settings.names import written
from fedjax_sim.core.types import AnyProblem, Params, Timeline

if TYPE_CHECKING:
    import xarray as xr


COORDINATES = ("time", "ticks", "local_steps", "uplink_bits", "downlink_bits")
"""The schedule's facts. A swept setting of the same name gets the dimension `NAME_setting`."""
RESERVED = {
    *COORDINATES,
    *("system", "lane", "seed", "eval", "finite", "failed", "failed_at", "collapsed_at"),
    *("stopped_at", "executed", "needed", "staleness_mean", "staleness_max", "client_variance"),
    *("epsilon", "client_uplink_bits", "client_downlink_bits", "ended", "energy"),
}
"""Names in the curves that no metric may have."""
Dims: TypeAlias = tuple[str, ...]


class Curves(NamedTuple):
    """Curves of a replay.

    Attributes:
      metrics: Each `[L, V + 1, ...]`, the initial evaluation included, by name; names tell further
        dimensions, see `read_name`.
      infos: Each `[L, V]`, the algorithm's `Info` summed over the ticks between two evaluations;
        and, under names that begin with `HAPPENED`, who took part in changed events,
        `[L, V, E, S]`.
      models: Final models, leaves `[L, ...]`.
      samples: Models of all evaluations, leaves `[L, V + 1, ...]`; None if they are not kept.
      stopped_at: `i64[L]`, the evaluation at which a lane was stopped, -1 if it was not. Later
        entries of its metrics and samples repeat that evaluation's. None if nobody kept it.
    """

    metrics: dict[str, np.ndarray]
    infos: dict[str, np.ndarray]
    models: Params
    samples: Params | None = None
    stopped_at: np.ndarray | None = None


SPENT = ("seconds_compile", "seconds_run", "programs_compiled")
"""Attributes that `sweep` adds; parts add up."""


NEVER = -1
"""In place of the number of an evaluation."""


class Grid(NamedTuple):
    """The dimensions of a sweep: swept settings with their values, then seeds."""

    settings: Mapping[str, Sequence[object]]
    seeds: Sequence[int]

    @property
    def dims(self) -> Dims:
        """The swept settings' dimensions."""
        return tuple(f"{name}_setting" if name in COORDINATES else name for name in self.settings)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all dimensions, seeds last."""
        return (*(len(values) for values in self.settings.values()), len(self.seeds))


class Returned(NamedTuple):
    """Results of lanes that ran as one program.

    Attributes:
      places: Positions of the lanes in the flattened grid.
      curves: What the replay returned.
      facts: What the schedules say of each lane: `COORDINATES` and further traffic, `i64[L, V + 1]`
        or `f64[L, V + 1]`, and the mean and the largest staleness, `f64[L]` and `i64[L]`; and
        `collapsed_at`, `i64[L]`, and where lanes may be stopped `stopped_at`, see `label_curves`.
      timelines: The lanes' timelines, cut to their budgets.
      extra_facts: What their settings say about the ticks before each evaluation, such as the
        privacy
        spent: `f64[L, V + 1]` by name, NaN for a lane that says nothing.
    """

    places: list[int]
    curves: Curves
    facts: dict[str, np.ndarray]
    timelines: list[Timeline]
    extra_facts: dict[str, np.ndarray]


def lengthen(leaf: np.ndarray, num_evals: int) -> np.ndarray:
    """Repeat the last evaluation's entry of `[L, V, ...]` up to a number of evaluations."""
    padding = ((0, 0), (0, num_evals - leaf.shape[1])) + ((0, 0),) * (leaf.ndim - 2)
    return np.pad(leaf, padding, mode="edge")


def label_curves(parts: Sequence[Returned], grid: Grid, system: str) -> "xr.Dataset":
    """Put the lanes of all parts of a sweep on its grid; `system` is an attribute of the dataset.

    Parts with fewer evaluations repeat their last one.

    Returns:
      Metrics with dimensions (settings..., seed, eval) and those that they name, see `read_name`;
      facts of a lane without `eval`. `failed_at` is the first evaluation with a number that was not
      finite, `collapsed_at` the first from which on the lane was at chance to its end, and
      `stopped_at` the one at which it was stopped; `NEVER` where there is none.
    """
    import xarray as xr  # Slow to import.

    num_evals = max(part.facts["ticks"].shape[1] for part in parts)
    order = np.argsort(np.concatenate([part.places for part in parts]))

    def joined(read: Callable[[Returned], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Join the parts' tables to `[all L, ...]` by name, NaN where a part lacks one."""
        tables, found = list(map(read, parts)), dict[str, np.ndarray]()
        for name, like in ChainMap(*reversed(tables)).items():
            rows = []
            for part, table in zip(parts, tables, strict=True):
                shape = (*part.facts["ticks"].shape, *like.shape[2:])
                values = table[name] if name in table else np.full(shape, np.nan, "float32")
                rows.append(values if values.ndim == 1 else lengthen(values, num_evals))
            found[name] = np.concatenate(rows)[order]
        return found

    def placed(values: np.ndarray, dims: Dims = ()) -> tuple[Dims, np.ndarray]:
        """Put `[all L]` or `[all L, V, *dims]` on the grid."""
        every = (*grid.dims, "seed", "eval", *dims)[: len(grid.shape) + values.ndim - 1]
        return every, values.reshape(*grid.shape, *values.shape[1:])

    # Metrics, and the lanes in which they are not finite.
    metrics = joined(lambda part: part.curves.metrics)
    finite, data = metrics.pop("finite"), dict[str, Any]()
    for name, values in (metrics | joined(lambda part: part.extra_facts)).items():
        variable, dims = read_name(name)
        data[variable] = placed(values, dims)
    failed_at = np.where(finite.all(axis=1), NEVER, finite.argmin(axis=1))
    data |= {"failed": placed(failed_at != NEVER), "failed_at": placed(failed_at)}
    # Counts of the whole run, and facts of the schedule: of a lane, or of each evaluation.
    totals = joined(lambda part: {name: x.sum(axis=1) for name, x in part.curves.infos.items()})
    data |= {name: placed(values) for name, values in totals.items()}
    coords: dict[str, Any] = dict(
        zip(grid.dims, [list(map(label_of_value, x)) for x in grid.settings.values()], strict=True)
    )
    coords["seed"] = list(grid.seeds)
    for name, values in joined(lambda part: part.facts).items():
        if name == "ended":
            coords[name] = placed(np.array(clocks.ENDINGS)[values])
        else:
            (coords if values.ndim > 1 else data)[name] = placed(values)
    return xr.Dataset(data, coords, {"system": system})


def label_lanes(
    parts: Sequence[Returned], grid: Grid, system: str, places: Sequence[int]
) -> "xr.Dataset":
    """Label some of the lanes of a grid, for `join_lanes` to put them together with the others.

    Args:
      parts: The lanes that ran.
      grid: The dimensions of the whole sweep.
      system: Name of the system.
      places: Positions of the lanes in the flattened grid, ascending.

    Returns:
      Metrics with dimensions (lane, eval), facts of a lane without `eval`. The coordinate `lane` is
      the position; settings and seed are coordinates of it. The attribute `grid` holds the sizes of
      the whole grid as JSON.
    """
    dims, at = (*grid.dims, "seed"), np.unravel_index(places, grid.shape)
    values = dict(zip(dims, (*grid.settings.values(), grid.seeds), strict=True))
    # Of one type in all parts, be it text because some value of the grid is none.
    labels = {
        name: ("lane", np.array([*map(label_of_value, values[name])])[index])
        for name, index in zip(dims, at, strict=True)
    }
    parts = [part._replace(places=np.searchsorted(places, part.places).tolist()) for part in parts]
    curves = label_curves(parts, Grid({}, places), system).rename(seed="lane").assign_coords(labels)
    sizes = json.dumps(dict(zip(dims, grid.shape, strict=True)))
    return curves.assign_attrs(grid=sizes)


def join_lanes(parts: Sequence["xr.Dataset"]) -> "xr.Dataset":
    """Put the lanes of `label_lanes` on their grid: the dataset of `label_curves`.

    Args:
      parts: The lanes of one sweep, in any order.

    Raises:
      ConfigError: If a lane is missing or there twice, or the parts are of different grids.
    """
    import xarray as xr

    # The lanes of all parts must be those of the grid, each once.
    first, sizes = parts[0], json.loads(parts[0].attrs["grid"])
    system, places = first.attrs["system"], np.concatenate([part["lane"].values for part in parts])
    num_lanes, order = int(np.prod(list(sizes.values()))), np.argsort(places)
    if len({part.attrs["grid"] for part in parts}) > 1:
        raise ConfigError(f"grid of {system}", parts[-1].attrs["grid"], "the same in all parts")
    if not np.array_equal(places[order], np.arange(num_lanes)):
        missing = [str(place) for place in range(num_lanes) if place not in places]
        named = f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}"
        twice = len(places) - num_lanes
        found = f"without lanes {named}" if missing else f"with {twice} lanes twice"
        allowed = f"each of its {num_lanes} lanes once"
        raise ConfigError(f"what the parts have of {system}", found, allowed)
    # A part lacks what none of its lanes has, such as a fact about one setting.
    num_evals = max(part.sizes["eval"] for part in parts)
    lengthened = [
        part.isel(eval=np.minimum(np.arange(num_evals), part.sizes["eval"] - 1))
        for part in sorted(parts, key=lambda part: -len(part.variables))
    ]
    options: Any = {"coords": "minimal", "compat": "override", "join": "override"}
    whole = xr.concat(lengthened, "lane", **options).sortby("lane").drop_vars("lane")
    placed: dict[str, Any] = {}
    for name, values in whole.variables.items():
        placed[str(name)] = values
        if "lane" in values.dims:
            leaf = values.values.reshape(*sizes.values(), *values.shape[1:])
            placed[str(name)] = (*sizes, *values.dims[1:]), leaf, values.attrs
    # The label of a dimension is the same wherever the others stand.
    for axis, (name, size) in enumerate(sizes.items()):
        placed[name] = np.moveaxis(placed[name][1], axis, -1).reshape(-1, size)[0]
    spent = {
        name: sum(np.asarray(part.attrs[name]).item() for part in parts)
        for name in SPENT
        if name in first.attrs
    }
    data, coords = (
        {str(name): placed[str(name)] for name in names}
        for names in (whole.data_vars, (*sizes, *whole.coords))
    )
    return xr.Dataset(data, coords, {"system": system, **spent})


def label_of_value(value: object) -> bool | int | float | str:
    """Return a value of a setting as it labels a dimension, the same in every process."""
    value = plain(value.chosen if isinstance(value, OneOfSeveral) else value)
    if isinstance(value, bool | int | float | str):
        return value
    return written(value) if callable(value) else str(value)


def collapsed_at(metrics: Mapping[str, np.ndarray], chance: Mapping[str, float]) -> np.ndarray:
    """Find the evaluation from which on a lane is no better than chance.

    Args:
      metrics: `[L, V + 1]` each.
      chance: For some metrics, of which more is better, what a model without knowledge attains.

    Returns:
      `i64[L]`, the first evaluation from which on all of these metrics are at or below chance up
      to the last one; `NEVER` if the last one is not. The initial evaluation does not count, nor
      does a lane that is not finite.
    """
    num_lanes, num_evals = metrics["finite"].shape
    is_at = np.full((num_lanes, num_evals), bool(chance)) & metrics["finite"]
    for name, value in chance.items():
        is_at &= metrics[name] <= value
    since = num_evals - np.logical_and.accumulate(is_at[:, ::-1], axis=1).sum(axis=1)
    is_finite = metrics["finite"].all(axis=1)
    return np.where((since < num_evals) & is_finite, np.maximum(since, 1), NEVER)


def read_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a metric's name into the name of its variable and those of its dimensions."""
    variable, bracket, dims = name.partition("[")
    if not bracket:
        return name, ()
    return variable, tuple(dim.strip() for dim in dims.removesuffix("]").split(","))


def check_metrics(metrics: Sequence[tuple[str, jax.Array]], further: Collection[str]) -> None:
    """Check that metrics have the dimensions that their names tell. Values may be traced.

    Args:
      metrics: Names and values.
      further: Names that curves need for others, besides `RESERVED`.

    Raises:
      ConfigError: If they do not, or curves could not tell one of them from something else.
    """
    known = {dim for name, _ in metrics for dim in read_name(name)[1]}
    for name, value in metrics:
        variable, dims = read_name(name)
        for word in (variable, *dims):
            if not word or "/" in word:
                raise ConfigError("name of a metric", name, 'without "/", and not empty')
            if word in RESERVED or word in further:
                allowed = f"another one, as {word} already names a setting or a fact in the curves"
                raise ConfigError("name of a metric", name, allowed)
        if jnp.ndim(value) != len(dims):
            allowed = f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"
            if not dims:
                allowed += f'; if it has dimensions, name them, as in "{name}[client]"'
            raise ConfigError(f"shape of the metric {name}", jnp.shape(value), allowed)
        if variable in known:
            raise ConfigError("name of a metric", name, f"another one, as there is a {variable}")
        known.add(variable)


def scalars_of(metrics: Mapping[str, jax.Array]) -> list[jax.Array]:
    """List the metrics without dimensions."""
    return [value for name, value in metrics.items() if not read_name(name)[1]]


def describe_metrics(curves: "xr.Dataset", problems: Sequence[AnyProblem]) -> "xr.Dataset":
    """Label the dimensions of metrics as problems do, and mark metrics by facts of problems.

    The facts are of which metrics less is better, and of which the value of chance is known.

    Args:
      curves: The curves of `label_curves` or `label_lanes`.
      problems: What was learnt, at least one problem. Labels on which not all agree are left out.
    """
    distinct: list[Any] = list({id(problem): problem for problem in problems}.values())
    # Looked up without a problem's `__getattr__`, which may raise anything.
    known = {name for each in distinct if trees.has(each, "chance") for name in each.chance()}
    marks, names = {"has_chance": known}, ("metric_labels", "less_is_better")
    described = [x for x in distinct if all(getattr_static(x, name, None) for name in names)]
    labels = {}
    if described:
        marks["less_is_better"] = {*described[0].less_is_better}
        for dim, names in described[0].metric_labels.items():
            agree = all(list(each.metric_labels.get(dim, ())) == list(names) for each in described)
            if agree and curves.sizes.get(dim) == len(names):
                labels[dim] = _plain(names)
    curves = curves.assign_coords(labels)
    for mark, metrics in marks.items():
        for name in metrics & curves.keys():
            curves[name].attrs[mark] = 1
    return curves


def _plain(names: Sequence[object]) -> np.ndarray:
    """Make an array of labels that a file can hold: numbers, or text."""
    labels = [plain(name) for name in names]
    kinds = {type(label) for label in labels}
    return np.array(labels if kinds in ({int}, {float}, {str}) else [str(each) for each in labels])
