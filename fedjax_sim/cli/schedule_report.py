"""What a schedule tells without any learning: work, staleness, who is heard and how much it counts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from rich.table import Table

from fedjax_sim import timelines as laws
from fedjax_sim.cli.comparison import Contender, timelines
from fedjax_sim.diagnostics.fairness import (
    entropy,
    influence,
    jain_index,
    time_to_first,
    update_share,
)
from fedjax_sim.reporting.plots import Row, timeline_figure
from fedjax_sim.reporting.plots.fairness import ClientShares, influence_figure
from fedjax_sim.reporting.results import Folder, environment
from fedjax_sim.streams import stream
from fedjax_sim.types import EMPTY, Hyper, Timeline

COLUMNS = {
    "ticks": "ticks",
    "time_per_tick": "time/tick",
    "reports_per_tick": "reports/tick",
    "steps_per_tick": "steps/tick",
    "staleness_mean": "mean staleness",
    "staleness_max": "largest",
    "fast_clients": "fast clients",
    "fast_reports": "fast reports",
    "fast_steps": "fast steps",
    "fast_influence": "fast influence",
    "jain_index": "Jain index",
}
SHARES = ("fast_clients", "fast_reports", "fast_steps", "fast_influence")


class Entry(NamedTuple):
    """The schedules of one system and setting."""

    label: str
    seeds: list[int]
    timelines: list[Timeline]  # per seed
    num_clients: int  # whom the slots name: clients, or groups
    is_fast: (
        list[np.ndarray] | None
    )  # bool[N] per seed; None where speeds are not known, as in a recorded trace
    senders: str

    def facts(self) -> dict[str, float | None]:
        """Means over seeds; the largest staleness is that of all."""
        speeds = [None] * len(self.timelines) if self.is_fast is None else self.is_fast
        each = [
            _facts(timeline, self.num_clients, own)
            for timeline, own in zip(self.timelines, speeds, strict=True)
        ]
        means = {
            name: None if each[0][name] is None else float(np.mean([facts[name] for facts in each]))
            for name in each[0]
        }
        return means | {"staleness_max": max(facts["staleness_max"] for facts in each)}


def entries(contender: Contender, seeds: Sequence[int], time_budget: float) -> list[Entry]:
    """Work out the schedules of a system, for each of its swept settings."""
    drawn = timelines(contender, seeds, time_budget)
    return [
        Entry(
            label,
            list(seeds),
            own,
            hyper.num_senders,
            _speeds(hyper, seeds),
            "groups" if isinstance(hyper, laws.Groups) else "clients",
        )
        for (label, hyper), own in zip(contender.points(), drawn, strict=True)
    ]


def save(folder: Folder, entries: Sequence[Entry], config: Mapping[str, Any]) -> None:
    """Write the schedules as arrays (padded by nan and EMPTY), their facts, and a picture of the first seed."""
    folder.write_arrays(
        "results.nc", {entry.label.replace("/", "_"): _arrays(entry) for entry in entries}
    )
    rows = [
        Row(
            entry.label,
            entry.timelines[0],
            entry.num_clients,
            None if entry.is_fast is None else entry.is_fast[0],
            entry.senders,
        )
        for entry in entries
    ]
    folder.write_figure("timeline.png", timeline_figure(rows))
    first = {entry.label: (entry.timelines[0], entry.num_clients) for entry in entries}
    clients = {
        label: ClientShares(update_share(own, num), relative_influence(own, num))
        for label, (own, num) in first.items()
    }
    folder.write_figure("influence.png", influence_figure(clients))
    facts = {entry.label: entry.facts() for entry in entries}
    folder.finish(
        {**config, **environment()},
        {"lanes": sum(len(entry.seeds) for entry in entries), "failed_lanes": 0, "systems": facts},
    )


def table(entries: Sequence[Entry]) -> Table:
    """The facts of all entries, to print."""
    made = Table(box=None, padding=(0, 1))
    made.add_column("system", min_width=max(len(entry.label) for entry in entries))
    for title in COLUMNS.values():
        made.add_column(title, justify="right")
    for entry in entries:
        facts = entry.facts()
        cells = (
            "-" if (x := facts[name]) is None else f"{x:.0%}" if name in SHARES else f"{x:.4g}"
            for name in COLUMNS
        )
        made.add_row(entry.label, *cells)
    return made


def _speeds(hyper: Hyper, seeds: Sequence[int]) -> list[np.ndarray] | None:
    if (
        not isinstance(hyper, laws.ClientDelays)
        or isinstance(hyper, laws.Groups)
        or hyper.trace is not None
        or hyper.client_table is not None
    ):
        return None
    with jax.enable_x64(True):
        rates = [
            np.asarray(laws.client_rates(stream(jax.random.key(seed), "timeline"), hyper))
            for seed in seeds
        ]
    return [own > min(hyper.rate_fast, hyper.rate_slow) for own in rates]


def relative_influence(timeline: Timeline, num_clients: int) -> np.ndarray:
    """Each client's share of all local steps received, times the weights that the schedule gives them: `f64[N]`."""
    each = influence(
        timeline._replace(weight=np.asarray(timeline.weight) * timeline.steps), num_clients
    )
    return each / max(each.sum(), np.finfo(float).tiny)


def _facts(timeline: Timeline, num_clients: int, is_fast: np.ndarray | None) -> dict[str, Any]:
    present = np.asarray(timeline.clients) != EMPTY
    clients, steps = np.asarray(timeline.clients)[present], np.asarray(timeline.steps)[present]
    staleness = (np.arange(len(timeline.time))[:, None] - np.asarray(timeline.version))[present]
    num_ticks = len(timeline.time)
    counts = relative_influence(timeline, num_clients)
    return {
        "virtual_time": float(timeline.time[-1]),
        "ticks": num_ticks,
        "time_per_tick": float(timeline.time[-1]) / num_ticks,
        "local_steps": int(steps.sum()),
        "reports_per_tick": len(clients) / num_ticks,
        "steps_per_tick": float(steps.sum()) / num_ticks,
        "staleness_mean": float(staleness.mean()),
        "staleness_max": int(staleness.max()),
        "fast_clients": None if is_fast is None else float(is_fast.mean()),
        "fast_reports": None if is_fast is None else float(is_fast[clients].mean()),
        "fast_steps": None
        if is_fast is None
        else float(steps[is_fast[clients]].sum() / max(steps.sum(), 1)),
        "fast_influence": None if is_fast is None else float(counts[is_fast].sum()),
        "jain_index": jain_index(counts),
        "entropy": entropy(counts),
        "largest_time_to_first": float(time_to_first(timeline, num_clients).max()),
    }


def _arrays(entry: Entry) -> xr.Dataset:
    longest = max(len(timeline.time) for timeline in entry.timelines)
    data: dict[str, Any] = {}
    for name in Timeline._fields:
        leaves = [np.asarray(getattr(timeline, name)) for timeline in entry.timelines]
        fill = np.nan if leaves[0].dtype.kind == "f" else EMPTY
        full = [
            np.pad(x, ((0, longest - len(x)), *((0, 0) for _ in x.shape[1:])), constant_values=fill)
            for x in leaves
        ]
        data[name] = (("seed", "tick", "slot")[: 1 + leaves[0].ndim], np.stack(full))
    for name, measure in {
        "influence": relative_influence,
        "update_share": update_share,
        "time_to_first": time_to_first,
    }.items():
        data[name] = (
            ("seed", "client"),
            np.stack([measure(timeline, entry.num_clients) for timeline in entry.timelines]),
        )
    return xr.Dataset(data, {"seed": entry.seeds})
