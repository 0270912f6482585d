"""FAVANO's Table 2 and Figs. 1, 2 and 5: test accuracy on MNIST, four methods, three columns.

In addition to the paper's rows it has both readings of FedBuff's local learning rate under three
readings of its clock (blocked; own finish; running times drawn afresh at each server step), both
reweightings of FAVANO, and FAVANO with alpha = 1: an ablation in which QuAFL's clients adopt the
server's model, without reweighting. Ten seeds by default.

Figs. 1, 2 and 5 are drawn from the same runs, Fig. 1 with 2/3 fast clients, the others with 1/9.
Fig. 1 shows the asynchronous methods far above FedAvg, and QuAFL poor; Fig. 2 FedBuff levelling off
below FAVANO, and the client variance sum_i ||w_i - w||^2 over the base models that clients hold;
Fig. 5 speed-ups in time. It does not say which of its panels is which: loss and accuracy are drawn
against time, local steps delivered to the server, and server steps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from experiments import harness
from experiments.favano import setup
from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.setup import COLUMNS, METHODS, Runs
from experiments.harness import Arguments, Outcome, Sample, Verdict, difference, lead, rule

IID, FAST, SLOW = COLUMNS
CELLS = tuple(f"{method} | {column}" for method in METHODS for column in COLUMNS)
"""The cells of the table, of which single ones can be run."""

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "FedAvg": {
        "IID": (93.4, 0.3),
        "non-IID, 2/3 fast": (38.7, 7.7),
        "non-IID, 1/9 fast": (44.8, 6.9),
    },
    "QuAFL": {
        "IID": (92.3, 0.9),
        "non-IID, 2/3 fast": (40.7, 6.7),
        "non-IID, 1/9 fast": (45.5, 4.0),
    },
    "FedBuff": {
        "IID": (96.0, 0.1),
        "non-IID, 2/3 fast": (85.1, 3.2),
        "non-IID, 1/9 fast": (67.3, 5.5),
    },
    "FAVANO": {
        "IID": (95.1, 0.1),
        "non-IID, 2/3 fast": (88.9, 0.9),
        "non-IID, 1/9 fast": (87.3, 2.3),
    },
}
"""Table 2 of the paper: final test accuracy in percent, mean and standard deviation over 10 runs.
"""


JUDGED = ("FedAvg", "QuAFL", "FedBuff, lr", "FedBuff, fresh, lr", "FAVANO, stochastic")
"""The methods whose variances and times claims 21 and 22 compare."""
BANDS = "10 and 90 % quantiles over seeds"
TARGET = CLAIMS[22].criterion.target
TIMES = f"virtual time to {TARGET:.0%}"


def run(arguments: Arguments) -> Outcome:
    """Run all cells, draw the figures, and judge claims 9 to 12, 21, 22, 24 and 31."""
    ran = setup.runs(arguments, setup.MNIST, list(COLUMNS), METHODS)
    curves, inputs = setup.as_groups(ran.curves), inputs_of(ran)
    spread = {
        f"{method}, {column}": sample
        for method, row in inputs["cells"].items()
        for column, sample in row.items()
    }
    spreads = harness.spread_table(spread, CHANCE)
    if arguments.adds:
        return Outcome(curves, {}, [], ran.config, spreads, inputs)
    slow = {name: data for name, data in ran.of(SLOW).items() if name in JUDGED}
    inputs |= figures_of(slow)
    variance = {"squared distances of clients' models, summed": (slow, "client_variance", "time")}
    how: dict[str, Any] = {"title": setup.titled(ran, SLOW), "end": ran.config["time_budget"]}
    figures = {
        "accuracy.png": setup.by_reading(ran, IID),
        "favano_fig1.png": setup.by_reading(ran, FAST),
        "favano_fig2_left.png": setup.by_reading(ran, SLOW),
        "favano_fig2_right.png": setup.side_by_side(variance, columns=1, **how),
        "favano_fig5.png": setup.against_all(slow, **how),
    }
    return Outcome(curves, figures, judge(inputs), ran.config, spreads, inputs)


def figures_of(slow: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Return the numbers behind Figs. 2 right and 5: variances at the end, and times."""
    last = {name: data.client_variance.isel(eval=-1).values for name, data in slow.items()}
    return {
        "client variance": {
            "variance": {name: float(values.mean()) for name, values in last.items()},
            BANDS: {name: np.quantile(x, (0.1, 0.9)).tolist() for name, x in last.items()},
        },
        "times": {TIMES: setup.times_to(slow, TARGET)},
    }


def inputs_of(ran: Runs) -> dict[str, Any]:
    """Return the final accuracies of every cell, per seed, and how they were run."""
    cells: dict[str, dict[str, Sample]] = {}
    for name, data in ran.curves.items():
        method, column = name.split(" | ")
        cells.setdefault(method, {})[column] = setup.final_sample(data)
    words = ran.config["dataset"]
    words += f"; reduced: {ran.config['reduced']}" if ran.config["reduced"] else ""
    return {"cells": cells, "words": words, "smoke": ran.config["smoke"]}


