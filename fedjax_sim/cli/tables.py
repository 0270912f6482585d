"""The output after a run: the table of final values, and lanes that diverged."""

import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console
from rich.table import Table

from fedjax_sim.core.lifecycle import is_terminal
from fedjax_sim.results import records, runs
from fedjax_sim.results.summaries import first_reach, median_reach, points_of

SHOWN = (("accuracy", "loss"), ("objective", "mean_field"))
"""Metrics in the table, for classification and for expectation maximisation."""
TITLES = {"mean_field": "||h||^2"}
TARGETS = (0.5, 0.8, 0.9)
"""Accuracies for which the table has the virtual time until they are reached."""
PLAIN_WIDTH = 150
GAP = 2
"""Spaces between columns."""


class _Console(Console):
    """A console that leaves closed pipes to `fedjax_sim.core.lifecycle`."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, where rich would exit.

        Raises:
          BrokenPipeError: Always.
        """
        raise BrokenPipeError


def make_console() -> Console:
    """Make a console as wide as the terminal or, if it writes to none, `COLUMNS` or 150 columns."""
    is_known = is_terminal(sys.stdout) or "COLUMNS" in os.environ
    return _Console(width=None if is_known else PLAIN_WIDTH)


def print_json(content: object) -> None:
    """Print a JSON value; numbers that are not finite become null."""
    print(records.to_json(content), end="")


def print_sentence(sentence: str) -> None:
    """Print a sentence in one line, however long it is."""
    make_console().print(sentence, highlight=False, soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Print as many columns of a table as fit the console, and name those that do not.

    Args:
      rows: The cells of each row by title of the column, the most important ones first. The first
        column is aligned to the left, and folded if it would take more than half of the width.
    """
    console = make_console()
    columns = {title: [row[title] for row in rows] for title in rows[0]}
    head, *titles = columns
    longest = max(map(len, columns[head]))
    first = longest if longest <= console.width // 2 else console.width // 3
    widths = {title: max(map(len, [title, *columns[title]])) + GAP for title in titles}
    if first + sum(widths.values()) > console.width:
        # Titles are folded at spaces, to the width of their column's cells.
        for title in titles:
            widths[title] = max(map(len, [*title.split(), *columns[title]])) + GAP
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column(head, width=first, overflow="fold")
    shown, left = [head], console.width - first
    missing: list[str] = []
    for title, width in widths.items():
        (shown if width <= left else missing).append(title)
        if width <= left:
            left -= width
            table.add_column(textwrap.fill(title, width - GAP), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[title] for title in shown))
    console.print(table, highlight=False)
    if missing:
        sentence = f"Not shown in {console.width} columns: {', '.join(missing)}."
        console.print(sentence, highlight=False)


def print_results(curves: Mapping[str, xr.Dataset], summary: Mapping[str, Any]) -> None:
    """Print the final values of every system and swept setting, and which lanes failed.

    Args:
      curves: The curves of `sweep`, by system.
      summary: The content of summary.json for these curves.
    """
    print_table(final_rows(curves, summary))
    for system, data in curves.items():
        for name in runs.WORDS:
            if name in data and (data[name] >= 0).any():
                print_sentence(runs.sentence_of(data, name, system))


def show_results(
    folder: Path,
    curves: Mapping[str, xr.Dataset],
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print final values, and where the results are.

    Args:
      folder: The results folder.
      curves: The curves by system.
      config: The content of config.json.
      summary: The content of summary.json.
      as_json: Whether to print the summary as JSON in place of a table.
    """
    if as_json:
        print_json({"folder": str(folder), **summary})
        return
    make_console().print(
        f"{config['dataset']['name']}, partition {config['partition']['name']}, "
        f"model {config['model']}, {len(config['seeds'])} seeds, means +- std:",
        highlight=False,
    )
    print_results(curves, summary)
    spent = summary["seconds"]
    seconds = f"{spent['compile']:.1f} s compiling, {spent['run']:.1f} s running"
    print_sentence(f"Written to {folder} ({seconds})")


def final_rows(
    curves: Mapping[str, xr.Dataset], summary: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Tabulate the final values of every system and swept setting, as means over seeds.

    After the mean accuracy follow the median and the worst seed, the numbers of seeds that
    diverged and that ended at chance, and the time until each of `TARGETS` is first reached: the
    median over seeds, or "-" if half of the seeds never reach it.

    Args:
      curves: The curves of `sweep`, by system.
      summary: The content of summary.json for these curves.

    Returns:
      The cells of each row, by title of the column.
    """
    found = {name for data in curves.values() for name in data.data_vars}
    shown = [name for names in (*SHOWN, ("epsilon",)) for name in names if name in found]
    rows = []
    for system, data in curves.items():
        entry = summary["systems"][system]
        entries = entry.get("settings", [entry])
        for (label, lanes), final in zip(points_of({system: data}), entries, strict=True):
            row = {"system": label}
            unknown = "diverged" if lanes["failed"].all() else "-"
            for name in shown:
                value = final["final"].get(name)
                row[f"final {TITLES.get(name, name)}"] = _mean_and_std(value, unknown)
                if name == "accuracy":
                    row |= _accuracy_cells(lanes, value)
            row["virtual time"] = f"{final['virtual_time']:.0f}"
            row["server steps"] = str(final["ticks"])
            row["local steps"] = str(final["local_steps"])
            row["sent up"] = _bits(final["uplink_bits"])
            row["sent down"] = _bits(float(lanes["downlink_bits"].isel(eval=-1).mean()))
            rows.append(row)
    return rows


def _accuracy_cells(lanes: xr.Dataset, final: Mapping[str, float | None] | None) -> dict[str, str]:
    """Lay out the spread over seeds at one point; see `final_rows`."""
    times = {f"time to {100 * target:g} %": target for target in TARGETS}
    if final is None:
        return dict.fromkeys(("median", "worst", "failed", "collapsed", *times), "-")
    failed, collapsed = lanes["failed"], lanes["collapsed_at"] >= 0
    shares = {"median": final["median"], "worst": final["min"]}
    reached = {title: median_reach(first_reach(lanes, target)) for title, target in times.items()}
    return {
        **{title: "-" if value is None else f"{value:.3f}" for title, value in shares.items()},
        "failed": str(int(failed.sum())),
        "collapsed": str(int((collapsed & ~failed).sum())),
        **{title: "-" if value is None else f"{value:.0f}" for title, value in reached.items()},
    }


def _mean_and_std(value: Mapping[str, float | None] | None, unknown: str) -> str:
    if value is None:
        return "-"
    mean = value["mean"]
    if mean is None:
        return unknown
    digits = ".3f" if mean == 0 or 1e-3 <= abs(mean) < 1000 else ".3g"
    return f"{mean:{digits}} +- {value['std']:{digits}}"


def _bits(bits: float) -> str:
    power = min(4, int(math.log10(max(bits, 1)) // 3))
    return f"{bits / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}bit"
