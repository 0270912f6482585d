"""Every verdict on accuracies, on made-up numbers that must meet, fail or leave open its claim.

Nothing is trained. Each function gets ten seeds unless a test says otherwise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import xarray as xr

from experiments.clocks import coverage, routing, verdicts
from experiments.clocks.claims import CLAIMS as CLOCKS
from experiments.favano import fig3a, fig3b, fig7, fig7_own_rates, table2, table2_grid
from experiments.favano.fig3a import FAVANO, FEDBUFF
from experiments.fedstaleweight import fig2
from experiments.harness import Interval, Sample, Verdict, ledger
from experiments.hierarchical import (
    fig3,
    fig4_5,
    fig11,
    fig13,
    own_rates,
)
from experiments.robustness import attacks

NOISE = np.linspace(-0.05, 0.05, 10)
"""Deviations of ten seeds, in points."""


def runs(mean: float, *, noisy: bool = False, wave: int = 1) -> Sample:
    """Make ten runs, which all but agree or differ by up to 200 points in no order."""
    noise = np.random.default_rng(wave).permutation(2000 * NOISE)
    return Sample.of(mean + (noise if noisy else NOISE * wave))


def lead(mean: float, *, open_: bool = False) -> Interval:
    return Interval(mean, 50.0 if open_ else 0.1)


Inputs = Mapping[str, Any]


def table2_inputs(outcome: str, fedbuff: str = table2.FRESH) -> Inputs:
    """Make cells of Table 2 with the paper's outcome, its opposite, or noise."""
    good = {
        "FedAvg": (92.5, 38.0, 44.0),
        "QuAFL": (92.4, 40.0, 45.0),
        fedbuff: (95.5, 85.0, 67.0),
        "FAVANO, stochastic": (95.2, 89.0, 87.0),
        "FAVANO, alpha = 1": (95.0, 70.0, 70.0),
    }
    bad = {
        "FedAvg": (91.0, 92.0, 92.0),
        "QuAFL": (91.0, 91.0, 91.0),
        fedbuff: (80.0, 40.0, 41.0),
        "FAVANO, stochastic": (60.0, 60.0, 35.0),
        "FAVANO, alpha = 1": (62.0, 61.0, 62.0),
    }
    means = bad if outcome == "fails" else good
    ours = {"holds": [1.0, 2.0], "fails": [9.0, 20.0], "undecided": [1.0, np.nan]}[outcome]
    bands = {"FedAvg": [3.0, 4.0], table2.FRESH: [8.0, 9.0], table2.FAVANO: ours}
    return {
        "client variance": {table2.BANDS: bands},
        "times": {table2.TIMES: times(outcome)},
        "cells": {
            name: {
                column: runs(value, noisy=outcome == "undecided", wave=3 * i + j + 1)
                for j, (column, value) in enumerate(zip(table2.COLUMNS, values, strict=True))
            }
            for i, (name, values) in enumerate(means.items())
        },
        "words": "made up",
        "smoke": False,
    }


def methods(outcome: str, good: Mapping[str, float], bad: Mapping[str, float]) -> dict[str, Sample]:
    chosen = bad if outcome == "fails" else good
    return {
        name: runs(value, noisy=outcome == "undecided", wave=i + 1)
        for i, (name, value) in enumerate(chosen.items())
    }


ORDER = {"FedAvg": 40.0, "QuAFL": 42.0, FEDBUFF: 60.0, "FAVANO, stochastic": 65.0}
REVERSED = dict(zip(ORDER, reversed(ORDER.values()), strict=True))
MADE_UP: dict[str, Any] = {"dataset": "made up", "reduced": "", "smoke": False}


def times(outcome: str) -> dict[str, float | None]:
    """Make times to an accuracy."""
    others = dict.fromkeys(("QuAFL", FEDBUFF, FAVANO), 500.0)
    made: dict[str, dict[str, float | None]] = {
        "holds": {"FedAvg": 900.0, **others},
        "fails": {"FedAvg": 400.0, **others},
        "undecided": dict.fromkeys(("FedAvg", *others)),
    }
    return made[outcome]


