"""FedMissEM on counts from a file, whose truth is unknown (claim 20).

See arXiv 2111.02083, Sec. 4. `--dataset FILE` is a CSV with columns site, count (or birds; empty is
0), time (or winter or year, and month), and server or observer if there are any. Servers are taken
as they are; observers, or visits without either, are dealt to ten servers at random. Months of a
winter are numbered in order of time, not as in the calendar.

A tenth of the cells of log(1 + count) is withheld and predicted by FedMissEM, by EM on pooled
cells, and by means of sites and times. Runs are those of fedem/fig2, at rank 2. The ridge is the
one of a few that predicts another tenth of the cells best by pooled EM.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fedem.claims import CLAIMS, SMOKE, Found, verdict
from experiments.fedem.counts import COUNTS, Visits, read, synthetic
from experiments.fedem.fig2 import (
    OURS,
    PAPERS,
    UNDIVIDED,
    additive,
    fixed_point,
    problem_of,
    run_all,
    trend_figure,
)
from experiments.fedem.setup import figure_of
from experiments.harness import (
    Arguments,
    Interval,
    Outcome,
    Verdict,
    interval,
    rule,
    table,
    verdict_table,
)
from fedjax_sim.settings import ConfigError

RIDGES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ridges to choose from, on pooled cells.

FedMissEM uses the ridge over the number of servers, as its F is the servers' mean.
"""


def judge(found: Found) -> Verdict:
    """Judge claim 20 without a truth, on FedMissEM divided and not.

    The gain over means is in squared error on withheld cells. Nothing is known of EM's fixed point
    if EM itself did not come to its end within the steps allowed.
    """
    named, marks = {name: found[name] for name in (OURS, UNDIVIDED)}, CLAIMS[20].criterion
    runs, gain = named.values(), Interval.read(found["gain over means"])
    parts = {
        "F falls": all(run["F"] < run["F at first"] for run in runs),
        "ends at the centralised fixed point": all(
            run["‖h‖² left"] < marks.left and run["apart"] < marks.apart for run in runs
        )
        if found["EM's steps"] < found["steps allowed"]
        else None,
        "trend of pooled EM": all(run["trend"] > marks.trend for run in runs),
        "predicts withheld cells better than means": gain.above(),
    }
    shown = "; ".join(
        f"{name}: F from {run['F at first']:.5g} to {run['F']:.6g}, ‖h‖² to "
        f"{run['‖h‖² left']:.0e} of itself, {run['apart']:.1%} from EM's matrix, trend "
        f"correlates {run['trend']:.4f} with pooled EM's"
        for name, run in named.items()
    )
    why = (
        "waterfowl in Flanders, 1225 sites by 144 months, truth unknown; "
        f"{shown}; squared error on withheld cells lower than that of means by "
        f"{gain.mean:.4f} ± {gain.half:.4f} (95 %)"
    )
    return verdict(20, found, rule(parts), why)


def judge_kept(kept: Mapping[int, Found]) -> list[Verdict]:
    """Judge the claim from what was measured."""
    return [judge(kept[20])]


