"""Declared types: the values that an annotation allows, in words, and their text.

Settings and arguments of calls are declared with the same types. Some say more than `int` or
`float` do, by conditions in `Annotated`: ranges of numbers, shapes of arrays, lists of names.
Type checkers see the plain types.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import math
import operator
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

NUMPYS = ("numpy._typing", "<class 'numpy._typing")
"""How the types begin that NumPy's `ArrayLike` is a union of."""
NAMED_TYPES: Any = getattr(typing, "TypeAliasType", ())
"""The class of types that are named by a statement `type`, as NumPy's are from Python 3.12 on."""
CONTAINERS = ("builtins", "collections.abc")
NO_LISTS = (str, bytes, Mapping)
MOST_WHOLE = 2**63 - 1
"""Largest whole number that an array can hold."""
Lengths = dict[str, int]
"""Lengths of the dimensions that have been seen in a call, by letter."""


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
        if None not in (self.least, self.most) and self.above is self.below is None:
            return f"from {self.least:.10g} to {self.most:.10g}"
        words, text = ("of at least", "above", "of at most", "below"), []
        limits = self.least, self.above, self.most, self.below
        for word, limit in zip(words, limits, strict=True):
            if limit is not None:
                text.append(f"{word} {limit if isinstance(limit, str) else f'{limit:.10g}'}")
        return " and ".join(text)

    def holds(self, value: object, lengths: Mapping[str, int] = types.MappingProxyType({})) -> bool:
        """Tell whether numbers are finite and within the limits.

        Args:
          value: A number or an array, known before tracing.
          lengths: Lengths of the dimensions that have been seen in the call, by letter.
        """
        if isinstance(value, int | float):
            below = lengths.get(self.below) if isinstance(self.below, str) else self.below
            return (
                not isinstance(value, bool)
                and (isinstance(value, int) or math.isfinite(value))
                and (self.least is None or value >= self.least)
                and (self.most is None or value <= self.most)
                and (self.above is None or value > self.above)
                and (below is None or value < below)
                and not (self.is_whole and value != math.floor(value))
            )
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
        are_within = self.holds(ends[0], lengths) and self.holds(ends[1], lengths)
        return are_within and not (self.is_whole and bool(np.any(x % 1)))


