"""The results folder: what is in it, how it is written, and how it is read back.

    results.nc     all curves, one netCDF group per system: systems differ in evaluations, swept
                   settings and metrics, so that shared dimensions would be mostly padding;
                   `xarray.open_datatree(path)["fedavg"]`, or `load(folder).curves["fedavg"]`
    models.nc, samples.nc, timelines.nc, settings.pkl
                   the rest of what `sweep` returned; `fedjax_sim.load(folder, "fedavg")` reads all
    summary.json   final values, see `summary`
    config.json    resolved settings, versions, commit, device
    *.png          pictures
    checkpoint/    from which an unfinished run is resumed, and a longer one goes on

Each file is written under another name in its folder and then renamed. A file under its final name
is therefore complete, and an older one is replaced only by a complete newer one. `summary.json`
comes last. One process at a time writes to a folder.
"""

import contextlib
import functools
import importlib.metadata
import itertools
import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fedjax_sim.diagnostics.fairness import summarise_clients
from fedjax_sim.lifecycle import LOCK, FolderLock, remove_scratch, say, write_whole
from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELD = "results folder"
"""What error messages call it."""
UNFINISHED, ENDED = Path("checkpoint/run.json"), Path("checkpoint/ended.json")
"""What must be equal for a later run to resume this one, while it is unfinished and afterwards."""
AXES = {"time": "time", "rounds": "ticks", "steps": "local_steps", "bits": "uplink_bits"}
"""Coordinates against which curves are drawn, by the name that users give them."""
LEAST_FREE_BYTES = 2**24
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray")
"""Packages whose versions config.json records."""


class Results(NamedTuple):
    """The content of a results folder.

    Attributes:
      curves: The curves of `sweep`, by system.
      summary: The content of summary.json.
      config: The content of config.json.
    """

    curves: dict[str, xr.Dataset]
    summary: dict[str, Any]
    config: dict[str, Any]