CHANCE = 10.0
"""Accuracy of chance, in percent."""
Parts = dict[str, bool | None]
"""Whether each part of a claim is true, None if that is undecided."""
FAVANO = "FAVANO, stochastic"
FRESH = "FedBuff, fresh, lr"
"""FedBuff with the counter of App. C.2, which is reset at each server step, at the printed rate."""
DECIDING = {9: "FAVANO first", 10: "FAVANO loses", 11: "", 12: "FAVANO far above"}
"""How the names of the deciding parts begin, by claim."""


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge all claims at the printed rate, with FedBuff's running times drawn afresh."""
    cells = read_cells(inputs)
    numbers = (*DECIDING, 21, 22, 24, 31)
    if inputs["smoke"]:
        return [verdict(number, means(cells), harness.NOT_RUN, SMOKE) for number in numbers]
    seeds, *more = sorted({sample.seeds for row in cells.values() for sample in row.values()})
    words = f"{inputs['words']}, {seeds} seeds"
    words += "".join(f", {number} of some cells" for number in more)
    found = parts_of(cells, FRESH)
    first = {
        f"{name} above FedAvg": harness.unless_collapsed(
            lead(cells[name][FAST], cells["FedAvg"][FAST]).above(harness.LEAST_LEAD),
            [cells[name][FAST]],
            CHANCE,
        )
        for name in (FAVANO, FRESH, "QuAFL")
    }
    favano, fedbuff = cells[FAVANO][SLOW], cells[FRESH][SLOW]
    behind = lead(favano, fedbuff)
    far = behind.above(CLAIMS[31].criterion.far)
    below = {"far below FAVANO": harness.unless_collapsed(far, [favano, fedbuff], CHANCE)}
    return [
        *judged(found, {"final accuracy, %": means(cells)}, cells, seeds, words, FRESH),
        verdict(
            24,
            {"final accuracy, %": means(cells), "parts": first},
            rule(first, harness.reduction(seeds), harness.begins("FAVANO")),
            f"{told(24, cells, FRESH)}; {words}",
        ),
        verdict(
            31,
            {"FAVANO over FedBuff": behind._asdict(), "parts": below},
            rule(below, harness.reduction(seeds)),
            f"FAVANO {favano.mean:.1f} %, FedBuff {fedbuff.mean:.1f} %; {behind} points",
        ),
        judge_variance(inputs["client variance"]),
        judge_times(inputs["times"]),
    ]


def judge_variance(found: Mapping[str, Any]) -> Verdict:
    """Judge claim 21 by the quantiles over seeds of the variances at the end."""
    bands = found[BANDS]
    parts = {
        f"below {name}": harness.unless_unknown(bands[FAVANO][1] < band[0], [bands[FAVANO], band])
        for name, band in bands.items()
        if name != FAVANO
    }
    shown = ", ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in bands.items())
    ruling = rule(parts, deciding=harness.begins(f"below {FRESH}"))
    return verdict(21, found, ruling, f"client variance at the end, {BANDS}: {shown}")


def judge_times(found: Mapping[str, setup.Times]) -> Verdict:
    """Judge claim 22: who reaches the accuracy before FedAvg does."""
    ruling = rule(setup.before_fedavg(found[TIMES]), deciding=harness.begins("FAVANO"))
    return verdict(22, found, ruling, f"{TIMES}, of T = 5000: {setup.told(found[TIMES])}")


def judged(
    parts: Mapping[int, Parts],
    measured: Mapping[str, Any],
    cells: Mapping[str, Mapping[str, Sample]],
    seeds: int,
    words: str,
    fedbuff: str,
    first_claim: int = 9,
) -> list[Verdict]:
    """Give the verdicts on claims 9 to 12, or on those of the same order, from their parts.

    `fedbuff` is the reading of FedBuff that is judged, and `first_claim` the number of the first
    claim.
    """
    return [
        verdict(
            number - 9 + first_claim,
            {**measured, "parts": parts[number]},
            rule(parts[number], harness.reduction(seeds), harness.begins(first)),
            f"{told(number, cells, fedbuff)}; {words}",
        )
        for number, first in DECIDING.items()
    ]


def read_cells(inputs: Mapping[str, Any]) -> dict[str, dict[str, Sample]]:
    """Read final accuracies by method and column as JSON keeps them."""
    return {
        method: {column: Sample.read(found) for column, found in row.items()}
        for method, row in inputs["cells"].items()
    }


def parts_of(cells: Mapping[str, Mapping[str, Sample]], fedbuff: str) -> dict[int, Parts]:
    """Judge the parts of claims 9 to 12 with one reading of FedBuff."""
    return {
        9: _order(cells, fedbuff),
        10: _drops(cells, fedbuff),
        11: _on_iid(cells, fedbuff),
        12: _gap(cells),
    }


