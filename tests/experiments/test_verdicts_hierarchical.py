"""Verdicts on hierarchical FL's theory, on committed numbers and with one number changed.

Nothing is drawn or trained. Numbers that were not kept of the committed runs are made up.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from experiments.harness import Verdict
from experiments.hierarchical import bounds, clock, quadratics
from tests.experiments.verdict_rows import Path, assert_verdict, changed, committed, numbers

ENTRIES = {
    id: entry
    for name in ("bounds", "clock", "quadratics")
    for id, entry in committed(f"hierarchical/{name}").items()
}
JUDGES: dict[int, Callable[[Any], Verdict]] = {
    1: clock.judge_rounds,
    2: clock.JUDGES[2],
    3: clock.JUDGES[3],
    17: clock.JUDGES[17],
    4: bounds.JUDGES[4],
    5: bounds.JUDGES[5],
    6: bounds.JUDGES[6],
    7: bounds.JUDGES[7],
    8: bounds.judge_corollary,
    33: bounds.JUDGES[33],
    9: quadratics.judge_fixed_points,
    10: quadratics.judge_rates,
    24: quadratics.judge_quiet,
    25: quadratics.judge_lead_times,
    26: quadratics.JUDGES[26],
    27: clock.JUDGES[27],
    28: quadratics.JUDGES[28],
}
LEAD = "least relative lead of S = 0"
ROUNDS = ENTRIES["hierarchical-1"]["measured"]["rounds"]
NOT_KEPT: dict[int, dict[str, Any]] = {
    1: {
        "rounds_expected": dict(ROUNDS),
        "rounds_error": dict.fromkeys(ROUNDS, 0.01),
        "largest_deviation of ratios": 2.0,
    },
    5: {"sharp bound over (18)": 0.9},
    6: {"rounds": 20},
    9: {"error": 7e-7},
    24: {"times": 150, "delay paths": 20},
    25: {LEAD: 0.019237},
    26: {"early": {"S = 0": 0.513, "S = 5": 0.118, "S = 20": 0.0448}},
}
"""Numbers behind a verdict that the committed entry lacks."""
NOT_KEPT_OF_PARTS: dict[int, dict[str, Any]] = {
    7: {"vacuous": True},
    10: {"contraction error": 7e-8, "standard error": 5e-3},
}
"""The same for claims with parts, in each part."""
MANY, ONE, ONE_2 = "many rounds, group 2", "one round, group 1", "one round, group 2"
FLOORS = "floor over that of S = 0"
ROWS: list[tuple[int, Path, Any, str]] = [
    (1, ("largest_deviation",), 5.1, "fails"),
    (1, ("largest_deviation of ratios",), 5.1, "fails"),
    (1, ("rounds", "Fig. 6, S = 5"), 38.5, "fails"),
    (1, ("rounds", "Fig. 6, S = 5"), 38.6, "holds"),
    (2, ("Fig. 7a, S = 5", 1, 0), 0, "fails"),
    (2, ("Fig. 7a, S = 5", 1, 1), 6, "fails"),
    (3, ("monotone",), False, "fails"),
    (17, ("Fig. 7a",), 37.0, "holds"),
    (17, ("Fig. 7a",), 42.0, "fails"),
    (33, (ONE_2, "left"), 0.09, "fails"),
    (33, (ONE_2, "bound"), 0.5, "fails"),
    (33, (ONE_2, "G^2"), ENTRIES["hierarchical-33"]["measured"][ONE_2]["bound"], "fails"),
    (4, ("largest relative difference",), 1e-4, "fails"),
    (5, ("over sharp bound",), 1.01, "fails"),
    (5, ("sharp bound over (18)",), 1.01, "fails"),
    (5, ("attained",), 4.0626, "fails"),
    (6, ("left",), 0.2, "fails"),
    (6, ("direct",), 3.3, "fails"),
    (7, (MANY, "left"), 6.2, "fails"),
    (7, (MANY, "bound"), 0.4, "fails"),
    (7, (MANY, "vacuous"), False, "fails"),
    (7, (ONE, "left"), 0.09, "fails"),
    (7, (ONE, "bound"), 0.5, "fails"),
    (7, (ONE, "vacuous"), True, "fails"),
    (8, ("scaled", 1), 1.5, "fails"),
    (8, ("scaled", 2), 1.0, "fails"),
    (8, ("scaled", 4), 1.04, "fails"),
    (8, ("bounds", 4), 1.0, "fails"),
    (8, ("scaled", 0), 0.45, "fails"),
    (9, ("error",), 2e-4, "fails"),
    (9, ("divide_by_steps", "0.01"), -0.06, "fails"),
    (9, ("average", "0.01"), 0.79, "fails"),
    (10, ("t = 1", "contraction error"), 2e-4, "fails"),
    (10, ("t = 5", "contraction error"), 2e-4, "fails"),
    (10, ("t = 1", "floor"), 1.4, "fails"),
    (10, ("t = 5", "floor"), 0.12, "fails"),
    (10, ("t = 5", "standard error"), 0.0, "undecided"),
    (24, (LEAD,), -1e-4, "fails"),
    (24, (LEAD,), -1e-6, "holds"),
    (25, ("measured", "alpha 0.25"), 250.0, "fails"),
    (25, ("measured", "alpha 0.25"), None, "holds"),
    (25, ("measured", "alpha 1.0"), None, "fails"),
    (25, ("measured", "alpha 1, noise / 10"), 150.0, "fails"),
    (25, ("expected", "alpha 0.05"), 600.0, "fails"),
    (25, ("expected", "alpha 0.05"), None, "holds"),
    (25, ("expected", "alpha 1, noise / 100"), 400.0, "fails"),
    (25, ("expected", "alpha 1, noise / 10"), 150.0, "fails"),
    (25, (LEAD,), -1e-4, "fails"),
    (26, ("early", "S = 20"), 0.2, "fails"),
    (27, ("same rounds",), False, "fails"),
    (28, ("models apart",), 1e-11, "fails"),
    (26, ("early", "S = 5"), 0.6, "fails"),
    (26, (FLOORS, "average"), 0.8, "fails"),
    (26, (FLOORS, "divide_by_steps"), 0.6, "fails"),
]
"""Claim, place of a number, another number, and the verdict on it or a part of its scope."""


def base(number: int) -> dict[str, Any]:
    """Return the numbers behind a committed verdict."""
    measured = {**ENTRIES[f"hierarchical-{number}"]["measured"], **NOT_KEPT.get(number, {})}
    for name, part in measured.items() if number in NOT_KEPT_OF_PARTS else ():
        measured[name] = {**part, **NOT_KEPT_OF_PARTS[number]}
        if name.startswith("one round"):
            measured[name]["vacuous"] = False
    return measured


def test_committed_numbers_give_the_committed_verdicts() -> None:
    for number, judge in JUDGES.items():
        found, entry = judge(base(number)), ENTRIES[f"hierarchical-{number}"]
        assert (found.verdict, found.scope) == (entry["verdict"], entry["scope"])
        assert found.seeds in (0, entry["seeds"])
    assert JUDGES[8](base(8)).seeds == 100 and JUDGES[10](base(10)).seeds == 50  # A quarter.
    far = JUDGES[1](changed(base(1), ("rounds", "Fig. 6, S = 5"), 38.515))
    assert far.verdict == "holds" and "rounds within 0.1 more than 5 of them" in far.why


@pytest.mark.parametrize(("number", "path", "value", "expected"), ROWS)
def test_one_number_decides(number: int, path: Path, value: Any, expected: str) -> None:
    assert_verdict(JUDGES[number](changed(base(number), path, value)), expected)


def test_no_claim_holds_on_what_is_not_a_number() -> None:
    for number, judge in JUDGES.items():
        for path in numbers(base(number)):
            found = judge(changed(base(number), path, np.nan))
            assert found.verdict == "undecided", (number, path)


@pytest.mark.parametrize(("late", "expected"), [(0.5, 2.0), (2.0, None), (np.nan, None)])
def test_a_run_that_diverges_never_leads(late: float, expected: float | None) -> None:
    """With S = 5 the loss is above that of S = 0 at first, and `late` afterwards."""
    loss = [[[1.0, 1.0, 1.0]], [[2.0, 2.0, late]]]
    data = xr.Dataset(
        {
            "loss": (("lr", "sync_time", "seed", "eval"), np.array([loss]).reshape(1, 2, 1, 3)),
            "time": (("lr", "sync_time", "seed", "eval"), np.tile(np.arange(3.0), (1, 2, 1, 1))),
        },
        {"lr": [1.0], "sync_time": [0.0, 5.0]},
    )
    assert quadratics.first_lead(data, 1.0, 5.0, np.arange(3.0)) == expected
