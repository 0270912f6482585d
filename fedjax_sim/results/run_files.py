"""The files of runs: written by `Run.save` and by `fedjax-sim run`, read by `fedjax_sim.load`.

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
see `core.lifecycle`, and config.json has those of all others: files of different runs,
such as those of a writer that was killed while it replaced an older run, are not read as one run.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import jax
import numpy as np

from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import ConfigError, fields, value_of, writing_to
from fedjax_sim.core.types import HyperT, Params, Timeline
from fedjax_sim.results import kept_settings
from fedjax_sim.results.curves import label_of_value
from fedjax_sim.results.diagnostics.samples import named_leaves
from fedjax_sim.results.records import environment, to_json
from fedjax_sim.results.store import storable
from fedjax_sim.results.summaries import is_part, summary

if TYPE_CHECKING:
    import xarray as xr


Content: TypeAlias = Mapping[str, object]
"""The content of a JSON file."""
CURVES, SETTINGS = "results.nc", "settings.json"


TYPE = "jax_dtype"
"""Attribute of a variable of a type that netCDF lacks, such as bfloat16: its bits are kept."""


@dataclasses.dataclass(frozen=True)
class Kept(Generic[HyperT]):
    """The parts of a run that are saved. `fedjax_sim.Run` describes them."""

    curves: "xr.Dataset"
    models: Params
    timelines: list[Timeline]
    hypers: list[HyperT]
    samples: Params | None = None

    @property
    def lane_dims(self) -> tuple[str, ...]:
        """The dimensions of lanes: swept settings, then the seed; none for `simulate`."""
        return _lane_dims(self.curves)


def write_files(folder: Path, run: Kept, without: Collection[str] = ()) -> None:
    """Write a run; see `Run.save`."""
    with writing_to("folder", folder):
        pass
    system = run.curves.attrs["system"]
    earlier = files_in(folder)
    writers = files_of({system: run}, without)
    files = {name: write(folder / name) for name, write in writers.items()}
    write_tables(folder, {**_described(run), **environment()}, summary({system: run.curves}), files)
    if "samples.nc" in earlier - files.keys():
        (folder / "samples.nc").unlink(missing_ok=True)


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
    last = lifecycle.seal_json(summary, to_json)
    listed = {**files, "config.json": None, "summary.json": hashlib.sha256(last).hexdigest()}
    first = lifecycle.seal_json({**config, "files": listed}, to_json)
    for name, content in (("config.json", first), ("summary.json", last)):
        lifecycle.write_whole(folder / name, partial(Path.write_bytes, data=content))


def files_of(
    runs: Mapping[str, Kept], without: Collection[str] = ()
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
    settings = {
        name: {
            **kept_settings.write(run.hypers, without),
            "model": kept_settings.write_containers(_names_of(run)),
        }
        for name, run in runs.items()
    }
    groups: dict[str, dict[str, xr.Dataset]] = {CURVES: {}, "models.nc": {}, "timelines.nc": {}}
    for name, run in runs.items():
        groups[CURVES][name] = run.curves
        groups["models.nc"][name] = _labelled(run, run.models, ())
        groups["timelines.nc"][name] = _labelled_timelines(run)
        if run.samples is not None:
            groups.setdefault("samples.nc", {})[name] = _labelled(run, run.samples, ("eval",))
    files = {name: partial(write_arrays, groups=each) for name, each in groups.items()}
    return {**files, SETTINGS: partial(lifecycle.write_record, content={"systems": settings})}


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


def _described(run: Kept) -> Content:
    """Collect settings and seeds for config.json. A setting is a list of values if it differs."""
    system = run.curves.attrs["system"]
    values = {}
    for name in fields(type(run.hypers[0])):
        found = [value_of(hyper, name) for hyper in run.hypers]
        known = list(dict.fromkeys(None if x is None else label_of_value(x) for x in found))
        values[name] = known[0] if len(known) == 1 else known
    seeds = list(dict.fromkeys(np.ravel(run.curves["seed"].values).tolist()))
    config = {"systems": {system: values}, "seeds": seeds}
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


def read_files(folder: Path, *, trust: bool) -> dict[str, Kept]:
    """Read a folder: the runs of all systems, by name of the system.

    Args:
      trust: Whether files that carry no SHA-256 are taken as they are.

    Raises:
      ConfigError: If it is no such folder, or its files are of different runs.
      InputError: If a file is damaged, or of another form.
    """
    needed = CURVES, "models.nc", "timelines.nc", SETTINGS
    try:
        listed = check_files(folder, *needed, trust=trust)["files"]
        if "samples.nc" in listed:
            check_files(folder, "samples.nc", trust=trust)
        curves, models, timelines = (read_arrays(folder / name) for name in needed[:3])
        samples = read_arrays(folder / "samples.nc") if "samples.nc" in listed else {}
        settings = lifecycle.read_json(folder / SETTINGS, trust=trust)
    except OSError as error:
        allowed = (
            f"one of a saved run, with {CURVES}, models.nc, timelines.nc, {SETTINGS} and "
            f"config.json ({error.strerror or error})"
        )
        raise ConfigError("folder", str(folder), allowed) from None
    with _reading(folder / SETTINGS, "settings"):
        kept = settings["systems"]
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
            found[name] = Kept(
                data,
                _tree_of(models[name], containers[name], data),
                _timelines_of(timelines[name]),
                hypers,
                _tree_of(samples[name], containers[name], data) if name in samples else None,
            )
    return found


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


def _names_of(run: Kept) -> Params:
    """Name each array of a model by its place: the model's containers with names in them."""
    taken = {*run.curves.coords, *run.curves.dims}
    names = list(named_leaves(run.models, taken, alone="model"))
    return jax.tree.unflatten(jax.tree.structure(run.models), names)


def _labelled(run: Kept, tree: Params, more_dims: tuple[str, ...]) -> "xr.Dataset":
    """Label the arrays of models. tree: leaves `[L, *more_dims, ...]`, without L for one lane."""
    import xarray as xr

    sizes = [run.curves.sizes[dim] for dim in run.lane_dims]
    dims, data = (*run.lane_dims, *more_dims), {}
    names = jax.tree.leaves(_names_of(run))
    for name, leaf in zip(names, jax.tree.leaves(tree), strict=True):
        values, dtype = storable(np.asarray(leaf))
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


def _labelled_timelines(run: Kept) -> "xr.Dataset":
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
