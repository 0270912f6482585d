"""The results folder: labelled arrays, a summary, the configuration behind them, pictures.

    results.nc     all curves, one netCDF group per system (they differ in evaluations, swept settings and metrics, so a common
                   dimension would be mostly padding): `xarray.open_datatree(path)["fedavg"]`, or `load(folder).curves["fedavg"]`
    summary.json   final values, see `summary`
    config.json    resolved settings, versions, commit, device
    *.png          pictures
    checkpoint/    only while a run is unfinished

Files are written beside their place and renamed into it, so one that stands there is complete, and an older one is lost only to a
complete newer one. `summary.json` comes last.
"""

import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELD = "results folder"
LEAST_FREE_BYTES = 2**24
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "xarray")


class Results(NamedTuple):
    """What `load` reads."""

    curves: dict[str, xr.Dataset]
    summary: dict[str, Any]
    config: dict[str, Any]


class Folder:
    """A results folder that may be written to: new or empty, with an unfinished run to resume, or to be overwritten.

    Making one only looks; `open` creates it. Raises ConfigError for a file in its place, and for a folder in use that is neither to be
    resumed nor overwritten.
    """

    def __init__(self, path: str | Path, *, resume: bool = False, overwrite: bool = False):
        self.path = Path(path)
        self._overwrite = overwrite
        self._written: list[str] = []
        if resume and overwrite:
            raise ConfigError(
                "resume together with overwrite",
                True,
                "false: a run is either continued or replaced",
            )
        try:
            is_folder, in_use = self.path.is_dir(), self.path.is_dir() and any(self.path.iterdir())
            if self.path.exists() and not is_folder:
                raise ConfigError(FIELD, str(path), "a folder, not a file")
        except OSError as error:
            raise _unwritable(self.path, error) from None
        if resume and not self._identity.is_file():
            raise ConfigError(f"{FIELD} to resume", str(path), "one with an unfinished run")
        if in_use and not resume and not overwrite:
            raise ConfigError(
                FIELD,
                str(path),
                "new or empty, unless an unfinished run in it is resumed or it is overwritten",
            )

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie until `finish`."""
        return self.path / "checkpoint"

    @property
    def _identity(self) -> Path:
        return self.checkpoints / "run.json"

    def check_resumable(self, identity: Mapping[str, Any]) -> None:
        """Raise ConfigError unless the unfinished run has the given identity."""
        try:
            saved = json.loads(self._identity.read_text())
        except (OSError, ValueError):
            raise ConfigError(
                f"{FIELD} to resume", str(self.path), "one with an undamaged checkpoint"
            ) from None
        ours = json.loads(_to_json(identity))
        for name in sorted(saved.keys() | ours.keys()):
            if saved.get(name) != ours.get(name):
                where, theirs, mine = _first_difference(name, saved.get(name), ours.get(name))
                raise ConfigError(
                    f"{where} of the checkpoint in {self.path}",
                    theirs,
                    f"{mine!r}, as in this run, for it to resume",
                )

    def open(self, identity: Mapping[str, Any] | None = None) -> None:
        """Create the folder and try to write to it. identity: what must be equal for a later run to resume this one, if it may be."""
        missing = next(
            (
                p
                for p in [*reversed(self.path.absolute().parents), self.path.absolute()]
                if not p.exists()
            ),
            None,
        )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path).free
            if free < LEAST_FREE_BYTES:
                raise ConfigError(
                    FIELD,
                    str(self.path),
                    f"on a disk with at least {LEAST_FREE_BYTES} bytes free (it has {free})",
                )
            if identity is None:
                self._put(".probe", lambda path: path.write_bytes(bytes(4096)))
                (self.path / ".probe").unlink()
            elif not self._identity.is_file() or self._overwrite:
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                self.checkpoints.mkdir()
                self._put("checkpoint/run.json", lambda path: path.write_text(_to_json(identity)))
        except OSError as error:
            _remove_empty(missing)
            raise _unwritable(self.path, error) from None
        except ConfigError:
            _remove_empty(missing)
            raise

    def withdraw(self) -> None:
        """Remove what `open` made, if nothing has been written since: a run that was refused leaves no trace."""
        if self.checkpoints.is_dir() and [path.name for path in self.checkpoints.iterdir()] == [
            self._identity.name
        ]:
            shutil.rmtree(self.checkpoints)
            with contextlib.suppress(OSError):  # not empty
                self.path.rmdir()

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file; numbers that are not finite become null."""
        self._put(name, lambda path: path.write_text(_to_json(content)))

    def write_arrays(self, name: str, groups: Mapping[str, xr.Dataset]) -> None:
        """Write a netCDF file with a group for each data set."""
        tree = xr.DataTree.from_dict(dict(groups))
        self._put(name, lambda path: tree.to_netcdf(path, engine="h5netcdf"))

    def write_figure(self, name: str, figure: "Figure") -> None:
        """Write a PNG file."""
        self._put(name, lambda path: figure.savefig(path, dpi=160, format="png"))

    def finish(self, config: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write config.json and summary.json, remove checkpoints and what an overwritten run had written besides."""
        files = [*self._written, "config.json", "summary.json"]
        old: list[str] = []
        if self._overwrite:
            with contextlib.suppress(
                OSError, ValueError, KeyError, TypeError
            ):  # not a results folder of ours: nothing to remove
                old = json.loads((self.path / "config.json").read_text())["files"]
        self.write_json("config.json", {**config, "files": files})
        self.write_json("summary.json", summary)
        for name in set(old) - set(files):
            if Path(name).name == name:
                (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _put(self, name: str, write: Callable[[Path], Any]) -> None:
        target = self.path / name
        scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            write(scratch)
            scratch.replace(target)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        finally:
            scratch.unlink(missing_ok=True)
        if target.parent == self.path and not name.startswith("."):
            self._written.append(name)


def save(
    folder: Folder,
    curves: Mapping[str, xr.Dataset],
    config: Mapping[str, Any],
    figures: Mapping[str, "Figure"] | None = None,
) -> dict[str, Any]:
    """Write the curves of `sweep` runs by system, their summary and configuration, and pictures by file name; returns the summary."""
    folder.write_arrays("results.nc", curves)
    for name, figure in (figures or {}).items():
        folder.write_figure(name, figure)
    content = summary(curves)
    folder.finish({**config, **environment()}, content)
    return content


def load(path: str | Path) -> Results:
    """Read a results folder; raises ConfigError if it is none, or unfinished."""
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
    """Final values by system, in the form of summary.json.

    Under a system stand its means over seeds, with standard deviations (of the lanes themselves, divided by their number) for metrics;
    where settings were swept, there stands only `settings`, a list with one such entry for each, and its values under `set`. Numbers
    of ticks, local steps and bits are rounded to whole ones. Failed lanes are counted and left out of metrics; without any other
    lane these are null.
    """
    lanes = sum(data["failed"].size for data in curves.values())
    failed = sum(int(data["failed"].sum()) for data in curves.values())
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
    return {"lanes": lanes, "failed_lanes": failed, "seconds": seconds, "systems": systems}


def settings_of(data: xr.Dataset) -> Iterator[tuple[dict[str, Any], xr.Dataset]]:
    """Go through the swept settings of a system's curves: their values, and the curves with dimensions (seed, eval)."""
    data = data if "seed" in data.dims else data.expand_dims("seed")
    swept = [str(dim) for dim in data["failed"].dims if dim != "seed"]
    for place in itertools.product(*(range(data.sizes[name]) for name in swept)):
        at = dict(zip(swept, place, strict=True))
        yield (
            {name.removesuffix("_setting"): data[name].values[i].item() for name, i in at.items()},
            data.isel(at),
        )


def label(system: str, point: Mapping[str, Any]) -> str:
    """Name a system with the settings that set it apart."""
    shown = {
        name: f"{value:g}" if isinstance(value, float) else getattr(value, "__name__", value)
        for name, value in point.items()
    }
    words = (f"{name}={value}" for name, value in shown.items())
    return " ".join([system, *words])


def metrics_of(data: xr.Dataset) -> list[str]:
    """Names of what was evaluated."""
    return [str(name) for name, values in data.data_vars.items() if "eval" in values.dims]


def _final(lanes: xr.Dataset) -> dict[str, Any]:
    last = lanes.isel(eval=-1)
    good = ~last["failed"].values
    final = {}
    for name in metrics_of(lanes):
        values = last[name].values[good].astype(float)
        is_known = good.any() and bool(np.isfinite(values).all())
        final[name] = (
            {"mean": float(values.mean()), "std": float(values.std())}
            if is_known
            else {"mean": None, "std": None}
        )
    whole = {
        name: round(float(last[name].mean())) for name in ("ticks", "local_steps", "uplink_bits")
    }
    return {"final": final, "virtual_time": float(last["time"].mean()), **whole}


def environment() -> dict[str, Any]:
    """Versions, commit and device, for config.json."""
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
    """The commit of the package's own repository, with "-dirty" if its files differ from it; None if it is in none."""
    here = Path(__file__).parent
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


def _first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """Where two JSON values first differ, and the value of each there."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key):
                return _first_difference(f"{name}.{key}", theirs.get(key), ours.get(key))
    return name, theirs, ours


def _to_json(content: Any) -> str:
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
    return ConfigError(
        FIELD, str(path), f"a folder that can be created and written ({error.strerror or error})"
    )


def _remove_empty(path: Path | None) -> None:
    """Remove a folder that was made in vain, if nothing is in it."""
    if path is not None and path.is_dir() and not any(p.is_file() for p in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)
