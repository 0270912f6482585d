"""Checkpoints between chunks, from which a killed run goes on and ends with the same bits."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.settings import ConfigError

CONFIGURATION = "configuration.json"
KINDS = ("metric", "model", "info")
"""Of what the curves' file holds."""


class Checkpoint:
    """One run's checkpoints in a folder of their own; the newest complete one counts.

    configuration: what must be the same for a resumed run to be the same run, as JSON. every: least seconds between two writes.
    """

    def __init__(
        self, folder: str | Path, configuration: Mapping[str, Any], *, resume: bool, every: float
    ):
        self._folder, self._configuration, self._resume = (
            Path(folder).absolute(),
            configuration,
            resume,
        )
        self._every, self._last = every, time.monotonic()

    def open(self, digests: Mapping[str, str]) -> None:
        """Make the folder, or check that it is of the same configuration and digests: hashes by name of what has no text of its own."""
        text = json.dumps({**self._configuration, **digests}, sort_keys=True, default=str, indent=1)
        known = self._folder / CONFIGURATION
        if self._resume and known.exists():
            old, new = json.loads(known.read_text()), json.loads(text)
            changed = ", ".join(
                name for name in sorted({*old, *new}) if old.get(name) != new.get(name)
            )
            if changed:
                allowed = f"of the same configuration as this run, which differs in {changed}, or removed to start anew"
                raise ConfigError("checkpoint", str(self._folder), allowed)
        if not self._resume:
            shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known.write_text(text)
        except OSError as error:
            raise ConfigError(
                "checkpoint", str(self._folder), f"a folder that can be written ({error.strerror})"
            ) from None

    def load(self, states: Any) -> tuple[int, Any, dict[str, dict[str, np.ndarray]]] | None:
        """The newest checkpoint: evaluations done, states (placed as the given ones are), curves by kind and name; None without one."""
        import orbax.checkpoint as ocp  # Slow to import, and only needed here.

        with ocp.CheckpointManager(self._folder / "steps") as manager:
            done = manager.latest_step()
            if done is None:
                return None
            shape = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
                states,
            )
            saved = manager.restore(
                done, args=ocp.args.Composite(states=ocp.args.StandardRestore(shape))
            )
        with np.load(self._folder / f"curves_{done}.npz") as file:
            curves: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in KINDS}
            for entry in file.files:
                kind, name = entry.split(":", 1)
                curves[kind][name] = file[entry]
        return done, saved.states, curves

    def save(
        self,
        done: int,
        states: Any,
        curves: Mapping[str, Mapping[str, np.ndarray]],
        *,
        is_last: bool,
    ) -> None:
        """Write a checkpoint if the last one is old enough, or if this is the run's end."""
        if time.monotonic() - self._last < self._every and not is_last:
            return
        import orbax.checkpoint as ocp

        entries = {
            f"{kind}:{name}": values for kind, own in curves.items() for name, values in own.items()
        }
        # The curves first: a step without curves would be found, curves without a step are not.
        np.savez(self._folder / f"curves_{done}.npz", allow_pickle=False, **entries)
        with ocp.CheckpointManager(
            self._folder / "steps", options=ocp.CheckpointManagerOptions(max_to_keep=1)
        ) as manager:
            manager.save(done, args=ocp.args.Composite(states=ocp.args.StandardSave(states)))
            manager.wait_until_finished()
        for old in self._folder.glob("curves_*.npz"):
            if old.name != f"curves_{done}.npz":
                old.unlink()
        self._last = time.monotonic()
