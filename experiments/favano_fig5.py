"""FAVANO's Fig. 5: loss, accuracy and variance against time, and against local and server steps, MNIST non-IID, 1/9 fast clients.

To be seen: speed-ups in time for the asynchronous methods. The paper does not say which of its six panels is which; all nine
combinations are drawn. Local steps are those delivered to the server. `--results` draws from a folder of favano_table2.
"""

import sys

import numpy as np
import xarray as xr

from experiments.favano_claims import verdict
from experiments.favano_fig2 import COLUMN, METHODS
from experiments.favano_mnist import as_groups, picture, runs, sizes_of
from experiments.support import Arguments, Outcome, main, table

METRICS = ("loss", "accuracy", "client_variance")
AXES = ("time", "local_steps", "ticks")
TARGET = 0.8


def run(arguments: Arguments) -> Outcome:
    """Run or read the four methods, draw all panels, report the time to 80 % accuracy."""
    curves = runs(arguments, [COLUMN], METHODS)
    by_method = {method: curves[f"{method} | {COLUMN}"] for method in METHODS}
    sizes = sizes_of(arguments)
    figures = {
        f"fig5_{metric}_{axis}.png": picture(by_method, metric, title=f"{sizes.dataset} {COLUMN}", against=axis)
        for metric in METRICS
        for axis in AXES
    }
    reached = {method: first_time(data, TARGET) for method, data in by_method.items()}
    known = {method: time for method, time in reached.items() if time is not None}
    holds = None if arguments.smoke else reached["FAVANO, stochastic"] == min(known.values(), default=-1.0)
    why = (
        "not judged: a smoke run on digits is too small"
        if arguments.smoke
        else f"this column only, in time: holds if FAVANO's mean accuracy is the first to reach {TARGET:.0%}"
    )
    measured = {f"virtual time to {TARGET:.0%}": reached}
    config = {"dataset": sizes.dataset, "column": COLUMN, "time_budget": sizes.time_budget}
    rows = [[method, "not reached" if time is None else f"{time:.0f}"] for method, time in reached.items()]
    text = table(["method", f"virtual time to {TARGET:.0%}"], rows)
    return Outcome(as_groups(curves), figures, [verdict(9, measured, holds, why)], config, text)


def first_time(data: xr.Dataset, accuracy: float) -> float | None:
    """Virtual time at which the mean accuracy over seeds first reaches a value, among the evaluations; None if it never does."""
    above = data.accuracy.mean("seed").values >= accuracy
    return float(data.time.mean("seed").values[np.argmax(above)]) if above.any() else None


if __name__ == "__main__":
    sys.exit(main("favano_fig5", __doc__ or "", run))
