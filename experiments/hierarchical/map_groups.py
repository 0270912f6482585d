"""Where the paper's orders of the numbers and the sizes of groups hold (claims 19 and 20).

Fig. 9 (arXiv 2302.04851) has 64 clients in four groups ahead of two and of eight, and Fig. 10a has
more clients on the slow server ahead of equal groups; Fig. 10b is its mirror image. On MNIST, with
the clients and delays of these figures, their orders are mapped over what `map` maps the order of
sync times over: the rule of the global server, the local steps E of an iteration, the inputs, and
T. Each run has its best of eight learning rates.

As there, the first stage has two seeds and measures on held-out training images. The second has ten
fresh seeds, all training images and the test set, and takes the orders that are near or change with
T, and all under the paper's rule. There the claims are judged.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import (
    Arguments,
    Outcome,
    Sample,
    Sizes,
    Verdict,
    comparison,
    lead,
    table,
    unless_collapsed,
    verdict_table,
)
from experiments.harness.heatmaps import heat_maps
from experiments.hierarchical import fig9, fig10, setup, tuning
from experiments.hierarchical import map as sync_map
from experiments.hierarchical.map import INPUTS, RULE_WORDS, RULES, SHARES, Order, Point
from fedjax_sim import datasets
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification

STUDY = sync_map.STUDY


class Question(NamedTuple):
    """An order that is mapped.

    Attributes:
      claim: Number of the claim.
      words: What differs between the runs.
      num_clients: Number of clients.
      is_iid: Whether clients' data are i.i.d.; they follow Dirichlet(0.5) otherwise.
      runs: Settings of the compared runs, by the number in which they differ.
      first: The run that is the paper's first.
      behind: Those that the claim has behind it.
    """

    claim: int
    words: str
    num_clients: int
    is_iid: bool
    runs: Mapping[float, Mapping[str, Any]]
    first: float
    behind: tuple[float, ...]


QUESTIONS = {
    "groups": Question(
        19,
        "number of groups",
        64,
        False,
        {float(m): fig9.RUNS[f"M = {m}"] for m in (2, 4, 8)},
        4.0,
        (2.0, 8.0),
    ),
    "sizes": Question(
        20,
        "clients on the slow server, of 30",
        30,
        True,
        {float(slow): fig10.RUNS[f"a_{30 - slow}_{slow}"] for slow in (10, 15, 20)},
        20.0,
        (15.0,),
    ),
}

Orders = Mapping[tuple[str, Point, float], Order]
"""Orders by question, point and T."""
Seconds = Mapping[tuple[str, Point, float], xr.Dataset]
"""Curves of the second stage by question, point and run."""


def run(arguments: Arguments) -> Outcome:
    """Map both orders, and run the second stage."""
    sizes = STUDY.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    points = [
        Point(rule, steps, inputs)
        for steps, inputs, rule in itertools.product(sizes.steps, sizes.inputs, sizes.rules)
    ]
    held, seeds = comparison.hold_out(data, tuning.HELD_OUT), tuning.tuning_seeds(sizes)
    curves = {
        (name, point): [
            play(arguments, sizes, held, seeds, name, point, run, sizes.rates)
            for run in question.runs
        ]
        for (name, question), point in itertools.product(QUESTIONS.items(), points)
    }
    orders = {
        (name, point, time): order
        for (name, point), runs in curves.items()
        for time, order in orders_of(QUESTIONS[name], runs, sizes.steps[point.steps]).items()
    }
    second = second_stage(arguments, sizes, data, orders)
    inputs = {
        "points": {name: ends_of(second, name, sizes) for name in QUESTIONS},
        "words": f"{data.name}, each run at its own rate, {sizes.seeds} seeds",
        "seeds": sizes.seeds,
        "reduced": sizes.words if arguments.reduced else "",
        "smoke": arguments.smoke,
    }
    verdicts = judge(inputs) if second else []
    facts = sizes.config() | {
        "orders": {f"{q} | {p} | {t:g}": order._asdict() for (q, p, t), order in orders.items()}
    }
    texts = [_first_table(orders), *([_second_table(second, sizes)] if second else [])]
    found = {
        f"{name}, {point}, {run:g}": each
        for (name, point), runs in curves.items()
        for run, each in zip(QUESTIONS[name].runs, runs, strict=True)
    } | {f"{q}, {p}, {run:g}, second stage": each for (q, p, run), each in second.items()}
    title = f"{data.name}, {sizes.tuning_seeds} seeds, held-out images"
    figures = {f"order_{name}.png": _figure(orders, name, title) for name in QUESTIONS}
    text = "\n\n".join([*texts, verdict_table(verdicts)])
    return Outcome(found, figures, verdicts, facts, text, inputs)


def play(
    arguments: Arguments,
    sizes: Sizes,
    data: Dataset,
    seeds: Sequence[int],
    name: str,
    point: Point,
    run: float,
    rates: Sequence[float],
) -> xr.Dataset:
    """Run a point for one of the compared runs, with all rates and seeds as one program.

    Args:
      arguments: The command line.
      sizes: The size of the study.
      data: The images.
      seeds: The seeds, of the problems too.
      name: Name of the question.
      point: The point.
      run: Which of the question's runs.
      rates: Learning rates.

    Returns:
      Curves with the dimensions `lr`, `seed` and `eval`.
    """
    question = QUESTIONS[name]
    return sync_map.sweep(
        arguments,
        f"{name}, {point}, {run:g}, seeds from {seeds[0]}",
        point,
        _tasks(question, data, seeds, point.inputs),
        seeds,
        {"lr": list(rates)},
        sizes.steps,
        question.runs[run],
    )


def _tasks(
    question: Question, data: Dataset, seeds: Sequence[int], inputs: str
) -> list[Classification]:
    """Make the problem of each seed, with a perceptron of 50 units."""
    size = setup.MNIST.replace(standardised=bool(INPUTS.index(inputs)))
    if question.is_iid:
        return setup.split(data, size, "iid", question.num_clients, seeds=seeds)
    return setup.dirichlet(data, size, question.num_clients, seeds=seeds)


def orders_of(question: Question, curves: Sequence[xr.Dataset], last: float) -> dict[float, Order]:
    """Read off the order at every T, shares of the last, each run at its best rate for that T.

    Args:
      question: The question.
      curves: Curves by run, with the dimensions `lr`, `seed` and `eval`.
      last: The last T.
    """
    times = [share * last for share in SHARES]
    accuracy = xr.concat(
        [100 * setup.at(each, times).fillna(0.0) for each in curves],
        xr.Variable("run", list(question.runs)),
    )
    return {
        time: sync_map.order_of(accuracy.sel(at=time, drop=True), "run", question.first)
        for time in times
    }


def second_stage(
    arguments: Arguments, sizes: Sizes, data: Dataset, orders: Orders
) -> dict[tuple[str, Point, float], xr.Dataset]:
    """Run fresh seeds on all training images, each run at its best rate for the last T.

    Returns:
      Curves by question, point and run; dimensions `seed` and `eval`, the rate as coordinate `lr`.
    """
    found: dict[tuple[str, Point, float], xr.Dataset] = {}
    if not sizes.seeds:
        return found
    for name, point in dict.fromkeys((name, point) for name, point, _ in orders):
        here = {time: each for (q, p, time), each in orders.items() if (q, p) == (name, point)}
        if point.rule != RULES[0] and not sync_map.is_open(here.values()):
            continue
        last = here[sizes.steps[point.steps]]
        for run, rate in zip(last.runs, last.rates, strict=True):
            curves = play(arguments, sizes, data, range(sizes.seeds), name, point, run, [rate])
            found[name, point, run] = curves.isel(lr=0)
    return found


def ends_of(second: Seconds, name: str, sizes: Sizes) -> dict[str, dict[str, Sample]]:
    """Return accuracies at T in percent of a question, by point and run."""
    found: dict[str, dict[str, Sample]] = {}
    for (question, point, run), each in second.items():
        if question == name:
            end = setup.final(each, sizes.steps[point.steps])
            found.setdefault(str(point), {})[f"{run:g}"] = Sample.of(100 * end.values)
    return found


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 19 and 20 for the paper's rule.

    Args:
      inputs: Accuracies at T in percent by question, point and run ("points"); "words", "reduced",
        "seeds" and "smoke" say how they were run.
    """
    return [
        _judge(question, inputs["points"][name], inputs) for name, question in QUESTIONS.items()
    ]