def _order(cells: Mapping[str, Mapping[str, Sample]], reading: str) -> Parts:
    """Judge claim 9: who is first and second by column, and that FAVANO's lead grows."""
    favano, quafl, fedavg, fedbuff = (cells[name] for name in (FAVANO, "QuAFL", "FedAvg", reading))
    parts: Parts = {}
    for words, best, others in (
        ("FAVANO first", favano, (fedbuff, quafl, fedavg)),
        ("FedBuff second", fedbuff, (quafl, fedavg)),
    ):
        for column in (FAST, SLOW):
            parts[f"{words} ({column.removeprefix('non-IID, ')})"] = harness.all_of(
                harness.ahead(best[column], other[column], CHANCE) for other in others
            )
    parts["lead over FedBuff grows"] = harness.unless_collapsed(
        difference((favano[SLOW], fedbuff[SLOW]), (favano[FAST], fedbuff[FAST])).above(),
        [each[column] for each in (favano, fedbuff) for column in (FAST, SLOW)],
        CHANCE,
    )
    return parts


def _drops(cells: Mapping[str, Mapping[str, Sample]], reading: str) -> Parts:
    """Judge claim 10: FAVANO's loss and FedBuff's."""
    marks = CLAIMS[10].criterion
    favano, fedbuff = cells[FAVANO], cells[reading]
    return {
        "FAVANO loses little": harness.ahead(favano[SLOW], favano[FAST], CHANCE, -marks.favano),
        "FedBuff loses much": harness.ahead(fedbuff[FAST], fedbuff[SLOW], CHANCE, marks.fedbuff),
    }


def _on_iid(cells: Mapping[str, Mapping[str, Sample]], reading: str) -> Parts:
    """Judge claim 11, whose conditions on IID data all decide."""
    marks = CLAIMS[11].criterion
    favano, quafl, fedavg, fedbuff = (
        cells[name][IID] for name in (FAVANO, "QuAFL", "FedAvg", reading)
    )
    everyone = (favano, fedavg, quafl, fedbuff)
    high = harness.all_of(each.interval().above(marks.least) for each in everyone)
    near = lead(fedbuff, favano).within(marks.apart)
    ahead = {
        f"{name} above FedAvg and QuAFL": harness.all_of(
            harness.ahead(best, each, CHANCE) for each in (fedavg, quafl)
        )
        for name, best in (("FAVANO", favano), ("FedBuff", fedbuff))
    }
    return ahead | {
        f"all above {marks.least} %": harness.unless_collapsed(high, everyone, CHANCE),
        "FedBuff near FAVANO": harness.unless_collapsed(near, (fedbuff, favano), CHANCE),
    }


def _gap(cells: Mapping[str, Mapping[str, Sample]]) -> Parts:
    """Judge claim 12 in both non-IID columns."""
    favano, quafl, adopting = (cells[name] for name in (FAVANO, "QuAFL", "FAVANO, alpha = 1"))
    far = CLAIMS[12].criterion.lead
    parts: Parts = {}
    for column in (FAST, SLOW):
        for words, pair, least in (
            ("FAVANO far above QuAFL", (favano[column], quafl[column]), far),
            ("alpha = 1 above QuAFL", (adopting[column], quafl[column]), harness.LEAST_LEAD),
        ):
            parts[f"{words} ({column.removeprefix('non-IID, ')})"] = harness.ahead(
                *pair, CHANCE, least
            )
    return parts


def told(number: int, cells: Mapping[str, Mapping[str, Sample]], fedbuff: str) -> str:
    """Return the numbers behind the verdict on a claim: leads with intervals, and all means."""
    columns = {11: (IID,), 24: (FAST,)}.get(number, (FAST, SLOW))
    others = {9: (fedbuff,), 10: (), 11: (fedbuff, "FedAvg", "QuAFL"), 12: ("QuAFL",)}
    leads = "".join(
        "FAVANO over "
        f"{other} {' and '.join(str(lead(cells[FAVANO][x], cells[other][x])) for x in columns)}, "
        for other in others.get(number, ("FedAvg",))
    )
    methods = [
        name
        for name in cells
        if (number != 12 or not name.startswith("FedBuff")) and name != "FAVANO, deterministic"
    ]
    rows = [
        f"{name} {' and '.join(str(cells[name][column]) for column in columns)}"
        for name in methods
        if number == 12 or name != "FAVANO, alpha = 1"
    ]
    return f"{leads}{' and '.join(columns)}, % ± standard deviation: {', '.join(rows)}"


def means(cells: Mapping[str, Mapping[str, Sample]]) -> dict[str, dict[str, Any]]:
    """Return what is known of each cell."""
    return {
        method: {column: sample.described(CHANCE) for column, sample in row.items()}
        for method, row in cells.items()
    }
