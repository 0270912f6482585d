"""Hierarchical FL's Fig. 13: fixed against growing sync time (claim 23).

See arXiv 2302.04851. MNIST, logistic regression, 2 x 500 clients. Round u has S_u = min(u, S) with
S = 5, 10, 20, and the delays of Fig. 6. Clients follow Dirichlet(0.5) and are topped up to ten
examples each.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.harness import LEAST_LEAD, Arguments, Interval, Outcome, Verdict, all_of
from experiments.hierarchical import setup
from fedjax_sim.models import LogisticRegression

STUDY = setup.study(setup.MNIST.replace(network=LogisticRegression), reduced=None)
SYNC_TIMES = [5.0, 10.0, 20.0]


def run(arguments: Arguments) -> Outcome:
    """Run both schedules for three final sync times, and judge the claim."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.dirichlet(setup.load(arguments, size), size, 20 if arguments.smoke else 1000)
    swept = {"sync_growth": [0.0, 1.0], "sync_time": SYNC_TIMES}
    curves = setup.play(arguments, size, "fig13", tasks, setup.clock([500, 500], setup.FIG6), swept)
    ends = setup.final(curves, size.time)
    lr = setup.best_lr(ends.sel(sync_growth=0.0, sync_time=5.0))
    leads = {
        s: setup.leads(*(ends.sel(sync_time=s, sync_growth=growth) for growth in (1.0, 0.0)))
        for s in SYNC_TIMES
    }
    inputs = setup.inputs_of(
        arguments,
        STUDY,
        size,
        leads={f"{s:g}": each for s, each in leads.items()},
        ends=setup.spreads(
            {
                f"S = {s:g}, {word}": ends.sel(sync_time=s, sync_growth=growth)
                for s in SYNC_TIMES
                for word, growth in (("fixed", 0.0), ("growing", 1.0))
            }
        ),
    )
    figures: dict[str, Figure] = {}
    for s in SYNC_TIMES:
        chosen = curves.sel(lr=lr, sync_time=s)
        shown = {word: chosen.sel(sync_growth=g) for word, g in (("fixed", 0.0), ("growing", 1.0))}
        figures |= setup.pictures(
            shown, f"fig13_S{s:g}", f"{setup.words_of(size)}, S = {s:g}, lr {lr:g}"
        )
    return setup.outcome(size, {"fig13": curves}, figures, judge(inputs), inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 23: a growing S is ahead of a fixed one, by more for a larger final S."""
    leads = {s: setup.read_leads(each) for s, each in inputs["leads"].items()}
    finals = sorted(leads, key=float)
    judged: dict[str, dict[str, bool | None]] = {}
    for rate in leads[finals[0]]:
        gaps = [leads[s][rate] for s in finals]
        judged[rate] = {
            f"S = {s}": each.above(LEAST_LEAD) for s, each in zip(finals, gaps, strict=True)
        }
        judged[rate]["more for larger S"] = all_of(
            Interval(more.mean - less.mean, more.half + less.half).above()
            for less, more in itertools.pairwise(gaps)
        )
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    told = "; ".join(f"S = {s}: {setup.by_lr(each)}" for s, each in leads.items())
    measured = {
        "leads": {s: {r: x._asdict() for r, x in each.items()} for s, each in leads.items()},
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"growing ahead of fixed at T, points, {told}"
    return [setup.settle(inputs, 23, measured, parts, why)]
