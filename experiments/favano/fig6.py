"""FAVANO's Fig. 6: loss and accuracy, CIFAR-10 non-IID, ResNet-20.

These are the runs of Fig. 3a, drawn as in Fig. 5. The full size is meant for an accelerator;
`--reduced` is smaller on the same images and says how. `--dataset FILE.npz` takes the images from a
file; `--results` draws from a results folder of favano/fig3a.
"""

from experiments.favano.claims import CLAIMS, verdict
from experiments.favano.fig3a import COLUMN, SHOWN
from experiments.favano.setup import CIFAR10, against_all, as_groups, runs, times_to
from experiments.harness import NOT_RUN, Arguments, Outcome, table

TARGET = CLAIMS[20].criterion.target


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw all panels, and report the time to 30 % accuracy."""
    ran = runs(arguments, CIFAR10, [COLUMN], SHOWN)
    reached = times_to(ran.of(COLUMN), TARGET)
    judged = verdict(
        20,
        {f"virtual time to {TARGET:.0%}": reached},
        NOT_RUN,
        "the runs of favano/fig3a at full size are needed",
    )
    rows = [
        [method, "not reached" if time is None else f"{time:.0f}"]
        for method, time in reached.items()
    ]
    text = table(["method", f"virtual time to {TARGET:.0%}"], rows)
    figures = {"fig6.png": against_all(ran, COLUMN)}
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config, text)
