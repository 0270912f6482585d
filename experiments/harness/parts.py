"""An experiment in parts: every part runs its share of the lanes of each sweep.

What an experiment does next may depend on what its sweeps returned, so its parts meet in the
results folder. A part runs its lanes of a sweep and keeps them there. It goes on to the next sweep
without the other parts' lanes, until the experiment looks at what a sweep returned that is not
complete: there the part ends, and is run again when the others have run. An experiment that looks
at its sweeps last needs one round; one that tunes a step size first needs two.

In the same way an experiment runs method by method: its only part, 0 of 1, runs the sweeps that are
asked for, and waits for the others.

    out/parts/SWEEP/0-of-2.json     what identifies a sweep whose lanes of a part have run
    out/parts/SWEEP/0-of-2/         those lanes, if the part has any, as `Run.save` writes them
    out/parts/checkpoints/0-of-2/   checkpoints of a part
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedjax_sim.core.lifecycle import read_json, seal_json, write_whole
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.shares import Listed, Part, Unit
from fedjax_sim.launch.parts import FOLDER
from fedjax_sim.results import kept_settings
from fedjax_sim.results.runs import Run, join_runs, load

IDENTITY = "experiment.json"
"""File that says which experiment the folder is of, and in how many parts."""


CHECKPOINTS = "checkpoints"
"""Folder, next to those of the sweeps, with the parts' folders of checkpoints."""


class WaitsError(Exception):
    """An experiment looks at a sweep of which other parts have not run their lanes."""

    def __init__(self, sweep: str, others: str):
        super().__init__(f"{sweep} {others}")


class Pending:
    """Stands for what a sweep returned, or a field of it, until someone looks at it."""

    def __init__(self, error: WaitsError, is_run: bool = True):
        """Take the error that is raised on looking."""
        self._error, self._is_run = error, is_run

    def __getattr__(self, name: str) -> "Pending":
        if self._is_run and name in Run.__dataclass_fields__:
            return Pending(self._error, is_run=False)
        raise self._error

    def _look(self, *_: Any) -> NoReturn:
        raise self._error

    __getitem__ = __array__ = __iter__ = __len__ = __bool__ = __eq__ = __lt__ = __gt__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _look


class ExperimentPart:
    """One part of an experiment, or (for merging) none of them.

    Attributes:
      waits: For which lanes the experiment waits, if a sweep was not complete.
      seen: Names of the sweeps that the experiment has asked for.
    """

    def __init__(
        self, folder: Path, number: int | None, num_parts: int, methods: Sequence[str] = ()
    ):
        """Describe the part.

        Args:
          folder: The experiment's results folder.
          number: Number of the part, from 0; None to run no lanes and only read those of all parts.
          num_parts: Number of parts.
          methods: Parts of names of those sweeps that are run; all if there are none.
        """
        self.folder, self.number, self.num_parts = folder / FOLDER, number, num_parts
        self.methods = methods
        self.seen: list[str] = []
        self.waits: WaitsError | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of the part's checkpoints."""
        return self.folder / CHECKPOINTS / f"{self.number}-of-{self.num_parts}"

    def open(self, identity: Mapping[str, Any]) -> None:
        """Make the folder, or check that it is of the same experiment.

        Args:
          identity: What all parts must have in common.

        Raises:
          ConfigError: If the folder is of another experiment, or cannot be written.
          InputError: If the file that says which it is of is damaged.
        """
        file, ours = self.folder / IDENTITY, {**identity, "parts": self.num_parts}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                _write(file, ours)
            theirs = read_json(file)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise ConfigError("results folder", str(self.folder.parent), allowed) from None
        for name, value in ours.items():
            # JSON has lists alone.
            if theirs.get(name) != (list(value) if isinstance(value, tuple) else value):
                allowed = f"{theirs.get(name)!r}, as of the other parts in {self.folder}"
                raise ConfigError(name, value, allowed)

    def say(self, words: str) -> None:
        """Print how far the part is, and keep it where a launcher looks."""
        print(words, flush=True)
        file = self.checkpoints.with_name(f"{self.checkpoints.name}.progress")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, lambda path: path.write_text(words, encoding="utf-8"), lasts=False)

    def files(self) -> set[Path]:
        """List the files that say which lanes have run."""
        return set(self.folder.glob("*/*-of-*.json"))

    def of_sweep(self, name: str) -> "SweepShare":
        """Return the part's share of the next sweep.

        Args:
          name: The sweep's name, different for every sweep of the experiment.
        """
        self.seen.append(name)
        return SweepShare(self, name, len(self.seen) - 1)


