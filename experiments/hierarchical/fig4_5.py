"""Hierarchical FL's Figs. 4 and 5: cooperating against isolated groups (claims 12 and 13).

See arXiv 2302.04851. CIFAR-10, the CNN. Fig. 4 has 5 and 15 clients, Fig. 5 has 10 and 10. Data
follow Dirichlet(0.1) among the groups and are i.i.d. within (Figs. 4, 5b), or clients have two
labels and groups have no label in common (Fig. 5a). Delays are those of Fig. 3. Both groups, which
cooperate with S = 5, are compared with each group alone until T. All three have learning rates of
their own, chosen with five seeds as `tuning` says. Every model is tested on the common test set.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import fedjax_sim
from experiments import harness
from experiments.harness import Arguments, Interval, Outcome, Sample, Sizes, Study, Verdict
from experiments.hierarchical import claims, setup, tuning
from experiments.hierarchical.formulas.delays import linear_delays
from experiments.hierarchical.tuning import Measured
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.results import plots

STUDY = Study(
    full=tuning.sizes(setup.CIFAR10, tuning.FULL, tuning_seeds=5),
    smoke=tuning.sizes(setup.DIGITS, tuning.SMOKE),
    reduced=tuning.sizes(setup.MNIST, tuning.FULL, tuning_seeds=5),
)
TOGETHER = "cooperating, S = 5"
PANELS: dict[str, tuple[tuple[int, int], str, dict[str, Any]]] = {
    "fig4": ((5, 15), "dirichlet_groups", {"alpha": 0.1}),
    "fig5a": ((10, 10), "disjoint_groups", {"classes": 2}),
    "fig5b": ((10, 10), "dirichlet_groups", {"alpha": 0.1}),
}
ONLY = {"fig4": ("fig4",), "fig5": ("fig5a", "fig5b")}
"""The figures that `--only` may name, each of which decides a claim."""
FIG4 = ("the small group gains", "the large group loses, but little")
"""Parts of claim 12."""
LOOKS = 32
"""Evaluations of an isolated group. A power of two, so that the last one is at T to the bit."""


def together(sizes: Sequence[int]) -> dict[str, Any]:
    """Return the settings of cooperating groups."""
    return setup.clock(sizes, setup.FIG3, group_sizes=sizes, sync_time=5.0)


def alone(sizes: Sequence[int], group: int, time: float) -> dict[str, Any]:
    """Return the settings of one group without the others until T, with evaluations by then.

    Its only round would end at 2 T, so that an evaluation falls on T. The last one of a round
    with S = T would come later, and after an exchange.
    """
    delays = linear_delays(sizes, setup.FIG3)
    shift, mean = ([float(each[group])] for each in (delays.shift, delays.mean_exp))
    clock = setup.fixed_clock(shift, mean, delays.global_shift, delays.global_mean_exp)
    return {**clock, "sync_time": 2 * time, "ticks_per_round": 2 * LOOKS, "group_metrics": True}


def run(arguments: Arguments) -> Outcome:
    """Run the panels that are asked for, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    names = [name for figure in arguments.chosen(ONLY) for name in ONLY[figure]]
    data = setup.load(arguments, size)
    found = {name: measure(arguments, size, data, name) for name in names}
    panels = {name: gains(size, name, runs) for name, runs in found.items()}
    inputs = setup.inputs_of(arguments, STUDY, size, panels=panels)
    figures = {
        f"{name}.png": plots.curves_figure(
            {f"{label}, lr {each.lr:g}": each.curves for label, each in runs.items()},
            "accuracy",
            title=f"{tuning.title_of(name)}, {setup.words_of(size)}",
        )
        for name, runs in found.items()
    }
    figures["sensitivity.png"] = tuning.sensitivity_figure(size, found)
    done = tuning.outcome(size, found, figures, judge(inputs), inputs)
    return done._replace(panel="_".join(filter(None, (done.panel, arguments.panel))))


