"""Make settings structs: frozen pytrees that know their settings by full and short names."""

import dataclasses
import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import checking
from fedjax_sim.core.checking.errors import ConfigError, UnknownAttributeError
from fedjax_sim.core.settings import checks, declared, names
from fedjax_sim.core.settings.names import ASSUMED, Assumed, Checked, fields, groups

HyperT = TypeVar("HyperT")
ValueT = TypeVar("ValueT")


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
    def number(self) -> jax.Array:
        """Number of the one that is chosen, `i32[]`, as sweeps may trace it as a float."""
        return jnp.asarray(self.which).astype("int32")

    @property
    def chosen(self) -> Any:
        """The one that is chosen, on the host."""
        return self.options[int(self.which)]

    def __str__(self) -> str:
        """Write it as `parse_kind` reads it, those to choose from last."""
        which = f":which={int(self.which)}" if self.which else ""
        return f"{self.name}{which}:options={'|'.join(map(str, self.options))}"


def alternatives(values: Sequence[ValueT]) -> list[tuple[int, tuple[ValueT, ...]]]:
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


def alternatives_in(hyper: object) -> list[str]:
    """List full names of the settings that are one of several alternatives."""
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

        from fedjax_sim.core.checking import Above0, Count

        @settings.struct
        class Hyper:
            num_clients: Count = settings.setting(10, "Number of clients.")
            lr: Above0 = settings.setting(0.1, "Learning rate.")

        Hyper(lr=0.3)
    """
    notes = inspect.get_annotations(cls)
    if any(isinstance(each, str) for each in notes.values()):
        notes = checking.hints_of(cls)
    for name, field in list(vars(cls).items()):
        # One that is declared again has what follows from its first type already.
        about = field.metadata if isinstance(field, dataclasses.Field) else {}
        if "meaning" in about and "is_part" not in about:
            field.metadata = declared.completed(notes[name], field.metadata)
    assumed = dataclasses.field(
        default=Assumed(), repr=False, compare=False, metadata={"pytree_node": False}
    )
    cls.__annotations__ = {**inspect.get_annotations(cls), ASSUMED: Assumed}
    setattr(cls, ASSUMED, assumed)
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    made.replace = _replace
    init, all_fields = made.__init__, dataclasses.fields(made)
    own = frozenset(field.name for field in all_fields) - {ASSUMED}

    @functools.wraps(init)
    def with_short_names(self: object, *args: object, **settings: Any) -> None:
        before = settings.pop(ASSUMED, {})
        if not settings.keys() <= own:
            settings = _in_groups(made, settings, own)
        init(self, *args, **settings)
        # `dataclasses.replace` gives what it does not change as it was.
        given = {name for name in settings if settings[name] is not before.get(name, before)}
        object.__setattr__(self, ASSUMED, names.assumed_of(self, given))

    made.__init__ = with_short_names
    made.__signature__ = _signature_of(made)
    made.__getattr__ = _say_where
    setattr(made, checking.CHECK, checks.check_known)
    made.__repr__ = _write_changed
    _register(made)
    lines = [f"      {line}" for line in names.describe(made)]
    if lines:  # Indented as a class's docstring is, of which `help` removes that.
        made.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "    Settings:", *lines, ""])
    return made


def _register(made: Any) -> None:
    """Make a struct a pytree. Structs that JAX rebuilds are not checked, and keep given names."""
    traced, static = (
        [
            field.name
            for field in dataclasses.fields(made)
            if names.is_traced(field) == it and field.name != ASSUMED
        ]
        for it in (True, False)
    )
    keys = [jax.tree_util.GetAttrKey(name) for name in traced]

    def flatten(hyper: object) -> tuple[list[Any], tuple[Any, ...]]:
        held = vars(hyper)
        # Values would keep arrays alive in what JAX has compiled.
        rest = (*[held[name] for name in static], Assumed.fromkeys(held[ASSUMED]))
        return [held[name] for name in traced], rest

    def flatten_with_keys(hyper: object) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, rest = flatten(hyper)
        return list(zip(keys, leaves, strict=True)), rest

    def unflatten(rest: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
        hyper = object.__new__(made)
        held = dict(zip((*traced, *static), (*leaves, *rest[:-1]), strict=True))
        held[ASSUMED] = Assumed({name: held[name] for name in rest[-1]})
        for name, value in held.items():
            object.__setattr__(hyper, name, value)
        return hyper

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)


def _replace(self: HyperT, **changes: object) -> HyperT:
    """Return the struct with other values, given by full or short names."""
    made: Any = dataclasses.replace(self, **changes)  # type: ignore[type-var]
    for name in changes:  # Even if it is the value that nobody had given.
        getattr(made, ASSUMED).pop(name, None)
    return made


def _signature_of(made: Any) -> inspect.Signature:
    """List a struct's own settings and then its groups, as its documentation does."""
    given = inspect.signature(made.__init__).parameters
    order = [*fields(made), *(field.name for field in groups(made))]
    known = [given[name] for name in order if name in given]
    rest = [each for name, each in given.items() if name not in (*order, "self", ASSUMED)]
    return inspect.Signature([*known, *rest])


def _write_changed(self: Any) -> str:
    """Write a struct with those settings that are not at their defaults."""
    held = [(field, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr]
    written = [f"{field.name}={_shown(value)}" for field, value in held if not _is_at(field, value)]
    return f"{type(self).__qualname__}({', '.join(written)})"


def _shown(value: object) -> str:
    """Write a value without an address, which is another one in each process."""
    is_bare = type(value).__repr__ is object.__repr__
    return f"<{value}>" if is_bare and type(value).__str__ is not object.__str__ else repr(value)


def _is_at(field: dataclasses.Field, value: object) -> bool:
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
    kind: type = type(hyper)
    sentence = f"{kind.__qualname__} has no attribute {name!r}"
    known = names.names_of(kind)
    if name in known:
        raise AttributeError(f"{sentence}; the setting is `{known[name]}`")
    raise UnknownAttributeError(sentence, name, [*known, *(field.name for field in groups(kind))])


def _in_groups(
    hyper_type: type, settings: dict[str, object], own: frozenset[str]
) -> dict[str, object]:
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
        inside: Any = sorted_in.get(owner, held[owner].default)
        checks.check_kind(held[owner], inside)
        sorted_in[owner] = inside.replace(**{rest: settings[name]})
    return sorted_in
