"""Routing and concurrency of Generalized AsyncSGD from closed formulas, against AsyncSGD's.

Judges claims 16 and 17: what the papers say of settings that were optimised (arXiv 2502.08206: 10
to 30 % more accuracy; arXiv 2603.26231: 29 to 46 % less time), here on digits. Both settings get
the learning rate that suits them best on held-out examples.

AsyncSGD sends every client as many tasks, and has as many tasks as clients. The other settings are
those of `gen_async.optimise` for the least time. It is given the constants of softmax regression at
the model 0: its loss, which is at most that far from the least one; a bound on the curvature,
half the largest eigenvalue of the inputs' second moments; the variance of a mini-batch; and as a
target a hundredth of the mean squared gradient.

Dimension letters: `M` examples, `P` pixels, `C` classes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.clocks.claims import CLAIMS
from experiments.harness import (
    NOT_RUN,
    Arguments,
    Outcome,
    Sample,
    Sizes,
    Study,
    Verdict,
    images,
    lead,
    rule,
)
from fedjax_sim import datasets, models, studies, timelines
from fedjax_sim.results.plots import look, styled
from fedjax_sim.results.summaries import first_reach
from fedjax_sim.systems import fedbuff
from fedjax_sim.theory import gen_async

RATES = (0.1, 0.3, 1.0, 3.0)
"""Speeds of four equal groups of clients, in tasks per unit of time."""
GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Learning rates."""
PLAIN, BEST = "AsyncSGD", "optimised"
ACCURACY = studies.Criterion("accuracy")
"""Final accuracy, by which rates are chosen and settings are compared."""
OF_TARGET = 0.95
"""The target, as a share of the accuracy that AsyncSGD reaches on held-out examples."""
FIRST_TUNING_SEED = 1000
STUDY = Study(
    full=Sizes(seeds=10, tuning_seeds=3, clients=20, alpha=0.3, batch=8, budget=300.0, evals=60),
    smoke=Sizes(seeds=2, tuning_seeds=1, clients=8, alpha=0.3, batch=8, budget=20.0, evals=5),
)


def learning_of(data: Any, batch: int) -> gen_async.Learning:
    """Compute the constants of softmax regression at the model 0."""
    pixels = data.train_images.reshape(len(data.train_images), -1) / 255.0
    pixels = (pixels - pixels.mean()) / pixels.std()
    inputs = np.column_stack([pixels, np.ones(len(pixels))])
    errors = 1 / data.num_classes - np.eye(data.num_classes)[data.train_labels]
    gradient = inputs.T @ errors / len(inputs)
    squares = (inputs**2).sum(axis=1) * (errors**2).sum(axis=1)
    size = float((gradient**2).sum())
    return gen_async.Learning(
        gap=float(np.log(data.num_classes)),
        smoothness=float(np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1] / 2),
        variance=float(squares.mean() - size) / batch,
        target=size / 100,
    )


