"""Hierarchical FL's Remark 6: similar performances at different numbers of rounds (claim 37)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import harness
from experiments.harness import Arguments, Judges, Outcome, Verdict
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas import bounds
from experiments.hierarchical.formulas import quadratics as formulas
from experiments.hierarchical.quadratics import DELAYS, NOISE, law
from fedjax_sim.theory import hierarchical as theory

END = 1000.0
RATES = (0.1, 0.3, 1.0)
SYNC_TIMES = tuple(np.linspace(0, 30, 121))


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


JUDGES: Judges = {37: judge}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claim."""
    verdicts = [judge(measure())]
    return Outcome({}, {}, verdicts, {}, harness.verdict_table(verdicts))
