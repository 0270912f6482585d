"""Results of sweeps: their parts, the files that keep them, and warnings of lanes that failed.

    results.nc     curves
    models.nc      final models, one variable for each array, named by its place in the model
    samples.nc     models of all evaluations, if they were kept
    timelines.nc   schedules, one after another; lanes of one schedule share it
    settings.json  each lane's settings, and of what containers its models consist, see
                   `fedjax_sim.results.kept_settings`
    config.json    settings, seeds, versions, commit, device, and these files with their SHA-256
    summary.json   final values, see `fedjax_sim.results.summaries.summary`

The first four are netCDF with one group for each system, labelled by the swept settings and the
seed, for any program that reads netCDF: `xarray.open_datatree(path)["fedavg"]`. `fedjax-sim run`
adds pictures, and says more in config.json.

Each file is written under another name in its folder and then renamed. It ends with its SHA-256,
see `core.lifecycle.write_sealed`, and config.json has those of all others: files of different runs,
such as those of a writer that was killed while it replaced an older run, are not read as one run.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import jax
import numpy as np

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import HyperT, Params, Timeline
from fedjax_sim.results import diagnostics, kept_settings, records
from fedjax_sim.results.curves import join_lanes, label_of_value, lengthen
from fedjax_sim.results.summaries import is_part, summary

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Content: TypeAlias = Mapping[str, object]
"""The content of a JSON file."""
CURVES, SETTINGS = "results.nc", "settings.json"
TYPE = "jax_dtype"
"""Attribute of a variable of a type that netCDF lacks, such as bfloat16: its bits are kept."""
NAMED = 5
"""Most lanes that a warning names."""
ROOT = str(Path(__file__).parents[1])


@dataclasses.dataclass(frozen=True)
class Run(Generic[HyperT]):
    """The result of a sweep.

    Lanes are in the order of the flattened dimensions: settings as given, then seeds.

        run = fedjax_sim.sweep(
            fedavg.system,
            problem,
            hyper,
            seeds=3,
            settings={"lr": [0.1, 0.3]},
            budget=fedjax_sim.Ticks(20),
        )
        run.curves.loss.sel(lr=0.1).mean("seed").isel(eval=-1)  # curves are an xarray.Dataset

    Attributes:
      curves: Metrics with dimensions (swept names..., seed, eval), and further ones that a
        metric names, see `fedjax_sim.core.types.Problem.evaluate`. Coordinates: time, ticks,
        local_steps, uplink_bits, downlink_bits, and further traffic that the system counts (see
        `fedjax_sim.core.types.Messages`). Per lane: staleness_mean and staleness_max in
        server versions, the algorithm's `Info` (gradient evaluations executed and needed), and
        failed (whether some metric or parameter was not finite), failed_at (the first evaluation
        at which it was not, else -1) and collapsed_at (the first evaluation from which on a lane
        was at chance up to its end, else -1; see `fedjax_sim.core.types.Problem`). With
        `on_evaluation` also stopped_at, the evaluation at which a lane was stopped, else -1: from
        there on its metrics and coordinates repeat their last values, so that none is NaN and the
        last evaluation is the lane's end. Of live clocks also ended, why a lane did nothing more:
        one of `fedjax_sim.core.clocks.ENDINGS`. Attributes: seconds_compile, seconds_run,
        programs_compiled.
      models: Final models, leaves `[L, ...]`.
      timelines: Each lane's schedule, cut to its budget, or to where it was stopped.
      hypers: Each lane's settings, completed from its problem.
      samples: With `Keep(models=True)`, the models of all evaluations, the initial one first:
        leaves `[L, V + 1, ...]` in host memory; otherwise None.
    """

    curves: "xr.Dataset"
    models: Params
    timelines: list[Timeline]
    hypers: list[HyperT]
    samples: Params | None = None

    @property
    def lane_dims(self) -> tuple[str, ...]:
        """The dimensions of lanes: swept settings, then the seed; none for `simulate`."""
        return _lane_dims(self.curves)

    def model(self, i: int) -> Params:
        """Return the final model of the lane at position `i` of the flattened results.

        Raises:
          ConfigError: If there is no such lane.
        """
        if i not in range(len(self.hypers)):
            raise ConfigError("position of a lane", i, f"from 0 to {len(self.hypers) - 1}")
        return jax.tree.map(lambda leaf: leaf[i], self.models) if self.lane_dims else self.models

    def lane(self, **labels: object) -> "Run[HyperT]":
        """Select one lane.

        Args:
          labels: The lane's seed and values of swept settings. What only one value is left of may
            be left out.

        Returns:
          The lane, as `simulate` returns it: models have leaves `[...]`.

        Raises:
          ConfigError: If no lane has these labels, or several have.
        """
        known = lane_labels(self.curves)
        for name in labels:
            if name not in known[0]:
                raise ConfigError("label of a lane", name, f"one of {', '.join(known[0])}")
        found = [i for i, own in enumerate(known) if labels.items() <= own.items()]
        if len(found) != 1:
            allowed = f"those of one lane ({len(found)} lanes have them), such as {known[0]}"
            raise ConfigError("labels", labels, allowed)
        i, dims = found[0], self.lane_dims
        place = np.unravel_index(i, [self.curves.sizes[dim] for dim in dims]) if dims else ()
        kept = self.models, self.samples
        models, samples = jax.tree.map(lambda leaf: leaf[i], kept) if dims else kept
        curves = self.curves.isel(dict(zip(dims, map(int, place), strict=True)))
        return Run(curves, models, [self.timelines[i]], [self.hypers[i]], samples)

    def to_dataframe(self) -> "pd.DataFrame":
        """Make a table with one row for each lane and evaluation.

        Returns:
          Columns: `system`, the swept settings, `seed`, `eval`, the coordinates and all metrics
          that are single numbers; facts about a lane are repeated in each of its rows.
        """
        dims = {*self.lane_dims, "eval"}
        names = [name for name, each in self.curves.variables.items() if set(each.dims) <= dims]
        table = self.curves[[name for name in names if name in self.curves.data_vars]]
        frame = table.drop_vars([name for name in table.coords if name not in names])
        rows = frame.assign_coords(eval=np.arange(self.curves.sizes["eval"])).to_dataframe()
        rows = rows.reset_index()
        rows.insert(0, "system", self.curves.attrs["system"])
        return rows

    @checked
    def save(self, folder: str | Path, *, without: Sequence[str] = ()) -> None:
        """Write everything into a folder, for `fedjax_sim.load` and `fedjax-sim plot`.

        Settings are kept as texts, as the command line has them. A lambda has none, nor has a rule
        of your own before it is in its table, as in `rules.RULES["mine"] = Mine`. Containers of
        models are kept if they are dictionaries, lists, tuples, or named tuples and dataclasses of
        a module; others are read back as dictionaries.

        Args:
          folder: The folder, which is made if it does not exist. Files of an earlier run in it are
            replaced. This module lists them.
          without: Names of settings of which only a description is kept. In loaded settings a
            `NotSaved` takes their place, with which no run begins.

        Raises:
          ConfigError: If a setting has no text, before anything is written; or if there can be no
            such folder.
          StorageError: If the disk refuses.
        """
        folder, system = Path(folder), self.curves.attrs["system"]
        with settings.writing_to("folder", folder):
            earlier, writers = files_in(folder), files_of({system: self}, without)
        files = {name: write(folder / name) for name, write in writers.items()}
        last = summary({system: self.curves})
        write_tables(folder, {**_described(self), **records.environment()}, last, files)
        if "samples.nc" in earlier - files.keys():
            (folder / "samples.nc").unlink(missing_ok=True)


@checked
def load(folder: str | Path, system: str | None = None, *, trust: bool = False) -> Run:
    """Read the result of `sweep` or `simulate` from a folder.

    Reading runs no code of the folder. Settings are texts; classes are named, and found among this
    package's and those of modules that are imported already.

        run.save(folder / "first")
        same = fedjax_sim.load(folder / "first", "fedavg")
        assert same.curves.equals(run.curves)

    Args:
      folder: A folder that `Run.save` or `fedjax-sim run` wrote.
      system: Name of the system; may be left out if the folder has only one. `load_runs` reads
        those of all systems.
      trust: Whether files that carry no SHA-256 are taken as they are.

    Returns:
      The run: curves, final models, schedules, settings, and samples if they were kept.

    Raises:
      ConfigError: If it is no such folder, or lacks the system.
      InputError: If a file is damaged, of another run than the others, or of another form. The
        sentence names the file.
    """
    runs = load_runs(folder, trust=trust)
    if system is None and len(runs) == 1:
        return next(iter(runs.values()))
    if system not in runs:
        allowed = f"one of {', '.join(runs)}, as in {folder}; load_runs reads them all"
        raise ConfigError("system", system, allowed)
    return runs[system]


@checked
def load_runs(folder: str | Path, *, trust: bool = False) -> dict[str, Run]:
    """Read the runs of all systems from a folder that `fedjax-sim run` or `tune` wrote.

        run.save(folder / "second")
        assert [*fedjax_sim.load_runs(folder / "second")] == ["fedavg"]

    Args:
      folder: The folder.
      trust: As in `load`.

    Returns:
      The runs by name of the system.

    Raises:
      ConfigError: If it is no such folder.
      InputError: As in `load`.
    """
    folder, needed = Path(folder), (CURVES, "models.nc", "timelines.nc", SETTINGS)
    try:
        listed = check_files(folder, *needed, trust=trust)["files"]
        if "samples.nc" in listed:
            check_files(folder, "samples.nc", trust=trust)
        curves, models, timelines = (read_arrays(folder / name) for name in needed[:3])
        samples = read_arrays(folder / "samples.nc") if "samples.nc" in listed else {}
        kept = lifecycle.read_json(folder / SETTINGS, trust=trust)
    except OSError as error:
        names, why = ", ".join(needed), error.strerror or error
        allowed = f"one of a saved run, with {names} and config.json ({why})"
        raise ConfigError("folder", str(folder), allowed) from None
    with _reading(folder / SETTINGS, "settings"):
        kept = kept["systems"]
        containers = {name: kept_settings.read_containers(kept[name]["model"]) for name in kept}
    with _reading(folder, "runs"):
        for name in {*curves, *models, *timelines, *kept}:
            if any(name not in each for each in (curves, models, timelines, kept)) or (
                _coordinates(curves[name], dims := _lane_dims(curves[name]))
                != _coordinates(models[name], dims)
            ):
                raise ConfigError("folder", str(folder), "one whose files are all of one run")
    found = {}
    for name, data in curves.items():
        with _reading(folder / SETTINGS, "settings"):
            hypers = kept_settings.read(kept[name], data["failed"].size)
        with _reading(folder, "runs"):
            found[name] = Run(
                data,
                _tree_of(models[name], containers[name], data),
                _timelines_of(timelines[name]),
                hypers,
                _tree_of(samples[name], containers[name], data) if name in samples else None,
            )
    return found


def lane_labels(curves: "xr.Dataset") -> list[dict[str, Any]]:
    """List the labels of the lanes, in their order: swept settings and the seed, by name.

    Args:
      curves: The curves of a sweep, of some of its lanes, or of one lane.
    """
    names = [str(dim) for dim in curves["failed"].dims]
    if names in (["lane"], []):
        of_lanes = {str(name) for name, each in curves.coords.items() if each.dims == (*names,)}
        names = [str(name) for name in curves.coords if name in of_lanes - {"lane", "ended"}]
        rows: Any = zip(*(np.ravel(curves[name]).tolist() for name in names), strict=True)
    else:
        rows = itertools.product(*(curves[dim].values.tolist() for dim in names))
    names = [name.removesuffix("_setting") for name in names]
    return [dict(zip(names, row, strict=True)) for row in rows]


def join_runs(runs: Sequence[Run[HyperT]]) -> Run[HyperT]:
    """Join the results of the parts of one sweep.

    Args:
      runs: What each part returned, in any order.

    Returns:
      What the whole sweep would have returned.

    Raises:
      ConfigError: If the parts are of different grids, or a lane is missing or there twice.
    """
    curves = join_lanes([run.curves for run in runs])
    order = np.argsort(np.concatenate([run.curves["lane"].values for run in runs]))
    trees = [(run.models, run.samples) for run in runs]
    models, samples = join_lanes_of_trees(trees, order, curves.sizes["eval"])
    timelines = [timeline for run in runs for timeline in run.timelines]
    hypers = [hyper for run in runs for hyper in run.hypers]
    return Run(curves, models, [timelines[i] for i in order], [hypers[i] for i in order], samples)


def join_lanes_of_trees(
    parts: Sequence[tuple[Params, Params]], order: np.ndarray, num_evals: int
) -> tuple[Params, Params]:
    """Put the final models and the samples of all parts together.

    Args:
      parts: Models, leaves `[L, ...]`, and samples, leaves `[L, V + 1, ...]` or None, of each part.
      order: `i64[L]`, the order of the lanes of all parts.
      num_evals: To how many evaluations shorter samples are lengthened.
    """

    def in_order(*leaves: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])[order]

    models = jax.tree.map(in_order, *(models for models, _ in parts))
    samples = jax.tree.map(
        lambda *leaves: in_order(*(lengthen(leaf, num_evals) for leaf in leaves)),
        *(samples for _, samples in parts),
    )
    return models, samples


def files_in(folder: Path) -> set[str]:
    """List the files that a run wrote into a folder, as far as they are still there.

    Returns:
      The names in the list of its config.json; none if that is missing or of another program.
    """
    try:
        listed = lifecycle.read_json(folder / "config.json", trust=True).get("files")
    except (InputError, OSError):
        return set()
    listed = listed if isinstance(listed, dict) else {}
    names = {name for name in listed if isinstance(name, str)}
    if not {"config.json", "summary.json"} <= names:
        return set()
    return {name for name in names if Path(name).name == name and (folder / name).is_file()}


def write_tables(folder: Path, config: Content, summary: Content, files: Mapping[str, str]) -> None:
    """Write config.json, and then summary.json, after the other files of a folder.

    Args:
      config: The content of config.json, to which the list of files is added.
      summary: The content of summary.json.
      files: The SHA-256 of each other file, by its name.

    Raises:
      StorageError: If the disk refuses. Older files are then kept.
    """
    last = lifecycle.seal_json(summary, records.to_json)
    listed = {**files, "config.json": None, "summary.json": hashlib.sha256(last).hexdigest()}
    first = lifecycle.seal_json({**config, "files": listed}, records.to_json)
    for name, content in (("config.json", first), ("summary.json", last)):
        lifecycle.write_whole(folder / name, partial(Path.write_bytes, data=content))


def files_of(
    runs: Mapping[str, Run], without: Collection[str] = ()
) -> dict[str, Callable[[Path], str]]:
    """List the files of runs.

    Args:
      runs: The runs, whole or of some lanes, by system.
      without: Names of settings of which only a description is kept.

    Returns:
      Functions that write a file to the given path and return its SHA-256, by the file's name.

    Raises:
      ConfigError: If another setting has no text.
    """
    kept: dict[str, object] = {}
    groups: dict[str, dict[str, xr.Dataset]] = collections.defaultdict(dict)
    for name, run in runs.items():
        containers = kept_settings.write_containers(_names_of(run))
        kept[name] = kept_settings.write(run.hypers, without) | {"model": containers}
        groups[CURVES][name] = run.curves
        groups["models.nc"][name] = _labelled(run, run.models, ())
        groups["timelines.nc"][name] = _labelled_timelines(run)
        if run.samples is not None:
            groups["samples.nc"][name] = _labelled(run, run.samples, ("eval",))
    files = {name: partial(write_arrays, groups=each) for name, each in groups.items()}
    return {**files, SETTINGS: partial(lifecycle.write_record, content={"systems": kept})}


def write_arrays(path: Path, groups: Mapping[str, "xr.Dataset"]) -> str:
    """Write a netCDF file.

    Args:
      groups: The content, by name of the group.

    Returns:
      The file's SHA-256.

    Raises:
      StorageError: If the disk refuses. An older file is then kept.
    """
    import xarray as xr

    tree = xr.DataTree.from_dict(dict(groups))
    return lifecycle.write_sealed(path, lambda path: tree.to_netcdf(path, engine="h5netcdf"))


def read_arrays(path: Path) -> dict[str, "xr.Dataset"]:
    """Read a netCDF file that was checked: the content by name of the group.

    Raises:
      InputError: If it carried no SHA-256 and is no such file.
      OSError: If it cannot be read.
    """
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            return {str(key): node.to_dataset().load() for key, node in tree.children.items()}
    except Exception as error:  # Of a damaged file HDF5 raises errors of many kinds.
        if isinstance(error, OSError) and error.errno:
            raise
        raise InputError(f"{path} is damaged, or no netCDF file ({error}).") from None


def plain_settings(hypers: Sequence[Any]) -> dict[str, Any]:
    """List settings of lanes as config.json has them: a list of values where they differ."""
    values = {}
    for name in settings.fields(type(hypers[0])):
        found = [settings.value_of(hyper, name) for hyper in hypers]
        known = list(dict.fromkeys(None if x is None else label_of_value(x) for x in found))
        values[name] = known[0] if len(known) == 1 else known
    return values


def _described(run: Run) -> Content:
    """Collect settings and seeds for config.json."""
    system = run.curves.attrs["system"]
    seeds = list(dict.fromkeys(np.ravel(run.curves["seed"].values).tolist()))
    config = {"systems": {system: plain_settings(run.hypers)}, "seeds": seeds}
    if is_part({system: run.curves}):
        lanes = ", ".join(map(str, run.curves["lane"].values.tolist()))
        config["part"] = f"lanes {lanes} of a sweep"
    return config


def check_files(folder: Path, *names: str, trust: bool) -> dict[str, Any]:
    """Check that files of a folder are as they were written, all for one run.

    Args:
      names: Names of files, apart from config.json.
      trust: Whether files that carry no SHA-256 are taken as they are.

    Returns:
      The content of config.json.

    Raises:
      InputError: If one is damaged, or of another run.
      OSError: If one cannot be read.
    """
    config = lifecycle.read_json(folder / "config.json", trust=trust)
    listed = config.get("files")
    if not isinstance(listed, dict):
        raise InputError(f"{folder / 'config.json'} lists no files with their SHA-256.")
    for name in names:
        if lifecycle.check_seal(folder / name, trust=trust) != listed.get(name):
            raise InputError(
                f"{folder / name} is not the file that config.json in its folder lists: it is of "
                "another run, or its writer was killed. Write all files again, or use another "
                "folder."
            )
    return config


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Name the file in errors about its content, which anybody may have written."""
    try:
        yield
    except kept_settings.UnreadableError as error:
        raise InputError(f"{path} {error}.") from None
    except ConfigError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # Whatever else may be written there.
        raise InputError(f"{path} is not of the form in which {what} are kept: {error!r}") from None


