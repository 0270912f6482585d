"""FedStaleWeight's local rates of Theorem 1, and the influence of clients under AsyncFedED.

Judges claims 27 and 28 of arXiv 2406.02877 on quadratics: five clients at one speed in a buffer for
all, so that nothing is stale and weights are equal, and the fast and slow groups of `influence`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import fedjax_sim
from experiments import harness
from experiments.fedstaleweight import influence as study
from experiments.fedstaleweight.claims import CLAIMS, verdict
from experiments.harness import Arguments, Interval, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.core.schedules import Table
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import asyncfeded, fedstaleweight
from fedjax_sim.theory import fedstaleweight as theory
from fedjax_sim.timelines import ClientTable

STUDY = Study(
    full=Sizes(seeds=6, ticks=400, arrivals=20_000), smoke=Sizes(seeds=2, ticks=20, arrivals=200)
)
NUM, STEPS = 5, 4
FACTORS = {"falling": (1.0, 0.5, 0.25, 0.125), "rising": (0.125, 0.25, 0.5, 1.0)}
SHARES = (1.0, 0.3, 0.1)
"""Largest rates over those that the theorem allows."""
Found = Mapping[str, Any]


def measure_rates(sizes: Sizes) -> Found:
    """Compute the left side of (10) over the right side, by factors and size of the rates."""
    random, found = np.random.default_rng(27), {}
    curvature, centers = np.linspace(0.2, 1, NUM), random.normal(size=(NUM, 3))
    for name, factors in FACTORS.items():
        for share in SHARES:
            hyper: Any = fedstaleweight.paper(
                num_clients=NUM,
                buffer_size=NUM,
                client_table=ClientTable(np.ones(NUM), np.zeros(NUM)),
                local_steps=STEPS,
                lr=share / STEPS,
                lr_schedule=Table(by="step", factors=factors),
                batch_size=1,
            )
            hyper = hyper.replace(clock=hyper.clock.replace(restart="after_interaction"))
            with jax.enable_x64(True):
                problem = Quadratic.of(centers, curvature=curvature, start=3.0)
                run = fedjax_sim.simulate(
                    fedstaleweight.system,
                    problem,
                    hyper,
                    budget=fedjax_sim.Ticks(sizes.ticks),
                    num_evals=sizes.ticks,
                    keep=fedjax_sim.Keep(models=True),
                )
            models = np.asarray(run.samples, float).reshape(-1, 3)[: sizes.ticks]
            slopes = curvature[:, None] * (models[:, None] - centers)
            whole = slopes.mean(axis=1)
            largest = float(np.sum(slopes**2, axis=-1).max())
            apart = float(np.sum((slopes - whole[:, None]) ** 2, axis=-1).mean(axis=1).max())
            rates = theory.local_rates(hyper, smoothness=1.0)
            loss = curvature / 2 * np.sum((models[:, None] - centers) ** 2, axis=-1)
            best = np.sum(curvature[:, None] * centers, axis=0) / curvature.sum()
            gap = loss[0].mean() - np.mean(curvature / 2 * np.sum((best - centers) ** 2, axis=-1))
            right = 2 * gap / (rates.alpha * len(models))
            right += 12 * rates.beta * STEPS * (apart + largest)
            left = np.mean(np.sum(whole**2, axis=-1))
            found[f"{name}, {share:g}"] = float(left / right)
    return {"left over right": found}


def measure_influence(sizes: Sizes) -> Found:
    """Measure the slow group's weight in AsyncFedED by where its quadratics settle."""
    table = ClientTable(study.RATE, study.SPREAD)
    means = {}
    for name, system in (("AsyncFedED", asyncfeded), ("one rate", fedjax_sim.SYSTEMS["fedbuff"])):
        more: dict[str, Any] = {} if name == "AsyncFedED" else {"buffer_size": 1, "rule": "mean"}
        hyper: Any = system.paper(
            num_clients=study.NUM,
            client_table=table,
            runtime_law="runtime_uniform",
            local_steps=1,
            lr=0.02,
            batch_size=1,
            **more,
        )
        run = fedjax_sim.sweep(
            getattr(system, "system", system),
            study.OPPOSED,
            hyper,
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(sizes.arrivals),
            num_evals=200,
            keep=fedjax_sim.Keep(models=True),
        )
        models = np.asarray(run.samples, float).reshape(sizes.seeds, -1)
        means[name] = harness.interval(models[:, models.shape[1] // 2 :].mean(axis=1))._asdict()
    return {"influence": means, "seeds": sizes.seeds}


def judge_influence(found: Found) -> Verdict:
    """Judge claim 28 by the slow group's influence."""
    marks = CLAIMS[28].criterion
    ours, other = (Interval.read(found["influence"][name]) for name in ("AsyncFedED", "one rate"))
    parts = {
        "below a third": Interval(study.FAIR - ours.mean, ours.half).above(marks.far),
        "not above arrivals": Interval(other.mean - ours.mean, ours.half + other.half).above(
            -marks.close
        ),
    }
    why = (
        f"the slow third's influence is {ours.mean:.3f} ± {ours.half:.3f} in AsyncFedED and "
        f"{other.mean:.3f} ± {other.half:.3f} at one rate (95 %, {found['seeds']} seeds)"
    )
    ruling = harness.rule(parts, deciding=harness.begins("below a third"))
    return verdict(28, found, ruling, why, seeds=found["seeds"])


JUDGES: Judges = {**CLAIMS.declared(27), 28: judge_influence}


def run(arguments: Arguments) -> Outcome:
    """Run both studies, and judge the claims."""
    sizes = STUDY.choose(arguments)
    found = {27: measure_rates(sizes), 28: measure_influence(sizes)}
    reason = "not judged: too small with --smoke" if arguments.smoke else ""
    return Outcome({}, {}, harness.judge_all(JUDGES, found, reason), sizes.config())
