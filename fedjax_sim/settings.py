"""Settings structs whose fields know their meaning and what values are allowed.

A system's `Hyper` is a frozen pytree built by `struct`. Fields made by `real`, `reals`, `whole` and
`weights` are leaves: they are traced and can be swept without recompiling. Fields made by `count`,
`choice`, `switch` and `static` are part of the static structure. A field made by `part` is itself a
settings struct. `check` turns a bad value into one sentence before anything is compiled.

A field made by `group` holds settings that belong together, such as the clients' delays. Its
settings have dotted names, such as `delays.rate_fast`. Wherever a setting is named, the last part
of its name is enough if no other setting ends in it: `Hyper(rate_fast=1.0)` is
`Hyper(delays=ClientDelays(rate_fast=1.0))` with the other delays at the defaults of `Hyper`.

`help(SomeHyper)` ends with a table of its settings: meaning, default and allowed values.
"""

import contextvars
import dataclasses
import functools
import inspect
import math
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from fedjax_sim.lifecycle import InputError, nearest

HyperT = TypeVar("HyperT")
Uses = Mapping[str, tuple[Any, ...] | Callable[[Any], bool]]
"""Names of settings, and the values (or a test of them) with which another one has an effect."""
NO_CONDITION: Uses = MappingProxyType({})
_CHECKING = contextvars.ContextVar("_CHECKING", default=False)
_CHECKED: contextvars.ContextVar[set[Any] | None] = contextvars.ContextVar("_CHECKED", default=None)
FORMER_NAMES = {
    "aggregation": "field_rule",
    "alpha": "regularization",
    "client_weights": "weighting",
    "control": "anchor",
    "delays": "delays_of",
    "participation": "participants",
    "round_time": "round_length",
    "sampling": "batches",
    "weighting": "rule",
}
"""Settings that had one name and several meanings until version 0.1, and their names since."""
GONE = {
    "lr_scale": "left out: multiply lr, or let `optimizer` do it",
    "throttle": "left out: a `client_table` gives single clients their rates",
}
"""Settings that there were until version 0.1, and what to do without them."""
MOST_WHOLE = 2**31 - 1
"""Largest whole number of a setting, as the engine counts in 32 bits."""

MOST_SHOWN = 8
"""Numbers of an array up to which a message shows them."""
LONGEST = 200
"""Characters of a value that a message shows."""


class ConfigError(InputError):
    """Bad input, as one sentence that names the field, the value and what is allowed.

    If a text was given and the allowed values are a list of names ("one of a, b, c"), the nearest
    of these is suggested.
    """

    def __init__(self, field: str, value: object, allowed: str):
        self.parts = field, value, allowed
        known = allowed.removeprefix("one of ")
        if isinstance(value, str) and known != allowed:
            allowed += nearest(value, re.split(", (?:or )?", known))
        super().__init__(f"{field} is {_shown(value)}, but must be {allowed}.")


class DefaultTime(float):
    """A default of a setting in units of time, or per unit, in which nobody has given it.

    A number that a user gives is of another class, even if it is equal. So a default can be told
    apart where a trace or a table of clients brings another unit of time.
    """


class DefaultCount(int):
    """A default number of clients, which nobody has given: a run has those of its problem."""


