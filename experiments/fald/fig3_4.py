"""FA-LD's Figs. 3 and 4: Bayesian logistic regression on images (claims 14, 15, 25).

See arXiv 2112.05120, Sec. 7.2. On MNIST and Fashion-MNIST, the paper has 10 equal clients, batches
of 200, tau = 0.05, a sample every 10 rounds, K from 1 to 100, and predictions averaged over all
samples so far, without warm-up and with 500 rounds of it. Where it is silent: rho = 0, start at 0,
pixels in [0, 1], a bias, a flat prior, 2000 rounds, and 5 seeds, each with a different split
between clients.

The step size is chosen for each K, metric and warm-up from nine, and from further ones as long as
the largest one tried is best in some metric. It is chosen on a tenth of the training images, held
out for this purpose alone, from runs of one seed with as many rounds; final runs use all training
images. Warm-up drops samples: runs with and without it are the same runs if they have the same step
size.

A data set takes two to four core-hours. `--dataset mnist` runs one of the two. Seeds that are added
to the record, such as `--seeds 5-9`, run at the step sizes that the record has chosen.

Dimension letters: `K` numbers of local steps.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy import stats

import fedjax_sim
from experiments import harness
from experiments.fald.claims import DOUBT, Found, verdict
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, Verdict, ledger, rule
from fedjax_sim import datasets, partition, problems, studies
from fedjax_sim.core.types import Array, Key, Problem
from fedjax_sim.models import LogisticRegression
from fedjax_sim.models.calls import Model
from fedjax_sim.results import diagnostics, plots
from fedjax_sim.systems import langevin

METRICS = {"accuracy": 1, "brier": -1, "ece": -1}
"""The figures' metrics, with 1 if larger is better and -1 if smaller is."""
WARM_UPS = ("", "warm_")
"""Prefixes of a metric without warm-up (Fig. 3) and with it (Fig. 4)."""
HELD_OUT = 0.1
LEAST = harness.LEAST_LEAD / 100
"""Half a point, from which on one K is ahead of another in any metric."""
NAMED = {
    "mnist, accuracy": (50, 100),
    "mnist, brier": (20,),
    "fashion_mnist, brier": (100,),
    "mnist, accuracy, warm-up": (20,),
    "mnist, brier, warm-up": (20,),
    "mnist, ece, warm-up": (20,),
    "fashion_mnist, accuracy, warm-up": (20,),
    "fashion_mnist, brier, warm-up": (10,),
    "fashion_mnist, ece, warm-up": (50,),
}
"""The best K of the paper's text, by panel."""


GRID = (5e-8, 1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5)
FURTHER = (5e-5, 1e-4, 2e-4, 5e-4)
FULL = Sizes(
    seeds=5,
    datasets=("mnist", "fashion_mnist"),
    rounds=2000,
    warm_up=500,
    local_steps=(1, 10, 20, 50, 100),
    step_sizes=GRID,
    further=FURTHER,
    num_clients=10,
    batch_size=200,
    every=10,
)
"""`warm_up` is in rounds; `further` step sizes are tried one by one while the largest one is best;
`every` is the number of rounds from one sample to the next."""
STUDY = Study(
    full=FULL,
    smoke=Sizes(
        seeds=2,
        datasets=("digits",),
        rounds=40,
        warm_up=10,
        local_steps=(1, 5),
        step_sizes=(1e-4, 5e-4),
        further=(1e-3,),
        num_clients=5,
        batch_size=20,
        every=10,
        words="handwritten digits, 5 clients, 40 rounds",
    ),
)


@dataclass(frozen=True)
class FromZero:
    """A network whose parameters start at 0."""

    network: Model

    def init(self, key: Key, x: Array) -> Any:
        return jax.tree.map(jnp.zeros_like, self.network.init(key, x))

    def apply(self, params: Any, x: Array) -> Array:
        return self.network.apply(params, x)


CELLS = tuple(f"{data}, K = {k}" for data in FULL.datasets for k in FULL.local_steps)
"""The cells of the figures, of which single ones can be run with further seeds."""


class ImageRuns(NamedTuple):
    """The curves of a study with the chosen step sizes."""

    curves: dict[str, xr.Dataset]
    """By "DATA, K = ...": metrics with dimensions (step_size, seed, sample); "warm_" stands
    before the metrics with warm-up."""
    chosen: dict[str, dict[str, float]]
    """Step size by "DATA, K = ..." and metric; "warm_" stands before the metrics with warm-up."""
    config: dict[str, Any]


