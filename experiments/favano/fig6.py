"""FAVANO's Fig. 6: loss and accuracy, CIFAR-10 non-IID, ResNet-20.

These are the runs of Fig. 3a, drawn as in Fig. 5. The full size is meant for an accelerator.
`--dataset FILE.npz` takes the images from a file; `--results` draws from a results folder of
favano/fig3a.
"""

from collections.abc import Mapping
from typing import Any

from experiments import harness
from experiments.favano import setup
from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.fig3a import COLUMN, FEDBUFF, SHOWN
from experiments.harness import Arguments, Outcome, Verdict, rule

TARGET = CLAIMS[20].criterion.target


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw all panels, and report the time to 30 % accuracy."""
    ran = setup.runs(arguments, setup.CIFAR10, [COLUMN], SHOWN)
    reached = setup.times_to(ran.of(COLUMN), TARGET)
    inputs = {
        "times": reached,
        "seeds": ran.config["seeds"],
        **{name: ran.config[name] for name in ("time_budget", "reduced", "smoke")},
    }
    figures = {"fig6.png": setup.against_all(ran, COLUMN)}
    return Outcome(setup.as_groups(ran.curves), figures, judge(inputs), ran.config, inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 20: FAVANO's mean accuracy reaches the target before FedAvg's does.

    Args:
      inputs: The "times" at which methods reach it, None for never, and how they were run.
    """
    times, last = inputs["times"], inputs["times"]["FedAvg"]
    measured = {f"virtual time to {TARGET:.0%}": times}
    if inputs["smoke"]:
        return [verdict(20, measured, harness.NOT_RUN, SMOKE)]
    parts = {
        f"{name} before FedAvg": (None if last is None else False)
        if time is None
        else harness.unless_unknown(last is None or time < last, [time])
        for name, time in times.items()
        if name in ("FAVANO, stochastic", "QuAFL", FEDBUFF)
    }
    told = ", ".join(
        f"{name} {'never' if time is None else f'{time:.0f}'}" for name, time in times.items()
    )
    small = inputs["reduced"]
    ruling = rule(
        parts, harness.reduction(inputs["seeds"], small), harness.begins("FAVANO"), substitute=small
    )
    why = f"virtual time to {TARGET:.0%}, of T = {inputs['time_budget']:g}: {told}"
    return [verdict(20, measured, ruling, why)]
