"""Figs. 6 to 10 and 12, each run at its own rate (claims 14 to 16, 18 to 20, 22 and 34 to 36).

See arXiv 2302.04851. The paper gives neither rates nor inputs. With its rule, one step an iteration
and standardised inputs, every run has its own rate, chosen as `tuning` says, with ten seeds, in
Fig. 10 forty. Figs. 6, 9 and 10 are on MNIST (the paper names the data of Fig. 6 alone), and Figs.
7 and 12 on CIFAR-10 with the paper's CNN: `--dataset cifar10`, or a file whose name begins so.
Figs. 8 and 12 are run on MNIST too, and Fig. 8 on its own data with `--dataset federated_emnist`:
340 clients, on EMNIST 3400, of which 16 of a group take part in a round. Fig. 10 has shifts of 1
and 7 (a), or 7 and 1 (b); its text contradicts itself, and is read so that more clients on the slow
server are better.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.harness import Arguments, Interval, Outcome, Sample, Sizes, Study, Verdict, lead
from experiments.hierarchical import claims, setup, tuning
from experiments.hierarchical.tuning import Measured
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.results import plots

STUDY = Study(
    full=tuning.sizes(setup.MNIST, tuning.FULL, most_clients=1000),
    smoke=tuning.sizes(setup.DIGITS, tuning.SMOKE, most_clients=80, time=100.0),
)
Ends = Mapping[str, Sample]
Parts = dict[str, bool | None]
ACTIVE = 16
EARLY = (100.0, 200.0, 300.0)
ROUNDS = {2: 59.6, 4: 68.2, 8: 56.9}
"""Rounds of Fig. 9 expected within 1000 units of time, by number of groups."""


class Panel(NamedTuple):
    """A figure whose runs are compared.

    `full` is its size in the paper, and `runs` are the settings of each run. `judge` gives the
    parts of each of the figure's claims, with the numbers in words. Of `pairs` crossings are
    kept. Clients' data are i.i.d., or follow Dirichlet(0.5), and `times_seeds` times the
    study's seeds are run.
    """

    full: Sizes
    num_clients: int
    is_iid: bool
    runs: Mapping[str, Mapping[str, Any]]
    judge: Callable[[Mapping[str, Any], Ends], dict[int, tuple[Parts, str]]]
    pairs: Mapping[str, tuple[str, str]] = {}
    times_seeds: int = 1


def ahead(ends: Ends, first: str, other: str, least: float = harness.LEAST_LEAD) -> bool | None:
    """Return whether one run is ahead of another at T by the least lead that counts."""
    return harness.ahead(ends[first], ends[other], setup.CHANCE, least)


def told(ends: Ends, pairs: Sequence[tuple[str, str]]) -> str:
    """Describe leads at T in points."""
    words = (f"{first} over {other} by {lead(ends[first], ends[other])}" for first, other in pairs)
    return f"points at T, each run at its own rate: {'; '.join(words)}"


def compared(
    ends: Ends, pairs: Sequence[tuple[str, str]], least: float = harness.LEAST_LEAD
) -> tuple[Parts, str]:
    """Judge that the first run of each pair is ahead."""
    parts = {f"{first} over {other}": ahead(ends, first, other, least) for first, other in pairs}
    return parts, told(ends, pairs)


def judge_fig6(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claim 14: S = 5 is not behind S = 0, with fewer rounds."""
    marks, rounds = claims.CLAIMS[14].criterion, inputs["rounds"]
    fewer = 100 * (1 - rounds["S = 5"] / rounds["S = 0"])
    _, why = compared(ends, pairs := [("S = 5", "S = 0")])
    parts = {
        "not behind at T": ahead(ends, *pairs[0], -marks.equal),
        "fewer rounds": harness.unless_unknown(marks.least <= fewer <= marks.most, fewer),
    }
    return {14: (parts, f"{why}; {fewer:.1f} % fewer rounds")}


