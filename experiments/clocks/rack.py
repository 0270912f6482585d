"""Fifteen Raspberry Pis with FedAvg, FedBuff, FedStaleWeight and FedAsync against their clocks.

Judges claims 1 to 8 and 15 on drawn schedules, without learning: how many updates a system needs to
the target is taken from the rack. See `experiments.clocks.sources` for the measurements.

Dimension letters: `L` lanes, `T` server steps, `S` slots.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.clocks import sources
from experiments.clocks.verdicts import judge
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import timelines
from fedjax_sim.results.plots import look, styled
from fedjax_sim.systems import fedavg, fedbuff, fedstaleweight

FREE = timelines.ArrivalClock(restart="free")
"""A board goes on at once, from the newest model."""
BUFFERS = {"fedbuff": 10, "fedstaleweight": 10, "fedasync": 1}
SEEDS = ("1337", "1339")
"""Seeds of those runs in which every board has ten updates in FedBuff's log."""
NUM_FAST, NUM_SLOW, NUM_BOARDS = 10, 5, 15
UNKNOWN_TRIPS = 600
"""Updates of the run that did not reach the target."""
STUDY = Study(full=Sizes(seeds=200), smoke=Sizes(seeds=4))
"""Seeds are lanes: each has its own draw of the boards' speeds from what the log leaves open."""


class Found(NamedTuple):
    """What is compared of simulated runs.

    Attributes:
      update_share: Slow boards' share of updates.
      weight_share: Slow boards' share of weights, as the rack's server has them.
      staleness: Mean staleness of slow boards.
      fast_staleness: That of fast ones.
      law: Shares of updates by staleness, from 0.
    """

    update_share: float
    weight_share: float
    staleness: float
    fast_staleness: float
    law: np.ndarray


def measure(method: str, slow: np.ndarray, staleness: np.ndarray) -> Found:
    """Measure updates in the way of the rack's server.

    FedBuff's and FedAsync's weights are (1 + staleness)^(-1/2), and FedStaleWeight's staleness
    times buffer plus 1, divided by their sum in a buffer.

    Args:
      method: Name of the system.
      slow: Whether an update is from a slow board, `bool[..., S]`.
      staleness: `i64[..., S]`.
    """
    weight = (1.0 + staleness) ** -0.5
    if method == "fedstaleweight":
        weight = 1.0 + staleness * staleness.shape[-1]
        weight /= weight.sum(axis=-1, keepdims=True)
    law = np.bincount(staleness.ravel(), minlength=100) / staleness.size
    share = float(weight[slow].sum() / weight.sum())
    late, early = (float(staleness[each].mean()) for each in (slow, ~slow))
    return Found(float(slow.mean()), share, late, early, law)


