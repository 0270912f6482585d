"""Ten machines with FedAsync, FedAvg and FedProx against their clocks (AsyncFedED's measurements).

Judges claims 9 to 14 on drawn schedules, without learning: how many updates a system needs to the
target is taken from the machines. A clock is fitted to the first half of a run of FedAsync. The
first update of each machine, which includes its start-up, is left out of logs and of seconds. If
a machine has fewer than ten updates in that half, as in two runs on Shakespeare, the fit would be
refused: then it is to the whole run, from which other runs are predicted, but not its own second
half. The staleness of measured updates is not published, and follows from the order of their ends.

Dimension letters: `L` lanes, `T` server steps, `R` updates.
"""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.clocks import sources
from experiments.clocks.rack import FREE, draw_seconds
from experiments.clocks.verdicts import judge
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import timelines
from fedjax_sim.results.plots import look, styled
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines import calibration

NUM = 10
STUDY = Study(full=Sizes(seeds=20), smoke=Sizes(seeds=2))
"""Seeds are lanes: each has its own draw of the machines' speeds from what the log leaves open."""
LAW = 200
"""Staleness from which on updates are counted together."""


class Window(NamedTuple):
    """What is compared of the second half of runs, in time.

    Attributes:
      shares: The machines' shares of updates, `f64[10]`.
      throughput: Updates per second.
      law: Shares of updates by staleness, `f64[LAW + 1]`.
    """

    shares: np.ndarray
    throughput: float
    law: np.ndarray


def measure(client: np.ndarray, time: np.ndarray, staleness: np.ndarray, half: float) -> Window:
    """Measure the updates that end in the second half of a run. All arguments are `[R]`."""
    late = (time > half) & (time <= 2 * half)
    count = np.bincount(client[late], minlength=NUM)
    law = np.bincount(np.minimum(staleness[late], LAW), minlength=LAW + 1)
    return Window(count / count.sum(), count.sum() / half, law / count.sum())


def staleness_of(client: np.ndarray) -> np.ndarray:
    """Count the updates of others between a client's updates, `i64[R]`; before its first: all."""
    place, last = np.arange(len(client)), np.full(NUM, -1)
    found = np.zeros(len(client), np.int64)
    for i, who in zip(place, client, strict=True):
        found[i] = i - last[who] - 1
        last[who] = i
    return found


