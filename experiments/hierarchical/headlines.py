"""Hierarchical FL's Remark 6, similar performances at different numbers of rounds, and Remark 3.

Remark 3 gives each group a learning rate by its number of iterations (claims 37 and 38).
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments import harness
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from experiments.hierarchical.bounds import Logistic, play
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas import bounds
from experiments.hierarchical.formulas import quadratics as formulas
from experiments.hierarchical.quadratics import DELAYS, NOISE, law
from fedjax_sim.core.schedules import Function
from fedjax_sim.core.types import Array
from fedjax_sim.theory import hierarchical as theory

END = 1000.0
RATES = (0.1, 0.3, 1.0)
SYNC_TIMES = tuple(np.linspace(0, 30, 121))
STUDY = Study(full=Sizes(seeds=400), smoke=Sizes(seeds=20))
GROUPS, ITERATIONS, ROUNDS = 2, (6, 12), 20


def measure() -> dict[str, Any]:
    """Compute mean losses and rounds by sync time, and (20) for counts of equal sums."""
    rounds = [theory.expected_rounds(s, DELAYS, system_time=END) for s in SYNC_TIMES]
    fewer = 100 * (1 - np.array(rounds) / rounds[0])
    closest = {}
    for lr in RATES:
        loss = np.array(
            [
                float(formulas.loss_at(END, law(lr, NOISE), sync_time=s, delays=DELAYS))
                for s in SYNC_TIMES
            ]
        )
        apart = 100 * np.abs(loss / loss[0] - 1)
        enough = np.flatnonzero(fewer >= CLAIMS[37].criterion.fewer)
        at = enough[apart[enough].argmin()]
        closest[f"{lr:g}"] = {"S": SYNC_TIMES[at], "apart": apart[at], "fewer": fewer[at]}
    totals = [
        bounds.global_bound(
            np.full((num, 2), 40 // num),
            lr=0.1,
            constants=bounds.Constants(1.0, 1.0, 1.0),
            group_size=[15, 15],
            descent=1.0,
        )
        for num in (10, 20)
    ]
    return {"closest": closest, "bounds": [float(sum(each)) for each in totals]}


def judge(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 37 from numbers of `measure`."""
    marks, (one, other) = CLAIMS[37].criterion, measured["bounds"]
    found = measured["closest"].values()
    near = any(x["apart"] <= marks.close and x["fewer"] >= marks.fewer for x in found)
    parts = {
        "similar performance": harness.unless_unknown(near, measured["closest"]),
        "the bound depends on sums alone": harness.unless_unknown(
            abs(one / other - 1) < 1e-9, [one, other]
        ),
    }
    told = "; ".join(
        f"rate {lr}: S = {x['S']:g} takes {x['fewer']:.0f} % fewer rounds, loss {x['apart']:.1f} % "
        "from that of S = 0"
        for lr, x in measured["closest"].items()
    )
    why = f"{told}; (20) is {one:.4g} and {other:.4g} for 40 iterations in 10 and in 20 rounds"
    return verdict(37, measured, harness.rule(parts, deciding=harness.begins("similar")), why)


def rate_of(iterations: Array) -> Array:
    """Learning rate of Remark 3, with G = 1: inputs have length 1 at most."""
    return (2 * (jnp.maximum(iterations, 1) ** 2 + GROUPS)) ** -0.5


def measure_group_rates(seeds: int) -> dict[str, Any]:
    """Measure the groups' deviations at rates of their own and at the first one's, for claim 38."""
    runs: dict[str, dict[str, Any]] = {
        "own rates": {"lr": 1.0, "lr_schedule": Function(function=rate_of, by="work")},
        "one rate": {"lr": float(rate_of(jnp.float32(ITERATIONS[0])))},
    }
    apart, largest = {}, {}
    for name, changes in runs.items():
        data = play(Logistic.make(2), seeds, {}, {"sync_time": 6.0, **changes}, ROUNDS)
        deviations = [
            data[f"deviation_{i}"].transpose("seed", "eval").values.astype(float).mean(axis=0)[1:]
            for i in range(GROUPS)
        ]
        first, second = (float(each.mean()) for each in deviations)
        apart[name] = second / first
        largest[name] = [float(each.max()) for each in deviations]
    return {"apart": apart, "largest": largest["own rates"]}


JUDGES: Judges = {37: judge, **CLAIMS.declared(38)}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    seeds = STUDY.choose(arguments, least_seeds=2).seeds
    verdicts = harness.judge_all(JUDGES, {37: measure(), 38: measure_group_rates(seeds)})
    return Outcome({}, {}, verdicts, {"seeds": seeds})
