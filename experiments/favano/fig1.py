"""FAVANO's Fig. 1: test accuracy against virtual time, MNIST non-IID, 2/3 fast clients.

The paper shows the asynchronous methods far above FedAvg, and QuAFL poor. `--results` draws the
figure from a results folder of favano/table2.
"""

from experiments.favano.claims import JUDGED_BY_TABLE2, verdict
from experiments.favano.setup import METHODS, MNIST, as_groups, final_percent, picture, runs
from experiments.harness import NOT_RUN, Arguments, Outcome, table

COLUMN = "non-IID, 2/3 fast"
SHOWN = {
    name: METHODS[name]
    for name in ("FedAvg", "QuAFL", "FedBuff, lr", "FedBuff, fresh, lr", "FAVANO, stochastic")
}


def run(arguments: Arguments) -> Outcome:
    """Run or read the four methods, draw the figure, and report the final means."""
    ran = runs(arguments, MNIST, [COLUMN], SHOWN)
    by_method, final = ran.of(COLUMN), final_percent(ran, COLUMN)
    figure = picture(by_method, "accuracy", title=ran.title(COLUMN))
    rows = [[method, f"{value:.1f}"] for method, value in final.items()]
    text = table(["method", "final accuracy, %"], rows)
    return Outcome(
        as_groups(ran.curves),
        {"fig1.png": figure},
        [verdict(24, final, NOT_RUN, JUDGED_BY_TABLE2)],
        ran.config,
        text,
    )