def simulate(
    delays: Sequence[timelines.ClientDelays], method: str, updates: int, buffer: int = 0
) -> tuple[np.ndarray, Found]:
    """Draw schedules of boards that are always at work, with one choice of delays for each lane.

    Returns:
      Times of the server steps, `f64[L, T]`, and what is compared.
    """
    buffer = buffer or BUFFERS[method]
    hypers = [
        fedbuff.Hyper(num_clients=NUM_BOARDS, buffer_size=buffer, clock=FREE, delays=each)
        for each in delays
    ]
    drawn = harness.draw(fedbuff.system, hypers, 1, updates // buffer)
    staleness = np.arange(drawn.version.shape[2])[:, None] - drawn.version
    return drawn.time[:, 0], measure(method, drawn.clients >= NUM_FAST, staleness)


def of_share(share: float, lanes: int) -> list[timelines.ClientDelays]:
    """Return delays of two speeds, by which slow boards have a share of updates; else the paper's.

    Updates take times of FedStaleWeight's laws, which are uniform.
    """
    paper, fast = fedstaleweight.paper().delays, [True] * NUM_FAST + [False] * NUM_SLOW
    ratio = share / (1 - share) * NUM_FAST / NUM_SLOW
    table = timelines.ClientTable(
        np.where(fast, 1.0, ratio), np.where(fast, paper.spread_fast, paper.spread_slow)
    )
    law = paper.runtime_law
    return [timelines.ClientDelays(client_table=table, runtime_law=law, time_of="update")] * lanes


def from_share(regime: str, sizes: Sizes, own: bool = False) -> dict[str, tuple[float, float]]:
    """Pair the numbers of claims 1 to 3, or 15 if each system's own share is given."""
    runs: dict[str, list[sources.Row]] = {}
    for row in sources.rack_runs():
        if row["regime"] == regime and row["method"] in BUFFERS:
            runs.setdefault(row["method"], []).append(row)
    found: dict[str, tuple[float, float]] = {}
    buffer = 5 if regime == "buffers of five" else 0
    for method, rows in runs.items():
        share = mean(float(row["update_share"]) for row in (rows if own else runs["fedbuff"]))
        delays = of_share(share, sizes.seeds // len(rows) + 1)
        each = [
            simulate(delays, method, int(row["trips_to_target"] or UNKNOWN_TRIPS), buffer)[1]
            for row in rows
        ]
        for name in ("weight_share", "staleness", "fast_staleness"):
            told = f"{method}, {name.replace('_', ' ')}"
            values = [getattr(one, name) for one in each]
            found[told] = mean(float(row[name]) for row in rows), mean(values)
    return found


def log_of(rows: Sequence[sources.Row]) -> dict[str, list[str]]:
    """Turn updates of boards that are always at work into a log, with what runs at its end."""
    log: dict[str, list[str]] = {"client": [], "start": [], "finish": []}
    last: dict[str, str] = {}
    for row in [*rows, *({"board": name, "finish": ""} for name in {r["board"] for r in rows})]:
        name = row["board"]
        if last.get(name):
            for column, value in zip(log.values(), (name, last[name], row["finish"]), strict=True):
                column.append(value)
        last[name] = row["finish"]
    return log


def fitted(seed: str) -> timelines.Calibration:
    """Fit FedBuff's log of a seed, with the fast boards first."""
    rows = sources.rack_updates("fedbuff", seed)
    names = {row["board"]: f"{1 - row['board'].startswith('rpi5')} {row['board']}" for row in rows}
    return timelines.calibrate(log_of([row | {"board": names[row["board"]]} for row in rows]))


def from_log(seed: str, sizes: Sizes) -> tuple[dict[str, dict[str, tuple[float, float]]], Any]:
    """Pair the numbers of claims 4 to 8 of a seed, and return the laws of staleness."""
    fit, laws = fitted(seed), {}
    fixed: Any = fit.delays
    delays = [fixed.replace(client_table=each) for each in fit.draw_tables(sizes.seeds)]
    found: dict[str, dict[str, tuple[float, float]]] = {str(i): {} for i in range(4, 9)}
    for row in sources.rack_runs():
        if (row["regime"], row["seed"]) != ("noniid", seed):
            continue
        method, told = row["method"], f"{row['method']}, {seed}"
        measured = float(row["last_seconds"]) - float(row["first_seconds"])
        first, last = int(row["first_trips"]), int(row["last_trips"])
        if method == "fedavg":
            hypers = [
                fedavg.Hyper(num_clients=NUM_BOARDS, num_selected=NUM_BOARDS, delays=each)
                for each in delays
            ]
            time = harness.draw(fedavg.system, hypers, 1, last // NUM_BOARDS)[0][:, 0]
        else:
            time, simulated = simulate(delays, method, last)
        steps = BUFFERS.get(method, NUM_BOARDS)
        seconds = float(np.mean(time[:, -1] - time[:, first // steps - 1]))
        found["8"][told] = measured, seconds
        if method == "fedbuff":
            continue
        unit = NUM_BOARDS if method == "fedavg" else 1
        found["7"][told] = measured / (last - first) * unit, seconds / (last - first) * unit
        if method == "fedavg":
            continue
        for name in ("update_share", "weight_share"):
            words = f"{told}, {name.replace('_', ' ')}"
            found["5"][words] = float(row[name]), getattr(simulated, name)
        if method == "fedasync":
            for name in ("staleness", "fast_staleness"):
                words = f"{told}, {name.replace('_', ' ')}"
                found["6"][words] = float(row[name]), getattr(simulated, name)
        else:
            rows = sources.rack_updates(method, seed)
            staleness = np.array([int(each["staleness"]) for each in rows])
            law = np.bincount(staleness, minlength=100) / len(staleness)
            simulated = simulate(delays, method, len(rows))[1]
            laws = {"measured": law, "simulated": simulated.law}
            found["4"][seed] = 0.0, float(np.abs(law - simulated.law).sum() / 2)
    return found, laws


def run(arguments: Arguments) -> Outcome:
    """Simulate the rack, compare, and draw."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    inputs: dict[str, Any] = {"smoke": arguments.smoke}
    for number, regime in (("1", "noniid"), ("2", "iid"), ("3", "buffers of five")):
        inputs[number] = from_share(regime, sizes)
    inputs["15"], laws = from_share("noniid", sizes, own=True), {}
    for seed in SEEDS:
        found, laws[seed] = from_log(seed, sizes)
        for number, pairs in found.items():
            inputs.setdefault(number, {}).update(pairs)
    # Seconds to the target are means over seeds.
    by_system = {name.split(",")[0] for name in inputs["8"]}
    inputs["8"] = {
        system: tuple(
            np.mean([inputs["8"][f"{system}, {seed}"] for seed in SEEDS], axis=0).tolist()
        )
        for system in sorted(by_system)
    }
    ruled = judge(inputs)
    figures = {"staleness.png": draw_laws(laws), "seconds.png": draw_seconds(inputs["8"])}
    return Outcome({}, figures, ruled, sizes.config(), inputs=inputs)


@styled()
def draw_laws(laws: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw FedStaleWeight's laws of staleness, by seed."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, (seed, both) in zip(
        figure.subplots(1, len(laws), sharey=True), laws.items(), strict=True
    ):
        for number, (name, law) in enumerate(both.items()):
            axes.plot(law[:10], label=name, **look(number, "all"))
        axes.set(title=f"FedStaleWeight, seed {seed}", xlabel="staleness (server steps)")
    axes.legend()
    figure.axes[0].set_ylabel("share of updates")
    return figure


@styled()
def draw_seconds(pairs: Mapping[str, Sequence[float]]) -> Figure:
    """Draw simulated over measured seconds to the target."""
    figure = Figure(figsize=(4.6, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, pair) in enumerate(pairs.items()):
        axes.loglog(*pair, label=name, **look(number, "only"))
    ends = np.array([min(map(min, pairs.values())), max(map(max, pairs.values()))])
    axes.loglog(ends, ends, label="equal", **look(len(pairs), "none"))
    axes.set(xlabel="measured seconds to the target", ylabel="simulated seconds")
    axes.legend()
    return figure