def name_of(data: str, local_steps: int) -> str:
    """Return the key of a study's curves."""
    return f"{data}, K = {local_steps}"


def run(arguments: Arguments) -> Outcome:
    """Run the study, draw both figures and judge the claims."""
    ran = study(arguments)
    inputs = inputs_of(ran)
    if arguments.adds:
        words = "the single runs of further seeds, at the step sizes of the record"
        return Outcome(ran.curves, {}, [], ran.config, words, inputs)
    verdicts = judge(inputs)
    figures = {
        f"fig{number}.png": picture(ran, prefix)
        for number, prefix in zip((3, 4), WARM_UPS, strict=True)
    }
    return Outcome(ran.curves, figures, verdicts, ran.config, inputs=inputs)


def study(arguments: Arguments) -> ImageRuns:
    """Choose step sizes for each K on held-out images, and run all seeds with them.

    Seeds that are added to the record have its step sizes.
    """
    sizes = STUDY.choose(arguments)
    if arguments.dataset is not None:
        sizes = sizes.replace(datasets=(arguments.dataset,))
    known = ledger.recorded("fald/fig3_4")["step sizes"] if arguments.adds else {}
    names = [name_of(data, k) for data in sizes.datasets for k in sizes.local_steps]
    cells = arguments.cells_of(names)
    curves: dict[str, xr.Dataset] = {}
    chosen: dict[str, dict[str, float]] = {}
    held_out: dict[str, Any] = {}
    for data in sizes.datasets:
        whole = datasets.load(data, data_dir=arguments.data_dir)
        tuning, final = [
            _problems(part, sizes, num)
            for part, num in (
                (studies.hold_out(whole, HELD_OUT), range(1)),
                (whole, sizes.seed_range),
            )
        ]
        for local_steps in sizes.local_steps:
            name = name_of(whole.name, local_steps)
            if name not in cells:
                continue
            if name in known:
                chosen[name] = known[name]
            else:
                last = tune(tuning, sizes, local_steps, f"{name}, held out", arguments)
                chosen[name] = {str(metric): best(values) for metric, values in last.items()}
                held_out[name] = {
                    str(metric): values.to_series().to_dict() for metric, values in last.items()
                }
            wanted = sorted(set(chosen[name].values()))
            kept = {"seeds": sizes.seed_range, **arguments.kept(name)}
            curves[name] = _run(final, sizes, local_steps, wanted, kept)
    config = {**sizes.config(), "chosen": chosen, "held_out": held_out, "words": sizes.words}
    return ImageRuns(curves, chosen, config)


def tune(
    tuning: list[Any], sizes: Sizes, local_steps: int, name: str, arguments: Arguments
) -> xr.Dataset:
    """Return the last scores of the runs for tuning, by step size.

    Step sizes are those of the grid, and further ones as long as the largest is best.
    """

    def tried(step_sizes: Sequence[float], name: str) -> xr.Dataset:
        ran = _run(tuning, sizes, local_steps, step_sizes, arguments.kept(name))
        return ran[[prefix + metric for prefix in WARM_UPS for metric in METRICS]].isel(
            sample=-1, seed=0, drop=True
        )

    last = tried(sizes.step_sizes, name)
    for step_size in sizes.further:
        if all(best(values) < last.step_size[-1] for values in last.values()):
            break
        last = xr.concat([last, tried([step_size], f"{name}, {step_size:g}")], "step_size")
    return last


def best(values: xr.DataArray) -> float:
    """Return the step size with the best value of a metric; lanes that diverged are left out."""
    at = np.nanargmax(METRICS[str(values.name).split("_")[-1]] * values.values)
    return float(values.step_size[at])


def _problems(data: datasets.Dataset, sizes: Sizes, seeds: range) -> list[Any]:
    model = FromZero(LogisticRegression(data.num_classes))
    splits = [
        partition.iid(data.train_labels, num_clients=sizes.num_clients, seed=seed) for seed in seeds
    ]
    return problems.make_classifications(model, data, splits)


