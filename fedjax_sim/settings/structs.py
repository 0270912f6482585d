"""Make settings structs: frozen pytrees that know their settings by full and short names."""

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from fedjax_sim.settings import checks, names
from fedjax_sim.settings.errors import ConfigError, UnknownAttributeError
from fedjax_sim.settings.names import fields, groups

HyperT = TypeVar("HyperT")


class Checked:
    """The end of the chains of `super()` calls of settings structs."""

    def check_together(self) -> None:
        """Check combinations of settings; there are none here."""

    def decided(self) -> dict[str, str]:
        """Name the settings that have no effect, and what takes their place; there are none here.

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
    """List full names of the settings whose values are one of several alternatives."""
    values = {name: names.value_of(hyper, name) for name in fields(type(hyper))}
    return [
        name
        for name, value in values.items()
        if isinstance(value, OneOfSeveral) and len(value.options) > 1
    ]


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
        [field.name for field in all_fields if names.is_traced(field) == it] for it in (True, False)
    )
    jax.tree_util.register_dataclass(made, traced, static)

    @functools.wraps(init)
    def with_short_names(self: Any, *args: Any, **settings: Any) -> None:
        if not settings.keys() <= own:
            settings = _in_groups(made, settings, own)
        init(self, *args, **settings)

    made.__init__ = with_short_names
    made.__signature__ = _signature_of(made)
    made.__getattr__ = _say_where
    made.__repr__ = _write_changed
    lines = [f"      {line}" for line in names.describe(made)]
    if lines:  # Indented as a class's docstring is, of which `help` removes that.
        made.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "    Settings:", *lines, ""])
    return made


def _signature_of(made: Any) -> inspect.Signature:
    """List a struct's own settings and then its groups, as its documentation does."""
    given = inspect.signature(made.__init__).parameters
    order = [*fields(made), *(field.name for field in groups(made))]
    known = [given[name] for name in order if name in given]
    rest = [each for name, each in given.items() if name not in (*order, "self")]
    return inspect.Signature([*known, *rest])


def _write_changed(self: Any) -> str:
    """Write a struct with those settings that are not at their defaults."""
    held = [(field, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr]
    written = [f"{field.name}={_shown(value)}" for field, value in held if not _is_at(field, value)]
    return f"{type(self).__qualname__}({', '.join(written)})"


def _shown(value: Any) -> str:
    """Write a value without an address, which is another one in each process."""
    is_bare = type(value).__repr__ is object.__repr__
    return f"<{value}>" if is_bare and type(value).__str__ is not object.__str__ else repr(value)


def _is_at(field: dataclasses.Field, value: Any) -> bool:
    """Tell whether a setting is at its default. Arrays are written in any case."""
    if value is field.default:
        return True
    try:
        return type(value) is type(field.default) and bool(value == field.default)
    except (ValueError, TypeError, jax.errors.ConcretizationTypeError):
        return False


def _say_where(hyper: Any, name: str) -> Any:
    """Refuse an attribute that there is not, with the setting that it is or may be meant for."""
    # Private names are asked for before there are fields, as by `copy`.
    if name.startswith("_"):
        raise AttributeError(name)
    kind = type(hyper)
    sentence = f"{kind.__qualname__} has no attribute {name!r}"
    known = names.names_of(kind)
    if name in known:
        raise AttributeError(f"{sentence}; the setting is `{known[name]}`")
    raise UnknownAttributeError(sentence, name, [*known, *(field.name for field in groups(kind))])


def _in_groups(hyper_type: type, settings: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """Put settings that are given by full or short names into their groups."""
    sorted_in = {name: value for name, value in settings.items() if name in own}
    held = {field.name: field for field in groups(hyper_type)}
    given: dict[str, str] = {}
    for name in (name for name in settings if name not in own):
        full = names.full_name(hyper_type, name)
        if given.setdefault(full, name) != name:
            allowed = f"left out with `{given[full]}`, which is the same setting"
            raise ConfigError("setting name", name, allowed)
        owner, _, rest = full.partition(".")
        inside = sorted_in.get(owner, held[owner].default)
        checks.check_kind(held[owner], inside)
        sorted_in[owner] = inside.replace(**{rest: settings[name]})
    return sorted_in