def fig3a_inputs(outcome: str) -> Inputs:
    wobble = methods(outcome, {FEDBUFF: 2.0, FAVANO: 1.0}, {FEDBUFF: 2.0, FAVANO: 3.0})
    return {
        **MADE_UP,
        "final": methods(outcome, ORDER, REVERSED),
        "unsteadiness": wobble,
        "times": times(outcome),
        "time_budget": 1000.0,
    }


def fig3b_inputs(outcome: str) -> Inputs:
    return {**MADE_UP, "final": methods(outcome, ORDER, REVERSED)}


def fig7_inputs(outcome: str) -> Inputs:
    grows = {"32 bits, s = 1": 50.0, "32 bits, s = 4": 60.0, "32 bits, s = 10": 70.0}
    grows |= {"QNN, s = 1": 48.0, "QNN, s = 4": 58.0, "QNN, s = 10": 68.0}
    falls = {"32 bits, s = 1": 70.0, "32 bits, s = 4": 60.0, "32 bits, s = 10": 50.0}
    falls |= {"QNN, s = 1": 58.0, "QNN, s = 4": 48.0, "QNN, s = 10": 38.0}
    return {**MADE_UP, "final": methods(outcome, grows, falls)}


def fig2_inputs(outcome: str) -> Inputs:
    """Make both panels of FedStaleWeight's Fig. 2."""
    sign, is_open = (-1 if outcome == "fails" else 1), outcome == "undecided"
    final = {
        name: {group: runs(mean, noisy=is_open, wave=wave) for group in fig2.GROUPS}
        for name, mean, wave in ((fig2.OURS, 80.0, 1), (fig2.BASELINE, 80.0 - 2 * sign, 2))
    }
    panel = {
        "reduced": "",
        "server_steps": 100,
        "smoke": False,
        "final": final,
        "diverged": {fig2.OURS: Sample.of([float(outcome == "fails"), *[0.0] * 9])},
    }
    return {
        name: {**panel, "dataset": name, "claim": claim}
        for name, claim in (("fashion_mnist", 8), ("cifar10", 9))
    }


HOW: dict[str, Any] = {
    "smoke": False,
    "seeds": 10,
    "words": "made up",
    "reduced": "",
    "ends": {},
}


def ahead(outcome: str, mean: float = 2.0) -> dict[str, Interval]:
    """Make leads at one learning rate."""
    is_open = outcome == "undecided"
    return {"0.5": lead(-mean if outcome == "fails" else mean, open_=is_open)}


def isolated_inputs(outcome: str) -> Inputs:
    panel = {
        "gains": [*ahead(outcome, 3.0).values()] * 2,
        "together": runs(60.0),
        "alone": [runs(40.0)] * 2,
        "rates": [0.1, 0.1, 0.1],
        "sizes": [5, 15],
    }
    small, _ = panel["gains"]
    little = {**panel, "gains": [small, lead(-1.0, open_=outcome == "undecided")]}
    return {**HOW, "panels": {"fig4": little, "fig5a": panel, "fig5b": panel}}


