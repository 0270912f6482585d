"""FAVANO's Fig. 5: loss and accuracy, MNIST non-IID, 1/9 fast clients.

The paper shows speed-ups in time for the asynchronous methods. It does not say which of its six
panels is which; loss and accuracy are drawn against time, local steps and server steps, and the
client variance is in Fig. 2. Local steps are those delivered to the server. `--results` draws from
a results folder of favano/table2.
"""

from collections.abc import Mapping

from experiments.favano.claims import CLAIMS, verdict
from experiments.favano.fig2 import COLUMN, JUDGED
from experiments.favano.setup import METHODS, MNIST, against_all, as_groups, runs, times_to
from experiments.harness import Arguments, Judges, Outcome, Verdict, begins, rule, unless_unknown

SHOWN = {name: METHODS[name] for name in JUDGED}
TARGET = CLAIMS[22].criterion.target
TIMES = f"virtual time to {TARGET:.0%}"


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw all panels, and report the time to 80 % accuracy."""
    ran = runs(arguments, MNIST, [COLUMN], SHOWN)
    reached = times_to(ran.of(COLUMN), TARGET)
    judged = judge({TIMES: reached})
    figures = {"fig5.png": against_all(ran, COLUMN)}
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config)


def judge(measured: Mapping[str, Mapping[str, float | None]]) -> Verdict:
    """Judge claim 22: who reaches the accuracy before FedAvg does, None if neither reaches it."""
    times = measured[TIMES]
    last = times["FedAvg"]
    parts = {
        f"{name} before FedAvg": (None if last is None else False)
        if time is None
        else unless_unknown(last is None or time < last, [time])
        for name, time in times.items()
        if name != "FedAvg"
    }
    shown = ", ".join(
        f"{name} {'never' if time is None else f'{time:.0f}'}" for name, time in times.items()
    )
    ruling = rule(parts, deciding=begins("FAVANO"))
    return verdict(22, measured, ruling, f"{TIMES}, of T = 5000: {shown}")


JUDGES: Judges = {22: judge}
