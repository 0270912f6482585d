"""Settings and the containers of models as JSON, read back without running any code.

The settings of lanes are texts by full name, as the command line has them. An entry is one of

    "0.1"                            text that `settings.parse` reads
    {"default": "0.2"}               a default or a preset's value, which nobody has given
    null                             the default, which has no text
    {"array": ["int32", [3, 4]]}     what the problem has filled in
    {"not saved": "<lambda>"}        a value without a text, see `NotSaved`

The containers of a model are lists and

    {"tuple": [...]}, {"dict": [[key, value], ...]}
    {"class": "module:Class", "fields": {...}}      a named tuple or a dataclass

Classes are found among those of this package and of modules that are imported already. Containers
get their fields without their constructors; those of other kinds come back as dictionaries.
"""

import copy
import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.types import Params
from fedjax_sim.results import records

OWN = __name__.partition(".")[0]
"""This package: modules of it are imported where a class is in one."""
LONGEST = 200
"""Characters of the name of a class."""
DEFAULT, ARRAY, NOT_SAVED = "default", "array", "not saved"
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class UnreadableError(ValueError):
    """Why a value cannot be read, as the end of a sentence."""


@dataclasses.dataclass(frozen=True)
class NotSaved:
    """In loaded settings, the place of a value that was not saved. No check accepts it.

    Attributes:
      description: The value in words.
    """

    description: str


class _Default(NamedTuple):
    """The value of a setting that nobody has given."""

    value: object


def write(hypers: Sequence[Any], without: Collection[str] = ()) -> dict[str, Json]:
    """Write the settings of lanes.

    Args:
      hypers: Their settings, all of one class.
      without: Names of settings of which only a description is kept.

    Raises:
      ConfigError: If another setting has no text.
    """
    kind = type(hypers[0])
    entries: dict[str, Json] = {}
    lanes: dict[str, Json] = {}
    left = {settings.full_name(kind, name) for name in without}
    others = dict.fromkeys(name for hyper in hypers for name, _ in _others(hyper))
    distinct = {id(hyper): hyper for hyper in hypers}
    for name in (*settings.fields(kind), *others):
        is_left = name in left
        texts = {key: json.dumps(_entry(each, name, is_left)) for key, each in distinct.items()}
        number = {text: i for i, text in enumerate(dict.fromkeys(texts.values()))}
        entries[name] = [json.loads(text) for text in number]
        if len(number) > 1:
            lanes[name] = [number[texts[id(hyper)]] for hyper in hypers]
    name = _name_of(kind) or f"{kind.__module__}:{kind.__qualname__}"
    return {"class": name, "settings": entries, "lanes": lanes}


def _others(hyper: Any, owner: str = "") -> Iterator[tuple[str, object]]:
    """Yield full name and value of fields that are not settings and differ from their defaults."""
    for field in dataclasses.fields(hyper):
        value, name = getattr(hyper, field.name), owner + field.name
        if "group" in field.metadata:
            yield from _others(value, f"{name}.")
        elif field.name == settings.ASSUMED or "accepts" in field.metadata:
            continue
        elif not settings.is_same(value, field.default):
            yield name, value


def _entry(hyper: Any, name: str, is_left: bool) -> Json:
    """Write one value."""
    kind, value = type(hyper), settings.value_of(hyper, name)
    if is_left or isinstance(value, NotSaved):
        known = value.description if isinstance(value, NotSaved) else records.text_of(value)
        return {NOT_SAVED: known}
    field = settings.fields(kind).get(name)
    if field is None:
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return {ARRAY: [array.dtype.str, array.tolist()]}
        raise settings.ConfigError(name, value, "an array, to be kept: it is no setting")
    try:
        text = settings.text_of(kind, name, value)
    except settings.ConfigError:
        if settings.is_same(value, field.default):
            return None
        allowed = (
            "a value with a text, as the command line has it, to be kept in settings.json (kinds "
            "of your own have one once they are in their table, such as `rules.RULES`): "
            f"`save(folder, without=[{name!r}])` keeps everything else"
        )
        raise settings.ConfigError(name, value, allowed) from None
    return text if settings.is_given(hyper, name) else {DEFAULT: text}


def read(content: Any, num_lanes: int) -> list[Any]:
    """Read the settings of lanes that `write` wrote.

    Args:
      content: What was written.
      num_lanes: Number of lanes.

    Raises:
      UnreadableError: If the class is not here.
      ConfigError: If a setting is not one of the class, or a text is not one of a value.
      Exception: Of many kinds, if the content is of another form.
    """
    kind, lanes = _class_named(content["class"]), content["lanes"]
    if not dataclasses.is_dataclass(kind) or not settings.fields(kind):
        raise UnreadableError(f"names {content['class']}, which is no class of settings")
    kept = content["settings"].items()
    values = {name: [_value(kind, name, entry) for entry in entries] for name, entries in kept}
    places = [
        tuple(lanes[name][i] if name in lanes else 0 for name in values) for i in range(num_lanes)
    ]
    made = {
        each: _make(kind, {name: values[name][i] for name, i in zip(values, each, strict=True)})
        for each in dict.fromkeys(places)
    }
    return [made[each] for each in places]


