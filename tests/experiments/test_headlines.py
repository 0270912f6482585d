"""Verdicts on the papers' short statements, on made-up numbers on either side of the criterion."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments.fald import extensions as fald_extensions
from experiments.fald import fig3_4
from experiments.fald import headlines as fald
from experiments.favano import headlines as favano
from experiments.favano import lattice as favano_lattice
from experiments.favano import mean_model
from experiments.fedem import clocks, reduction
from experiments.fedem import extensions as fedem_extensions
from experiments.fedem import headlines as fedem
from experiments.fedstaleweight import disturbed, rates
from experiments.fedstaleweight import headlines as fedstaleweight
from experiments.harness import Arguments, Verdict
from experiments.harness.statistics import FAILS, HOLDS
from experiments.hierarchical import headlines as hierarchical
from tests.conftest import slow_but
from tests.experiments.verdict_rows import Path, assert_verdict, changed, numbers


def slow_share(first: float, early: float) -> dict[str, Any]:
    """Make FedBuff's shares of slow clients: at the start, in ten windows, and settled."""
    windows = {"mean": [early] * 10, "error": [1e-3] * 10}
    return {
        "first": {"mean": first, "error": 1e-3},
        "windows": windows,
        "settled": {"mean": 0.5},
    }


def times(**ours: float) -> dict[str, dict[str, float]]:
    """Make times to a target, of rounds 10 and of the asynchronous system as given."""
    return {
        speeds: dict.fromkeys(clocks.METHODS, 10.0) | {clocks.OURS: each}
        for speeds, each in zip(clocks.SPEEDS, ours.values(), strict=True)
    }


def influences(slow: tuple[float, ...]) -> dict[str, Any]:
    """Make influences that are as expected."""
    return {
        disturbed.name_of(lost, share): {
            way: {"slow": each, "throttled": 0.08 * share}
            for way in ("FedStaleWeight", "buffer mean", "expected")
        }
        for lost, each in zip(disturbed.LOSSES, slow, strict=True)
        for share in disturbed.THROTTLES
    }


def best_of(named: float) -> dict[str, Any]:
    """Make p-values that no other K is better, of the named K and of all others."""
    doubts, others = (
        {
            panel: {f"{k}": p if k in names else 0.5 for k in (1, 10, 20, 50, 100)}
            for panel, names in fig3_4.NAMED.items()
        }
        for p in (named, 1 - named)
    )
    best = dict.fromkeys(doubts, 1)
    size = {"seeds": 10, "rounds": 2000, "words": ""}
    return {
        "best": best,
        "p that no other is better": doubts,
        "p that it is not best": others,
        **size,
    }


