"""FAVANO's Fig. 3b: test accuracy against time, TinyImageNet IID, ResNet-18, 2/3 fast clients.

The learning rate is 0.1. The paper shows FAVANO clearly above all others. The full size is meant
for an accelerator. `--dataset FILE.npz` takes the images from a file.
"""

from collections.abc import Mapping
from typing import Any

from experiments import harness
from experiments.favano import setup
from experiments.favano.fig3a import FAVANO, FEDBUFF, SHOWN
from experiments.harness import Arguments, Outcome, Sample, Verdict
from fedjax_sim.results import plots

COLUMN = "IID"
CHANCE = 0.5
"""Accuracy of chance, in percent."""


def run(arguments: Arguments) -> Outcome:
    """Run the methods, draw the figure, and judge claim 14."""
    ran = setup.runs(arguments, setup.TINY_IMAGENET, [COLUMN], SHOWN)
    inputs = setup.inputs_of(ran, COLUMN)
    text = harness.spread_table(inputs["final"], CHANCE)
    figures = {
        "fig3b.png": plots.curves_figure(ran.of(COLUMN), "accuracy", title=ran.title(COLUMN))
    }
    return Outcome(setup.as_groups(ran.curves), figures, judge(inputs), ran.config, text, inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 14 on the final accuracies."""
    final = {name: Sample.read(each) for name, each in inputs["final"].items()}
    parts = {
        f"above {other}": harness.ahead(final[FAVANO], final[other], CHANCE)
        for other in ("FedAvg", "QuAFL", FEDBUFF)
    }
    measured = {"final accuracy, %": {name: x.described(CHANCE) for name, x in final.items()}}
    return [setup.decided(14, inputs, measured, parts, final, CHANCE)]
