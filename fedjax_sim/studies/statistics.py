"""Statistics of runs with several seeds.

Means are compared by 95 % t intervals: of differences paired by seed where single runs are known,
and by Welch's interval where only means and standard deviations are. Of many comparisons, Holm's
correction bounds the chance that any is wrong.

A run may end before it reaches a level of accuracy. Its time is then censored: only a lower bound
is known. Shares that are still below the level are Kaplan and Meier's (J. Am. Stat. Assoc. 53,
1958). Mean times are restricted to a horizon: the mean of the time or the horizon, whichever is
less. `pseudo_values` (Andersen, Hansen and Klein, Lifetime Data Analysis 10, 2004) give each run a
share of a restricted mean, so that these are compared as other numbers are, paired by seed.

Dimension letters: `n` runs, `m` comparisons, `L` lanes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.timelines import calibration

LEVEL = 0.05
"""Chance of an error that intervals and corrections allow."""
MOST_SEEDS = 1000
"""Seeds up to which a study is planned."""
RESAMPLES = 2000
"""Draws of a bootstrap."""


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
        """Return an interval that is `found` in JSON, where an unknown length is null."""
        if isinstance(found, Interval):
            return found
        half = found.get("half")
        return cls(_number(found["mean"]), float("inf") if half is None else float(half))

    def above(self, level: float = 0.0) -> bool | None:
        """Tell whether the difference is above a `level`: None if the interval covers it."""
        if not np.isfinite(self.mean + self.half):
            return None
        if self.mean - self.half > level:
            return True
        return False if self.mean + self.half <= level else None

    def within(self, bound: float) -> bool | None:
        """Tell whether the difference is at most a `bound` in size: None if that is left open."""
        if not np.isfinite(self.mean + self.half):
            return None
        if abs(self.mean) + self.half <= bound:
            return True
        return False if abs(self.mean) - self.half > bound else None

    def __str__(self) -> str:
        known = f"{self.half:.2f}" if np.isfinite(self.half) else "unknown"
        return f"{self.mean:+.2f} ± {known}"


class Sample(NamedTuple):
    """The results of one method: single runs, or only their mean and standard deviation.

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
        """Return a sample of the `values` of single runs. Failed runs are NaN, as then the mean."""
        found = np.asarray(list(values), float)
        std = float(found.std(ddof=1)) if len(found) > 1 else float("nan")
        return cls(float(found.mean()), std, len(found), tuple(found.tolist()))

    @classmethod
    def read(cls, found: "Mapping[str, Any] | Sample") -> "Sample":
        """Return a sample that is `found` in JSON, where numbers that are not finite are null."""
        if isinstance(found, Sample):
            return found
        values = found.get("values")
        if values is not None:
            return cls.of([_number(value) for value in values])
        return cls(_number(found["mean"]), _number(found.get("std")), int(found["seeds"]))

    def interval(self) -> Interval:
        """Return the 95 % t interval of the mean."""
        return interval_of_error(self.mean, self.std / np.sqrt(self.seeds), self.seeds)

    def described(self, chance: float = 0.0) -> dict[str, Any]:
        """Describe single runs by more than their mean, if they are known.

        Args:
          chance: The value of chance; 0 if there is none.

        Returns:
          Mean, standard deviation, median and worst over the runs that did not fail (are not NaN),
          the number of failed runs, and of those below twice the value of chance.
        """
        if self.values is None:
            return {"mean": self.mean, "std": self.std, "seeds": self.seeds}
        found, nothing = np.asarray(self.values, float), float("nan")
        good = found[np.isfinite(found)]
        return {
            "mean": float(good.mean()) if good.size else nothing,
            "std": float(good.std(ddof=1)) if good.size > 1 else nothing,
            "median": float(np.median(good)) if good.size else nothing,
            "worst": float(good.min()) if good.size else nothing,
            "failed": int(found.size - good.size),
            "collapsed": int((good < 2 * chance).sum()),
            "seeds": int(found.size),
        }

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
    return float(stats.t.ppf(1 - LEVEL / 2, degrees)) if degrees > 0 else float("inf")


