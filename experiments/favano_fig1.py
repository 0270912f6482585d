"""FAVANO's Fig. 1: test accuracy against virtual time, MNIST non-IID, 2/3 fast clients.

To be seen: the asynchronous methods far above FedAvg, and QuAFL poor. `--results` draws it from a folder of favano_table2.
"""

import sys

from experiments.favano_claims import in_order, verdict
from experiments.favano_mnist import as_groups, percent, picture, runs, sizes_of
from experiments.support import Arguments, Outcome, main, table

COLUMN = "non-IID, 2/3 fast"
METHODS = ("FedAvg", "QuAFL", "FedBuff, lr", "FedBuff, fresh, lr", "FAVANO, stochastic")


def run(arguments: Arguments) -> Outcome:
    """Run or read the four methods, draw the figure, judge the order of claim 9 in this column."""
    curves = runs(arguments, [COLUMN], METHODS)
    by_method = {method: curves[f"{method} | {COLUMN}"] for method in METHODS}
    final = {method: percent(data)[0] for method, data in by_method.items()}
    holds, why = in_order(final, is_smoke=arguments.smoke)
    sizes = sizes_of(arguments)
    figure = picture(by_method, "accuracy", title=f"{sizes.dataset} {COLUMN}")
    config = {"dataset": sizes.dataset, "column": COLUMN, "time_budget": sizes.time_budget}
    rows = [[method, f"{value:.1f}"] for method, value in final.items()]
    text = table(["method", "final accuracy, %"], rows)
    return Outcome(as_groups(curves), {"fig1.png": figure}, [verdict(9, final, holds, why)], config, text)


if __name__ == "__main__":
    sys.exit(main("favano_fig1", __doc__ or "", run))
