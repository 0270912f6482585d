"""FAVANO's Fig. 1: test accuracy against virtual time, MNIST non-IID, 2/3 fast clients.

The paper shows the asynchronous methods far above FedAvg, and QuAFL poor. All readings of FedBuff
and all weights of FAVANO are drawn, as FedBuff's clock and rate decide how it does. `--results`
draws the figure from a results folder of favano/table2.
"""

from experiments.favano.claims import JUDGED_BY_TABLE2, verdict
from experiments.favano.setup import METHODS, MNIST, as_groups, by_reading, final_percent, runs
from experiments.harness import NOT_RUN, Arguments, Outcome

COLUMN = "non-IID, 2/3 fast"
SHOWN = METHODS


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw the figure, and report the final means."""
    ran = runs(arguments, MNIST, [COLUMN], SHOWN)
    final = final_percent(ran, COLUMN)
    return Outcome(
        as_groups(ran.curves),
        {"fig1.png": by_reading(ran, COLUMN)},
        [verdict(24, final, NOT_RUN, JUDGED_BY_TABLE2)],
        ran.config,
    )
