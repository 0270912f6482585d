"""Figs. 6, 8, 9, 10 and 12, each run at its own learning rate (claims 14, 18, 19, 20 and 22).

See arXiv 2302.04851. `map` found the paper's order of sync times with the paper's rule, one step an
iteration and standardised inputs, where every run has its own learning rate. Here the other figures
are run there. A rate is chosen of eight with two seeds on held-out training images, by the mean
accuracy of the last three models; up to three more are tried beyond the first or last one while
that is the best. Ten fresh seeds, in Fig. 10 forty, then run at the chosen rate on all training
images, and the last model finished by T is measured on the test set. MNIST and a perceptron of 50
units; Fig. 8 has 340 clients of which 16 of a group take part in a round.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.favano.table2_grid import INPUTS
from experiments.harness import (
    Arguments,
    Outcome,
    Sample,
    Sizes,
    Study,
    Verdict,
    comparison,
    table,
    verdict_table,
)
from experiments.hierarchical import fig6, fig7, fig8, fig9, fig10, setup
from experiments.hierarchical.map import FIRST_TUNING_SEED, HELD_OUT, RATES
from fedjax_sim.datasets import Dataset
from fedjax_sim.reporting import plots
from fedjax_sim.settings import ConfigError
from fedjax_sim.systems import hierarchical

STUDY = Study(
    full=Sizes(
        10,
        dataset="mnist",
        time=1000.0,
        lrs=RATES,
        network=setup.MNIST.network,
        tuning_seeds=2,
        widenings=comparison.WIDENINGS,
        most_clients=1000,
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        time=100.0,
        lrs=(0.5, 1.0),
        network=setup.DIGITS.network,
        tuning_seeds=1,
        widenings=0,
        most_clients=80,
    ),
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


class Measured(NamedTuple):
    """A run at its own learning rate.

    Attributes:
      tuned: The choice of the rate, with the accuracies on held-out images.
      curves: Curves on the test set; dimensions seed and eval.
    """

    tuned: comparison.Tuned
    curves: xr.Dataset


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
    verdicts = judge(inputs)
    figures = pictures(size, found)
    curves = {
        f"{name}, {label}": each.curves
        for name, runs in found.items()
        for label, each in runs.items()
    }
    config = size.config() | {
        "network": str(size.network),
        "validation": {
            f"{name}, {label}": each.tuned.scores.reset_coords(drop=True).to_dict()
            for name, runs in found.items()
            for label, each in runs.items()
        },
    }
    text = f"{_table(size, found)}\n\n{verdict_table(verdicts)}"
    return Outcome(curves, figures, verdicts, config, text, inputs)


def measure(arguments: Arguments, size: Sizes, data: Dataset, name: str) -> dict[str, Measured]:
    """Run all runs of a panel in both stages.

    Args:
      arguments: The command line.
      size: The size of the study.
      data: The images.
      name: The panel's name.
    """
    panel = PANELS[name]
    num_clients = min(panel.num_clients, size.most_clients)
    tuning_seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + size.tuning_seeds)
    again = of_panel(size, name)
    held = comparison.hold_out(data, HELD_OUT)
    how: dict[str, Any] = {"inputs": INPUTS["standardised"]}
    first, second = (
        setup.split(images, size, "iid", num_clients, seeds=numbers, **how)
        if panel.is_iid
        else setup.dirichlet(images, size, num_clients, seeds=numbers, **how)
        for images, numbers in ((held, tuning_seeds), (data, range(again.seeds)))
    )
    found = {}
    for label, changes in panel.runs.items():
        tuned = comparison.tune(
            comparison.Contestant(
                hierarchical.system, {"num_clients": num_clients, **changes}, {"lr": size.lrs}
            ),
            first,
            seeds=tuning_seeds,
            widenings=size.widenings,
            kept=partial(_kept, arguments, f"{name}, {label}"),
            time_budget=size.time,
            num_evals=setup.EVERY_TICK,
            progress=True,
        )
        own = again.replace(lrs=(tuned.choice["lr"],))
        curves = setup.play(arguments, own, f"{name}, {label}", second, changes)
        found[label] = Measured(tuned, curves.isel(lr=0))
    return found


def of_panel(size: Sizes, name: str) -> Sizes:
    """Return the size with a panel's number of seeds in the second stage."""
    return size.replace(seeds=size.seeds * PANELS[name].times_seeds)


def _title(name: str) -> str:
    return name.replace("fig", "Fig. ")


def _kept(arguments: Arguments, name: str, stage: str) -> dict[str, Any]:
    return arguments.kept(f"{name}, {stage}")


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
        special = {"leads": {other: lead("M4", other) for other in ("M2", "M8")}, "rounds": rounds}
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
    inputs = setup.inputs_of(
        arguments,
        PANELS[name].study,
        of_panel(size, name),
        ends={label: {setup.OWN: Sample.of(100 * each.values)} for label, each in ends.items()},
        rates={label: each.tuned.choice["lr"] for label, each in runs.items()},
        **special,
    )
    return {**inputs, "words": f"{inputs['words']}, standardised inputs"}


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


def pictures(size: Sizes, found: Mapping[str, Mapping[str, Measured]]) -> dict[str, Figure]:
    """Draw the choice of the rates, and the accuracies of every panel against time."""
    tuned = {
        f"{_title(name)}, {label}": each.tuned
        for name, runs in found.items()
        for label, each in runs.items()
    }
    words = setup.words_of(size.replace(seeds=size.tuning_seeds))
    title = f"{words}, standardised inputs, held-out images"
    figures = {"own_rates_sensitivity.png": comparison.sensitivity_figure(tuned, title)}
    for name, runs in found.items():
        shown = {
            f"{label}, lr {each.tuned.choice['lr']:g}": each.curves for label, each in runs.items()
        }
        words = setup.words_of(of_panel(size, name))
        title = f"{_title(name)}, {words}, standardised inputs"
        figures[f"own_rates_{name}.png"] = plots.curves_figure(shown, "accuracy", title=title)
    return figures


def _table(size: Sizes, found: Mapping[str, Mapping[str, Measured]]) -> str:
    """Lay out the choices and the accuracies at T."""
    rows = []
    for name, runs in found.items():
        for label, each in runs.items():
            values = 100 * setup.final(each.curves, size.time).values
            edge = " (last tried)" if each.tuned.at_edge else ""
            rows.append(
                [
                    _title(name),
                    label,
                    f"{each.tuned.choice['lr']:g}{edge}",
                    f"{100 * float(each.tuned.scores.mean('seed').max()):.1f}",
                    f"{values.mean():.1f} ± {values.std(ddof=1):.1f}",
                    f"{np.median(values):.1f}",
                    f"{values.min():.1f}",
                    f"{float(each.curves.ticks.isel(eval=-1).mean()):.1f}",
                ]
            )
    header = [
        "figure",
        "run",
        "lr",
        "held out, last three, %",
        "test, %",
        "median",
        "worst",
        "rounds",
    ]
    return table(header, rows)
