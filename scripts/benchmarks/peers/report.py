"""Tables and a picture of what was measured. Nothing here measures or starts anything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .contest import CONTESTANTS, ENGINE, ONE_CORE, ONE_RUN, RUN_PER_CORE
from .workloads import WORKLOADS

SETTINGS = (ONE_CORE, ONE_RUN, RUN_PER_CORE)
Results = Mapping[str, Any]


def shares_of_limit(
    rates: Mapping[str, float], operations: float, limits: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Compare the arithmetic that was done with what a large product does on the same cores.

    Args:
      rates: Rounds per second by setting.
      operations: Operations of a round.
      limits: As `contest.measure_limits` returns them.

    Returns:
      Shares by setting, 1 for a program as fast as the large product.
    """
    return {
        setting: rate
        * operations
        / (1e9 * limits[ONE_CORE if setting == ONE_CORE else "all cores"]["product GFLOP/s"])
        for setting, rate in rates.items()
    }


def best_limits(
    measured: list[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float]]:
    """Take the largest of each limit over several measurements, as a limit is never exceeded."""
    return {
        setting: {
            name: max(each[setting][name] for each in measured) for name in measured[0][setting]
        }
        for setting in measured[0]
    }


def best_rate(contestant: Mapping[str, Any]) -> float:
    """Take the largest of a contestant's rates, in rounds of all runs per second."""
    return max(contestant["rounds_per_second"].values())


def rate_of(results: Results, workload: str, name: str) -> float | None:
    """Find a contestant's best rate at a workload, or None.

    A contestant that runs a sweep one run after another has the rate of a single run, which is
    measured as the workload "b".
    """
    contestants = results["workloads"].get(workload, {}).get("contestants", {})
    if name in contestants:
        return best_rate(contestants[name])
    if workload == "b64" and workload in results["workloads"]:
        return rate_of(results, "b", name)
    return None


def summary_table(results: Results) -> str:
    """Make the table for the README: each contestant's best rate, and how it compares."""
    names = [name for name in WORKLOADS if name in results["workloads"]]
    lines = [
        "| rounds per second | " + " | ".join(f"({name})" for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for contestant in CONTESTANTS:
        cells = []
        for name in names:
            rate, own = rate_of(results, name, contestant), rate_of(results, name, ENGINE)
            if rate is None:
                cells.append("-")
            elif contestant == ENGINE or own is None:
                cells.append(f"**{_short(rate)}**")
            else:
                cells.append(f"{_short(rate)} ({_short(own / rate)}x)")
        if any(cell != "-" for cell in cells):
            lines.append(f"| {contestant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def detail_table(workload: str, results: Results) -> str:
    """Make the table of one workload: every setting, shares of the limit, and losses."""
    measured, limits = results["workloads"][workload], results["limits"]
    settings = [
        setting
        for setting in SETTINGS
        if any(setting in each["rounds_per_second"] for each in measured["contestants"].values())
    ]
    lines = [
        f"| ({workload}) | "
        + " | ".join(settings)
        + " | share of the limit | loss after the first rounds | first run, s |",
        "|---|" + "---:|" * (len(settings) + 3),
    ]
    for name, each in measured["contestants"].items():
        rates = each["rounds_per_second"]
        shares = shares_of_limit(rates, measured["operations_per_round"], limits)
        cells = [_short(rates[setting]) if setting in rates else "-" for setting in settings]
        cells += [
            f"{_short(100 * max(shares.values()))} %",
            f"{each['loss']:.4f}",
            f"{each['first_seconds']:.1f}",
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, reason in measured["absent"].items():
        lines.append(
            f"| {name} | absent: {reason.replace('|', '/')} |" + " |" * (len(settings) + 2)
        )
    return "\n".join(lines)


def document(results: Results) -> str:
    """Write everything as Markdown."""
    limits = "; ".join(
        f"{name}: a large product {_short(each['product GFLOP/s'])} GFLOP/s, a copy "
        f"{_short(each['copy GB/s'])} GB/s read and written"
        for name, each in results["limits"].items()
    )
    lines = [
        "# This engine and other simulators",
        "",
        f"Measured on {results['date']} ({results['machine']}) by `scripts/benchmark.py peers`, "
        f"medians of {results['turns']} turns or fewer.",
        *([results["remark"]] if results.get("remark") else []),
        "",
        "Each contestant's best rate on all cores, in rounds of all runs per second, and in "
        "brackets how many times as fast this engine is:",
        "",
        summary_table(results),
        "",
        *(
            f"- ({name}) {each['title']}; data: {each['data']}"
            for name, each in results["workloads"].items()
        ),
        "",
        "Others run a sweep one run after another, so their rate in (b64) is that of (b). "
        "All start from the same model and the same arrays, and none evaluates along the way.",
        "",
        f"The machine's limits: {limits}. A share of the limit is the arithmetic of the local "
        "steps' products over the large product on the same cores; tables have each contestant's "
        "largest.",
    ]
    for name, each in results["workloads"].items():
        lines += ["", f"## ({name}) {each['title']}", "", detail_table(name, results)]
        lines += ["", f"Loss of the initial model: {each['initial_loss']:.4f}."]
    lines += ["", "## Versions", ""]
    for name, facts in results["versions"].items():
        packages = ", ".join(
            f"{package} {version}" for package, version in facts["versions"].items()
        )
        lines.append(f"- {name}: {packages}" + (f" ({facts['note']})" if facts["note"] else ""))
    lines += [f"- {name}: absent, {reason}" for name, reason in results["absent"].items()]
    return "\n".join(lines) + "\n"


def draw(results: Results, path: Path) -> None:
    """Draw each contestant's best rate at each workload, on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from fedjax_sim.results.plots import COLORS, HATCHES, styled

    names = [name for name in WORKLOADS if name in results["workloads"]]
    with styled():
        figure = Figure(figsize=(3.4 * len(names), 3.6))
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            rates = {each: rate_of(results, name, each) for each in reversed(CONTESTANTS)}
            shown = {each: rate for each, rate in rates.items() if rate is not None}
            ours = [each == ENGINE for each in shown]
            bars = axis.barh(
                list(shown),
                list(shown.values()),
                color=[COLORS[is_ours] for is_ours in ours],
                hatch=[HATCHES[is_ours] for is_ours in ours],
                edgecolor="white",
                linewidth=0,
            )
            labels = [_short(rate) for rate in shown.values()]
            axis.bar_label(bars, labels=labels, padding=2, fontsize=8)
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())  # They overlap.
            axis.set_xlim(min(shown.values()) / 2, max(shown.values()) * 4)
            title = _first_words(results["workloads"][name]["title"])
            axis.set_title(f"({name}) {title}", fontsize=9)
            axis.set_xlabel("rounds per second", fontsize=8)
            axis.tick_params(labelsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)


def _short(number: float) -> str:
    """Write a number with three digits, or as many as stand before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _first_words(title: str) -> str:
    """Cut a title at its first comma or colon."""
    return title.split(",")[0].split(":")[0]
