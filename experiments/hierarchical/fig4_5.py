"""Hierarchical FL's Figs. 4 and 5: cooperating against isolated groups (claims 12 and 13).

See arXiv 2302.04851. CIFAR-10, the CNN. Fig. 4 has 5 and 15 clients, Fig. 5 has 10 and 10. Data
follow Dirichlet(0.1) among the groups and are i.i.d. within (Figs. 4, 5b), or clients have two
labels and groups have no label in common (Fig. 5a). Delays are those of Fig. 3. S = 5 is compared
with groups that are isolated until T, each at its own learning rate, as `tuning` says. Every model
is tested on the common test set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import (
    Arguments,
    Interval,
    Outcome,
    Sample,
    Sizes,
    Study,
    Verdict,
    unless_collapsed,
)
from experiments.hierarchical import setup, tuning
from experiments.hierarchical.claims import CLAIMS
from experiments.hierarchical.tuning import Measured
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.reporting import plots

STUDY = Study(
    full=tuning.sizes(setup.CIFAR10, tuning.FULL),
    smoke=tuning.sizes(setup.DIGITS, tuning.SMOKE),
    reduced=tuning.sizes(setup.MNIST, tuning.FULL),
)
TOGETHER = "cooperating, S = 5"
PANELS: dict[str, tuple[tuple[int, int], str, dict[str, Any]]] = {
    "fig4": ((5, 15), "dirichlet_groups", {"alpha": 0.1}),
    "fig5a": ((10, 10), "disjoint_groups", {"classes": 2}),
    "fig5b": ((10, 10), "dirichlet_groups", {"alpha": 0.1}),
}
LOOKS = 32
"""Evaluations of isolated groups. The last one is at T to the bit, which needs a power of two."""


def alone(time: float) -> dict[str, Any]:
    """Return the settings of groups that are isolated until T, with evaluations by then.

    Their only round would end at 2 T, so that an evaluation falls on T. The last one of a round
    with S = T would come later, and after an exchange.
    """
    return {"sync_time": 2 * time, "ticks_per_round": 2 * LOOKS, "group_metrics": True}


def run(arguments: Arguments) -> Outcome:
    """Run the three panels, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    data = setup.load(arguments, size)
    found = {name: measure(arguments, size, data, name) for name in PANELS}
    panels = {name: gains(size, name, runs) for name, runs in found.items()}
    inputs = setup.inputs_of(arguments, STUDY, size, panels=panels)
    figures = {
        f"{name}.png": plots.curves_figure(
            {f"{label}, lr {each.lr:g}": each.curves for label, each in runs.items()},
            "accuracy",
            title=f"{tuning.title_of(name)}, {setup.words_of(size)}",
        )
        for name, runs in found.items()
    }
    figures["sensitivity.png"] = tuning.sensitivity_figure(size, found)
    return tuning.outcome(size, found, figures, judge(inputs), inputs)


def measure(arguments: Arguments, size: Sizes, data: Dataset, name: str) -> dict[str, Measured]:
    """Run a panel: the cooperating groups, and each group alone.

    Args:
      arguments: The command line.
      size: The size of the study.
      data: The images.
      name: The panel's name.
    """
    sizes, kind, options = PANELS[name]

    def make(images: Dataset, seeds: Sequence[int]) -> list[Classification]:
        return setup.split(
            images, size, kind, sum(sizes), seeds=seeds, group_sizes=sizes, **options
        )

    tasks = tuning.stages(data, size, make)
    clock = setup.clock(sizes, setup.FIG3, group_sizes=sizes)
    runs = {TOGETHER: ({"sync_time": 5.0}, "accuracy")} | {
        f"group {i + 1} of {sizes[i]} alone": (alone(size.time), f"accuracy_group_{i}")
        for i in range(2)
    }
    return {
        label: tuning.measure(arguments, size, f"{name}, {label}", tasks, clock | changes, metric)
        for label, (changes, metric) in runs.items()
    }


def gains(size: Sizes, name: str, runs: Mapping[str, Measured]) -> dict[str, Any]:
    """Return what the judge needs of a panel.

    Args:
      size: The size of the study.
      name: The panel's name.
      runs: The cooperating groups first, and each group alone.
    """
    together, *apart = (setup.final(each.curves, size.time) for each in runs.values())
    return {
        "sizes": list(PANELS[name][0]),
        "gains": [setup.compare(together, each) for each in apart],
        "together": Sample.of(100 * together.values),
        "rates": [each.lr for each in runs.values()],
    }


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 12 and 13, each model at its own learning rate.

    Args:
      inputs: By panel ("panels") the gains of the cooperative model over each group alone, its
        accuracies at T ("together"), the sizes of the groups, and the learning rates.
    """
    gains, parts, words = {}, {}, {}
    for name, panel in inputs["panels"].items():
        gains[name] = [Interval.read(each) for each in panel["gains"]]
        together = [Sample.read(panel["together"])]
        judgements = [each.above() for each in gains[name]]
        if name == "fig4":
            judgements[1] = gains[name][1].above(-CLAIMS[12].criterion.little)
        parts[name] = {
            f"{name.replace('fig', 'Fig. ')}, group {i + 1}": unless_collapsed(
                each, together, setup.CHANCE
            )
            for i, each in enumerate(judgements)
        }
        words[name] = " and ".join(
            f"{each} over group {i + 1} ({panel['sizes'][i]} clients, lr {panel['rates'][i + 1]:g})"
            for i, each in enumerate(gains[name])
        )
        words[name] += f", cooperating {together[0]} % at lr {panel['rates'][0]:g}"
    verdicts = []
    for number, names in ((12, ("fig4",)), (13, ("fig5a", "fig5b"))):
        judged = {part: value for name in names for part, value in parts[name].items()}
        told = "; ".join(f"{name.replace('fig', 'Fig. ')}: {words[name]}" for name in names)
        measured = {name: [each._asdict() for each in gains[name]] for name in names}
        why = f"{told}: points at T, each model at its own learning rate"
        verdicts.append(setup.settle(inputs, number, measured, judged, why))
    return verdicts