CASES: dict[str, tuple[Callable[[Inputs], list[Verdict]], Callable[[str], Inputs]]] = {
    "favano/table2": (table2.judge, table2_inputs),
    "favano/table2_grid": (
        table2_grid.judge,
        lambda outcome: {
            "readings": {table2_grid.JUDGED: table2_inputs(outcome, "FedBuff, fresh")},
            "words": "made up",
            "smoke": False,
        },
    ),
    "favano/fig3a": (fig3a.judge, fig3a_inputs),
    "favano/fig3b": (fig3b.judge, fig3b_inputs),
    "favano/fig7": (fig7.judge, fig7_inputs),
    "favano/fig7_own_rates": (fig7_own_rates.judge, fig7_inputs),
    "fedstaleweight/fig2": (fig2.judge, fig2_inputs),
    "hierarchical/fig3": (
        fig3.judge,
        lambda outcome: {
            **HOW,
            "falls": {
                "0.5": {"early": 3.0, "late": 1.0, "difference": ahead(outcome)["0.5"]},
            },
        },
    ),
    "hierarchical/fig4_5": (fig4_5.judge, isolated_inputs),
    "hierarchical/fig11": (
        fig11.judge,
        lambda outcome: {
            **HOW,
            "leads": ahead(outcome),
            "idle": {fig11.EQUAL: [0], fig11.UNEQUAL: [0]},
            "rounds": {fig11.EQUAL: 1.0, fig11.UNEQUAL: 1.0},
        },
    ),
    "hierarchical/fig13": (
        fig13.judge,
        lambda outcome: {
            **HOW,
            "leads": {s: ahead(outcome, 1 + float(s)) for s in ("5", "10", "20")}
            | ({"20": {"0.5": Interval(np.nan, np.inf)}} if outcome == "undecided" else {}),
        },
    ),
}


def own_rates_inputs(outcome: str) -> Inputs:
    """Make the accuracies of all panels, and what else their judges take."""
    good = {
        "S = 0": 80.0,
        "S = 5": 82.0,
        "S = 12": 84.0,
        "S = 24": 81.0,
        "M = 2": 80.0,
        "M = 4": 82.0,
        "M = 8": 80.0,
        "a: 10 + 20": 82.0,
        "a: 15 + 15": 80.0,
        "b: 20 + 10": 82.0,
        "b: 15 + 15": 80.0,
        **{f"c_g = 10, S = {s}": each for s, each in ((0, 80.0), (5, 84.0), (20, 82.0))},
        **{f"c_g = 30, S = {s}": each for s, each in ((0, 80.0), (5, 84.0), (20, 82.0))},
        **{f"S = 10, c_g = {each}": 90.0 - each / 5 for each in (5, 10, 30, 60)},
    }
    sign = -1 if outcome == "fails" else 1
    panels = {}
    for name, panel in own_rates.PANELS.items():
        ends = {
            run: runs(
                60.0 + sign * (good.get(run, 80.0) - 80), noisy=outcome == "undecided", wave=i
            )
            for i, run in enumerate(panel.runs, 1)
        }
        place = {"holds": [[750.0, True]], "fails": [[750.0, False]], "undecided": None}[outcome]
        early = {"holds": lead(2.0), "fails": lead(-2.0), "undecided": lead(2.0, open_=True)}
        panels[name] = {
            **HOW,
            "ends": ends,
            "rates": dict.fromkeys(ends, 0.3),
            "rounds": {run: 83.0 if run == "S = 5" else 100.0 for run in ends},
            "crossings": dict.fromkeys(panel.pairs, place),
            "early": {f"S = {s}": dict.fromkeys(("100", "200"), early[outcome]) for s in (12, 24)},
        }
    return {"panels": panels}


CASES["hierarchical/own_rates"] = own_rates.judge, own_rates_inputs