def check_file(field: str, path: str | Path) -> None:
    """Refuse a pipe, a device or a socket in the place of a file: reading it might never end.

    Args:
      field: What error messages call it.
      path: The file. Whether it exists is left to those who read it.

    Raises:
      ConfigError: If it is something else than a file or a folder.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(field, str(path), "a file on disk, not a pipe or a device")


def real(
    default: float,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    simpler_at: tuple[float, ...] = (),
    of_time: bool = False,
    only_with: Uses = NO_CONDITION,
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
            _accepts_numbers(value)
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


def known_values(hyper: Any) -> Iterator[tuple[str, float]]:
    """Iterate over full names and values of settings that make the program simpler."""
    if dataclasses.is_dataclass(hyper):
        kind: Any = type(hyper)
        for name, values in _simpler_at(kind).items():
            for simple in values:
                if is_known(value_of(hyper, name), simple):
                    yield name, simple


@functools.lru_cache(maxsize=256)
def _simpler_at(hyper_type: type) -> Mapping[str, tuple[float, ...]]:
    """Return the values at which settings make the program simpler, by full name."""
    found = {name: field.metadata.get("simpler_at") for name, field in fields(hyper_type).items()}
    return MappingProxyType({name: values for name, values in found.items() if values})


def is_known(value: Any, number: float) -> bool:
    """Tell whether a setting has this value in every lane and was known before tracing.

    Args:
      value: The setting's value, in one lane or in all.
      number: The value to compare with.
    """
    return not isinstance(value, jax.core.Tracer) and bool(np.all(np.asarray(value) == number))


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
    return with_default(default, metadata | changed)


def count(
    default: int,
    meaning: str,
    *,
    least: int = 1,
    only_with: Uses = NO_CONDITION,
    of_problem: bool = False,
) -> Any:
    """Declare a static whole number: a size, on which shapes depend.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      least: Inclusive lower limit.
      only_with: As in `real`.
      of_problem: Whether it is the number of clients. Its default is then a `DefaultCount`.
    """

    def accepts(value: Any) -> bool:
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        return is_whole and int(value) >= least

    allowed = f"a whole number of at least {least}"
    further = {"only_with": only_with, "of_problem": of_problem}
    return _field(default, meaning, False, accepts, allowed, int, **further)


def whole(
    default: int,
    meaning: str,
    *,
    least: int = 1,
    most: int | None = None,
    only_with: Uses = NO_CONDITION,
) -> Any:
    """Declare a traced whole number: a count on which no shape depends.

    Args:
      default: Default value.
      meaning: What the setting does, in plain words.
      least: Inclusive lower limit.
      most: Inclusive upper limit.
      only_with: As in `real`.
    """

    def accepts(value: Any) -> bool:
        if not _accepts_numbers(value):
            return False
        x = np.asarray(value)
        is_within = np.all(x >= least) and (most is None or np.all(x <= most))
        return bool(is_within and np.all(x == np.round(x)))

    allowed = f"a whole number of at least {least}"
    if most is not None:
        allowed += f" and at most {most}"
    further = {"is_single": True, "only_with": only_with}
    return _field(default, meaning, True, accepts, allowed, int, **further)


def weights(meaning: str) -> Any:
    """Declare a traced vector of positive numbers, one number for all, or None (the default).

    Args:
      meaning: What the setting does, in plain words.
    """

    def accepts(value: Any) -> bool:
        if value is None:
            return True
        is_vector = _accepts_numbers(value) and np.ndim(value) <= 1
        return is_vector and bool(np.all(np.asarray(value) > 0))

    allowed = "None, one finite number above 0, or one for each client"
    return _field(None, meaning, True, accepts, allowed, float)


def choice(
    default: str, options: Iterable[str], meaning: str, *, only_with: Uses = NO_CONDITION
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


def switch(default: bool, meaning: str, *, only_with: Uses = NO_CONDITION) -> Any:
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
    only_with: Uses = NO_CONDITION,
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


def clients_named(meaning: str, *, only_with: Uses = NO_CONDITION) -> Any:
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
    default: Any, allowed: str, kind: type, parse: Callable[[str], Any], *, meaning: str
) -> Any:
    """Declare a setting that is itself a settings struct, such as a compressor.

    The traced fields of the inner struct are traced; its type and static fields are static.

    Args:
      default: Default value.
      allowed: What is allowed, in words.
      kind: Class of the allowed values.
      parse: Reads a value from the command line's text.
      meaning: What the setting does.
    """

    def accepts(value: Any) -> bool:
        if isinstance(value, kind):
            check(value)
            return True
        return False

    return _field(default, meaning, True, accepts, allowed, parse)


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
        if isinstance(value, tuple) and value and all(isinstance(each, kind) for each in value):
            for each in value:
                check(each)
            return True
        return False

    return _field(default, meaning, True, accepts, allowed, parse)


def alternatives(values: Sequence[Any]) -> list[tuple[int, tuple[Any, ...]]]:
    """Arrange settings structs so that all programs have the same alternatives, one of each kind.

    Args:
      values: Structs, several of which may differ in traced numbers alone.

    Returns:
      For each, its place among its alternatives, and these: the kinds in order of appearance, each
      with the numbers of its first, but for the struct itself.
    """
    kinds = [jax.tree.structure(value) for value in values]
    firsts = list(dict.fromkeys(kinds))
    options = [values[kinds.index(kind)] for kind in firsts]
    places = [firsts.index(kind) for kind in kinds]
    return [
        (place, (*options[:place], value, *options[place + 1 :]))
        for place, value in zip(places, values, strict=True)
    ]


def alternatives_in(hyper: Any) -> list[str]:
    """List full names of the settings whose values are one of several alternatives.

    Args:
      hyper: Settings.
    """
    values = {name: value_of(hyper, name) for name in fields(type(hyper))}
    return [
        name
        for name, value in values.items()
        if isinstance(value, OneOfSeveral) and len(value.options) > 1
    ]


def group(default: Any, meaning: str, *, without: tuple[str, ...] = ()) -> Any:
    """Declare a group: a settings struct whose settings belong to those of the owner.

    Args:
      default: The group with the owner's defaults. Other values must be of its class.
      meaning: What the group is about, in a few words.
      without: Names of settings of the group that the owner leaves at their defaults and hides.
    """
    defaults = {
        name: with_default(value_of(default, name), field.metadata).default
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
    return with_default(default, fields(owner)[name].metadata)


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


class Checked:
    """The end of the chains of `super()` calls of settings structs."""

    def check_together(self) -> None:
        """Check combinations of settings; there are none here."""

    def completed(self, problem: Any) -> Any:
        """Fill in settings that follow from the problem, None for a schedule alone; nothing here.

        Args:
          problem: What is learnt, or None.

        Returns:
          The settings.
        """
        return self


class OneOfSeveral(Checked):
    """The common part of kinds that are one of several others, chosen by a number.

    Attributes:
      name: Name on the command line.
      which: Number of the one that is chosen, counted from 0.
      options: The others, none of which has others itself.
    """

    name: str
    which: Any
    options: tuple[Any, ...]

    def check_together(self) -> None:
        """Check that there is one of this number.

        Raises:
          ConfigError: If there is none, or if one of them has others itself.
        """
        super().check_together()
        if any(isinstance(each, OneOfSeveral) for each in self.options):
            texts = " | ".join(map(str, self.options))
            raise ConfigError("options", texts, f"none of which is {self.name}")
        if np.any(np.asarray(self.which) >= len(self.options)):
            allowed = f"below {len(self.options)}, the number of options"
            raise ConfigError("which", self.which, allowed)

    @property
    def chosen(self) -> Any:
        """The one that is chosen, on the host."""
        return self.options[int(self.which)]

    def __str__(self) -> str:
        """Write it as `parse_kind` reads it, those to choose from last."""
        which = f":which={int(self.which)}" if self.which else ""
        return f"{self.name}{which}:options={'|'.join(map(str, self.options))}"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def struct(cls: type[HyperT]) -> type[HyperT]:
    """Make a settings struct of a class: a frozen dataclass, a pytree, with documented fields.

    Settings are given by name only, because their order says nothing. Settings of groups may be
    given by their full names, or by short ones. A name that there is not ends in a `ConfigError`
    with the nearest one. `replace` takes the same names.

        @settings.struct
        class Hyper:
            num_clients: int = settings.count(10, "Number of clients.")
            lr: float = settings.real(0.1, "Learning rate.", above=0)

        Hyper(lr=0.3)
    """
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    made.replace = dataclasses.replace
    init, all_fields = made.__init__, dataclasses.fields(made)
    own = frozenset(field.name for field in all_fields)
    traced, static = (
        [field.name for field in all_fields if is_traced(field) == it] for it in (True, False)
    )
    jax.tree_util.register_dataclass(made, traced, static)

    @functools.wraps(init)
    def with_short_names(self: Any, *args: Any, **settings: Any) -> None:
        if not settings.keys() <= own:
            settings = _in_groups(made, settings, own)
        init(self, *args, **settings)

    made.__init__ = with_short_names
    made.__getattr__ = _say_where
    lines = [f"  {line}" for line in describe(made)]
    if lines:
        made.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "Settings:", *lines, ""])
    return made


def _say_where(hyper: Any, name: str) -> Any:
    """Refuse an attribute that there is not, with the full name of the setting if it is one."""
    # Private names are asked for before there are fields, as by `copy`.
    full = "" if name.startswith("_") else names_of(type(hyper)).get(name, name)
    where = f"; the setting is `{full}`" if full not in ("", name) else ""
    raise AttributeError(f"{type(hyper).__qualname__} has no attribute {name!r}{where}")


def _in_groups(hyper_type: type, settings: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """Put settings that are given by full or short names into their groups."""
    sorted_in = {name: value for name, value in settings.items() if name in own}
    held = {field.name: field for field in groups(hyper_type)}
    given: dict[str, str] = {}
    for name in (name for name in settings if name not in own):
        full = full_name(hyper_type, name)
        if given.setdefault(full, name) != name:
            allowed = f"left out with `{given[full]}`, which is the same setting"
            raise ConfigError("setting name", name, allowed)
        owner, _, rest = full.partition(".")
        inside = sorted_in.get(owner, held[owner].default)
        _check_kind(hyper_type, held[owner], inside)
        sorted_in[owner] = inside.replace(**{rest: settings[name]})
    return sorted_in


def full_name(hyper_type: type, name: str) -> str:
    """Return the full name of a setting, such as `delays.rate_fast`.

    Args:
      hyper_type: A settings struct's class.
      name: The full name, or its last part if no other setting ends in it.

    Raises:
      ConfigError: If there is no such setting, or several.
    """
    known = names_of(hyper_type)
    if name not in known:
        raise unknown_name(name, [hyper_type])
    return known[name]


def unknown_name(name: str, hyper_types: Iterable[type]) -> ConfigError:
    """Return the error for a name that no setting has, or several of one struct.

    It gives today's name of a setting that was renamed, or else the names that there are.

    Args:
      name: The name.
      hyper_types: Classes of the settings structs among whose settings it may be.
    """
    known: set[str] = set()
    ends: set[str] = set()
    for kind in hyper_types:
        if new := names_of(kind).get(FORMER_NAMES.get(name, "")):
            return ConfigError("setting name", name, f"`{new}`, as it is called now")
        known |= {short_name(kind, full) for full in fields(kind)}
        ends |= {full for full in fields(kind) if full.rpartition(".")[2] == name}
    if name in GONE:
        return ConfigError("setting name", name, GONE[name])
    return ConfigError("setting name", name, f"one of {', '.join(sorted(ends or known))}")


def names_of(hyper_type: type) -> Mapping[str, str]:
    """Return the full name of every setting by each of its names, short ones and full ones.

    Args:
      hyper_type: A settings struct's class.
    """
    return _names_of(hyper_type)


@functools.lru_cache(maxsize=256)
def _names_of(hyper_type: type) -> Mapping[str, str]:
    known = fields(hyper_type)
    shorts = {short_name(hyper_type, name): name for name in known}
    return MappingProxyType(shorts | {name: name for name in known})


def short_name(hyper_type: type, name: str) -> str:
    """Return the shortest name of a setting.

    Args:
      hyper_type: A settings struct's class.
      name: The setting's full name.
    """
    end = name.rpartition(".")[2]
    is_only = sum(each.rpartition(".")[2] == end for each in fields(hyper_type)) == 1
    return end if is_only else name


def value_of(hyper: Any, name: str) -> Any:
    """Return the value of a setting.

    Args:
      name: The setting's full name.
    """
    return functools.reduce(getattr, name.split("."), hyper)


def idle_of(hyper: Any) -> set[str]:
    """Return the full names of settings without effect, as `only_with` and `decided` say.

    A condition names a setting of the same struct, or of one of its groups.
    """
    found = set(hyper.decided()) if hasattr(hyper, "decided") else set()
    for name, field in fields(type(hyper)).items():
        owner = value_of(hyper, name.rpartition(".")[0]) if "." in name else hyper
        for other, values in field.metadata.get("only_with", NO_CONDITION).items():
            value = value_of(owner, other)
            if not (values(value) if callable(values) else value in values):
                found.add(name)
    return found


def is_not(number: float) -> Callable[[Any], bool]:
    """Return a test for `only_with`: whether a setting may have another value than `number`."""
    return lambda value: not is_known(value, number)


def describe(hyper_type: type) -> list[str]:
    """Describe every setting: name, meaning, default and allowed values; groups come last.

    Args:
      hyper_type: A settings struct's class.

    Returns:
      One line for each setting, and one before each group.
    """
    lines, owner = [], ""
    meanings = {field.name: field for field in groups(hyper_type)}
    for name, field in fields(hyper_type).items():
        inside, _, last = name.rpartition(".")
        if inside != owner:
            owner, kind = inside, type(meanings[inside].default).__name__
            lines += [f"{owner}: {meanings[inside].metadata['group']} (`{kind}`):"]
        about = f"{field.metadata['meaning']} Default {default_text(field)}; "
        lines += [f"{'  ' if inside else ''}{last}: {about}{field.metadata['allowed']}."]
    return lines


def default_text(field: dataclasses.Field) -> str:
    """Write a field's default as a user would type it.

    Args:
      field: A field of `fields`.

    Returns:
      The text.
    """
    default = field.default
    if callable(default):
        return getattr(default, "__qualname__", repr(default))
    # A part, such as a compressor, is written as the command line reads it.
    return str(default) if dataclasses.is_dataclass(default) else repr(default)


def fields(hyper_type: type) -> Mapping[str, dataclasses.Field]:
    """Return the settable fields of a settings struct by full name.

    The struct's own fields come first, those of the class before those of the classes that it
    inherits, and then the fields of each group, with the defaults that they have there.

    Args:
      hyper_type: A settings struct's class.
    """
    return _fields_of(hyper_type)[0]


def groups(hyper_type: type) -> tuple[dataclasses.Field, ...]:
    """Return the fields of a settings struct that hold groups.

    Args:
      hyper_type: A settings struct's class.
    """
    return _fields_of(hyper_type)[1]


@functools.lru_cache(maxsize=256)
def _fields_of(
    hyper_type: type,
) -> tuple[Mapping[str, dataclasses.Field], tuple[dataclasses.Field, ...], tuple[Any, ...]]:
    """Find settable fields by full name, groups, and fields that a base had left settable."""
    found = {field.name: field for field in dataclasses.fields(hyper_type)}
    bases = [base for base in hyper_type.__mro__ if dataclasses.is_dataclass(base)]
    names = dict.fromkeys(name for base in bases for name in inspect.get_annotations(base))
    ordered = [found[name] for name in names if name in found]
    settable = {field.name: field for field in ordered if "accepts" in field.metadata}
    held = tuple(field for field in ordered if "group" in field.metadata)
    inside = {}
    for owner in held:
        for name, field in fields(type(owner.default)).items():
            if name not in owner.metadata["without"]:
                full = f"{owner.name}.{name}"
                inside[full] = with_default(value_of(owner.default, name), field.metadata)
                inside[full].name = full
    fixed = tuple(
        field
        for field in ordered
        if field.name not in settable and any(field.name in fields(base) for base in bases[1:])
    )
    return MappingProxyType(settable | inside), held, fixed


def is_traced(field: dataclasses.Field) -> bool:
    """Tell whether a field can vary between lanes of one compiled program.

    Args:
      field: A field of `fields`.
    """
    return bool(field.metadata.get("pytree_node", True))


def parse(hyper_type: type, name: str, text: str) -> Any:
    """Read one value of a field from the command line's text.

    Args:
      hyper_type: A settings struct's class.
      name: Name of the setting.
      text: The text.

    Returns:
      The value.

    Raises:
      ConfigError: If there is no setting of this name, or the text is no value of it.
    """
    metadata = fields(hyper_type)[full_name(hyper_type, name)].metadata
    try:
        return metadata["parse"](text)
    except ConfigError:
        raise
    except (ValueError, KeyError, AttributeError):
        raise ConfigError(name, text, metadata["allowed"]) from None


def parse_kind(
    setting: str, kinds: Mapping[str, type], text: str, example: str, *, last: str = ""
) -> Any:
    """Read one of several kinds of settings structs from text, for a setting made by `part`.

    Args:
      setting: Name of the setting, for error messages.
      kinds: The kinds by name.
      text: A name of `kinds`, followed by values for its fields, such as "block:norm=inf:block=9".
        Other fields have their defaults.
      example: An example of such a text, for error messages.
      last: Name of a field whose value is itself a kind, or several: all that follows its name.

    Returns:
      The struct.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    outer, has_last, rest = text.partition(f":{last}=") if last else (text, "", "")
    name, *words = outer.split(":")
    if has_last:
        words.append(f"{last}={rest}")
    if name not in kinds:
        raise ConfigError(
            setting, text, "one of " + ", ".join(kinds) + f", with values such as {example}"
        )
    kind, values = kinds[name], {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field in values:
            raise ConfigError(
                f"{setting} {name}",
                word,
                "name=value with each name once, and the names "
                + (", ".join(fields(kind)) or "none"),
            )
        values[field] = parse(kind, field, value)
    found = kind(**values)
    check(found)
    return found


def write_kind(value: Any) -> str:
    """Write a struct as `parse_kind` reads it: its `name`, and values that are not defaults.

    Args:
      value: A struct with the attribute `name`.

    Returns:
      The text.
    """
    known = fields(type(value))
    given = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.name in known and getattr(value, field.name) != known[field.name].default
    }

    def written(each: Any) -> str:
        if isinstance(each, tuple):
            return "+".join(map(str, each))
        return each if isinstance(each, str) else format(each, ".12g")

    return ":".join([value.name, *(f"{name}={written(each)}" for name, each in given.items())])