def interval(differences: Iterable[Any]) -> Interval:
    """Average differences that are paired by seed, with their 95 % t interval."""
    return Sample.of(differences).interval()


def interval_of_error(mean: float, error: float, seeds: int) -> Interval:
    """Return the 95 % t interval of a mean, from its standard error over `seeds` runs."""
    return Interval(mean, t95(seeds - 1) * error if seeds > 1 else float("inf"))


def lead(first: Sample, second: Sample) -> Interval:
    """Compare two methods: paired by seed if single runs are known, by Welch's interval if not."""
    return _interval(*_contrast((first, second), (1, -1)))


def difference(late: tuple[Sample, Sample], early: tuple[Sample, Sample]) -> Interval:
    """Compare two leads: of the first over the second method of `late`, and of `early`.

    Paired by seed if all single runs are known, by Welch's interval if not.
    """
    return _interval(*_contrast((*late, *early), (1, -1, -1, 1)))


def p_value(first: Sample, second: Sample) -> float:
    """Return the two-sided chance of a lead at least as large as the one found, were there none.

    It is below 0.05 exactly if the interval of `lead` leaves 0 out. NaN if that is unknown.
    """
    mean, error, degrees = _contrast((first, second), (1, -1))
    if not degrees > 0 or not np.isfinite(mean + error):
        return float("nan")
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / error, degrees))


def _interval(mean: float, error: float, degrees: float) -> Interval:
    return Interval(mean, t95(degrees) * error if error else 0.0)


def _contrast(samples: Sequence[Sample], signs: Sequence[int]) -> tuple[float, float, float]:
    """Return a sum of means with signs, its standard error, and the error's degrees of freedom.

    Samples are paired by seed if all single runs are known; otherwise the error is Welch's.
    """
    seeds = samples[0].seeds
    known = [each.values for each in samples if each.values is not None and each.seeds == seeds]
    if len(known) == len(samples):
        own = Sample.of(np.asarray(signs, float) @ np.asarray(known, float))
        error = own.std / np.sqrt(seeds) if seeds > 1 else float("inf")
        return own.mean, float(error), seeds - 1
    mean = float(sum(sign * each.mean for sign, each in zip(signs, samples, strict=True)))
    if min(each.seeds for each in samples) < 2:
        return mean, float("inf"), 0
    parts = [each.std**2 / each.seeds for each in samples]
    spread = sum(x**2 / (each.seeds - 1) for x, each in zip(parts, samples, strict=True))
    degrees = sum(parts) ** 2 / spread if spread > 0 else min(each.seeds for each in samples) - 1
    return mean, float(np.sqrt(sum(parts))), float(degrees)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values of several comparisons: below 0.05, the chance of any error is at most 5 %.

    Holm, Scand. J. Statist. 6 (1979): the smallest is multiplied by m, the next one by m - 1, and
    so on; none becomes smaller than one before it.

    Args:
      p_values: `[m]`; NaN for a comparison that is not known, which counts as 1.

    Returns:
      The corrected p-values, in the same order.
    """
    known = np.nan_to_num(np.asarray(p_values, float), nan=1.0)
    order = np.argsort(known)
    found = np.empty(len(known))
    found[order] = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1))
    return np.minimum(found, 1.0).tolist()


def seeds_needed(spread: float, lead: float, power: float = 0.8) -> int | None:
    """Plan a study: how many seeds show a difference in a paired t test at the 5 % level.

    Args:
      spread: Standard deviation of the paired differences.
      lead: The true mean difference.
      power: Chance with which the study is to show it, between 0.05 and 1.

    Returns:
      The least number of seeds; None if `MOST_SEEDS` are not enough.

    Raises:
      ConfigError: If the power is no such chance.
    """
    if not LEVEL < power < 1:
        raise ConfigError("power", power, f"above {LEVEL} and below 1")
    seeds = np.arange(2, MOST_SEEDS + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = abs(lead) / np.float64(spread) * np.sqrt(seeds)
    bound = stats.t.ppf(1 - LEVEL / 2, seeds - 1)
    chance = stats.nct.sf(bound, seeds - 1, np.minimum(shift, 30)) if lead else np.zeros(1)
    enough = np.flatnonzero(chance >= power)
    return int(seeds[enough[0]]) if len(enough) else None


def survival(times: np.ndarray, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the share of runs that have not reached a level yet.

    Args:
      times: `f[n]`, when each run reached it, or when it ended without.
      reached: `bool[n]`, which runs reached it.

    Returns:
      Times at which the share falls, the first one 0, and the share from each of them on.
    """
    seen, chance, _ = calibration.kaplan_meier(np.asarray(times, float), np.asarray(reached, bool))
    return np.concatenate([[0.0], seen]), np.concatenate([[1.0], 1 - chance])


