"""Timelines and curves as arrays by name, for a file, and back."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_sim.results.curves import Curves
from fedjax_sim.types import Timeline


def pack_timelines(timelines: Timeline, ticks: np.ndarray) -> dict[str, np.ndarray]:
    """Turn drawn timelines into arrays by name, for a file; see `unpack_timelines`."""
    arrays = {"length": np.array(timelines.time.shape[1]), "ends": ticks}
    for name, leaf in timelines._asdict().items():
        # What is the same at all ticks takes the room of one tick.
        arrays[f"timeline:{name}"] = np.asarray(leaf[:, :1] if leaf.strides[1] == 0 else leaf)
    return arrays


def unpack_timelines(arrays: Mapping[str, np.ndarray]) -> tuple[Timeline, np.ndarray]:
    """Make timelines, leaves `[D, T, ...]`, and their ticks of what `pack_timelines` returned."""
    length = int(arrays["length"])
    leaves = {name: arrays[f"timeline:{name}"] for name in Timeline._fields}
    whole = {
        name: np.broadcast_to(leaf, (leaf.shape[0], length, *leaf.shape[2:]))
        for name, leaf in leaves.items()
    }
    return Timeline(**whole), arrays["ends"]


def pack_curves(curves: Curves) -> dict[str, np.ndarray]:
    """Turn what a replay returned into arrays by name, for a file; see `unpack_curves`."""
    trees = {"model": curves.models, "sample": curves.samples}
    kinds = {"metric": curves.metrics, "info": curves.infos} | {
        kind: {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(tree))}
        for kind, tree in trees.items()
    }
    kinds["stop"] = {} if curves.stopped_at is None else {"at": curves.stopped_at}
    return {
        f"{kind}:{name}": values for kind, named in kinds.items() for name, values in named.items()
    }


def unpack_curves(arrays: Mapping[str, np.ndarray], model: Any) -> Curves:
    """Make curves of what `pack_curves` returned.

    Args:
      arrays: The arrays.
      model: A tree of the structure of one model.
    """
    kinds: dict[str, dict[str, np.ndarray]] = {
        kind: {} for kind in ("metric", "info", "model", "sample", "stop")
    }
    for entry, values in arrays.items():
        kind, name = entry.split(":", 1)
        kinds[kind][name] = values
    models, samples = (
        jax.tree.unflatten(jax.tree.structure(model), [leaves[str(i)] for i in range(len(leaves))])
        if leaves
        else None
        for leaves in (kinds["model"], kinds["sample"])
    )
    return Curves(kinds["metric"], kinds["info"], models, samples, kinds["stop"].get("at"))