GOOD: dict[str, tuple[Callable[[Any], Verdict], dict[str, Any]]] = {
    "favano-32": (favano.judge_start, {"blocked": slow_share(0.01, 0.2)}),
    "favano-33": (favano.judge_floor, {"2 bits": {"square": 1.0, "error": 0.1, "floor": 2.0}}),
    "favano-34": (favano.JUDGES[34], {"printed": 0.5, "corrected": 0.5}),
    "fald-24": (fald.JUDGES[24], {"alike": 0.5, "apart": 0.9}),
    "fald-25": (fig3_4.judge_named, best_of(0.99)),
    "fald-26": (
        fald.judge_best,
        {"best": [3, 300], "power": 0.5, "Fig. 1": {"10": 5.0, "3000": 9.0}, "root": 5.8},
    ),
    "fald-27": (
        fald.judge_everyone,
        {"floors": [5e-3, 3e-3, 1e-3, 5e-4, 1e-4], "rounds": [*range(5)]},
    ),
    "fedem-26": (fedem.JUDGES[26], {"largest share": 0.9, "cases": 1}),
    "fedem-27": (
        fedem.JUDGES[27],
        {"powers": {"omega": 0.5, "n": 0.5}, "with whole batches": 1.0},
    ),
    "fedem-28": (fedem.JUDGES[28], {"cases": {"dithering": 2.0}, "one block": {"10": 1.5}}),
    "fedem-29": (
        fedem.JUDGES[29],
        {"largest share": 0.9, "standard errors off": 2.0, "draws": 10},
    ),
    "fedstaleweight-23": (
        fedstaleweight.JUDGES[23],
        {"influence": {"1": 0.066, "0.1": 0.067}, "share": 1 / 15},
    ),
    "fedstaleweight-24": (
        fedstaleweight.judge_synchronous,
        {"largest staleness": 0.0, "weights off": 0.0, "models off": 1e-7},
    ),
    "fedstaleweight-25": (
        fedstaleweight.judge_divergence,
        {"normalised": 0.7, "not normalised": 0.3},
    ),
    "fedem-30": (clocks.judge, times(constant=10.0, exponential=5.0, slow=4.0)),
    "fedstaleweight-26": (disturbed.judge, influences(slow=(0.2, 0.18, 0.12))),
    "fedem-31": (
        reduction.judge,
        {
            "power": {
                method: {field: {"mean": mean, "half": 0.05} for field in reduction.FIELDS}
                for method, mean in (("VR-FedEM", 0.0), ("VR-DIANA", -0.5))
            },
            "best": {
                method: {field: {"25": 1.0, "400": 1.0} for field in reduction.FIELDS}
                for method in reduction.METHODS
            },
            "seeds": dict.fromkeys(reduction.METHODS, 6),
        },
    ),
    "fedem-32": (fedem_extensions.JUDGES[32], {"share of the bound": {"9": 0.9}, "seeds": 5}),
    "fedem-33": (fedem_extensions.JUDGES[33], {"share of the bound": {"9": 0.9}, "seeds": 5}),
    "fedem-34": (
        fedem_extensions.JUDGES[34],
        {"zeros": 2, "other zeros": 0, "largest error": 1e-12, "seeds": 5},
    ),
    "fald-28": (
        fald_extensions.judge_random,
        {
            "errors": {"0.1": 0.1, "0.01": 0.01, "0.001": 0.001},
            "biases over those of every K": {"0.001": 2.01},
            "standard errors off": [1.0, 2.0],
            "chains": 10,
        },
    ),
    "fald-29": (fald_extensions.judge_fedpa, {"distance": {"fedpa": 0.1, "fedavg": 0.3}}),
    "fald-30": (
        fald_extensions.judge_budget,
        {
            "by epsilon": {
                "10": {"rho": 0.5, "step size": 1e-7, "error": 0.8, "error with rho alone": 1.0}
            }
        },
    ),
    "fedstaleweight-27": (rates.JUDGES[27], {"left over right": {"falling, 1": 0.9}}),
    "fedstaleweight-28": (
        rates.judge_influence,
        {
            "influence": {
                "AsyncFedED": {"mean": 0.06, "half": 0.005},
                "one rate": {"mean": 0.07, "half": 0.001},
            },
            "seeds": 6,
        },
    ),
    "favano-39": (
        favano_lattice.judge,
        {
            "accuracy": {
                method: {
                    column: {"values": [base + i / 10 for i in range(10)]}
                    for column in favano_lattice.COLUMNS
                }
                for method, base in zip(favano_lattice.METHODS, (90.0, 60.0, 60.0), strict=True)
            },
            "bits, lattice over full": 0.3,
            "words": "",
        },
    ),
    "favano-37": (
        mean_model.judge_mean,
        {
            "accuracy": {
                mean_model.SERVER: {"values": [90.0, 91.0, 92.0]},
                mean_model.MEAN: {"values": [90.1, 91.0, 92.1]},
            },
            "largest distance": 0.05,
        },
    ),
    "favano-38": (
        mean_model.judge_lattice,
        {
            "accuracy": {
                mean_model.SERVER: {"values": [90.0, 91.0, 92.0]},
                mean_model.WHOLE: {"values": [80.0, 81.0, 82.0]},
                mean_model.LATTICE: {"values": [80.0, 81.1, 82.1]},
            },
            "uplink bits, lattice over full": 0.3,
        },
    ),
    "hierarchical-37": (
        hierarchical.judge,
        {"closest": {"1": {"S": 5.0, "apart": 1.0, "fewer": 30.0}}, "bounds": [2.0, 2.0]},
    ),
    "hierarchical-38": (
        hierarchical.JUDGES[38],
        {"apart": {"own rates": 1.2, "one rate": 5.0}, "largest": [0.02, 0.03]},
    ),
}
"""By claim: the function that judges it, and numbers by which it holds."""
CHANGED: list[tuple[str, Path, Any, str]] = [
    ("fedem-30", ("a slow third", "asynchronous"), 9.0, "fails"),
    ("fedem-30", ("constant", "asynchronous"), 5.0, "holds in part, false: constant"),
    ("fedstaleweight-26", ("0.2 lost, 1 of the rate", "expected", "slow"), 0.2, "fails"),
    (
        "fedstaleweight-26",
        ("0 lost, 0.5 of the rate", "FedStaleWeight", "throttled"),
        0.1,
        "holds in part, false: throttling",
    ),
    ("favano-37", ("accuracy", mean_model.MEAN, "values"), [80.0, 81.1, 82.0], "fails"),
    ("favano-37", ("largest distance",), 0.2, "holds in part, false: distance"),
    ("favano-38", ("accuracy", mean_model.LATTICE, "values"), [70.0, 71.1, 72.0], "fails"),
    ("favano-38", ("uplink bits, lattice over full",), 0.6, "holds in part, false: fewer bits"),
    ("fedem-31", ("power", "VR-FedEM", reduction.FIELDS[1], "mean"), -0.3, "fails"),
    ("fedem-31", ("power", "VR-FedEM", reduction.FIELDS[0], "half"), 0.2, "undecided"),
    (
        "fedem-31",
        ("power", "VR-DIANA", reduction.FIELDS[1], "mean"),
        0.0,
        "holds in part, false: VR-DIANA",
    ),
    ("fedem-32", ("share of the bound", "9"), 1.1, "fails"),
    ("fedem-33", ("share of the bound", "9"), 1.1, "fails"),
    ("fedem-34", ("other zeros",), 1, "fails"),
    ("fedem-34", ("zeros",), 0, "fails"),
    ("fald-28", ("errors", "0.001"), 0.09, "fails"),
    ("fald-28", ("biases over those of every K", "0.001"), 1.0, "holds in part, false: twice"),
    ("fald-29", ("distance", "fedpa"), 0.2, "fails"),
    ("fald-30", ("by epsilon", "10", "error"), 0.95, "fails"),
    ("fedstaleweight-27", ("left over right", "falling, 1"), 1.1, "fails"),
    ("fedstaleweight-28", ("influence", "AsyncFedED", "mean"), 0.3, "fails"),
    (
        "fedstaleweight-28",
        ("influence", "one rate", "mean"),
        0.03,
        "holds in part, false: not above",
    ),
    (
        "favano-39",
        ("accuracy", favano_lattice.LATTICE, favano_lattice.COLUMNS[0], "values"),
        [91.0 + i / 10 for i in range(10)],
        "fails",
    ),
    ("favano-39", ("bits, lattice over full",), 0.6, "holds in part, false: fewer bits"),
    ("favano-32", ("blocked", "first", "mean"), 0.2, "fails"),
    ("favano-32", ("blocked", "first", "mean"), 0.049, "undecided"),
    ("favano-32", ("blocked", "windows", "mean", 3), 0.5, "holds in part, false: not settled"),
    ("favano-33", ("2 bits", "square"), 3.0, "fails"),
    ("favano-33", ("2 bits", "square"), 1.8, "undecided"),
    ("favano-34", ("printed",), 2.0, "fails"),
    ("fald-24", ("apart",), 1.1, "fails"),
    (
        "fald-25",
        ("p that no other is better", "mnist, brier", "20"),
        1e-5,
        "fails, false: mnist, b",
    ),
    ("fald-25", ("p that it is not best", "mnist, brier", "20"), 0.1, "undecided"),
    ("fald-25", ("p that no other is better", "mnist, accuracy", "50"), 1e-5, "holds"),
    ("fald-26", ("power",), 0.6, "fails"),
    ("fald-26", ("Fig. 1", "3000"), 1.0, "holds in part, false: on Fig. 1"),
    ("fald-27", ("floors", 4), 4e-4, "fails"),
    ("fald-27", ("rounds", 0), 2, "fails"),
    ("fedem-26", ("largest share",), 1.1, "fails"),
    ("fedem-27", ("powers", "n"), 0.6, "fails"),
    ("fedem-28", ("cases", "dithering"), 0.9, "fails"),
    ("fedem-28", ("one block", "10"), 0.9, "holds in part, false: one block"),
    ("fedem-29", ("largest share",), 1.1, "fails"),
    ("fedem-29", ("standard errors off",), 5.1, "fails"),
    ("fedstaleweight-23", ("influence", "0.1"), 0.05, "fails"),
    ("fedstaleweight-24", ("weights off",), 1e-3, "fails"),
    ("fedstaleweight-24", ("models off",), 1e-3, "fails"),
    ("fedstaleweight-24", ("largest staleness",), 1.0, "undecided"),
    ("fedstaleweight-25", ("not normalised",), None, "fails"),
    ("hierarchical-37", ("closest", "1", "apart"), 6.0, "fails"),
    ("hierarchical-37", ("closest", "1", "fewer"), 10.0, "fails"),
    ("hierarchical-37", ("bounds", 1), 1.0, "holds in part, false: the bound"),
    ("hierarchical-38", ("apart", "own rates"), 1.6, "fails"),
    ("hierarchical-38", ("apart", "one rate"), 2.9, "fails"),
    ("hierarchical-38", ("largest", 1), 1.1, "holds in part, false: at most 1"),
]
"""Claim, place of a number, another number, and the verdict on it or a part of its scope."""