def _names_of(run: Run) -> Params:
    """Name each array of a model by its place: the model's containers with names in them."""
    taken = {*run.curves.coords, *run.curves.dims}
    names = list(diagnostics.named_leaves(run.models, taken, alone="model"))
    return jax.tree.unflatten(jax.tree.structure(run.models), names)


def _labelled(run: Run, tree: Params, more_dims: tuple[str, ...]) -> "xr.Dataset":
    """Label the arrays of models. tree: leaves `[L, *more_dims, ...]`, without L for one lane."""
    import xarray as xr

    sizes = [run.curves.sizes[dim] for dim in run.lane_dims]
    dims, data = (*run.lane_dims, *more_dims), {}
    pairs = map(jax.tree.leaves, (_names_of(run), tree))
    for name, leaf in zip(*pairs, strict=True):
        values, dtype = lifecycle.storable(np.asarray(leaf))
        values = values.reshape(*sizes, *values.shape[1:]) if sizes else values
        own = tuple(f"{name}.axis{i}" for i in range(values.ndim - len(dims)))
        data[name] = ((*dims, *own), values, {TYPE: dtype} if dtype else {})
    return xr.Dataset(data, _coordinates(run.curves, dims), {"system": run.curves.attrs["system"]})


def _lane_dims(curves: "xr.Dataset") -> tuple[str, ...]:
    """Return the dimensions of lanes."""
    return tuple(str(dim) for dim in curves["failed"].dims)