def _value(kind: type, name: str, entry: Any) -> object:
    """Read the value of a setting; None stands for its default."""
    if entry is None:
        return None
    if isinstance(entry, str):
        return settings.parse(kind, name, entry)
    ((form, inner),) = entry.items()
    if form == DEFAULT:
        return _Default(settings.parse(kind, name, inner))
    return NotSaved(str(inner)) if form == NOT_SAVED else np.array(inner[1], np.dtype(inner[0]))


def _make(kind: type, values: Mapping[str, object]) -> Any:
    """Make a settings struct. Fields without a text are put in their places unchecked."""
    known = settings.fields(kind)
    unchecked = [name for name, x in values.items() if name not in known or type(x) is NotSaved]
    defaults = {name: x.value for name, x in values.items() if isinstance(x, _Default)}
    given = {name: x for name, x in values.items() if x is not None and name not in unchecked}
    made = kind(**(given | defaults))
    for name, value in defaults.items():
        owner, _, last = name.rpartition(".")
        held = settings.value_of(made, owner) if owner else made
        getattr(held, settings.ASSUMED)[last] = value
    for name in unchecked:
        made = _with(made, name.split("."), values[name])
    return made


def _with(owner: Any, path: Sequence[str], value: object) -> Any:
    """Return a copy of a struct with another value in a field, be it one of its groups."""
    name, *rest = path
    made = copy.copy(owner)
    object.__setattr__(made, name, _with(getattr(owner, name), rest, value) if rest else value)
    return made


def write_containers(tree: Params) -> Json:
    """Write the containers of a tree with texts as leaves."""
    if tree is None or isinstance(tree, str):
        return tree
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    nodes = [(_key(path[0]), write_containers(child)) for path, child in children]
    if type(tree) is list:
        return [node for _, node in nodes]
    if type(tree) is tuple:
        return {"tuple": [node for _, node in nodes]}
    fields, name = _fields_of(type(tree)), _name_of(type(tree))
    if fields and name and {*fields} == {key for key, _ in nodes}:
        return {"class": name, "fields": {str(key): node for key, node in nodes}}
    return {"dict": [[key, node] for key, node in nodes]}


def _key(key: object) -> str | int:
    """Return a child's key, number or name."""
    found = next(getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name))
    return found if type(found) in (str, int) else str(found)


def read_containers(content: Any) -> Params:
    """Read containers that `write_containers` wrote.

    Args:
      content: What was written.

    Raises:
      UnreadableError: If a class is not here, or has other fields.
      Exception: Of many kinds, if the content is of another form.
    """
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return [read_containers(each) for each in content]
    if "tuple" in content:
        return tuple(read_containers(each) for each in content["tuple"])
    if "dict" in content:
        return {key: read_containers(each) for key, each in content["dict"]}
    kind = _class_named(content["class"])
    values = {name: read_containers(each) for name, each in content["fields"].items()}
    if {*values} != {*_fields_of(kind)} or hasattr(kind, "__del__"):
        raise UnreadableError(f"names {content['class']}, which here is another class")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [values[name] for name in _fields_of(kind)])
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _fields_of(kind: type) -> list[str]:
    """List the fields of a dataclass or a named tuple; none of other classes."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return [*getattr(kind, "_fields", ())] if issubclass(kind, tuple) else []


def _name_of(kind: type) -> str | None:
    """Name a class by the outermost module that has it, which stays when files move."""
    parts = kind.__module__.split(".")
    places = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    names = (f"{place}:{kind.__qualname__}" for place in places)
    return next((name for name in names if _find(name) is kind), None)


def _find(name: str) -> object:
    """Find a class by its name in a module that is imported; None if there is none."""
    module, _, names = name.partition(":")
    look_up = lambda place, part: getattr(place, part, None)  # noqa: E731
    return functools.reduce(look_up, names.split("."), sys.modules.get(module))


def _class_named(name: str) -> type:
    """Find a settings struct, a dataclass or a named tuple, such as "fedjax_sim:Timeline"."""
    if not isinstance(name, str) or len(name) > LONGEST:
        raise UnreadableError("names no class")
    module = name.partition(":")[0]
    if module.startswith(f"{OWN}.") and not module.endswith("__main__"):
        try:
            importlib.import_module(module)
        except ImportError:
            raise UnreadableError(f"names {name}, which is not here") from None
    found = _find(name)
    if not isinstance(found, type) or not _fields_of(found):
        advice = f"import {module} first, or define the class again"
        raise UnreadableError(f"names {name}, which is not here: {advice}")
    return found
