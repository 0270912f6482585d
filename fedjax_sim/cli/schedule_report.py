"""Facts of schedules without any learning: work, staleness, participation and weights.

Dimension letters: `N` clients (or groups), `T` ticks, `S` slots of a tick.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fedjax_sim.cli.comparison import Asked, draw_schedules
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import EMPTY, Timeline
from fedjax_sim.results.diagnostics import fairness
from fedjax_sim.results.plots import ClientShares, Row, influence_figure, timeline_figure
from fedjax_sim.results.records import environment
from fedjax_sim.results.reports import Folder
from fedjax_sim.timelines import Clients, Groups, draw_client_rates

COLUMNS = {
    "ticks": "server steps",
    "time_per_tick": "time per step",
    "reports_per_tick": "reports per step",
    "steps_per_tick": "local steps per step",
    "staleness_mean": "mean staleness",
    "staleness_max": "largest staleness",
    "fast_clients": "fast clients",
    "fast_influence": "fast influence",
    "jain_index": "Jain index",
    "fast_reports": "fast reports",
    "fast_steps": "fast local steps",
}
"""Facts in the printed table with their titles, the most important ones first."""
SHARES = ("fast_clients", "fast_reports", "fast_steps", "fast_influence")
"""Facts that are printed in percent."""


class Entry(NamedTuple):
    """The schedules of one system at one point of a sweep.

    Attributes:
      label: The system's name, and the values of swept settings.
      seeds: One seed per schedule.
      timelines: The schedules.
      num_clients: N, the number of senders that slots name: clients, or groups.
      is_fast: Which clients are fast, `bool[N]` per seed; None in its place if speeds are not
        known, as in a recorded trace.
      senders: What the senders are called: "clients" or "groups".
    """

    label: str
    seeds: list[int]
    timelines: list[Timeline]
    num_clients: int
    is_fast: Sequence[np.ndarray | None]
    senders: str

    def facts(self) -> dict[str, float | None]:
        """Measure the schedules, by name of the fact.

        Returns:
          Means over seeds, but the largest staleness of all. None for facts that need speeds if
          these are not known.
        """
        by_seed = [
            _facts(timeline, self.num_clients, is_fast)
            for timeline, is_fast in zip(self.timelines, self.is_fast, strict=True)
        ]
        means = {
            name: None if first is None else float(np.mean([facts[name] for facts in by_seed]))
            for name, first in by_seed[0].items()
        }
        return means | {"staleness_max": max(facts["staleness_max"] for facts in by_seed)}


def work_out(asked: Asked) -> list[Entry]:
    """Draw the schedules of all systems, for each point of a sweep.

    Raises:
      ConfigError: If the time budget is too short for one tick, or too long.
    """
    return [
        Entry(
            label,
            asked.seeds,
            timelines,
            contender.system.messages.num_senders(hyper) or hyper.num_clients,
            _fast_clients(hyper, asked.seeds),
            "groups" if isinstance(hyper, Groups) else "clients",
        )
        for contender in asked.contenders
        for (label, hyper), timelines in zip(
            contender.points(),
            draw_schedules(contender, asked.seeds, asked.time_budget),
            strict=True,
        )
    ]


def save(folder: Folder, entries: Sequence[Entry], config: Mapping[str, Any]) -> dict[str, Any]:
    """Write schedules as arrays, their facts, and pictures of the first seed.

    Args:
      folder: An open results folder.
      entries: The schedules. In results.nc, shorter ones are padded with nan and `EMPTY`.
      config: The content of config.json apart from versions and device.

    Returns:
      The content of summary.json.
    """
    folder.write_arrays(
        "results.nc", {entry.label.replace("/", "_"): _arrays(entry) for entry in entries}
    )
    rows = [
        Row(each.label, each.timelines[0], each.num_clients, each.is_fast[0], each.senders)
        for each in entries
    ]
    folder.write_figure("timeline.png", timeline_figure(rows))
    shares = {
        row.label: ClientShares(
            fairness.update_share(row.timeline, row.num_clients),
            relative_influence(row.timeline, row.num_clients),
        )
        for row in rows
    }
    folder.write_figure("influence.png", influence_figure(shares))
    facts = {entry.label: entry.facts() for entry in entries}
    lanes = sum(len(entry.seeds) for entry in entries)
    content = {"lanes": lanes, "failed_lanes": 0, "systems": facts}
    folder.finish({**config, **environment()}, content)
    return content


def rows_of(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Tabulate the facts of all entries: the cells of each row by title of the column."""

    def cell(name: str, value: float | None) -> str:
        if value is None or np.isnan(value):
            return "-"
        return f"{value:.0%}" if name in SHARES else f"{value:.4g}"

    facts = {entry.label: entry.facts() for entry in entries}
    return [
        {"system": label, **{title: cell(name, found[name]) for name, title in COLUMNS.items()}}
        for label, found in facts.items()
    ]


