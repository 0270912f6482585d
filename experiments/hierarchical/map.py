"""Where the paper's order of sync times holds: rules, local steps, learning rates, inputs, T, c_g.

Fig. 7 (arXiv 2302.04851) has S = 5 ahead of S = 0 and S = 20. The paper divides a group's progress
by its number of iterations, so that a round moves the model by about one step, whatever S is, and
it gives neither learning rate nor T. On MNIST with Fig. 7's clients and delays, this maps the order
of S = 0, 5, 20 over the rule of the global server, the local steps E of an iteration, the inputs,
T, and the constant c_g of the exchange, each S at its best of eight learning rates.

The first stage has two seeds and measures on held-out training images. Where its order is near, or
changes with T or c_g, and wherever the server divides as in the paper, the second stage runs ten
fresh seeds on all training images and measures on the test set, each S and c_g at the rate that is
its best at the last T. There claims 15, 16 and 34 are judged, for the paper's rule.

On CIFAR-10 (`--dataset cifar10_jpeg.npz`) two lines of this map are run with the paper's CNN: its
rule, standardised inputs, and one local step, as in the paper, or five.

A larger c_g only delays the rounds. Runs with c_g = 10 therefore show every other c_g too: the
model of round u is complete u (c_g - 10) later.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.harness import (
    NOT_RUN,
    Arguments,
    Outcome,
    Sample,
    Sizes,
    Study,
    Verdict,
    comparison,
    lead,
    reduction,
    rule,
    table,
    unless_collapsed,
    verdict_table,
)
from experiments.harness.heatmaps import heat_maps
from experiments.harness.statistics import has_collapsed
from experiments.hierarchical import setup, tuning
from experiments.hierarchical.claims import CLAIMS, verdict
from fedjax_sim import datasets
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.reporting import plots
from fedjax_sim.systems import hierarchical

INPUTS = ("[0, 1]", "standardised")
RULES = ("divide_by_steps", "average", "fednova")
"""The global server's rules, the paper's first."""
RULE_WORDS = ("divided by steps\n(the paper's)", "averaged", "FedNova")
"""The rules as pictures name them."""
SYNC_TIMES = (0.0, 5.0, 20.0)
FIRST = 5.0
"""The sync time that is first in the paper."""
CLOCK = setup.clock([15, 15], setup.FIG7)
DELAY, DELAYS = 10.0, (10.0, 30.0)
"""The c_g of the runs, and those that are mapped."""
EPOCH = 62
"""Local steps of an epoch of the mean client: 60,000 images, 30 clients, batches of 32."""
TIMES = {1: 1000.0, 5: 300.0, EPOCH: 60.0}
"""Virtual time of a run by local steps: an iteration takes as long whatever E is."""
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""T is mapped at these shares of the time of a run."""
NEAR = 1.0
"""Points of accuracy within which two sync times count as equal."""
READABLE = 2 * setup.CHANCE
"""An order of accuracies below twice chance, in percent, is not read."""

STUDY = Study(
    full=Sizes(
        10,
        dataset="mnist",
        tuning_seeds=2,
        steps=TIMES,
        rates=tuning.RATES,
        inputs=INPUTS,
        rules=RULES,
    ),
    reduced=Sizes(
        0,
        dataset="mnist",
        tuning_seeds=2,
        steps={1: 1000.0, 5: 300.0},
        rates=tuning.RATES,
        inputs=INPUTS,
        rules=RULES,
        words="the first stage alone, without E = an epoch",
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        tuning_seeds=2,
        steps={1: 60.0},
        rates=(0.5, 2.0),
        inputs=("[0, 1]",),
        rules=RULES[:1],
        words="handwritten digits, one rule",
    ),
)
CIFAR10: dict[str, Any] = {
    "steps": {1: 1000.0, 5: 1000.0},
    "rates": {1: (0.05, 0.1, 0.2, 0.5, 1.0), 5: (0.02, 0.05, 0.1, 0.2, 0.5)},
    "inputs": ("standardised",),
    "rules": RULES[:1],
    "words": "",
}
"""Two lines of MNIST's map, with rates by local steps, for the paper's data and CNN."""