class Shape(NamedTuple):
    """Dimensions of an array. A letter stands for one length in all arguments of a call.

    Attributes:
      choices: The shapes that are allowed: letters, numbers for fixed lengths, and "..." at one end
        for any further dimensions.
    """

    choices: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return the shapes in words, such as "of shape [N, P]"."""
        return "of shape " + " or ".join(map("[{}]".format, map(", ".join, self.choices)))

    def fits(self, value: Any, lengths: dict[str, int]) -> bool:
        """Tell whether an array has an allowed shape, and note the lengths of its dimensions.

        Args:
          value: The array.
          lengths: Lengths of the dimensions that have been seen in the call, by letter.
        """
        for choice in self.choices:
            dims, found, seen = list(choice), list(np.shape(value)), dict(lengths)
            if "..." in dims and len(found) >= len(dims) - 1:
                place = dims.index("...")  # Of any further dimensions, which are not looked at.
                del found[place : place + len(found) - len(dims) + 1], dims[place]
            wanted = []
            for dim, length in zip(dims, found, strict=False):
                wanted.append(int(dim) if dim.isdigit() else seen.setdefault(dim, length))
            if len(found) == len(dims) and wanted == found:
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


Count = Annotated[int, Limit(least=1)]
"""How many there are of something that must be there."""
Whole = Annotated[int, Limit(least=0)]
"""A whole number that may be 0."""
Seed = Annotated[int, Limit(least=0)]
"""A seed of random numbers."""
LaneSeed = Annotated[int, Limit(least=0, most=2**31 - 1)]
"""A seed of a run, which lanes hold in 32 bits."""
Above0 = Annotated[float, Limit(above=0)]
"""A finite number above 0, such as a time, a rate or a scale."""
AtLeast0 = Annotated[float, Limit(least=0)]
"""A finite number of at least 0, such as a standard deviation."""
AtLeast1 = Annotated[float, Limit(least=1)]
"""A finite number of at least 1, such as a factor that lengthens."""
Portion = Annotated[float, Limit(above=0, most=1)]
"""A number above 0 and of at most 1, such as the share that is kept."""
Probability = Annotated[float, Limit(least=0, most=1)]
"""A number from 0 to 1."""
Finite = Annotated[float, Limit()]
"""A number that is neither infinite nor nan."""
FloatType = Annotated[str, OneOf(("float16", "bfloat16", "float32", "float64"))]
"""The name of a type of real numbers."""
Share = Annotated[float, Limit(least=0, below=1)]
"""A share of a whole that may be nothing, but not all."""
Fraction = Annotated[float, Limit(above=0, below=1)]
"""A share of a whole that is neither nothing nor all."""


class Kind(NamedTuple):
    """The values that an annotation allows.

    Attributes:
      accepts: Whether a value is allowed, given the lengths of dimensions seen so far in the call.
      words: What is allowed, in words.
      parse: Reads a value from the command line's text; None if there is no such text.
    """

    accepts: Callable[[object, Lengths], bool]
    words: str
    parse: Callable[[str], object] | None = None


def hints_of(source: object) -> dict[str, Any]:
    """Read annotations, also those with names that are imported for type checkers alone.

    Args:
      source: A function or a class.

    Returns:
      The annotations by name.
    """
    with contextlib.suppress(NameError):
        return typing.get_type_hints(source, include_extras=True)
    module = sys.modules[source.__module__]
    names = dict(vars(module))
    # Python's `ast.parse` fails now and then if two threads call it.
    blocks = re.findall(r"^if TYPE_CHECKING:\n((?: .*\n|\n)+)", inspect.getsource(module), re.M)
    exec(textwrap.dedent("".join(blocks)), names)
    return typing.get_type_hints(source, names, include_extras=True)


def kind_of(annotation: Any) -> Kind:
    """Read the values that an annotation allows.

    Args:
      annotation: A type, perhaps with limits or a shape.

    Returns:
      The test of a value, with its words and reader of text.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation == ArrayLike:
        return ARRAY
    if origin is typing.Annotated:
        return functools.reduce(_narrowed, annotation.__metadata__, kind_of(args[0]))
    if origin in (types.UnionType, typing.Union):
        return _kind_of_union(args)
    if origin is typing.Literal:
        return _kind_of_names(args)
    kind = origin or annotation
    if isinstance(kind, TypeVar):
        return OPEN
    if isinstance(kind, NAMED_TYPES):
        return kind_of(kind.__value__)
    if kind in UNCHECKED:
        return ANYTHING
    if not isinstance(kind, type):
        raise TypeError(f"The annotation {annotation} cannot be checked.")
    if kind is type:
        return Kind(lambda value, _: isinstance(value, type), "a class")
    if kind.__module__.partition(".")[0] in ("numpy", "jax", "jaxlib") and hasattr(kind, "ndim"):
        return ARRAY
    if issubclass(kind, os.PathLike):
        return PATH
    if kind is collections.abc.Callable:
        return Kind(lambda value, _: callable(value), "a function")
    if issubclass(kind, Mapping):
        keys, values = map(kind_of, args or (Any, Any))
        return Kind(
            lambda given, _: (
                isinstance(given, Mapping)
                and all(keys.accepts(k, {}) and values.accepts(v, {}) for k, v in given.items())
            ),
            f"a mapping from {keys.words} to {values.words}",
        )
    if issubclass(kind, collections.abc.Iterable) and kind.__module__ in CONTAINERS:
        return _kind_of_several(kind, args)
    name = f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"
    if getattr(kind, "_is_protocol", False):
        members = members_of(kind)
        # Looked up in the class where possible, as a property may take long to compute.
        return Kind(
            lambda value, _: all(
                hasattr(type(value), each) or each in getattr(value, "__dict__", ())
                for each in members
            ),
            f"{name}, with {', '.join(sorted(members))}",
        )
    return Kind(lambda value, _: isinstance(value, kind), name)


def members_of(protocol: type) -> list[str]:
    """List the public members of a protocol, inherited ones first.

    Args:
      protocol: Its class.
    """
    found: dict[str, object] = {}
    for base in reversed(protocol.__mro__):
        if getattr(base, "_is_protocol", False):
            found |= vars(base) | inspect.get_annotations(base)
    return [name for name in found if not name.startswith("_")]


