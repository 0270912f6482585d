"""FAVANO's Table 2: final test accuracy on MNIST, four methods, three columns.

Besides the paper's rows: both readings of FedBuff's local learning rate, both reweightings of FAVANO, and FAVANO with alpha = 1 (an
ablation: QuAFL's clients adopting the server's model, without reweighting). Ten seeds; the results reached are in README.md beside.
"""

import sys
from typing import Any

from experiments.favano_claims import verdict
from experiments.favano_mnist import COLUMNS, METHODS, PAPER, as_groups, percent, picture, runs, sizes_of
from experiments.support import Arguments, Outcome, Verdict, main, table

IID, FAST, SLOW = COLUMNS

Cells = dict[str, dict[str, tuple[float, float]]]
"""Mean and standard deviation in percent by method and column."""


def run(arguments: Arguments) -> Outcome:
    """Run all cells, compare with the paper, judge claims 9 to 12."""
    curves = runs(arguments, list(COLUMNS))
    cells: Cells = {method: {column: percent(curves[f"{method} | {column}"]) for column in COLUMNS} for method in METHODS}
    sizes = sizes_of(arguments)
    rows = [[method, *(_cell(cells[method][column]) for column in COLUMNS), *_facts(curves[f"{method} | {FAST}"])] for method in METHODS]
    rows += [[f"{method} (paper)", *(_cell(PAPER[method][column]) for column in COLUMNS), "", ""] for method in PAPER]
    figures = {
        f"accuracy_{i}.png": picture({m: curves[f"{m} | {column}"] for m in METHODS}, "accuracy", title=f"{sizes.dataset}, {column}")
        for i, column in enumerate(COLUMNS)
    }
    num_seeds = next(iter(curves.values())).sizes["seed"]
    config = {"dataset": sizes.dataset, "seeds": num_seeds, "time_budget": sizes.time_budget, "shared": dict(sizes.shared)}
    header = ["final accuracy, %", *COLUMNS, "server steps", "local steps"]
    return Outcome(as_groups(curves), figures, verdicts(cells, num_seeds, arguments.smoke), config, table(header, rows))


def verdicts(cells: Cells, num_seeds: int, is_smoke: bool) -> list[Verdict]:
    """Judge claims 9 to 12 on the means over seeds, with the default reading of each method."""
    mean = {method: {column: values[0] for column, values in row.items()} for method, row in cells.items()}
    favano, fedbuff, quafl, fedavg = (mean[name] for name in ("FAVANO, stochastic", "FedBuff, lr", "QuAFL", "FedAvg"))
    lead = {column: favano[column] - fedbuff[column] for column in (FAST, SLOW)}
    drop = {"FAVANO": favano[FAST] - favano[SLOW], "FedBuff": fedbuff[FAST] - fedbuff[SLOW]}
    ordered = all(favano[c] > fedbuff[c] > max(quafl[c], fedavg[c]) for c in (FAST, SLOW))
    close = abs(fedbuff[IID] - favano[IID]) <= 1.0
    above = min(fedbuff[IID], favano[IID]) > max(quafl[IID], fedavg[IID])
    all_above_92 = min(row[IID] for row in (favano, fedbuff, quafl, fedavg)) > 92
    adopting = mean["FAVANO, alpha = 1"]
    closes = all(quafl[c] < adopting[c] for c in (FAST, SLOW)) and favano[FAST] - quafl[FAST] > 10
    judged: list[tuple[int, Any, bool, str]] = [
        (9, {"lead over FedBuff": lead}, ordered and lead[SLOW] > lead[FAST], "order in both non-IID columns, and a growing lead"),
        (10, {"points lost": drop}, drop["FAVANO"] < 5 and drop["FedBuff"] > 10, "holds if FAVANO loses under 5 points, FedBuff over 10"),
        (
            11,
            {m: mean[m][IID] for m in mean},
            close and above and all_above_92,
            "within a point, above the others, all over 92",
        ),
        (
            12,
            {m: [mean[m][c] for c in (FAST, SLOW)] for m in ("QuAFL", "FAVANO, alpha = 1", "FAVANO, stochastic")},
            closes,
            "holds if FAVANO is over 10 points above QuAFL at 2/3 fast, and alpha = 1 with adoption is above QuAFL in both columns",
        ),
    ]
    if is_smoke:
        return [verdict(number, measured, None, "not judged: a smoke run on digits is too small") for number, measured, _, _ in judged]
    how = f"MNIST, {num_seeds} seeds, means of final accuracy in %"
    return [verdict(number, measured, holds, f"{why}; {how}") for number, measured, holds, why in judged]


def _cell(values: tuple[float, float]) -> str:
    return f"{values[0]:.1f} ± {values[1]:.1f}"


def _facts(data: Any) -> tuple[str, str]:
    last = data.isel(eval=-1)
    return f"{float(last.ticks.mean()):.1f}", f"{float(last.local_steps.mean()):.0f}"


if __name__ == "__main__":
    sys.exit(main("favano_table2", __doc__ or "", run))