def attacks_inputs(outcome: str) -> Inputs:
    """Make accuracies of five rules under five attacks.

    If claims fail, all rules are alike, and lose as much to any attack.
    """
    good = {
        "mean": (80.0, 40.0, 40.0, 70.0, 60.0, 65.0),
        "Krum": (72.0, 71.0, 71.0, 70.0, 20.0, 60.0),
        "median": (78.0, 77.0, 77.0, 72.0, 60.0, 65.0),
        "trimmed mean": (78.0, 77.0, 77.0, 72.0, 60.0, 65.0),
        "centred clipping": (79.0, 78.0, 75.5, 72.0, 74.0, 70.0),
    }
    bad = {rule: (79.0 if rule == "mean" else 80.0, 65.0, 68.0, 60.0, 65.0, 70.0) for rule in good}
    seed, is_open = iter(range(1, 1000)), outcome == "undecided"

    def sample(value: float) -> Sample:
        return runs(value, noisy=True, wave=next(seed)) if is_open else runs(value)

    inputs: dict[str, Any] = {**MADE_UP, "chance": 10.0, "ends": {}, "own": {}}
    for system in ("FedAvg", "FedBuff"):
        late = system == "FedBuff"
        for rule, (clean, *under) in (bad if outcome == "fails" else good).items():
            lower, clean = (0.0, clean - 4) if outcome == "fails" else (1.0, clean)
            values = [value - lower * late for value in under]
            ends = inputs["ends"].setdefault(system, {})
            ends[rule] = {"none": sample(clean if late else clean + 4 * (outcome == "fails"))}
            own = inputs["own"].setdefault(system, {})
            own[rule] = {}
            for attack, value in zip(attacks.ATTACKS, values, strict=True):
                ends[rule][attack] = {f"{share}%": sample(value) for share in (10, 20, 30)}
                own[rule][attack] = sample(value + (5.0 if outcome == "fails" else 1.0))
    return inputs


CASES["robustness/attacks"] = attacks.judge, attacks_inputs


def clocks_inputs(outcome: str) -> Inputs:
    """Make two measured numbers of each claim, with simulated ones that agree or do not."""
    found: dict[str, Any] = {"smoke": False}
    for number, claim in CLOCKS.items():
        is_share = hasattr(claim.criterion, "off")
        for name, measured in (("x", 1.0), ("y", 2.0)) if number < 16 else ():
            simulated = {"holds": measured, "fails": 9 / measured, "undecided": np.nan}[outcome]
            pair = (measured, simulated) if is_share else (0.0, simulated - measured)
            found.setdefault(str(number), {})[f"task, {name}"] = pair
    return found


def routing_inputs(outcome: str) -> Inputs:
    ahead, is_open = {"holds": 30.0, "fails": 0.0, "undecided": 0.0}[outcome], outcome[0] == "u"
    ends = {routing.PLAIN: 50.0, routing.BEST: 50.0 + ahead}
    times = {routing.PLAIN: 100.5, routing.BEST: 100.5 - 2 * ahead}
    samples = {
        key: {name: runs(x, noisy=is_open, wave=i) for i, (name, x) in enumerate(each.items())}
        for key, each in (("ends", ends), ("times", times))
    }
    return {**MADE_UP, **samples, "target": 0.8, "tasks": {}, "rates": {}}


def coverage_inputs(outcome: str) -> Inputs:
    hits = {"holds": 95, "fails": 80, "undecided": np.nan}[outcome]
    counts = {"logs": 100, "rate": hits, "spread": hits, "refused": 0}
    return {"smoke": False, "counts": {coverage.JUDGED: dict.fromkeys(coverage.SPREADS, counts)}}


CASES["clocks/coverage"] = coverage.judge, coverage_inputs
CASES["clocks/rack"] = verdicts.judge, clocks_inputs
CASES["clocks/routing"] = routing.judge, routing_inputs
DECIDED = {"hierarchical-27", "fedstaleweight-19"}
"""Claims on counts and exact equality, which are never open."""


@pytest.mark.parametrize("outcome", ["holds", "fails", "undecided"])
@pytest.mark.parametrize("name", CASES)
def test_each_verdict_can_be_met_fail_and_stay_open(name: str, outcome: str) -> None:
    judge, inputs_of = CASES[name]
    found = {each.id: each for each in judge(inputs_of(outcome))}
    assert found
    for id, each in found.items():
        if outcome == "undecided" and id in DECIDED:
            assert each.verdict == "holds"
        else:
            assert each.verdict == outcome, (id, each.scope, each.why)


