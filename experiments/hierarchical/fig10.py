"""Hierarchical FL's Fig. 10: two groups of unequal speed, sizes 10 + 20, 15 + 15 and 20 + 10.

See arXiv 2302.04851; claims 20 and 28. Shifts are 1 and 7 (a), and 7 and 1 (b), for all sizes; S =
8, c_g = 10, and exponential parts are a tenth of the shifts, and 1. The paper names no data: MNIST,
i.i.d., and a perceptron of 50 units are used. Its text contradicts itself; the reading here is that
more clients on the slow server are better.
"""

from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS

STUDY = setup.study(setup.MNIST, reduced=None)
SIZES = ((10, 20), (15, 15), (20, 10))
SHIFTS = {"a": (1.0, 7.0), "b": (7.0, 1.0)}


def run(arguments: Arguments) -> Outcome:
    """Run all sizes with all shifts, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.split(setup.load(arguments, size), size, "iid", 30)
    curves = {}
    for panel, shift in SHIFTS.items():
        for sizes in SIZES:
            delays = setup.fixed_clock(shift, [0.1 * c for c in shift], 10.0, 1.0)
            name = f"{panel}_{sizes[0]}_{sizes[1]}"
            curves[name] = setup.play(
                arguments, size, name, tasks, delays | {"group_sizes": sizes, "sync_time": 8.0}
            )
    ends = {name: setup.final(data, size.time) for name, data in curves.items()}
    lr = setup.best_lr(ends["a_15_15"])
    slow = {"a": "a_10_20", "b": "b_20_10"}
    leads = {panel: setup.leads(ends[name], ends[f"{panel}_15_15"]) for panel, name in slow.items()}
    mirrored = {
        name: name.replace("a", "b") if "15" in name else f"b_{'_'.join(name.split('_')[:0:-1])}"
        for name in ends
        if name[0] == "a"
    }
    apart = {
        name: setup.lead(ends[name].sel(lr=lr), ends[other].sel(lr=lr))
        for name, other in mirrored.items()
    }
    told = "; ".join(f"{panel}: {setup.by_lr(each)}" for panel, each in leads.items())
    same = "; ".join(f"{name} over {mirrored[name]}: {each}" for name, each in apart.items())
    is_mirror = setup.all_of(each.is_none for each in apart.values())
    measured = {panel: setup.numbers(each) for panel, each in leads.items()}
    more = setup.all_of(each[lr].is_clear for each in leads.values())
    judged = [
        (
            20,
            measured,
            more,
            f"20 clients on the slow server ahead of 15: {told} points at T; judged at lr {lr:g}; "
            f"{setup.words_of(size)}",
        ),
        (
            28,
            setup.numbers(apart),
            is_mirror,
            f"{same} points at T, lr {lr:g}, equal within {CLAIMS[28].criterion.equal:g}",
        ),
    ]
    verdicts = [setup.settle(arguments, size, *each) for each in judged]
    figures: dict[str, Figure] = {}
    for panel in SHIFTS:
        shown = {name: data.sel(lr=lr) for name, data in curves.items() if name.startswith(panel)}
        figures |= setup.pictures(
            shown, f"fig10{panel}", f"{setup.words_of(size)}, shifts {SHIFTS[panel]}, lr {lr:g}"
        )
    return setup.outcome(size, curves, figures, verdicts)