class Point(NamedTuple):
    """What is run once for all learning rates, sync times, T and c_g.

    Attributes:
      rule: The global server's rule, one of `RULES`.
      steps: Local steps of an iteration, E.
      inputs: How inputs are normalised, one of `INPUTS`.
    """

    rule: str
    steps: int
    inputs: str

    def __str__(self) -> str:
        return f"{self.rule}, E = {self.steps}, inputs {self.inputs}"


class Run(NamedTuple):
    """A run of the second stage.

    Attributes:
      point: Its point.
      sync_time: S.
      delay: The c_g that its curves have.
    """

    point: Point
    sync_time: float
    delay: float

    def __str__(self) -> str:
        return f"{self.point}, S = {self.sync_time:g}, c_g = {self.delay:g}"


class Order(NamedTuple):
    """The order of compared runs at one time, each at its best learning rate.

    Attributes:
      runs: The runs, best first, by the number in which they differ, such as S.
      rates: The learning rate of each, in the same order.
      accuracy: The mean accuracy of each in percent, in the same order.
      is_near: Whether two neighbours are within `NEAR` points or two standard errors.
      lead: Lead of the run that is the paper's first over the best other, in points.
    """

    runs: tuple[float, ...]
    rates: tuple[float, ...]
    accuracy: tuple[float, ...]
    is_near: bool
    lead: float

    @property
    def is_readable(self) -> bool:
        """Whether the best accuracy is at least twice chance."""
        return self.accuracy[0] >= READABLE

    def __str__(self) -> str:
        if not self.is_readable:
            return "chance"
        words = f"{self.runs[0]:g}"
        for (better, worse), other in zip(
            itertools.pairwise(self.accuracy), self.runs[1:], strict=True
        ):
            words += f"{'>' if better - worse > NEAR else '='}{other:g}"
        return words


def delayed(data: xr.Dataset, delay: float) -> xr.Dataset:
    """Return the curves that the same rounds have if the exchange's constant is another c_g."""
    return data.assign_coords(time=data.time + (delay - DELAY) * data.ticks)


def order_of(accuracy: xr.DataArray, dim: str, first: float) -> Order:
    """Order compared runs, each at its best learning rate.

    Args:
      accuracy: Accuracies in percent; dimensions `dim`, `lr` and `seed`. A diverged lane has 0.
      dim: The dimension of the runs.
      first: The run that is the paper's first.
    """
    best = accuracy.mean("seed").idxmax("lr")
    chosen = accuracy.sel(lr=best)
    mean = chosen.mean("seed")
    names = mean[dim].values[np.argsort(-mean.values, kind="stable")]
    is_near = False
    for better, worse in itertools.pairwise(names):
        gap = (chosen.sel({dim: better}) - chosen.sel({dim: worse})).values
        error = gap.std(ddof=1) / np.sqrt(gap.size) if gap.size > 1 else np.inf
        is_near |= bool(gap.mean() < max(NEAR, 2 * error))
    rest = mean.drop_sel({dim: first}).max()
    return Order(
        tuple(map(float, names)),
        tuple(float(best.sel({dim: name})) for name in names),
        tuple(float(mean.sel({dim: name})) for name in names),
        is_near,
        float(mean.sel({dim: first}) - rest),
    )