def settings_of(sizes: Sizes, learning: gen_async.Learning) -> dict[str, Any]:
    """Return both settings."""
    num = sizes.clients
    table = timelines.ClientTable(np.repeat(RATES, num // len(RATES)), time_of="update")
    best = gen_async.optimise(table, [*range(1, 2 * num + 1)], learning)
    delays = timelines.ClientDelays(client_table=table, runtime_law="runtime_exp", time_of="update")
    plain: Any = fedbuff.GenAsync(
        num_clients=num, num_tasks=num, batch_size=sizes.batch, local_steps=1, delays=delays
    )
    share = tuple((best.routing / best.routing.sum()).tolist())
    return {PLAIN: plain, BEST: plain.replace(num_tasks=best.concurrency, routing=share)}


def run(arguments: Arguments) -> Outcome:
    """Choose rates, run both settings for the same time, judge, and draw."""
    sizes, data = STUDY.choose(arguments), datasets.load("digits")
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    made = {"num_clients": sizes.clients, "alpha": sizes.alpha}
    held = images.dirichlet_problems(
        models.LogisticRegression, studies.hold_out(data, 0.2), seeds=tuning, **made
    )
    seeds = range(sizes.seeds)
    test = images.dirichlet_problems(models.LogisticRegression, data, seeds=seeds, **made)
    curves: dict[str, xr.Dataset] = {}
    chosen, scores = {}, {}
    hypers = settings_of(sizes, learning_of(data, sizes.batch))
    for name, hyper in hypers.items():
        found = _sweep(held, hyper, tuning, {"lr": GRID}, sizes, arguments, f"{name}, tuning")
        tuned = studies.choose(ACCURACY.values(found))
        chosen[name], scores[name] = tuned.choice["lr"], float(tuned.scores.mean("seed").max())
        one = hyper.replace(lr=chosen[name])
        curves[name] = _sweep(test, one, seeds, None, sizes, arguments, name)
    target = OF_TARGET * scores[PLAIN]
    inputs = {
        "smoke": arguments.smoke,
        "target": target,
        "rates": chosen,
        "tasks": {name: hyper.num_tasks for name, hyper in hypers.items()},
        "ends": {
            name: Sample.of(100 * ACCURACY.values(each).values) for name, each in curves.items()
        },
        "times": {
            name: Sample.of(np.minimum(first_reach(each, target).values, sizes.budget))
            for name, each in curves.items()
        },
    }
    verdicts = judge(inputs)
    figures = {"accuracy.png": draw(curves, target)}
    return Outcome(curves, figures, verdicts, {**sizes.config(), **chosen}, inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 16 and 17.

    Args:
      inputs: By settings, "ends", a `Sample` of accuracies in percent at the end of the budget, and
        "times", of times to the target, at most the budget; and whether it is a "smoke" run.
    """
    if inputs["smoke"]:
        why = "a smoke run, which is no evidence"
        return [CLAIMS.verdict(number, None, NOT_RUN, why) for number in (16, 17)]
    ends, times = (
        {name: Sample.read(each) for name, each in inputs[key].items()} for key in ("ends", "times")
    )
    points = lead(ends[BEST], ends[PLAIN])
    logs = [np.log(np.asarray(times[name].values, float)) for name in (BEST, PLAIN)]
    saved = harness.interval(logs[1] - logs[0])
    shown = [1 - np.exp(-(saved.mean + sign * saved.half)) for sign in (0, -1, 1)]
    told = f"tasks {inputs['tasks']}, learning rates {inputs['rates']}"
    return [
        CLAIMS.verdict(
            16,
            {"lead": points._asdict()},
            rule({"": points.above(CLAIMS[16].criterion.points)}),
            f"lead {points.mean:+.1f} ± {points.half:.1f} points: "
            f"{ends[PLAIN].mean:.1f} to {ends[BEST].mean:.1f} %; {told}",
        ),
        CLAIMS.verdict(
            17,
            {"log of the ratio": saved._asdict()},
            rule({"": saved.above(-np.log1p(-CLAIMS[17].criterion.share))}),
            f"{shown[0]:.0%} ({shown[1]:.0%} to {shown[2]:.0%}) less time to "
            f"{inputs['target']:.1%}: "
            f"{times[PLAIN].mean:.1f} to {times[BEST].mean:.1f} units; {told}",
        ),
    ]


def _sweep(
    problems: Any, hyper: Any, seeds: Any, swept: Any, sizes: Sizes, arguments: Arguments, name: str
) -> xr.Dataset:
    return fedjax_sim.sweep(
        fedbuff.gen_async,
        problems,
        hyper,
        seeds=seeds,
        settings=swept,
        budget=fedjax_sim.Time(sizes.budget),
        num_evals=sizes.evals,
        **arguments.kept(name),
    ).curves


@styled()
def draw(curves: Mapping[str, xr.Dataset], target: float) -> Figure:
    """Draw the accuracy of each seed, and of the mean, over virtual time."""
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, each) in enumerate(curves.items()):
        axes.plot(
            each.time.mean("seed"),
            100 * each.accuracy.mean("seed"),
            label=name,
            **look(number, "none"),
        )
    axes.axhline(100 * target, color="gray", linewidth=0.8, label="target")
    axes.set(xlabel="virtual time (units)", ylabel="test accuracy (%)")
    axes.legend(loc="lower right")
    return figure
