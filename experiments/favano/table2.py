"""FAVANO's Table 2: final test accuracy on MNIST, four methods, three columns.

In addition to the paper's rows it has both readings of FedBuff's local learning rate under three
readings of its clock (blocked; own finish; running times drawn afresh at each server step), both
reweightings of FAVANO, and FAVANO with alpha = 1: an ablation in which QuAFL's clients adopt the
server's model, without reweighting. Ten seeds by default. The results are in experiments/README.md.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.favano.setup import COLUMNS, METHODS, MNIST, as_groups, percent, picture, runs
from experiments.harness import Arguments, Outcome, Verdict, table

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
    return Outcome(
        as_groups(curves), figures, verdicts(cells, ran.config), ran.config, table(header, rows)
    )


READING = "FedBuff, lr"
"""The reading of FedBuff that claims are judged with.

Clients are blocked until the exchange, with the plain learning rate: the system's defaults.
"""


def verdicts(cells: Cells, config: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 9 to 12 on the means over seeds.

    The paper settles neither FedBuff's clock nor its learning rate. Claims are judged in the
    default reading, and the verdict's text gives the outcome in the other readings too. No claim is
    judged if a method diverged in all seeds.

    Args:
      cells: Mean and standard deviation in percent, by method and column.
      config: The settings of the runs.
    """
    mean = {
        method: {column: values[0] for column, values in row.items()}
        for method, row in cells.items()
    }
    readings = [method for method in mean if method.startswith("FedBuff")]
    favano, quafl, fedavg, adopting = (
        mean[name] for name in ("FAVANO, stochastic", "QuAFL", "FedAvg", "FAVANO, alpha = 1")
    )

    def lead(reading: str) -> dict[str, float]:
        return {column: favano[column] - mean[reading][column] for column in (FAST, SLOW)}

    def drop(row: dict[str, float]) -> float:
        return row[FAST] - row[SLOW]

    def ordered(reading: str) -> bool:
        rest = {column: max(quafl[column], fedavg[column]) for column in (FAST, SLOW)}
        in_order = all(favano[column] > mean[reading][column] > rest[column] for column in rest)
        return in_order and lead(reading)[SLOW] > lead(reading)[FAST]

    def unequal_drops(reading: str) -> bool:
        marks = CLAIMS[10].criterion
        return drop(favano) < marks.favano and drop(mean[reading]) > marks.fedbuff

    def close_on_iid(reading: str) -> bool:
        marks = CLAIMS[11].criterion
        best_two = (mean[reading][IID], favano[IID])
        return (
            abs(best_two[0] - best_two[1]) <= marks.apart
            and min(best_two) > max(quafl[IID], fedavg[IID])
            and min(quafl[IID], fedavg[IID]) > marks.least
        )

    def closes_the_gap(_: str) -> bool:
        return favano[FAST] - quafl[FAST] > CLAIMS[12].criterion.lead and all(
            quafl[column] < adopting[column] for column in (FAST, SLOW)
        )

    judged: list[tuple[int, Callable[[str], bool], Any, str]] = [
        (
            9,
            ordered,
            {"lead": {reading: lead(reading) for reading in readings}},
            "the order in both non-IID columns, and a growing lead",
        ),
        (
            10,
            unequal_drops,
            {"points lost": {m: drop(mean[m]) for m in mean}},
            "FAVANO loses under 5 points and FedBuff over 10",
        ),
        (
            11,
            close_on_iid,
            {m: mean[m][IID] for m in mean},
            "FedBuff and FAVANO within a point, above the others, all above 92",
        ),
        (
            12,
            closes_the_gap,
            {m: mean[m] for m in mean},
            "FAVANO is 10 points above QuAFL (2/3 fast), alpha = 1 above QuAFL in both",
        ),
    ]
    if config["smoke"]:
        return [verdict(number, measured, None, SMOKE) for number, _, measured, _ in judged]
    if any(math.isnan(value) for row in mean.values() for value in row.values()):
        return [
            verdict(number, measured, None, "not judged: a method has diverged in all seeds")
            for number, _, measured, _ in judged
        ]
    how = (
        f"{config['dataset']}, {config['seeds']} seeds, means of final accuracy in %; FAVANO "
        f"stochastic; {READING!r} is FedBuff"
    )
    found = []
    for number, holds, measured, words in judged:
        others = ", ".join(
            f"{reading!r} {holds(reading)}" for reading in readings if reading != READING
        )
        found.append(
            verdict(
                number,
                measured,
                bool(holds(READING)),
                f"holds if {words}; {how}; in its other readings: {others}",
            )
        )
    return found


def _cell(values: tuple[float, float]) -> str:
    return "diverged" if math.isnan(values[0]) else f"{values[0]:.1f} ± {values[1]:.1f}"


def _facts(data: Any) -> tuple[str, str]:
    last = data.isel(eval=-1)
    return f"{float(last.ticks.mean()):.1f}", f"{float(last.local_steps.mean()):.0f}"