def restricted_mean(times: np.ndarray, reached: np.ndarray, horizon: float) -> float:
    """Estimate the mean of the time to a level or the horizon, whichever is less.

    Args:
      times: `f[n]`, when each run reached the level, or when it ended without.
      reached: `bool[n]`, which runs reached it.
      horizon: At most `known_until`.

    Raises:
      ConfigError: If the horizon is longer, or not above 0.
    """
    if not 0 < horizon <= (end := known_until(times, reached)):
        allowed = f"above 0 and at most {end:g}, until when a run is known"
        raise ConfigError("horizon", horizon, allowed)
    return held_mean(times, reached, horizon)


def known_until(times: np.ndarray, reached: np.ndarray) -> float:
    """Return the longest time, or infinity if no run is on its way after it, see `survival`."""
    _, share = survival(times, reached)
    return float(np.max(times)) if share[-1] > 0 else float("inf")


def held_mean(times: np.ndarray, reached: np.ndarray, horizon: float) -> float:
    """As `restricted_mean`; beyond the longest of the times the share stays as it is there."""
    seen, share = survival(np.minimum(times, horizon), reached & (times <= horizon))
    return float(np.diff([*seen, horizon]) @ share)


def pseudo_values(times: np.ndarray, reached: np.ndarray, horizon: float) -> np.ndarray:
    """Give each run its share of `restricted_mean`, of which it is the mean.

    If no run ended before the horizon without reaching the level, they are the times themselves, or
    the horizon where it is less.

    Args:
      times: `f[n]`, as in `restricted_mean`.
      reached: `bool[n]`.
      horizon: At most `known_until`.

    Returns:
      `f[n]`.
    """
    times, reached = np.asarray(times, float), np.asarray(reached, bool)
    whole, num = restricted_mean(times, reached, horizon), len(times)
    if (reached | (times >= horizon)).all():
        return np.minimum(times, horizon)
    others = [np.arange(num) != i for i in range(num)]
    left = [held_mean(times[rest], reached[rest], horizon) for rest in others]
    found = num * whole - (num - 1) * np.asarray(left)
    return found + whole - found.mean()


def bootstrap(values: np.ndarray, *, seed: int = 0) -> Interval:
    """Return a 95 % interval of a mean over runs, without taking them to be normal.

    Runs are drawn with replacement, and the distance of each draw's mean is measured by the draw's
    spread (the symmetric bootstrap-t; Hall, J. R. Statist. Soc. B 50, 1988). Quantiles of the drawn
    means alone are too near: of five runs they cover 80 to 85 %.

    Args:
      values: `f[n]`, one number for each of at least two runs, such as the differences of pairs.
      seed: Of the draws.

    Returns:
      The interval, of unknown length where too many draws are of one value alone, as of three runs.
    """
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if np.ptp(values) == 0:
        return Interval(mean, 0.0)
    rows = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    drawn = values[rows]
    with np.errstate(divide="ignore", invalid="ignore"):  # A draw of one value has no spread.
        far = np.abs(drawn.mean(axis=1) - mean) / drawn.std(axis=1, ddof=1)
    far = np.nan_to_num(far, nan=0.0, posinf=np.inf)
    return Interval(mean, float(np.quantile(far, 1 - LEVEL, method="nearest")) * spread)
