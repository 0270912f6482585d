"""FAVANO's Fig. 2: test accuracy and client variance, MNIST non-IID, 1/9 fast clients.

The paper shows FedBuff levelling off well below FAVANO, as few fast clients fill the buffer. The
variance is sum_i ||w_i - w||^2 over the base models that clients hold. `--results` draws the figure
from a results folder of favano/table2.
"""

from experiments.favano.claims import JUDGED_BY_TABLE2, verdict
from experiments.favano.setup import METHODS, MNIST, as_groups, final_percent, picture, runs
from experiments.harness import NOT_RUN, Arguments, Outcome, table

COLUMN = "non-IID, 1/9 fast"
SHOWN = {
    name: METHODS[name]
    for name in ("FedAvg", "QuAFL", "FedBuff, lr", "FedBuff, fresh, lr", "FAVANO, stochastic")
}


def run(arguments: Arguments) -> Outcome:
    """Run or read the four methods, draw both panels, and report the final means."""
    ran = runs(arguments, MNIST, [COLUMN], SHOWN)
    by_method, final = ran.of(COLUMN), final_percent(ran, COLUMN)
    title = ran.title(COLUMN)
    figures = {
        "fig2_left.png": picture(by_method, "accuracy", title=title),
        "fig2_right.png": picture(by_method, "client_variance", title=title),
    }
    variance = {
        method: float(data.client_variance.isel(eval=-1).mean())
        for method, data in by_method.items()
    }
    judged = verdict(9, {"accuracy": final, "variance": variance}, NOT_RUN, JUDGED_BY_TABLE2)
    rows = [[method, f"{final[method]:.1f}", f"{variance[method]:.3g}"] for method in SHOWN]
    text = table(["method", "final accuracy, %", "final variance"], rows)
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config, text)