def _narrowed(kind: Kind, narrow: object) -> Kind:
    """Narrow a kind by an annotation's further conditions."""
    if isinstance(narrow, Limit):
        words = kind.words.replace("a number", "a finite number")
        if "array" in words:
            words += f" of {'whole' if narrow.is_whole else 'finite'} numbers"
        return kind._replace(
            accepts=lambda value, lengths: (
                kind.accepts(value, lengths) and (_is_traced(value) or narrow.holds(value, lengths))
            ),
            words=f"{words} {narrow}".rstrip(),
        )
    if isinstance(narrow, OneOf):
        return _kind_of_names(narrow.names)
    if isinstance(narrow, Shape):
        return Kind(
            lambda value, lengths: kind.accepts(value, lengths) and narrow.fits(value, lengths),
            f"{kind.words} {narrow}",
        )
    return NAMED.get(narrow, kind) if isinstance(narrow, str) else kind


def _kind_of_names(names: Sequence[str]) -> Kind:
    """Describe a text that is one of a few."""
    return Kind(
        lambda value, _: isinstance(value, str) and value in names,
        f"one of {', '.join(map(str, names))}",
        lambda text: names[names.index(text)],
    )


def _kind_of_union(args: Sequence[object]) -> Kind:
    """Join kinds. A union has an array where it has all that NumPy makes an array of."""
    kinds = [kind_of(each) for each in args if not str(each).startswith(NUMPYS)]
    for kind in (OPEN, ANYTHING):
        if kind in kinds:
            return kind
    if ARRAY in kinds or len(kinds) < len(args):
        kinds = [kind for kind in kinds if kind not in (*SCALARS.values(), ARRAY)] + [ARRAY]
    if PATH in kinds:
        kinds.remove(SCALARS[str])
    kinds.sort(key=NOTHING.__eq__)
    words = list(dict.fromkeys(map(operator.attrgetter("words"), kinds)))

    def parse(text: str) -> Any:
        for kind in kinds:
            with contextlib.suppress(ValueError):
                return _parsed(kind, text)
        raise ValueError(text)

    return Kind(
        lambda value, lengths: any(kind.accepts(value, lengths) for kind in kinds),
        ", ".join([*words[:-2], " or ".join(words[-2:])]),
        parse,
    )


def _kind_of_several(kind: type, args: Sequence[object]) -> Kind:
    """Describe a list, a tuple, an array of one dimension, or another iterable.

    Elements are looked at only if this does not use them up.
    """
    if kind is tuple and args and args[-1] is not Ellipsis:
        kinds = [kind_of(each) for each in args]
        return Kind(
            lambda value, _: (
                _is_list(value)
                and len(value) == len(kinds)
                and all(each.accepts(item, {}) for each, item in zip(kinds, value, strict=True))
            ),
            f"{len(kinds)} values: " + ", ".join(each.words for each in kinds),
            lambda text: tuple(map(_parsed, kinds, text.split("+"))),
        )
    of = kind_of(args[0]) if args else ANYTHING
    is_open = not issubclass(kind, Sequence)  # To sets and iterators too.
    return Kind(
        lambda value, _: (
            # An array's elements are looked at as Python has them.
            of is ANYTHING
            or all(of.accepts(item, {}) for item in getattr(value, "tolist", lambda: value)())
            if _is_list(value)
            else is_open
            and isinstance(value, kind)
            and not isinstance(value, NO_LISTS)
            and _dims(value) != 0
        ),
        "a list" if of is ANYTHING else f"a list, each {of.words}",
        lambda text: tuple(_parsed(of, word) for word in text.split("+")),
    )


def _dims(value: object) -> int | None:
    """Return an array's number of dimensions; None of anything else."""
    found = getattr(value, "ndim", None)
    return found if isinstance(found, int) and not isinstance(value, type) else None


def _is_list(value: object) -> typing.TypeGuard[Sequence[object]]:
    return bool(_dims(value)) or (isinstance(value, Sequence) and not isinstance(value, NO_LISTS))


def _is_traced(value: object) -> bool:
    return isinstance(value, jax.core.Tracer)


