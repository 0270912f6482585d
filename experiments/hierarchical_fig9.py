"""Hierarchical FL's Fig. 9 (arXiv 2302.04851): 64 clients clustered as 2 x 32, 4 x 16 and 8 x 8, S = 6; claim 19.

The paper names neither data nor model: MNIST and a perceptron of 50 units, so that a CPU can run it at full size (`--dataset` takes
CIFAR-10, with the CNN). Dirichlet(0.5) over clients, the same for every clustering.
"""

import sys

from experiments.hierarchical_runs import (
    FIG9,
    MNIST,
    all_of,
    best_lr,
    by_lr,
    clock,
    dirichlet,
    final,
    lead,
    load,
    pictures,
    play,
    settle,
    size_of,
    table_of,
)
from experiments.sampling import verdict_table
from experiments.support import Arguments, Outcome, main

CLUSTERS = (2, 4, 8)
ROUNDS = {2: 59.6, 4: 68.2, 8: 56.9}
"""Expected within 1000 units of time."""


def run(arguments: Arguments) -> Outcome:
    """Run the three clusterings."""
    size = size_of(arguments, MNIST, reduced=None)
    tasks = dirichlet(load(arguments, size), size, 64)
    curves = {f"M{m}": play(arguments, size, f"M{m}", tasks, clock([64 // m] * m, FIG9, sync_time=6.0)) for m in CLUSTERS}
    own = {name: final(data, size.time) for name, data in curves.items()}
    lr = best_lr(own["M2"])
    leads = {other: {rate: lead(own["M4"].sel(lr=rate), own[other].sel(lr=rate)) for rate in size.lrs} for other in ("M2", "M8")}
    rounds = {name: float(data.ticks.isel(eval=-1, lr=0).mean()) for name, data in curves.items()}
    told = "; ".join(f"M = 4 ahead of {other} by {by_lr(each)}" for other, each in leads.items())
    counts = ", ".join(f"{value:.1f} ({name})" for name, value in rounds.items())
    holds = all_of(each[lr].is_clear for each in leads.values())
    why = f"{told} points; rounds {counts}, expected 59.6, 68.2, 56.9 at T = 1000; judged at lr {lr:g}; {size.words}"
    measured = {"rounds": rounds, "leads": {other: {str(rate): e._asdict() for rate, e in each.items()} for other, each in leads.items()}}
    verdicts = [settle(arguments, size, 19, measured, holds, why)]
    shown = {f"{name}, {rounds[name]:.1f} rounds": data.sel(lr=lr) for name, data in curves.items()}
    figures = pictures(shown, "fig9", f"{size.words}, S = 6, lr {lr:g}")
    text = table_of(curves, size.time) + "\n\n" + verdict_table(verdicts)
    return Outcome(curves, figures, verdicts, {"size": size.words, "lrs": size.lrs}, text)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig9", __doc__ or "", run))
