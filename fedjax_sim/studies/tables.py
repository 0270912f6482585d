"""Tables of numbers with their uncertainty: for a terminal, Markdown, CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from fedjax_sim.studies.statistics import Interval

SPECIAL = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
}
"""Characters that mean something else in LaTeX, and how they are written there."""


class Table(NamedTuple):
    """A table of texts, numbers and intervals.

        table = Table(["system", "accuracy"], [["fedavg", Interval(0.912, 0.0031)]])
        assert table.markdown().endswith("| fedavg | 0.9120 ± 0.0031 |")

    Attributes:
      header: One title per column.
      rows: Rows with one cell per column: text, a number, an `Interval`, or None for nothing.
      best: Places (row, column) of the best cells, which are set in bold.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    best: Collection[tuple[int, int]] = ()

    def texts(self) -> list[dict[str, str]]:
        """Write the cells of each row by title of the column, for a terminal."""
        return [dict(zip(self.header, map(written, row), strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Write a Markdown table, without a final line break."""
        return table(self.header, self._marked("**{}**", written))

    def csv(self) -> str:
        """Write comma-separated values. An interval has two columns: its mean, and its half."""
        is_split = [
            any(isinstance(row[j], Interval) for row in self.rows) for j in range(len(self.header))
        ]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        titles = [(name, f"± {name}") for name in self.header]
        for row in (titles, *self.rows):
            cells = (cell if isinstance(cell, tuple) else (cell, None) for cell in row)
            pairs = zip(cells, is_split, strict=True)
            writer.writerow([x for cell, two in pairs for x in cell[: 1 + two]])
        return out.getvalue()

    def latex(self) -> str:
        """Write a tabular with the rules of the package booktabs, the best cells in bold."""
        kinds = ["r"] * len(self.header)
        for row in self.rows[:1]:
            kinds = ["l" if isinstance(cell, str) else "r" for cell in row]
        lines = [
            "% Needs \\usepackage{booktabs}.",
            f"\\begin{{tabular}}{{{''.join(kinds)}}}",
            "\\toprule",
            " & ".join(map(escaped, self.header)) + " \\\\",
            "\\midrule",
        ]
        bold = self._marked("\\textbf{{{}}}", in_latex)
        lines += [" & ".join(row) + " \\\\" for row in bold]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])

    def _marked(self, mark: str, write: Callable[[Any], str]) -> list[list[str]]:
        """Write all cells, the best ones within a mark."""
        return [
            [(mark if (i, j) in self.best else "{}").format(write(x)) for j, x in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]


def written(cell: Any) -> str:
    """Write a cell; of an interval as many digits as its half has meaning."""
    if isinstance(cell, Interval):
        mean, half = cell
        if not math.isfinite(mean):
            return "diverged"
        if not math.isfinite(half):
            return f"{mean:.4g}"
        digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 4
        return f"{mean:.{min(digits, 6)}f} ± {half:.{min(digits, 6)}f}"
    if cell is None:
        return ""
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def escaped(text: str) -> str:
    """Write a text in LaTeX."""
    return "".join(SPECIAL.get(mark, mark) for mark in text)


def in_latex(cell: Any) -> str:
    """Write a cell in LaTeX. A hyphen of a number is a minus."""
    text = escaped(written(cell))
    return text if isinstance(cell, str) else text.replace("-", "$-$")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lay out rows as a Markdown table.

    Args:
      header: One title per column.
      rows: Rows with one cell per column; cells are converted with `str`.

    Returns:
      The table, with cells padded so that columns align, without a final line break.
    """
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    cells = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
