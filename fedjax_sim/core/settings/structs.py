"""Make settings structs: frozen pytrees that know their settings by full and short names.

@settings.struct
class Hyper:
    lr: Above0 = settings.setting(0.1, "Learning rate.")
    num_groups: Count = settings.setting(2, "Number of groups.")
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import checks, declared, names
from fedjax_sim.core.settings.errors import ConfigError, Named, UnknownAttributeError
from fedjax_sim.core.settings.names import ASSUMED, Assumed, Checked, Uses, fields, groups

HyperT = TypeVar("HyperT")
ValueT = TypeVar("ValueT")
WHOLE = declared.Limit(is_whole=True)


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
    metadata = {name: value for name, value in locals().items() if name != "default"}
    metadata["pytree_node"] = metadata.pop("traced")
    return dataclasses.field(default=default, metadata=metadata)


def _completed(annotation: object, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete a setting's metadata from its declared type.

    Args:
      annotation: The type.
      metadata: Made by `setting`.

    Returns:
      The metadata, with a test of values, what is allowed in words, and a reader of text.
    """
    kind, held = declared.kind_of(annotation), [*_types_in(annotation)]
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

    allowed = metadata["allowed"] or re.sub(
        r"^(.*) or a list, each \1$", r"\1, or several", kind.words
    )
    if isinstance(allowed, Named):
        article = "an" if allowed.what[0] in "aeiou" else "a"
        home = held[0].__module__.rpartition(".")[0]
        allowed = (
            f"{article} {allowed.what} of `{home}`, or one of your own with the decorator "
            f"`settings.struct`; on the command line {allowed.in_words()}"
        )
    return {
        **metadata,
        "pytree_node": is_traced,
        "accepts": accepts,
        "allowed": allowed,
        "parse": metadata["parse"] or kind.parse,
        "is_part": is_part,
        "is_single": is_traced and held in ([int], [float]),
    }


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
        """Write it as `parse_kind` reads it, the alternatives last."""
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
    found = []
    for name in fields(type(hyper)):
        value = names.value_of(hyper, name)
        if isinstance(value, OneOfSeveral) and len(value.options) > 1:
            found.append(name)
    return found


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def struct(cls: type[HyperT]) -> type[HyperT]:
    """Make a settings struct of a class: a frozen dataclass, a pytree, with documented fields.

    Settings are given by name only, because their order says nothing. Settings of groups may be
    given by their full names, or by short ones. A name that there is not ends in a `ConfigError`
    with the nearest one. `replace` takes the same names.

        @settings.struct
        class Hyper:
            num_clients: settings.Count = settings.setting(10, "Number of clients.")
            lr: settings.Above0 = settings.setting(0.1, "Learning rate.")

        Hyper(lr=0.3)
    """
    notes = inspect.get_annotations(cls)
    if any(isinstance(each, str) for each in notes.values()):
        notes = declared.hints_of(cls)
    for name, field in list(vars(cls).items()):
        # One that is declared again has what follows from its first type already.
        about = field.metadata if isinstance(field, dataclasses.Field) else {}
        if "meaning" in about and "is_part" not in about:
            field.metadata = MappingProxyType(_completed(notes[name], field.metadata))
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
    made.__repr__ = _write_changed
    _register(made)
    lines = [f"      {line}" for line in names.describe(made)]
    if lines:  # Indented as a class's docstring is, of which `help` removes that.
        made.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "    Settings:", *lines, ""])
    return made


def _register(made: Any) -> None:
    """Make a struct a pytree. Structs that JAX rebuilds are not checked, and keep given names."""
    held = [field for field in dataclasses.fields(made) if field.name != ASSUMED]
    traced = [field.name for field in held if names.is_traced(field)]
    static = [field.name for field in held if not names.is_traced(field)]
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
