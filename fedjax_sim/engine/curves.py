"""Labelled arrays of what lanes left: metrics on a grid of settings and seeds, with the schedule's facts as coordinates."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fedjax_sim.engine.replay import Curves
from fedjax_sim.engine.schedule import Schedule
from fedjax_sim.types import EMPTY, Timeline

FACTS = ("time", "ticks", "local_steps", "uplink_bits", "downlink_bits")
"""The schedule's coordinates. A swept setting of one of these names gets the dimension `NAME_setting`."""


class Grid(NamedTuple):
    """The dimensions of a sweep: swept names with their values, then seeds."""

    settings: Mapping[str, Sequence[Any]]
    seeds: Sequence[int]

    @property
    def dims(self) -> tuple[str, ...]:
        """The swept settings' dimensions."""
        return tuple(f"{name}_setting" if name in FACTS else name for name in self.settings)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*(len(values) for values in self.settings.values()), len(self.seeds))


class Part(NamedTuple):
    """Lanes that ran as one program, and what they left."""

    places: list[int]  # of the lanes in the flattened grid
    curves: Curves
    schedule: Schedule
    timelines: list[Timeline]
    bits: list[tuple[np.ndarray, np.ndarray]]  # i64[V + 1] of each lane, sent up and down so far


def labelled(parts: Sequence[Part], grid: Grid, system: str) -> xr.Dataset:
    """Put the lanes of all parts on one grid. Parts with fewer evaluations repeat their last one."""
    num_evals = max(part.schedule.ticks.shape[1] for part in parts)
    lane_dims = (*grid.dims, "seed")
    dims = (*lane_dims, "eval")

    def per_lane(values: list[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
        """Each part's `[L]`, on the grid."""
        whole = np.empty(int(np.prod(grid.shape)), values[0].dtype)
        for part, value in zip(parts, values, strict=True):
            whole[part.places] = value
        return lane_dims, whole.reshape(grid.shape)

    def per_eval(values: list[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
        """Each part's `[L, V]`, on the grid."""
        whole = np.empty((int(np.prod(grid.shape)), num_evals), values[0].dtype)
        for part, value in zip(parts, values, strict=True):
            whole[part.places] = np.pad(
                value, ((0, 0), (0, num_evals - value.shape[1])), mode="edge"
            )
        return dims, whole.reshape(*grid.shape, num_evals)

    data = {
        name: per_eval([part.curves.metrics[name] for part in parts])
        for name in parts[0].curves.metrics
        if name != "finite"
    }
    data["failed"] = per_lane(
        [np.logical_not(part.curves.metrics["finite"].all(axis=1)) for part in parts]
    )
    for name in parts[0].curves.infos:
        data[name] = per_lane(
            [part.curves.infos[name].sum(axis=1, dtype=np.int64) for part in parts]
        )
    staleness = [_staleness(part.schedule) for part in parts]
    data["staleness_mean"] = per_lane([mean for mean, _ in staleness])
    data["staleness_max"] = per_lane([largest for _, largest in staleness])
    coords: dict[str, Any] = {
        name: per_eval([getattr(part.schedule, name) for part in parts]) for name in FACTS[:3]
    }
    for k, name in enumerate(FACTS[3:]):
        coords[name] = per_eval([np.stack([both[k] for both in part.bits]) for part in parts])
    labels = {
        name: [_label(value) for value in values]
        for name, values in zip(grid.dims, grid.settings.values(), strict=True)
    }
    return xr.Dataset(data, {**labels, "seed": list(grid.seeds), **coords}, {"system": system})


def _label(value: Any) -> Any:
    return (
        value
        if isinstance(value, (bool, int, float, str))
        else getattr(value, "__name__", str(value))
    )


def _staleness(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Mean and largest staleness, in server versions, of the work that each lane received: `f64[L]`, `i64[L]`."""
    _, clients, _, version, *_ = schedule.events
    staleness = np.where(clients != EMPTY, schedule.events.tick[..., None] - version, 0)
    lanes = (1, 2, 3)
    return staleness.sum(axis=lanes, dtype=np.int64) / schedule.messages[:, -1], staleness.max(
        axis=lanes
    ).astype(np.int64)
