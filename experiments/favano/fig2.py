"""FAVANO's Fig. 2: test accuracy and client variance, MNIST non-IID, 1/9 fast clients.

The paper shows FedBuff levelling off well below FAVANO, as few fast clients fill the buffer. All
readings of FedBuff and all weights of FAVANO are drawn. The variance is sum_i ||w_i - w||^2 over
the base models that clients hold. `--results` draws the figure from a results folder of
favano/table2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.favano import setup
from experiments.favano.claims import verdict
from experiments.favano.setup import METHODS, MNIST, side_by_side
from experiments.harness import Arguments, Judges, Outcome, Verdict, rule, unless_unknown

COLUMN = "non-IID, 1/9 fast"
BANDS = "10 and 90 % quantiles over seeds"
JUDGED = ("FedAvg", "QuAFL", "FedBuff, lr", "FedBuff, fresh, lr", "FAVANO, stochastic")
"""The methods whose variances claim 21 compares."""
SHOWN = METHODS


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw both panels, and report the final means."""
    ran = setup.runs(arguments, MNIST, [COLUMN], SHOWN)
    final = setup.final_percent(ran, COLUMN)
    by_method = {name: data for name, data in ran.of(COLUMN).items() if name in JUDGED}
    figures = {
        "fig2_left.png": setup.by_reading(ran, COLUMN),
        "fig2_right.png": side_by_side(
            {
                "squared distances of clients' models, summed": (
                    by_method,
                    "client_variance",
                    "time",
                )
            },
            title=setup.titled(ran, COLUMN),
            end=ran.config["time_budget"],
            columns=1,
        ),
    }
    variance = {
        method: float(data.client_variance.isel(eval=-1).mean())
        for method, data in by_method.items()
    }
    bands = {
        method: np.quantile(data.client_variance.isel(eval=-1).values, (0.1, 0.9)).tolist()
        for method, data in by_method.items()
    }
    judged = judge({"accuracy": final, "variance": variance, BANDS: bands})
    return Outcome(setup.as_groups(ran.curves), figures, [judged], ran.config)


def judge(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 21 by the quantiles over seeds of the variances at the end."""
    bands = measured[BANDS]
    ours = bands["FAVANO, stochastic"]
    parts = {
        f"below {name}": unless_unknown(ours[1] < band[0], [ours, band])
        for name, band in bands.items()
        if not name.startswith("FAVANO")
    }
    shown = ", ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in bands.items())
    ruling = rule(parts, deciding=lambda name: name.endswith("fresh, lr"))
    return verdict(21, measured, ruling, f"client variance at the end, {BANDS}: {shown}")


JUDGES: Judges = {21: judge}
