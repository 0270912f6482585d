"""FAVANO's Fig. 7: FAVANO[QNN] and FAVANO[32 bits] for several cohort sizes s, CIFAR-10 non-IID.

The network is ResNet-20. QNN has 3-bit weights and activations and 4-bit neural gradients in local
training. The paper shows that a larger s is better and that few bits lose little. Its values of s
are not known to us: a twentieth, a fifth and a half of the clients are taken. The full size is
meant for an accelerator. `--reduced` alone has the paper's 100 clients and its settings for MNIST.
`--dataset FILE.npz` takes colour images from a file.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from experiments import harness
from experiments.favano import claims, setup
from experiments.favano.setup import Method
from experiments.harness import Arguments, Outcome, Sample, Verdict, lead
from fedjax_sim.results import plots
from fedjax_sim.systems import favano

ON_MNIST = setup.MNIST._replace(
    study=setup.MNIST.study._replace(
        reduced=setup.MNIST.study.full.replace(
            time_budget=2500.0,
            words="MNIST and an MLP 784-32-10 in place of CIFAR-10 and ResNet-20, T = 2500",
        )
    )
)
"""What `--reduced` runs."""
COLUMN = "non-IID, 2/3 fast"
SHARES = (1 / 20, 1 / 5, 1 / 2)
BITS = {"32 bits": None, "QNN": (3, 3, 4)}
CLOSE = claims.CLAIMS[25].criterion.close
NEAR = "QNN close to 32 bits"
CHANCE = 10.0
"""Accuracy of chance, in percent."""


def run(arguments: Arguments) -> Outcome:
    """Run all pairs, draw the figure, and judge claims 15 and 25."""
    images = ON_MNIST if arguments.reduced else setup.CIFAR10
    num_clients = images.study.choose(arguments).shared.get("num_clients", 100)
    sizes = [max(1, round(share * num_clients)) for share in SHARES]
    methods = {
        f"{bits}, s = {s}": Method(favano.system, {"num_selected": s}, BITS[bits])
        for s in sizes
        for bits in BITS
    }
    ran = setup.runs(arguments, images, [COLUMN], methods)
    inputs = setup.inputs_of(ran, COLUMN)
    text = harness.spread_table(inputs["final"], CHANCE)
    rate = ran.config["settings"][f"{next(iter(methods))} | {COLUMN}"]["lr"]
    title = (
        f"{ran.config['dataset']}, {COLUMN}, {ran.config['model']}, lr {rate:g}, "
        f"T = {ran.config['time_budget']:g}"
    )
    figures = {"fig7.png": plots.curves_figure(ran.of(COLUMN), "accuracy", title=title)}
    return Outcome(setup.as_groups(ran.curves), figures, judge(inputs), ran.config, text, inputs)


def judge(inputs: Mapping[str, Any], numbers: tuple[int, int] = (15, 25)) -> list[Verdict]:
    """Judge claims 15 and 25 on the final accuracies, or two others that say the same.

    Methods are named "32 bits, s = 4" and "QNN, s = 4".
    """
    final = {name: Sample.read(each) for name, each in inputs["final"].items()}
    sizes = sorted({int(name.rpartition(" ")[2]) for name in final})
    by_size, by_bits = dict[str, bool | None](), dict[str, bool | None]()
    for bits, (small, large) in itertools.product(BITS, itertools.pairwise(sizes)):
        by_size[f"{bits}: s = {large} above {small}"] = harness.ahead(
            final[f"{bits}, s = {large}"], final[f"{bits}, s = {small}"], CHANCE
        )
    for s in sizes:
        low, whole = final[f"QNN, s = {s}"], final[f"32 bits, s = {s}"]
        near = lead(low, whole).within(CLOSE)
        by_bits[f"{NEAR} at s = {s}"] = harness.unless_collapsed(near, (low, whole), CHANCE)
        by_bits[f"QNN below 32 bits at s = {s}"] = harness.ahead(whole, low, CHANCE)
    measured = {"final accuracy, %": {name: x.described(CHANCE) for name, x in final.items()}}
    return [
        setup.decided(numbers[0], inputs, measured, by_size, final, CHANCE),
        setup.decided(numbers[1], inputs, measured, by_bits, final, CHANCE, harness.begins(NEAR)),
    ]