def _judge(
    question: Question, points: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]
) -> Verdict:
    parts: dict[str, bool | None] = {}
    told = []
    for point, ends in points.items():
        if not point.startswith(RULES[0]):
            continue
        words = point.removeprefix(f"{RULES[0]}, ")
        runs = {name: Sample.read(sample) for name, sample in ends.items()}
        for other in question.behind:
            pair = [runs[f"{each:g}"] for each in (question.first, other)]
            by = lead(*pair)
            name = f"{question.first:g} over {other:g}, {words}"
            parts[name] = unless_collapsed(by.above(), pair, setup.CHANCE)
            told.append(f"{name} by {by}")
    why = f"ahead at T, points, by {question.words}: {'; '.join(told)}"
    return setup.settle(inputs, question.claim, {"points": points}, parts, why)


def _first_table(orders: Orders) -> str:
    """Lay out the orders of the first stage."""
    header = ["question", "rule, local steps, inputs", "T", "order", "accuracy, %", "rates", "near"]
    rows = [
        [name, point, f"{time:g}", *sync_map.cells(order)]
        for (name, point, time), order in orders.items()
    ]
    return table(header, rows)


def _second_table(second: Seconds, sizes: Sizes) -> str:
    """Lay out the test accuracies of the second stage at the last T; diverged seeds count as 0."""
    rows = []
    for (name, point, run), each in second.items():
        values = 100 * setup.final(each, sizes.steps[point.steps]).fillna(0.0).values
        rows.append(
            [
                name,
                point,
                f"{run:g}",
                f"{float(each.lr):g}",
                f"{values.mean():.1f} ± {values.std(ddof=1):.1f}",
                f"{np.median(values):.1f}",
                f"{values.min():.1f}",
            ]
        )
    header = ["question", "rule, local steps, inputs", "run", "rate"]
    return table([*header, "test accuracy at T, %", "median", "worst"], rows)