def _coordinates(data: "xr.Dataset", dims: tuple[str, ...]) -> dict[str, Any]:
    """Select the labels of some dimensions."""
    return {
        str(name): (each.dims, each.values.tolist())
        for name, each in data.coords.items()
        if set(each.dims) <= set(dims)
    }


def _tree_of(data: "xr.Dataset", names: Params, curves: "xr.Dataset") -> Params:
    """Put models together: leaves `[L, ...]`, without L for one lane."""
    num_dims, num_lanes = curves["failed"].ndim, curves["failed"].size

    def leaf_of(name: str) -> np.ndarray:
        values = data[name].values
        if TYPE in data[name].attrs:
            values = values.view(data[name].attrs[TYPE])
        return values.reshape(num_lanes, *values.shape[num_dims:]) if num_dims else values

    return jax.tree.map(leaf_of, names)


def _labelled_timelines(run: Run) -> "xr.Dataset":
    """Put the schedules one after another. Those with fewer slots are padded."""
    import xarray as xr

    distinct = {id(timeline): timeline for timeline in run.timelines}
    number = {key: i for i, key in enumerate(distinct)}
    each = list(distinct.values())
    row = np.array([number[id(timeline)] for timeline in run.timelines])
    sizes = [run.curves.sizes[dim] for dim in run.lane_dims]
    slots = np.array([timeline.clients.shape[1] for timeline in each])
    data: dict[str, Any] = {
        "row": (run.lane_dims, row.reshape(sizes)),
        "num_ticks": ("timeline", np.array([len(timeline.time) for timeline in each])),
        "num_slots": ("timeline", slots),
        "time": ("tick", np.concatenate([timeline.time for timeline in each])),
    }
    for name in Timeline._fields[1:]:
        leaves = [np.asarray(getattr(timeline, name)) for timeline in each]
        padded = [
            np.pad(leaf, ((0, 0), (0, slots.max() - leaf.shape[1])), mode="edge") for leaf in leaves
        ]
        data[name] = (("tick", "slot"), np.concatenate(padded))
    found = xr.Dataset(data, _coordinates(run.curves, run.lane_dims))
    for name in Timeline._fields:
        found[name].encoding = {"zlib": True, "complevel": 1, "shuffle": True}
    return found


