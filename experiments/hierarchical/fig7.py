"""Hierarchical FL's Figs. 7 and 12: S and the delay of exchanges (claims 15, 16, 22 and 34).

See arXiv 2302.04851. CIFAR-10, the CNN, 2 x 15 clients, Dirichlet(0.5) over clients. Fig. 7 has S =
0, 5, 20 with c_g = 10 and 30; Fig. 12 has S = 10 with c_g = 5, 10, 30, 60.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import Arguments, Interval, Outcome, Sample, Sizes, Verdict
from experiments.hierarchical import setup

STUDY = setup.study(setup.CIFAR10)
CLOCK = setup.clock([15, 15], setup.FIG7)
SYNC_TIMES, DELAYS, SWEPT_DELAYS = [0.0, 5.0, 20.0], [10.0, 30.0], [5.0, 10.0, 30.0, 60.0]


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 15, 16, 34 and 22, the last one only if its numbers were kept.

    Args:
      inputs: Accuracies at T ("ends") of the runs "c_g = 10, S = 5" and so on; leads of S = 5 by
        the other run and learning rate ("leads"); when S = 0 and 20 change places with c_g = 30,
        by learning rate ("crossings"); and falls of accuracy from each c_g to the next with S = 10
        by learning rate ("falls").
    """
    leads = {name: setup.read_leads(found) for name, found in inputs["leads"].items()}
    parts: dict[str, bool | None] = {}
    for name, found in leads.items():
        delay, _, other = name.partition(", over ")
        judged = {rate: {name: each.above()} for rate, each in found.items()}
        known = setup.by_rate(inputs, judged, (f"{delay}, S = 5", f"{delay}, {other}"))
        parts |= {f"{name}: {setup.ALL_COLLAPSED}": None} if setup.ALL_COLLAPSED in known else known
    told = "; ".join(f"{name} by {setup.by_lr(each)}" for name, each in leads.items())
    measured: dict[str, Any] = {
        "leads": {
            name: {rate: each._asdict() for rate, each in found.items()}
            for name, found in leads.items()
        },
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"S = 5 ahead at T, points: {told}"
    panels = [
        setup.settle(inputs, number, measured, of_panel, why)
        for number, of_panel in setup.of_panels(parts).items()
    ]
    delays = [] if inputs["falls"] is None else [judge_delays(inputs)]
    return [*panels, _judge_crossing(inputs), *delays]


def _judge_crossing(inputs: Mapping[str, Any]) -> Verdict:
    """Judge claim 16: S = 0 and 20 change places once, near 750."""
    found = inputs["crossings"]
    pair = ("c_g = 30, S = 0", "c_g = 30, S = 20")
    judged = {
        rate: setup.passes_once(places, [Sample.read(inputs["ends"][run][rate]) for run in pair])
        for rate, places in found.items()
    }
    parts = setup.by_rate(inputs, judged, pair)
    told = ", ".join(
        f"{setup.told_crossings(places)} (at lr {rate})" for rate, places in found.items()
    )
    return setup.settle(inputs, 16, found, parts, f"S = 0 and 20 change places: {told}")


def judge_delays(inputs: Mapping[str, Any]) -> Verdict:
    """Judge claim 22: accuracy at T falls from each c_g to the next."""
    names = [f"{delay:g}" for delay in SWEPT_DELAYS]
    falls = {
        rate: [Interval.read(each) for each in found] for rate, found in inputs["falls"].items()
    }
    judged = {
        rate: {
            f"c_g = {before} above {after}": each.above()
            for before, after, each in zip(names[:-1], names[1:], found, strict=True)
        }
        for rate, found in falls.items()
    }
    told = "; ".join(
        f"{', '.join(map(str, each))} {setup.at_rate(rate)}" for rate, each in falls.items()
    )
    parts = setup.by_rate(inputs, judged, [f"S = 10, c_g = {delay}" for delay in names])
    measured = {
        "falls, points": {rate: [each._asdict() for each in x] for rate, x in falls.items()},
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"points lost at T from c_g = 5 to 10, 30 and 60: {told}"
    return setup.settle(inputs, 22, measured, parts, why)


def inputs_of(
    arguments: Arguments, size: Sizes, data: xr.Dataset, swept: xr.Dataset
) -> dict[str, Any]:
    """Return the numbers that `judge` needs.

    Args:
      arguments: The command line.
      size: The size of the study.
      data: Curves of Fig. 7.
      swept: Curves of Fig. 12.
    """
    ends, swept_ends = setup.final(data, size.time), setup.final(swept, size.time)
    grid = np.linspace(0, size.time, 101)[5:]
    far = data.sel(exchange_shift=30.0)
    crossings: dict[str, Any] = {}
    for rate in size.lrs:
        pair = [far.sel(lr=rate, sync_time=s) for s in (0.0, 20.0)]
        crossings[f"{rate:g}"] = setup.crossings(pair, grid)
    runs = {
        f"c_g = {delay:g}, S = {s:g}": ends.sel(exchange_shift=delay, sync_time=s)
        for delay in DELAYS
        for s in SYNC_TIMES
    }
    swept_runs = {
        f"S = 10, c_g = {delay:g}": swept_ends.sel(exchange_shift=delay) for delay in SWEPT_DELAYS
    }
    steps = list(itertools.pairwise(swept_runs.values()))
    return setup.inputs_of(
        arguments,
        STUDY,
        size,
        ends=setup.spreads(runs | swept_runs),
        leads={
            f"c_g = {delay:g}, over S = {other:g}": setup.leads(
                *(ends.sel(exchange_shift=delay, sync_time=s) for s in (5.0, other))
            )
            for delay in DELAYS
            for other in (0.0, 20.0)
        },
        crossings=crossings,
        falls={
            f"{rate:g}": [
                setup.compare(before.sel(lr=rate), after.sel(lr=rate)) for before, after in steps
            ]
            for rate in size.lrs
        },
    )


def run(arguments: Arguments) -> Outcome:
    """Run both sweeps, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.dirichlet(setup.load(arguments, size), size, 30)
    data = setup.play(
        arguments, size, "fig7", tasks, CLOCK, {"exchange_shift": DELAYS, "sync_time": SYNC_TIMES}
    )
    swept = setup.play(
        arguments,
        size,
        "fig12",
        tasks,
        CLOCK | {"sync_time": 10.0},
        {"exchange_shift": SWEPT_DELAYS},
    )
    inputs = inputs_of(arguments, size, data, swept)
    figures: dict[str, Figure] = {}
    for delay in DELAYS:
        of_delay = data.sel(exchange_shift=delay)
        lr = setup.best_lr(setup.final(of_delay, size.time).sel(sync_time=0.0))
        shown = setup.each_setting(of_delay, "sync_time", lr, "S")
        figures |= setup.pictures(
            shown, f"fig7_cg{delay:g}", f"{setup.words_of(size)}, c_g = {delay:g}, lr {lr:g}"
        )
    lr = setup.best_lr(setup.final(swept, size.time).sel(exchange_shift=SWEPT_DELAYS[0]))
    figures |= setup.pictures(
        setup.each_setting(swept, "exchange_shift", lr, "c_g"),
        "fig12",
        f"{setup.words_of(size)}, S = 10, lr {lr:g}",
    )
    curves = {"fig7": data, "fig12": swept}
    return setup.outcome(size, curves, figures, judge(inputs), inputs=inputs)
