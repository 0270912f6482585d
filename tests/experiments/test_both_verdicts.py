"""Every criterion of a claim that counts can be met and failed, on made-up numbers on either side.

It collects what the tests of verdicts try: the numbers of `test_verdicts` for accuracies, those of
`test_verdicts_studies` for our own studies, and those of the other tests for theory, where one
number is changed at a time. Claims that have one outcome say why, and do not count.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from experiments.favano import claims as favano_claims
from experiments.harness import Claims, Verdict, ledger
from experiments.harness.statistics import FAILS, HOLDS, NOT_HERE, PARTLY
from tests.experiments import (
    test_headlines,
    test_verdicts,
    test_verdicts_fald,
    test_verdicts_favano,
    test_verdicts_fedem,
    test_verdicts_fedstaleweight,
    test_verdicts_hierarchical,
    test_verdicts_studies,
)
from tests.experiments.verdict_rows import changed

NEEDS_DATA = {"fedem-21"}
"""The counts of this claim are not given out, so that no function judges it."""


def tried() -> Iterator[Verdict]:
    """Judge all numbers that the tests make up."""
    for judge, inputs_of in test_verdicts.CASES.values():
        for outcome in (HOLDS, FAILS):
            yield from judge(inputs_of(outcome))
    for module in (test_verdicts_fald, test_verdicts_fedem):
        for name, case in module.CASES.items():
            yield case.judge(module.found_of(name))
        for name, path, value, _ in module.ROWS:
            yield module.CASES[name].judge(changed(module.found_of(name), path, value))
    yield from test_headlines.tried()
    yield from test_verdicts_studies.tried()
    stale = test_verdicts_fedstaleweight
    for number, judge in stale.JUDGES.items():
        yield judge(stale.NUMBERS[number])
    for number, path, value in stale.FAILS:
        yield stale.JUDGES[number](changed(stale.NUMBERS[number], path, value))
    modules: tuple[Any, ...] = (test_verdicts_favano, test_verdicts_hierarchical)
    for module in modules:
        for number, judge in module.JUDGES.items():
            yield judge(module.base(number))
        for number, path, value, _ in module.ROWS:
            yield module.JUDGES[number](changed(module.base(number), path, value))


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    verdicts: dict[str, set[str]] = {}
    for each in tried():
        verdicts.setdefault(each.id, set()).add(each.verdict)
    return verdicts


def test_every_criterion_can_be_met_and_failed(found: dict[str, set[str]]) -> None:
    counted = [
        claim.id
        for claims in ledger.all_claims().values()
        for claim in claims.values()
        if claim.counts and claim.id not in NEEDS_DATA
    ]
    one_sided = {
        id: sorted(found.get(id, set()))
        for id in counted
        if not found.get(id, set()) & {HOLDS, PARTLY}
        or not found.get(id, set()) & {FAILS, NOT_HERE}
    }
    assert not one_sided and len(counted) > 170


def test_claims_with_one_outcome_say_why() -> None:
    claim = favano_claims.CLAIMS[1]
    for wrong in (claim._replace(follows=""), claim._replace(kind="exact")):
        with pytest.raises(ValueError, match="favano-1: `follows` is given if, and only if"):
            Claims("favano", {1: wrong}, since="2026-11-30")
