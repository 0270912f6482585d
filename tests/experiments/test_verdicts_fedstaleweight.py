"""Verdicts on FedStaleWeight's influence, on the numbers stated of the committed run and others.

The committed entry keeps sentences, so that its numbers are written out here. Nothing is trained.
"""

from typing import Any

import numpy as np
import pytest

from experiments.fedstaleweight.influence import AVERAGES, JUDGES, measure_strategy
from tests.experiments.verdict_rows import Path, assert_verdict, changed, committed, numbers

BUFFERS = ("1", "2", "3", "5", "8", "10", "15", "30", "60")
THROTTLES = ("1.0", "0.7", "0.5", "0.25", "0.1")
NUMBERS: dict[int, dict[str, Any]] = {
    1: {"largest error": 0.0036, "fast": 1.0, "slow": 14.0},
    2: {"largest error": 0.0020},
    3: {
        "slow influence": 0.0697,
        "standard error": 1e-4,
        "slow share": 0.0697,
        "influence is the share": True,
    },
    4: {
        "slow influence": 0.2030,
        "standard error": 1e-4,
        "deviation, mean": 0.527,
        "deviation, eq8": 0.261,
    },
    5: {
        "cumulative": dict(
            zip(BUFFERS, (0.07, 0.12, 0.16, 0.2, 0.24, 0.26, 0.29, 0.31, 0.33), strict=True)
        ),
        "window 5": dict(
            zip(BUFFERS, (0.07, 0.12, 0.16, 0.2, 0.24, 0.27, 0.3, 0.364, 0.516), strict=True)
        ),
    },
    6: {"slow influence": 0.3332, "deviation": 0.001},
    7: dict(zip(AVERAGES, (0.2030, 0.2012, 0.2035, 0.2012), strict=True)),
    12: {
        "FedStaleWeight": dict(zip(THROTTLES, (0.08, 0.078, 0.075, 0.06, 0.03), strict=True)),
        "reverse exponential": dict(zip(THROTTLES, (0.02, 0.06, 0.08, 0.1, 0.1), strict=True)),
    },
    13: {
        "slopes around the peak": [0.01, -0.01],
        **{
            f"{k} slow": {"truthful": k < 2, "best share of its rate": 1.0, "gain": 0.0}
            for k in range(5)
        },
    },
    14: {"b = 2": 0.028, "b = 5": 0.0011, "b = 6": 0.0},
    15: {
        "updates": 40_000,
        "outside": 0,
        "largest without": 90,
        "largest with a buffer of 5": 18,
    },
    16: {"least": 0.03, "most": 0.6937, "bounds": [0.01, 0.9], "U": 2e-16},
    17: {"vacuous": True},
    18: {
        "mean": {"mean": 0.0698, "standard error": 1e-4, "seeds": 6},
        "eq8": {"mean": 0.2033, "standard error": 6e-4, "seeds": 6},
        "raw": {"mean": 0.3339, "standard error": 1e-4, "seeds": 6},
    },
    19: {"buffer mean": 0.7, "FedStaleWeight": 0.7},
    20: {"eq8": 0.2030, "alg1": 0.1838},
    21: {"step sizes": [0.01, 0.002], "left": [0.005, 0.001], "right": [0.006, 0.002]},
}
NUMBERS[22] = {
    **{f"{k} slow": {"truthful": True, "best share of its rate": 1.0} for k in range(5)},
    "least n": 39,
}
FAILS: list[tuple[int, Path, Any]] = [
    (1, ("largest error",), 0.021),
    (2, ("largest error",), 0.021),
    (3, ("slow influence",), 0.075),
    (3, ("influence is the share",), False),
    (4, ("slow influence",), 0.18),
    (4, ("deviation, mean",), 0.5),
    (4, ("deviation, eq8",), 0.3),
    (5, ("cumulative", "2"), 0.065),
    (5, ("cumulative", "1"), 0.08),
    (5, ("cumulative", "5"), 0.235),
    (5, ("cumulative", "60"), 0.35),
    (5, ("window 5", "30"), 0.32),
    (5, ("window 5", "60"), 0.32),
    (6, ("slow influence",), 0.31),
    (7, ("cumulative",), 0.1980),
    (12, ("FedStaleWeight", "0.5"), 0.079),
    (13, ("slopes around the peak", 0), -0.01),
    (13, ("slopes around the peak", 1), 0.01),
    (13, ("1 slow", "truthful"), False),
    (13, ("2 slow", "truthful"), True),
    (14, ("b = 2",), -0.01),
    (14, ("b = 5",), 0.0),
    (14, ("b = 6",), 1e-3),
    (15, ("outside",), 1),
    (16, ("least",), 0.009),
    (16, ("most",), 0.91),
    (16, ("U",), 1e-9),
    (17, ("vacuous",), False),
    (18, ("mean", "mean"), 0.08),
    (18, ("eq8", "mean"), 0.215),
    (18, ("raw", "mean"), 0.32),
    (19, ("FedStaleWeight",), 0.01),
    (20, ("eq8",), 0.185),
    (20, ("alg1",), 0.165),
    (21, ("left", 1), 0.003),
    (22, ("least n",), None),
]
"""Claim, place of a number, and a number with which the claim fails."""


