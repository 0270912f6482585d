"""The one standard by which verdicts are given, and the statistics that it needs.

Means of runs are compared by 95 % t intervals: of differences paired by seed where single runs are
known, and by Welch's interval where only means and standard deviations are. A comparison is true
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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from experiments.harness.tables import table

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


class Interval(NamedTuple):
    """A mean difference with half the length of its 95 % t interval.

    Attributes:
      mean: The mean difference.
      half: Half the interval's length; infinite if there are too few runs to know it.
    """

    mean: float
    half: float

    @classmethod
    def read(cls, found: "Mapping[str, Any] | Interval") -> "Interval":
        """Read an interval as it is kept in JSON, where an unknown length is null."""
        if isinstance(found, Interval):
            return found
        half = found.get("half")
        return cls(_number(found["mean"]), float("inf") if half is None else float(half))

    def above(self, level: float = 0.0) -> bool | None:
        """Whether the difference is above a level: None if the interval covers the level."""
        if not np.isfinite(self.mean + self.half):
            return None
        if self.mean - self.half > level:
            return True
        return False if self.mean + self.half <= level else None

    def within(self, bound: float) -> bool | None:
        """Whether the difference is at most a bound in size: None if that is left open."""
        if not np.isfinite(self.mean + self.half):
            return None
        if abs(self.mean) + self.half <= bound:
            return True
        return False if abs(self.mean) - self.half > bound else None

    def __str__(self) -> str:
        known = f"{self.half:.2f}" if np.isfinite(self.half) else "unknown"
        return f"{self.mean:+.2f} ± {known}"


class Sample(NamedTuple):
    """What is known of one method: single runs, or only their mean and standard deviation.

    Attributes:
      mean: Mean over seeds.
      std: Standard deviation over seeds; NaN for a single seed.
      seeds: Number of seeds.
      values: One number per seed, or None where they were not kept.
    """

    mean: float
    std: float
    seeds: int
    values: tuple[float, ...] | None = None

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Sample":
        """Summarise single runs. Failed runs are NaN, and then so is the mean."""
        found = np.asarray(list(values), float)
        std = float(found.std(ddof=1)) if len(found) > 1 else float("nan")
        return cls(float(found.mean()), std, len(found), tuple(found.tolist()))

    @classmethod
    def read(cls, found: "Mapping[str, Any] | Sample") -> "Sample":
        """Read a sample as it is kept in JSON, where numbers that are not finite are null."""
        if isinstance(found, Sample):
            return found
        values = found.get("values")
        if values is not None:
            return cls.of([_number(value) for value in values])
        return cls(_number(found["mean"]), _number(found.get("std")), int(found["seeds"]))

    def interval(self) -> "Interval":
        """Return the 95 % t interval of the mean."""
        return interval_of_error(self.mean, self.std / np.sqrt(self.seeds), self.seeds)

    def described(self, chance: float = 0.0) -> dict[str, Any]:
        """Describe the runs, see `spread_of`; only by what is known if single runs are not."""
        if self.values is None:
            return {"mean": self.mean, "std": self.std, "seeds": self.seeds}
        return spread_of(self.values, chance)

    def __str__(self) -> str:
        if self.values is not None and not np.isfinite(self.mean):
            good = [value for value in self.values if np.isfinite(value)]
            return f"{len(self.values) - len(good)} of {len(self.values)} runs diverged"
        return f"{self.mean:.1f} ± {self.std:.1f}" if np.isfinite(self.std) else f"{self.mean:.1f}"


def _number(value: Any) -> float:
    """Read a number from JSON, where null stands for one that is not finite."""
    return float("nan") if value is None else float(value)


def t95(degrees: float) -> float:
    """Return the two-sided 95 % point of Student's t."""
    return float(stats.t.ppf(0.975, degrees)) if degrees > 0 else float("inf")


def interval(differences: Iterable[Any]) -> Interval:
    """Average differences that are paired by seed, with their 95 % t interval."""
    values = np.asarray(list(differences), float)
    if len(values) < 2:
        return Interval(float(values.mean()), float("inf"))
    half = t95(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(values.mean()), float(half))


def interval_of_error(mean: float, error: float, seeds: int) -> Interval:
    """Return the 95 % t interval of a mean whose standard error over `seeds` runs is known."""
    return Interval(mean, t95(seeds - 1) * error if seeds > 1 else float("inf"))


def lead(first: Sample, second: Sample) -> Interval:
    """Compare two methods: paired by seed if single runs are known, by Welch's interval if not."""
    if first.values is not None and second.values is not None and first.seeds == second.seeds:
        return interval(np.subtract(first.values, second.values))
    return _welch((first, second), (1, -1))


def difference(late: tuple[Sample, Sample], early: tuple[Sample, Sample]) -> Interval:
    """Compare two leads: of the first over the second method of `late`, and of `early`.

    Paired by seed if all single runs are known, by Welch's interval if not.
    """
    samples = (*late, *early)
    if all(each.values is not None and each.seeds == late[0].seeds for each in samples):
        return interval(
            np.subtract(late[0].values, late[1].values)  # type: ignore[arg-type]
            - np.subtract(early[0].values, early[1].values)  # type: ignore[arg-type]
        )
    return _welch(samples, (1, -1, -1, 1))


def _welch(samples: Sequence[Sample], signs: Sequence[int]) -> Interval:
    """Return Welch's interval of a sum of means with signs."""
    mean = float(sum(sign * each.mean for sign, each in zip(signs, samples, strict=True)))
    if min(each.seeds for each in samples) < 2:
        return Interval(mean, float("inf"))
    parts = [each.std**2 / each.seeds for each in samples]
    total = sum(parts)
    if total == 0:
        return Interval(mean, 0.0)
    spread = sum(x**2 / (each.seeds - 1) for x, each in zip(parts, samples, strict=True))
    return Interval(mean, t95(total**2 / spread) * float(np.sqrt(total)))


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


def spread_of(values: Sequence[Any], chance: float = 0.0) -> dict[str, Any]:
    """Describe single runs by more than their mean.

    Args:
      values: `[seeds]`, such as accuracies in percent; NaN for failed runs.
      chance: The value of chance; 0 if there is none.

    Returns:
      Mean, standard deviation, median and worst over the runs that did not fail, the number of
      failed runs, and of those below twice the value of chance.
    """
    found = np.asarray(values, float)
    good = found[np.isfinite(found)]
    nothing = float("nan")
    return {
        "mean": float(good.mean()) if good.size else nothing,
        "std": float(good.std(ddof=1)) if good.size > 1 else nothing,
        "median": float(np.median(good)) if good.size else nothing,
        "worst": float(good.min()) if good.size else nothing,
        "failed": int(found.size - good.size),
        "collapsed": int((good < 2 * chance).sum()),
        "seeds": int(found.size),
    }


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
    return table(["run", *columns], rows)


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


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Average a list of numbers, such as differences paired by seed.

    Args:
      values: `[n]`.

    Returns:
      The mean and its standard error, which is NaN for a single value.
    """
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(values.mean()), error