class Folder:
    """A results folder to write to.

    It is new or empty, or has a run to resume, or is to be overwritten. Making a `Folder` changes
    nothing on the disk; `open` creates the folder, and locks it until `finish` or `withdraw`.
    """

    def __init__(self, path: str | Path, *, resume: bool = False, overwrite: bool = False):
        """Check that the folder may be used.

        Args:
          path: The folder.
          resume: Whether to continue the run in it; a new or empty folder starts one.
          overwrite: Whether to replace what is in it.

        Raises:
          ConfigError: If a file is in its place; if the folder is in use and neither `resume` nor
            `overwrite` is set; if it has no run to resume; if both flags are set.
        """
        self.path = Path(path)
        self._overwrite = overwrite
        self._written: list[str] = []
        self._lock: FolderLock | None = None
        if resume and overwrite:
            raise ConfigError(
                "resume together with overwrite",
                True,
                "false: a run is either continued or replaced",
            )
        try:
            is_folder = self.path.is_dir()
            in_use = is_folder and any(path.name != LOCK for path in self.path.iterdir())
            self._resumes = resume and self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
            if self.path.exists() and not is_folder:
                raise ConfigError(FIELD, str(path), "a folder, not a file")
        except OSError as error:
            raise _unwritable(self.path, error) from None
        if resume and in_use and not self._resumes:
            raise ConfigError(f"{FIELD} to resume", str(path), "one with an unfinished run")
        if in_use and not resume and not overwrite:
            raise ConfigError(
                FIELD,
                str(path),
                "new or empty, unless an unfinished run in it is resumed or it is overwritten",
            )

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / UNFINISHED.parent

    def check_resumable(self, identity: Mapping[str, Any], *, grows: str | None = None) -> bool:
        """Check that the run in the folder is the run that is about to resume it.

        A damaged record of it is reported: every checkpoint has one more of its own.

        Args:
          identity: What must be equal, as it was given to `open`.
          grows: Name of an entry that may have become larger.

        Returns:
          Whether the run in the folder is known to be the same, so that its input was checked.

        Raises:
          ConfigError: If something differs.
        """
        if not self._resumes:
            say(f"{self.path} has no run to resume: starting from the beginning.")
            return False
        ours = json.loads(to_json(identity))
        saved = next(
            (
                known
                for name in (UNFINISHED, ENDED)
                if (known := _read_json(self.path / name)) is not None
            ),
            None,
        )
        if saved is None:
            say(f"{self.path / UNFINISHED} is damaged or missing and is written again.")
            return False
        for name in sorted(saved.keys() | ours.keys()):
            theirs, mine = saved.get(name), ours.get(name)
            if theirs != mine and not (name == grows and theirs < mine):
                place, theirs, mine = first_difference(name, theirs, mine)
                raise ConfigError(
                    f"{place} of the checkpoint in {self.path}",
                    theirs,
                    f"{mine!r}, as in this run, for it to resume",
                )
        return saved == ours

    def open(self, identity: Mapping[str, Any] | None = None) -> None:
        """Create the folder, lock it, and try to write to it.

        Args:
          identity: What must be equal for a later run to resume this one; None if none may.

        Raises:
          ConfigError: If the folder cannot be written to, or the disk is full. Folders that were
            created are removed again.
          InputError: If another process is writing to it.
        """
        path = self.path.absolute()
        missing = next((p for p in [*reversed(path.parents), path] if not p.exists()), None)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path)
            free = shutil.disk_usage(self.path).free
            if free < LEAST_FREE_BYTES:
                raise ConfigError(
                    FIELD,
                    str(self.path),
                    f"on a disk with at least {LEAST_FREE_BYTES} bytes free (it has {free})",
                )
            remove_scratch(self.path)
            if identity is None:
                self._put(".probe", lambda path: path.write_bytes(bytes(4096)))
                (self.path / ".probe").unlink()
            else:
                if not self._resumes:
                    shutil.rmtree(self.checkpoints, ignore_errors=True)
                self.checkpoints.mkdir(exist_ok=True)
                self._put(str(UNFINISHED), lambda path: path.write_text(to_json(identity)))
        except OSError as error:
            self._release()
            _remove_empty(missing)
            raise _unwritable(self.path, error) from None
        except ConfigError:
            self._release()
            _remove_empty(missing)
            raise

    def _release(self) -> None:
        """Let others write to the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def withdraw(self) -> None:
        """Remove what `open` made if nothing has been written since.

        A run that is refused then leaves no trace.
        """
        self._release()
        if self.checkpoints.is_dir() and [path.name for path in self.checkpoints.iterdir()] == [
            UNFINISHED.name
        ]:
            shutil.rmtree(self.checkpoints)
            with contextlib.suppress(OSError):  # raised if the folder is not empty
                self.path.rmdir()

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file.

        Args:
          name: Name of the file.
          content: What to write; numbers that are not finite become null.

        Raises:
          StorageError: If the disk refuses. An older file is then kept. This holds for all files.
        """
        self._put(name, lambda path: path.write_text(to_json(content)))

    def write_arrays(self, name: str, groups: Mapping[str, xr.Dataset]) -> None:
        """Write a netCDF file.

        Args:
          name: Name of the file.
          groups: The content, by name of the group.
        """
        tree = xr.DataTree.from_dict(dict(groups))
        self._put(name, lambda path: tree.to_netcdf(path, engine="h5netcdf"))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file of the given name.

        Args:
          name: Name of the file.
          content: What it is to hold.
        """
        self._put(name, lambda path: path.write_bytes(content))

    def write_figure(self, name: str, figure: "Figure") -> None:
        """Write a figure as a PNG file of the given name.

        Args:
          name: Name of the file.
          figure: A matplotlib figure.
        """
        self._put(name, lambda path: figure.savefig(path, dpi=160, format="png"))

    def finish(
        self, config: Mapping[str, Any], summary: Mapping[str, Any], *, can_go_on: bool = False
    ) -> None:
        """Write config.json and summary.json, then remove checkpoints and files of an older run.

        Only those files of an overwritten run are removed that its config.json lists and that this
        run has not written itself.

        Args:
          config: The content of config.json, to which the list of files is added.
          summary: The content of summary.json.
          can_go_on: Whether checkpoints are kept, for a longer run.
        """
        files = [*self._written, "config.json", "summary.json"]
        old: list[str] = []
        if self._overwrite:
            # Errors mean that the folder did not hold results, so that there is nothing to remove.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                old = json.loads((self.path / "config.json").read_text())["files"]
        self.write_json("config.json", {**config, "files": files})
        self.write_json("summary.json", summary)
        for name in set(old) - set(files):
            if Path(name).name == name:
                (self.path / name).unlink(missing_ok=True)
        if can_go_on:
            (self.path / UNFINISHED).replace(self.path / ENDED)
        else:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        self._release()

    def _put(self, name: str, write: Callable[[Path], Any]) -> None:
        """Write a file, complete or not at all."""
        target = write_whole(self.path / name, write)
        if target.parent == self.path and not name.startswith("."):
            self._written.append(name)


def save(
    folder: Folder,
    curves: Mapping[str, xr.Dataset],
    config: Mapping[str, Any],
    figures: Mapping[str, "Figure"] | None = None,
    *,
    can_go_on: bool = False,
) -> dict[str, Any]:
    """Write everything that belongs to finished runs.

    Args:
      folder: An open results folder.
      curves: The curves of `sweep`, by system.
      config: The content of config.json apart from versions, commit and device.
      figures: Pictures by file name.
      can_go_on: Whether checkpoints are kept, for a longer run.

    Returns:
      The content of summary.json.

    Raises:
      StorageError: If the disk refuses.
    """
    folder.write_arrays("results.nc", curves)
    for name, figure in (figures or {}).items():
        folder.write_figure(name, figure)
    content = summary(curves)
    folder.finish({**config, **environment()}, content, can_go_on=can_go_on)
    return content


def load(path: str | Path) -> Results:
    """Read the results folder of a finished run.

    Args:
      path: The folder.

    Returns:
      Curves, summary and settings of the run.

    Raises:
      ConfigError: If it is no results folder, or its run is unfinished.
    """
    path = Path(path)
    try:
        tables = [json.loads((path / name).read_text()) for name in ("summary.json", "config.json")]
        with xr.open_datatree(path / "results.nc", engine="h5netcdf") as tree:
            curves = {name: node.to_dataset().load() for name, node in tree.children.items()}
    except (OSError, ValueError):
        raise ConfigError(
            FIELD, str(path), "one of a finished run, with results.nc, summary.json and config.json"
        ) from None
    return Results(curves, *tables)


def summary(curves: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Summarise final values by system, in the form of summary.json.

    An entry has the means over seeds of the final metrics, with their standard deviations (of the
    lanes, with divisor n, not of the mean), medians and least values, and the means of virtual
    time, ticks, local steps and bits, the last three rounded to whole numbers. Failed lanes are
    counted, and left out of the metrics, which are null if no other lane is left. Of a metric of
    single clients the mean, the worst decile and the spread over clients are given, as means over
    seeds, see `fedjax_sim.diagnostics.fairness.summarise_clients`.

    Args:
      curves: The curves of `sweep`, by system.

    Lanes that collapsed to chance while finite are counted too, and stay in the metrics.

    Returns:
      A mapping with `lanes`, `failed_lanes`, `collapsed_lanes`, `flagged`, `seconds` and `systems`.
      `flagged` lists the failed, the collapsed and the stopped lanes, see `flagged`. A system has
      one entry or, if settings were swept, a list of entries under `settings`, each with its values
      under `set`.
    """
    lanes = sum(data["failed"].size for data in curves.values())
    failed = sum(int(data["failed"].sum()) for data in curves.values())
    named = flagged(curves)
    seconds = {
        kind: float(sum(data.attrs[f"seconds_{kind}"] for data in curves.values()))
        for kind in ("compile", "run")
    }
    systems = {}
    for name, data in curves.items():
        entries = [
            {"set": point, **_final(lanes)} if point else _final(lanes)
            for point, lanes in settings_of(data)
        ]
        systems[name] = {"settings": entries} if "set" in entries[0] else entries[0]
    return {
        "lanes": lanes,
        "failed_lanes": failed,
        "collapsed_lanes": sum(lane["what"] == "collapsed" for lane in named),
        "flagged": named,
        "seconds": seconds,
        "systems": systems,
    }


