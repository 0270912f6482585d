"""Verdicts on clocks, from pairs of a measured and a simulated number."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from experiments.clocks.claims import CLAIMS
from experiments.harness import NOT_RUN, Criterion, Verdict, rule, unless_unknown

Pairs = Mapping[str, Sequence[float]]
"""By name: what was measured, and what the simulated clock has."""


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims.

    Args:
      inputs: By number of the claim, as a text: `Pairs`; and whether it is a "smoke" run.
    """
    found = []
    for number, pairs in inputs.items():
        if number == "smoke":
            continue
        if inputs["smoke"]:
            found.append(CLAIMS.verdict(int(number), None, NOT_RUN, "a smoke run, no evidence"))
            continue
        marks = CLAIMS[int(number)].criterion
        away = {name: distance(marks, *pair) for name, pair in pairs.items()}
        most = marks.off if hasattr(marks, "off") else marks.gap
        parts = {name: unless_unknown(away[name] <= most, away[name]) for name in pairs}
        if hasattr(marks, "order"):
            parts |= orders(pairs, marks.order)
        why = f"at most {max(away.values()):.3g} away; measured -> simulated: " + ", ".join(
            f"{name} {pair[0]:.4g} -> {pair[1]:.4g}" for name, pair in pairs.items()
        )
        found.append(CLAIMS.verdict(int(number), pairs, rule(parts), why))
    return found


def distance(marks: Criterion, measured: float, simulated: float) -> float:
    """Return how far a number is from the measured one: its share of it, or the difference."""
    return abs(simulated - measured) / (abs(measured) if hasattr(marks, "off") else 1.0)


def orders(pairs: Pairs, apart: float) -> dict[str, bool | None]:
    """Compare the orders of all pairs of systems.

    Args:
      pairs: By task and system, such as "FEMNIST, FedAvg".
      apart: The share by which measured numbers must differ.

    Returns:
      By task and both systems, the measured smaller one first: whether it is simulated so.
    """
    found = {}
    for one, other in combinations(sorted(pairs, key=lambda name: pairs[name][0]), 2):
        task, _, system = other.rpartition(", ")
        if one.startswith(task) and pairs[other][0] > (1 + apart) * pairs[one][0]:
            less = unless_unknown(pairs[one][1] < pairs[other][1], [pairs[one], pairs[other]])
            found[f"{one} before {system}"] = less
    return found