@pytest.mark.parametrize("name", ["favano/fig3a", "favano/fig3b", "favano/fig7"])
def test_nothing_is_judged_at_chance(name: str) -> None:
    """Networks at chance decide nothing, however clear the order is."""
    judge, inputs_of = CASES[name]
    for outcome in ("holds", "fails"):
        inputs = inputs_of(outcome)
        chance = 0.5 if name.endswith("b") else 10.0
        small = {
            method: Sample.of(chance * (1 + np.asarray(sample.values) / 100))
            for method, sample in inputs["final"].items()
        }
        found = [x for x in judge({**inputs, "final": small}) if x.id != "favano-20"]
        assert {each.verdict for each in found} == {"undecided"}
        assert "below twice chance" in found[0].why


def test_only_one_reading_decides_table_2() -> None:
    """Another reading than that of tuned methods on standardised inputs says nothing."""
    name = f"{table2_grid.OWN}, inputs [0, 1]"
    both = {table2_grid.JUDGED: table2_inputs("holds", "FedBuff, fresh")}
    both[name] = table2_inputs("fails", "FedBuff, fresh")
    found = table2_grid.judge({"readings": both, "words": "made up", "smoke": False})
    assert {each.verdict for each in found} == {"holds"} and len(found) == 4
    assert all(name in each.measured for each in found)


def test_the_order_of_table_2_needs_both_columns_to_be_decided() -> None:
    """FAVANO is first: true in both columns, or false in one; who is second is another part."""
    inputs = table2_inputs("holds")
    cells = inputs["cells"]

    def judged(row: str, **changes: Sample) -> Verdict:
        columns = {"fast": table2.FAST, "slow": table2.SLOW}
        of_row = {**cells[row], **{columns[name]: each for name, each in changes.items()}}
        return table2.judge({**inputs, "cells": {**cells, row: of_row}})[0]

    assert judged("QuAFL", fast=runs(90.0)).verdict == "fails"
    assert judged("QuAFL", slow=runs(86.0)).verdict == "holds in part"
    assert "FedBuff second (1/9 fast)" in judged("QuAFL", slow=runs(86.0)).scope
    assert judged(table2.FAVANO, fast=runs(89.0, noisy=True)).verdict == "undecided"
    cells[table2.FRESH] = dict.fromkeys(cells[table2.FRESH], runs(10.0))
    found = judged("QuAFL", fast=runs(90.0))
    assert found.verdict == "fails" and "false: FAVANO first (2/3 fast)" in found.scope


@pytest.mark.parametrize("name", ["FedAvg", FAVANO, table2.FRESH])
def test_a_collapsed_method_on_iid_data_leaves_other_comparisons_decided(name: str) -> None:
    inputs = table2_inputs("holds")
    inputs["cells"][name][table2.IID] = runs(10.0)
    found = {each.id: each.measured.get("parts", {}) for each in table2.judge(inputs)}["favano-11"]
    assert found["all above 92 %"] is None
    assert (found["FedBuff near FAVANO"] is True) == (name == "FedAvg")
    for one, own in (("FAVANO", FAVANO), ("FedBuff", table2.FRESH)):
        known = None if name in ("FedAvg", own) else True
        assert found[f"{one} above FedAvg and QuAFL"] is known


@pytest.mark.parametrize("name", [FAVANO, "QuAFL", table2.FRESH])
@pytest.mark.parametrize("columns", [table2.COLUMNS, (table2.SLOW,)])
def test_one_collapsed_method_decides_nothing_about_itself(
    name: str, columns: tuple[str, ...]
) -> None:
    """A method at chance in Table 2 leaves open what compares it, column by column."""
    inputs = table2_inputs("holds")
    row = {**inputs["cells"][name], **dict.fromkeys(columns, runs(10.0))}
    found = {
        each.id: each.measured.get("parts", {})
        for each in table2.judge({**inputs, "cells": {**inputs["cells"], name: row}})
    }
    for column in (table2.FAST, table2.SLOW):
        where = column.removeprefix("non-IID, ")
        known = None if column in columns else True
        assert found["favano-9"][f"FAVANO first ({where})"] is known
        if name != table2.FRESH:
            assert found["favano-12"][f"FAVANO far above QuAFL ({where})"] is known
    assert found["favano-9"]["lead over FedBuff grows"] is (True if name == "QuAFL" else None)
    assert found["favano-10"]["FAVANO loses little"] is (None if name == FAVANO else True)
    on_iid = None if table2.IID in columns and name != table2.FRESH else True
    assert found["favano-11"]["FAVANO above FedAvg and QuAFL"] is on_iid