def flagged(curves: Mapping[str, xr.Dataset]) -> list[dict[str, Any]]:
    """List the lanes that failed (some number was not finite), collapsed to chance or were stopped.

    Args:
      curves: The curves of `sweep`, by system.

    Returns:
      For each such lane its `system`, the values of swept settings (`set`), its `seed`, `what`
      happened to it ("failed" or "collapsed", or that it was "stopped"), and at which `evaluation`,
      `tick` and `virtual_time` this showed first. For failed lanes also the last finite values of
      metrics whose names begin with "least_", which measure how far a lane was from failing; None
      if there are none.
    """
    found = []
    for system, data in curves.items():
        for point, lanes in settings_of(data):
            for what in ("failed", "collapsed", "stopped"):
                if f"{what}_at" not in lanes:
                    continue
                for i in np.flatnonzero(lanes[f"{what}_at"].values >= 0):
                    lane = lanes.isel(seed=i)
                    at = int(lane[f"{what}_at"])
                    then = lane.isel(eval=at)
                    entry = {"system": system, "set": point, "seed": int(lane["seed"])}
                    entry |= {"what": what, "evaluation": at, "tick": int(then["ticks"])}
                    entry |= {"virtual_time": float(then["time"])}
                    for name in lane if what == "failed" else ():
                        if str(name).startswith("least_"):
                            values = lane[name].values[: at + 1]
                            finite = values[np.isfinite(values)]
                            entry[str(name)] = float(finite[-1]) if finite.size else None
                    found.append(entry)
    return found


