"""`fedjax-sim timeline`: work out schedules without training, measure them, and draw them.

Dimension letters: `N` clients (or groups), `T` ticks, `S` slots of a tick.
"""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from fedjax_sim import datasets, timelines
from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli import comparison, tables
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import EMPTY, Settings, Time, Timeline
from fedjax_sim.engine.machine import compiling
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.results import diagnostics, plots, records
from fedjax_sim.timelines import Clients, Groups, calibration

COLUMNS = {
    "ticks": "server steps",
    "time_per_tick": "time per step",
    "throughput": "reports per unit of time",
    "reports_per_tick": "reports per step",
    "steps_per_tick": "local steps per step",
    "staleness_mean": "mean staleness",
    "staleness_median": "median staleness",
    "staleness_95": "95 % staleness",
    "staleness_max": "largest staleness",
    "idle_share": "idle",
    "fast_clients": "fast clients",
    "fast_influence": "fast influence",
    "jain_index": "Jain index",
    "fast_reports": "fast reports",
    "fast_steps": "fast local steps",
}
"""Facts in the printed table with their titles, the most important ones first."""


def run(arguments: argparse.Namespace) -> None:
    """Print the facts of the systems' schedules, and write arrays and pictures of the first seed.

    Args:
      arguments: The parsed words of `timeline`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    name = arguments.dataset
    if name and not (name.endswith((".npz", ".txt")) or name.startswith("synthetic_")):
        texts.check_name("dataset", name, datasets.names())
    fitted = None
    if arguments.log is None:
        asked = comparison.read_asked(arguments)
    else:
        fitted = timelines.calibrate(arguments.log)
        length, table = float(np.max(fitted.log.start + fitted.log.time)), fitted.table
        given = {"num_clients": [str(table.size)], "client_table": [table.as_csv()]}
        given |= {"runtime_law": [fitted.law], "time_of": ["update"]}
        asked = comparison.read_asked(arguments, length, **given)
    folder = texts.find_folder(arguments, "results-timeline")
    compiling.keep_compiled()
    compiling.use_cores()
    schedules: dict[str, list[plots.Row]] = {}
    idle: dict[str, dict[str, float]] = {}
    devices = fitted.log.devices if fitted is not None else ()
    for contender in asked.contenders:
        schedules |= (drawn := draw_schedules(contender, asked.seeds, asked.time_budget))
        for (_, hyper), (label, own) in zip(contender.points(), drawn.items(), strict=True):
            idle[label] = _idle_shares(hyper, asked.seeds, own, devices)
    config = asked.described()
    folder.open()
    arrays = {label: _arrays(rows, asked.seeds) for label, rows in schedules.items()}
    folder.write_arrays("results.nc", {name.replace("/", "_"): arrays[name] for name in arrays})
    shares = {
        label: plots.ClientShares(each.update_share.values[0], each.influence.values[0])
        for label, each in arrays.items()
    }
    folder.write_figure("timeline.png", plots.timeline_figure([r[0] for r in schedules.values()]))
    folder.write_figure("influence.png", plots.influence_figure(shares))
    if fitted is not None:
        of_clients = dict(zip(fitted.log.clients, fitted.plots, strict=True))
        figure = plots.probability_figure(of_clients, _against_simulated(fitted))
        folder.write_figure("calibration.png", figure)
        folder.write_text("clients.csv", fitted.table.as_csv())
    facts: dict[str, dict[str, Any]] = {
        label: {**_facts(rows), "idle_share": idle[label]} for label, rows in schedules.items()
    }
    lanes = sum(map(len, schedules.values()))
    content: dict[str, Any] = {"lanes": lanes, "failed_lanes": 0, "systems": facts}
    if fitted is not None:
        content["calibration"] = {"law": fitted.law, "words": str(fitted).splitlines()}
    folder.finish({**config, **records.environment()}, content)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), **content})
        return

    rows = [
        {"system": label} | {title: _cell(name, own[name]) for name, title in COLUMNS.items()}
        for label, own in facts.items()
    ]
    for line in str(fitted).splitlines() if fitted is not None else ():
        tables.print_sentence(line)
    tables.print_table(rows)
    seeds = f"{len(asked.seeds)} seed{'s' * (len(asked.seeds) > 1)}"
    tables.print_sentence(f"Means over {seeds}. Written to {folder.path}")


def _cell(name: str, value: Any) -> str:
    """Write a fact; shares of classes one after another."""
    if isinstance(value, dict):
        return ", ".join(f"{of} {share:.0%}" for of, share in value.items()) or "-"
    if value is None or np.isnan(value):
        return "-"
    return f"{value:.0%}" if name.startswith("fast_") else f"{value:.4g}"


def _against_simulated(fitted: timelines.Calibration) -> dict[str, calibration.Numbers]:
    """Compare a log's times with simulated ones, drawn as by a clock.

    Args:
      fitted: Clients and a law that were fitted to the log.

    Returns:
      100 points of `time`; the share of work that took at most that time, `measured`, a mean of
      the clients' Kaplan-Meier estimates, which take account of unfinished work; and of simulated
      work, `low` and `high`, between which 95 % of the simulated logs are.
    """
    log = fitted.log
    time = np.geomspace(log.time[log.done].min(), log.time[log.done].max(), 100)
    measured, simulated = np.zeros(100), []
    ends = np.cumsum(np.bincount(log.client))[:-1]  # Rows are in order of clients.
    for own, done in zip(np.split(log.time, ends), np.split(log.done, ends), strict=True):
        seen, chance, _ = calibration.kaplan_meier(own, done)
        share = np.concatenate([[0], chance])[np.searchsorted(seen, time, "right")]
        measured += share * len(own) / len(log.client)
    with jax.enable_x64(True):
        for i in range(40):  # Logs, each with its own draw of rates and spreads.
            speeds = timelines.Speeds(*map(jax.numpy.asarray, fitted.draws[:, log.client, i]))
            drawn = timelines.draw_runtimes(jax.random.key(i), speeds, 1, fitted.law)
            place = np.searchsorted(np.sort(np.asarray(drawn)[:, 0]), time, "right")
            simulated.append(place / len(log.client))
    low, high = np.quantile(simulated, [0.025, 0.975], axis=0)
    return {"time": time, "measured": measured, "low": low, "high": high}


def draw_schedules(
    contender: comparison.Contender, seeds: Sequence[int], time_budget: float
) -> dict[str, list[plots.Row]]:
    """Draw the schedule of every point and seed.

    Points that differ in numbers alone are drawn together, as `sweep` does, which then finds the
    drawing program compiled.

    Args:
      contender: A system with its settings.
      seeds: Seeds of the schedules.
      time_budget: Virtual time at which they end.

    Returns:
      By label of the point: the schedules of all seeds.

    Raises:
      ConfigError: If the time budget is too short for one tick, or too long.
    """
    system, points = contender.system, contender.points()
    if system.live is not None:
        allowed = f"without {system.name}, whose schedule follows from what is learnt: run it"
        raise ConfigError("systems", system.name, allowed)
    if getattr(contender.hyper, "needs_message_bits", False):
        allowed = "set, with bits_down, as nothing else tells how long messages take"
        raise ConfigError("delays.bits_up", contender.hyper.delays.bits_up, allowed)
    hypers = [system.fit.complete(hyper, None) for _, hyper in points]
    lanes = [
        Lane(i, hyper, None, seed)  # type: ignore[arg-type]
        for i, (hyper, seed) in enumerate(itertools.product(hypers, seeds))
    ]
    of_lane: dict[int, Timeline] = {}
    for group in groups_of(lanes):
        schedules = drawing.Schedules.of(system, group, Time(time_budget))
        drawn, ticks = schedules.request()
        for lane, row in zip(group, schedules.row, strict=True):
            of_lane[lane.place] = Timeline(*(leaf[row, : ticks[row]] for leaf in drawn))
    found = {}
    for p, (label, hyper) in enumerate(points):
        num_senders = system.messages.num_senders(hyper) or hyper.num_clients
        senders = "groups" if isinstance(hyper, Groups) else "clients"
        found[label] = [
            plots.Row(label, of_lane[p * len(seeds) + s], num_senders, is_fast, senders)
            for s, is_fast in enumerate(_fast_clients(hyper, seeds))
        ]
    return found


def _fast_clients(hyper: Settings, seeds: Sequence[int]) -> Sequence[np.ndarray | None]:
    """Find which clients are fast, `bool[N]` per seed; None unless clients have two speeds."""
    law = hyper.delays if isinstance(hyper, Clients) and not isinstance(hyper, Groups) else None
    if law is None or law.trace is not None or law.client_table is not None or law.rate_spread > 0:
        return [None] * len(seeds)
    return [_rates(hyper, seed) > min(law.rate_fast, law.rate_slow) for seed in seeds]


def _rates(hyper: Clients, seed: int) -> np.ndarray:
    """Draw the clients' rates as the schedule of a seed does: `f64[N]`."""
    with jax.enable_x64(True):
        key = stream(jax.random.key(seed), "timeline")
        return np.asarray(timelines.draw_client_rates(key, hyper))


