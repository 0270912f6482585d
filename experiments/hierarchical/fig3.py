"""Hierarchical FL's Fig. 3: group and global accuracies in time (claim 11).

See arXiv 2302.04851. CIFAR-10, i.i.d., the CNN, 2 x 10 clients, S = 5, standardised inputs. Each
round is evaluated five times.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import Arguments, Interval, Outcome, Verdict, interval
from experiments.hierarchical import setup
from fedjax_sim.results import plots

STUDY = setup.study(
    setup.CIFAR10.replace(standardised=True), setup.MNIST.replace(standardised=True)
)
LOOKS = 5
"""Ticks, and so evaluations, of a round."""


def fluctuation(data: xr.Dataset, first: float, last: float) -> np.ndarray:
    """Return the groups' mean fall in accuracy between evaluations, in points, per seed.

    Rises count as 0, as they may be what is learnt; a group that restarts from the global model
    falls back. `first` and `last` are shares of the time between which it is looked at.
    """
    found = []
    for i in range(2):
        values = 100 * data[f"accuracy_group_{i}"].transpose("seed", "eval").values.astype(float)
        time = data.time.transpose("seed", "eval").values
        end = time[:, -1:]
        inside = (time[:, 1:] > first * end) & (time[:, 1:] <= last * end)
        fall = np.maximum(-np.diff(values, axis=1), 0)
        found.append(
            np.nansum(np.where(inside, fall, 0), axis=1) / np.maximum(inside.sum(axis=1), 1)
        )
    return np.mean(found, axis=0)


@plots.styled()
def picture(data: xr.Dataset, title: str) -> Figure:
    """Draw one seed's accuracies of the groups and the global model, and their beginning."""
    figure = Figure(figsize=(12, 4.2))
    first = data.isel(seed=0)
    time = first.time.values
    panels = figure.subplots(1, 2)
    for axes, share in zip(panels, (1.0, 0.15), strict=True):
        shown = time <= share * time[-1]
        for i in range(2):
            axes.plot(
                time[shown],
                first[f"accuracy_group_{i}"].values[shown],
                drawstyle="steps-post",
                label=f"group {i + 1}",
                **plots.look(i, linewidth=0.9),
            )
        whole = plots.look(4, "none", linestyle="-")
        axes.step(time[shown], first.accuracy.values[shown], where="post", label="global", **whole)
        axes.set(xlabel=plots.LABELS["time"], ylabel=plots.LABELS["accuracy"])
    panels[1].set_title("the beginning")
    plots.name_beside(figure, panels[0])
    figure.suptitle(title)
    return figure


def run(arguments: Arguments) -> Outcome:
    """Run, and judge the claim by how accuracies change early and late."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.split(setup.load(arguments, size), size, "iid", 20)
    changes = setup.clock(
        [10, 10], setup.FIG3, sync_time=5.0, ticks_per_round=LOOKS, group_metrics=True
    )
    data = setup.play(arguments, size, "fig3", tasks, changes)
    lr = setup.best_lr(setup.final(data, size.time))
    falls = {}
    for rate in size.lrs:
        of_rate = data.sel(lr=rate)
        early, late = fluctuation(of_rate, 0.0, 0.2), fluctuation(of_rate, 0.8, 1.0)
        failed = of_rate.failed.values
        early, late = (np.where(failed, np.nan, each) for each in (early, late))
        falls[f"{rate:g}"] = {
            "early": float(early.mean()),
            "late": float(late.mean()),
            "difference": interval(early - late),
        }
    ends = {"global": setup.final(data, size.time)}
    inputs = setup.inputs_of(arguments, STUDY, size, falls=falls, ends=setup.spreads(ends))
    title = f"{setup.words_of(size)}, of which the first is shown, lr {lr:g}"
    figures = {"fig3.png": picture(data.sel(lr=lr), title)}
    return setup.outcome(size, {"fig3": data}, figures, judge(inputs), inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 11: accuracies fall more between looks in the first fifth of T than late."""
    falls = inputs["falls"]
    judged = {
        rate: {"more early than late": Interval.read(each["difference"]).above()}
        for rate, each in falls.items()
    }
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    words = ", ".join(
        f"{each['early']:.2f} and {each['late']:.2f} at lr {rate}" for rate, each in falls.items()
    )
    why = f"points lost between looks in the first and the last fifth of T: {words}"
    measured = {
        "points lost": {rate: [each["early"], each["late"]] for rate, each in falls.items()},
        "accuracy at T, %": setup.described(inputs),
    }
    return [setup.settle(inputs, 11, measured, parts, why)]
