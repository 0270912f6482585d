"""Read and write settings as the command line has them."""

import dataclasses
from typing import Any

from fedjax_sim.checking.errors import ConfigError, Named
from fedjax_sim.settings.checks import check
from fedjax_sim.settings.names import Checked, fields, full_name


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


class Kind(Checked):
    """The common base of what has several kinds, such as attacks, rules or compressors.

    Attributes:
      name: Name on the command line. It is a static field because JAX treats dataclasses with equal
        fields as the same kind of pytree, whatever their class.
    """

    name: str

    def __str__(self) -> str:
        """Write the name, and values that are not defaults, as `parse_kind` reads them."""
        known = fields(type(self))
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.name in known and getattr(self, field.name) != known[field.name].default
        }

        def written(each: Any) -> str:
            if isinstance(each, tuple):
                return "+".join(map(str, each))
            return each if isinstance(each, str) else format(each, ".12g")

        return ":".join([self.name, *(f"{name}={written(each)}" for name, each in given.items())])