def run(arguments: Arguments) -> Outcome:
    """Fit the counts, predict the cells that were withheld, and judge.

    Raises:
      ConfigError: If there is no file; a smoke run makes its counts up.
    """
    if arguments.dataset is not None:
        name, visits = Path(arguments.dataset).name, read(Path(arguments.dataset).expanduser())
    elif arguments.smoke:
        name, visits = "made-up counts", synthetic(COUNTS.choose(arguments))
    else:
        raise ConfigError("dataset", None, "a CSV file of counts, such as counts.csv.gz")
    random = np.random.default_rng(1)
    cells = np.unique(visits.cells)
    lot = dict(zip(cells.tolist(), random.random(len(cells)).tolist(), strict=True))
    chance = np.array([lot[cell] for cell in visits.cells.tolist()])
    test, tune = visits.part(chance < 0.1), visits.part((chance >= 0.1) & (chance < 0.2))
    train = visits.part(chance >= 0.1)
    first = visits.part(chance >= 0.2)

    def rmse(matrix: np.ndarray, on: Visits) -> float:
        return float(np.sqrt(np.mean((matrix[on.site, on.time] - on.value) ** 2)))

    steps = 300 if arguments.smoke else 3000
    by_ridge = {
        ridge: rmse(fixed_point(problem_of(first, ridge, is_pooled=True), steps)[0], tune)
        for ridge in (RIDGES[:2] if arguments.smoke else RIDGES)
    }
    ridge = min(by_ridge, key=by_ridge.__getitem__)
    rounds = 300 if arguments.smoke else 2000
    most = 3000 if arguments.smoke else 20_000
    fits, loss, limit, taken = run_all(train, ridge, rounds, most, arguments)
    pooled = fixed_point(problem_of(train, ridge, is_pooled=True), steps)[0]
    predictions = {
        "mean of all": rmse(np.full(visits.shape, train.value.mean()), test),
        "site and time means": rmse(additive(train), test),
        "EM, pooled": rmse(pooled, test),
        f"EM of the servers, {taken} steps": rmse(limit, test),
        **{f"FedMissEM, {way}": rmse(fitted.matrix, test) for way, fitted in fits.items()},
    }
    seen = np.zeros(visits.shape, bool)
    seen[train.site, train.time] = True
    matrices = {
        "EM, pooled": pooled,
        "FedMissEM": fits[OURS].matrix,
        "the paper's settings": fits[PAPERS].matrix,
    }
    totals = {
        way: np.expm1(np.maximum(each.reshape(visits.shape), 0)).sum(axis=0)
        for way, each in matrices.items()
    }
    figures = {"observed.png": trend_figure(totals, seen, f"{name}: estimated counts")}
    lines = {
        way: (
            fitted.curves.ticks.values[0],
            np.maximum(fitted.curves.objective.values[0] - loss, 1e-12),
        )
        for way, fitted in fits.items()
    }
    figures["observed_objective.png"] = figure_of(lines, x="rounds", y="F less EM's limit")
    scale, trend = float(np.sqrt(np.mean(limit**2))), pooled.sum(axis=0)
    found: dict[str, Any] = {}
    for way in (OURS, UNDIVIDED):
        matrix, ran = fits[way].matrix, fits[way].curves
        field, objective = ran.mean_field.values[0], ran.objective.values[0]
        found[way] = {
            "F at first": float(objective[0]),
            "F": float(objective[-1]),
            "‖h‖² left": float(field[-1] / field[0]),
            "apart": float(np.sqrt(np.mean((matrix - limit) ** 2))) / scale,
            "trend": float(np.corrcoef(matrix.sum(axis=0), trend)[0, 1]),
        }
    gain = interval(per_cell(additive(train), test) - per_cell(fits[OURS].matrix, test))
    ended = {"EM's steps": taken, "steps allowed": most}
    judged = judge({**found, "gain over means": gain._asdict(), **ended})
    if arguments.smoke:
        judged = judged.undecided(f"{SMOKE}; ")
    config: dict[str, Any] = {
        "file": name,
        "sites": visits.shape[0],
        "times": visits.shape[1],
        "visits": len(visits.value),
        "share of cells seen": len(cells) / (visits.shape[0] * visits.shape[1]),
        "ridge": ridge,
        "RMSE by ridge, on a tenth for tuning": {
            str(each): value for each, value in by_ridge.items()
        },
        "RMSE": predictions,
    }
    rows = [[way, f"{value:.4f}"] for way, value in predictions.items()]
    text = "\n\n".join(
        [
            table(["predicting cells withheld", "RMSE of log(1 + count)"], rows),
            verdict_table([judged]),
        ]
    )
    curves = {f"FedMissEM, {way}": fitted.curves for way, fitted in fits.items()}
    return Outcome(curves, figures, [judged], config, text)


def per_cell(matrix: np.ndarray, visits: Visits) -> np.ndarray:
    """Return the mean squared error of a matrix on each visited cell: `f64[cells]`."""
    _, cell = np.unique(visits.cells, return_inverse=True)
    square = (matrix[visits.site, visits.time] - visits.value) ** 2
    return np.bincount(cell, square) / np.bincount(cell)
