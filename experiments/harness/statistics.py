"""Means with standard errors, over independent lanes and over pairs of runs with equal seeds."""

from typing import Any, NamedTuple

import numpy as np

FAR = 4.0
"""Standard errors beyond which a difference counts as real."""
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95 % points of Student's t by number of values; 2.2 is used for more than ten."""


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


def paired_interval(differences: np.ndarray) -> tuple[float, float]:
    """Average paired differences, with half the length of their 95 % t interval.

    Args:
      differences: `[n]`, one difference per pair.

    Returns:
      The mean and half the interval's length, which is NaN for a single pair.
    """
    num = len(differences)
    return float(differences.mean()), float(
        T95.get(num, 2.2) * differences.std(ddof=1) / np.sqrt(num)
    ) if num > 1 else float("nan")
