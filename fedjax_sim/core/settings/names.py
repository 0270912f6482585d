"""The settings of a struct: full and short names, meanings, defaults, and conditions of use."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fedjax_sim.core.settings.errors import ConfigError

HyperT = TypeVar("HyperT")
Use = Collection[object] | Callable[[Any], bool]
Uses = Mapping[str, Use]
"""Names of settings, and the values (or a test of them) with which another one has an effect."""
NO_CONDITION: Uses = MappingProxyType({})
Reason = str | tuple[str, Use]
"""Why a setting has no effect: its substitute in words, or another setting, and the condition."""


class Assumed(dict[str, Any]):
    """Settings of a struct that nobody has given, with their values.

    They are defaults, and values of presets. `replace` and JAX keep note of them. All are equal, so
    that structs and compiled programs do not differ by what was given.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assumed)

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __repr__(self) -> str:
        return "Assumed()"


ASSUMED = "_assumed"
"""Name of the field of a struct that holds its `Assumed`."""


class Checked:
    """The end of the chains of `super()` calls of settings structs."""

    def check_together(self) -> None:
        """Check combinations of settings; there are none here."""

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and their substitutes; there are none here.

        Returns:
          Words for what takes the place of each setting, by its full name.
        """
        return {}

    def completed(self, problem: Any) -> Any:
        """Fill in settings that follow from the problem, None for a schedule alone; nothing here.

        Args:
          problem: What is learnt, or None.

        Returns:
          The settings.
        """
        return self


def fields(hyper_type: type) -> Mapping[str, Field]:
    """Return the settable fields of a settings struct by full name.

    The struct's own fields come first, those of the class before those of the classes that it
    inherits, and then the fields of each group, with the defaults that they have there.

    Args:
      hyper_type: A settings struct's class.
    """
    return table_of(hyper_type).fields


def groups(hyper_type: type) -> tuple[Field, ...]:
    """Return the fields that hold groups. hyper_type: A settings struct's class."""
    return table_of(hyper_type).groups


class Table(NamedTuple):
    """The settings of a struct.

    Attributes:
      fields: Settable fields by full name.
      groups: Fields that hold groups.
      own: The struct's own settable fields, and then its groups, by name.
      fixed: Inherited fields that the struct has fixed to one value.
      names: Full names by all names, short ones and full ones.
      conditions: Of dependent settings: the full name, that of another one, the condition on it.
      simpler_at: Values at which settings make the program simpler, by full name.
    """

    fields: Mapping[str, Field]
    groups: tuple[Field, ...]
    own: Mapping[str, Field]
    fixed: tuple[Field, ...]
    names: Mapping[str, str]
    conditions: Sequence[tuple[str, str, Any]]
    simpler_at: Mapping[str, tuple[float, ...]]


@functools.lru_cache(maxsize=256)
def table_of(hyper_type: type) -> Table:
    """Describe the settings of a struct.

    Args:
      hyper_type: A settings struct's class.
    """
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
                default = value_of(owner.default, name)
                inside[full] = dataclasses.field(default=default, metadata=field.metadata)
                inside[full].name = full
    if (settable or held) and not is_struct(hyper_type):
        allowed = "one with the decorator `settings.struct`"
        raise ConfigError("class of settings", hyper_type.__qualname__, allowed)
    inherited = {name for base in bases[1:] for name in fields(base)} - settable.keys()
    fixed = tuple(field for field in ordered if field.name in inherited)
    known = settable | inside
    ends = [name.rpartition(".")[2] for name in known]
    shorts = {end: name for end, name in zip(ends, known, strict=True) if ends.count(end) == 1}
    by_name = MappingProxyType(shorts | {name: name for name in known})
    own = settable | {field.name: field for field in held}
    conditions, simpler_at = [], {}
    for name, field in known.items():
        for other, values in field.metadata["only_with"].items():
            full = f"{name.rpartition('.')[0]}.{other}".lstrip(".")
            conditions.append((name, full, values))
        if field.metadata["simpler_at"]:
            simpler_at[name] = field.metadata["simpler_at"]
    return Table(MappingProxyType(known), held, own, fixed, by_name, conditions, simpler_at)


def is_struct(kind: type) -> bool:
    """Tell whether a class is a settings struct itself, and does not only inherit from one."""
    return "__dataclass_fields__" in vars(kind)


def is_traced(field: Field) -> bool:
    """Tell whether a field can vary between lanes of one compiled program.

    Args:
      field: A field of `fields`.
    """
    return bool(field.metadata.get("pytree_node", True))


def value_of(hyper: object, name: str) -> Any:
    """Return the value of a setting.

    Args:
      name: The setting's full name.
    """
    return functools.reduce(getattr, name.split("."), hyper)


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
    """Return the error for a name that is no setting, or fits several settings of one struct.

    It lists the settings that the name may stand for; if there are none, all settings and groups.

    Args:
      name: The name.
      hyper_types: Classes of the settings structs among whose settings it may be.
    """
    ends: dict[str, str] = {}  # Full names by full and short ones, and groups.
    owners: dict[str, str] = {}
    held: list[str] = []
    for kind in hyper_types:
        for full in fields(kind):
            ends |= {full.rpartition(".")[2]: full, full: full}
            held += [full] if name in full.split(".") else []
        owners |= {field.name: field.name for field in groups(kind)}
    ends |= owners
    if held:
        return ConfigError("setting name", name, f"one of {', '.join(sorted({*held}))}", {})
    known = sorted({*ends.values()}, key=lambda full: ("." in full, full in owners, full))
    return ConfigError("setting name", name, f"one of {', '.join(known)}", ends)


def names_of(hyper_type: type) -> Mapping[str, str]:
    """Return full names by all names, short and full. hyper_type: A settings struct's class."""
    return table_of(hyper_type).names