def settings_of(data: xr.Dataset) -> Iterator[tuple[dict[str, Any], xr.Dataset]]:
    """Go through the points of a sweep.

    Args:
      data: The curves of one system.

    Yields:
      The values of the swept settings by name, and the curves there, with dimensions (seed, eval).
    """
    data = data if "seed" in data.dims else data.expand_dims("seed")
    swept = [str(dim) for dim in data["failed"].dims if dim != "seed"]
    for place in itertools.product(*(range(data.sizes[name]) for name in swept)):
        at = dict(zip(swept, place, strict=True))
        yield (
            {name.removesuffix("_setting"): data[name].values[i].item() for name, i in at.items()},
            data.isel(at),
        )


def label_of(system: str, point: Mapping[str, Any]) -> str:
    """Name a system together with settings, such as "favano lr=0.5".

    Args:
      system: Name of the system.
      point: Values of settings by name.
    """
    shown = {
        name: f"{value:g}" if isinstance(value, float) else getattr(value, "__name__", value)
        for name, value in point.items()
    }
    return " ".join([system, *(f"{name}={value}" for name, value in shown.items())])


def metrics_of(data: xr.Dataset) -> list[str]:
    """List the metrics of a system's curves that are numbers: the variables along eval."""
    return [name for name, dims in _dimensions(data).items() if not dims]


def client_metrics_of(data: xr.Dataset) -> list[str]:
    """List the metrics with one number per client: the variables along eval and client."""
    return [name for name, dims in _dimensions(data).items() if dims == ("client",)]


def _dimensions(data: xr.Dataset) -> dict[str, tuple[str, ...]]:
    """Find the dimensions of each metric that follow after eval."""
    found = {}
    for name, values in data.data_vars.items():
        dims = [str(dim) for dim in values.dims]
        if "eval" in dims:
            found[str(name)] = tuple(dims[dims.index("eval") + 1 :])
    return found


def _final(lanes: xr.Dataset) -> dict[str, Any]:
    """Summarise the last evaluation of the lanes of one point."""
    last = lanes.isel(eval=-1)
    good = ~last["failed"].values
    final: dict[str, dict[str, float | None]] = {}
    for name in metrics_of(lanes):
        values = last[name].values[good].astype(float)
        is_known = good.any() and bool(np.isfinite(values).all())
        final[name] = {
            of_seeds: float(getattr(np, of_seeds)(values)) if is_known else None
            for of_seeds in ("mean", "std", "median", "min")
        }
    for name in client_metrics_of(lanes):
        is_less = bool(lanes[name].attrs.get("less_is_better", 0))
        values = last[name].values[good].astype(float)
        if not good.any():
            final[name] = dict.fromkeys(("mean", "std", "worst_decile", "spread"))
            continue
        mean, worst, spread = summarise_clients(values, less_is_better=is_less)
        final[name] = {
            "mean": float(mean.mean()),
            "std": float(mean.std()),
            "worst_decile": float(worst.mean()),
            "spread": float(spread.mean()),
        }
    whole = {
        name: round(float(last[name].mean())) for name in ("ticks", "local_steps", "uplink_bits")
    }
    return {"final": final, "virtual_time": float(last["time"].mean()), **whole}


def environment() -> dict[str, Any]:
    """Collect versions, commit and device, for config.json."""
    from fedjax_sim import __version__

    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    device = jax.devices()[0]
    return {
        "versions": {"fedjax_sim": __version__, "python": platform.python_version(), **versions},
        "commit": _commit(),
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": jax.device_count(),
        },
    }


@functools.cache
def _commit() -> str | None:
    """Find the commit of the repository that holds the package; None if no repository does.

    "-dirty" is appended if files differ from the commit.
    """
    here = Path(__file__).parents[1]
    try:
        for command in (
            ["ls-files", "--error-unmatch", "__init__.py"],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            done = subprocess.run(
                ["git", *command], cwd=here, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """Find where two JSON values first differ: the place, and what each has there."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key):
                return first_difference(f"{name}.{key}", theirs.get(key), ours.get(key))
    return name, theirs, ours


def to_json(content: Any) -> str:
    """Write a value as JSON: arrays become lists, functions their names, nan and inf null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(x) for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [plain(x) for x in value]
        if isinstance(value, np.generic | np.ndarray):
            return plain(value.tolist())
        if isinstance(value, float) and not np.isfinite(value):
            return None
        return (
            value
            if value is None or isinstance(value, bool | int | float | str)
            else getattr(value, "__name__", str(value))
        )

    return json.dumps(plain(content), indent=1, allow_nan=False) + "\n"


def _unwritable(path: Path, error: OSError) -> ConfigError:
    """Make the error for a folder that cannot be written to."""
    return ConfigError(
        FIELD, str(path), f"a folder that can be created and written ({error.strerror or error})"
    )


def _remove_empty(path: Path | None) -> None:
    """Remove a folder that was made in vain, unless there are files in it."""
    if path is not None and path.is_dir() and not any(p.is_file() for p in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)