@pytest.mark.parametrize("other", ["FedBuff, lr", "QuAFL"])
def test_only_compared_methods_leave_claim_13_open(other: str) -> None:
    """A method at chance decides nothing about itself, and leaves the other comparisons."""
    inputs = fig3a_inputs("holds")
    found, _ = fig3a.judge({**inputs, "final": {**inputs["final"], other: runs(10.0)}})
    is_open = {name for name, each in found.measured["parts"].items() if each is None}
    compared = {f"{FAVANO} above QuAFL", f"{FEDBUFF} above QuAFL"}
    assert is_open == (compared if other == "QuAFL" else set())
    assert found.verdict == ("undecided" if other == "QuAFL" else "holds")


def test_steadiness_is_judged_by_an_interval_over_seeds() -> None:
    """A diverged seed has no steadiness, and two means without single runs decide nothing."""
    inputs = fig3a_inputs("holds")
    broken = Sample.of([np.nan, *inputs["unsteadiness"][FEDBUFF].values[1:]])
    noisy = runs(2.0, noisy=True)
    for changed in (broken, noisy):
        wobble = {**inputs["unsteadiness"], FEDBUFF: changed}
        found, _ = fig3a.judge({**inputs, "unsteadiness": wobble})
        assert found.measured["parts"]["FedBuff less steady"] is None
    found, _ = fig3a.judge({**inputs, "unsteadiness": None})
    assert found.scope.endswith("open: FedBuff less steady")
    accuracy = xr.DataArray([[0.0, 0.5, 0.6, 0.5], [0.0, 0.5, 0.5, 0.5]], dims=("seed", "eval"))
    data = xr.Dataset({"accuracy": accuracy, "failed": ("seed", [False, True])})
    first, second = fig3a.unsteadiness(data).values or ()
    assert first == pytest.approx(10.0) and np.isnan(second)


BY_RATE = [
    name
    for name in CASES
    if name.startswith("hierarchical/") and name.rpartition("/")[2] not in ("fig4_5", "own_rates")
]


def with_rate(first: Any, second: Any) -> Any:
    """Add what `second` has at its learning rate to `first`, as the learning rate 9."""
    if not isinstance(first, Mapping):
        return first
    if "0.5" in first:
        return {**first, "9": second["0.5"]}
    return {name: with_rate(each, second[name]) for name, each in first.items()}


@pytest.mark.parametrize("name", BY_RATE)
def test_collapsed_learning_rates_decide_nothing(name: str) -> None:
    """A rate at chance is left out, and with all rates at chance the claim stays open."""
    judge, inputs_of = CASES[name]
    names = ["run", "other"]

    def judged(ends: Mapping[str, Sample]) -> list[Verdict]:
        inputs = with_rate(inputs_of("holds"), inputs_of("fails"))
        found = judge({**inputs, "ends": dict.fromkeys(names, ends)})
        return [each for each in found if each.id not in DECIDED]

    for each in judged({"0.5": runs(80.0), "9": runs(10.0)}):
        assert each.verdict == "holds", (each.id, each.scope)
    for each in judged({"0.5": runs(80.0), "9": runs(60.0)}):  # A rate that suits no run.
        assert each.verdict == "holds", (each.id, each.scope)
    for each in judged({"0.5": runs(80.0), "9": runs(80.0)}):
        assert each.verdict in ("holds in part", "fails"), (each.id, each.scope)
    for each in judged({"0.5": runs(10.0), "9": runs(10.0)}):
        parts = each.measured["parts"]
        by_rate = {part: value for part, value in parts.items() if "collapsed" in part}
        assert by_rate and set(by_rate.values()) == {None}, each.id
        if set(parts) == set(by_rate):
            assert each.verdict == "undecided", (each.id, each.scope)