def _idle_shares(
    hyper: Settings, seeds: Sequence[int], rows: Sequence[plots.Row], devices: Sequence[str]
) -> dict[str, float]:
    """Find the share of time in which clients do not do work that the server receives.

    Work counts with its mean time. Messages, and work that is lost or not over, count as idle.

    Args:
      hyper: Settings of the point.
      seeds: Seeds of the schedules.
      rows: The schedules.
      devices: Classes of the clients' devices; () if unknown.

    Returns:
      By class, or for fast and slow clients, or for all: means over seeds. {} with a recorded
      trace and for groups, of whose clients a timeline does not know.
    """
    if isinstance(hyper, Groups) or not isinstance(hyper, Clients) or hyper.delays.trace:
        return {}
    found: dict[str, list[float]] = {}
    for seed, row in zip(seeds, rows, strict=True):
        mean_time = 1 / _rates(hyper, seed)
        updates = diagnostics.received(row.timeline)
        times = updates.steps if hyper.delays.time_of == "step" else np.ones(len(updates.steps))
        busy = np.bincount(updates.client, times, len(mean_time)) * mean_time
        names = np.asarray(devices)
        if not len(devices):
            speeds = np.array(["slow", "fast"])
            names = np.full(len(busy), "all") if row.is_fast is None else speeds[1 * row.is_fast]
        for name in np.unique(names):
            mean = float(busy[names == name].mean() / row.timeline.time[-1])
            found.setdefault(str(name), []).append(max(1 - mean, 0.0))
    return {name: float(np.mean(shares)) for name, shares in found.items()}