def _timelines_of(data: "xr.Dataset") -> list[Timeline]:
    """Cut the schedules apart again. Lanes of one schedule share the arrays."""
    ends = np.cumsum(data["num_ticks"].values)
    each = []
    for end, num, slots in zip(ends, data["num_ticks"], data["num_slots"].values, strict=True):
        ticks = slice(end - int(num), end)
        of_slots = (data[name].values[ticks, :slots] for name in Timeline._fields[1:])
        each.append(Timeline(data["time"].values[ticks], *of_slots))
    return [each[row] for row in data["row"].values.ravel()]


class LaneWarning(UserWarning):
    """Lanes of a sweep did not learn, or end before something that their settings ask for.

    `failed_at` and `collapsed_at` of the curves say which did not learn.
    """


class DivergedWarning(LaneWarning):
    """In some lanes a metric or a parameter became infinite or NaN."""


class CollapsedWarning(LaneWarning):
    """Some lanes ended at chance: they are no better than the best constant guess."""


KINDS = {"failed_at": DivergedWarning, "collapsed_at": CollapsedWarning}
"""Kinds of warnings by the name of the variable with the evaluation."""
WORDS = {
    "failed_at": "diverged (a number was not finite)",
    "collapsed_at": "ended at chance",
    "stopped_at": "were stopped early, and count with their last values",
}