def check(hyper: Any) -> None:
    """Check every field, and then combinations of fields by `check_together` if it is defined.

    Settings that a struct has fixed must be as it fixed them.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    within = _CHECKING.set(True)
    try:
        _check_fields(hyper)
        if hasattr(hyper, "check_together"):
            hyper.check_together()
    finally:
        _CHECKING.reset(within)


def check_all(hypers: Sequence[Any]) -> None:
    """Check settings that have many values in common, each of these once.

    Args:
      hypers: Settings of one struct.

    Raises:
      ConfigError: As `check`.
    """
    known = _CHECKED.set(set())
    try:
        for hyper in hypers:
            check(hyper)
    finally:
        _CHECKED.reset(known)


def _is_checked(hyper: Any, name: str) -> bool:
    """Tell whether `check_all` has seen the very value of a field already, and note it."""
    known, entry = _CHECKED.get(), (type(hyper), name, id(getattr(hyper, name)))
    if known is None or entry in known:
        return known is not None
    known.add(entry)
    return False


def _check_fields(hyper: Any) -> None:
    """Check every field alone, and every group."""
    for owner in groups(type(hyper)):
        if not _is_checked(hyper, owner.name):
            _check_kind(type(hyper), owner, getattr(hyper, owner.name))
            _check_group(owner, getattr(hyper, owner.name))
    for name, field in fields(type(hyper)).items():
        if "." in name or _is_checked(hyper, name):
            continue
        value, allowed = getattr(hyper, name), field.metadata["allowed"]
        is_number = isinstance(value, int | float)
        if field.metadata.get("is_single") and not is_number and np.ndim(value) > 0:
            raise ConfigError(name, value, f"{allowed} (to sweep, use settings=...)")
        try:
            is_accepted = field.metadata["accepts"](value)
        except ConfigError as error:
            raise _inside(name, error) if dataclasses.is_dataclass(value) else error from None
        if not is_accepted:
            raise ConfigError(name, value, allowed)
        if field.metadata["parse"] is int and np.any(np.asarray(value) > MOST_WHOLE):
            raise ConfigError(name, value, f"{allowed} and at most {MOST_WHOLE}")
        if is_traced(field) and _accepts_numbers(value):
            _check_range(name, value, allowed)
    kind: type = type(hyper)
    for field in _fields_of(kind)[2]:
        value = getattr(hyper, field.name)
        if value is not field.default and np.any(np.asarray(value != field.default)):
            given = getattr(value, "__name__", value)
            raise ConfigError(field.name, given, f"left at {default_text(field)}")


def _check_kind(hyper_type: type, owner: dataclasses.Field, value: Any) -> None:
    """Check that a group is of its class."""
    kind = type(owner.default)
    if not isinstance(value, kind):
        allowed = f"a `{kind.__module__}.{kind.__name__}`"
        if new := names_of(hyper_type).get(FORMER_NAMES.get(owner.name, "")):
            allowed += f"; the setting of this name is now called `{new}`"
        raise ConfigError(owner.name, value, allowed)


def _check_group(owner: dataclasses.Field, value: Any) -> None:
    """Check a group, whose settings are then named with it."""
    try:
        check(value)
        for name in owner.metadata["without"]:
            if getattr(value, name) != getattr(owner.default, name):
                allowed = f"left at {getattr(owner.default, name)!r}"
                raise ConfigError(name, getattr(value, name), allowed)
    except ConfigError as error:
        raise _inside(owner.name, error) from None


def _inside(owner: str, error: ConfigError) -> ConfigError:
    """Return an error about a setting of a struct that is itself a setting, by its full name."""
    field, value, allowed = error.parts
    return ConfigError(f"{owner}.{field}", value, allowed)


def check_known(value: Any) -> None:
    """Check settings as `check` does, unless some are traced or a check calls functions itself.

    Args:
      value: Settings; any other dataclass is accepted.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    if (
        not _CHECKING.get()
        and fields(type(value))
        and not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    ):
        # While something is traced, JAX would trace what a check computes.
        on_host = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        check(jax.tree.map(on_host, value))


