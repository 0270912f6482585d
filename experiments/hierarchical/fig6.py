"""Hierarchical FL's Fig. 6: slow exchanges, S = 0 and 5 (claim 14).

See arXiv 2302.04851. MNIST, i.i.d. (the paper does not say), a perceptron of 50 units, 2 x 500
clients. "average" in place of the division by the number of iterations, which the paper does not
run, is run too.
"""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome, Verdict, table, unless_unknown
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS

STUDY = setup.study(setup.MNIST.replace(lrs=(0.2, 0.3, 0.5, 1.0)), reduced=None)
CLOCK = setup.clock([500, 500], setup.FIG6)
SYNC_TIMES = [0.0, 5.0]
"""The sync times.

At learning rate 0.5 and above, ends of single runs differ by some points, too much to compare them:
hence 0.3, which the other figures do not use.
"""


def run(arguments: Arguments) -> Outcome:
    """Run both sync times under both aggregations, and judge the claim."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.split(setup.load(arguments, size), size, "iid", 20 if arguments.smoke else 1000)
    curves = {
        rule: setup.play(
            arguments,
            size,
            rule,
            tasks,
            {**CLOCK, "aggregation": rule},
            {"sync_time": SYNC_TIMES},
        )
        for rule in ("divide_by_steps", "average")
    }
    ends = setup.final(curves["divide_by_steps"], size.time)
    leads = setup.leads(ends.sel(sync_time=5.0), ends.sel(sync_time=0.0))
    rounds = curves["divide_by_steps"].ticks.isel(eval=-1, lr=0).mean("seed")
    fewer = 100 * (1 - float(rounds.sel(sync_time=5.0)) / float(rounds.sel(sync_time=0.0)))
    runs = {f"S = {s:g}": ends.sel(sync_time=s) for s in SYNC_TIMES}
    inputs = setup.inputs_of(
        arguments, STUDY, size, leads=leads, fewer=fewer, ends=setup.spreads(runs)
    )
    rows = [
        [
            rule,
            f"{rate:g}",
            f"{sync_time:g}",
            setup.percent(setup.final(data, size.time).sel(lr=rate, sync_time=sync_time)),
        ]
        for rule, data in curves.items()
        for rate in size.lrs
        for sync_time in SYNC_TIMES
    ]
    figures: dict[str, Figure] = {}
    for rule, data in curves.items():
        best = setup.best_lr(setup.final(data, size.time).sel(sync_time=0.0))
        figures |= setup.pictures(
            setup.each_setting(data, "sync_time", best, "S"),
            f"fig6_{rule}",
            f"{setup.words_of(size)}, {rule.replace('_', ' ')}, lr {best:g}",
        )
    text = table(["aggregation", "lr", "S", "accuracy at T, %"], rows)
    return setup.outcome(size, curves, figures, judge(inputs), text, inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 14: S = 5 is not behind S = 0 at T, with fewer rounds.

    Args:
      inputs: Leads of S = 5 over S = 0 by learning rate ("leads"), the share of rounds saved in
        percent ("fewer"), and accuracies at T ("ends").
    """
    marks, leads = CLAIMS[14].criterion, setup.read_leads(inputs["leads"])
    saves = unless_unknown(marks.least <= inputs["fewer"] <= marks.most, inputs["fewer"])
    judged = {
        rate: {"not behind at T": each.above(-marks.equal), "fewer rounds": saves}
        for rate, each in leads.items()
    }
    measured = {
        "lead of S = 5 in points": {rate: each._asdict() for rate, each in leads.items()},
        "fewer rounds, %": inputs["fewer"],
        "accuracy at T, %": setup.described(inputs),
    }
    fewer = f"{inputs['fewer']:.1f} % fewer rounds"
    why = f"S = 5 ahead of S = 0 at T, points: {setup.by_lr(leads)}; {fewer}"
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    return [setup.settle(inputs, 14, measured, parts, why)]
