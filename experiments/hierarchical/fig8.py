"""Hierarchical FL's Fig. 8: writers behind four servers, S = 0, 12, 24 (claims 18 and 27).

See arXiv 2302.04851. Federated EMNIST, the CNN, 3400 writers. With 850 clients in a group an
iteration takes 86 units of time, more than any S. The setting is run as printed, and a second time
with 16 writers of a group taking part in each round, which also count for its delays. `--reduced`
has MNIST and 340 clients with Dirichlet(0.5).
"""

from typing import Any

import numpy as np

from experiments.harness import Arguments, Outcome
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS, verdict

STUDY = setup.study(setup.FEMNIST, setup.MNIST)
SYNC_TIMES = [0.0, 12.0, 24.0]
ACTIVE = 16
EARLY = (100.0, 200.0, 300.0)


def _crossing(found: setup.Crossing, sync_time: float) -> str:
    return f"{found.time:g} (S = {0 if found.led_before else sync_time:g} ahead before)"


def run(arguments: Arguments) -> Outcome:
    """Run the printed setting and the one with few active clients, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    data = setup.load(arguments, size)
    if data.train_clients is None:
        tasks = setup.dirichlet(data, size, 80 if arguments.smoke else 340)
    else:
        tasks = setup.split(
            data, size, "natural", int(data.train_clients.max()) + 1, client_ids=data.train_clients
        )
    swept: dict[str, Any] = {"sync_time": SYNC_TIMES}
    printed = setup.play(
        arguments, size, "printed", tasks, setup.clock([850] * 4, setup.FIG8), swept
    )
    active = setup.play(
        arguments,
        size,
        "active",
        tasks,
        setup.clock([ACTIVE] * 4, setup.FIG8, active_per_group=ACTIVE),
        swept,
    )
    ends = setup.final(active, size.time)
    lr = setup.best_lr(ends.sel(sync_time=0.0))
    grid = np.linspace(0, size.time, 101)[5:]
    marks = CLAIMS[18].criterion
    early, changes, leads_first = {}, {}, []
    for s in SYNC_TIMES[1:]:
        both = [active.sel(lr=lr, sync_time=each) for each in (0.0, s)]
        early[s] = {time: setup.lead(*(setup.at(each, time) for each in both)) for time in EARLY}
        changes[s] = setup.crossings(*(setup.at(each, grid) for each in both))
        is_between = any(
            each.led_before and marks.first <= each.time <= marks.last for each in changes[s]
        )
        at_all = setup.all_of(each.is_clear for each in early[s].values())
        leads_first.append(True if is_between and at_all is not None else at_all)
    late = {s: setup.leads(ends.sel(sync_time=12.0), ends.sel(sync_time=s)) for s in (0.0, 24.0)}
    holds = setup.all_of([*leads_first, *(each[lr].is_clear for each in late.values())])
    told = "; ".join(
        f"at T S = 12 over S = {s:g} by {setup.by_lr(each)}" for s, each in late.items()
    )
    before = "; ".join(
        f"over S = {s:g} by {', '.join(f'{each} at {time:g}' for time, each in leads.items())}, "
        "places changed at "
        f"{' '.join(_crossing(each, s) for each in changes[s]) or 'no time'}"
        for s, leads in early.items()
    )
    why = (
        f"S = 0 is ahead {before}; {told} points; 16 clients a round; judged at lr {lr:g}; "
        f"{setup.words_of(size)}"
    )
    measured = {
        "early": {
            f"S = {s:g} at {time:g}": e._asdict()
            for s, leads in early.items()
            for time, e in leads.items()
        },
        "crossings": {
            f"{s:g}": [each._asdict() for each in places] for s, places in changes.items()
        },
        "late": {f"{s:g}": e[lr]._asdict() for s, e in late.items()},
    }
    first = printed.accuracy.sel(sync_time=0.0)
    spread = max(
        float(np.max(np.abs(printed.accuracy.sel(sync_time=s) - first))) for s in SYNC_TIMES
    )
    same_time = all(
        bool(np.all(printed.time.sel(sync_time=s) == printed.time.sel(sync_time=0.0)))
        for s in SYNC_TIMES
    )
    verdicts = [
        setup.settle(arguments, size, 18, measured, holds, why),
        verdict(
            27,
            {"largest difference": spread},
            spread == 0 and same_time,
            f"largest difference of accuracies {spread:g}, same times",
        ),
    ]
    figures = setup.pictures(
        setup.each_setting(active, "sync_time", lr, "S"),
        "fig8",
        f"{setup.words_of(size)}, 16 active, lr {lr:g}",
    )
    figures |= setup.pictures(
        setup.each_setting(printed, "sync_time", lr, "S"),
        "fig8_printed",
        f"{setup.words_of(size)}, as printed, lr {lr:g}",
    )
    curves = {"printed": printed, "active": active}
    return setup.outcome(size, curves, figures, verdicts)