def judge_fig7(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claims 15, 34, 16, 35 and 36, on both panels of Fig. 7."""
    near, far = ({s: f"c_g = {delay}, S = {s}" for s in (0, 5, 20)} for delay in (10, 30))
    places, marks = inputs["crossings"]["c_g = 30, S = 0 and 20"], claims.CLAIMS[35].criterion
    pair = ends[far[0]], ends[far[20]]
    once = {
        words: harness.unless_collapsed(each, pair, setup.CHANCE)
        for words, each in setup.passes_once(places, pair).items()
    }
    _, approaches = compared(ends, [(near[20], near[0])])
    return {
        15: compared(ends, [(near[5], near[0])]),
        34: compared(ends, [(far[5], far[0]), (far[5], far[20])]),
        16: (once, f"S = 0 and 20 change places: {setup.told_crossings(places)}"),
        35: ({"not far behind": ahead(ends, near[20], near[0], -marks.close)}, approaches),
        36: compared(ends, [(far[20], far[0])]),
    }


def judge_fig8(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claim 18: S = 0 leads early, and S = 12 at T."""
    marks = claims.CLAIMS[18].criterion
    parts, late = compared(ends, [("S = 12", "S = 0"), ("S = 12", "S = 24")])
    words = []
    for s in (12, 24):
        leads = {t: Interval.read(each) for t, each in inputs["early"][f"S = {s}"].items()}
        places = inputs["crossings"][f"S = 0 and {s}"]
        passed: bool | None = None
        if places is not None:
            time, led = setup.Crossing(*places[0]) if places else (np.inf, False)
            passed = led and marks.first <= time <= marks.last
        at_all = harness.all_of(each.above(harness.LEAST_LEAD) for each in leads.values())
        parts[f"S = 0 leads S = {s} early"] = (
            True if True in (at_all, passed) else None if None in (at_all, passed) else False
        )
        words.append(", ".join(f"{each} at {time}" for time, each in leads.items()))
        words[-1] = f"S = 0 over S = {s} by {words[-1]}"
    return {18: (parts, f"{'; '.join(words)}; {late}; {ACTIVE} clients a round")}


def judge_fig9(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claim 19: four groups are ahead of two and of eight."""
    parts, why = compared(ends, [("M = 4", "M = 2"), ("M = 4", "M = 8")])
    rounds = ", ".join(f"{value:.1f} ({name})" for name, value in inputs["rounds"].items())
    expected = ", ".join(f"{value:g}" for value in ROUNDS.values())
    return {19: (parts, f"{why}; rounds {rounds}, expected {expected} at T = 1000")}


def judge_fig10(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claim 20: twenty clients on the slow server are ahead of fifteen."""
    return {20: compared(ends, [("a: 10 + 20", "a: 15 + 15"), ("b: 20 + 10", "b: 15 + 15")])}


def judge_fig12(inputs: Mapping[str, Any], ends: Ends) -> dict[int, tuple[Parts, str]]:
    """Judge claim 22: accuracy at T falls from each c_g to the next."""
    return {22: compared(ends, list(itertools.pairwise(ends)))}


FIG7 = setup.clock([15, 15], setup.FIG7)
FIG8 = setup.clock([ACTIVE] * 4, setup.FIG8, active_per_group=ACTIVE)
SHIFTS = {"a": (1.0, 7.0), "b": (7.0, 1.0)}
"""Shifts of the iterations of Fig. 10's groups, by panel."""
PANELS = {
    "fig6": Panel(
        setup.MNIST,
        1000,
        True,
        {f"S = {s}": setup.clock([500, 500], setup.FIG6, sync_time=float(s)) for s in (0, 5)},
        judge_fig6,
    ),
    "fig7": Panel(
        setup.CIFAR10,
        30,
        False,
        {
            f"c_g = {delay}, S = {s}": {**FIG7, "sync_time": float(s), "exchange_shift": delay}
            for delay, s in itertools.product((10, 30), (0, 5, 20))
        },
        judge_fig7,
        {"c_g = 30, S = 0 and 20": ("c_g = 30, S = 0", "c_g = 30, S = 20")},
    ),
    "fig8": Panel(
        setup.FEMNIST,
        340,
        False,
        {f"S = {s}": {**FIG8, "sync_time": float(s)} for s in (0, 12, 24)},
        judge_fig8,
        {f"S = 0 and {s}": ("S = 0", f"S = {s}") for s in (12, 24)},
    ),
    "fig9": Panel(
        setup.MNIST,
        64,
        False,
        {f"M = {m}": setup.clock([64 // m] * m, setup.FIG9, sync_time=6.0) for m in ROUNDS},
        judge_fig9,
    ),
    "fig10": Panel(
        setup.MNIST,
        30,
        True,
        {
            f"{panel}: {n} + {30 - n}": {
                **setup.fixed_clock(shift, [0.1 * c for c in shift], 10.0, 1.0),
                "group_sizes": (n, 30 - n),
                "sync_time": 8.0,
            }
            for (panel, shift), n in itertools.product(SHIFTS.items(), (10, 15, 20))
        },
        judge_fig10,
        times_seeds=4,
    ),
    "fig12": Panel(
        setup.CIFAR10,
        30,
        False,
        {
            f"S = 10, c_g = {delay}": {**FIG7, "sync_time": 10.0, "exchange_shift": delay}
            for delay in (5, 10, 30, 60)
        },
        judge_fig12,
    ),
}
ONLY = {
    "mnist": ("fig6", "fig8", "fig9", "fig10", "fig12"),
    "cifar10": ("fig7", "fig12"),
    "federated": ("fig8",),
}
"""The panels that `--only` may name, by how the name of their data set begins; other data stand in
for MNIST's."""


def kind_of(dataset: str) -> str:
    """Key of a data set in `ONLY`."""
    return next((kind for kind in ONLY if Path(dataset).stem.startswith(kind)), "mnist")


def run(arguments: Arguments) -> Outcome:
    """Choose the rate of every run, run it there, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    kind = kind_of(size.dataset)
    names = arguments.chosen(ONLY[kind])
    data = setup.load(arguments, size)
    found = {name: measure(arguments, size, data, name) for name in names}
    inputs = {
        "panels": {name: inputs_of(arguments, size, name, runs) for name, runs in found.items()}
    }
    done = tuning.outcome(size, found, pictures(size, found), judge(inputs), inputs)
    words = ["" if kind == "mnist" else kind, *(arguments.only or "").split(",")]
    return done._replace(panel="_".join(filter(None, words)))


def measure(arguments: Arguments, size: Sizes, data: Dataset, name: str) -> dict[str, Measured]:
    """Run all runs of a panel in both stages."""
    panel = PANELS[name]
    panel_size = of_panel(size, name)
    writers = data.train_clients

    def make(images: Dataset, seeds: Sequence[int]) -> list[Classification]:
        if panel.is_iid:
            clients = min(panel.num_clients, size.most_clients)
            return setup.split(images, size, "iid", clients, seeds=seeds)
        if writers is None:
            clients = min(panel.num_clients, size.most_clients)
            return setup.dirichlet(images, size, clients, seeds=seeds)
        how: dict[str, Any] = {"seeds": seeds, "client_ids": images.train_clients}
        return setup.split(images, size, "natural", int(writers.max()) + 1, **how)

    tasks = tuning.stages(data, panel_size, make)
    return {
        label: tuning.measure(arguments, panel_size, f"{name}, {label}", tasks, changes)
        for label, changes in panel.runs.items()
    }


def of_panel(size: Sizes, name: str) -> Sizes:
    """Return the size with a panel's number of seeds in the second stage."""
    return size.replace(seeds=size.seeds * PANELS[name].times_seeds)


def inputs_of(
    arguments: Arguments, size: Sizes, name: str, runs: Mapping[str, Measured]
) -> dict[str, Any]:
    """Return the numbers that the judge of a panel needs."""
    panel, curves = PANELS[name], {label: each.curves for label, each in runs.items()}
    ends = {label: setup.final(each, size.time) for label, each in curves.items()}
    grid = np.linspace(0, size.time, 101)[5:]
    early = {}
    if name == "fig8":
        early = {
            f"S = {s}": {
                f"{time:g}": setup.compare(
                    *(setup.at(curves[each], time) for each in ("S = 0", f"S = {s}"))
                )
                for time in EARLY
            }
            for s in (12, 24)
        }
    return setup.inputs_of(
        arguments,
        Study(panel.full, panel.full),
        of_panel(size, name),
        ends={label: Sample.of(100 * each.values) for label, each in ends.items()},
        rates={label: each.lr for label, each in runs.items()},
        rounds={label: float(each.ticks.isel(eval=-1).mean()) for label, each in curves.items()},
        crossings={
            words: setup.crossings([curves[each] for each in pair], grid)
            for words, pair in panel.pairs.items()
        },
        early=early,
    )


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge the claims on all panels, by the accuracies at T in percent and what else is kept."""
    verdicts = []
    for name, found in inputs["panels"].items():
        ends = {label: Sample.read(each) for label, each in found["ends"].items()}
        rates = ", ".join(f"{rate:g} ({run})" for run, rate in found["rates"].items())
        measured = {
            "accuracy at T, %": {run: each.described(setup.CHANCE) for run, each in ends.items()},
            **{each: found[each] for each in ("rounds", "crossings", "early") if found[each]},
        }
        for number, (parts, why) in PANELS[name].judge(found, ends).items():
            verdicts.append(
                setup.settle(
                    found,
                    number,
                    measured,
                    parts,
                    f"{why}, lr {rates}",
                    deciding=harness.begins("S = 12 over" if number == 18 else ""),
                )._replace(seeds=found["seeds"])
            )
    return verdicts


def pictures(size: Sizes, found: tuning.Panels) -> dict[str, Figure]:
    """Draw the choice of the rates, and the accuracies of every panel against time."""
    figures = {"sensitivity.png": tuning.sensitivity_figure(size, found)}
    for name, runs in found.items():
        shown = {f"{label}, lr {each.lr:g}": each.curves for label, each in runs.items()}
        title = f"{tuning.title_of(name)}, {setup.words_of(of_panel(size, name))}"
        figures[f"{name}.png"] = plots.curves_figure(shown, "accuracy", title=title)
    return figures
