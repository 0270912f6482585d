"""Hierarchical FL's Fig. 9: 64 clients clustered as 2 x 32, 4 x 16 and 8 x 8, S = 6 (claim 19).

See arXiv 2302.04851. The paper names neither data nor model: MNIST and a perceptron of 50 units are
used, so that a CPU can run it at full size (`--dataset` takes CIFAR-10, with the CNN). Clients
follow Dirichlet(0.5), the same for every clustering.
"""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Arguments, Outcome, Verdict
from experiments.hierarchical import setup

STUDY = setup.study(setup.MNIST, reduced=None)
RUNS = {f"M = {m}": setup.clock([64 // m] * m, setup.FIG9, sync_time=6.0) for m in (2, 4, 8)}
"""Settings of the clusterings."""
ROUNDS = {2: 59.6, 4: 68.2, 8: 56.9}
"""Rounds expected within 1000 units of time, by number of groups."""


def run(arguments: Arguments) -> Outcome:
    """Run the three clusterings, and judge the claim."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.dirichlet(setup.load(arguments, size), size, 64)
    curves = {
        name: setup.play(arguments, size, name, tasks, changes) for name, changes in RUNS.items()
    }
    ends = {name: setup.final(data, size.time) for name, data in curves.items()}
    lr = setup.best_lr(ends["M = 2"])
    leads = {other: setup.leads(ends["M = 4"], ends[other]) for other in ("M = 2", "M = 8")}
    rounds = {name: float(data.ticks.isel(eval=-1, lr=0).mean()) for name, data in curves.items()}
    inputs = setup.inputs_of(
        arguments, STUDY, size, leads=leads, rounds=rounds, ends=setup.spreads(ends)
    )
    shown = {f"{name}, {rounds[name]:.1f} rounds": data.sel(lr=lr) for name, data in curves.items()}
    figures = setup.pictures(shown, "fig9", f"{setup.words_of(size)}, S = 6, lr {lr:g}")
    return setup.outcome(size, curves, figures, judge(inputs), inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 19: four groups are ahead of two and of eight.

    Args:
      inputs: Leads of four groups by the other run and learning rate ("leads"), rounds of every run
        ("rounds"), and accuracies at T ("ends").
    """
    leads = {other: setup.read_leads(each) for other, each in inputs["leads"].items()}
    judged: dict[str, dict[str, bool | None]] = {}
    for other, found in leads.items():
        for rate, each in found.items():
            judged.setdefault(rate, {})[f"M = 4 over {other}"] = each.above()
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    told = "; ".join(f"over {other} by {setup.by_lr(each)}" for other, each in leads.items())
    rounds = ", ".join(f"{value:.1f} ({name})" for name, value in inputs["rounds"].items())
    expected = ", ".join(f"{value:g}" for value in ROUNDS.values())
    measured = {
        "rounds": inputs["rounds"],
        "leads of M = 4": {
            o: {r: x._asdict() for r, x in each.items()} for o, each in leads.items()
        },
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"M = 4 ahead at T, points: {told}; rounds {rounds}, expected {expected} at T = 1000"
    return [setup.settle(inputs, 19, measured, parts, why)]
