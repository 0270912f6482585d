"""Declare the fields of settings structs: what each means, and which values are allowed."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedjax_sim.settings import checks, names
from fedjax_sim.settings.errors import Named
from fedjax_sim.settings.names import Uses, fields, groups


def real(
    default: float,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    simpler_at: tuple[float, ...] = (),
    of_time: bool = False,
    only_with: Uses = names.NO_CONDITION,
) -> Any:
    """Declare a traced real number.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      above: Exclusive lower limit.
      least: Inclusive lower limit.
      most: Inclusive upper limit.
      simpler_at: Values at which parts of the program fall away. If all lanes of a program have one
        of them, it is not traced, and `is_known` tells that it has this value.
      of_time: Whether it depends on the unit of time. Its default is then a `DefaultTime`, unless
        it is 0, which is the same in all units.
      only_with: What other settings must be for this one to have an effect, see `idle_of`.
    """

    def accepts(value: Any) -> bool:
        if isinstance(value, float):  # The same, without NumPy.
            return (
                math.isfinite(value)
                and (above is None or value > above)
                and (least is None or value >= least)
                and (most is None or value <= most)
            )
        return (
            checks.accepts_numbers(value)
            and (above is None or bool(np.all(np.asarray(value) > above)))
            and (least is None or bool(np.all(np.asarray(value) >= least)))
            and (most is None or bool(np.all(np.asarray(value) <= most)))
        )

    limits = [(above, "above"), (least, "at least"), (most, "at most")]
    words = " and ".join(f"{word} {limit:g}" for limit, word in limits if limit is not None)
    allowed = f"a finite number {words}".rstrip()
    further = {"is_single": True, "simpler_at": simpler_at, "of_time": of_time}
    further |= {"only_with": only_with}
    return _field(default, meaning, True, accepts, allowed, float, **further)


def reals(default: float, meaning: str, **limits: Any) -> Any:
    """Declare a traced number, or a tuple of several, such as one per group.

    As text, several numbers are joined by `+`. The limits are those of `real`.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      limits: As in `real`.
    """
    metadata = dict(real(default, meaning, **limits).metadata)
    allowed = metadata["allowed"] + ", or several"
    changed = {"allowed": allowed, "parse": _parse_reals, "is_single": False}
    return names.with_default(default, metadata | changed)


def count(
    default: int,
    meaning: str,
    *,
    least: int = 1,
    only_with: Uses = names.NO_CONDITION,
    of_problem: bool = False,
    begins: str = "",
) -> Any:
    """Declare a static whole number: a size, on which shapes depend.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      least: Inclusive lower limit.
      only_with: As in `real`.
      of_problem: Whether it is the number of clients. Its default is then a `DefaultCount`.
      begins: What begins after so many server actions, such as "the attack", if it counts these. A
        run that ends before gets a warning, see `late_of`.
    """

    def accepts(value: Any) -> bool:
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        return is_whole and int(value) >= least

    allowed = f"a whole number of at least {least}"
    further = {"only_with": only_with, "of_problem": of_problem, "begins": begins}
    return _field(default, meaning, False, accepts, allowed, int, **further)


def whole(
    default: int,
    meaning: str,
    *,
    least: int = 1,
    most: int | None = None,
    only_with: Uses = names.NO_CONDITION,
    begins: str = "",
) -> Any:
    """Declare a traced whole number: a count on which no shape depends.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      least: Inclusive lower limit.
      most: Inclusive upper limit.
      only_with: As in `real`.
      begins: As in `count`.
    """

    def accepts(value: Any) -> bool:
        if not checks.accepts_numbers(value):
            return False
        x = np.asarray(value)
        is_within = np.all(x >= least) and (most is None or np.all(x <= most))
        return bool(is_within and np.all(x == np.round(x)))

    allowed = f"a whole number of at least {least}"
    if most is not None:
        allowed += f" and at most {most}"
    further = {"is_single": True, "only_with": only_with, "begins": begins}
    return _field(default, meaning, True, accepts, allowed, int, **further)


def weights(meaning: str) -> Any:
    """Declare a traced vector of positive numbers, one number for all, or None (the default).

    Args:
      meaning: What the setting does, in plain words.
    """

    def accepts(value: Any) -> bool:
        if value is None:
            return True
        is_vector = checks.accepts_numbers(value) and np.ndim(value) <= 1
        return is_vector and bool(np.all(np.asarray(value) > 0))

    def parse(text: str) -> float | np.ndarray:
        numbers = [float(word) for word in text.split("+")]
        return numbers[0] if len(numbers) == 1 else np.array(numbers)

    allowed = "None, one finite number above 0, or one for each client"
    return _field(None, meaning, True, accepts, allowed, parse)


def choice(
    default: str, options: Iterable[str], meaning: str, *, only_with: Uses = names.NO_CONDITION
) -> Any:
    """Declare a static name out of a few.

    Args:
      default: Default value.
      options: All values.
      meaning: What the setting does, in plain words.
      only_with: As in `real`.
    """
    options = tuple(options)
    allowed = "one of " + ", ".join(options)
    accepts = lambda value: value in options  # noqa: E731
    return _field(default, meaning, False, accepts, allowed, str, only_with=only_with)


def switch(default: bool, meaning: str, *, only_with: Uses = names.NO_CONDITION) -> Any:
    """Declare a static yes or no.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      only_with: As in `real`.
    """

    def accepts(value: Any) -> bool:
        return isinstance(value, bool)

    allowed = "true or false"
    return _field(default, meaning, False, accepts, allowed, _parse_bool, only_with=only_with)


def static(
    default: Any,
    allowed: str,
    accepts: Callable[[Any], bool],
    parse: Callable[[str], Any] = str,
    *,
    meaning: str,
    only_with: Uses = names.NO_CONDITION,
) -> Any:
    """Declare a static value of any other hashable kind.

    Args:
      default: Default value.
      allowed: What is allowed, in words.
      accepts: Whether a value is allowed.
      parse: Reads a value from the command line's text.
      meaning: What the setting does.
      only_with: As in `real`.
    """
    return _field(default, meaning, False, accepts, allowed, parse, only_with=only_with)


def clients_named(meaning: str, *, only_with: Uses = names.NO_CONDITION) -> Any:
    """Declare a static tuple of different numbers of clients, by default empty.

    As text, they are joined by `+`.

    Args:
      meaning: What the setting does.
      only_with: As in `real`.
    """

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, tuple)
            and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
            and all(each >= 0 for each in value)
            and len(set(value)) == len(value)
        )

    allowed = (
        "a tuple of different numbers of clients, from 0; on the command line joined by +, such "
        "as 0+3"
    )
    parse = lambda text: tuple(int(word) for word in text.split("+"))  # noqa: E731
    return _field((), meaning, False, accepts, allowed, parse, only_with=only_with)


def part(
    default: Any, allowed: str | Named, kind: type, parse: Callable[[str], Any], *, meaning: str
) -> Any:
    """Declare a setting that is itself a settings struct, such as a compressor.

    The traced fields of the inner struct are traced; its type and static fields are static.

    Args:
      default: Default value.
      allowed: What is allowed, in words, or the kinds that the command line names.
      kind: Class of the allowed values.
      parse: Reads a value from the command line's text.
      meaning: What the setting does.
    """

    if isinstance(allowed, Named):
        article = "an" if allowed.what[0] in "aeiou" else "a"
        home = kind.__module__.rpartition(".")[0]
        words = (
            f"{article} {allowed.what} of `{home}`, or one of your own with the decorator "
            f"`settings.struct`; on the command line {allowed.in_words()}"
        )
    else:
        words = allowed
    return _field(default, meaning, True, lambda value: _is_part(value, kind), words, parse)


def _is_part(value: Any, kind: type) -> bool:
    """Tell whether a value is a struct of a kind, and check its settings."""
    if not (isinstance(value, kind) and names.is_struct(type(value))):
        return False
    checks.check(value)
    return True


def parts(
    default: Any, allowed: str, kind: type, parse: Callable[[str], Any], *, meaning: str
) -> Any:
    """Declare a setting that is a tuple of settings structs, such as rules to choose from.

    Args:
      default: Default value, a tuple.
      allowed: As in `part`.
      kind: Class of the members.
      parse: As in `part`.
      meaning: As in `part`.
    """

    def accepts(value: Any) -> bool:
        is_several = isinstance(value, tuple) and len(value) > 0
        return is_several and all(_is_part(each, kind) for each in value)

    return _field(default, meaning, True, accepts, allowed, parse)


def group(default: Any, meaning: str, *, without: tuple[str, ...] = ()) -> Any:
    """Declare a group: a settings struct whose settings belong to those of the owner.

    Args:
      default: The group with the owner's defaults. Other values must be of its class.
      meaning: What the group is about, in a few words.
      without: Names of settings of the group that the owner leaves at their defaults and hides.
    """
    defaults = {
        name: names.with_default(names.value_of(default, name), field.metadata).default
        for name, field in fields(type(default)).items()
    }
    metadata = {"group": meaning, "without": without, "pytree_node": True}
    return dataclasses.field(default=default.replace(**defaults), metadata=metadata)


def redefault(owner: type, name: str, default: Any) -> Any:
    """Declare a field or a group inherited from `owner` again, with another default.

    Args:
      owner: The class that declares the field.
      name: Name of the field.
      default: The new default.
    """
    for held in groups(owner):
        if held.name == name:
            return group(default, held.metadata["group"], without=held.metadata["without"])
    return names.with_default(default, fields(owner)[name].metadata)


def fixed(value: Any) -> Any:
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


def _field(
    default: Any,
    meaning: str,
    is_traced: bool,
    accepts: Callable,
    allowed: str,
    parse: Callable,
    **further: Any,
) -> Any:
    metadata = {"accepts": accepts, "allowed": allowed, "parse": parse, "meaning": meaning}
    return names.with_default(default, {**metadata, **further, "pytree_node": is_traced})


def _parse_reals(text: str) -> float | tuple[float, ...]:
    try:
        return float(text)
    except ValueError:
        return tuple(float(word) for word in text.split("+"))


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]