def known_values(hyper: object) -> Iterator[tuple[str, float]]:
    """Iterate over full names and values of settings that make the program simpler."""
    if dataclasses.is_dataclass(hyper):
        kind: Any = type(hyper)
        for name, values in table_of(kind).simpler_at.items():
            for simple in values:
                if is_known(value_of(hyper, name), simple):
                    yield name, simple


def plain(value: Any) -> Any:
    """Return a number of NumPy or JAX as Python has it. value: Anything; others stay."""
    is_number = isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0
    return value.item() if is_number else value


def is_known(value: object, number: float) -> bool:
    """Tell whether a setting has this value in every lane and was known before tracing.

    Args:
      value: The setting's value, in one lane or in all.
      number: The value to compare with.
    """
    return not isinstance(value, jax.core.Tracer) and bool(np.all(np.asarray(value) == number))


def is_not(number: float) -> Callable[[object], bool]:
    """Return a test for `only_with`: whether a setting may have another value than `number`."""
    return lambda value: not is_known(value, number)


def idle_of(hyper: object) -> dict[str, Reason]:
    """Find the settings without effect, as `only_with` and `decided` say.

    A condition names a setting of the same struct, or of one of its groups.

    Args:
      hyper: Settings, none of which are traced.

    Returns:
      By full name, the substitute in words, or the other setting that decides and the condition on
      it.
    """
    found: dict[str, Reason] = dict(hyper.decided()) if hasattr(hyper, "decided") else {}
    kind: type = type(hyper)
    for name, where, values in table_of(kind).conditions:
        value = value_of(hyper, where)
        if not (values(value) if callable(values) else value in values):
            found.setdefault(name, (where, values))
    return found


def why_idle(hyper: object, reason: Reason) -> str:
    """Say when a setting has no effect, in words that follow "left at its default".

    Args:
      hyper: Settings.
      reason: An entry of `idle_of`.
    """
    if isinstance(reason, str):
        return f"with {reason}, where it has no effect"
    where, values = reason
    if callable(values):
        return f"with {where} = {_shown(value_of(hyper, where))}, where it has no effect"
    return f"unless {where} is {' or '.join(map(repr, values))}"


def late_of(hyper: object, num_ticks: int) -> dict[str, tuple[int, str]]:
    """Find settings that make something begin only after a run of `num_ticks` ticks has ended.

    Returns:
      By full name, the value and what never begins. Settings at their defaults are left out.
    """
    found: dict[str, tuple[int, str]] = {}
    for name, field in fields(type(hyper)).items():
        value, begins = value_of(hyper, name), field.metadata["begins"]
        for part in value if isinstance(value, tuple) else (value,):
            for inside, late in late_of(part, num_ticks).items() if is_struct(type(part)) else ():
                found[f"{name}.{inside}"] = late
        if begins and value != field.default and value >= num_ticks:
            found[name] = int(value), begins
    for name in idle_of(hyper) if found else ():
        found.pop(name, None)
    return found


def is_given(hyper: object, name: str) -> bool:
    """Tell whether a setting was given, even if it is equal to its default.

    Args:
      hyper: Settings.
      name: The setting's full name.
    """
    owner, _, last = name.rpartition(".")
    return last not in getattr(value_of(hyper, owner) if owner else hyper, ASSUMED, ())


def as_default(hyper: HyperT) -> HyperT:
    """Return settings as if they had not been given, such as those of a preset.

    Args:
      hyper: Settings.
    """
    made: Any = dataclasses.replace(hyper)  # type: ignore[type-var]
    for field in groups(type(hyper)):
        object.__setattr__(made, field.name, as_default(getattr(made, field.name)))
    object.__setattr__(made, ASSUMED, assumed_of(made))
    return made


def assumed_of(hyper: Any, given: Collection[str] = ()) -> Assumed:
    """List the settings that were not given, with their values.

    Args:
      hyper: A settings struct.
      given: Names of those of its fields that were given.
    """
    found = Assumed(vars(hyper))
    for name in (*given, ASSUMED):
        found.pop(name, None)
    return found


def usual_values(hyper_type: type, name: str) -> list[Any]:
    """List the defaults of a setting: those of the struct, and of its group's class.

    Args:
      hyper_type: A settings struct's class.
      name: The setting's full name.
    """
    owner, _, last = name.rpartition(".")
    kinds = [type(field.default) for field in groups(hyper_type) if field.name == owner]
    return [fields(hyper_type)[name].default, *(fields(kind)[last].default for kind in kinds)]


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


def default_text(field: Field) -> str:
    """Write a field's default as a user would type it.

    Args:
      field: A field of `fields`.

    Returns:
      The text.
    """
    return _shown(field.default)


def _shown(value: object) -> str:
    """Write a value for people, who should see whether a number is whole."""
    return repr(value) if isinstance(value, float | tuple) else written(value) or repr(value)


def written(value: Any) -> str:
    """Write a value as the command line has it, which other values may have in common."""
    if isinstance(value, functools.partial):
        words = [written(value.func)]
        for name, each in (*(("", x) for x in value.args), *value.keywords.items()):
            text = written(each) if isinstance(each, bool | int | float) else repr(each)
            words.append(f"{name}={text}".removeprefix("="))
        return ":".join(words)
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float):
        # Several are joined by +. Whole numbers are written as integers are.
        return float.__repr__(value).replace("e+", "e").removesuffix(".0")
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return written(np.asarray(value).tolist())
    if isinstance(value, tuple | list):
        return "+".join(map(written, value))
    if hasattr(type(value), "as_csv"):
        return value.as_csv()
    return value.__name__ if callable(value) and hasattr(value, "__name__") else str(value)