def _run(
    tasks: list[Any],
    sizes: Sizes,
    local_steps: int,
    step_sizes: Sequence[float],
    kept: Mapping[str, Any],
) -> xr.Dataset:
    """Sample, average predictions and score them: metrics by step size, seed and sample."""
    hyper = langevin.paper(
        num_clients=sizes.num_clients,
        batch_size=sizes.batch_size,
        temperature=0.05,
        rho=0.0,
        local_steps=local_steps,
    )
    run = fedjax_sim.sweep(
        langevin.system,
        tasks,
        hyper,
        settings={"step_size": list(step_sizes)},
        budget=fedjax_sim.Ticks(sizes.rounds),
        num_evals=sizes.rounds // sizes.every,
        keep=fedjax_sim.Keep(models=True),
        **{"seeds": len(tasks), **kept},
    )
    found = {}
    for prefix, dropped in zip(WARM_UPS, (0, sizes.warm_up // sizes.every), strict=True):
        scores = _predictive(tasks[0], run.samples, 1 + dropped)
        for metric, values in scores.items():
            padded = np.pad(values, ((0, 0), (dropped, 0)), constant_values=np.nan)
            found[prefix + metric] = (
                ("step_size", "seed", "sample"),
                padded.reshape(len(step_sizes), len(tasks), -1),
            )
    return run.curves.isel(eval=[-1]).assign(found)


def _predictive(task: Problem, samples: Any, burn_in: int) -> dict[str, np.ndarray]:
    return diagnostics.average_predictions(task, samples, burn_in=burn_in).curves  # type: ignore[arg-type]


# What was found ----------------------------------------------------------------------------------


def data_of(ran: ImageRuns) -> list[str]:
    """Return the data sets of a study, in order."""
    return list(dict.fromkeys(name.split(", ")[0] for name in ran.curves))


@plots.styled()
def picture(ran: ImageRuns, prefix: str) -> Figure:
    """Draw the three metrics against rounds by K, with a row for each data set.

    Each is drawn at the step size chosen for it.
    """
    rows = data_of(ran)
    figure = Figure(figsize=(15, 4.2 * len(rows)))
    panels = figure.subplots(len(rows), 3, squeeze=False)
    for axes, (data, metric) in zip(
        panels.ravel(), ((data, metric) for data in rows for metric in METRICS), strict=True
    ):
        for i, local_steps in enumerate(ran.config["local_steps"]):
            name = name_of(data, local_steps)
            step_size = ran.chosen[name][prefix + metric]
            values = ran.curves[name][prefix + metric].sel(step_size=step_size).values
            rounds = ran.config["every"] * np.arange(1, values.shape[-1] + 1)
            late = len(rounds) // 4  # The beginning would hide the differences at the end.
            rounds, values = rounds[late:], values[:, late:]
            style = plots.look(i, points=len(rounds), drawstyle="steps-post")
            label = f"K = {local_steps}, {step_size:g}"
            axes.plot(rounds, np.median(values, axis=0), label=label, **style)
            of_seed = {"color": style["color"], "drawstyle": "steps-post"}
            axes.plot(rounds, values.T, linewidth=0.6, alpha=0.4, **of_seed)
        axes.set(
            xlabel="rounds",
            ylabel=plots.LABELS[metric],
            title=f"{data.replace('_', ' ')}: median and each seed, first quarter left out",
        )
        axes.locator_params(axis="x", integer=True)
        axes.legend(title="local steps, step size")
    return figure


def inputs_of(ran: ImageRuns) -> dict[str, Any]:
    """Return the numbers that `judge` needs: last values by panel and K, and the step sizes."""
    last: dict[str, dict[str, Sample]] = {}
    for data, prefix, metric in itertools.product(data_of(ran), WARM_UPS, METRICS):
        of_panel = last.setdefault(f"{data}, {metric}{', warm-up' if prefix else ''}", {})
        for k in ran.config["local_steps"]:
            if (name := name_of(data, k)) in ran.curves:
                values = ran.curves[name][prefix + metric].isel(sample=-1)
                chosen = values.sel(step_size=ran.chosen[name][prefix + metric])
                of_panel[f"{k}"] = Sample.of(chosen.values.astype(float))
    words = {name: ran.config[name] for name in ("rounds", "words")}
    return {"last": last, "step sizes": ran.chosen, **words}


Panels = dict[str, dict[int, np.ndarray]]
"""Last values of all seeds by panel and K, such that larger is better."""


def read_panels(inputs: Mapping[str, Any]) -> Panels:
    """Read the result of `inputs_of`; runs that diverged count as minus infinity."""
    found: Panels = {}
    for panel, of_panel in inputs["last"].items():
        sign = METRICS[panel.split(", ")[1]]
        found[panel] = {
            int(k): np.nan_to_num(sign * np.array(Sample.read(each).values, float), nan=-np.inf)
            for k, each in of_panel.items()
        }
    return found


def size_of(panels: Panels, inputs: Mapping[str, Any]) -> Found:
    """Return the least number of seeds, the rounds, and how the runs are smaller."""
    seeds = min(len(values) for panel in panels.values() for values in panel.values())
    return {"seeds": seeds, "rounds": inputs["rounds"], "words": inputs["words"]}


def measure_worst(panels: Panels) -> Found:
    """Compare K = 1 with every other K in the eleven panels of both figures that claim 14 names."""
    named = {name: each for name, each in panels.items() if name != "fashion_mnist, ece, warm-up"}
    others = {panel: [each[k] for k in each if k != 1] for panel, each in named.items()}
    return {
        "worst": {panel: min(each, key=lambda k: each[k].mean()) for panel, each in panels.items()},
        "p that K = 1 is not": {
            panel: max(doubt(each, named[panel][1], LEAST) for each in rest)
            for panel, rest in others.items()
        },
        "p that no other is": {
            panel: min(doubt(named[panel][1], each, -LEAST) for each in rest)
            for panel, rest in others.items()
        },
        "others": max(map(len, others.values())),
    }


def judge_worst(found: Found) -> Verdict:
    """Judge claim 14: whether every other K is ahead of K = 1 in the panels that it names.

    A panel is false if another K is not ahead by the least lead for sure, and undecided if neither
    can be told.
    """
    above, below = found["p that K = 1 is not"], found["p that no other is"]
    shown = "worst K: " + ", ".join(f"{panel} {k}" for panel, k in found["worst"].items())
    missing = found["words"] or (len(above) < 11 and "not all panels that the claim names")
    if missing:
        return verdict(14, found, None, f"not judged: {missing}; {shown}")
    level = DOUBT / (len(above) * found["others"])
    parts = {
        panel: False if below[panel] <= level else True if p <= DOUBT else None
        for panel, p in above.items()
    }
    untold = [f"{panel}, p = {above[panel]:.2g}" for panel, each in parts.items() if each is None]
    why = f"{shown}; {_words(found)}; cannot be told in: {'; '.join(untold) or 'none'}"
    ruling = rule(parts, harness.reduction(found["seeds"]), lambda panel: ", ece" not in panel)
    return verdict(14, {**found, "parts": parts}, ruling, why)


def measure_best(panels: Panels) -> Found:
    """Compare every K with all others in every panel (claims 15 and 25)."""

    def least_doubt(each: Mapping[int, np.ndarray], k: int, least: float) -> float:
        return min(doubt(each[other], each[k], least) for other in each if other != k)

    def most_doubt(each: Mapping[int, np.ndarray], k: int, least: float) -> float:
        return max(doubt(each[k], each[other], least) for other in each if other != k)

    def table(of_panel: Callable[[Mapping[int, np.ndarray], int], float]) -> Found:
        return {panel: {f"{k}": of_panel(each, k) for k in each} for panel, each in panels.items()}

    return {
        "best": {panel: max(each, key=lambda k: each[k].mean()) for panel, each in panels.items()},
        "p that no other is better": table(lambda each, k: least_doubt(each, k, 0.0)),
        "p that no other is ahead": table(lambda each, k: least_doubt(each, k, LEAST)),
        "p that another is ahead": table(lambda each, k: most_doubt(each, k, -LEAST)),
        "p that it is not best": table(lambda each, k: most_doubt(each, k, 0.0)),
    }


def judge_best(found: Found) -> Verdict:
    """Judge claim 15: whether the best K differs between metrics, and between warm-up and none.

    In each panel those K are kept that no other K leads by the least lead, at `DOUBT` over the
    number of comparisons. With probability 1 - `DOUBT` at least every set contains the K that are
    as good as the best, so that these differ if two sets have no K in common. They do not if in
    every pair one K is as good as the best in both panels for sure.
    """
    best, doubts = found["best"], found["p that no other is ahead"]
    near = found["p that another is ahead"]
    shown = "best K: " + ", ".join(f"{panel} {k}" for panel, k in best.items())
    pairs: dict[str, list[tuple[str, str]]] = {"metric": [], "warm-up": []}
    for one, other in itertools.combinations(doubts, 2):
        (data, metric, *warm), (data_2, metric_2, *warm_2) = one.split(", "), other.split(", ")
        if data == data_2 and (warm == warm_2 or metric == metric_2):
            pairs["metric" if warm == warm_2 else "warm-up"].append((one, other))
    missing = found["words"] or (
        not pairs["warm-up"] and "runs with and without warm-up have to be compared"
    )
    if missing:
        return verdict(15, found, None, f"not judged: {missing}; {shown}")
    level = DOUBT / sum(len(each) - 1 for each in doubts.values())
    kept = {
        panel: {int(k) for k, p in each.items() if not p <= level} for panel, each in doubts.items()
    }
    good = {panel: {int(k) for k, p in each.items() if p <= level} for panel, each in near.items()}
    proved = {
        kind: [pair for pair in panel_pairs if not kept[pair[0]] & kept[pair[1]]]
        for kind, panel_pairs in pairs.items()
    }
    parts: dict[str, bool | None] = {}
    for kind, panel_pairs in pairs.items():
        equal = all(good[one] & good[other] for one, other in panel_pairs)
        parts[f"depends on {kind}"] = True if proved[kind] else False if equal else None
    differ = "; ".join(
        f"by {kind} {', '.join(' and '.join(pair) for pair in panel_pairs) or 'none'}"
        for kind, panel_pairs in proved.items()
    )
    why = f"{shown}; {_words(found)}; best K that differ for sure: {differ}"
    sets = {"not led": kept, "not led for sure": good}
    told = {name: {panel: sorted(each) for panel, each in of.items()} for name, of in sets.items()}
    measured = {**found, **told, "differ": proved, "parts": parts}
    return verdict(15, measured, rule(parts, harness.reduction(found["seeds"])), why)


def judge_named(found: Found) -> Verdict:
    """Judge claim 25: whether the best K of nine panels are those that the paper names."""
    doubts = found["p that no other is better"]
    known = all(f"{k}" in doubts.get(panel, ()) for panel, names in NAMED.items() for k in names)
    missing = found["words"] or (not known and "not all panels and K that are named have been run")
    if missing:
        return verdict(25, found, None, f"not judged: {missing}")
    parts: dict[str, bool | None] = {}
    for panel, names in NAMED.items():
        level = DOUBT / (len(NAMED) * (len(doubts[panel]) - 1))
        unbeaten = max(doubts[panel][f"{k}"] for k in names)
        not_best = min(found["p that it is not best"][panel][f"{k}"] for k in names)
        parts[panel] = False if unbeaten <= level else True if not_best <= DOUBT else None
    shown = "; ".join(
        f"{panel} {found['best'][panel]}, named {' to '.join(map(str, names))}"
        for panel, names in NAMED.items()
    )
    ruling = rule(parts, harness.reduction(found["seeds"]))
    return verdict(25, {**found, "parts": parts}, ruling, f"best K: {shown}; {_words(found)}")


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 14, 15 and 25 by what `inputs_of` returns."""
    panels = read_panels(inputs)
    size = size_of(panels, inputs)
    best = {**measure_best(panels), **size}
    return [judge_worst({**measure_worst(panels), **size}), judge_best(best), judge_named(best)]


def doubt(better: np.ndarray, worse: np.ndarray, least: float = 0.0) -> float:
    """Return the one-sided p-value that one is better than the other, by a paired t test.

    Of different numbers of seeds the first ones are compared. `least` is the lead from which on it
    is better; if it is negative, by how much it may be behind.
    """
    number = min(len(better), len(worse))
    better, worse = better[:number], worse[:number]
    if number < 2 or not np.isfinite([better, worse]).all():
        return 1.0
    gap = better - worse - least
    error = gap.std(ddof=1) / np.sqrt(number)
    if error == 0:
        return float(gap.mean() <= 0)
    return float(stats.t.sf(gap.mean() / error, number - 1))


def _words(found: Found) -> str:
    return f"{found['seeds']} seeds, {found['rounds']} rounds"
