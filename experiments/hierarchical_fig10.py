"""Hierarchical FL's Fig. 10 (arXiv 2302.04851): two groups of unequal speed, sizes 10 + 20, 15 + 15, 20 + 10; claims 20 and 28.

Shifts 1 and 7 (a), and 7 and 1 (b), whatever the sizes; S = 8, c_g = 10, exponential parts a tenth of the shifts, and 1. The paper names no
data: MNIST, i.i.d., a perceptron of 50 units. Its text contradicts itself; the reading is that more clients on the slow server are better.
"""

import sys

from matplotlib.figure import Figure

from experiments import hierarchical_runs as runs
from experiments.support import Arguments, Outcome, main

SIZES = ((10, 20), (15, 15), (20, 10))
SHIFTS = {"a": (1.0, 7.0), "b": (7.0, 1.0)}


def run(arguments: Arguments) -> Outcome:
    """Run sizes by shifts."""
    size = runs.size_of(arguments, runs.MNIST, reduced=None)
    tasks = runs.split(runs.load(arguments, size), size, "iid", 30)
    curves = {}
    for panel, shift in SHIFTS.items():
        for sizes in SIZES:
            delays = runs.fixed_clock(shift, [0.1 * c for c in shift], 10.0, 1.0)
            name = f"{panel}_{sizes[0]}_{sizes[1]}"
            curves[name] = runs.play(
                arguments, size, name, tasks, delays | {"group_sizes": sizes, "sync_time": 8.0}
            )
    own = {name: runs.final(data, size.time) for name, data in curves.items()}
    lr = runs.best_lr(own["a_15_15"])
    slow = {"a": "a_10_20", "b": "b_20_10"}
    leads = {panel: runs.leads(own[name], own[f"{panel}_15_15"]) for panel, name in slow.items()}
    mirrored = {
        name: name.replace("a", "b") if "15" in name else f"b_{'_'.join(name.split('_')[:0:-1])}"
        for name in own
        if name[0] == "a"
    }
    apart = {
        name: runs.lead(own[name].sel(lr=lr), own[other].sel(lr=lr))
        for name, other in mirrored.items()
    }
    told = "; ".join(f"{panel}: {runs.by_lr(each)}" for panel, each in leads.items())
    same = "; ".join(f"{name} over {mirrored[name]}: {each}" for name, each in apart.items())
    is_mirror = runs.all_of(each.is_none for each in apart.values())
    measured = {panel: runs.numbers(each) for panel, each in leads.items()}
    more = runs.all_of(each[lr].is_clear for each in leads.values())
    judged = [
        (
            20,
            measured,
            more,
            f"20 clients on the slow server ahead of 15: {told} points at T; judged at lr {lr:g}; {size.words}",
        ),
        (
            28,
            runs.numbers(apart),
            is_mirror,
            f"{same} points at T, lr {lr:g}, equal within {runs.EQUAL:g}",
        ),
    ]
    verdicts = [runs.settle(arguments, size, *each) for each in judged]
    figures: dict[str, Figure] = {}
    for panel in SHIFTS:
        shown = {name: data.sel(lr=lr) for name, data in curves.items() if name.startswith(panel)}
        figures |= runs.pictures(
            shown, f"fig10{panel}", f"{size.words}, shifts {SHIFTS[panel]}, lr {lr:g}"
        )
    return runs.outcome(size, curves, figures, verdicts)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig10", __doc__ or "", run))
