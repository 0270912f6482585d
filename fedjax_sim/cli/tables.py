"""What the command line prints after a run: the table of final values, and lanes that diverged."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import xarray as xr
from rich.console import Console
from rich.table import Table

from fedjax_sim.reporting import results

SHOWN = (("accuracy", "loss"), ("objective", "mean_field"))
"""Metrics in the table, for classification and for expectation maximisation."""
TITLES = {"mean_field": "||h||^2"}
PLAIN_WIDTH = 150


def make_console() -> Console:
    """Make a console that never breaks a table's lines if its output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def final_table(curves: Mapping[str, xr.Dataset], summary: Mapping[str, Any]) -> Table:
    """Tabulate the final values of every system and swept setting, as means over seeds.

    Args:
      curves: The curves of `sweep`, by system.
      summary: The content of summary.json for these curves.
    """
    table = Table(box=None, padding=(0, 2), title_justify="left")
    shown = list(next(names for names in SHOWN if names[0] in next(iter(curves.values()))))
    if any("epsilon" in data for data in curves.values()):
        shown.append("epsilon")
    table.add_column("system", justify="left")
    for title in (
        *(f"final {TITLES.get(name, name)}" for name in shown),
        "virtual time",
        "server steps",
        "local steps",
        "sent up",
        "sent down",
    ):
        table.add_column(title, justify="right")
    for system, data in curves.items():
        entry = summary["systems"][system]
        for (point, lanes), final in zip(
            results.settings_of(data), entry.get("settings", [entry]), strict=True
        ):
            table.add_row(
                results.label_of(system, point),
                *(_mean_and_std(final["final"].get(name)) for name in shown),
                f"{final['virtual_time']:.0f}",
                str(final["ticks"]),
                str(final["local_steps"]),
                _bits(final["uplink_bits"]),
                _bits(float(lanes["downlink_bits"].isel(eval=-1).mean())),
            )
    return table


def failures(curves: Mapping[str, xr.Dataset]) -> list[str]:
    """Say in a sentence for each system and setting which of its lanes diverged or collapsed."""
    ends = {
        "failed": "diverged (seeds {seeds}) and are left out of its means.",
        "collapsed": "ended at chance, without being better than a constant guess (seeds {seeds}).",
        "stopped": "were stopped early, and count with their last values (seeds {seeds}).",
    }
    named: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for lane in results.flagged(curves):
        label = results.label_of(lane["system"], lane["set"])
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


def _mean_and_std(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return "-"
    mean = value["mean"]
    if mean is None:
        return "diverged"
    digits = ".3f" if mean == 0 or 1e-3 <= abs(mean) < 1000 else ".3g"
    return f"{mean:{digits}} +- {value['std']:{digits}}"


def _bits(bits: float) -> str:
    power = min(4, int(math.log10(max(bits, 1)) // 3))
    return f"{bits / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}bit"
