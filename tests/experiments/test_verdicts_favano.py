"""Verdicts on FAVANO's theory and clock, on committed numbers and with one number changed.

Nothing is drawn or trained. Numbers that were not kept of the committed run are made up.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments.favano import clock, lemmas, table2, theory
from experiments.harness import Verdict
from tests.experiments.verdict_rows import Path, assert_verdict, changed, committed, numbers

ENTRIES = {
    id: entry
    for name in ("clock", "lemmas", "table2", "theory")
    for id, entry in committed(f"favano/{name}").items()
}
JUDGES: dict[int, Callable[[Any], Verdict]] = {
    1: lemmas.JUDGES[1],
    2: lemmas.JUDGES[2],
    3: lemmas.JUDGES[3],
    4: clock.JUDGES[4],
    5: clock.JUDGES[5],
    6: theory.JUDGES[6],
    7: theory.judge_bound,
    8: clock.judge_step_time,
    16: theory.judge_rounding,
    17: clock.judge_orders,
    18: clock.JUDGES[18],
    19: clock.judge_shares,
    21: table2.judge_variance,
    22: table2.judge_times,
    23: clock.JUDGES[23],
    30: theory.JUDGES[30],
}
NOT_KEPT: dict[int, dict[str, Any]] = {
    4: {"standard_error": [[0.0087, 0.0048], [0.0001, 0.0009]], "closed_forms_off": 2e-5},
    5: {"lanes": 48, "server_steps": 714},
    6: {"closed_forms_off": 4e-5, "lanes": 40, "ticks": 6000},
    18: {"drawn": 960},
}
"""Numbers behind a verdict that the committed entry lacks."""
RUN = "stochastic, n=6, s=2, K=10"
BLOCKED = ("settled", "blocked")
ERRORS = ("standard_error", "settled", "own finish")
ROWS: list[tuple[int, Path, Any, str]] = [
    (1, ("relative_error",), 1e-10, "fails"),
    (2, ("largest_deviation",), 4.1, "fails"),
    (3, ("error_of_formula",), 1e-10, "fails"),
    (3, ("largest_share_of_bound",), 1.001, "fails"),
    (4, ("largest_deviation",), 4.1, "fails"),
    (4, ("closed_forms_off",), 6e-5, "fails"),
    (5, ("largest_deviation",), 4.1, "fails"),
    (6, ("largest_deviation",), 4.1, "fails"),
    (6, ("closed_forms_off",), 6e-5, "fails"),
    (7, (RUN, "measured"), 206.0, "fails"),
    (7, (RUN, "measured"), 204.5, "undecided"),
    (7, (RUN, "standard_error"), 40.0, "undecided"),
    (8, ("constant",), False, "fails"),
    (8, ("mean", "FedAvg", 0), 360.0, "fails"),
    (8, ("mean", "FedBuff, blocked", clock.MOST), 5.0, "fails"),
    (8, ("mean", "FedBuff, blocked", clock.MOST), 6.49, "undecided"),
    (8, ("standard_error", "FedBuff, own finish", clock.MOST), 4.0, "undecided"),
    (8, ("fedbuff_steps_in_5000", "own finish", clock.THIRD), 880.0, "fails"),
    (16, ("largest_deviation",), 4.1, "fails"),
    (16, ("floors", 0), 4.5, "fails"),
    (16, ("floors", 3), 0.09, "fails"),
    (17, ("powers_of_n", "FAVANO", 1), 1.5, "fails"),
    (17, ("powers_of_n", "QuAFL", 2), 1.0, "fails"),
    (17, ("fedbuff_largest_staleness", clock.THIRD), 20.0, "fails"),
    (17, ("fedbuff_largest_staleness", clock.THIRD), 30.0, "undecided"),
    (17, ("standard_error", clock.MOST), 30.0, "undecided"),
    (17, ("favano_same_at_all_shares",), False, "fails"),
    (18, ("exact", 3), 999, "fails"),
    (18, ("mean",), 1200.0, "fails"),
    (18, ("standard_error",), 0.0, "undecided"),
    (18, ("largest_deviation",), 4.1, "fails"),
    (19, (*BLOCKED, clock.MOST), 0.6, "holds in part, false: most updates with 11 fast (own"),
    (19, (*BLOCKED, clock.MOST), 0.5, "holds in part, open: most updates with 11 fast (blocked)"),
    (19, (*BLOCKED, 0), 0.87, "fails, false: more than their share (blocked)"),
    (19, (*BLOCKED, 0), 0.8801, "undecided, open: more than their share (blocked)"),
    (19, (*ERRORS, clock.MOST), 0.01, "holds in part, open: most updates with 11 fast (own"),
    (21, (table2.BANDS, "FAVANO, stochastic", 1), 9000.0, "fails"),
    (21, (table2.BANDS, "FAVANO, stochastic", 1), 400.0, "holds in part, false: below FedAvg"),
    (22, (table2.TIMES, "FAVANO, stochastic"), None, "undecided"),
    (22, (table2.TIMES, "FedAvg"), 1000.0, "fails"),
    (22, (table2.TIMES, "QuAFL"), 1000.0, "holds in part, open: FedBuff, lr"),
    (23, ("eps^-3/2",), 1.0, "holds"),
    (30, ("mean",), {"deterministic": 1e-3, "stochastic": -1e-3}, "holds"),
    (30, ("mean",), {"deterministic": 1e-3, "stochastic": 0.1}, "fails"),
    (23, ("eps^-1",), 1.1, "fails"),
]
"""Claim, place of a number, another number, and the verdict on it or a part of its scope."""
TOLD = {"ratio", "step_size", "seeds", "slow_share", "within_5000", "accuracy", "variance"}
"""Numbers of claims 7, 19 and 21 that decide nothing."""


def base(number: int) -> dict[str, Any]:
    """Return the numbers behind a committed verdict."""
    measured = {**ENTRIES[f"favano-{number}"]["measured"], **NOT_KEPT.get(number, {})}
    return (
        {name: {**run, "seeds": 20} for name, run in measured.items()} if number == 7 else measured
    )


def test_committed_numbers_give_the_committed_verdicts() -> None:
    for number, judge in JUDGES.items():
        found, entry = judge(base(number)), ENTRIES[f"favano-{number}"]
        assert (found.verdict, found.scope) == (entry["verdict"], entry["scope"])


@pytest.mark.parametrize(("number", "path", "value", "expected"), ROWS)
def test_one_number_decides(number: int, path: Path, value: Any, expected: str) -> None:
    assert_verdict(JUDGES[number](changed(base(number), path, value)), expected)


def test_no_claim_holds_on_what_is_not_a_number() -> None:
    for number, judge in JUDGES.items():
        known = judge(base(number)).verdict, judge(base(number)).scope
        for path in numbers(base(number)):
            found = judge(changed(base(number), path, np.nan))
            if not TOLD.intersection(path):
                assert found.verdict != "holds" and (found.verdict, found.scope) != known
                assert found.verdict == "undecided" or number in (19, 21, 22), (number, path)
