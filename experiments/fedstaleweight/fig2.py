"""FedStaleWeight's Fig. 2: test accuracy against server steps on Fashion-MNIST and CIFAR-10.

See arXiv 2406.02877. Convolutional networks, a buffer of 5. Ten fast clients have labels 4-9, the
last five, which are slow, labels 0-3. At full size Fashion-MNIST takes 4,000 server steps with
468,458 parameters, hours of a CPU; CIFAR-10 takes 16,000 with 551,722 parameters and is meant for
an accelerator. `--dataset` takes one of the two by name, or an .npz file, which counts as CIFAR-10
if its name begins with "cifar10". Without it both are run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.fedstaleweight.claims import verdict
from experiments.harness import difference, images, lead, rule
from fedjax_sim import models, partition, problems
from fedjax_sim.models import DoubleConvNet
from fedjax_sim.results import plots
from fedjax_sim.systems import fedstaleweight

SYSTEM = fedstaleweight.system
METHODS: dict[str, dict[str, Any]] = {
    "FedStaleWeight": {},
    "buffer mean": {"rule": "mean"},
    "Algorithm 1's formula": {"rule": "alg1"},
}
OURS, BASELINE, ALG1 = METHODS
SLOW_LABELS = 4
GROUPS = {
    "all labels": "accuracy",
    "labels 0-3": "accuracy_slow_labels",
    "labels 4-9": "accuracy_fast_labels",
}
"""Name of the metric by group of labels."""
CHANCE = 10.0
"""Accuracy of chance, in percent."""
ALG1_SEEDS = 1
"""Largest number of seeds of Algorithm 1's formula, which the figure does not show."""
HELD_OUT = 0.1
NUM_EVALS = 25
SMOKE = "not judged: a smoke run on digits is too small"


SMALL = harness.Sizes(
    seeds=2, dataset="digits", num_ticks=60, network=models.LogisticRegression, claim=8
)
FASHION_MNIST = harness.Sizes(
    seeds=10,
    dataset="fashion_mnist",
    num_ticks=4000,
    network=lambda num_classes: DoubleConvNet(num_classes, (32, 64)),
    claim=8,
)
CIFAR10 = harness.Sizes(
    seeds=10,
    dataset="cifar10",
    num_ticks=16_000,
    network=lambda num_classes: DoubleConvNet(num_classes, (32, 64, 128)),
    claim=9,
)
PANELS = {
    "fashion_mnist": harness.Study(FASHION_MNIST, SMALL),
    "cifar10": harness.Study(CIFAR10, SMALL.replace(claim=9)),
}
"""The network is made from the number of classes.

`claim` is the claim on the panel's accuracies.
"""
DATA = {8: "fashion_mnist", 9: "cifar10"}
"""The paper's data by claim."""
CELLS = (OURS, BASELINE)
"""The methods, of which single ones can be run with further seeds."""


def panels(arguments: harness.Arguments) -> dict[str, harness.Sizes]:
    """Return the panels asked for on the command line, by name."""
    asked = list(PANELS)
    if arguments.smoke:
        arguments = arguments._replace(dataset=None)
    elif arguments.dataset is not None:
        is_cifar10 = Path(arguments.dataset).stem.startswith("cifar10")
        asked = ["cifar10" if is_cifar10 else "fashion_mnist"]
    return {name: PANELS[name].choose(arguments) for name in asked}


def train(panel: harness.Sizes, arguments: harness.Arguments) -> dict[str, xr.Dataset]:
    """Run the methods on the same partitions, initial models, schedules and mini-batches.

    Algorithm 1's formula has the first seeds only, see `ALG1_SEEDS`.
    """
    data = images.load(panel.dataset, arguments.data_dir)
    shares = [
        partition.label_groups(
            data.train_labels, num_clients=15, slow_labels=SLOW_LABELS, held_out=HELD_OUT, seed=seed
        )
        for seed in panel.seed_range
    ]
    tasks = problems.make_classifications(
        panel.network(data.num_classes), data, shares, mean=0.5, std=0.5, per_class=True
    )
    runs = {}
    for name in arguments.cells_of(CELLS) if arguments.adds else METHODS:
        seeds = panel.seed_range[: ALG1_SEEDS if name == ALG1 else None]
        runs[name] = fedjax_sim.sweep(
            SYSTEM,
            tasks[: len(seeds)],
            SYSTEM.paper(**METHODS[name]),
            seeds=seeds,
            budget=fedjax_sim.Ticks(panel.num_ticks),
            num_evals=NUM_EVALS,
            watch=fedjax_sim.Watch(progress=True),
            **arguments.kept(f"panel {panel.claim} - {name}"),
        )
    # Looked at last, so that a part need not wait for the others between two methods.
    return {name: with_groups(run.curves) for name, run in runs.items()}


