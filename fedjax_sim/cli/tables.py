"""The output after a run: the table of final values, and lanes that diverged."""

import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr
from rich.console import Console
from rich.table import Table

from fedjax_sim.lifecycle import is_terminal
from fedjax_sim.reporting.targets import first_reach, median_reach
from fedjax_sim.results.records import to_json
from fedjax_sim.results.summaries import flagged, label_of, settings_of

SHOWN = (("accuracy", "loss"), ("objective", "mean_field"))
"""Metrics in the table, for classification and for expectation maximisation."""
TITLES = {"mean_field": "||h||^2"}
TARGETS = (0.5, 0.8, 0.9)
"""Accuracies for which the table has the virtual time until they are reached."""
PLAIN_WIDTH = 150
GAP = 2
"""Spaces between columns."""


class _Console(Console):
    """A console that leaves closed pipes to `fedjax_sim.lifecycle`."""

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


def print_json(content: Any) -> None:
    """Print a JSON value; numbers that are not finite become null."""
    print(to_json(content), end="")


def print_sentence(sentence: str) -> None:
    """Print a sentence in one line, however long it is."""
    make_console().print(sentence, highlight=False, soft_wrap=True)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print as many columns of a table as fit the console, and name those that do not.

    Args:
      titles: Titles of the columns, the most important ones first. The first column is aligned to
        the left, and folded if it would take more than half of the width.
      rows: The cells of each row.
    """
    console = make_console()
    cells = [[row[k] for row in rows] for k in range(len(titles))]
    longest = max(map(len, cells[0]))
    first = longest if longest <= console.width // 2 else console.width // 3
    # A title is folded at spaces, to the width of its column's cells, unless all columns fit.
    named = list(zip(titles, cells, strict=True))
    widths = [max(map(len, [title, *each])) + GAP for title, each in named]
    if first + sum(widths[1:]) > console.width:
        widths = [max(map(len, [*title.split(), *each])) + GAP for title, each in named]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column(titles[0], width=first, overflow="fold")
    shown, missing, left = [0], [], console.width - first
    for k in range(1, len(titles)):
        if widths[k] > left:
            missing.append(titles[k])
            continue
        shown.append(k)
        left -= widths[k]
        table.add_column(textwrap.fill(titles[k], widths[k] - GAP), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[k] for k in shown))
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
    print_table(*final_cells(curves, summary))
    for sentence in failures(curves):
        print_sentence(sentence)


def final_cells(
    curves: Mapping[str, xr.Dataset], summary: Mapping[str, Any]
) -> tuple[list[str], list[list[str]]]:
    """Tabulate the final values of every system and swept setting, as means over seeds.

    After the mean accuracy follow the median and the worst seed, the numbers of seeds that
    diverged and that ended at chance, and the time until each of `TARGETS` is first reached: the
    median over seeds, or "-" if half of the seeds never reach it.

    Args:
      curves: The curves of `sweep`, by system.
      summary: The content of summary.json for these curves.

    Returns:
      The titles of the columns, and the cells of each row.
    """
    found = {name for data in curves.values() for name in data.data_vars}
    shown = [name for names in SHOWN for name in names if name in found]
    if "epsilon" in found:
        shown.append("epsilon")
    titles = ["system"]
    for name in shown:
        titles.append(f"final {TITLES.get(name, name)}")
        if name == "accuracy":
            titles += ["median", "worst", "failed", "collapsed"]
            titles += [f"time to {100 * target:g} %" for target in TARGETS]
    titles += ["virtual time", "server steps", "local steps", "sent up", "sent down"]
    rows = []
    for system, data in curves.items():
        entry = summary["systems"][system]
        for (point, lanes), final in zip(
            settings_of(data), entry.get("settings", [entry]), strict=True
        ):
            cells, unknown = [label_of(system, point)], "diverged" if lanes["failed"].all() else "-"
            for name in shown:
                cells.append(_mean_and_std(final["final"].get(name), unknown))
                if name == "accuracy":
                    cells += _accuracy_cells(lanes, final["final"].get(name))
            cells += [f"{final['virtual_time']:.0f}", str(final["ticks"])]
            cells += [str(final["local_steps"]), _bits(final["uplink_bits"])]
            rows.append([*cells, _bits(float(lanes["downlink_bits"].isel(eval=-1).mean()))])
    return titles, rows


def _accuracy_cells(lanes: xr.Dataset, final: Mapping[str, float | None] | None) -> list[str]:
    """Lay out the spread over clients at one point; see `final_cells`."""
    if final is None:
        return ["-"] * (4 + len(TARGETS))
    cells = ["-" if final[name] is None else f"{final[name]:.3f}" for name in ("median", "min")]
    failed = lanes["failed"]
    cells += [str(int(failed.sum())), str(int(((lanes["collapsed_at"] >= 0) & ~failed).sum()))]
    for target in TARGETS:
        time = median_reach(first_reach(lanes, target))
        cells.append("-" if time is None else f"{time:.0f}")
    return cells


def failures(curves: Mapping[str, xr.Dataset]) -> list[str]:
    """Say in a sentence for each system and setting which of its lanes diverged or collapsed."""
    ends = {
        "failed": "diverged (seeds {seeds}) and are left out of its means.",
        "collapsed": "ended at chance, without being better than a constant guess (seeds {seeds}).",
        "stopped": "were stopped early, and count with their last values (seeds {seeds}).",
    }
    named: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for lane in flagged(curves):
        label = label_of(lane["system"], lane["set"])
        named.setdefault((label, lane["what"]), []).append(lane)
    sentences = []
    for (label, what), lanes in named.items():
        num_lanes = curves[lanes[0]["system"]].sizes.get("seed", 1)
        seeds = ", ".join(str(lane["seed"]) for lane in lanes)
        first = min(lane["evaluation"] for lane in lanes)
        sentences.append(
            f"{label}: {len(lanes)} of {num_lanes} lanes {ends[what].format(seeds=seeds)} "
            f"It showed first at evaluation {first}."
        )
    return sentences


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