class SweepShare:
    """Decides which lanes of a sweep a part runs, and waits for the others; see `Sharing`."""

    def __init__(self, part: ExperimentPart, name: str, turn: int):
        """Describe the share.

        Args:
          part: The part.
          name: Name of the sweep.
          turn: Number of the sweep. Sweeps of few lanes begin with another part each.
        """
        self._part, self._name, self._turn = part, name, turn

    def run(self, sweep: Listed, run_lanes: Callable[[Collection[int]], Run]) -> Run:
        """Run the part's lanes and keep them; return the whole sweep, or what stands for it."""
        asked = sweep.identity()
        found = self.find(asked)
        if found is not None:
            return found
        assert self._part.number is not None
        kept_settings.write([lane.hyper for lane in sweep.lanes])
        file, lanes = self._file(self._part.number), self._choose(sweep.units())
        if lanes:
            run_lanes(lanes).save(file.with_suffix(""))
        _write(file, {"asked": _plain(asked), "has_lanes": bool(lanes)})
        self._part.say(f"{self._name}: {len(lanes)} lanes have run")
        found = self.find(asked)
        assert found is not None
        return found

    def find(self, asked: Mapping[str, Any]) -> Run | None:
        """Return the whole sweep if all parts have run, None if it is this part's turn.

        Args:
          asked: What identifies the sweep.

        Raises:
          ConfigError: If lanes of another sweep are in its place.
        """
        files = [self._file(number) for number in range(self._part.num_parts)]
        missing = [number for number, file in enumerate(files) if not file.exists()]
        for file in files:
            if file.exists():
                self._check(file, asked)
        if not missing:
            ran = [file.with_suffix("") for file in files if read_json(file)["has_lanes"]]
            return join_runs([load(folder) for folder in ran])
        methods = self._part.methods
        is_asked_for = not methods or any(method in self._name for method in methods)
        if self._part.number in missing and is_asked_for:
            return None
        names = ", ".join(f"{number}/{self._part.num_parts}" for number in missing)
        others = f"waits for parts {names}" if is_asked_for else "has not been asked for"
        self._part.waits = WaitsError(self._name, others)
        return Pending(self._part.waits)  # type: ignore[return-value]

    def _choose(self, units: Sequence[Unit[int]]) -> list[int]:
        """Return the lanes of the part; none if there are fewer lanes than parts."""
        assert self._part.number is not None
        num_lanes = sum(len(unit.lanes) for unit in units)
        number = (self._part.number - self._turn) % self._part.num_parts
        num_parts = min(self._part.num_parts, num_lanes)
        return Part(number, num_parts).choose(units) if number < num_parts else []

    def _check(self, file: Path, asked: Mapping[str, Any]) -> None:
        """Check that lanes are of the sweep that is asked for."""
        known, ours = read_json(file)["asked"], _plain(asked)
        names = sorted({*known, *ours})
        changed = ", ".join(name for name in names if known.get(name) != ours.get(name))
        if changed:
            allowed = (
                f"of the same sweep as in this run, which differs in {changed}, or removed "
                "to run them again"
            )
            raise ConfigError(f"file with kept lanes of {self._name}", str(file), allowed)

    def _file(self, number: int) -> Path:
        """Return the file that says which lanes of a part have run."""
        name = self._name.replace("/", " of ")
        return self._part.folder / name / f"{number}-of-{self._part.num_parts}.json"


def read_identity(out: Path) -> tuple[str, int, dict[str, Any]]:
    """Find the experiment to which a folder's parts belong.

    Args:
      out: The results folder.

    Returns:
      The experiment's name, the number of parts, and what else all parts have in common.

    Raises:
      ConfigError: If there are no parts in the folder.
      InputError: If the file that says so is damaged.
    """
    try:
        identity = read_json(out / FOLDER / IDENTITY)
    except OSError:
        raise ConfigError("folder to merge", str(out), "one of runs with --part") from None
    return identity.pop("experiment"), identity.pop("parts"), identity


def _plain(asked: Mapping[str, Any]) -> Any:
    """Return what identifies a sweep as JSON has it."""
    return json.loads(json.dumps(asked, default=str))


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON to a file, whole, in a folder that other parts may be making."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = seal_json(content)
    write_whole(file, lambda scratch: scratch.write_bytes(text))