def warn_of_lanes(curves: "xr.Dataset") -> None:
    """Warn once of all lanes that diverged, and once of all that collapsed.

    The warning points to the line outside of this package that asked for the sweep.

    Args:
      curves: The curves of a sweep.
    """
    for name, kind in KINDS.items():
        if (curves[name].values >= 0).any():
            sentence = sentence_of(curves, name, curves.attrs["system"])
            warnings.warn(sentence, kind, stacklevel=_frames_inside())


def sentence_of(curves: "xr.Dataset", name: str, system: str) -> str:
    """Name the lanes that diverged, collapsed or were stopped, at most `NAMED`, in a sentence.

    Args:
      curves: The curves of a sweep.
      name: The way: one of `WORDS`.
      system: Name of the system.
    """
    at, labels = curves[name].values.ravel(), lane_labels(curves)
    found = np.flatnonzero(at >= 0)
    lanes = [
        ", ".join(f"{label}={value}" for label, value in labels[i].items())
        + f" from evaluation {at[i]} on"
        for i in found[:NAMED]
    ]
    more = f" and {found.size - NAMED} more" if found.size > NAMED else ""
    about = f"{found.size} of {at.size} lanes of {system} {WORDS[name]}"
    return f"{about}: {'; '.join(lanes)}{more}."


def warn_of_late(hypers: Sequence[Any], ticks: Sequence[int]) -> None:
    """Warn of each setting that would take effect only after the end of a lane.

    Args:
      hypers: The settings of lanes.
      ticks: How many ticks each lane has.
    """
    found: dict[str, list[str]] = {}
    for hyper, num in zip(hypers, ticks, strict=True):
        for name, (value, what) in settings.late_of(hyper, num).items():
            sentence = f"{name} is {value}, but the run has {num} ticks: {what} never begins"
            found.setdefault(name, []).append(sentence)
    for sentences in found.values():
        more = f" (in {len(sentences)} of {len(ticks)} lanes)" if len(ticks) > 1 else ""
        warnings.warn(f"{sentences[0]}{more}.", LaneWarning, stacklevel=_frames_inside())


def _frames_inside() -> int:
    """Count the frames from the caller to the first one outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ROOT):
        frame, level = frame.f_back, level + 1
    return level