def measure(arguments: Arguments, size: Sizes, data: Dataset, name: str) -> dict[str, Measured]:
    """Run a panel: the cooperating groups, and each group alone."""
    sizes, kind, options = PANELS[name]

    def stages(clients: slice) -> tuning.Stages:
        def make(images: Dataset, seeds: Sequence[int]) -> list[Classification]:
            how = {"seeds": seeds, "clients": clients, "group_sizes": sizes, **options}
            return setup.split(images, size, kind, sum(sizes), **how)

        return tuning.stages(data, size, make)

    label = f"{name}, {TOGETHER}"
    found = {TOGETHER: tuning.measure(arguments, size, label, stages(slice(None)), together(sizes))}
    for group, number in enumerate(sizes):
        start = sum(sizes[:group])
        run = f"group {group + 1} of {number} alone"
        tasks, changes = stages(slice(start, start + number)), alone(sizes, group, size.time)
        with warnings.catch_warnings():  # The global model stays as it was at the start.
            warnings.simplefilter("ignore", fedjax_sim.CollapsedWarning)
            measured = tuning.measure(
                arguments, size, f"{name}, {run}", tasks, changes, "accuracy_group_0"
            )
        curves = measured.curves.drop_vars("collapsed_at")
        found[run] = measured._replace(curves=curves.assign(loss=curves.loss_group_0))
    return found


def gains(size: Sizes, name: str, runs: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the judged numbers of a panel, whose first run is that of cooperating groups."""
    together, *apart = (setup.final(each.curves, size.time) for each in runs.values())
    return {
        "sizes": list(PANELS[name][0]),
        "gains": [setup.compare(together, each) for each in apart],
        "together": Sample.of(100 * together.values),
        "alone": [Sample.of(100 * each.values) for each in apart],
        "rates": [each.lr for each in runs.values()],
    }


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 12 and 13, as far as their figures were run, by gains from cooperating.

    Each model is at its own learning rate.
    """
    gains, samples, parts, words = {}, {}, {}, {}
    for name, panel in inputs["panels"].items():
        gains[name] = [Interval.read(each) for each in panel["gains"]]
        samples[name] = [Sample.read(each) for each in (panel["together"], *panel["alone"])]
        together, *apart = samples[name]
        judgements = [each.above(harness.LEAST_LEAD) for each in gains[name]]
        if name == "fig4":
            judgements[1] = loses_little(gains[name][1])
        parts[name] = {
            FIG4[i] if name == "fig4" else f"{tuning.title_of(name)}, group {i + 1}": (
                harness.unless_collapsed(each, [together, apart[i]], setup.CHANCE)
            )
            for i, each in enumerate(judgements)
        }
        words[name] = " and ".join(
            f"{each} over group {i + 1} ({panel['sizes'][i]} clients, lr {panel['rates'][i + 1]:g})"
            for i, each in enumerate(gains[name])
        )
        words[name] += f", cooperating {together} % at lr {panel['rates'][0]:g}"
    labels, verdicts = (TOGETHER, "group 1 alone", "group 2 alone"), []
    for number, names in ((12, ONLY["fig4"]), (13, ONLY["fig5"])):
        if not parts.keys() >= {*names}:
            continue
        judged = {part: value for name in names for part, value in parts[name].items()}
        told = "; ".join(f"{tuning.title_of(name)}: {words[name]}" for name in names)
        measured = {
            name: {
                "gains": [each._asdict() for each in gains[name]],
                "accuracy at T, %": {
                    label: each.described(setup.CHANCE)
                    for label, each in zip(labels, samples[name], strict=True)
                },
            }
            for name in names
        }
        why = f"{told}: points at T, each model at its own learning rate"
        deciding = harness.begins(FIG4[0] if number == 12 else "")
        verdicts.append(setup.settle(inputs, number, measured, judged, why, deciding=deciding))
    return verdicts


def loses_little(gain: Interval) -> bool | None:
    """Return whether the large group of Fig. 4 loses something, but little, by cooperating."""
    lost = Interval(-gain.mean, gain.half)
    return harness.all_of([lost.above(), gain.above(-claims.CLAIMS[12].criterion.little)])
