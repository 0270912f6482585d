"""Hierarchical FL's Fig. 13: fixed against growing sync time (claim 23).

See arXiv 2302.04851. MNIST, logistic regression, 2 x 500 clients. Round u has S_u = min(u, S) with
S = 5, 10, 20, and the delays of Fig. 6. Clients follow Dirichlet(0.5) and are topped up to ten
examples each.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome
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
    gaps = [leads[s][lr] for s in SYNC_TIMES]
    widens = gaps[0].mean < gaps[1].mean < gaps[2].mean
    holds = setup.all_of(
        [
            *(each.is_clear for each in gaps),
            widens if np.isfinite([each.mean for each in gaps]).all() else None,
        ]
    )
    told = "; ".join(f"S = {s:g}: {setup.by_lr(each)}" for s, each in leads.items())
    measured = {f"{s:g}": setup.numbers(each) for s, each in leads.items()}
    why = (
        f"growing ahead of fixed at T, points, {told}; judged at lr {lr:g}; {setup.words_of(size)}"
    )
    verdicts = [setup.settle(arguments, size, 23, measured, holds, why)]
    figures: dict[str, Figure] = {}
    for s in SYNC_TIMES:
        chosen = curves.sel(lr=lr, sync_time=s)
        shown = {word: chosen.sel(sync_growth=g) for word, g in (("fixed", 0.0), ("growing", 1.0))}
        figures |= setup.pictures(
            shown, f"fig13_S{s:g}", f"{setup.words_of(size)}, S = {s:g}, lr {lr:g}"
        )
    return setup.outcome(size, {"fig13": curves}, figures, verdicts)
