"""FAVANO's Figs. 3a and 6: CIFAR-10 non-IID, ResNet-20, 2/3 fast clients.

The learning rate is 0.005; `--rate` has another one for all methods, whose run has its own record.
Fig. 3a shows FAVANO and FedBuff best, and FedBuff less steady; Fig. 6 has loss and accuracy, drawn
as in Fig. 5. The full size is meant for an accelerator. `--dataset FILE.npz` takes the images from
a file.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from experiments import harness
from experiments.favano import setup
from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.setup import METHODS
from experiments.harness import Arguments, Outcome, Sample, Verdict, lead
from fedjax_sim.results import plots

COLUMN = "non-IID, 2/3 fast"
SHOWN = {
    name: METHODS[name]
    for name in (
        "FedAvg",
        "QuAFL",
        "FedBuff, lr",
        "FedBuff, fresh, lr",
        "FAVANO, stochastic",
        "FAVANO, alpha = 1",
    )
}
FAVANO, FEDBUFF = "FAVANO, stochastic", "FedBuff, fresh, lr"
"""FedBuff by the counter of App. C.2, as in Table 2: its clients do not wait for the server."""
STEADY = "FedBuff less steady"
CHANCE = 10.0
"""Accuracy of chance, in percent."""
TARGET = CLAIMS[20].criterion.target
RATES = (0.005, 0.05, 0.1)
"""Rates that are worth a run with `--rate`; the paper's comes first."""


def run(arguments: Arguments) -> Outcome:
    """Run the methods, draw the figures, and judge claims 13 and 20."""
    ran = setup.runs(arguments, setup.CIFAR10, [COLUMN], SHOWN)
    inputs = setup.inputs_of(ran, COLUMN)
    curves, budget = ran.of(COLUMN), ran.config["time_budget"]
    inputs["unsteadiness"] = {name: unsteadiness(data) for name, data in curves.items()}
    inputs |= {"times": setup.times_to(curves, TARGET), "time_budget": budget}
    text = harness.spread_table(inputs["final"], CHANCE)
    figures = {
        "fig3a.png": plots.curves_figure(curves, "accuracy", title=ran.title(COLUMN)),
        "favano_fig6.png": setup.against_all(curves, title=setup.titled(ran, COLUMN), end=budget),
    }
    groups, verdicts = setup.as_groups(ran.curves), judge(inputs)
    panel = "" if arguments.rate is None else f"lr_{arguments.rate:g}"
    return Outcome(groups, figures, verdicts, ran.config, text, inputs, panel)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 13 on accuracies and unsteadiness, None if not kept, and claim 20 on times."""
    final = {name: Sample.read(each) for name, each in inputs["final"].items()}
    kept = inputs["unsteadiness"]
    wobble = None if kept is None else {name: Sample.read(each) for name, each in kept.items()}
    parts = {
        f"{first} above {second}": harness.ahead(final[first], final[second], CHANCE)
        for first in (FAVANO, FEDBUFF)
        for second in ("FedAvg", "QuAFL")
    }
    parts[STEADY] = harness.unless_collapsed(
        None if wobble is None else lead(wobble[FEDBUFF], wobble[FAVANO]).above(),
        (final[FEDBUFF], final[FAVANO]),
        CHANCE,
    )
    measured = {
        "final accuracy, %": {name: each.described(CHANCE) for name, each in final.items()},
        "unsteadiness, points": None
        if wobble is None
        else {name: each.described() for name, each in wobble.items()},
    }
    return [
        setup.decided(
            13, inputs, measured, parts, final, CHANCE, harness.begins(FAVANO, f"{FEDBUFF} ")
        ),
        judge_times(inputs, min(each.seeds for each in final.values())),
    ]


def judge_times(inputs: Mapping[str, Any], seeds: int) -> Verdict:
    """Judge claim 20: FAVANO's mean accuracy reaches the target before FedAvg's does."""
    times, small = inputs["times"], inputs["reduced"]
    measured = {f"virtual time to {TARGET:.0%}": times}
    if inputs["smoke"]:
        return verdict(20, measured, harness.NOT_RUN, SMOKE)
    compared = {name: times[name] for name in ("FedAvg", FAVANO, "QuAFL", FEDBUFF)}
    ruling = harness.rule(
        setup.before_fedavg(compared),
        harness.reduction(seeds, small),
        harness.begins("FAVANO"),
        substitute=small,
    )
    why = f"virtual time to {TARGET:.0%}, of T = {inputs['time_budget']:g}: {setup.told(times)}"
    return verdict(20, measured, ruling, why)


def unsteadiness(data: xr.Dataset) -> Sample:
    """Measure how much accuracy jumps in the second half of a run.

    It is the root mean square change between two evaluations, in points, of every seed; NaN for
    those that diverged.
    """
    late = 100 * data.accuracy.isel(eval=slice(data.sizes["eval"] // 2, None))
    values = np.sqrt((late.diff("eval") ** 2).mean("eval"))
    return Sample.of(values.where(~data.failed).values)
