"""Figs. 6, 8, 9, 10 and 12, each run at its own learning rate (claims 14, 18, 19, 20 and 22).

See arXiv 2302.04851. `map` found the paper's order of sync times with the paper's rule, one step an
iteration and standardised inputs, where every run has its own learning rate. Here the other figures
are run there, as `tuning` says, with ten seeds, in Fig. 10 forty. MNIST and a perceptron of 50
units; Fig. 8 has 340 clients of which 16 of a group take part in a round.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, Verdict
from experiments.hierarchical import fig6, fig7, fig8, fig9, fig10, setup, tuning
from experiments.hierarchical.tuning import Measured
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.reporting import plots
from fedjax_sim.settings import ConfigError

STUDY = Study(
    full=tuning.sizes(setup.MNIST, tuning.FULL, most_clients=1000),
    smoke=tuning.sizes(setup.DIGITS, tuning.SMOKE, most_clients=80, time=100.0),
)


class Panel(NamedTuple):
    """A figure whose runs are compared.

    Attributes:
      study: Sizes of the figure.
      num_clients: Number of clients.
      is_iid: Whether clients' data are i.i.d.; they follow Dirichlet(0.5) otherwise.
      runs: Settings of the compared runs by name.
      judge: Gives the verdict on the figure's claim.
      times_seeds: How many times the study's number of seeds are run.
    """

    study: Study
    num_clients: int
    is_iid: bool
    runs: Mapping[str, Mapping[str, Any]]
    judge: Callable[[Mapping[str, Any]], Verdict]
    times_seeds: int = 1


PANELS = {
    "fig6": Panel(
        fig6.STUDY,
        1000,
        True,
        {f"S = {s:g}": {**fig6.CLOCK, "sync_time": s} for s in fig6.SYNC_TIMES},
        lambda inputs: fig6.judge(inputs)[0],
    ),
    "fig8": Panel(
        fig8.STUDY,
        340,
        False,
        {f"S = {s:g}": {**fig8.CLOCK, "sync_time": s} for s in fig8.SYNC_TIMES},
        fig8.judge_order,
    ),
    "fig9": Panel(fig9.STUDY, 64, False, fig9.RUNS, lambda inputs: fig9.judge(inputs)[0]),
    "fig10": Panel(
        fig10.STUDY,
        30,
        True,
        {fig10.label_of(name): changes for name, changes in fig10.RUNS.items()},
        fig10.judge_sizes,
        times_seeds=4,
    ),
    "fig12": Panel(
        fig7.STUDY,
        30,
        False,
        {
            f"S = 10, c_g = {delay:g}": {**fig7.CLOCK, "sync_time": 10.0, "exchange_shift": delay}
            for delay in fig7.SWEPT_DELAYS
        },
        fig7.judge_delays,
    ),
}


def run(arguments: Arguments) -> Outcome:
    """Choose the rate of every run, run it there, and judge the claims."""
    size = STUDY.choose(arguments)
    data = setup.load(arguments, size)
    if data.train_images.shape[-1] > 1:
        raise ConfigError("dataset", size.dataset, "one of grey images, as MNIST's")
    found = {name: measure(arguments, size, data, name) for name in PANELS}
    inputs = {
        "panels": {name: inputs_of(arguments, size, name, runs) for name, runs in found.items()}
    }
    return tuning.outcome(size, found, pictures(size, found), judge(inputs), inputs)


def measure(arguments: Arguments, size: Sizes, data: Dataset, name: str) -> dict[str, Measured]:
    """Run all runs of a panel in both stages.

    Args:
      arguments: The command line.
      size: The size of the study.
      data: The images.
      name: The panel's name.
    """
    panel = PANELS[name]
    panel_size = of_panel(size, name)
    num_clients = min(panel.num_clients, size.most_clients)

    def make(images: Dataset, seeds: Sequence[int]) -> list[Classification]:
        if panel.is_iid:
            return setup.split(images, size, "iid", num_clients, seeds=seeds)
        return setup.dirichlet(images, size, num_clients, seeds=seeds)

    tasks = tuning.stages(data, panel_size, make)
    return {
        label: tuning.measure(arguments, panel_size, f"{name}, {label}", tasks, changes)
        for label, changes in panel.runs.items()
    }


def of_panel(size: Sizes, name: str) -> Sizes:
    """Return the size with a panel's number of seeds in the second stage."""
    return size.replace(seeds=size.seeds * PANELS[name].times_seeds)