def _kind_of_scalar(value: object) -> str:
    """Return NumPy's letter for the kind of a single number, such as "f"; "" if it is none."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int | float):
        return "f" if isinstance(value, float) else "i"
    dtype = getattr(value, "dtype", None)
    if dtype is None or _dims(value) != 0:
        return ""
    return "f" if str(dtype).startswith(("bfloat", "float")) else getattr(dtype, "kind", "")


def _accepts_whole(value: object, _: Lengths) -> bool:
    is_whole = _kind_of_scalar(value) in ("i", "u")
    return is_whole and (not isinstance(value, int) or abs(value) <= MOST_WHOLE)


def _accepts_number(value: object, _: Lengths) -> bool:
    is_real = _kind_of_scalar(value) == "f" and (_is_traced(value) or bool(value == value))
    return is_real or _accepts_whole(value, _)


def _accepts_array(value: object, _: Lengths) -> bool:
    """Tell whether a value is an array or a number, or is listed as one."""
    if isinstance(value, bool | int | float):
        return isinstance(value, float) or abs(value) <= MOST_WHOLE
    if isinstance(value, type | types.ModuleType):
        return False
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        is_key = str(value.dtype).startswith("key<")
        return not (is_key or getattr(value.dtype, "kind", "") in "Oc")
    if not isinstance(value, list | tuple):
        return hasattr(value, "__array__")
    try:
        return np.asarray(value).dtype.kind in "biufUSV"
    except (TypeError, ValueError):  # Ragged, or traced.
        return bool(value) and all(_is_traced(each) for each in value)


def _shape_of_keys(value: object) -> tuple[int, ...] | None:
    """Return the shape of an array of random keys; None of anything else."""
    dtype, shape = str(getattr(value, "dtype", "")), getattr(value, "shape", ())
    if dtype == "uint32" and shape[-1:] == (2,):  # The older kind of keys.
        return shape[:-1]
    return shape if dtype.startswith("key<") else None


def _accepts_tree(value: object, _: Lengths) -> bool:
    """Tell whether a value is one model or more: a pytree of arrays."""
    return value is not None and all(
        _dims(leaf) is not None and getattr(getattr(leaf, "dtype", None), "kind", "O") not in "OUSM"
        for leaf in jax.tree.leaves(value)
    )


def _accepts_path(value: object, _: Lengths) -> bool:
    if isinstance(value, str):
        return bool(value) and "\0" not in value
    return isinstance(value, os.PathLike)


def _parsed(kind: Kind, text: str) -> Any:
    """Read a value from the command line's text."""
    if kind.parse is None:
        raise ValueError(text)
    return kind.parse(text)


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


OPEN = Kind(lambda value, _: True, "anything")
"""The kind of a type variable: the function itself checks the argument."""
ANYTHING = Kind(lambda value, _: True, "anything")
ARRAY = Kind(_accepts_array, "an array")
PATH = Kind(_accepts_path, "a path")
NAMED = {
    "a random key": Kind(
        lambda value, _: _shape_of_keys(value) == (),
        "a single random key, such as jax.random.key(0)",
    ),
    "random keys": Kind(
        lambda value, _: len(_shape_of_keys(value) or ()) == 1, "random keys, `[S]`"
    ),
    "a pytree of arrays": Kind(_accepts_tree, "a model, a pytree of arrays"),
    "settings": Kind(
        lambda value, _: dataclasses.is_dataclass(value) and not isinstance(value, type),
        "settings, an instance of a class with the decorator `settings.struct`",
    ),
}
"""The kinds that annotations name."""
SCALARS: dict[Any, Kind] = {
    bool: Kind(lambda value, _: _kind_of_scalar(value) == "b", "true or false", _parse_bool),
    int: Kind(_accepts_whole, "a whole number", int),
    float: Kind(_accepts_number, "a number", float),
    complex: Kind(lambda value, _: isinstance(value, complex), "a complex number"),
    str: Kind(lambda value, _: isinstance(value, str), "text", str),
    bytes: Kind(lambda value, _: isinstance(value, bytes), "bytes"),
}
"""The types of single values that NumPy makes arrays of."""
NOTHING = Kind(lambda value, _: value is None, "None")
SIMPLE: dict[Any, Kind] = {Any: ANYTHING, None: NOTHING, type(None): NOTHING, **SCALARS}
UNCHECKED = (object, Hashable, typing.Self, typing.ClassVar, typing.Unpack, dataclasses.KW_ONLY)
"""Annotations that every argument satisfies, or that no argument has."""
