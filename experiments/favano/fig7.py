"""FAVANO's Fig. 7: FAVANO[QNN] and FAVANO[32 bits] for several cohort sizes s, CIFAR-10 non-IID.

The network is ResNet-20. QNN has 3-bit weights and activations and 4-bit neural gradients in local
training. The paper shows that a larger s is better and that few bits lose little. Its values of s
are not known to us: a twentieth, a fifth and a half of the clients are taken. The full size is
meant for an accelerator; `--reduced` is smaller on the same images and says how. `--dataset
FILE.npz` takes the images from a file.
"""

from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.setup import (
    CIFAR10,
    Method,
    as_groups,
    final_percent,
    picture,
    runs,
    size_words,
)
from experiments.harness import Arguments, Outcome, table
from fedjax_sim.systems import favano

COLUMN = "non-IID, 2/3 fast"
SHARES = (1 / 20, 1 / 5, 1 / 2)
BITS = {"32 bits": None, "QNN": (3, 3, 4)}
CLOSE = CLAIMS[15].criterion.lost


def run(arguments: Arguments) -> Outcome:
    """Run or read all pairs, draw the figure, and judge claim 15."""
    num_clients = CIFAR10.study.choose(arguments).shared.get("num_clients", 100)
    sizes = [max(1, round(share * num_clients)) for share in SHARES]
    methods = {
        f"{bits}, s = {s}": Method(favano.system, {"num_selected": s}, BITS[bits])
        for s in sizes
        for bits in BITS
    }
    ran = runs(arguments, CIFAR10, [COLUMN], methods)
    final = final_percent(ran, COLUMN)
    whole, low = ([final[f"{bits}, s = {s}"] for s in sizes] for bits in BITS)
    lost = [a - b for a, b in zip(whole, low, strict=True)]
    holds = whole == sorted(whole) and low == sorted(low) and max(lost) < CLOSE
    numbers = ", ".join(f"{x:.1f}" for x in lost)
    why = (
        f"holds if accuracy grows with s and QNN loses under {CLOSE:g} points; lost {numbers}; "
        f"{size_words(ran)}"
    )
    judged = verdict(15, final, *((None, SMOKE) if ran.config["smoke"] else (bool(holds), why)))
    text = table(
        ["method", "final accuracy, %"],
        [[method, f"{value:.1f}"] for method, value in final.items()],
    )
    figures = {"fig7.png": picture(ran.of(COLUMN), "accuracy", title=ran.title(COLUMN))}
    return Outcome(as_groups(ran.curves), figures, [judged], ran.config, text)
