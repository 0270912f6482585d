"""Criteria that a claim states as comparisons of measured numbers, and the sentence behind them.

A comparison is "PLACE < OTHER", with any of `OPERATORS`; "PLACE within DISTANCE of OTHER"; the same
with "by ERROR", where the distance is a number of such measured errors; "PLACE within SHARE times
OTHER", where the distance is that share of the other number; or "PLACE falls", where each number is
below the one before. PLACE says where measured numbers are: names joined by " / ", in which `*`
stands for anything. Several numbers are compared one by one. The others are numbers, marks of the
claim's criterion, sums of two such, or places.

In a sentence `{PLACE:FORMAT}` is the numbers at a place, joined by commas. Instead of a format
there can be words, in which `<:FORMAT>` is the number, `<KEY:FORMAT>` one of several numbers, and
NAME what the last name with a `*` stands for. Words with commas are joined by semicolons.
`{largest of PLACE:FORMAT}` is the largest number, and "smallest of" the smallest.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.harness.statistics import all_of, unless_unknown

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.eq,
}
COMPARISON = re.compile(
    r"(.+) (?:falls|(<|<=|>|>=|is) (.+)|within (.+) (?:times (.+)|of (.+?)(?: by (.+))?))"
)
FIELD = re.compile(r"\{(?:(largest|smallest) of )?([^{}:]+):?([^{}]*)\}")
NUMBER = re.compile(r"<([^<>:]*):([^<>]*)>")


def all_hold(comparisons: Sequence[str], measured: Any, marks: Mapping[str, Any]) -> bool | None:
    """Return whether all comparisons are true, None if a measured number is unknown."""
    judged = all_of(holds(each, measured, marks) for each in comparisons)
    return None if judged is None else unless_unknown(judged, measured)


def holds(comparison: str, measured: Any, marks: Mapping[str, Any]) -> bool | None:
    """Return whether a comparison is true, None if it counts errors of 0 or has one number to fall.

    Raises:
      ValueError: If it is no comparison, or nothing was measured at a place.
    """
    found = COMPARISON.fullmatch(comparison)
    if found is None:
        raise ValueError(f"{comparison!r} is no comparison, but must be one of {__name__}")
    place, word, bound, distance, scale, middle, error = found.groups()
    left = _numbers(place, measured)
    if word is not None:
        return bool(np.all(OPERATORS[word](left, _other(bound, measured, marks))))
    if distance is None:
        return None if len(left) < 2 else bool((np.diff(left) < 0).all())
    right = _other(scale or middle, measured, marks)
    unit = np.abs(right) if scale else _numbers(error, measured) if error else np.ones(1)
    if error and np.any(unit == 0):
        return None
    return bool(np.all(np.abs(left - right) < _other(distance, measured, marks) * unit))


def sentence(told: str, measured: Any, marks: Mapping[str, Any]) -> str:
    """Fill measured numbers, and marks by name, into the fields of a sentence."""

    def filled(field: re.Match[str]) -> str:
        values = [("", marks[field[2]])] if field[2] in marks else at(measured, field[2])
        if field[1]:
            extreme = {"largest": np.max, "smallest": np.min}[field[1]]
            values = [("", extreme(_numbers(field[2], measured)))]
        words = field[3] if "NAME" in field[3] or "<" in field[3] else f"<:{field[3]}>"

        def one(name: str, value: Any) -> str:
            def number(found: re.Match[str]) -> str:
                return _written(value[found[1]] if found[1] else value, found[2])

            return NUMBER.sub(number, words.replace("NAME", name))

        return ("; " if "," in words else ", ").join(one(*each) for each in values)

    return FIELD.sub(filled, told)


def _written(value: Any, form: str) -> str:
    """Format a number, or several alike, each of a mapping after its name."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_written(each, form)}" for name, each in value.items())
    if form and isinstance(value, Sequence):
        return ", ".join(format(each, form) for each in np.ravel(value).tolist())
    return format(value, form)


def at(measured: Any, place: str) -> list[tuple[str, Any]]:
    """List the measured values at a place, each with the name that the last `*` stands for.

    Raises:
      ValueError: If nothing was.
    """
    values = [("", measured)]
    for pattern in place.split(" / "):
        values = [
            (str(key) if "*" in pattern else name, value)
            for name, each in values
            for key, value in (each.items() if isinstance(each, Mapping) else enumerate(each))
            if fnmatchcase(str(key), pattern)
        ]
    if not values:
        raise ValueError(f"nothing was measured at {place!r}")
    return values


def _numbers(place: str, measured: Any) -> np.ndarray:
    """Return the numbers at a place, NaN for those that are not known: `f[n]`."""
    return np.array([*_leaves([value for _, value in at(measured, place)])], float)


def _leaves(value: Any) -> Iterator[float]:
    """Go through nested numbers in the order in which they stand, NaN for None."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim):
        for each in value:
            yield from _leaves(each)
    else:
        yield np.nan if value is None else float(value)


def _other(words: str, measured: Any, marks: Mapping[str, Any]) -> np.ndarray:
    """Read a number, a mark, a sum of such, or the measured numbers at a place: `f[n]`.

    Raises:
      ValueError: If a mark has the name of a measured number.
    """
    if words in marks:
        if words in measured:
            raise ValueError(f"{words!r} is a mark and a measured number, but must be one of them")
        return np.array([marks[words]], float)
    if " + " in words:
        return np.sum([_other(each, measured, marks) for each in words.split(" + ")], axis=0)
    try:
        return np.array([float(Fraction(words))])
    except ValueError:
        return _numbers(words, measured)
