"""The files of runs: written by `Run.save` and by `fedjax-sim run`, read by `fedjax_sim.load`.

    results.nc     curves
    models.nc      final models, one variable for each array, named by its place in the model
    samples.nc     models of all evaluations, if they were kept
    timelines.nc   schedules, one after another; lanes of one schedule share it
    settings.pkl   each lane's settings, and of what containers its models consist
    config.json    settings, seeds, versions, commit, device, and the names of these files
    summary.json   final values, see `fedjax_sim.engine.summaries.summary`

The first four are netCDF with one group for each system, labelled by the swept settings and the
seed, for any program that reads netCDF: `xarray.open_datatree(path)["fedavg"]`. Settings may be
functions, and models any pytree, so settings.pkl is a pickle. `fedjax-sim run` adds pictures, and
says more in config.json.

Each file is written under another name in its folder and then renamed.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle
import jax
import numpy as np

from fedjax_sim.engine.curves import label_of_value
from fedjax_sim.engine.records import environment, to_json
from fedjax_sim.engine.summaries import is_part, summary
from fedjax_sim.lifecycle import write_whole
from fedjax_sim.settings import ConfigError, fields
from fedjax_sim.types import Timeline

if TYPE_CHECKING:
    import xarray as xr

CURVES, SETTINGS = "results.nc", "settings.pkl"
TYPE = "jax_dtype"
"""Attribute of a variable whose type netCDF does not know, such as bfloat16: its bits are kept."""


class Kept(Protocol):
    """What is kept of a run; see `fedjax_sim.Run`."""

    @property
    def curves(self) -> "xr.Dataset":
        """Labelled curves."""

    @property
    def models(self) -> Any:
        """Final models."""

    @property
    def timelines(self) -> list[Timeline]:
        """Schedules."""

    @property
    def hypers(self) -> list[Any]:
        """Settings."""

    @property
    def samples(self) -> Any:
        """Models of all evaluations, or None."""


def write_files(folder: Path, run: Kept) -> None:
    """Write a run; see `Run.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    system = run.curves.attrs["system"]
    runs = {system: run}
    files = files_of(runs)
    if "samples.nc" in files_in(folder) - {*files}:
        (folder / "samples.nc").unlink()
    config = {**_described(run), **environment(), "files": [*files, "config.json", "summary.json"]}
    content = summary({system: run.curves})
    files["config.json"] = lambda path: path.write_text(to_json(config))
    files["summary.json"] = lambda path: path.write_text(to_json(content))
    for name, write in files.items():
        write_whole(folder / name, write)


def files_in(folder: Path) -> set[str]:
    """List the files that a run wrote into a folder, as far as they are still there.

    Args:
      folder: The folder.

    Returns:
      The names in the list of its config.json; none if that is missing or of another program.
    """
    try:
        listed = json.loads((folder / "config.json").read_text(encoding="utf-8"))["files"]
        is_ours = {"config.json", "summary.json"} <= set(listed)
        here = [name for name in listed if Path(name).name == name] if is_ours else []
        return {name for name in here if (folder / name).is_file()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def files_of(runs: Mapping[str, Kept]) -> dict[str, Callable[[Path], Any]]:
    """List the files with what runs returned.

    Args:
      runs: The runs, whole or of some lanes, by system.

    Returns:
      Functions that write a file of the given path, by the file's name.
    """
    import xarray as xr

    groups = {CURVES: {name: run.curves for name, run in runs.items()}, **_arrays_of(runs)}
    files: dict[str, Callable[[Path], Any]] = {
        name: _writer(xr.DataTree.from_dict(dict(each))) for name, each in groups.items()
    }
    files[SETTINGS] = lambda path: path.write_bytes(_settings_of(runs))
    return files


def _writer(tree: "xr.DataTree") -> Callable[[Path], Any]:
    """Return a function that writes a tree as netCDF."""
    return lambda path: tree.to_netcdf(path, engine="h5netcdf")


def _described(run: Kept) -> dict[str, Any]:
    """Collect settings and seeds for config.json. A setting is a list of values if it differs."""
    system = run.curves.attrs["system"]
    known = {
        name: list(dict.fromkeys(_plain(getattr(hyper, name)) for hyper in run.hypers))
        for name in fields(type(run.hypers[0]))
    }
    values = {name: each[0] if len(each) == 1 else each for name, each in known.items()}
    seeds = list(dict.fromkeys(np.ravel(run.curves["seed"].values).tolist()))
    config = {"systems": {system: values}, "seeds": seeds}
    if is_part({system: run.curves}):
        lanes = ", ".join(map(str, run.curves["lane"].values.tolist()))
        config["part"] = f"lanes {lanes} of a sweep"
    return config


def _plain(value: Any) -> Any:
    """Return a value of a setting as JSON has it."""
    return None if value is None else label_of_value(value)


def read_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Read a folder: the attributes of the runs of all systems, by name of the system.

    Raises:
      ConfigError: If it is no such folder, or its files are of different runs.
    """
    import xarray as xr

    def read(name: str) -> dict[str, xr.Dataset]:
        with xr.open_datatree(folder / name, engine="h5netcdf") as tree:
            return {str(key): node.to_dataset().load() for key, node in tree.children.items()}

    try:
        curves, models, timelines = (read(name) for name in (CURVES, "models.nc", "timelines.nc"))
        samples = read("samples.nc") if (folder / "samples.nc").exists() else {}
        settings = pickle.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError) as error:
        allowed = f"one of a saved run, with results.nc, models.nc, timelines.nc and {SETTINGS}"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError("folder", str(folder), f"{allowed} ({reason})") from None
    except (AttributeError, ImportError, TypeError, pickle.UnpicklingError) as error:
        allowed = f"one whose {SETTINGS} this version and environment can read ({error})"
        raise ConfigError("folder", str(folder), allowed) from None
    for name in {*curves, *models, *timelines, *settings}:
        if any(name not in each for each in (curves, models, timelines, settings)) or (
            len(settings[name]["hypers"]) != curves[name]["failed"].size
            or not _coordinates(curves[name], _lane_dims(curves[name]))
            == _coordinates(models[name], _lane_dims(curves[name]))
        ):
            raise ConfigError("folder", str(folder), "one whose files are all of one run")
    return {
        name: {
            "curves": data,
            "models": _tree_of(models[name], settings[name]["model"], data),
            "timelines": _timelines_of(timelines[name]),
            "hypers": settings[name]["hypers"],
            "samples": (
                _tree_of(samples[name], settings[name]["model"], data) if name in samples else None
            ),
        }
        for name, data in curves.items()
    }


def _arrays_of(runs: Mapping[str, Kept]) -> dict[str, dict[str, "xr.Dataset"]]:
    """Label what runs returned apart from their curves.

    Args:
      runs: The runs by system.

    Returns:
      The content of the other netCDF files by name, by system.
    """
    files: dict[str, dict[str, xr.Dataset]] = {"models.nc": {}, "timelines.nc": {}}
    for name, run in runs.items():
        files["models.nc"][name] = _labelled(run, run.models, ())
        files["timelines.nc"][name] = _labelled_timelines(run)
        if run.samples is not None:
            files.setdefault("samples.nc", {})[name] = _labelled(run, run.samples, ("eval",))
    return files


def _settings_of(runs: Mapping[str, Kept]) -> bytes:
    """Write the content of settings.pkl."""
    content = {
        name: {"hypers": run.hypers, "model": _names_of(run.models)} for name, run in runs.items()
    }
    return cloudpickle.dumps(content)


def _names_of(model: Any) -> Any:
    """Name each array of a model by its place: the model's containers with names in them."""
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    names: dict[str, None] = {}
    for path, _ in paths:
        # HDF5 would make groups of names with slashes.
        name = jax.tree_util.keystr(path, simple=True, separator=".").replace("/", "|") or "model"
        names[name if name not in names else f"{name} ({len(names)})"] = None
    return jax.tree.unflatten(structure, list(names))


def _labelled(run: Kept, tree: Any, more_dims: tuple[str, ...]) -> "xr.Dataset":
    """Label the arrays of models. tree: leaves `[L, *more_dims, ...]`, without L for one lane."""
    import xarray as xr

    sizes = [run.curves.sizes[dim] for dim in _lane_dims(run.curves)]
    dims, data = (*_lane_dims(run.curves), *more_dims), {}
    names = jax.tree.leaves(_names_of(run.models))
    for name, leaf in zip(names, jax.tree.leaves(tree), strict=True):
        values = np.asarray(leaf)
        attributes = {}
        if values.dtype.isbuiltin == 2:  # A type that JAX adds to NumPy's.
            attributes = {TYPE: values.dtype.name}
            values = values.view(f"u{values.dtype.itemsize}")
        values = values.reshape(*sizes, *values.shape[1:]) if sizes else values
        own = tuple(f"{name}.axis{i}" for i in range(values.ndim - len(dims)))
        data[name] = ((*dims, *own), values, attributes)
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


def _tree_of(data: "xr.Dataset", names: Any, curves: "xr.Dataset") -> Any:
    """Put models together: leaves `[L, ...]`, without L for one lane."""
    num_dims = curves["failed"].ndim

    def leaf_of(name: str) -> np.ndarray:
        values = data[name].values
        if TYPE in data[name].attrs:
            values = values.view(data[name].attrs[TYPE])
        return values.reshape(-1, *values.shape[num_dims:]) if num_dims else values

    return jax.tree.map(leaf_of, names)


def _labelled_timelines(run: Kept) -> "xr.Dataset":
    """Put the schedules one after another. Those with fewer slots are padded."""
    import xarray as xr

    distinct = {id(timeline): timeline for timeline in run.timelines}
    number = {key: i for i, key in enumerate(distinct)}
    each = list(distinct.values())
    row = np.array([number[id(timeline)] for timeline in run.timelines])
    sizes = [run.curves.sizes[dim] for dim in _lane_dims(run.curves)]
    slots = np.array([timeline.clients.shape[1] for timeline in each])
    data: dict[str, Any] = {
        "row": (_lane_dims(run.curves), row.reshape(sizes)),
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
    found = xr.Dataset(data, _coordinates(run.curves, _lane_dims(run.curves)))
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