def with_groups(curves: xr.Dataset) -> xr.Dataset:
    """Add the mean accuracies over the labels of the slow and of the fast clients."""
    of_label = curves.class_accuracy
    return curves.assign(
        accuracy_slow_labels=of_label[..., :SLOW_LABELS].mean("class"),
        accuracy_fast_labels=of_label[..., SLOW_LABELS:].mean("class"),
    )


def final(data: xr.Dataset, metric: str = "accuracy") -> np.ndarray:
    """Return the final value of a metric in percent, per seed."""
    return 100 * data[metric].isel(eval=-1).values.astype(float)


def inputs_of(
    panel: harness.Sizes, curves: Mapping[str, xr.Dataset], *, is_smoke: bool
) -> dict[str, Any]:
    """Return the numbers of one panel that verdicts need per seed: percents, and who diverged."""
    ran = {name: curves[name] for name in CELLS if name in curves}
    return {
        "dataset": Path(panel.dataset).stem,
        "reduced": ", ".join(
            filter(None, (panel.words, harness.other_data(panel.dataset, DATA[panel.claim])))
        ),
        "server_steps": panel.num_ticks,
        "claim": panel.claim,
        "smoke": is_smoke,
        "final": {
            name: {
                group: harness.Sample.of(final(data, metric)) for group, metric in GROUPS.items()
            }
            for name, data in ran.items()
        },
        "diverged": {name: harness.Sample.of(data.failed.values) for name, data in ran.items()},
    }


def judge(inputs: Mapping[str, Any]) -> list[harness.Verdict]:
    """Judge claims 8, 9, 11 and 19; of several panels all have to agree."""
    found: dict[int, dict[str, tuple[Any, dict[str, bool | None], str]]] = {}
    for name, panel in inputs.items():
        for number, judged in _judge_panel(panel).items():
            found.setdefault(number, {})[name] = judged
    is_smoke = any(panel["smoke"] for panel in inputs.values())
    words = ", ".join(dict.fromkeys(filter(None, (panel["reduced"] for panel in inputs.values()))))
    seeds = min(map(seeds_of, inputs.values()))
    verdicts = []
    for number, panels_judged in sorted(found.items()):
        measured = {name: each for name, (each, _, _) in panels_judged.items()}
        why = "; ".join(dict.fromkeys(each for _, _, each in panels_judged.values()))
        parts: dict[str, bool | None] = {}
        for name, (_, of_panel, _) in panels_judged.items():
            parts |= {f"{words} on {name}": value for words, value in of_panel.items()}
        small = words if number == 19 else harness.reduction(seeds, words)
        ruling = rule(parts, small, substitute=words)
        verdicts.append(
            verdict(number, None, harness.NOT_RUN, SMOKE)
            if is_smoke
            else verdict(number, measured, ruling, why)
        )
    return verdicts


def seeds_of(panel: Mapping[str, Any]) -> int:
    """Return the least number of seeds of a method."""
    return min(harness.Sample.read(row["all labels"]).seeds for row in panel["final"].values())


def _judge_panel(panel: Mapping[str, Any]) -> dict[int, tuple[Any, dict[str, bool | None], str]]:
    """Return what one panel says of each claim: the measured numbers, parts, and words."""
    final = {
        name: {group: harness.Sample.read(each) for group, each in row.items()}
        for name, row in panel["final"].items()
    }
    gain, rise, fall = (lead(final[OURS][group], final[BASELINE][group]) for group in GROUPS)
    outweighs = difference(
        (final[OURS]["labels 0-3"], final[BASELINE]["labels 0-3"]),
        (final[BASELINE]["labels 4-9"], final[OURS]["labels 4-9"]),
    )
    whole = [final[name]["all labels"] for name in (OURS, BASELINE)]
    slow = final[OURS]["labels 0-3"]  # The baseline's neglect of these labels is the claim.
    number = seeds_of(panel)
    diverged = int(sum(harness.Sample.read(panel["diverged"][OURS]).values or ()))
    steps, seeds = f"{panel['server_steps']} server steps", f"{number} seeds"
    where = ", ".join(filter(None, (panel["dataset"], panel["reduced"], steps, seeds)))
    described = {
        name: {group: each.described(CHANCE) for group, each in row.items()}
        for name, row in final.items()
    }
    found: dict[int, tuple[Any, dict[str, bool | None], str]] = {
        int(panel["claim"]): (
            {"final accuracy, %": described, "gain": gain._asdict()},
            {"higher": harness.unless_collapsed(gain.above(harness.LEAST_LEAD), whole, CHANCE)},
            f"{whole[0]} against {whole[1]} %, gain {gain} points; {where}",
        ),
        11: (
            {"final accuracy, %": described},
            {
                "labels 0-3 gain": harness.unless_collapsed(
                    rise.above(harness.LEAST_LEAD), [*whole, slow], CHANCE
                ),
                "labels 4-9 lose less": harness.unless_collapsed(outweighs.above(), whole, CHANCE),
            },
            f"labels 0-3 {rise}, labels 4-9 {fall}, their sum {outweighs} points; {where}",
        ),
        19: (
            {"diverged": {OURS: diverged}},
            {"no run diverges": diverged == 0},
            f"{diverged} of {number} runs diverged; {where}",
        ),
    }
    return found