def run(arguments: Arguments) -> Outcome:
    """Map the order, and run the second stage where it is near or changes."""
    sizes = STUDY.choose(arguments)
    if _is_cifar10(sizes.dataset):
        sizes = sizes.replace(**CIFAR10)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    points = [
        Point(rule, steps, inputs)
        for steps, inputs, rule in itertools.product(sizes.steps, sizes.inputs, sizes.rules)
    ]
    curves = first_stage(arguments, sizes, data, points)
    orders = map_orders(curves, sizes)
    rows = [
        [point, f"{delay:g}", f"{time:g}", *cells(order)]
        for (point, delay, time), order in orders.items()
    ]
    header = ["rule, local steps, inputs", "c_g", "T", "order of S", "accuracy, %", "rates", "near"]
    texts = [table(header, rows)]
    found = {f"{point}": data for point, data in curves.items()}
    facts: dict[str, Any] = sizes.config() | {
        "reduced": sizes.words,
        "orders": {f"{p} | {d:g} | {t:g}": order._asdict() for (p, d, t), order in orders.items()},
    }
    verdicts: list[Verdict] = []
    inputs: dict[str, Any] | None = None
    second: dict[Run, xr.Dataset] = {}
    if sizes.seeds:
        again = [
            point
            for point in points
            if point.rule == RULES[0]
            or is_open(order for key, order in orders.items() if key[0] == point)
        ]
        second = second_stage(arguments, sizes, data, again, orders)
        inputs = inputs_of(second, sizes) | {
            "words": f"{data.name}, each S at its own rate, {sizes.seeds} seeds",
            "seeds": sizes.seeds,
            "reduced": ""
            if _is_cifar10(sizes.dataset)
            else f"{data.name} and a perceptron in place of CIFAR-10 and a CNN",
            "smoke": arguments.smoke,
        }
        verdicts = judge(inputs)
        texts += [_second_table(second, sizes), verdict_table(verdicts)]
        found |= {f"{run}, second stage": each for run, each in second.items()}
    panel = "cifar10" if _is_cifar10(sizes.dataset) else ""
    if panel and second:
        figures = accuracy_figures(second, data.name, sizes.steps)
    else:
        title = f"{data.name}, {sizes.tuning_seeds} seeds, held-out images"
        figures = {f"order_E{steps}.png": _figure(orders, steps, title) for steps in sizes.steps}
    return Outcome(found, figures, verdicts, facts, "\n\n".join(texts), inputs, panel)