def test_text_is_judged_above_twice_its_most_frequent_character() -> None:
    judge, inputs_of = CASES["hierarchical/fig11"]
    inputs = {**inputs_of("holds"), "ends": {fig11.EQUAL: {"0.5": runs(27.0)}}}
    for chance, verdict, collapsed in ((13.0, "holds", 0), (16.3, "undecided", 10)):
        (found,) = judge({**inputs, "chance": chance})
        spread = found.measured["accuracy at T, %"][fig11.EQUAL]["0.5"]
        assert (found.verdict, spread["collapsed"]) == (verdict, collapsed)


def test_few_seeds_or_a_smaller_problem_hold_in_part() -> None:
    judge, inputs_of = CASES["hierarchical/fig3"]
    for changes, words in (
        ({"seeds": 3}, "reduced: 3 seeds in place of 10"),
        ({"reduced": "mnist in place of cifar10"}, "reduced: mnist in place of cifar10"),
    ):
        (found,) = judge({**inputs_of("holds"), **changes})
        assert (found.verdict, found.scope) == ("holds in part", words)
        no = "not on the substitute" if "reduced" in changes else "fails"
        assert judge({**inputs_of("fails"), **changes})[0].verdict == no


def test_a_narrower_network_is_named_in_verdicts_on_accuracy() -> None:
    panel = {**fig2_inputs("holds")["cifar10"], "reduced": "narrow"}
    panel["final"] = {
        name: {group: Sample.of(each.values[:5]) for group, each in row.items()}
        for name, row in panel["final"].items()
    }
    found = {each.id.rpartition("-")[2]: each for each in fig2.judge({"cifar10": panel})}
    few = "narrow, 5 seeds in place of 10"
    assert found["9"].scope == found["11"].scope == f"reduced: {few}"
    assert found["19"].scope == "reduced: narrow"  # Divergence does not ask for ten seeds.


@pytest.mark.parametrize(("half", "expected"), [(0.05, True), (0.5, None)])
def test_leads_grow_by_more_than_their_intervals(half: float, expected: Any) -> None:
    leads = {s: {"0.5": Interval(1 + float(s) / 20, half)} for s in ("5", "10", "20")}
    (found,) = fig13.judge({**HOW, "leads": leads})
    assert found.measured["parts"]["more for larger S at lr 0.5"] is expected


def test_runs_at_chance_at_their_own_rates_decide_nothing() -> None:
    inputs = own_rates_inputs("holds")
    panels = {
        name: {**each, "ends": dict.fromkeys(each["ends"], runs(15.0))}
        for name, each in inputs["panels"].items()
    }
    found = own_rates.judge({"panels": panels})
    assert {each.verdict for each in found} == {"undecided"}


def test_each_counted_claim_on_accuracies_is_tried() -> None:
    """With both outcomes: no claim of a paper is judged by a function that is not in `CASES`."""
    tried = {each.id for judge, inputs_of in CASES.values() for each in judge(inputs_of("holds"))}
    judged = {
        each["id"]
        for entry in ledger.entries()
        if entry.get("inputs") is not None and not entry["experiment"].startswith(("fald", "sel"))
        for each in entry["claims"]
    }
    assert judged <= tried


def test_smoke_runs_are_no_evidence() -> None:
    for name, (judge, inputs_of) in CASES.items():
        inputs = dict(inputs_of("holds"))
        if name == "fedstaleweight/fig2":
            inputs = {key: {**panel, "smoke": True} for key, panel in inputs.items()}
        elif name == "hierarchical/own_rates":
            panels = {key: {**panel, "smoke": True} for key, panel in inputs["panels"].items()}
            inputs = {"panels": panels}
        found = judge({**inputs, "smoke": True} if "smoke" in inputs else inputs)
        assert {each.verdict for each in found if each.id not in DECIDED} == {"not run"}, name
