"""Printed numbers, and when a run repeats one.

Settings are the source's, so nothing is tuned. Written before the runs:

- A number is *repeated* (holds) if the mean of our seeds differs from it by no more than half of
  its last printed digit, plus the larger of 0.5 points (of accuracy; 0.02 of a loss or an epsilon)
  and the 95 % t interval of the difference between the mean of our runs and that of the source's.
  The source's runs are taken to spread as ours do; one run where it does not say how many.
- It is undecided if that interval is wider than 2 points (0.08 of a loss or an epsilon).
- Otherwise it fails.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.harness import Sample, table
from experiments.harness.statistics import FAILS, HOLDS, NOT_RUN_WORDS, UNDECIDED
from fedjax_sim.studies.statistics import t95


class Printed(NamedTuple):
    """A number that a source printed.

    Attributes:
      name: Name of the row.
      source: Where it stands: repository, file, commit.
      quote: The words or cells around the number.
      number: The number: percent, a loss, or an epsilon.
      digit: One unit of its last digit.
      runs: Runs behind it; 1 if the source does not say.
      near: Differences that do not count.
      wide: Half-width of an interval that decides nothing.
    """

    name: str
    source: str
    quote: str
    number: float
    digit: float
    runs: int = 1
    near: float = 0.5
    wide: float = 2.0


SMALL: dict[str, float] = {"near": 0.02, "wide": 0.08}
"""Of losses and epsilons."""


def half_width(sample: Sample, runs: int) -> float:
    """Half of the 95 % t interval between the means of our runs and the source's."""
    if sample.seeds < 2:
        return float("inf")
    return t95(sample.seeds - 1) * sample.std * float(np.sqrt(1 / sample.seeds + 1 / runs))


def verdict(printed: Printed, sample: Sample) -> str:
    """Say whether a number was repeated."""
    half = half_width(sample, printed.runs)
    if not half <= printed.wide:
        return UNDECIDED
    far = abs(sample.mean - printed.number)
    return HOLDS if far <= printed.digit / 2 + max(half, printed.near) else FAILS


def exact(value: float) -> Sample:
    """A number without chance, such as an epsilon."""
    return Sample(value, 0.0, 2)


def report(found: Sequence[tuple[Printed, Sample]], *, is_smoke: bool) -> str:
    """Lay out the rows with their verdicts, and below them what the sources say.

    Args:
      found: The rows, and our runs.
      is_smoke: Whether the run is too small to say anything.
    """
    rows = []
    for printed, sample in found:
        half = half_width(sample, printed.runs)
        digits = 2 if printed.near < 0.1 else 1
        number = f"{sample.mean:.{digits}f} ± {sample.std:.{digits}f} ({sample.seeds})"
        ours = number if sample.std else f"{sample.mean:.{digits}f}"
        said = NOT_RUN_WORDS if is_smoke else verdict(printed, sample)
        rows.append([printed.name, f"{printed.number:g}", ours, f"{half:.{digits}f}", said])
    header = ["row", "printed", "ours (seeds)", "interval of the difference", "verdict"]
    quotes: dict[str, list[str]] = {}
    for printed, _ in found:
        quotes.setdefault(printed.source, []).append(printed.quote)
    sources = [f"- {source}: {'; '.join(dict.fromkeys(of))}" for source, of in quotes.items()]
    return table(header, rows) + "\n\n" + "\n".join(sources)
