"""Markdown tables of what an experiment prints."""

from collections.abc import Iterable, Sequence
from typing import Any


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