def _influence(row: plots.Row) -> np.ndarray:
    """Compute each client's share of the server's progress, as far as the schedule fixes it.

    Returns:
      `f64[N]`: the sum of a client's local steps, each times the weight of its slot, divided by the
      sum of all clients; 0 if nothing was received.
    """
    weighted = row.timeline._replace(weight=np.asarray(row.timeline.weight) * row.timeline.steps)
    by_client = diagnostics.influence(weighted, row.num_clients)
    return by_client / max(by_client.sum(), np.finfo(float).tiny)


def _facts(rows: Sequence[plots.Row]) -> dict[str, float | None]:
    """Measure the schedules of one point.

    Returns:
      By name of the fact: the mean over seeds, but the largest staleness of all; None for facts
      that need speeds if these are not known.
    """
    by_seed = []
    for row in rows:
        updates, num_ticks = diagnostics.received(row.timeline), len(row.timeline.time)
        clients, steps, staleness = updates.client, updates.steps, updates.staleness
        shares, is_fast, end = _influence(row), row.is_fast, float(row.timeline.time[-1])
        fast = dict.fromkeys(("fast_clients", "fast_reports", "fast_steps", "fast_influence"))
        if is_fast is not None:
            fast = {
                "fast_clients": is_fast.mean(),
                "fast_reports": is_fast[clients].mean() if len(clients) else np.nan,
                "fast_steps": steps[is_fast[clients]].sum() / max(steps.sum(), 1),
                "fast_influence": shares[is_fast].sum(),
            }
        first = diagnostics.time_to_first(row.timeline, row.num_clients)
        facts = {
            "virtual_time": end,
            "ticks": num_ticks,
            "time_per_tick": end / num_ticks,
            "throughput": len(clients) / end,
            "local_steps": steps.sum(),
            "reports_per_tick": len(clients) / num_ticks,
            "steps_per_tick": steps.sum() / num_ticks,
            "staleness_mean": staleness.mean() if len(clients) else np.nan,
            "staleness_median": np.median(staleness) if len(clients) else np.nan,
            "staleness_95": np.quantile(staleness, 0.95) if len(clients) else np.nan,
            "staleness_max": int(staleness.max(initial=0)),
            **fast,
            "jain_index": diagnostics.jain_index(shares),
            "entropy": diagnostics.entropy(shares),
            "largest_time_to_first": first.max(),
        }
        by_seed.append(facts)
    means = {
        name: None if first is None else float(np.mean([facts[name] for facts in by_seed]))
        for name, first in by_seed[0].items()
    }
    return means | {"staleness_max": max(facts["staleness_max"] for facts in by_seed)}


def _arrays(rows: Sequence[plots.Row], seeds: Sequence[int]) -> xr.Dataset:
    """Stack the schedules of a point with dimensions (seed, tick, slot).

    Shorter ones are padded to the longest with nan and `EMPTY`.
    """
    longest = max(len(row.timeline.time) for row in rows)
    data: dict[str, Any] = {}
    for name in Timeline._fields:
        leaves = [np.asarray(getattr(row.timeline, name)) for row in rows]
        fill = np.nan if leaves[0].dtype.kind == "f" else EMPTY
        padded = np.full((len(leaves), longest, *leaves[0].shape[1:]), fill, leaves[0].dtype)
        for place, leaf in zip(padded, leaves, strict=True):
            place[: len(leaf)] = leaf
        data[name] = (("seed", "tick", "slot")[: padded.ndim], padded)
    for of_clients in (diagnostics.update_share, diagnostics.time_to_first):
        found = [of_clients(row.timeline, row.num_clients) for row in rows]
        data[of_clients.__name__] = (("seed", "client"), np.stack(found))
    data["influence"] = (("seed", "client"), np.stack(list(map(_influence, rows))))
    return xr.Dataset(data, {"seed": seeds})
