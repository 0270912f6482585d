"""Checkpoints: a killed run continues from the newest and ends with equal bits.

The folder of a group of lanes holds

    configuration.json        what must be equal for a run to continue this one; written once
    state-TICKS-DIGEST.npz    what lanes carry after so many ticks, and the curves so far
    plan-0-DIGEST.npz         the schedules, so that a resumed run need not draw and plan them again
    result-0-DIGEST.npz       what a finished group returned, in place of the plan

Each file is written under another name and renamed. The name of an array file ends with the
SHA-256 of its content, so any damage shows when it is read. The newest two states are kept: if one
is damaged, the one before is used. One more is kept of the last tick at which every lane was still
running, because a longer run goes on from there.

Deviation: these are NumPy files and not those of orbax-checkpoint. Orbax writes a tree of files
without digests and answers damage with tracebacks of many kinds, so that finding damage, healing
it and saying so would need more code around Orbax than the files themselves need, and loading it
takes a second of every resumed run.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.lifecycle import InputError, remove_scratch, say, write_whole
from fedjax_sim.settings import ConfigError

CONFIGURATION = "configuration.json"
ANY = "state|plan|result"
"""The kinds of array files."""
KINDS = ("metric", "model", "info", "stop")
"""Kinds of arrays that a state holds besides what lanes carry."""
BUDGETS = ("time_budget", "num_ticks")
"""Entries of a configuration that a longer run changes."""
Arrays = dict[str, np.ndarray]


class Saved(NamedTuple):
    """A state that was read.

    Attributes:
      done: Ticks done.
      states: What lanes carry, on the devices.
      curves: Curves so far by kind and name, `[L, V + 1, ...]` or `[L, V]`.
    """

    done: int
    states: Any
    curves: dict[str, Arrays]


def count_lanes(folder: Path) -> int | None:
    """Count the lanes of an unfinished run in a folder; None if there is none, or it is damaged."""
    try:
        return len(json.loads((folder / CONFIGURATION).read_text())["asked"]["seeds"]) or None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a group of lanes, and their folder if nothing else is in it.

    Args:
      folder: The folder, which need not exist.
    """
    found = [*_files_in(folder), *folder.glob(CONFIGURATION)]
    for path in found:
        path.unlink(missing_ok=True)
    remove_scratch(folder)
    if found:
        with contextlib.suppress(OSError):  # raised if it is a link, or not empty
            folder.rmdir()


