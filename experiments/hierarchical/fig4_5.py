"""Hierarchical FL's Figs. 4 and 5: cooperating against isolated groups (claims 12 and 13).

See arXiv 2302.04851. CIFAR-10, the CNN. Fig. 4 has 5 and 15 clients, Fig. 5 has 10 and 10. Data
follow Dirichlet(0.1) among the groups and are i.i.d. within (Figs. 4, 5b), or clients have two
labels and groups have no label in common (Fig. 5a). Delays are those of Fig. 3. S = 5 is compared
with groups that are isolated until T, each at its best learning rate. Every model is tested on the
common test set.
"""

from collections.abc import Mapping
from typing import Any

import xarray as xr

from experiments.harness import (
    Arguments,
    Interval,
    Outcome,
    Sample,
    Verdict,
    table,
    unless_collapsed,
)
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS
from fedjax_sim.reporting import plots

STUDY = setup.study(setup.CIFAR10)
PANELS: dict[str, tuple[tuple[int, int], str, dict[str, Any]]] = {
    "fig4": ((5, 15), "dirichlet_groups", {"alpha": 0.1}),
    "fig5a": ((10, 10), "disjoint_groups", {"classes": 2}),
    "fig5b": ((10, 10), "dirichlet_groups", {"alpha": 0.1}),
}
LOOKS = 32
"""Evaluations of isolated groups. The last one is at T to the bit, which needs a power of two."""


def isolated(data: xr.Dataset, group: int) -> xr.Dataset:
    """Return the same curves with a group's accuracy in place of the global one."""
    return data.assign(accuracy=data[f"accuracy_group_{group}"])


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
    curves: dict[str, xr.Dataset] = {}
    figures, rows = {}, []
    panels: dict[str, Any] = {}
    for name, (sizes, kind, options) in PANELS.items():
        tasks = setup.split(data, size, kind, sum(sizes), group_sizes=sizes, **options)
        changes = setup.clock(sizes, setup.FIG3, group_sizes=sizes)
        together = setup.play(
            arguments, size, f"{name} together", tasks, changes | {"sync_time": 5.0}
        )
        apart = setup.play(arguments, size, f"{name} apart", tasks, changes | alone(size.time))
        curves |= {f"{name}_together": together, f"{name}_apart": apart}
        lr = setup.best_lr(setup.final(together, size.time))
        groups = {f"group {i + 1} of {sizes[i]} alone": isolated(apart, i) for i in range(2)}
        best_rates = {
            label: setup.best_lr(setup.final(each, size.time)) for label, each in groups.items()
        }
        shown = {f"cooperating, S = 5, lr {lr:g}": together.sel(lr=lr)}
        shown |= {
            f"{label}, lr {best_rates[label]:g}": each.sel(lr=best_rates[label])
            for label, each in groups.items()
        }
        figures[f"{name}.png"] = plots.curves_figure(shown, "accuracy", title=setup.words_of(size))
        best = setup.final(together.sel(lr=lr), size.time)
        panels[name] = {
            "sizes": list(sizes),
            "gains": [
                setup.compare(best, setup.final(each.sel(lr=best_rates[label]), size.time))
                for label, each in groups.items()
            ],
            "together": Sample.of(100 * best.values),
            "rates": [lr, *best_rates.values()],
        }
        for label, each in {"cooperating, S = 5": together, **groups}.items():
            rows += [
                [name, label, f"{rate:g}", setup.percent(setup.final(each.sel(lr=rate), size.time))]
                for rate in size.lrs
            ]
    inputs = setup.inputs_of(arguments, STUDY, size, panels=panels)
    text = table(["panel", "model", "lr", "accuracy at T, %"], rows)
    return setup.outcome(size, curves, figures, judge(inputs), text, inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 12 and 13, each model at its best learning rate.

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
        why = f"{told}: points at T, each model at its best learning rate"
        verdicts.append(setup.settle(inputs, number, measured, judged, why))
    return verdicts