def test_numbers_of_the_committed_run_give_its_verdicts() -> None:
    entries = committed("fedstaleweight/influence")
    assert {f"fedstaleweight-{number}" for number in JUDGES} == set(entries)
    for number, judge in JUDGES.items():
        stored = entries[f"fedstaleweight-{number}"]
        found = judge(stored["measured"] if number in (21, 22) else NUMBERS[number])
        assert found.verdict == stored["verdict"]
        assert judge(NUMBERS[number]).verdict == "holds"
        assert found.seeds in (0, stored["seeds"])
    assert JUDGES[5](NUMBERS[5]).seeds == 3
    assert JUDGES[19](dict.fromkeys(NUMBERS[19])).verdict == "holds", "no run diverged"


@pytest.mark.parametrize(("number", "path", "value"), FAILS)
def test_each_part_can_fail(number: int, path: Path, value: Any) -> None:
    assert JUDGES[number](changed(NUMBERS[number], path, value)).verdict == "fails"


def test_fast_clients_tell_the_truth_if_there_are_enough_clients() -> None:
    """By hand: C r^2 = 40 (2/3)^2 with four slow clients, and A = (2 n/3 - 1) 2/3 + n/30."""
    least = next(n for n in range(15, 100, 3) if (2 * n / 3 - 1) * 2 / 3 + n / 30 >= 40 * 4 / 9)
    assert measure_strategy(NUMBERS[22])["least n"] == least == 39
    small = changed(NUMBERS[22], ("3 slow", "truthful"), False)
    assert_verdict(JUDGES[22](small), "holds in part, false: n = 15")


@pytest.mark.parametrize(
    ("path", "value"),
    [(("eq8", "standard error"), 0.0021), (("mean", "mean"), 0.0757), (("raw", "seeds"), 1)],
)
def test_fixed_points_near_the_mark_or_with_noise_are_undecided(path: Path, value: float) -> None:
    """Noise does not help claim 18: six seeds give an interval of 2.6 standard errors."""
    assert JUDGES[18](changed(NUMBERS[18], path, value)).verdict == "undecided"


def test_the_second_formula_has_to_give_less() -> None:
    assert JUDGES[20]({"eq8": 0.1922, "alg1": 0.1929}).verdict == "fails"


def test_no_claim_holds_on_what_is_not_a_number() -> None:
    for number, judge in JUDGES.items():
        for path in numbers(NUMBERS[number]):
            found = judge(changed(NUMBERS[number], path, np.nan))
            assert found.verdict == "undecided", (number, path)
