"""FAVANO's Fig. 5: loss, accuracy and client variance, MNIST non-IID, 1/9 fast clients.

The paper shows speed-ups in time for the asynchronous methods. It does not say which of its six
panels is which; all nine combinations with time, local steps and server steps are drawn. Local
steps are those delivered to the server. `--results` draws from a results folder of favano/table2.
"""

from experiments.favano.claims import JUDGED_BY_TABLE2, verdict
from experiments.favano.fig2 import COLUMN, SHOWN
from experiments.favano.setup import MNIST, as_groups, panels, runs, times_to
from experiments.harness import NOT_RUN, Arguments, Outcome, table

TARGET = 0.8


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw all panels, and report the time to 80 % accuracy."""
    ran = runs(arguments, MNIST, [COLUMN], SHOWN)
    reached = times_to(ran.of(COLUMN), TARGET)
    judged = verdict(9, {f"virtual time to {TARGET:.0%}": reached}, NOT_RUN, JUDGED_BY_TABLE2)
    rows = [
        [method, "not reached" if time is None else f"{time:.0f}"]
        for method, time in reached.items()
    ]
    text = table(["method", f"virtual time to {TARGET:.0%}"], rows)
    return Outcome(as_groups(ran.curves), panels(ran, COLUMN, "fig5"), [judged], ran.config, text)
