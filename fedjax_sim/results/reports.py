"""The results folder: its files, and how they are written and read.

    results.nc     all curves, one netCDF group per system: systems differ in evaluations, swept
                   settings and metrics, so that shared dimensions would be mostly padding;
                   `xarray.open_datatree(path)["fedavg"]`, or `load(folder).curves["fedavg"]`
    models.nc, samples.nc, timelines.nc, settings.json
                   the rest of what `sweep` returned; `fedjax_sim.load(folder, "fedavg")` reads all
    summary.json   final values, see `fedjax_sim.results.summaries.summary`
    config.json    resolved settings, versions, commit, device, and the SHA-256 of all other files
    *.png          pictures
    checkpoint/    from which an unfinished run is resumed

Each file is written under another name in its folder and then renamed. A file under its final name
is therefore complete, and an older one is replaced only by a complete newer one. Arrays and tables
end with their SHA-256 and are checked when they are read, see `fedjax_sim.core.lifecycle`.
`summary.json` comes last. One process at a time writes to a folder.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xarray as xr

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results import runs as run_files
from fedjax_sim.results.records import environment, to_json
from fedjax_sim.results.runs import Content, Run
from fedjax_sim.results.summaries import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELD = "results folder"
"""Name of the folder in error messages."""
UNFINISHED, ENDED = Path("checkpoint/run.json"), Path("checkpoint/ended.json")
"""Identity of a run, which one that resumes it must share: while it is unfinished, and later."""
RECORDS = {UNFINISHED.name, ENDED.name}
"""One of these is in a folder of checkpoints that a run made."""
AXES = {"time": "time", "rounds": "ticks", "steps": "local_steps", "bits": "uplink_bits"}
"""Coordinates that all curves have, by the name that users give them."""
ALL_AXES = AXES | {"energy": "energy"}
"""With those that curves have if a table of clients says it."""
PICTURES = ("png", "pdf", "svg")
"""Kinds of pictures."""
SUFFIXES = {".nc", ".json", ".csv", ".md", ".tex", ".sh", *(f".{kind}" for kind in PICTURES)}
"""Suffixes of the files that are written."""
DPI = 160
"""Pixels of an inch of a picture."""
FORMS: dict[str, Callable[[object], bool]] = {
    "systems": lambda value: isinstance(value, dict),
    "seeds": lambda value: isinstance(value, list),
    "dataset": lambda value: isinstance(value, dict) and "name" in value,
    "partition": lambda value: isinstance(value, dict) and "name" in value,
    "model": lambda value: isinstance(value, str),
    "part": lambda value: isinstance(value, str),
    "commit": lambda value: isinstance(value, str | None),
    "device": lambda value: (
        isinstance(value, dict) and all(isinstance(each, str | int) for each in value.values())
    ),
}
"""Forms of those entries of config.json that are read again when parts are merged."""
LEAST_FREE_BYTES = 2**24


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


@settings.checked
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
            `overwrite` is set; if it has no run to resume; if both flags are set; if it is to be
            overwritten and has a folder of checkpoints that is not that of a run; if a folder has
            the name of a file of results.
        """
        self.path = Path(path)
        self._written: dict[str, str] = {}
        self._identity: Content | None = None
        self._adds_record = False
        self._lock: lifecycle.FolderLock | None = None
        if resume and overwrite:
            allowed = "false: a run is either continued or replaced"
            raise ConfigError("resume together with overwrite", True, allowed)
        with settings.writing_to(FIELD, self.path, make=False):
            found = [*self.path.iterdir()] if self.path.is_dir() else []
            in_use = any(each.name != lifecycle.LOCK for each in found)
            self._resumes = resume and self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(FIELD, str(path), "a folder, not a file")
            for each in found:
                if each.suffix in SUFFIXES and each.is_dir():
                    raise ConfigError(FIELD, str(path), f"one in which {each.name} is a file")
            self._replaced = run_files.files_in(self.path) if overwrite or self._resumes else set()
        if resume and in_use and not self._resumes:
            raise ConfigError(f"{FIELD} to resume", str(path), "one with an unfinished run")
        if in_use and not resume and not overwrite:
            allowed = "new or empty, unless an unfinished run in it is resumed or it is overwritten"
            raise ConfigError(FIELD, str(path), allowed)
        if in_use and overwrite and self.checkpoints.exists() and not self._has_checkpoints():
            raise ConfigError(
                f"{self.checkpoints.name} in the {FIELD} to overwrite",
                str(self.checkpoints),
                f"absent, or made by a run, with {UNFINISHED.name} or {ENDED.name} in it",
            )

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / UNFINISHED.parent

    def check_resumable(self, identity: Content) -> bool:
        """Check that the run in the folder is the run that is about to resume it.

        If the record is damaged, this is reported; each checkpoint has a copy.

        Args:
          identity: What must be equal, as it was given to `open`.

        Returns:
          Whether the run in the folder is known to be the same, so that its input was checked.

        Raises:
          ConfigError: If something differs.
        """
        if not self._resumes:
            lifecycle.say(f"{self.path} has no run to resume: starting from the beginning.")
            return False
        ours = json.loads(to_json(identity))
        saved = self.recorded()
        if saved is None:
            lifecycle.say(f"{self.path / UNFINISHED} is damaged or missing and is written again.")
            return False
        if (found := first_difference(saved, ours)) is not None:
            place, theirs, mine = found
            allowed = f"{mine!r}, as in this run, for it to resume"
            raise ConfigError(f"{place} of the checkpoint in {self.path}", theirs, allowed)
        return saved == ours

    def recorded(self) -> dict[str, Any] | None:
        """Read the identity that the folder's run gave to `open`; None if missing or damaged."""
        found = (lifecycle.read_record(self.path / name) for name in (UNFINISHED, ENDED))
        return next((known for known in found if known is not None), None)

    def open(self, identity: Content | None = None) -> None:
        """Create the folder and lock it, by a file in it.

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
            with settings.writing_to(FIELD, self.path):
                self._lock = lifecycle.FolderLock(self.path)
                if (free := shutil.disk_usage(self.path).free) < LEAST_FREE_BYTES:
                    allowed = f"on a disk with at least {LEAST_FREE_BYTES} bytes free"
                    raise ConfigError(FIELD, str(self.path), f"{allowed} (it has {free})")
                lifecycle.remove_scratch(self.path)
                if identity is not None:
                    self._identity = identity
                    if not self._resumes:
                        self._remove_checkpoints()
                    self.checkpoints.mkdir(exist_ok=True)
                    self._adds_record = not (self.path / UNFINISHED).exists()
                    self._write_identity(self.recorded() or identity)
        except ConfigError:
            self._release()
            if missing is not None and not any(each.is_file() for each in missing.rglob("*")):
                shutil.rmtree(missing, ignore_errors=True)
            raise

    def _has_checkpoints(self) -> bool:
        """Tell whether the folder of checkpoints is that of a run, or empty."""
        found = {path.name for path in self.checkpoints.iterdir()}
        return not found or bool(found & RECORDS)

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of a run, if there are any, and then the record of the run.

        A process that is killed in between leaves a folder that is still known to be that of a run.
        If the folder is a link, it stays, and only its content is removed.
        """
        if not self.checkpoints.is_dir() or not self._has_checkpoints():
            return
        for path in sorted(self.checkpoints.iterdir(), key=lambda path: path.name in RECORDS):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if not self.checkpoints.is_symlink():
            self.checkpoints.rmdir()

    def _release(self) -> None:
        """Let others write to the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def withdraw(self) -> None:
        """Remove the folder that `open` made if nothing has been written since.

        A run that is refused then leaves no trace. What was there before `open` stays.
        """
        if self._lock is None:
            return
        if self._resumes and self._adds_record:
            (self.path / UNFINISHED).unlink(missing_ok=True)
        self._release()
        if self._resumes or not self.checkpoints.is_dir():
            return
        files = (path for path in self.checkpoints.rglob("*") if not path.is_dir())
        if {path.name for path in files} <= {UNFINISHED.name}:
            shutil.rmtree(self.checkpoints)
            with contextlib.suppress(OSError):  # raised if the folder is not empty
                self.path.rmdir()

    def _write_identity(self, identity: Content) -> None:
        """Record to which run the checkpoints belong."""
        lifecycle.write_record(self.path / UNFINISHED, json.loads(to_json(identity)))

    def write_json(self, name: str, content: object) -> None:
        """Write a JSON file.

        Args:
          name: Name of the file.
          content: What to write; numbers that are not finite become null.

        Raises:
          StorageError: If the disk refuses. An older file is then kept. This holds for all files.
        """
        text = to_json(content).encode()
        if isinstance(content, Mapping):
            text = lifecycle.seal_json(content, to_json)
        self._put(name, lambda path: path.write_bytes(text))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file.

        Args:
          name: Name of the file.
          text: The content.
        """
        self._put(name, lambda path: path.write_bytes(text.encode()))

    def write_arrays(self, name: str, groups: Mapping[str, xr.Dataset]) -> None:
        """Write a netCDF file.

        Args:
          name: Name of the file.
          groups: The content, by name of the group.
        """
        self._written[name] = run_files.write_arrays(self.path / name, groups)

    def write_runs(self, runs: Mapping[str, Run]) -> None:
        """Write runs, for `fedjax_sim.load`.

        Args:
          runs: The runs, whole or of some lanes, by system.
        """
        for name, write in run_files.files_of(runs).items():
            self._written[name] = write(self.path / name)

    def write_figure(self, name: str, figure: "Figure") -> None:
        """Write a figure.

        Args:
          name: Name of the file, which ends with its kind: one of `PICTURES`.
          figure: A matplotlib figure.
        """
        self._put(name, lambda path: write_picture(path, figure, name))

    def finish(self, config: Content, summary: Content, *, can_go_on: bool = False) -> None:
        """Remove files of an older run, write config.json and summary.json, remove checkpoints.

        Only those files of an overwritten run are removed that its config.json lists and that this
        run has not written itself; a config.json of another program removes nothing.

        Args:
          config: The content of config.json, to which the list of files is added.
          summary: The content of summary.json.
          can_go_on: Whether they stay, so that the run can be resumed once more.
        """
        # Before their list is replaced: a run that is killed here is resumed, and reads it again.
        for name in self._replaced - {*self._written, "config.json", "summary.json"}:
            (self.path / name).unlink(missing_ok=True)
        run_files.write_tables(self.path, config, summary, self._written)
        if can_go_on:
            assert self._identity is not None
            self._write_identity(self._identity)
            (self.path / UNFINISHED).replace(self.path / ENDED)
        else:
            with contextlib.suppress(OSError):
                self._remove_checkpoints()
        self._release()

    def _put(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file, complete or not at all."""
        target = self.path / name
        lifecycle.write_whole(target, write)
        if target.parent == self.path and not name.startswith("."):
            self._written[name] = lifecycle.digest_of(target)


def write_picture(path: Path, figure: "Figure", name: str) -> None:
    """Write a figure to a path, in the kind with which its name ends."""
    figure.savefig(path, dpi=DPI, format=Path(name).suffix[1:])


@settings.checked
def save(
    folder: Folder,
    curves: Mapping[str, xr.Dataset],
    config: Content,
    figures: Mapping[str, "Figure"] | None = None,
    *,
    runs: Mapping[str, Run] | None = None,
    can_go_on: bool = False,
) -> dict[str, Any]:
    """Write everything that belongs to finished runs.

    Args:
      folder: An open results folder.
      curves: The curves of `sweep`, by system.
      config: The content of config.json. Versions, commit and device are added if they are not
        in it.
      figures: Pictures by file name.
      runs: The runs, whole or of some lanes, by system, to keep their models, samples, schedules
        and settings too.
      can_go_on: Whether they stay, so that the run can be resumed once more.

    Returns:
      The content of summary.json.

    Raises:
      StorageError: If the disk refuses.
    """
    if runs is None:
        folder.write_arrays("results.nc", curves)
    else:
        folder.write_runs(runs)
    for name, figure in (figures or {}).items():
        folder.write_figure(name, figure)
    content = summary(curves)
    folder.finish({**config, **environment(), **config}, content, can_go_on=can_go_on)
    return content


@settings.checked
def load(path: str | Path, *, trust: bool = False) -> Results:
    """Read the results folder of a finished run.

    Args:
      path: The folder.
      trust: Whether files that carry no SHA-256, such as those of other programs, are taken as they
        are.

    Returns:
      Curves, summary and settings of the run.

    Raises:
      ConfigError: If it is no results folder, or its run is unfinished.
      InputError: If a file is damaged, or is of another run than the others.
    """
    path = Path(path)
    try:
        config = run_files.check_files(path, "summary.json", run_files.CURVES, trust=trust)
        for name, is_form in FORMS.items() if "part" in config else ():
            if name in config and not is_form(config[name]):
                field = f"{name} in {path / 'config.json'}"
                raise ConfigError(field, config[name], "as a run writes it")
        curves = run_files.read_arrays(path / run_files.CURVES)
        return Results(curves, lifecycle.read_json(path / "summary.json", trust=trust), config)
    except OSError:
        allowed = "one of a finished run, with results.nc, summary.json and config.json"
        raise ConfigError(FIELD, str(path), allowed) from None


def first_difference(
    theirs: object, ours: object, name: str = ""
) -> tuple[str, object, object] | None:
    """Find the first place where two JSON values differ, and both values there."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        places = {key: f"{name}.{key}".lstrip(".") for key in sorted(theirs.keys() | ours.keys())}
        found = (first_difference(theirs.get(k), ours.get(k), at) for k, at in places.items())
        return next((each for each in found if each is not None), None)
    return None if theirs == ours else (name, theirs, ours)