def tried() -> list[Verdict]:
    """Judge all made-up numbers."""
    return [judge(found) for judge, found in GOOD.values()] + [
        GOOD[id][0](changed(GOOD[id][1], path, value)) for id, path, value, _ in CHANGED
    ]


@pytest.mark.parametrize("id", GOOD)
def test_criterion_is_met(id: str) -> None:
    judge, found = GOOD[id]
    verdict = judge(found)
    assert (verdict.id, verdict.verdict) == (id, HOLDS)
    assert id != "fedstaleweight-25" or verdict.seeds == 2


@pytest.mark.parametrize(("id", "path", "value", "expected"), CHANGED)
def test_one_number_decides(id: str, path: Path, value: Any, expected: str) -> None:
    judge, found = GOOD[id]
    assert_verdict(judge(changed(found, path, value)), expected)


def test_nothing_holds_on_what_is_not_a_number() -> None:
    """Numbers that are told only, and panels of p-values, are left out."""
    told = {"best", "corrected", "cases", "draws", "S", "with whole batches", "seeds", "rounds"}
    told |= {"chains", "rho", "step size"}
    for id, (judge, found) in GOOD.items():
        for path in numbers(found):
            if id != "fald-25" and (id, path[0]) != ("fald-27", "rounds") and not told & {*path}:
                verdict = judge(changed(found, path, np.nan)).verdict
                assert verdict not in (HOLDS, FAILS), (id, path)


MODULES = {
    each.__name__.split(".")[1]: each
    for each in (fald, favano, fedem, fedstaleweight, hierarchical)
}


@pytest.mark.few(1)
@pytest.mark.parametrize("paper", slow_but(["fald", "hierarchical"], list(MODULES)))
def test_smoke_run(paper: str) -> None:
    outcome = MODULES[paper].run(Arguments(smoke=True))
    assert [each.id for each in outcome.verdicts] == [f"{paper}-{n}" for n in MODULES[paper].JUDGES]
    assert all(each.why for each in outcome.verdicts)
