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

import fedjax_sim
from experiments.fedstaleweight.claims import verdict
from experiments.harness import (
    Arguments,
    Outcome,
    Sizes,
    Study,
    Verdict,
    interval,
    table,
    verdict_table,
)
from fedjax_sim import datasets, models, problems
from fedjax_sim.models import DoubleConvNet
from fedjax_sim.partition import label_groups
from fedjax_sim.reporting import plots
from fedjax_sim.systems import fedstaleweight

SYSTEM = fedstaleweight.system
METHODS: dict[str, dict[str, Any]] = {
    "FedStaleWeight": {},
    "buffer mean": {"weighting": "mean"},
    "Algorithm 1's formula": {"weighting": "alg1"},
}
OURS, BASELINE, ALG1 = METHODS
SLOW_LABELS = 4
HELD_OUT = 0.1
NUM_EVALS = 25
ALG1_EVALS = 3
"""Algorithm 1's formula, which the figure does not show, is run up to this evaluation only.

Claim 20 compares curves, and these part early or not at all.
"""
SMOKE = "not judged: a smoke run on digits is too small"


SMALL = Sizes(seeds=2, dataset="digits", num_ticks=60, network=models.LogisticRegression, claim=8)
PANELS = {
    "fashion_mnist": Study(
        full=Sizes(
            seeds=5,
            dataset="fashion_mnist",
            num_ticks=4000,
            network=lambda num_classes: DoubleConvNet(num_classes, (32, 64)),
            claim=8,
        ),
        smoke=SMALL,
    ),
    "cifar10": Study(
        full=Sizes(
            seeds=5,
            dataset="cifar10",
            num_ticks=16_000,
            network=lambda num_classes: DoubleConvNet(num_classes, (32, 64, 128)),
            claim=9,
        ),
        smoke=SMALL.replace(claim=9),
    ),
}
"""The network is made from the number of classes.

`claim` is the claim on the panel's accuracies.
"""


def panels(arguments: Arguments) -> list[Sizes]:
    """Return the panels asked for on the command line."""
    if arguments.smoke:
        return [panel.choose(arguments._replace(dataset=None)) for panel in PANELS.values()]
    asked = (
        list(PANELS)
        if arguments.dataset is None
        else ["cifar10" if Path(arguments.dataset).stem.startswith("cifar10") else "fashion_mnist"]
    )
    return [PANELS[name].choose(arguments) for name in asked]


