"""Checkpoints: a killed run continues from the newest and ends with equal bits.

The folder of a group of lanes holds

    configuration.json        what must be equal for a run to continue this one; written once
    state-TICKS.npz           what lanes carry after so many ticks, and the curves so far
    drawn-0.npz               the timelines, so that a resumed run need not draw them again
    result-0.npz              what a finished group's replay returned

A run goes on from a checkpoint, and a finished one returns its result, only if nothing has changed
that the result depends on: the versions of this package and of JAX, the settings and data, and the
digests of the programs (`Replay.digests`, `timeline_digest`) and of the schedules.

Each file is written under another name and renamed, and ends with its SHA-256, so that any damage
shows when it is read. The newest two states are kept: if one is damaged, the one before is used.

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, fields, value_of, writing_to
from fedjax_sim.core.types import BUDGETS, Params, System, Timeline
from fedjax_sim.engine.planning.drawing import timeline_digest
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.engine.program.replay import Carry
from fedjax_sim.engine.request import ANY_JAX, Checkpoints, Options
from fedjax_sim.results import records
from fedjax_sim.results.curves import Curves

CONFIGURATION = "configuration.json"


ANY = "state|drawn|result"
"""The kinds of array files."""


WORK = 9.0
"""Least seconds of work between two writes for each second that a write takes."""


KINDS = ("metric", "model", "info", "stop")
"""Kinds of arrays that a state holds besides the carried ones."""


TIMELINE = "program of the schedule"
"""Entry with the digest of the program that draws timelines."""


TEXTS = ("program", TIMELINE)
"""Entries that another version of JAX may change although the code is the same."""


DIGESTS = ("problems", "start", "schedule", *TEXTS)
"""Entries of digests. Of others both values are shown where a resumed run differs."""


Saved = tuple[int, Carry, dict[str, records.Arrays]]
"""A state that was read: ticks done, carries on the devices, and the curves so far by kind and
name, `[L, V + 1, ...]` or `[L, V]`."""


def asked_of(system: System, group: list[Lane], options: Options) -> dict[str, object]:
    """Collect every input that affects the results of lanes, apart from the program itself."""
    distinct = {id(lane.problem): lane.problem for lane in group}
    problems = {key: _digest_of_tree(problem) for key, problem in distinct.items()}
    configuration = {
        "versions": records.versions(),
        "system": system.name,
        TIMELINE: [timeline_digest(system, each[0].hyper) for each in groups_of(group)],
        "overshoot": system.overshoot,
        "seeds": [lane.seed for lane in group],
        "settings": [
            {name: records.text_of(value_of(lane.hyper, name)) for name in fields(type(lane.hyper))}
            for lane in group
        ],
        "problems": [problems[id(lane.problem)] for lane in group],
        **dict.fromkeys(BUDGETS),
        **vars(options.budget),
        "num_evals": options.num_evals,
        "keep_models": options.keep.models,
        "client_variance": options.keep.client_variance,
        "measures": list(options.keep.measures),
        "output": options.keep.output,
        "layout": options.layout.deciding(),
        "precision": options.precision,
    }
    if options.watch.on_evaluation is not None:
        configuration["on_evaluation"] = "given"
    if group[0].start is not None:
        configuration["start"] = [_digest_of_tree(lane.start) for lane in group]
    return configuration


def _digest_of_tree(tree: object) -> str:
    """Hash a problem or model: its class, static fields as far as they have a text, and arrays."""
    structure = jax.tree.structure(tree)
    digest = hashlib.sha256(re.sub(" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in records.pack(tree).values():
        digest.update(records.digest_of_array(leaf))
    return digest.hexdigest()[:16]


class Checkpoint:
    """The checkpoints of one group of lanes, in one folder that the caller has locked.

    Attributes:
      decided: The plan of the run in the folder; empty if none is resumed.
    """

    def __init__(self, kept: Checkpoints, configuration: Mapping[str, object]):
        """Describe the checkpoints; nothing is written yet.

        Args:
          kept: Where they are kept, how often they are written, and whether to continue. Slow
            writes are further apart, see `WORK`.
          configuration: What must be equal for a resumed run to be the same run, as far as it is
            known without planning; becomes JSON.

        Raises:
          ConfigError: If the folder belongs to another run, such as one with another budget.
        """
        self._folder, self._resume = Path(kept.folder).absolute(), bool(kept.resume)
        self._any_jax = kept.resume == ANY_JAX
        self._asked = json.loads(json.dumps(configuration, sort_keys=True, default=str))
        self._versions = self._asked["versions"]
        self.decided: Mapping[str, Any] = {}
        known = read_configuration(self._folder) if self._resume else None
        if known is not None:
            self._compare(known["asked"], self._asked)
            # The versions of JAX stay those of its beginning.
            self._asked, self.decided = known["asked"], known["planned"]
        self._identity, self._has_drawn = "", False
        self._every, self._last, self._lasted = kept.every, time.monotonic(), 0.0

    def finished(self, planned: Callable[[], Mapping[str, object]]) -> records.Arrays | None:
        """Read the result of the group's replay, if the folder has one of this run.

        Args:
          planned: Collects what `open` gets.

        Returns:
          The arrays given to `finish`; None if there are none, or they are damaged.

        Raises:
          ConfigError: If the folder belongs to another run.
        """
        if not (self._resume and files_in(self._folder, "result")):
            return None
        found = self._sound("result", self._identify(planned()))
        return next((arrays for _, arrays in found), None)

    def drawn(self) -> tuple[Timeline, np.ndarray] | None:
        """Read the timelines that `open` got, leaves `[D, T, ...]`, and their ticks, if any."""
        found = self._sound("drawn", _digest_of(self._asked)) if self._resume else iter(())
        for _, arrays in found:
            length = int(arrays["length"])
            whole = {
                name: np.broadcast_to(leaf, (leaf.shape[0], length, *leaf.shape[2:]))
                for name, leaf in records.part(arrays, "timeline").items()
            }
            self._has_drawn = True
            return Timeline(**whole), arrays["ends"]
        return None

    def _identify(self, planned: Mapping[str, object]) -> str:
        """Check that the folder belongs to this run, and return the digest of its identity.

        Args:
          planned: As in `open`.

        Raises:
          ConfigError: If it belongs to another run.
        """
        ours = {**self._asked, **planned}
        if self.decided:
            self._compare({**self._asked, **self.decided}, ours)
        return _digest_of({**ours, **self.decided})

    def open(self, planned: Mapping[str, object], timelines: Timeline, ticks: np.ndarray) -> None:
        """Make the folder, or check that it belongs to the same run.

        Args:
          planned: The rest of the configuration, which planning decides, by name.
          timelines: What was drawn, leaves `[D, T, ...]`; written unless `drawn` has read it.
          ticks: `i64[D]`, ticks of each timeline.

        Raises:
          ConfigError: If the folder belongs to another run or cannot be written.
          InputError: If its configuration is damaged and nothing else tells which run it was.
        """
        with writing_to("checkpoint", self._folder):
            if not self._resume:
                for path in (*files_in(self._folder), self._folder / CONFIGURATION):
                    path.unlink(missing_ok=True)
            lifecycle.remove_scratch(self._folder)
        self._identity = self._identify(planned)
        if not self.decided:
            self._heal_configuration(planned)
        if not self._has_drawn:
            # What is the same at all ticks takes the room of one tick.
            short = [leaf[:, :1] if leaf.strides[1] == 0 else leaf for leaf in timelines]
            length = np.array(timelines.time.shape[1])
            packed = {"length": length, "ends": ticks, "timeline": Timeline(*short)}
            self._write("drawn", 0, _digest_of(self._asked), records.pack(packed))

    def _heal_configuration(self, planned: Mapping[str, object]) -> None:
        """Write a configuration that is missing or damaged, unless states are of another run."""
        where = f"{CONFIGURATION} in {self._folder}"
        if any(next(self._sound(kind, self._identity), None) for kind in ("state", "result")):
            lifecycle.say(
                f"{where} was damaged or missing and was written again: the checkpoints fit."
            )
        elif files_in(self._folder, "state") or files_in(self._folder, "result"):
            raise lifecycle.InputError(
                f"{where} is damaged or missing, and no checkpoint there is an undamaged one of "
                "this run: remove the folder to start anew."
            )
        elif (self._folder / CONFIGURATION).exists():
            lifecycle.say(
                f"{where} is damaged, and no checkpoint was written: starting from the beginning."
            )
        content = {"asked": self._asked, "planned": planned}
        lifecycle.write_record(self._folder / CONFIGURATION, content)

    def load(self, states: Carry) -> Saved | None:
        """Read the newest undamaged state. Damaged ones are reported.

        Args:
          states: Arrays, or descriptions of arrays, of the shapes and placement of the saved ones.

        Returns:
          The state; None if no state has been written.

        Raises:
          InputError: If all states are damaged.
        """
        for done, arrays in self._sound("state", self._identity):
            carried = records.unpack(records.part(arrays, "state"), states)
            placed = jax.tree.map(_placed, carried, states)
            return done, placed, {kind: records.part(arrays, kind) for kind in KINDS}
        if self._resume and files_in(self._folder, "state"):
            raise lifecycle.InputError(
                f"no checkpoint in {self._folder} is undamaged: remove the folder to start anew."
            )
        return None

    def is_due(self, within: float = 0.0) -> bool:
        """Tell whether the last state will be old enough for another one within some seconds."""
        least = max(self._every, WORK * self._lasted) if self._every else 0
        return time.monotonic() - self._last + within >= least

    def save(
        self,
        done: int,
        states: Carry,
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
        if not (now or self.is_due()):
            return
        began = time.monotonic()
        self._write("state", done, self._identity, records.pack({"state": states, **curves}))
        kept = [path for path in files_in(self._folder, "state") if ticks_of(path) <= done][:2]
        self._remove_others(kept, "state")
        self._last = time.monotonic()
        self._lasted = self._last - began

    def finish(self, arrays: records.Arrays) -> None:
        """Write the group's result, and remove the states."""
        result = self._write("result", 0, self._identity, arrays)
        self._remove_others([result, *files_in(self._folder, "drawn")])

    def _remove_others(self, kept: list[Path], kind: str = ANY) -> None:
        """Remove array files that are not kept: older ones, and newer ones that were damaged."""
        for path in files_in(self._folder, kind):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _write(self, kind: str, done: int, identity: str, arrays: records.Arrays) -> Path:
        """Write an array file that says to which run it belongs."""
        path = self._folder / f"{kind}-{done:012d}.npz"
        lifecycle.write_arrays(path, {"identity": np.array(identity), **arrays})
        return path

    def _sound(self, kind: str, identity: str) -> Iterator[tuple[int, records.Arrays]]:
        """Read the undamaged files of a kind that belong to a run, the newest first.

        Damaged ones are reported. Yields their ticks, and their arrays without the identity.
        """
        for path in files_in(self._folder, kind):
            try:
                arrays = lifecycle.read_arrays(path)
                theirs = str(arrays.pop("identity"))
            except (lifecycle.InputError, OSError, KeyError) as error:
                reason = getattr(error, "strerror", None) or "its digest is another"
                if isinstance(error, KeyError):
                    reason = "it says not of which run it is"
                lifecycle.say(
                    f"{path} is damaged ({reason}); the one before is used if there is one."
                )
                continue
            if theirs == identity:
                yield ticks_of(path), arrays

    def _compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Refuse a folder of another configuration."""
        theirs, ours = old.get("versions", {}), self._versions
        new = {**new, "versions": ours}
        versions = [name for name in ours if theirs.get(name) != ours[name]]
        is_jax = {*versions} <= {*records.JAX}
        changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        if self._any_jax and versions and is_jax:
            changed -= {"versions", *TEXTS}
        if not changed:
            return
        asked = changed & {*self._asked} - {TIMELINE}
        if asked - {"versions"}:
            # What the caller asks for decides everything else, such as programs and placements.
            changed = asked
        elif "placement" in changed:
            # Programs and the order of lanes follow from it.
            changed -= {"program", "schedule"}
        further = []
        if "versions" in changed:
            pairs = (f"{name} {theirs.get(name, 'unknown')}, not {ours[name]}" for name in versions)
            accepted = ', of which resume="any_jax" (--any-jax) accepts any' if is_jax else ""
            further = [f"versions ({'; '.join(pairs)}){accepted}"]
            # Other versions may write the same program in another way.
            changed -= {"versions", *TEXTS}
        named = [_told(name, old.get(name), new.get(name)) for name in sorted(changed)]
        words = ", ".join(named + further)
        allowed = (
            f"of the same configuration as this run, which differs in {words}, or removed to start "
            "anew"
        )
        raise ConfigError("checkpoint", str(self._folder), allowed)


def _told(name: str, theirs: Any, ours: Any) -> str:
    """Name an entry in which a folder differs from this run, with both values where they are short.

    Of settings, and of a layout, those that differ are named; of settings, in the first such lane.
    """
    if name == "settings" and theirs and ours:
        lanes = zip(theirs, ours, strict=False)
        theirs, ours = next(((a, b) for a, b in lanes if a != b), (None, None))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        names = [each for each in theirs | ours if theirs.get(each) != ours.get(each)]
        pairs = [(f"{each} ", theirs.get(each), ours.get(each)) for each in names]
    elif name in DIGESTS:
        return name
    else:
        pairs = [("", theirs, ours)]

    def shortened(value: object) -> str:
        text = str(value)
        return text if len(text) <= 60 else f"{text[:56]} ..."

    texts = [f"{each}{shortened(a)} there, {shortened(b)} here" for each, a, b in pairs]
    return f"{name} ({'; '.join(texts)})"


def _digest_of(content: object) -> str:
    """Hash a value as JSON: 16 hexadecimal digits of SHA-256."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _placed(values: np.ndarray, like: jax.Array) -> jax.Array:
    """Put an array on the devices of the one that it was fetched from."""
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        words = jnp.asarray(values)
        values = jax.random.wrap_key_data(words, impl=str(jax.random.key_impl(like)))
    return jax.device_put(values, like.sharding)


