"""Every claim of our own studies can hold and fail, on numbers made up on either side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from experiments.clocks import coverage, machines, routing
from experiments.clocks.claims import CLAIMS as CLOCKS
from experiments.harness import Sample, Verdict, ledger, page
from experiments.harness.statistics import FAILS, HOLDS
from experiments.robustness import attacks
from experiments.selection import rules
from experiments.selection.claims import ON_SPEAKERS
from tests.experiments import test_selection

BEATEN = {
    "mean": {"none": 90, "noise": 20, "ALIE": 85, "min-max": 75, "inner product": 60},
    "Krum": {"none": 80, "noise": 79, "ALIE": 75, "min-max": 65, "inner product": 30},
    "centred clipping": {"none": 88, "noise": 86, "ALIE": 83, "min-max": 73, "inner product": 84},
}
"""Accuracies by rule and attack with which all claims on rules hold, in FedAvg."""
HARMLESS = {
    "mean": {"none": 90, "noise": 90, "ALIE": 85, "min-max": 89, "inner product": 90},
    "Krum": {"none": 89, "noise": 80, "ALIE": 80, "min-max": 85, "inner product": 88},
    "centred clipping": {"none": 89, "noise": 80, "ALIE": 80, "min-max": 85, "inner product": 75},
}
"""The same with which all fail."""


def sample(value: float) -> Sample:
    """Make ten runs that all but agree."""
    return Sample.of(value + np.linspace(-0.1, 0.1, 10))


def on_rules(outcome: str) -> dict[str, Any]:
    """Make accuracies of robust rules. In FedBuff all attacks cost two points more, or less."""
    good = outcome == HOLDS
    found = BEATEN if good else HARMLESS
    more = {"FedAvg": 0, "FedBuff": 2 if good else -2}
    shares = [f"{share:.0%}" for share in (0.1, 0.2, 0.3)]
    ends = {
        system: {
            name: {
                attack: sample(end)
                if attack == "none"
                else {share: sample(end - more[system]) for share in shares}
                for attack, end in of.items()
            }
            for name, of in found.items()
        }
        for system in more
    }
    own = {
        system: {
            name: {
                attack: sample(end - more[system] + (0 if good else 10))
                for attack, end in of.items()
                if attack != "none"
            }
            for name, of in found.items()
        }
        for system in more
    }
    return {
        "ends": ends,
        "own": own,
        "chance": 10.0,
        "dataset": "made up",
        "reduced": "",
        "smoke": False,
    }


def on_clocks(outcome: str) -> dict[str, Any]:
    """Make pairs of measured and simulated numbers that are equal, or in another order."""
    x, y = (1.0, 3.0) if outcome == HOLDS else (3.0, 1.0)
    pairs = {"A, x": (1.0, x), "A, y": (3.0, y)}
    return {"smoke": False} | {str(number): pairs for number in CLOCKS if number < 16}


def on_coverage(outcome: str) -> dict[str, Any]:
    """Make counts of intervals of which 95 %, or 90 %, have the truth."""
    hits = 950 if outcome == HOLDS else 900
    counts = {"logs": 1000, "refused": 0, "rate": hits, "spread": hits}
    return {"smoke": False, "counts": {coverage.JUDGED: dict.fromkeys(coverage.SPREADS, counts)}}


def on_routing(outcome: str) -> dict[str, Any]:
    """Make runs whose settings matter, or do not."""
    ends, times = ((80, 60), (50, 100)) if outcome == HOLDS else ((62, 60), (90, 100))
    names = routing.BEST, routing.PLAIN
    return {
        "ends": dict(zip(names, map(sample, ends), strict=True)),
        "times": dict(zip(names, map(sample, times), strict=True)),
        "smoke": False,
        "tasks": {},
        "rates": {},
        "target": 0.5,
    }


def judged(outcome: str) -> Iterator[Verdict]:
    """Judge numbers with which all claims hold, or all fail."""
    yield from attacks.judge(on_rules(outcome))
    yield from machines.judge(on_clocks(outcome))
    yield from routing.judge(on_routing(outcome))
    yield from coverage.judge(on_coverage(outcome))
    for first in (1, 1 + ON_SPEAKERS):
        yield from rules.judge(test_selection.inputs_of(outcome) | {"first claim": first})


def tried() -> Iterator[Verdict]:
    """Judge all made-up numbers."""
    for outcome in (HOLDS, FAILS):
        yield from judged(outcome)


@pytest.mark.parametrize("outcome", [HOLDS, FAILS])
def test_each_claim_holds_and_fails(outcome: str) -> None:
    found = {each.id: each.verdict for each in judged(outcome)}
    claims = [each.id for study in page.STUDIES for each in ledger.all_claims()[study].values()]
    assert found == dict.fromkeys(claims, outcome)