def name_with_seeds(name: str, data: xr.Dataset, most: int) -> str:
    """Add the number of seeds to the name of a method that has fewer than the others."""
    return name if data.sizes["seed"] == most else f"{name}, {data.sizes['seed']} of the seeds"


@plots.styled()
def picture(curves: Mapping[str, xr.Dataset], title: str) -> Figure:
    """Draw accuracy against server steps on all and on each group's labels, and below the lead.

    Lines are means over seeds with 95 % t intervals, and the lead is that of the first method
    over `BASELINE`, paired by seed. Every panel of accuracies has its own scale, from the first
    evaluation after the start on.
    """
    figure = Figure(figsize=(14, 6.4))
    grid = figure.subplots(2, len(GROUPS), sharex=True, height_ratios=(2, 1))
    for (group, metric), above, below in zip(GROUPS.items(), *grid, strict=True):
        for i, (name, data) in enumerate(curves.items()):
            values = 100 * data[metric].values.astype(float)
            _band(above, data.ticks.values[0], values, label=name, **plots.look(i, points=25))
        lead = 100 * (curves[OURS][metric].values - curves[BASELINE][metric].values)
        _band(below, curves[OURS].ticks.values[0], lead, **plots.look(0, points=25))
        below.axhline(0, color=plots.GREY, linewidth=0.8)
        above.set(title=group, ylabel="test accuracy, %")
        words = f"{OURS}\nover {BASELINE}, points"
        below.set(xlabel="server steps", ylabel=words, title=f"{group}, lead")
        if min(each[metric].values[:, -1].mean() for each in curves.values()) < CHANCE / 50:
            above.axhline(2 * CHANCE, color=plots.GREY, linewidth=0.8, linestyle=":")
            above.set_title(f"{group} (dotted: twice chance)")
    figure.suptitle(f"{title}:\nmean and 95 % t interval")
    plots.name_beside(figure, grid[0, 0])
    return figure


def _band(axes: Axes, ticks: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """Draw the mean of `f[seed, eval]` from the second evaluation on, and its interval."""
    found = [harness.interval(each) for each in values.T[1:]]
    mean, half = np.array([(each.mean, each.half or np.nan) for each in found], float).T
    axes.plot(ticks[1:], mean, **style)
    if np.isfinite(half).all():
        low, high = mean - half, mean + half
        axes.fill_between(ticks[1:], low, high, color=style["color"], alpha=0.2, linewidth=0)


def run(arguments: harness.Arguments) -> harness.Outcome:
    """Run the panels, draw them, and judge claims 8, 9, 11 and 19."""
    asked = panels(arguments)
    curves, inputs, samples = {}, {}, {}
    figures: dict[str, Figure] = {}
    for key, panel in asked.items():
        curves_of_panel = train(panel, arguments)
        inputs[key] = inputs_of(panel, curves_of_panel, is_smoke=arguments.smoke)
        if not arguments.adds:
            drawn = {
                name_with_seeds(*each, panel.seeds): each[1] for each in curves_of_panel.items()
            }
            words = ", ".join(filter(None, (Path(panel.dataset).stem, panel.words)))
            figures[f"fig2_{key}.png"] = picture(drawn, f"{words}, {panel.seeds} seeds")
        for name, data in curves_of_panel.items():
            curves[f"{key}, {name}"] = data
            for group, metric in GROUPS.items():
                samples[f"{key}, {name}, {group}"] = harness.Sample.of(final(data, metric))
    verdicts = [] if arguments.adds else judge(inputs)
    text = harness.spread_table(samples, CHANCE)
    told = [
        {"dataset": panel.dataset, "server_steps": panel.num_ticks, "seeds": panel.seeds}
        for panel in asked.values()
    ]
    seeds = min(panel.seeds for panel in asked.values())
    config = {"panels": told, "seeds": seeds, "smoke": arguments.smoke}
    alone = next(iter(asked)) if len(asked) < len(PANELS) else ""
    return harness.Outcome(curves, figures, verdicts, config, text, inputs, alone)
