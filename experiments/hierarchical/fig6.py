"""Hierarchical FL's Fig. 6: slow exchanges, S = 0 and 5 (claim 14).

See arXiv 2302.04851. MNIST, i.i.d. (the paper does not say), a perceptron of 50 units, 2 x 500
clients. "average" in place of the division by the number of iterations, which the paper does not
run, is run too.
"""

from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome, table
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS

STUDY = setup.study(setup.MNIST.replace(lrs=(0.1, 0.2, 0.5, 2.0)), reduced=None)
SYNC_TIMES = [0.0, 5.0]
"""The sync times.

At learning rate 0.5, the baseline's best of the three that the other figures use, ends of single
runs differ by some points, too much to compare them: hence the fourth rate.
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
            setup.clock([500, 500], setup.FIG6, aggregation=rule),
            {"sync_time": SYNC_TIMES},
        )
        for rule in ("divide_by_steps", "average")
    }
    ends = setup.final(curves["divide_by_steps"], size.time)
    lr = setup.best_lr(ends.sel(sync_time=0.0))
    leads = setup.leads(ends.sel(sync_time=5.0), ends.sel(sync_time=0.0))
    rounds = curves["divide_by_steps"].ticks.isel(eval=-1, lr=0).mean("seed")
    fewer = 100 * (1 - float(rounds.sel(sync_time=5.0)) / float(rounds.sel(sync_time=0.0)))
    marks = CLAIMS[14].criterion
    measured = {
        "lead of S = 5 in points by lr": setup.numbers(leads),
        "judged at lr": lr,
        "fewer rounds, %": fewer,
    }
    told = f"S = 5 ahead of S = 0 at T by {setup.by_lr(leads)} points, {fewer:.1f} % fewer rounds"
    why = f"{told}; judged at lr {lr:g}, within a point; {setup.words_of(size)}"
    verdicts = [
        setup.settle(
            arguments,
            size,
            14,
            measured,
            setup.all_of([leads[lr].is_none, marks.least <= fewer <= marks.most]),
            why,
        )
    ]
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
    return setup.outcome(
        size, curves, figures, verdicts, table(["aggregation", "lr", "S", "accuracy at T, %"], rows)
    )
