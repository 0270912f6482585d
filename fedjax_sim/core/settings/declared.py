"""Declare the fields of settings structs: meanings, and conditions beyond those of their types.

lr: Above0 = setting(0.1, "Learning rate.")
num_groups: Count = setting(2, "Number of groups.")
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np

from fedjax_sim.core import checking
from fedjax_sim.core.checking.errors import Named
from fedjax_sim.core.settings import names
from fedjax_sim.core.settings.names import Checked, Uses

WHOLE = checking.Limit(is_whole=True)


def setting(
    default: object,
    meaning: str,
    *,
    traced: bool | None = None,
    allowed: str | Named = "",
    accepts: Callable[[object], bool] | None = None,
    parse: Callable[[str], object] | None = None,
    only_with: Uses = names.NO_CONDITION,
    simpler_at: tuple[float, ...] = (),
    of_time: bool = False,
    begins: str = "",
) -> Any:
    """Declare a setting. Allowed values and the reader of text follow from its type.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      traced: Whether it can vary between lanes of one program. By default real numbers and parts,
        such as a compressor, can; whole numbers, on which shapes depend, and all others cannot.
      allowed: What is allowed, in words, instead of the type's; of a part, the kinds by name.
      accepts: A further test of any value, before that of the type.
      parse: Reads a value from the command line's text, instead of the type's reader.
      only_with: What other settings must be for this one to have an effect, see `idle_of`.
      simpler_at: Values at which parts of the program fall away. If all lanes of a program have one
        of them, it is not traced, and `is_known` tells that it has this value.
      of_time: Whether it depends on the unit of time: a trace or a table of clients brings another
        one, and a default other than 0 must then be given.
      begins: What begins after so many server actions, such as "the attack", if it counts these. A
        run that ends before gets a warning, see `late_of`.
    """
    metadata = {
        "meaning": meaning,
        "pytree_node": traced,
        "allowed": allowed,
        "accepts": accepts,
        "parse": parse,
        "only_with": only_with,
        "simpler_at": simpler_at,
        "of_time": of_time,
        "begins": begins,
    }
    return dataclasses.field(default=default, metadata=metadata)


def completed(annotation: object, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete a setting's metadata from its declared type.

    Args:
      annotation: The type.
      metadata: Made by `setting`.

    Returns:
      The metadata, with a test of values, what is allowed in words, and a reader of text.
    """
    kind, held = checking.kind_of(annotation), [*_types_in(annotation)]
    is_part = any(issubclass(each, Checked) for each in held)
    is_traced = metadata["pytree_node"]
    if is_traced is None:
        is_traced = is_part or float in held
    further = metadata["accepts"]

    def accepts(value: Any) -> bool:
        if is_traced and held == [int] and np.ndim(value) == 0 and WHOLE.holds(value):
            value = int(value)  # Lanes hold all their numbers as real ones.
        is_right = (further is None or further(value)) and kind.accepts(value, {})
        return is_right and (is_traced or _is_hashable(value))

    words = re.sub(r"^(.*) or a list, each \1$", r"\1, or several", kind.words)
    allowed = metadata["allowed"] or words
    if isinstance(allowed, Named):
        article = "an" if allowed.what[0] in "aeiou" else "a"
        home = held[0].__module__.rpartition(".")[0]
        allowed = (
            f"{article} {allowed.what} of `{home}`, or one of your own with the decorator "
            f"`settings.struct`; on the command line {allowed.in_words()}"
        )
    of_type = {
        "pytree_node": is_traced,
        "accepts": accepts,
        "allowed": allowed,
        "parse": metadata["parse"] or kind.parse,
        "is_part": is_part,
        "is_single": is_traced and held in ([int], [float]),
    }
    return MappingProxyType({**metadata, **of_type})


def _is_hashable(value: object) -> bool:
    try:
        return isinstance(hash(value), int)
    except TypeError:
        return False


def _types_in(annotation: object) -> list[type]:
    """List the types of which a declared type is made: `[float]` of `Above0 | None`."""
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _types_in(args[0])
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        return [] if annotation in (NoneType, type(...)) else [annotation]
    return [each for arg in args for each in _types_in(arg)]


def clients_named(meaning: str, *, only_with: Uses = names.NO_CONDITION) -> Any:
    """Declare a static tuple of different numbers of clients, by default empty.

    Args:
      meaning: What the setting does.
      only_with: As in `setting`.
    """
    allowed = (
        "a tuple of different numbers of clients, from 0; on the command line joined by +, such "
        "as 0+3"
    )

    def accepts(value: object) -> bool:
        return isinstance(value, tuple) and _is_hashable(value) and len({*value}) == len(value)

    return setting((), meaning, accepts=accepts, allowed=allowed, only_with=only_with)


def group(default: object, meaning: str, *, without: tuple[str, ...] = ()) -> Any:
    """Declare a group: a settings struct within the owner's settings.

    Args:
      default: The group with the owner's defaults. Other values must be of its class.
      meaning: What the group is about, in a few words.
      without: Names of settings of the group that the owner leaves at their defaults and hides.
    """
    metadata = {"group": meaning, "without": without, "pytree_node": True}
    return dataclasses.field(default=names.as_default(default), metadata=metadata)


def redefault(owner: type, name: str, default: object) -> Any:
    """Declare a field or a group inherited from `owner` again, with another default.

    Args:
      owner: The class that declares the field.
      name: Name of the field.
      default: The new default.
    """
    for held in names.groups(owner):
        if held.name == name:
            return group(default, held.metadata["group"], without=held.metadata["without"])
    return dataclasses.field(default=default, metadata=names.fields(owner)[name].metadata)


def fixed(value: object) -> Any:
    """Fix an inherited field to one value and hide it from the settings.

    Args:
      value: The value.

    Returns:
      A field for the inheriting class.
    """
    return dataclasses.field(default=value, metadata={"pytree_node": False})


def filled() -> Any:
    """Declare an array that is filled in from the problem and hidden from the settings.

    It is None until then, and may vary between lanes.
    """
    return dataclasses.field(default=None, metadata={"is_filled": True})