def plain(value: Any) -> Any:
    """Return a number of NumPy or JAX as Python has it, and any other value as it is.

    Args:
      value: Any value.
    """
    is_number = isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0
    return value.item() if is_number else value


def _shown(value: Any) -> str:
    """Write a value in one line that is not long."""
    if getattr(value, "size", 0) > MOST_SHOWN and hasattr(value, "dtype"):
        return f"an array of shape {list(value.shape)} of {value.dtype}"
    text = " ".join(repr(value).split())
    if len(text) <= LONGEST:
        return text
    is_plain = isinstance(value, str | list | tuple | dict)
    return f"{text[: LONGEST - 4]} ..." if is_plain else f"of type {type(value).__name__}"


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
    return with_default(default, {**metadata, **further, "pytree_node": is_traced})


def with_default(default: Any, metadata: Mapping[str, Any]) -> Any:
    """Make a field of its metadata, and mark its default if it depends on what nobody has given.

    Args:
      default: The default.
      metadata: What the field's maker says of it.

    Returns:
      The field.
    """
    if metadata.get("of_time") and default != 0:
        default = DefaultTime(default)
    if metadata.get("of_problem"):
        default = DefaultCount(default)
    return dataclasses.field(default=default, metadata=metadata)


def _check_range(name: str, value: Any, allowed: str) -> None:
    """Check that numbers are neither infinite nor 0 in the type in which lanes compute."""
    if isinstance(value, int | float) and (value == 0 or 1e-30 < abs(value) < 1e30):
        return  # In any type.
    dtype = jax.dtypes.result_type(float)  # 32 bits, unless 64 are enabled.
    limits, size = np.finfo(dtype), np.abs(np.asarray(value, float))
    if np.any((size > 0) & (size < limits.smallest_normal)) or np.any(size > limits.max):
        least, most = float(limits.smallest_normal), float(limits.max)
        allowed += f", and from {least:.2g} to {most:.2g} in size, as a {dtype} can hold it"
        raise ConfigError(name, value, allowed)


def _accepts_numbers(value: Any) -> bool:
    """Tell whether a value is a finite number, or an array of finite numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (str, bytes, bool)) or value is None:
        return False
    x = np.asarray(value)
    return bool(np.issubdtype(x.dtype, np.number) and np.all(np.isfinite(x)))


def _parse_reals(text: str) -> float | tuple[float, ...]:
    try:
        return float(text)
    except ValueError:
        return tuple(float(word) for word in text.split("+"))


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]
