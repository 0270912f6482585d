"""FAVANO's Table 2: final test accuracy on MNIST, four methods, three columns.

In addition to the paper's rows it has both readings of FedBuff's local learning rate under three
readings of its clock (blocked; own finish; running times drawn afresh at each server step), both
reweightings of FAVANO, and FAVANO with alpha = 1: an ablation in which QuAFL's clients adopt the
server's model, without reweighting. Ten seeds by default.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.setup import (
    COLUMNS,
    METHODS,
    MNIST,
    Runs,
    as_groups,
    final_sample,
    percent,
    picture,
    runs,
    size_words,
)
from experiments.harness import (
    NOT_RUN,
    Arguments,
    Outcome,
    Sample,
    Verdict,
    all_of,
    difference,
    lead,
    reduction,
    rule,
    spread_table,
    table,
    unless_collapsed,
)

IID, FAST, SLOW = COLUMNS

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


Cells = dict[str, dict[str, tuple[float, float]]]
"""Mean and standard deviation in percent, by method and column."""


def run(arguments: Arguments) -> Outcome:
    """Run all cells, compare with the paper, judge claims 9 to 12."""
    ran = runs(arguments, MNIST, list(COLUMNS), METHODS)
    curves = ran.curves
    cells: Cells = {
        method: {column: percent(curves[f"{method} | {column}"]) for column in COLUMNS}
        for method in METHODS
    }
    rows = [
        [
            method,
            *(_cell(cells[method][column]) for column in COLUMNS),
            *_facts(curves[f"{method} | {FAST}"]),
        ]
        for method in METHODS
    ]
    rows += [
        [f"{method} (paper)", *(_cell(PAPER[method][column]) for column in COLUMNS), "", ""]
        for method in PAPER
    ]
    figures = {
        f"accuracy_{i}.png": picture(
            {m: curves[f"{m} | {column}"] for m in METHODS}, "accuracy", title=ran.title(column)
        )
        for i, column in enumerate(COLUMNS)
    }
    header = ["final accuracy, %", *COLUMNS, "server steps", "local steps"]
    inputs = inputs_of(ran)
    spread = {
        f"{method}, {column}": sample
        for method, row in inputs["cells"].items()
        for column, sample in row.items()
    }
    text = f"{table(header, rows)}\n\n{spread_table(spread, CHANCE)}"
    return Outcome(as_groups(curves), figures, judge(inputs), ran.config, text, inputs)


def inputs_of(ran: Runs) -> dict[str, Any]:
    """Return the numbers that `judge` needs: the final accuracies of every cell, per seed."""
    cells = {
        method: {column: final_sample(ran.curves[f"{method} | {column}"]) for column in COLUMNS}
        for method in METHODS
    }
    return {"cells": cells, "words": size_words(ran), "smoke": ran.config["smoke"]}


CHANCE = 10.0
"""Accuracy of chance, in percent."""
Parts = dict[str, bool | None]
"""Whether each part of a claim is true, None if that is undecided."""


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 9 to 12.

    The paper settles neither FedBuff's clock nor its learning rate, so the parts of a claim that
    are about FedBuff are judged in every reading that was run. A reading in which FedBuff has
    collapsed to chance decides nothing.

    Args:
      inputs: What `inputs_of` returns.
    """
    cells = read_cells(inputs)
    if inputs["smoke"]:
        return [verdict(number, means(cells), NOT_RUN, SMOKE) for number in (9, 10, 11, 12)]
    seeds = min(sample.seeds for row in cells.values() for sample in row.values())
    return [
        verdict(
            number,
            {"final accuracy, %": means(cells), "parts": parts},
            rule(parts, reduction(seeds)),
            f"{told(number, cells)}; {inputs['words']}",
        )
        for number, parts in parts_of(cells).items()
    ]


def read_cells(inputs: Mapping[str, Any]) -> dict[str, dict[str, Sample]]:
    """Read final accuracies by method and column as JSON keeps them."""
    return {
        method: {column: Sample.read(found) for column, found in row.items()}
        for method, row in inputs["cells"].items()
    }


def parts_of(cells: Mapping[str, Mapping[str, Sample]]) -> dict[int, Parts]:
    """Judge the parts of claims 9 to 12.

    Args:
      cells: Final accuracies in percent by method and column. Every method whose name starts with
        "FedBuff" is a reading of FedBuff.
    """
    readings = [method for method in cells if method.startswith("FedBuff")]
    return {
        9: _order(cells, readings),
        10: _drops(cells, readings),
        11: _on_iid(cells, readings),
        12: _gap(cells),
    }