def inputs_of(
    arguments: Arguments, size: Sizes, name: str, runs: Mapping[str, Measured]
) -> dict[str, Any]:
    """Return the numbers that the judge of a panel needs.

    Args:
      arguments: The command line.
      size: The size of the study.
      name: The panel's name.
      runs: Its runs.
    """
    curves = {label: each.curves for label, each in runs.items()}
    ends = {label: setup.final(each, size.time) for label, each in curves.items()}
    rounds = {label: float(each.ticks.isel(eval=-1).mean()) for label, each in curves.items()}

    def lead(first: str, second: str) -> dict[str, Any]:
        return {setup.OWN: setup.compare(ends[first], ends[second])}

    special: dict[str, Any]
    if name == "fig6":
        fewer = 100 * (1 - rounds["S = 5"] / rounds["S = 0"])
        special = {"leads": lead("S = 5", "S = 0"), "fewer": fewer}
    elif name == "fig8":
        orders = {
            f"{s:g}": fig8.order_of([curves["S = 0"], curves[f"S = {s:g}"]], size.time)
            for s in fig8.SYNC_TIMES[1:]
        }
        special = {
            "early": {s: {setup.OWN: early} for s, (early, _) in orders.items()},
            "crossings": {s: {setup.OWN: places} for s, (_, places) in orders.items()},
            "late": {s: lead("S = 12", f"S = {s}") for s in ("0", "24")},
        }
    elif name == "fig9":
        special = {
            "leads": {other: lead("M = 4", other) for other in ("M = 2", "M = 8")},
            "rounds": rounds,
        }
    elif name == "fig10":
        special = {
            "leads": {
                panel: lead(fig10.label_of(slow), fig10.label_of(f"{panel}_15_15"))
                for panel, slow in fig10.SLOW.items()
            }
        }
    else:
        steps = [lead(*pair)[setup.OWN] for pair in itertools.pairwise(ends)]
        special = {"falls": {setup.OWN: steps}}
    return setup.inputs_of(
        arguments,
        PANELS[name].study,
        of_panel(size, name),
        ends={label: {setup.OWN: Sample.of(100 * each.values)} for label, each in ends.items()},
        rates={label: each.lr for label, each in runs.items()},
        **special,
    )


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 14, 18, 19, 20 and 22.

    Args:
      inputs: For each of the "panels" what the judge of its figure takes, with one learning rate,
        `setup.OWN`, and the "rates" by run.
    """
    verdicts = []
    for name, found in inputs["panels"].items():
        rates = ", ".join(f"{rate:g} ({run})" for run, rate in found["rates"].items())
        verdict = PANELS[name].judge(found)
        verdicts.append(verdict._replace(why=f"{verdict.why}, lr {rates}", seeds=found["seeds"]))
    return verdicts


def pictures(size: Sizes, found: tuning.Panels) -> dict[str, Figure]:
    """Draw the choice of the rates, and the accuracies of every panel against time."""
    figures = {"own_rates_sensitivity.png": tuning.sensitivity_figure(size, found)}
    for name, runs in found.items():
        shown = {f"{label}, lr {each.lr:g}": each.curves for label, each in runs.items()}
        title = f"{tuning.title_of(name)}, {setup.words_of(of_panel(size, name))}"
        figures[f"own_rates_{name}.png"] = plots.curves_figure(shown, "accuracy", title=title)
    return figures
