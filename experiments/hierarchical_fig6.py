"""Hierarchical FL's Fig. 6 (arXiv 2302.04851): MNIST, a perceptron of 50 units, 2 x 500 clients, slow exchanges, S = 0 and 5; claim 14.

i.i.d. data (the paper does not say). Also "average" in place of the division by the number of iterations, which the paper does not run.
"""

import sys

from matplotlib.figure import Figure

from experiments.hierarchical_runs import (
    FIG6,
    MNIST,
    all_of,
    best_lr,
    clock,
    each_setting,
    final,
    lead,
    load,
    percent,
    pictures,
    play,
    settle,
    size_of,
    split,
)
from experiments.sampling import verdict_table
from experiments.support import Arguments, Outcome, main, table

SYNC_TIMES = [0.0, 5.0]
FULL = MNIST._replace(lrs=(0.1, 0.2, 0.5, 2.0))
"""At 0.5, the baseline's best of the other figures' three, the ends of single runs are some points apart: too much to compare them."""


def run(arguments: Arguments) -> Outcome:
    """Run both sync times under both aggregations."""
    size = size_of(arguments, FULL, reduced=None)
    tasks = split(load(arguments, size), size, "iid", 20 if arguments.smoke else 1000)
    curves = {
        rule: play(arguments, size, rule, tasks, clock([500, 500], FIG6, aggregation=rule), {"sync_time": SYNC_TIMES})
        for rule in ("divide_by_steps", "average")
    }
    own = final(curves["divide_by_steps"], size.time)
    lr = best_lr(own.sel(sync_time=0.0))
    leads = {rate: lead(own.sel(lr=rate, sync_time=5.0), own.sel(lr=rate, sync_time=0.0)) for rate in size.lrs}
    rounds = curves["divide_by_steps"].ticks.isel(eval=-1, lr=0).mean("seed")
    fewer = 100 * (1 - float(rounds.sel(sync_time=5.0)) / float(rounds.sel(sync_time=0.0)))
    measured = {
        "lead of S = 5 in points by lr": {str(rate): each._asdict() for rate, each in leads.items()},
        "judged at lr": lr,
        "fewer rounds, %": fewer,
    }
    others = ", ".join(f"{each} at lr {rate:g}" for rate, each in leads.items())
    why = f"S = 5 ahead of S = 0 at T by {others} points, {fewer:.1f} % fewer rounds; judged at lr {lr:g}, within a point; {size.words}"
    verdicts = [settle(arguments, size, 14, measured, all_of([leads[lr].is_none, 12 <= fewer <= 21]), why)]
    rows = [
        [rule, f"{rate:g}", f"{sync_time:g}", percent(final(data, size.time).sel(lr=rate, sync_time=sync_time))]
        for rule, data in curves.items()
        for rate in size.lrs
        for sync_time in SYNC_TIMES
    ]
    figures: dict[str, Figure] = {}
    for rule, data in curves.items():
        best = best_lr(final(data, size.time).sel(sync_time=0.0))
        figures |= pictures(each_setting(data, "sync_time", best, "S"), f"fig6_{rule}", f"{size.words}, {rule}, lr {best:g}")
    text = table(["aggregation", "lr", "S", "accuracy at T, %"], rows) + "\n\n" + verdict_table(verdicts)
    return Outcome(curves, figures, verdicts, {"size": size.words, "lrs": size.lrs}, text)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig6", __doc__ or "", run))
