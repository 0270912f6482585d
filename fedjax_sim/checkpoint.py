"""Checkpoints between chunks, from which a killed run goes on and ends with the same bits."""

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.settings import ConfigError

CONFIGURATION = "configuration.json"


class Checkpoint:
    """One run's checkpoints in a folder of their own; the newest complete one counts.

    configuration: what must be the same for a resumed run to be the same run, as JSON. every: least seconds between two writes.
    """

    def __init__(self, folder: str | Path, configuration: Any, *, resume: bool, every: float = 20.0):
        self._folder = Path(folder).absolute()
        self._every = every
        self._last = time.monotonic()
        text = json.dumps(configuration, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        known = self._folder / CONFIGURATION
        if resume and known.exists() and json.loads(known.read_text())["sha256"] != digest:
            raise ConfigError("checkpoint", str(folder), "of the same configuration as this run, or removed to start anew")
        if not resume:
            shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps({"sha256": digest, "configuration": json.loads(text)}, indent=1))
        except OSError as error:
            raise ConfigError("checkpoint", str(folder), f"a folder that can be written ({error.strerror})") from None

    def load(self, states: Any) -> tuple[int, Any, dict[str, np.ndarray], dict[str, np.ndarray]] | None:
        """The newest checkpoint: evaluations done, states (placed as the given ones are), metrics, infos; None if there is none."""
        import orbax.checkpoint as ocp  # Slow to import, and only needed here.

        with ocp.CheckpointManager(self._folder / "steps") as manager:
            done = manager.latest_step()
            if done is None:
                return None
            shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), states)
            saved = manager.restore(done, args=ocp.args.Composite(states=ocp.args.StandardRestore(shape)))
        with np.load(self._folder / f"curves_{done}.npz") as file:
            curves = {kind: {k.split(":", 1)[1]: file[k] for k in file.files if k.startswith(kind)} for kind in ("metric", "info")}
        return done, saved.states, curves["metric"], curves["info"]

    def save(self, done: int, states: Any, metrics: dict[str, np.ndarray], infos: dict[str, np.ndarray], *, is_last: bool) -> None:
        """Write a checkpoint if the last one is old enough, or if this is the run's end."""
        if time.monotonic() - self._last < self._every and not is_last:
            return
        import orbax.checkpoint as ocp

        curves = {f"metric:{k}": v for k, v in metrics.items()} | {f"info:{k}": v for k, v in infos.items()}
        # The curves first: a step without curves would be found, curves without a step are not.
        np.savez(self._folder / f"curves_{done}.npz", allow_pickle=False, **curves)
        with ocp.CheckpointManager(self._folder / "steps", options=ocp.CheckpointManagerOptions(max_to_keep=1)) as manager:
            manager.save(done, args=ocp.args.Composite(states=ocp.args.StandardSave(states)))
            manager.wait_until_finished()
        for old in self._folder.glob("curves_*.npz"):
            if old.name != f"curves_{done}.npz":
                old.unlink()
        self._last = time.monotonic()
