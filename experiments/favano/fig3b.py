"""FAVANO's Fig. 3b: test accuracy against time, TinyImageNet IID, ResNet-18, 2/3 fast clients.

The learning rate is 0.1. The paper shows FAVANO clearly above all others. The full size is meant
for an accelerator; `--reduced` is smaller on the same images and says how. `--dataset FILE.npz`
takes the images from a file.
"""

from experiments.favano.claims import SMOKE, verdict
from experiments.favano.fig3a import FAVANO, SHOWN
from experiments.favano.setup import (
    TINY_IMAGENET,
    as_groups,
    final_percent,
    picture,
    runs,
    size_words,
)
from experiments.harness import Arguments, Outcome, table

COLUMN = "IID"


def run(arguments: Arguments) -> Outcome:
    """Run or read the methods, draw the figure, and judge claim 14."""
    ran = runs(arguments, TINY_IMAGENET, [COLUMN], SHOWN)
    final = final_percent(ran, COLUMN)
    holds = final[FAVANO] > max(final["FedAvg"], final["QuAFL"], final["FedBuff, lr"])
    why = f"holds if {FAVANO!r} ends above FedAvg, QuAFL and 'FedBuff, lr'; {size_words(ran)}"
    judged = verdict(14, final, *((None, SMOKE) if ran.config["smoke"] else (bool(holds), why)))
    text = table(
        ["method", "final accuracy, %"],
        [[method, f"{value:.1f}"] for method, value in final.items()],
    )
    figures = {"fig3b.png": picture(ran.of(COLUMN), "accuracy", title=ran.title(COLUMN))}
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config, text)
