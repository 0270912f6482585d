"""Hierarchical FL's Fig. 10: two groups of unequal speed, sizes 10 + 20, 15 + 15 and 20 + 10.

See arXiv 2302.04851; claims 20 and 28. Shifts are 1 and 7 (a), and 7 and 1 (b), for all sizes; S =
8, c_g = 10, and exponential parts are a tenth of the shifts, and 1. The paper names no data: MNIST,
i.i.d., and a perceptron of 50 units are used. Its text contradicts itself; the reading here is that
more clients on the slow server are better.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_sim
from experiments.harness import Arguments, Outcome, Verdict, begins
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import hierarchical

STUDY = setup.study(setup.MNIST, reduced=None)
SIZES = ((10, 20), (15, 15), (20, 10))
SHIFTS = {"a": (1.0, 7.0), "b": (7.0, 1.0)}
RUNS: dict[str, dict[str, Any]] = {
    f"{panel}_{sizes[0]}_{sizes[1]}": {
        **setup.fixed_clock(shift, [0.1 * c for c in shift], 10.0, 1.0),
        "group_sizes": sizes,
        "sync_time": 8.0,
    }
    for panel, shift in SHIFTS.items()
    for sizes in SIZES
}
"""Settings by panel and sizes."""
SLOW = {"a": "a_10_20", "b": "b_20_10"}
"""The run of each panel with twenty clients on the slow server."""


def run(arguments: Arguments) -> Outcome:
    """Run all sizes with all shifts, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.split(setup.load(arguments, size), size, "iid", 30)
    curves = {
        name: setup.play(arguments, size, name, tasks, changes) for name, changes in RUNS.items()
    }
    ends = {name: setup.final(data, size.time) for name, data in curves.items()}
    lr = setup.best_lr(ends["a_15_15"])
    leads = {panel: setup.leads(ends[name], ends[f"{panel}_15_15"]) for panel, name in SLOW.items()}
    mirrored = {
        name: name.replace("a", "b") if "15" in name else f"b_{'_'.join(name.split('_')[:0:-1])}"
        for name in ends
        if name[0] == "a"
    }
    apart = {
        (name, other): setup.leads(ends[name], ends[other]) for name, other in mirrored.items()
    }
    inputs = setup.inputs_of(
        arguments,
        STUDY,
        size,
        leads=leads,
        mirrored={
            f"{label_of(name)} over {label_of(other)}": each
            for (name, other), each in apart.items()
        },
        mirror=mirror_difference(),
        ends=setup.spreads(ends),
    )
    figures: dict[str, Figure] = {}
    for panel in SHIFTS:
        shown = {
            label_of(name): data.sel(lr=lr)
            for name, data in curves.items()
            if name.startswith(panel)
        }
        figures |= setup.pictures(
            shown, f"fig10{panel}", f"{setup.words_of(size)}, shifts {SHIFTS[panel]}, lr {lr:g}"
        )
    return setup.outcome(size, curves, figures, judge(inputs), inputs=inputs)


def label_of(name: str) -> str:
    """Return what a run is called: "a_10_20" is panel a with 10 + 20 clients."""
    panel, first, second = name.split("_")
    return f"{panel}: {first} + {second}"


def mirror_difference(num_ticks: int = 12) -> float:
    """Swap association and delays where iterations take deterministic times, and compare models.

    Quadratic clients with full gradients, in double precision: the clients of the fast group are
    the first ten of one run and the last ten of the other.

    Args:
      num_ticks: Number of rounds.

    Returns:
      The largest difference between the last global models of two seeds, over their largest norm.
    """
    with jax.enable_x64(True):
        centers = np.random.default_rng(0).normal(size=(30, 3))
        models = []
        for shift, sizes, order in (
            (SHIFTS["a"], (10, 20), np.arange(30)),
            (SHIFTS["b"], (20, 10), np.roll(np.arange(30), -10)),
        ):
            problem = Quadratic.of(centers[order])
            changes = setup.fixed_clock(shift, [0.0, 0.0], 10.0, 1.0)
            hyper = hierarchical.paper(
                num_clients=30,
                batch_size=1,
                lr=0.3,
                sync_time=8.0,
                **{"group_sizes": sizes, **changes},
            )
            run = fedjax_sim.sweep(
                hierarchical.system,
                problem,
                hyper,
                seeds=2,
                budget=fedjax_sim.Ticks(num_ticks),
                num_evals=1,
            )
            models.append(np.asarray(run.models))
    first, second = models
    return float(np.max(np.abs(first - second)) / np.max(np.linalg.norm(first, axis=-1)))


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 20 and 28.

    Args:
      inputs: Leads of 20 clients on the slow server over 15 by panel and learning rate ("leads");
        leads of every run over its mirror image by learning rate ("mirrored"); the difference of
        `mirror_difference`, or None where that was not kept ("mirror"); accuracies at T ("ends").
    """
    return [judge_sizes(inputs), _judge_mirror(inputs)]


def judge_sizes(inputs: Mapping[str, Any]) -> Verdict:
    """Judge claim 20; see `judge`."""
    leads = {panel: setup.read_leads(each) for panel, each in inputs["leads"].items()}
    judged: dict[str, dict[str, bool | None]] = {}
    for panel, found in leads.items():
        for rate, each in found.items():
            judged.setdefault(rate, {})[f"panel {panel}"] = each.above()
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    told = "; ".join(f"{panel}: {setup.by_lr(each)}" for panel, each in leads.items())
    measured = {
        "leads": {p: {r: x._asdict() for r, x in each.items()} for p, each in leads.items()},
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"20 clients on the slow server ahead of 15 at T, points: {told}"
    return setup.settle(inputs, 20, measured, parts, why)


def _judge_mirror(inputs: Mapping[str, Any]) -> Verdict:
    """Judge claim 28; see `judge`."""
    marks, mirror = CLAIMS[28].criterion, inputs["mirror"]
    mirrored = {name: setup.read_leads(each) for name, each in inputs["mirrored"].items()}
    judged: dict[str, dict[str, bool | None]] = {}
    for name, found in mirrored.items():
        for rate, each in found.items():
            judged.setdefault(rate, {})[f"{name} equal"] = each.within(marks.equal)
    same: dict[str, bool | None] = {
        "deterministic delays": None if mirror is None else mirror <= marks.same
    }
    told = "; ".join(f"{name} by {setup.by_lr(each)}" for name, each in mirrored.items())
    exact = "" if mirror is None else f"deterministic delays: models differ by {mirror:.0e}; "
    measured = {
        "mirror difference": mirror,
        "leads": {n: {r: x._asdict() for r, x in each.items()} for n, each in mirrored.items()},
    }
    parts = same | setup.by_rate(inputs, judged, inputs["ends"])
    why = f"{exact}ahead at T, points: {told}"
    return setup.settle(inputs, 28, measured, parts, why, deciding=begins(*same))