class Checkpoint:
    """The checkpoints of one group of lanes, in one folder that the caller has locked."""

    def __init__(
        self, folder: Path, configuration: Mapping[str, Any], *, resume: bool, every: float
    ):
        """Describe the checkpoints; nothing is written yet.

        Args:
          folder: Where they are kept.
          configuration: What must be equal for a resumed run to be the same run, as far as it is
            known without planning; becomes JSON.
          resume: Whether to continue; otherwise `open` removes older checkpoints.
          every: Least seconds between two writes.
        """
        self._folder, self._resume = folder.absolute(), resume
        self._asked = json.loads(json.dumps(configuration, sort_keys=True, default=str))
        self._identity = ""
        self._every, self._last = every, time.monotonic()
        self._all_run = 0

    def finished(self) -> Arrays | None:
        """Read what the group returned, if it is finished.

        Returns:
          The arrays given to `finish`; None if the group is not finished, or if it ran for another
          budget.

        Raises:
          ConfigError: If the folder belongs to another run.
        """
        if not self._resume:
            return None
        known = self._read_configuration()
        if known is not None:
            self._compare(known["asked"], self._asked, apart_from=BUDGETS)
        for _, arrays in self._sound("result", _digest_of(self._asked)):
            return arrays
        return None

    def planned(self) -> Arrays | None:
        """Read the plan that was given to `open`; None if there is none, or for another budget."""
        plans = self._sound("plan", _digest_of(self._asked)) if self._resume else iter(())
        return next((arrays for _, arrays in plans), None)

    def decided(self) -> Mapping[str, Any]:
        """Read what planning decided for the run in the folder; empty if none is resumed."""
        known = self._read_configuration() if self._resume else None
        return {} if known is None else known["planned"]

    def shorter_budget(self) -> dict[str, Any] | None:
        """Return the budget in the folder if a longer one is asked for.

        Returns:
          The entries `BUDGETS` of the run in the folder; None if this run does not go on from it.

        Raises:
          ConfigError: If the budget in the folder is longer, or of another kind.
        """
        known = self._read_configuration() if self._resume else None
        if known is None:
            return None
        theirs, ours = (
            {name: each[name] for name in BUDGETS} for each in (known["asked"], self._asked)
        )
        if theirs == ours:
            return None
        for name in BUDGETS:
            if None not in (theirs[name], ours[name]) and ours[name] > theirs[name]:
                return theirs
        self._compare(known["asked"], self._asked)
        return None

    def open(self, planned: Mapping[str, Any], *, all_run: int, plan: Arrays | None = None) -> None:
        """Make the folder, or check that it belongs to the same run.

        Args:
          planned: The rest of the configuration, which planning decides, by name.
          all_run: Ticks of the shortest lane.
          plan: The plan, to be written; None if it was read, or if none shall be written.

        Raises:
          ConfigError: If the folder belongs to another run or cannot be written.
          InputError: If its configuration is damaged and nothing else tells which run it was.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._resume:
                for path in (*self._files(), self._folder / CONFIGURATION):
                    path.unlink(missing_ok=True)
            remove_scratch(self._folder)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise ConfigError("checkpoint", str(self._folder), allowed) from None
        self._identity, self._all_run = _digest_of({**self._asked, **planned}), all_run
        known = self._read_configuration()
        if known is None:
            self._heal_configuration(planned)
        else:
            self._compare({**known["asked"], **known["planned"]}, {**self._asked, **planned})
        if plan is not None:
            self._remove(self._files("plan"))
            self._write("plan", 0, _digest_of(self._asked), plan)

    def _heal_configuration(self, planned: Mapping[str, Any]) -> None:
        """Write a configuration that is missing or damaged, unless states are of another run."""
        where = f"{CONFIGURATION} in {self._folder}"
        if next(self._sound("state", self._identity), None) is not None:
            say(f"{where} was damaged or missing and was written again: the checkpoints fit.")
        elif self._files("state"):
            raise InputError(
                f"{where} is damaged or missing, and no checkpoint there is an undamaged one of "
                "this run: remove the folder to start anew."
            )
        elif (self._folder / CONFIGURATION).exists():
            say(f"{where} is damaged, and no checkpoint was written: starting from the beginning.")
        self._write_configuration(planned)

    def _write_configuration(self, planned: Mapping[str, Any]) -> None:
        content = {"asked": self._asked, "planned": dict(planned)}
        text = json.dumps({"sha256": _digest_of(content), **content}, indent=1)
        write_whole(self._folder / CONFIGURATION, lambda path: path.write_text(text))

    def load(self, states: Any) -> Saved | None:
        """Read the newest undamaged state. Damaged ones are reported.

        Args:
          states: Arrays, or descriptions of arrays, of the shapes and placement of the saved ones.

        Returns:
          The state; None if no state has been written.

        Raises:
          InputError: If all states are damaged.
        """
        leaves, structure = jax.tree.flatten(states)
        for done, arrays in self._sound("state", self._identity):
            placed = [_placed(arrays.pop(f"state:{i}"), leaf) for i, leaf in enumerate(leaves)]
            curves: dict[str, Arrays] = {kind: {} for kind in KINDS}
            for entry, values in arrays.items():
                kind, name = entry.split(":", 1)
                curves[kind][name] = values
            return Saved(done, jax.tree.unflatten(structure, placed), curves)
        if self._resume and self._files("state"):
            raise InputError(
                f"no checkpoint in {self._folder} is undamaged: remove the folder to start anew."
            )
        return None

    def save(
        self,
        done: int,
        states: Any,
        curves: Mapping[str, Mapping[str, np.ndarray]],
        *,
        now: bool = False,
    ) -> None:
        """Write a state if the last one is old enough.

        Args:
          done: Ticks done.
          states: What lanes carry.
          curves: Curves so far, by kind and name.
          now: Whether to write it however old the last one is.

        Raises:
          StorageError: If the disk refuses. Older checkpoints are then kept.
        """
        if time.monotonic() - self._last < self._every and not now:
            return
        arrays = {f"state:{i}": _fetched(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
        for kind, named in curves.items():
            arrays |= {f"{kind}:{name}": values for name, values in named.items()}
        self._write("state", done, self._identity, arrays)
        known = [path for path in self._files("state") if _ticks_of(path) <= done]
        kept = {*known[:2], *self._for_a_longer_run()}
        self._remove(path for path in self._files("state") if path not in kept)
        self._last = time.monotonic()

    def finish(self, arrays: Arrays) -> None:
        """Write what the group returned. Of the states, only the one for a longer run is kept."""
        written = self._write("result", 0, _digest_of(self._asked), arrays)
        kept = {written, *self._for_a_longer_run()}
        self._remove(path for path in self._files() if path not in kept)

    def go_on(
        self,
        longer: "Checkpoint",
        planned: Mapping[str, Any],
        most: int,
        turn: Callable[[int, int, np.ndarray], np.ndarray],
    ) -> None:
        """Turn the folder into that of a longer run, which goes on from here.

        Args:
          longer: The checkpoints of the longer run, in the same folder.
          planned: As in `open`, for the longer run.
          most: The last tick at which every lane was running.
          turn: From ticks done, and the number of a leaf of what lanes carry, and the leaf, to that
            leaf of the longer run.

        Raises:
          ConfigError: If no undamaged state is of that tick or of an earlier one.
        """
        identity = _digest_of({**longer._asked, **planned})
        for done, arrays in self._sound("state", self._identity):
            if done <= most:
                for name in [name for name in arrays if name.startswith("state:")]:
                    arrays[name] = turn(done, int(name.removeprefix("state:")), arrays[name])
                kept = self._write("state", done, identity, arrays)
                break
        else:
            name = next(name for name in BUDGETS if self._asked[name] is not None)
            allowed = (
                f"{self._asked[name]!r}: no checkpoint in {self._folder} is of a tick at which "
                "every lane was running"
            )
            raise ConfigError(name, longer._asked[name], allowed)
        # Killed before this line, the folder is still that of the shorter run; afterwards, the new
        # state is the only one that fits.
        longer._write_configuration(planned)
        self._remove(path for path in self._files() if path != kept)

    def _for_a_longer_run(self) -> list[Path]:
        """Find the newest state up to which every lane was running."""
        return [path for path in self._files("state") if _ticks_of(path) <= self._all_run][:1]

    def _remove(self, paths: Iterable[Path]) -> None:
        """Remove array files: older ones, and newer ones that were damaged."""
        for path in paths:
            path.unlink(missing_ok=True)

    def _files(self, kind: str = ANY) -> list[Path]:
        """List the array files of a kind, the newest first."""
        return _files_in(self._folder, kind)

    def _write(self, kind: str, done: int, identity: str, arrays: Arrays) -> Path:
        """Write an array file. Its content says to which run it belongs, its name its digest."""
        # NumPy's files do not know the types that JAX adds to it, such as bfloat16.
        entries = {
            f"{name}@{values.dtype.name}" if values.dtype.isbuiltin == 2 else name: (
                values.view(f"u{values.dtype.itemsize}") if values.dtype.isbuiltin == 2 else values
            )
            for name, values in arrays.items()
        }

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, allow_pickle=False, identity=np.array(identity), **entries)

        stem = f"{kind}-{done:012d}"
        return write_whole(
            self._folder / stem, write, named=lambda path: f"{stem}-{_digest_of(path)}.npz"
        )

    def _sound(self, kind: str, identity: str) -> Iterator[tuple[int, Arrays]]:
        """Read the undamaged files of a kind that belong to a run, the newest first.

        Damaged ones are reported. Yields their ticks, and their arrays without the identity.
        """
        for path in self._files(kind):
            try:
                reason = "" if path.stem.endswith(_digest_of(path)) else "its digest is another"
            except OSError as error:
                reason = str(error.strerror)
            if reason:
                say(f"{path} is damaged ({reason}); the one before is used if there is one.")
                continue
            with np.load(path) as file:
                if str(file["identity"]) == identity:
                    entries = {name: file[name] for name in file.files if name != "identity"}
                    arrays = {}
                    for entry, values in entries.items():
                        name, at, dtype = entry.partition("@")
                        arrays[name] = values.view(dtype) if at else values
                    yield _ticks_of(path), arrays

    def _read_configuration(self) -> dict[str, Any] | None:
        """Read the configuration; None if it is missing or damaged."""
        try:
            content = json.loads((self._folder / CONFIGURATION).read_text())
            digest = content.pop("sha256")
        except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
            return None
        is_sound = digest == _digest_of(content) and content.keys() == {"asked", "planned"}
        return content if is_sound else None

    def _compare(
        self, old: Mapping[str, Any], new: Mapping[str, Any], apart_from: tuple[str, ...] = ()
    ) -> None:
        """Refuse a folder of another configuration."""
        names = sorted({*old, *new} - {*apart_from})
        changed = ", ".join(name for name in names if old.get(name) != new.get(name))
        if changed:
            allowed = (
                "of the same configuration as this run, which differs in "
                f"{changed}, or removed to start anew"
            )
            raise ConfigError("checkpoint", str(self._folder), allowed)


def _ticks_of(path: Path) -> int:
    """Read the ticks in the name of an array file."""
    return int(path.stem.split("-")[1])


def _files_in(folder: Path, kind: str = ANY) -> list[Path]:
    """List the array files of a kind in a folder, the newest first, and none of other programs."""
    named = re.compile(rf"(?:{kind})-\d{{12,}}-[0-9a-f]+\.npz")
    return sorted(
        (path for path in folder.glob("*.npz") if named.fullmatch(path.name)), reverse=True
    )


def _digest_of(content: Any) -> str:
    """Hash a file, or a value as JSON: 16 hexadecimal digits of SHA-256."""
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fetched(leaf: Any) -> np.ndarray:
    """Fetch an array from the devices. Random keys become words."""
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _placed(values: np.ndarray, like: Any) -> Any:
    """Put an array on the devices of the one that it was fetched from."""
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.device_put(
            jax.random.wrap_key_data(jnp.asarray(values), impl=str(jax.random.key_impl(like))),
            like.sharding,
        )
    return jax.device_put(values, like.sharding)
