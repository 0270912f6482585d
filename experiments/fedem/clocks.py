"""FedEM on clocks: when an asynchronous FedEM is sooner than rounds, in virtual time.

Judges claim 30, which is ours. Thirty clients with different means draw mini-batches of 5 of 20
examples, whose messages are block-2-quantized with omega = 1. An E-step takes a constant time for
all, an exponential one, or an exponential one that is eight times as long for a third of the
clients. Each method has the best of the step sizes, by the time at which the mean over seeds of
||h||^2 first is a thousandth of what it was at the start.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.fedem import setup
from experiments.fedem.claims import CLAIMS, SMOKE, verdict
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.results import plots
from fedjax_sim.server.compression import BlockQuantization

STUDY = Study(
    full=Sizes(seeds=10, time=200.0, gammas=(0.1, 0.2, 0.4, 0.8), num_evals=100),
    smoke=Sizes(seeds=2, time=10.0, gammas=(0.2,), num_evals=5),
)
NUM, TARGET = 30, 1e-3
SPEEDS: dict[str, dict[str, Any]] = {
    "constant": {"runtime_law": "runtime_geom", "rate_spread": 0.0},
    "exponential": {"rate_spread": 0.0},
    "a slow third": {"rate_spread": 0.0, "slow_fraction": 1 / 3, "rate_slow": 1 / 8},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "everyone": ("fedem", {"rounds": "cohorts", "num_selected": NUM}),
    "first 10 of 15": ("fedem", {"rounds": "cohorts", "num_selected": 10, "num_asked": 15}),
    "asynchronous": ("async_fedem", {"buffer_size": 10}),
}
OURS = "asynchronous"


def curves_of(speeds: str, method: str, sizes: Sizes, arguments: Arguments) -> xr.Dataset:
    """Run a method at all step sizes."""
    name, settings = METHODS[method]
    system = fedjax_sim.SYSTEMS[name]
    common = {"num_clients": NUM, "batch_size": 5, "compression": BlockQuantization(block=4)}
    return setup.curves_of(
        system,
        setup.Toy(setup.clients_apart(NUM, 20, 4, spread=2.0), 0.5).problem,
        system.Hyper(**common, **SPEEDS[speeds], **settings),
        settings={"gamma": sizes.gammas},
        seeds=sizes.seeds,
        budget=fedjax_sim.Time(sizes.time),
        num_evals=sizes.num_evals,
        **arguments.kept(f"{speeds} - {method}"),
    )


def mean_field(curves: xr.Dataset, grid: np.ndarray) -> np.ndarray:
    """Average ||h||^2 over seeds at given times: `f64[step sizes, times]`."""
    field = curves.mean_field.transpose("gamma", "seed", "eval").values
    time = np.broadcast_to(curves.time.transpose(..., "seed", "eval").values, field.shape)
    evals = (-1, field.shape[-1])
    found = plots.on_grid(time.reshape(evals), field.reshape(evals), grid)
    return found.reshape(*field.shape[:2], len(grid)).mean(axis=1)


def judge(found: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge claim 30 from the times to the target by speeds and method."""
    marks, parts = CLAIMS[30].criterion, {}
    for speeds, times in found.items():
        best = min(time for method, time in times.items() if method != OURS)
        ratio = best / times[OURS]
        is_even = speeds == "constant"
        holds = ratio <= marks.near if is_even else ratio >= marks.sooner
        parts[speeds] = harness.unless_unknown(holds and np.isfinite(ratio), [*times.values()])
    ruling = harness.rule(parts, deciding=harness.begins("a slow third"))
    told = "; ".join(
        f"{speeds}: " + ", ".join(f"{method} {time:.0f}" for method, time in times.items())
        for speeds, times in found.items()
    )
    return verdict(30, found, ruling, f"time to a thousandth: {told}")


JUDGES: Judges = {30: judge}


@plots.styled()
def draw(paths: Mapping[str, Mapping[str, np.ndarray]], grid: np.ndarray) -> Figure:
    """Draw ||h||^2 of each method at its best step size against virtual time."""
    figure = Figure(figsize=(13, 4.0))
    for axes, (speeds, each) in zip(figure.subplots(1, len(paths)), paths.items(), strict=True):
        for i, (method, path) in enumerate(each.items()):
            axes.plot(grid, path, label=method, **plots.look(i, "none", linestyle="-"))
        axes.set(title=speeds, xlabel="virtual time", ylabel="‖h(S)‖²", yscale="log")
    axes.legend()
    return figure


def run(arguments: Arguments) -> Outcome:
    """Run the methods with all speeds, and judge the times that they need."""
    sizes = STUDY.choose(arguments)
    grid = np.linspace(0, sizes.time, 401)
    curves: dict[str, xr.Dataset] = {}
    paths: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for speeds in SPEEDS:
        paths[speeds], found[speeds] = {}, {}
        for method in METHODS:
            own = curves[f"{speeds}, {method}"] = curves_of(speeds, method, sizes, arguments)
            fields = mean_field(own, grid)
            hit = fields <= TARGET * fields[:, :1]
            times = np.where(hit.any(axis=1), grid[hit.argmax(axis=1)], np.inf)
            paths[speeds][method] = fields[times.argmin()]
            found[speeds][method] = float(times.min())
    verdicts = harness.judge_all(JUDGES, {30: found}, SMOKE if arguments.smoke else "")
    figures = {"clocks.png": draw(paths, grid)}
    return Outcome(curves, figures, verdicts, sizes.config())