def unpack_curves(arrays: records.Arrays, model: Params) -> Curves:
    """Make curves of their arrays in a file.

    Args:
      arrays: What `records.pack` made of the curves of a replay.
      model: A tree of the structure of one model.
    """
    found = {name: records.part(arrays, name) for name in Curves._fields}
    models, samples = (
        records.unpack(found[name], model) if found[name] else None
        for name in ("models", "samples")
    )
    stopped_at = arrays.get("stopped_at")
    return Curves(found["metrics"], found["infos"], models, samples, stopped_at)


def count_lanes(folder: Path) -> int | None:
    """Count the lanes of an unfinished run in a folder; None if there is none, or it is damaged."""
    known = read_configuration(folder)
    return None if known is None else len(known["asked"]["seeds"])


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a group of lanes, and their folder if nothing else is in it.

    Args:
      folder: The folder, which need not exist.
    """
    found = [*files_in(folder), *folder.glob(CONFIGURATION)]
    for path in found:
        path.unlink(missing_ok=True)
    lifecycle.remove_scratch(folder)
    if found:
        with contextlib.suppress(OSError):  # raised if it is a link, or not empty
            folder.rmdir()


def ticks_of(path: Path) -> int:
    """Read the ticks in the name of an array file."""
    return int(path.stem.split("-")[1])


def files_in(folder: Path, kind: str = ANY) -> list[Path]:
    """List the array files of a kind in a folder, the newest first, and none of other programs."""
    named = re.compile(rf"(?:{kind})-\d{{12,}}(?:-[0-9a-f]+)?\.npz")
    found = (path for path in folder.glob("*.npz") if named.fullmatch(path.name))
    return sorted(found, reverse=True)


def read_configuration(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of a folder; None if it is missing or damaged."""
    content = lifecycle.read_record(folder / CONFIGURATION)
    return content if content is not None and content.keys() == {"asked", "planned"} else None