def inputs_of(second: Mapping[Run, xr.Dataset], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Return what `judge` needs of the runs by the paper's rule."""
    points: dict[str, Any] = {}
    for point in dict.fromkeys(run.point for run in second if run.point.rule == RULES[0]):
        last = sizes.steps[point.steps]
        far = [second[Run(point, s, DELAYS[-1])] for s in (0.0, 20.0)]
        points[f"{point}"] = {
            "T": last,
            "ends": {
                f"c_g = {delay:g}, S = {s:g}": Sample.of(
                    100 * setup.final(second[Run(point, s, delay)], last).values
                )
                for s, delay in itertools.product(SYNC_TIMES, DELAYS)
            },
            "crossings": setup.crossings(far, np.linspace(0, last, 101)[5:]),
        }
    return {"points": points}


ONE_STEP = "E = 1,"
"""Part of the names of points with one local step in an iteration, as in the paper."""


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 15, 16 and 34 for the paper's rule, number of local steps and T.

    Args:
      inputs: For each of the "points", T, the accuracies at T in percent by c_g and S ("ends"), and
        when S = 0 and 20 change places with the larger c_g ("crossings"); "words", "reduced",
        "seeds" and "smoke" say how they were run.
    """
    if inputs["smoke"]:
        return [verdict(number, None, NOT_RUN, setup.SMOKE) for number in (15, 16, 34)]
    leads: dict[str, bool | None] = {}
    crossings: dict[str, bool | None] = {}
    told_leads, told_crossings = list[str](), list[str]()
    for point, found in inputs["points"].items():
        name = point.removeprefix(f"{RULES[0]}, ")
        ends = {run: Sample.read(sample) for run, sample in found["ends"].items()}
        low = [run for run, sample in ends.items() if has_collapsed(sample, setup.CHANCE)]
        if found["T"] < CLAIMS[15].criterion.least or ONE_STEP not in name:
            continue
        for delay, other in itertools.product(DELAYS, (0, 20)):
            pair = [ends[f"c_g = {delay:g}, S = {s}"] for s in (5, other)]
            words, by = f"{name}, c_g = {delay:g}, over S = {other}", lead(*pair)
            leads[words] = unless_collapsed(by.above(), pair, setup.CHANCE)
            told_leads.append(f"{words} by {by}")
        told_leads += [f"below twice chance with {name}: {' and '.join(low)}"] if low else []
        places, pair = found["crossings"], [ends[f"c_g = 30, S = {s}"] for s in (0, 20)]
        for words, once in setup.passes_once(places, pair).items():
            crossings[f"{words}, {name}"] = unless_collapsed(once, pair, setup.CHANCE)
        told_crossings.append(f"{name}: {setup.told_crossings(places)}")
    small, panels = reduction(inputs["seeds"], inputs["reduced"]), setup.of_panels(leads)
    return [
        verdict(
            number,
            inputs["points"],
            rule(parts, small) if parts else NOT_RUN,
            f"{text}{why}; {inputs['words']}",
        )
        for number, parts, text, why in (
            (15, panels[15], "S = 5 ahead at T, points: ", "; ".join(told_leads)),
            (34, panels[34], "S = 5 ahead at T, points: ", "; ".join(told_leads)),
            (16, crossings, "S = 0 and 20 change places: ", "; ".join(told_crossings)),
        )
    ]


def first_stage(
    arguments: Arguments, sizes: Sizes, data: Dataset, points: Sequence[Point]
) -> dict[Point, xr.Dataset]:
    """Run every point at all learning rates and sync times, without the images held out.

    Returns:
      Curves by point; dimensions `lr`, `sync_time`, `seed` and `eval`.
    """
    seeds = tuning.tuning_seeds(sizes)
    held = comparison.hold_out(data, tuning.HELD_OUT)
    tasks = {inputs: _tasks(sizes, held, seeds, inputs) for inputs in sizes.inputs}
    found = {}
    for point in points:
        rates = sizes.rates[point.steps] if isinstance(sizes.rates, Mapping) else sizes.rates
        settings = {"lr": list(rates), "sync_time": list(SYNC_TIMES)}
        here = tasks[point.inputs]
        found[point] = sweep(
            arguments, f"{point}", point, here, seeds, settings, sizes.steps, CLOCK
        )
    return found


def map_orders(
    curves: Mapping[Point, xr.Dataset], sizes: Sizes
) -> dict[tuple[Point, float, float], Order]:
    """Read off the order of sync times at every point, c_g and T."""
    found = {}
    for (point, data), delay in itertools.product(curves.items(), DELAYS):
        times = [share * sizes.steps[point.steps] for share in SHARES]
        accuracy = 100 * setup.at(delayed(data, delay), times).fillna(0.0)
        for time in times:
            found[point, delay, time] = order_of(
                accuracy.sel(at=time, drop=True), "sync_time", FIRST
            )
    return found


def is_open(orders: Iterable[Order]) -> bool:
    """Return whether the orders at a point are near somewhere, or change, chance left out."""
    read = [each for each in orders if each.is_readable]
    return any(each.is_near for each in read) or len({each.runs for each in read}) > 1


def second_stage(
    arguments: Arguments,
    sizes: Sizes,
    data: Dataset,
    points: Sequence[Point],
    orders: Mapping[tuple[Point, float, float], Order],
) -> dict[Run, xr.Dataset]:
    """Run points with fresh seeds on all training images.

    Each S and c_g has the rate that is its best at the last T.

    Returns:
      Curves by run; dimensions `seed` and `eval`, with the rate as the coordinate `lr`.
    """
    seeds = range(sizes.seeds)
    tasks = {inputs: _tasks(sizes, data, seeds, inputs) for inputs in sizes.inputs}
    found = {}
    for point, sync_time in itertools.product(points, SYNC_TIMES):
        rates = {}
        for delay in DELAYS:
            last = orders[point, delay, sizes.steps[point.steps]]
            rates[delay] = last.rates[last.runs.index(sync_time)]
        curves = sweep(
            arguments,
            f"{point}, S = {sync_time:g}, second stage",
            point,
            tasks[point.inputs],
            seeds,
            {"lr": sorted({*rates.values()}), "sync_time": [sync_time]},
            sizes.steps,
            CLOCK,
        )
        for delay, rate in rates.items():
            own = curves.sel(lr=rate, sync_time=sync_time)
            found[Run(point, sync_time, delay)] = delayed(own, delay)
    return found


def sweep(
    arguments: Arguments,
    name: str,
    point: Point,
    tasks: list[Classification],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[float]],
    times: Mapping[int, float],
    changes: Mapping[str, Any],
) -> xr.Dataset:
    """Run a point, and evaluate after every round.

    Args:
      arguments: The command line.
      name: The run's name, under which it is kept.
      point: The point.
      tasks: The problem of each seed.
      seeds: The seeds.
      settings: Values that are swept.
      times: T by local steps.
      changes: Settings of the run, such as its delays.
    """
    hyper = hierarchical.paper(
        num_clients=tasks[0].counts.shape[0],
        aggregation=point.rule,
        client_steps=point.steps,
        **changes,
    )
    return fedjax_sim.sweep(
        hierarchical.system,
        tasks,
        hyper,
        seeds=seeds,
        settings=settings,
        budget=fedjax_sim.Time(times[point.steps]),
        num_evals=setup.EVERY_TICK,
        watch=fedjax_sim.Watch(progress=True),
        **arguments.kept(name),
    ).curves


def _is_cifar10(dataset: str) -> bool:
    return Path(dataset).stem.startswith("cifar10")


def _tasks(sizes: Sizes, data: Dataset, seeds: Sequence[int], inputs: str) -> list[Classification]:
    """Make the problem of each seed: 30 clients, Dirichlet(0.5).

    The network is a perceptron of 50 units, on CIFAR-10 the paper's CNN.
    """
    usual = setup.CIFAR10 if _is_cifar10(sizes.dataset) else setup.MNIST
    size = usual.replace(standardised=bool(INPUTS.index(inputs)))
    return setup.dirichlet(data, size, 30, seeds=seeds)


def accuracy_figures(
    second: Mapping[Run, xr.Dataset], title: str, times: Mapping[int, float]
) -> dict[str, Figure]:
    """Draw the second stage's accuracies until T, a picture for each point and c_g.

    Args:
      second: Curves by run.
      title: The name of the data.
      times: T by local steps.
    """
    found = {}
    for point, delay in itertools.product(dict.fromkeys(run.point for run in second), DELAYS):
        shown = {
            f"S = {run.sync_time:g}, lr {float(data.lr):g}": data
            for run, data in second.items()
            if (run.point, run.delay) == (point, delay)
        }
        words = f"{title}, E = {point.steps}, inputs {point.inputs}, $c_g$ = {delay:g}"
        figure = plots.curves_figure(shown, "accuracy", title=words)
        figure.axes[0].set_xlim(0, 1.02 * times[point.steps])
        found[f"accuracy_E{point.steps}_cg{delay:g}.png"] = figure
    return found


def cells(order: Order) -> list[str]:
    """Lay out an order for a table."""
    return [
        str(order),
        ", ".join(f"{value:.1f}" for value in order.accuracy),
        ", ".join(f"{rate:g}" for rate in order.rates),
        "yes" if order.is_near else "",
    ]


def _second_table(second: Mapping[Run, xr.Dataset], sizes: Sizes) -> str:
    """Lay out the test accuracies of the second stage at the last T."""
    rows = []
    for run, data in second.items():
        values = 100 * setup.final(data, sizes.steps[run.point.steps]).fillna(0.0).values
        spread = values.std(ddof=1) if values.size > 1 else float("nan")
        mean = f"{values.mean():.1f} ± {spread:.1f}"
        rows.append(
            [run, f"{float(data.lr):g}", mean, f"{np.median(values):.1f}", f"{values.min():.1f}"]
        )
    return table(["run", "rate", "test accuracy at T, %", "median", "worst"], rows)


def _figure(orders: Mapping[tuple[Point, float, float], Order], steps: int, title: str) -> Figure:
    """Draw the lead of S = 5 and the order, with a panel for each c_g and inputs."""
    keys = [key for key in orders if key[0].steps == steps]
    times = list(dict.fromkeys(time for _, _, time in keys))
    rules = list(dict.fromkeys(point.rule for point, _, _ in keys))
    named = [RULE_WORDS[RULES.index(each)] for each in rules]
    panels, words, marked = {}, {}, {}
    inputs = dict.fromkeys(point.inputs for point, _, _ in keys)
    for name, delay in itertools.product(inputs, DELAYS):
        panel = f"inputs {name}, $c_g$ = {delay:g}"
        of_panel = [[orders[Point(rule, steps, name), delay, t] for t in times] for rule in rules]
        leads = [[each.lead if each.is_readable else np.nan for each in row] for row in of_panel]
        panels[panel] = xr.DataArray(leads, {"rule": named, "T": times}, ("rule", "T"))
        words[panel] = [[str(each) for each in row] for row in of_panel]
        marked[panel] = [[not each.is_near for each in row] for row in of_panel]
    return heat_maps(
        panels,
        title=f"Order of the sync times S, best first, E = {steps} ({title})\n"
        f"= : within {NEAR:g} point; framed: clear; white: below twice chance",
        label="lead of S = 5 over the better\nof S = 0 and 20 (points)",
        across="time T (units)",
        limits=(-20, 20),
        words=words,
        marked=marked,
        columns=len(DELAYS),
        colors="RdBu",
    )
