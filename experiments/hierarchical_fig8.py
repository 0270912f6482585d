"""Hierarchical FL's Fig. 8 (arXiv 2302.04851): federated EMNIST, CNN, 3400 writers behind four servers, S = 0, 12, 24; claims 18 and 27.

With 850 clients a group an iteration takes 86 units of time, more than any S: the printed setting is run as it is, and a second time with
16 writers of a group taking part in each round, which also count for its delays. `--reduced`: MNIST, 340 clients of Dirichlet(0.5).
"""

import sys
from typing import Any

import numpy as np

from experiments.hierarchical_claims import verdict
from experiments.hierarchical_runs import (
    FEMNIST,
    FIG8,
    MNIST,
    SMOKE,
    at,
    best_lr,
    by_lr,
    clock,
    dirichlet,
    each_setting,
    final,
    lead,
    load,
    pictures,
    play,
    size_of,
    split,
    table_of,
)
from experiments.sampling import verdict_table
from experiments.support import Arguments, Outcome, main

SYNC_TIMES = [0.0, 12.0, 24.0]
ACTIVE = 16


def run(arguments: Arguments) -> Outcome:
    """Run the printed setting and the one that can be."""
    size = size_of(arguments, FEMNIST, MNIST)
    data = load(arguments, size)
    if data.train_clients is None:
        tasks = dirichlet(data, size, 80 if arguments.smoke else 340)
    else:
        tasks = split(data, size, "natural", int(data.train_clients.max()) + 1, client_ids=data.train_clients)
    swept: dict[str, Any] = {"sync_time": SYNC_TIMES}
    printed = play(arguments, size, "printed", tasks, clock([850] * 4, FIG8), swept)
    active = play(arguments, size, "active", tasks, clock([ACTIVE] * 4, FIG8, active_per_group=ACTIVE), swept)
    own = final(active, size.time)
    lr = best_lr(own.sel(sync_time=0.0))
    early = {s: lead(*(at(active.sel(lr=lr, sync_time=each), 150.0) for each in (0.0, s))) for s in SYNC_TIMES[1:]}
    late = {s: {rate: lead(own.sel(lr=rate, sync_time=12.0), own.sel(lr=rate, sync_time=s)) for rate in size.lrs} for s in (0.0, 24.0)}
    holds = all(each.is_clear for each in early.values()) and all(each[lr].is_clear for each in late.values())
    told = "; ".join(f"at T S = 12 over S = {s:g} by {by_lr(each)}" for s, each in late.items())
    before = ", ".join(f"{each} over S = {s:g}" for s, each in early.items())
    why = f"at 150 S = 0 is ahead by {before}; {told} points; 16 clients a round; judged at lr {lr:g}; {size.words}"
    measured = {"early": {f"{s:g}": e._asdict() for s, e in early.items()}, "late": {f"{s:g}": e[lr]._asdict() for s, e in late.items()}}
    first = printed.accuracy.sel(sync_time=0.0)
    spread = max(float(np.max(np.abs(printed.accuracy.sel(sync_time=s) - first))) for s in SYNC_TIMES)
    same_time = bool(np.all(printed.time.sel(sync_time=12.0) == printed.time.sel(sync_time=0.0)))
    verdicts = [
        verdict(18, measured, None if arguments.smoke else holds, SMOKE if arguments.smoke else why),
        verdict(27, {"largest difference": spread}, spread == 0 and same_time, f"largest difference of accuracies {spread:g}, same times"),
    ]
    figures = pictures(each_setting(active, "sync_time", lr, "S"), "fig8", f"{size.words}, 16 active, lr {lr:g}")
    figures |= pictures(each_setting(printed, "sync_time", lr, "S"), "fig8_printed", f"{size.words}, as printed, lr {lr:g}")
    curves = {"printed": printed, "active": active}
    text = table_of(curves, size.time) + "\n\n" + verdict_table(verdicts)
    return Outcome(curves, figures, verdicts, {"size": size.words, "lrs": size.lrs}, text)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig8", __doc__ or "", run))