def updates_of(times: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the machines and the ends of all updates but the first ones, in order: `[R]`."""
    ends = [np.cumsum(each[1:]) for each in times]
    client = np.repeat(np.arange(NUM), [len(each) for each in ends])
    order = np.argsort(np.concatenate(ends), kind="stable")
    return client[order], np.concatenate(ends)[order]


def fitted(times: Sequence[np.ndarray], half: float) -> timelines.Calibration:
    """Fit the updates that began before the half of a run; those not ended then are censored."""
    log: dict[str, list[float]] = {"client": [], "start": [], "finish": [], "censored": []}
    for client, each in enumerate(times):
        ends = np.cumsum(each[1:])
        start = np.concatenate([[0.0], ends[:-1]])
        for begin, end in zip(start[start < half], ends[start < half], strict=True):
            row = (client, begin, min(end, half), float(end > half))
            for column, value in zip(log.values(), row, strict=True):
                column.append(value)
    return timelines.calibrate(log)


def simulate(fit: timelines.Calibration, sizes: Sizes, length: float) -> tuple[Any, np.ndarray]:
    """Draw schedules of FedAsync at least that long, and FedAvg's times of rounds, `f64[L, T]`."""
    fixed: Any = fit.delays
    delays = [fixed.replace(client_table=each) for each in fit.draw_tables(sizes.seeds)]
    hypers = [
        fedbuff.Hyper(num_clients=NUM, buffer_size=1, clock=FREE, delays=each) for each in delays
    ]
    ticks = int(1.3 * length * np.median(fit.draws[0], axis=-1).sum())
    rounds = [fedavg.Hyper(num_clients=NUM, num_selected=NUM, delays=each) for each in delays]
    drawn = harness.draw(fedbuff.system, hypers, 1, ticks)
    return drawn, harness.draw(fedavg.system, rounds, 1, 200)[0][:, 0]


def compare(task: str, run: str, sizes: Sizes) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Pair the numbers of claims 9 to 14 of a run, and return what is drawn."""
    times = sources.machine_times(task, "Constant")[run]
    half = min(float(each[1:].sum()) for each in times) / 2
    client, ends = updates_of(times)
    measured = measure(client, ends, staleness_of(client), half)
    is_whole = any(np.sum(np.cumsum(each[1:]) < half) < calibration.LEAST_ROWS for each in times)
    fit, told = fitted(times, 2 * half if is_whole else half), f"{task}, run {run}"
    drawn, rounds = simulate(fit, sizes, 2 * half)
    lanes = []
    for time, version, who in zip(drawn.time, drawn.version, drawn.clients, strict=True):
        stale = np.arange(len(time[0])) - version[0, :, 0]
        lanes.append(measure(who[0, :, 0], time[0], stale, half))
    simulated = Window(*(np.mean(each, axis=0) for each in zip(*lanes, strict=True)))
    begun = {mode: sources.machine_times(task, mode)[run] for mode in ("Constant", "FedAvg")}
    first = {mode: float(np.median([each[0] for each in by])) for mode, by in begun.items()}
    seconds, mean_round = {}, float(np.diff(rounds).mean())
    for mode, rows in sources.machine_targets(task).items():
        row, waits = rows[int(run)], mode in ("FedAvg", "Prox")
        if not row["seconds"]:
            continue
        begins, updates = first["FedAvg" if waits else "Constant"], round(float(row["updates"]))
        steps = (updates - NUM) / NUM * mean_round
        if not waits:
            steps = float(np.mean(drawn.time[:, 0, updates - 1 - NUM]))
        seconds[f"{task}, {mode}"] = float(row["seconds"]) - begins, steps
    row = sources.machine_targets(task)["FedAvg"][int(run)]
    num_rounds = float(row["last_updates"]) / NUM - 1
    found: dict[str, Any] = {
        "12": {told: ((float(row["last_seconds"]) - first["FedAvg"]) / num_rounds, mean_round)},
        "13": seconds,
        "14": {told: (0.0, float(len(fit.poor)))},
    }
    if not is_whole:
        found["9"] = {told: (0.0, distance(measured.shares, simulated.shares))}
        found["10"] = {told: (measured.throughput, float(simulated.throughput))}
        found["11"] = {told: (0.0, distance(measured.law, simulated.law))}
    return found, {"fit": fit, "measured": measured, "simulated": simulated}


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the total variation between two laws."""
    return float(np.abs(one - other).sum() / 2)


def run(arguments: Arguments) -> Outcome:
    """Simulate the machines, compare, and draw."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    inputs: dict[str, Any] = {"smoke": arguments.smoke} | {str(i): {} for i in range(9, 15)}
    drawn: dict[str, Any] = {}
    seconds: dict[str, list[tuple[float, float]]] = {}
    for task in sources.TASKS:
        for number in "0" if arguments.smoke else map(str, range(sources.NUM_RUNS)):
            found, told = compare(task, number, sizes)
            if "11" in found:  # Pictures are of the first run of a task that is predicted.
                drawn.setdefault(task, told)
            for name, pair in found.pop("13").items():
                seconds.setdefault(name, []).append(pair)
            for claim, pairs in found.items():
                inputs[claim].update(pairs)
    inputs["13"] = {name: np.mean(pairs, axis=0).tolist() for name, pairs in seconds.items()}
    ruled = judge(inputs)
    figures = {
        "times.png": draw_times({task: each["fit"] for task, each in drawn.items()}),
        "staleness.png": draw_laws(drawn),
        "seconds.png": draw_seconds(inputs["13"]),
    }
    laws = {task: str(each["fit"]) for task, each in drawn.items()}
    text = "\n".join(starmap("{}: {}".format, laws.items()))
    return Outcome({}, figures, ruled, sizes.config(), text, inputs)


@styled()
def draw_times(fits: Mapping[str, timelines.Calibration]) -> Figure:
    """Draw probability plots of one run of each task."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (task, fit) in zip(figure.subplots(1, len(fits)), fits.items(), strict=True):
        for number, (name, (law, seen, _)) in enumerate(
            zip(fit.log.clients, fit.plots, strict=True)
        ):
            axes.plot(law, seen, label=name, **look(number, "none", linewidth=1))
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.5)
        axes.set(title=f"{task}: {fit.law}", xlabel="probability by the law")
    figure.axes[0].set_ylabel("share of updates")
    figure.axes[0].legend(fontsize=6, title="machine")
    return figure


@styled()
def draw_laws(drawn: Mapping[str, Any]) -> Figure:
    """Draw the laws of staleness of one run of each task."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (task, each) in zip(figure.subplots(1, len(drawn)), drawn.items(), strict=True):
        for number, name in enumerate(("measured", "simulated")):
            law = np.cumsum(each[name].law)
            axes.semilogx(np.arange(1, len(law) + 1), law, label=name, **look(number, "none"))
        axes.set(title=task, xlabel="staleness + 1 (server steps)")
    figure.axes[0].set_ylabel("share of updates with at most that")
    figure.axes[0].legend()
    return figure