def relative_influence(timeline: Timeline, num_clients: int) -> np.ndarray:
    """Compute each client's share of the server's progress, as far as the schedule fixes it.

    Args:
      timeline: A schedule.
      num_clients: N.

    Returns:
      `f64[N]`: the sum of a client's local steps, each times the weight of its slot, divided by the
      sum of all clients; 0 if nothing was received.
    """
    weighted = timeline._replace(weight=np.asarray(timeline.weight) * timeline.steps)
    by_client = fairness.influence(weighted, num_clients)
    return by_client / max(by_client.sum(), np.finfo(float).tiny)


def _fast_clients(hyper: Any, seeds: Sequence[int]) -> Sequence[np.ndarray | None]:
    """Find which clients are fast, `bool[N]` per seed; None unless clients have two speeds."""
    if (
        not isinstance(hyper, Clients)
        or isinstance(hyper, Groups)
        or hyper.delays.trace is not None
        or hyper.delays.client_table is not None
        or hyper.delays.rate_spread > 0
    ):
        return [None] * len(seeds)
    with jax.enable_x64(True):
        rates = [
            np.asarray(draw_client_rates(stream(jax.random.key(seed), "timeline"), hyper))
            for seed in seeds
        ]
    return [each > min(hyper.delays.rate_fast, hyper.delays.rate_slow) for each in rates]


def _facts(timeline: Timeline, num_clients: int, is_fast: np.ndarray | None) -> dict[str, Any]:
    """Measure one schedule."""
    updates, num_ticks = fairness.received(timeline), len(timeline.time)
    clients, steps, staleness = updates.client, updates.steps, updates.staleness
    shares = relative_influence(timeline, num_clients)
    fast = dict.fromkeys(SHARES)
    if is_fast is not None:
        fast = {
            "fast_clients": float(is_fast.mean()),
            "fast_reports": float(is_fast[clients].mean()) if len(clients) else np.nan,
            "fast_steps": float(steps[is_fast[clients]].sum() / max(steps.sum(), 1)),
            "fast_influence": float(shares[is_fast].sum()),
        }
    return {
        "virtual_time": float(timeline.time[-1]),
        "ticks": num_ticks,
        "time_per_tick": float(timeline.time[-1]) / num_ticks,
        "local_steps": int(steps.sum()),
        "reports_per_tick": len(clients) / num_ticks,
        "steps_per_tick": float(steps.sum()) / num_ticks,
        "staleness_mean": float(staleness.mean()) if len(clients) else np.nan,
        "staleness_max": int(staleness.max(initial=0)),
        **fast,
        "jain_index": fairness.jain_index(shares),
        "entropy": fairness.entropy(shares),
        "largest_time_to_first": float(fairness.time_to_first(timeline, num_clients).max()),
    }


def _arrays(entry: Entry) -> xr.Dataset:
    """Stack the schedules of an entry with dimensions (seed, tick, slot), padded to the longest."""
    longest = max(len(timeline.time) for timeline in entry.timelines)
    data: dict[str, Any] = {}
    for name in Timeline._fields:
        leaves = [np.asarray(getattr(timeline, name)) for timeline in entry.timelines]
        fill = np.nan if leaves[0].dtype.kind == "f" else EMPTY
        padded = np.full((len(leaves), longest, *leaves[0].shape[1:]), fill, leaves[0].dtype)
        for row, leaf in zip(padded, leaves, strict=True):
            row[: len(leaf)] = leaf
        data[name] = (("seed", "tick", "slot")[: padded.ndim], padded)
    for name, measure in {
        "influence": relative_influence,
        "update_share": fairness.update_share,
        "time_to_first": fairness.time_to_first,
    }.items():
        found = [measure(timeline, entry.num_clients) for timeline in entry.timelines]
        data[name] = (("seed", "client"), np.stack(found))
    return xr.Dataset(data, {"seed": entry.seeds})
