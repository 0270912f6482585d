"""Final values of runs in the form of summary.json, and times at which runs reach an accuracy."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_sim.core.settings import checked
from fedjax_sim.results.curves import label_of_value
from fedjax_sim.results.diagnostics import summarise_clients

if TYPE_CHECKING:
    import xarray as xr


SPENT = ("compile", "run")
"""Kinds of seconds that curves count."""


@checked
def summary(curves: Mapping[str, "xr.Dataset"]) -> dict[str, Any]:
    """Summarise final values by system, in the form of summary.json.

    An entry has the means over seeds of the final metrics, with their standard deviations (of the
    lanes, with divisor n, not of the mean), medians and least values, and the means of virtual
    time, ticks, local steps and bits, the last three rounded to whole numbers. Failed lanes are
    counted, and left out of the metrics, which are null if no other lane is left, or if one of
    these has no finite number, such as a mean over local steps without a step. Of a metric of
    single clients the mean, the worst decile and the spread over clients are given, as means over
    seeds, see `results.diagnostics.summarise_clients`. Lanes that collapsed to chance while finite
    are counted too, and stay in the metrics.

    Args:
      curves: The curves of `sweep`, by system.

    Returns:
      A mapping with `lanes`, `failed_lanes`, `collapsed_lanes`, `flagged`, `seconds` and `systems`.
      `flagged` lists the failed, the collapsed and the stopped lanes, see `flagged`. A system has
      one entry or, if settings were swept, a list of entries under `settings`, each with its values
      under `set`. Of a part, whose curves have the dimension `lane`, lanes are counted and nothing
      is averaged: seeds that belong together may be in other parts.
    """
    lanes = sum(data["failed"].size for data in curves.values())
    failed = sum(int(data["failed"].sum()) for data in curves.values())
    spent = {kind: [data.attrs[f"seconds_{kind}"] for data in curves.values()] for kind in SPENT}
    seconds = {kind: float(sum(each)) for kind, each in spent.items()}
    counted = {"lanes": lanes, "failed_lanes": failed}
    if is_part(curves):
        of_part = {name: {"lanes": data.sizes["lane"]} for name, data in curves.items()}
        return {**counted, "seconds": seconds, "systems": of_part}
    named = flagged(curves)
    systems: dict[str, Any] = {}
    for name, data in curves.items():
        entries = [({"set": point} if point else {}) | _final(x) for point, x in settings_of(data)]
        systems[name] = {"settings": entries} if "set" in entries[0] else entries[0]
    counted["collapsed_lanes"] = sum(lane["what"] == "collapsed" for lane in named)
    return {**counted, "flagged": named, "seconds": seconds, "systems": systems}


def is_part(curves: Mapping[str, "xr.Dataset"]) -> bool:
    """Tell whether curves are those of some lanes, in place of whole sweeps."""
    return any("lane" in data.dims for data in curves.values())


def flagged(curves: Mapping[str, "xr.Dataset"]) -> list[dict[str, Any]]:
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


def settings_of(data: "xr.Dataset") -> Iterator[tuple[dict[str, object], "xr.Dataset"]]:
    """Go through the points of a sweep.

    Args:
      data: The curves of one system.

    Yields:
      The values of the swept settings by name, and the curves there, with dimensions (seed, eval).
    """
    if "seed" not in data.dims:
        of_evals = [str(name) for name, each in data.coords.items() if "eval" in each.dims]
        data = data.reset_coords(of_evals).expand_dims("seed").set_coords(of_evals)
    swept = [str(dim) for dim in data["failed"].dims if dim != "seed"]
    for place in itertools.product(*(range(data.sizes[name]) for name in swept)):
        at = dict(zip(swept, place, strict=True))
        values = {name: data[name].values[i].item() for name, i in at.items()}
        point = {name.removesuffix("_setting"): value for name, value in values.items()}
        yield point, data.isel(at)


def label_of(system: str, point: Mapping[str, object]) -> str:
    """Name a system together with settings, such as "favano lr=0.5".

    Args:
      system: Name of the system.
      point: Values of settings by name.
    """
    words = (f"{x:g}" if isinstance(x, float) else label_of_value(x) for x in point.values())
    return " ".join([system, *map("{}={}".format, point, words)])


def labels_of(system: str, points: Sequence[Mapping[str, object]]) -> list[str]:
    """Name the points of a sweep, each differently; see `label_of`."""
    labels = [label_of(system, point) for point in points]
    if len({*labels}) < len(labels):  # Numbers that differ in their last digits.
        exact = [{name: str(label_of_value(value)) for name, value in x.items()} for x in points]
        labels = [label_of(system, point) for point in exact]
    if len({*labels}) < len(labels):  # Functions of one name.
        labels = [f"{label} ({number})" for number, label in enumerate(labels, 1)]
    return labels


def points_of(curves: Mapping[str, "xr.Dataset"]) -> Iterator[tuple[str, "xr.Dataset"]]:
    """Go through the points of the sweeps of several systems: their labels, and their lanes."""
    for name, data in curves.items():
        points, lanes = zip(*settings_of(data), strict=True)
        yield from zip(labels_of(name, points), lanes, strict=True)


def metrics_of(data: "xr.Dataset", *dims: str) -> list[str]:
    """List the metrics of a system's curves: the variables along eval.

    Args:
      data: The curves of one system.
      dims: Further dimensions after eval. By default metrics are single numbers.
    """
    along = {str(name): each.dims for name, each in data.data_vars.items() if "eval" in each.dims}
    return [name for name, each in along.items() if each[each.index("eval") + 1 :] == dims]


def _final(lanes: "xr.Dataset") -> dict[str, Any]:
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
    for name in metrics_of(lanes, "client"):
        final[name] = dict.fromkeys(("mean", "std", "worst_decile", "spread"))
        if good.any():
            is_less = bool(lanes[name].attrs.get("less_is_better", 0))
            values = last[name].values[good].astype(float)
            mean, worst, spread = summarise_clients(values, less_is_better=is_less)
            found = mean.mean(), mean.std(), worst.mean(), spread.mean()
            final[name] = dict(zip(final[name], map(float, found), strict=True))
    names = "ticks", "local_steps", "uplink_bits"
    whole = {name: round(float(last[name].mean())) for name in names}
    return {"final": final, "virtual_time": float(last["time"].mean()), **whole}


def first_reach(
    curves: "xr.Dataset", accuracy: float, metric: str = "accuracy", *, axis: str = "time"
) -> "xr.DataArray":
    """Find where each lane's accuracy first reaches a value.

    Args:
      curves: Curves with dimension `eval`.
      accuracy: The value, between 0 and 1.
      metric: The accuracy that must reach it.
      axis: What is returned of the first evaluation that reaches it: `time`, `ticks`,
        `local_steps`, `uplink_bits` or `downlink_bits`.

    Returns:
      The value of the axis, without the dimension `eval`; infinite where a lane never reaches it.
    """
    reached = curves[metric] >= accuracy
    there = curves[axis].isel(eval=reached.argmax("eval"))
    return there.where(reached.any("eval"), np.inf).reset_coords(drop=True)


def median_reach(reached: "xr.DataArray") -> float | None:
    """Return the median of `first_reach` over all lanes; None if half of the lanes never reach it.

    With an even number of lanes it is the larger of the two middle values.
    """
    values = np.sort(reached.values.ravel())
    median = float(values[len(values) // 2])
    return median if np.isfinite(median) else None
