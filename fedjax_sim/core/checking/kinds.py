"""Conditions that annotations add to types: ranges of numbers, shapes of arrays.

They are read by `fedjax_sim.core.checking.checked`; type checkers see the plain types.
"""

import math
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """Limits of a number, or of every number of an array.

    Attributes:
      least: Inclusive lower limit.
      most: Inclusive upper limit.
      above: Exclusive lower limit.
      below: Exclusive upper limit; a letter stands for the length of a dimension, see `Shape`.
      is_whole: Whether only whole numbers are allowed.
      may_be_nan: Whether numbers of an array may be nan, as those of a model that diverged are.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: Any = None
    is_whole: bool = False
    may_be_nan: bool = False

    def __str__(self) -> str:
        """Return the limits in words, such as "of at least 1", "" for none."""
        words = {"least": "of at least", "above": "above", "most": "of at most", "below": "below"}
        limits = {name: getattr(self, name) for name in words if getattr(self, name) is not None}
        text = " and ".join(f"{words[name]} {_shown(limit)}" for name, limit in limits.items())
        if limits.keys() == {"least", "most"}:
            text = f"from {self.least:.10g} to {self.most:.10g}"
        return text

    def within(self, lengths: dict[str, int]) -> "Limit":
        """Return the limits in a call.

        Args:
          lengths: Lengths of the dimensions that have been seen in the call, by letter.
        """
        is_named = isinstance(self.below, str)
        return self._replace(below=lengths.get(str(self.below))) if is_named else self

    def holds(self, value: object) -> bool:
        """Tell whether numbers are finite and within the limits.

        Args:
          value: A number or an array, known before tracing.
        """
        if isinstance(value, int | float):
            return (
                not isinstance(value, bool)
                and (isinstance(value, int) or math.isfinite(value))
                and (self.least is None or value >= self.least)
                and (self.most is None or value <= self.most)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
                and not (self.is_whole and value != math.floor(value))
            )
        import numpy as np

        x = np.asarray(value)
        if x.dtype.kind not in "iufV":
            return False
        x = x[~np.isnan(x)] if self.may_be_nan else x
        if x.size == 0:
            return True
        # Sums of probabilities are above 1 by rounding. The extremes of an array with nan are nan.
        slack = 8 * np.finfo(x.dtype).eps if x.dtype.kind == "f" else 0
        ends = [x.min().item(), x.max().item()]
        for limit in (self.least, self.most):
            if limit is not None:
                ends = [limit if abs(end - limit) <= slack else end for end in ends]
        return all(map(self.holds, ends)) and not (self.is_whole and bool(np.any(x % 1)))


def _shown(limit: float | str) -> str:
    return limit if isinstance(limit, str) else f"{limit:.10g}"


class Shape(NamedTuple):
    """Dimensions of an array. A letter stands for one length in all arguments of a call.

    Attributes:
      choices: The shapes that are allowed: letters, numbers for fixed lengths, and "..." at one end
        for any further dimensions.
    """

    choices: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return the shapes in words, such as "of shape [N, P]"."""
        return "of shape " + " or ".join(f"[{', '.join(dims)}]" for dims in self.choices)

    def fits(self, value: Any, lengths: dict[str, int]) -> bool:
        """Tell whether an array has an allowed shape, and note the lengths of its dimensions.

        Args:
          value: The array.
          lengths: Lengths of the dimensions that have been seen in the call, by letter.
        """
        import numpy as np

        for dims in self.choices:
            found, seen = np.shape(value), dict(lengths)
            num = len(dims) - ("..." in dims)
            if "..." in dims and len(found) >= num:
                found = found[:num] if dims[-1] == "..." else found[len(found) - num :]
            letters = [dim for dim in dims if dim != "..."]
            if len(found) == num and all(
                length == (int(dim) if dim.isdigit() else seen.setdefault(dim, length))
                for dim, length in zip(letters, found, strict=True)
            ):
                lengths.update(seen)
                return True
        return False


class OneOf(NamedTuple):
    """Names, one of which a text must be.

    Attributes:
      names: The names.
    """

    names: tuple[str, ...]


def shape(*choices: str) -> Shape:
    """Declare the shape of an array in an annotation, as in `Annotated[Array, shape("N P")]`.

    Args:
      choices: Each the dimensions of an array, separated by spaces; "" for a single number. See
        `Shape`.
    """
    return Shape(tuple(tuple(dims.split()) for dims in choices))
