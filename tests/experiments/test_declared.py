"""Criteria that claims state as comparisons, and the sentences behind their verdicts."""

from typing import Any

import numpy as np
import pytest

from experiments.harness import Claims, Criterion, declared
from experiments.harness.claims import Claim

MEASURED: dict[str, Any] = {
    "off": 0.3,
    "by n": {"n = 1": [1.0, 2.0], "n = 2": [3.0, 4.0]},
    "same": True,
    "error": 0.05,
    "exact": 0.0,
    "late first": {"10": 3.0, "2": 2.0, "1": 1.0},
    "rows": {"a": {"left": 2.0, "right": 3.0}, "b": {"left": 1.0, "right": 3.0}},
}
MARKS = {"most": 0.5, "close": 0.2}


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ("off < most", True),
        ("off > most", False),
        ("off < 1/4", False),
        ("off within close of most", False),  # 0.2 apart, rounded up
        ("off within close of 0.4", True),
        ("off within close times 0.26", True),
        ("off within close times 0.24", False),
        ("by n / * / 0 <= by n / * / 1", True),
        ("by n / * / 1 <= by n / * / 0", False),
        ("by n / * / * <= 3.5", False),
        ("by n / n = 1 / * < 2.5", True),
        ("same is 1", True),
        ("rows / * / left falls", True),
        ("rows / * / right falls", False),
        ("off <= close + 0.1", True),
        ("off < close + 0.05", False),
        ("by n > close", True),  # Of nested numbers all are compared.
        ("by n < 4", False),
        ("off within close + 2 of 0.4 by error", True),
        ("off within close of 0.4 by error", False),
        ("off within most of 0.4 by exact", None),
        ("late first falls", True),  # In the order of the run, not of the names.
        ("off falls", None),
    ],
)
def test_comparisons(comparison: str, expected: bool | None) -> None:
    assert declared.holds(comparison, MEASURED, MARKS) is expected


@pytest.mark.parametrize("unknown", [np.nan, np.inf, None])
def test_a_number_that_is_not_known_leaves_the_claim_open(unknown: Any) -> None:
    assert declared.all_hold(["off < most"], MEASURED, MARKS) is True
    assert declared.all_hold(["off < most"], {**MEASURED, "other": unknown}, MARKS) is None
    assert declared.all_hold(["off > most"], {"off": unknown}, MARKS) is None
    by_exact = "off within most of 0.4 by exact"
    assert declared.all_hold(["off < most", by_exact], MEASURED, MARKS) is None
    assert declared.all_hold(["off > most", by_exact], MEASURED, MARKS) is False


@pytest.mark.parametrize(
    ("comparison", "complaint"),
    [
        ("off most", "is no comparison"),
        ("off < most by error", "nothing was measured at 'most by error'"),
        ("off within close times most by error", "nothing was measured at 'most by error'"),
        ("of < most", "nothing was measured at 'of'"),
        ("off < least", "nothing was measured at 'least'"),
        ("off < off", "'off' is a mark and a measured number"),
    ],
)
def test_what_cannot_be_compared_is_refused(comparison: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        declared.holds(comparison, MEASURED, {**MARKS, "off": 1.0})


def test_a_sentence_has_the_measured_numbers() -> None:
    told = "off {off:.2f}; {by n / * / 0:at NAME <:.1f>}; {by n / n = 1 / *:g}; {by n / *:NAME}"
    expected = "off 0.30; at n = 1 1.0, at n = 2 3.0; 1, 2; n = 1, n = 2"
    assert declared.sentence(told, MEASURED, MARKS) == expected
    rows = "{rows / *:NAME <left:g>, <right:.1f>}"
    assert declared.sentence(rows, MEASURED, MARKS) == "a 2, 3.0; b 1, 3.0"
    assert declared.sentence("{largest of by n / * / *:.1f}, {most}", MEASURED, MARKS) == "4.0, 0.5"
    nested = "{by n / n = 1:.0f}; {rows / a:.1f}; {smallest of by n:g} to {largest of by n:g}"
    found = declared.sentence(nested, MEASURED, MARKS)
    assert found == "1, 2; left 2.0, right 3.0; 1 to 4"
    # A run has arrays where its record has lists.
    arrays = {**MEASURED, "by n": {name: np.array(row) for name, row in MEASURED["by n"].items()}}
    assert declared.sentence(nested, arrays, MARKS) == found
    assert declared.holds("by n / * / 0 <= by n / * / 1", arrays, MARKS)
    assert declared.holds("by n < 4", arrays, MARKS) is False


def test_a_claim_that_states_its_comparisons_uses_all_its_marks() -> None:
    def claims(judged: str) -> Claims:
        mark = Criterion("Off by less than {most}, or {close}.", most=0.5, close=0.2)
        claim = Claim(
            "ours", "here", "It is near.", mark, judged={"": [judged]}, told="off {off:g}"
        )
        return Claims("fedem", {1: claim}, since="2026-11-30")

    with pytest.raises(ValueError, match="fedem-1: no comparison uses close"):
        claims("off < most")
    found = claims("off within close of most").declared(1)[1](MEASURED)
    few = claims("off within close of most")[1]._replace(id="", since="", least={"chains": 100})
    judge = Claims("fedem", {1: few}, since="2026-11-30").declared(1)[1]
    for chains, verdict in ((100, "fails"), (99, "undecided"), (np.nan, "undecided")):
        assert judge({**MEASURED, "chains": chains}).verdict == verdict
    assert judge({**MEASURED, "chains": 9}).why.startswith("not judged: 9 chains are too few; off")
    with pytest.raises(ValueError, match="fedem-9 states no comparisons"):
        Claims.read("fedem").declared(9)
    assert (found.id, found.verdict, found.why) == ("fedem-1", "fails", "off 0.3")
