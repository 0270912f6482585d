"""The one standard by which verdicts are given.

Means of runs are compared by the intervals of `fedjax_sim.studies.statistics`. A comparison is true
if its whole interval says so, false if its whole interval says the opposite, and None in between.

A claim has one deciding part, which may be a condition on several data sets or baselines, and may
have other parts of the same sentence. `rule` turns what is known of them into one of five verdicts.
Claims on accuracy are stricter. They have no verdict where the best method is below twice the
accuracy of chance, and no part that compares a method that has collapsed to chance is decided,
unless that is the claim. A method is ahead from `LEAST_LEAD` points of accuracy on: a smaller lead,
however certain, is none. With fewer than `LEAST_SEEDS` seeds, or on other data or a smaller problem
than the paper's, a claim holds at most in part. A claim that is false on such a substitute is not
contradicted: it is "not on the substitute".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.studies import tables
from fedjax_sim.studies.statistics import Sample, lead

FAR = 4.0
"""Standard errors beyond which a difference counts as real."""
LEAST_SEEDS = 10
"""Seeds that a claim on accuracies needs for an unrestricted verdict."""
LEAST_LEAD = 0.5
"""Points of accuracy from which on a method counts as ahead, the same for all papers."""
HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds in part", "fails", "undecided"
NOT_HERE, NOT_RUN_WORDS = "not on the substitute", "not run"
VERDICTS = (HOLDS, PARTLY, FAILS, NOT_HERE, UNDECIDED, NOT_RUN_WORDS)
"""The values of a verdict."""


class Ruling(NamedTuple):
    """A verdict and its scope.

    Attributes:
      verdict: One of `VERDICTS`.
      scope: Where it holds, if that is narrower than the claim; otherwise empty.
    """

    verdict: str
    scope: str = ""


NOT_RUN = Ruling(NOT_RUN_WORDS)
"""For claims of which an experiment measures nothing that could decide them."""


def rule(
    parts: Mapping[str, bool | None],
    reduced: str = "",
    deciding: Callable[[str], bool] = lambda name: True,
    substitute: str = "",
) -> Ruling:
    """Give the verdict on a claim from its deciding part and the other parts of the same sentence.

    It fails if the deciding part is false, and is undecided if that is open. If the deciding part
    is true, the claim holds, or holds in part if another part is false or open. On a substitute a
    false deciding part does not contradict the claim.

    Args:
      parts: Whether each part is true, None if that is undecided, by a name that can stand in the
        scope, such as "c_g = 10, over S = 0".
      reduced: How the run is smaller than the claim asks for. A claim that would hold then holds in
        part.
      deciding: Whether a part of this name is a condition of the deciding part; by default all are.
      substitute: How data, network or length differ from the paper's; empty if they do not.
    """
    named = {
        word: [name for name, each in parts.items() if _known(each) is value]
        for word, value in (("true", True), ("false", False), ("open", None))
    }
    conditions = [each for name, each in parts.items() if deciding(name)]
    decided = all_of(conditions) if conditions else None
    smaller = [f"reduced: {reduced}"] if reduced and decided is not None else []
    told = [f"{word}: {', '.join(names)}" for word, names in named.items() if names]
    scope = "; ".join((told if len(told) > 1 else []) + smaller)
    if decided is None:
        return Ruling(UNDECIDED, scope)
    if not decided:
        return Ruling(NOT_HERE if substitute else FAILS, scope)
    is_whole = len(named["true"]) == len(parts) and not reduced
    return Ruling(HOLDS) if is_whole else Ruling(PARTLY, scope)


def begins(*starts: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name begins with one of these, for `rule`."""
    return lambda name: name.startswith(starts)


def _known(value: Any) -> bool | None:
    """Return a truth value of any kind, NumPy's included, as True, False or None."""
    return None if value is None else bool(value)