def _order(cells: Mapping[str, Mapping[str, Sample]], readings: Sequence[str]) -> Parts:
    """Judge claim 9 in each reading of FedBuff: the order by column, and that the lead grows."""
    favano, quafl, fedavg = (cells[name] for name in ("FAVANO, stochastic", "QuAFL", "FedAvg"))
    parts: Parts = {}
    for reading in readings:
        fedbuff = cells[reading]
        for column in (FAST, SLOW):
            in_order = [
                lead(higher[column], lower[column]).above()
                for higher, lower in ((favano, fedbuff), (fedbuff, quafl), (fedbuff, fedavg))
            ]
            parts[f"{reading} in order ({column.removeprefix('non-IID, ')})"] = unless_collapsed(
                all_of(in_order),
                [each[column] for each in (favano, fedbuff, quafl, fedavg)],
                CHANCE,
            )
        parts[f"lead over {reading} grows"] = unless_collapsed(
            difference((favano[SLOW], fedbuff[SLOW]), (favano[FAST], fedbuff[FAST])).above(),
            [each[column] for each in (favano, fedbuff) for column in (FAST, SLOW)],
            CHANCE,
        )
    return parts


def _drops(cells: Mapping[str, Mapping[str, Sample]], readings: Sequence[str]) -> Parts:
    """Judge claim 10: FAVANO's loss, and FedBuff's in each reading."""
    marks = CLAIMS[10].criterion
    favano = cells["FAVANO, stochastic"]
    parts: Parts = {
        "FAVANO loses little": unless_collapsed(
            lead(favano[SLOW], favano[FAST]).above(-marks.favano),
            (favano[SLOW], favano[FAST]),
            CHANCE,
        )
    }
    for reading in readings:
        row = cells[reading]
        parts[f"{reading} loses much"] = unless_collapsed(
            lead(row[FAST], row[SLOW]).above(marks.fedbuff), (row[FAST], row[SLOW]), CHANCE
        )
    return parts


def _on_iid(cells: Mapping[str, Mapping[str, Sample]], readings: Sequence[str]) -> Parts:
    """Judge claim 11: the order on IID data, and FedBuff's part in each reading."""
    marks = CLAIMS[11].criterion
    favano, quafl, fedavg = (cells[name][IID] for name in ("FAVANO, stochastic", "QuAFL", "FedAvg"))
    parts: Parts = {
        "FAVANO above FedAvg and QuAFL": unless_collapsed(
            all_of(lead(favano, each).above() for each in (fedavg, quafl)),
            (favano, fedavg, quafl),
            CHANCE,
        ),
        f"FAVANO, FedAvg and QuAFL above {marks.least} %": all_of(
            each.interval().above(marks.least) for each in (favano, fedavg, quafl)
        ),
    }
    for reading in readings:
        fedbuff = cells[reading][IID]
        parts[f"{reading} near FAVANO and above the others"] = unless_collapsed(
            all_of(
                [
                    lead(fedbuff, favano).within(marks.apart),
                    fedbuff.interval().above(marks.least),
                    *(lead(fedbuff, each).above() for each in (fedavg, quafl)),
                ]
            ),
            [fedbuff, favano, fedavg, quafl],
            CHANCE,
        )
    return parts


def _gap(cells: Mapping[str, Mapping[str, Sample]]) -> Parts:
    """Judge claim 12 in both non-IID columns."""
    favano, quafl, adopting = (
        cells[name] for name in ("FAVANO, stochastic", "QuAFL", "FAVANO, alpha = 1")
    )
    far = CLAIMS[12].criterion.lead
    parts: Parts = {}
    for column in (FAST, SLOW):
        where = column.removeprefix("non-IID, ")
        compared = (favano[column], quafl[column], adopting[column])
        for words, judgement in (
            ("FAVANO far above QuAFL", lead(favano[column], quafl[column]).above(far)),
            ("alpha = 1 above QuAFL", lead(adopting[column], quafl[column]).above()),
            ("alpha = 1 below FAVANO", lead(favano[column], adopting[column]).above()),
        ):
            parts[f"{words} ({where})"] = unless_collapsed(judgement, compared, CHANCE)
    return parts


def told(number: int, cells: Mapping[str, Mapping[str, Sample]]) -> str:
    """Return the numbers behind the verdict on a claim."""
    columns = {9: (FAST, SLOW), 10: (FAST, SLOW), 11: (IID,), 12: (FAST, SLOW)}[number]
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
    return f"{' and '.join(columns)}, % ± standard deviation: {', '.join(rows)}"


def means(cells: Mapping[str, Mapping[str, Sample]]) -> dict[str, dict[str, Any]]:
    """Return what is known of each cell."""
    return {
        method: {column: sample.described(CHANCE) for column, sample in row.items()}
        for method, row in cells.items()
    }


def _cell(values: tuple[float, float]) -> str:
    return "diverged" if math.isnan(values[0]) else f"{values[0]:.1f} ± {values[1]:.1f}"


def _facts(data: Any) -> tuple[str, str]:
    last = data.isel(eval=-1)
    return f"{float(last.ticks.mean()):.1f}", f"{float(last.local_steps.mean()):.0f}"
