"""FAVANO's Fig. 5: loss, accuracy and variance against time, and against local and server steps, MNIST non-IID, 1/9 fast clients.

To be seen: speed-ups in time for the asynchronous methods. The paper does not say which of its six panels is which; all nine
combinations are drawn. Local steps are those delivered to the server. `--results` draws from a folder of favano_table2.
"""

import sys

import numpy as np
import xarray as xr

from experiments.favano_claims import JUDGED_BY_TABLE2, verdict
from experiments.favano_fig2 import COLUMN, METHODS
from experiments.favano_mnist import as_groups, picture, runs
from experiments.support import Arguments, Outcome, main, table

METRICS = ("loss", "accuracy", "client_variance")
AXES = ("time", "local_steps", "ticks")
TARGET = 0.8


def run(arguments: Arguments) -> Outcome:
    """Run or read the four methods, draw all panels, report the time to 80 % accuracy."""
    ran = runs(arguments, [COLUMN], METHODS)
    by_method = {method: ran.curves[f"{method} | {COLUMN}"] for method in METHODS}
    figures = {
        f"fig5_{metric}_{axis}.png": picture(by_method, metric, title=ran.title(COLUMN), against=axis)
        for metric in METRICS
        for axis in AXES
    }
    reached = {method: first_time(data, TARGET) for method, data in by_method.items()}
    measured = {f"virtual time to {TARGET:.0%}": reached}
    rows = [[method, "not reached" if time is None else f"{time:.0f}"] for method, time in reached.items()]
    text = table(["method", f"virtual time to {TARGET:.0%}"], rows)
    return Outcome(as_groups(ran.curves), figures, [verdict(9, measured, None, JUDGED_BY_TABLE2)], ran.config, text)


def first_time(data: xr.Dataset, accuracy: float) -> float | None:
    """Virtual time at which the mean accuracy over seeds first reaches a value, among the evaluations; None if it never does.

    Over the seeds that did not diverge.
    """
    good = data.isel(seed=~data.failed.values)
    above = good.accuracy.mean("seed").values >= accuracy
    return float(good.time.mean("seed").values[np.argmax(above)]) if above.any() else None


if __name__ == "__main__":
    sys.exit(main("favano_fig5", __doc__ or "", run))