def _figure(orders: Orders, name: str, title: str) -> Figure:
    """Draw an order and the lead of the paper's first, with a panel for each E and inputs."""
    question = QUESTIONS[name]
    here = {(point, time): order for (q, point, time), order in orders.items() if q == name}
    named = {rule: RULE_WORDS[RULES.index(rule)] for rule in _each(p.rule for p, _ in here)}
    panels, words, marked = {}, {}, {}
    for steps, inputs in _each((point.steps, point.inputs) for point, _ in here):
        times = sorted({time for point, time in here if point.steps == steps})
        rows = [[here[Point(rule, steps, inputs), time] for time in times] for rule in named]
        panel = f"E = {steps}, inputs {inputs}, T = {times[-1]:g}"
        leads = [[each.lead if each.is_readable else np.nan for each in row] for row in rows]
        coords = {"rule": list(named.values()), "share": [f"{share:g}" for share in SHARES]}
        panels[panel] = xr.DataArray(leads, coords, ("rule", "share"))
        words[panel] = [[str(each) for each in row] for row in rows]
        marked[panel] = [[not each.is_near for each in row] for row in rows]
    return heat_maps(
        panels,
        title=f"Order of the {question.words}, best first ({title})\n"
        f"= : within {sync_map.NEAR:g} point; framed: clear; white: below twice chance",
        label=f"lead of {question.first:g} over the better\nof the others (points)",
        across="share of the time T",
        limits=(-5, 5),
        words=words,
        marked=marked,
        columns=2,
        colors="RdBu",
    )


def _each(found: Iterable[Any]) -> list[Any]:
    """Return different values in the order in which they occur."""
    return list(dict.fromkeys(found))
