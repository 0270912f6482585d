"""FAVANO's Fig. 3a: test accuracy against time, CIFAR-10 non-IID, ResNet-20, 2/3 fast clients.

The learning rate is 0.005. The paper shows FAVANO and FedBuff best, and FedBuff less steady. The
full size is meant for an accelerator; `--reduced` is smaller on the same images and says how.
`--dataset FILE.npz` takes the images from a file; `--results` draws from a results folder of
favano/fig6.
"""

import numpy as np
import xarray as xr

from experiments.favano.claims import SMOKE, verdict
from experiments.favano.setup import (
    CIFAR10,
    METHODS,
    as_groups,
    final_percent,
    picture,
    runs,
    size_words,
)
from experiments.harness import Arguments, Outcome, table

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
FAVANO, FEDBUFF = "FAVANO, stochastic", "FedBuff, lr"


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw the figure, and judge claim 13."""
    ran = runs(arguments, CIFAR10, [COLUMN], SHOWN)
    final = final_percent(ran, COLUMN)
    wobble = {method: unsteadiness(data) for method, data in ran.of(COLUMN).items()}
    rest = max(final["FedAvg"], final["QuAFL"])
    holds = min(final[FAVANO], final[FEDBUFF]) > rest and wobble[FEDBUFF] > wobble[FAVANO]
    why = (
        f"holds if {FAVANO!r} and {FEDBUFF!r} end above FedAvg and QuAFL, and the latter is less "
        f"steady; {size_words(ran)}"
    )
    judged = verdict(
        13,
        {"final": final, "unsteadiness": wobble},
        *((None, SMOKE) if ran.config["smoke"] else (bool(holds), why)),
    )
    rows = [[method, f"{final[method]:.1f}", f"{wobble[method]:.2f}"] for method in final]
    text = table(["method", "final accuracy, %", "unsteadiness, points"], rows)
    figures = {"fig3a.png": picture(ran.of(COLUMN), "accuracy", title=ran.title(COLUMN))}
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config, text)


def unsteadiness(data: xr.Dataset) -> float:
    """Measure how much accuracy jumps in the second half of a run.

    Returns:
      The root mean square change between two evaluations, in points, over seeds.
    """
    late = 100 * data.accuracy.isel(eval=slice(data.sizes["eval"] // 2, None))
    return float(np.sqrt((late.diff("eval") ** 2).mean()))