def train(panel: Sizes, arguments: Arguments) -> dict[str, xr.Dataset]:
    """Run all methods on the same partitions, initial models, schedules and mini-batches."""
    data = datasets.load(panel.dataset, data_dir=arguments.data_dir)
    shares = [
        label_groups(
            data.train_labels, num_clients=15, slow_labels=SLOW_LABELS, held_out=HELD_OUT, seed=seed
        )
        for seed in range(panel.seeds)
    ]
    tasks = problems.make_classifications(
        panel.network(data.num_classes), data, shares, mean=0.5, std=0.5, per_class=True
    )
    curves = {}
    for name, settings in METHODS.items():
        num_evals = ALG1_EVALS if name == ALG1 else NUM_EVALS
        run = fedjax_sim.sweep(
            SYSTEM,
            tasks,
            SYSTEM.Hyper(**settings),
            seeds=panel.seeds,
            num_ticks=num_evals * -(-panel.num_ticks // NUM_EVALS)
            if name == ALG1
            else panel.num_ticks,
            num_evals=num_evals,
            **arguments.kept(f"panel {panel.claim} - {name}"),
        )
        curves[name] = with_groups(run.curves)
    return curves


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


def first_reached(data: xr.Dataset, level: float) -> int | None:
    """Return the server steps after which mean accuracy first reaches a level, or None."""
    above = data.accuracy.mean("seed").values >= level
    return int(data.ticks.isel(seed=0).values[np.argmax(above)]) if above.any() else None


def judge(
    panel: Sizes, curves: Mapping[str, xr.Dataset], *, is_smoke: bool
) -> dict[int, tuple[Any, bool | None, str]]:
    """Judge the claims on one panel.

    Args:
      panel: The panel.
      curves: Curves by method.
      is_smoke: Whether the run is too small to be judged.

    Returns:
      By number of the claim: what was measured, whether it holds, and why.
    """
    gain, half = interval(final(curves[OURS]) - final(curves[BASELINE]))
    where = f"{panel.dataset}, {panel.num_ticks} server steps, {panel.seeds} seeds"
    means = {name: float(final(curves[name]).mean()) for name in (OURS, BASELINE)}
    sooner = first_reached(curves[OURS], means[BASELINE] / 100)
    groups = {
        group: {
            name: float(final(curves[name], f"accuracy_{group}_labels").mean()) for name in means
        }
        for group in ("slow", "fast")
    }
    rise, fall = (groups[group][OURS] - groups[group][BASELINE] for group in ("slow", "fast"))
    until = {name: curves[name].isel(eval=slice(ALG1_EVALS + 1)) for name in (OURS, ALG1)}
    between, half_between = interval(final(until[OURS]) - final(until[ALG1]))
    compared = int(curves[ALG1].ticks.isel(seed=0, eval=-1))
    fails = {name: int(data.failed.sum()) for name, data in curves.items()}
    found: dict[int, tuple[Any, bool | None, str]] = {
        panel.claim: (
            {"accuracy": means, "gain": gain},
            gain > half,
            f"gain {gain:.2f} +- {half:.2f} points; {where}",
        ),
        10: (
            {"server steps to the baseline's final accuracy": sooner},
            sooner is not None and sooner < panel.num_ticks,
            f"after {sooner}; {where}",
        ),
        11: (
            groups,
            rise > 0 and -fall < rise,
            f"labels 0-3 {rise:+.2f}, labels 4-9 {fall:+.2f} points; {where}",
        ),
        19: (
            {"diverged": fails},
            fails[OURS] == 0,
            f"{fails[OURS]} of {panel.seeds} runs diverged; {where}",
        ),
        20: (
            {"difference": between},
            None,
            f"accuracy of eq. (8) over Algorithm 1's after {compared} server steps {between:+.2f} "
            f"+- {half_between:.2f} points; {where}",
        ),
    }
    if is_smoke:
        return dict.fromkeys(found, (None, None, SMOKE))
    return found


def both(
    of_panels: list[dict[int, tuple[Any, bool | None, str]]], datasets_run: list[str]
) -> list[Verdict]:
    """Combine the panels into one verdict per claim, which holds if it does in all of them."""
    verdicts = []
    for number in sorted(set().union(*of_panels)):
        judged = [each[number] for each in of_panels if number in each]
        said = [holds for _, holds, _ in judged]
        holds = None if None in said else all(said)
        measured = (
            None
            if all(x is None for x, _, _ in judged)
            else {name: x for name, (x, _, _) in zip(datasets_run, judged, strict=False)}
        )
        verdicts.append(
            verdict(number, measured, holds, "; ".join(dict.fromkeys(why for _, _, why in judged)))
        )
    return verdicts


def run(arguments: Arguments) -> Outcome:
    """Run the panels, draw them, and judge claims 8 to 11, 19 and 20."""
    asked = panels(arguments)
    curves, figures, judged, rows = {}, {}, [], []
    for panel in asked:
        curves_of_panel = train(panel, arguments)
        judged.append(judge(panel, curves_of_panel, is_smoke=arguments.smoke))
        letter = "A" if panel.claim == 8 else "B"
        for metric in ("accuracy", "accuracy_slow_labels", "accuracy_fast_labels"):
            words = metric.replace("accuracy_", "accuracy on the ").replace(
                "_labels", " group's labels"
            )
            figures[f"panel_{letter}_{metric}.png"] = plots.curves_figure(
                curves_of_panel, metric, against="ticks", label=f"test {words} (share of examples)"
            )
        for name, data in curves_of_panel.items():
            curves[f"panel {letter}, {name}"] = data
            values = [
                final(data, metric)
                for metric in ("accuracy", "accuracy_slow_labels", "accuracy_fast_labels")
            ]
            rows.append(
                [
                    panel.dataset,
                    name,
                    int(data.ticks.isel(seed=0, eval=-1)),
                    *(
                        f"{x.mean():.2f} +- {x.std(ddof=1) if len(x) > 1 else float('nan'):.2f}"
                        for x in values
                    ),
                ]
            )
    verdicts = both(judged, [panel.dataset for panel in asked])
    text = (
        verdict_table(verdicts)
        + "\n\n"
        + table(
            ["data", "method", "server steps", "accuracy, %", "labels 0-3, %", "labels 4-9, %"],
            rows,
        )
    )
    told = [
        {"dataset": panel.dataset, "server_steps": panel.num_ticks, "seeds": panel.seeds}
        for panel in asked
    ]
    config = {"panels": told, "smoke": arguments.smoke}
    return Outcome(curves, figures, verdicts, config, text)