def all_of(judgements: Iterable[bool | None]) -> bool | None:
    """Return whether all hold: False if one does not, otherwise None if one is unknown."""
    found = [_known(each) for each in judgements]
    return False if False in found else None if None in found else True


def unless_unknown(judgement: Any, numbers: Any) -> bool | None:
    """Return a judgement on nested numbers, or None if one of them is missing or not finite."""
    leaves = jax.tree.leaves(numbers, is_leaf=lambda leaf: leaf is None)
    return bool(judgement) if np.isfinite(np.hstack([0.0, *map(_numbers, leaves)])).all() else None


def has_nan(numbers: Any) -> bool:
    """Return whether a number in nested mappings and sequences is NaN."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(numbers)]
    return any(bool(np.isnan(leaf).any()) for leaf in leaves if leaf.dtype.kind == "f")


def _numbers(leaf: Any) -> np.ndarray:
    return np.asarray(leaf, float).ravel()


def has_collapsed(sample: Sample, chance: float) -> bool:
    """Return whether a method is no better than chance or diverged.

    Its median, or its mean where single runs are not known, is below twice the accuracy of chance.
    """
    values = sample.values
    middle = sample.mean if values is None else float(np.median(np.nan_to_num(values, nan=0.0)))
    return not middle >= 2 * chance


def unless_collapsed(
    judgement: bool | None, compared: Iterable[Sample], chance: float
) -> bool | None:
    """Return a judgement on accuracies, or None if a compared method has collapsed.

    If the best method has, so have all: nothing on accuracy is judged at the level of chance.
    """
    return None if any(has_collapsed(each, chance) for each in compared) else judgement


def ahead(first: Sample, second: Sample, chance: float, least: float = LEAST_LEAD) -> bool | None:
    """Return whether one method's accuracy is above another's, None if one has collapsed.

    Args:
      first: Accuracies in percent.
      second: Those of the other method.
      chance: The accuracy of chance, in percent.
      least: The least lead in points; if it is negative, by how much the first may be behind.
    """
    pair = first, second
    return unless_collapsed(lead(*pair).above(least), pair, chance)


def spread_table(samples: Mapping[str, Sample], chance: float) -> str:
    """Lay out more than means: median, worst, and how many runs failed or collapsed.

    Args:
      samples: Single runs by name, such as accuracies in percent.
      chance: The value of chance; runs below twice as much count as collapsed.
    """
    columns = ("mean", "std", "median", "worst", "failed", "collapsed", "seeds")
    rows = []
    for name, sample in samples.items():
        found = sample.described(chance)
        cells = [found.get(column, "not kept") for column in columns]
        rows.append([name, *(f"{x:.1f}" if isinstance(x, float) else x for x in cells)])
    return tables.table(["run", *columns], rows)


def reduction(seeds: int, words: str = "") -> str:
    """Say how a run on accuracies is smaller than asked for; empty if it is not.

    Args:
      seeds: Number of seeds.
      words: How the problem is smaller than the paper's.
    """
    few = f"{seeds} seeds in place of {LEAST_SEEDS}" if seeds < LEAST_SEEDS else ""
    return ", ".join(filter(None, (words, few)))


class Estimate(NamedTuple):
    """Means over independent lanes, with standard errors.

    Attributes:
      mean: `[...]`, the mean over lanes.
      error: `[...]`, its standard error.
    """

    mean: np.ndarray
    error: np.ndarray

    def deviation(self, expected: Any) -> float:
        """Return the largest distance from expected values, in standard errors."""
        return float(np.max(np.abs(self.mean - expected) / self.error))


def estimate(per_lane: np.ndarray) -> Estimate:
    """Average independent lanes.

    Args:
      per_lane: `[L, ...]`, one row for each of at least two lanes.

    Returns:
      Means `[...]` over lanes with their standard errors.
    """
    return Estimate(per_lane.mean(axis=0), per_lane.std(axis=0, ddof=1) / np.sqrt(len(per_lane)))
