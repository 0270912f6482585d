"""Read and write settings as the command line has them."""

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_sim.core.settings.checks import check
from fedjax_sim.core.settings.errors import ConfigError, Named
from fedjax_sim.core.settings.names import Checked, fields, full_name, written

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


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
    full = full_name(hyper_type, name)
    metadata = fields(hyper_type)[full].metadata
    try:
        return metadata["parse"](text)
    except ConfigError as error:
        # Of the text, or of the name with which it begins; others have their own field.
        _, value, allowed = error.parts
        if not isinstance(value, str) or value != text.partition(":")[0]:
            raise
        raise ConfigError(full, value, allowed) from None
    except (ValueError, KeyError, AttributeError, TypeError):  # None reads no text.
        raise ConfigError(full, text, metadata["allowed"]) from None


def parse_kind(setting: str, kinds: Named[Any], text: str, *, last: str = "") -> Any:
    """Read one of several kinds of settings structs from text, for a setting that is a part.

    Args:
      setting: Name of the setting, for error messages.
      kinds: The kinds by name.
      text: A name of `kinds`, followed by values for its fields, such as "block:norm=inf:block=9".
        Other fields have their defaults.
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
        raise ConfigError(setting, name, kinds.in_words())
    kind, values = kinds[name], {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field in values:
            known = ", ".join(fields(kind)) or "none"
            allowed = f"name=value with each name once, and the names {known}"
            raise ConfigError(f"{setting} {name}", word, allowed)
        values[field] = parse(kind, field, value)
    found = kind(**values)
    check(found)
    return found


def parse_function(functions: Mapping[str, FunctionT], text: str) -> FunctionT:
    """Read a function and arguments for it, such as "sgd:momentum=0.9:nesterov=true".

    Equal texts are one object, so that programs are shared.

    Args:
      functions: The functions by name.
      text: A name, and arguments for `functools.partial`.

    Returns:
      The function, with its arguments.

    Raises:
      KeyError: For an unknown name.
      ValueError: If an argument is no number, text in quotation marks, true, false or None, or is
        there twice.
    """
    name, *words = text.split(":")
    return _with_arguments(functions[name], tuple(words)) if words else functions[name]


@functools.lru_cache(maxsize=256)
def _with_arguments(function: Callable[..., object], words: tuple[str, ...]) -> Any:
    try:
        given = [word.rpartition("=") for word in words]
        values = [
            text == "true" if text in ("true", "false") else ast.literal_eval(text)
            for *_, text in given
        ]
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    pairs = list(zip((name for name, *_ in given), values, strict=True))
    named, others = dict(pairs), [value for name, value in pairs if not name]
    named.pop("", None)
    if len(named) + len(others) < len(pairs):
        raise ValueError("an argument is there twice")
    return functools.partial(function, *others, **named)


def text_of(hyper_type: type, name: str, value: object) -> str:
    """Write one value of a field as text that `parse` reads back, to the last bit.

    Args:
      hyper_type: A settings struct's class.
      name: Full name of the setting.
      value: The value.

    Returns:
      The text.

    Raises:
      ConfigError: If the value has no such text, as a lambda, or a rule that is in no table.
    """
    text = written(value)
    try:
        if is_same(parse(hyper_type, name, text), value):
            return text
    except (ValueError, TypeError):
        pass
    allowed = "a value that a text stands for, as on the command line"
    raise ConfigError(name, value, allowed)


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two values of a setting are the same, to the last bit.

    Numbers may be of different types, and several may be in a tuple or in an array.

    Args:
      one: A value.
      other: Another value.
    """
    if one is other or one is None or other is None:
        return one is other
    if isinstance(one, str) != isinstance(other, str) or written(one) != written(other):
        return False
    if callable(one) or callable(other):
        return getattr(one, "func", one) is getattr(other, "func", other)
    if dataclasses.is_dataclass(one):  # Other classes may have the same name.
        kinds = {jax.tree.structure(each) for each in (one, other)}
        return len(kinds) == 1
    return np.shape(one) == np.shape(other)


class Kind(Checked):
    """The common base of attacks, rules, compressors and other parts of several kinds.

    Attributes:
      name: Name on the command line. It is a static field because JAX treats dataclasses with equal
        fields as the same kind of pytree, whatever their class.
    """

    name: str

    def __str__(self) -> str:
        """Write the name, and values that are not defaults, as `parse_kind` reads them."""
        words, known = [self.name], fields(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in known and not is_same(value, known[field.name].default):
                words.append(f"{field.name}={written(value)}")
        return ":".join(words)
