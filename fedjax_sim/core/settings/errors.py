"""Bad input as one sentence, and values as such sentences show them."""

import contextlib
import importlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedjax_sim.core.lifecycle import InputError, nearest

MOST_SHOWN = 8
"""Numbers of an array up to which a message shows them."""
LONGEST = 200
"""Characters of a value that a message shows."""


class ConfigError(InputError):
    """Bad input, as one sentence with the field, the value and the allowed values.

    If a text was given and the allowed values are a list of names ("one of a, b, c"), the nearest
    of these is suggested. `shown` has what is suggested in the place of names, as `nearest` takes
    it; its names may be more than those in the list.
    """

    def __init__(
        self, field: str, value: object, allowed: str, shown: Mapping[str, str] | None = None
    ):
        self.parts = field, value, allowed
        names = allowed.removeprefix("one of ")
        if isinstance(value, str) and names != allowed:
            known = re.split(", (?:or )?", names) if shown is None else shown
            allowed += nearest(value, known, shown)
        super().__init__(f"{field} is {_shown(value)}, but must be {allowed}.")

    def __reduce__(self) -> tuple[object, ...]:
        # The sentence alone, for other processes: a bad value may be one that cannot be pickled.
        return type(self).__new__, (type(self), *self.args)


class UnknownNameError(ConfigError, KeyError):
    """A name that a table lacks, with the nearest of those that it has."""

    __str__ = Exception.__str__  # That of a `KeyError` would put the sentence in quotes.


class UnknownAttributeError(AttributeError):
    """An attribute that does not exist. The nearest is looked for when the message is read.

    It costs nothing where the error is caught, as by `hasattr`.
    """

    def __init__(self, sentence: str, name: str, known: Iterable[str]):
        """Name the missing attribute.

        Args:
          sentence: The message up to the suggestion.
          name: The name that was asked for.
          known: The names there are.
        """
        super().__init__(sentence)
        self.missing, self.known = name, known

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.missing, list(self.known))

    def __str__(self) -> str:
        return f"{self.args[0]}{nearest(self.missing, self.known)}"


ValueT = TypeVar("ValueT")


class Named(dict[str, ValueT]):
    """Entries by name, such as `SYSTEMS`. A name that is missing gets the nearest one suggested.

    Of `Named.of("rule", Mean, Median)["medain"]` a message says that the nearest is "median".
    """

    def __init__(self, what: str, entries: Mapping[str, ValueT], example: str = ""):
        """Make the table.

        Args:
          what: What the names are of, for the message.
          entries: The entries by name.
          example: A name followed by values, if entries have values.
        """
        super().__init__(entries)
        self.what, self.example = what, example

    @classmethod
    def of(cls, what: str, *entries: Any, example: str = "") -> "Named[Any]":
        """Make a table of entries that have a `name`.

        Args:
          what: As in the table itself.
          entries: The entries, in order.
          example: As in the table itself.

        Returns:
          The table.
        """
        return cls(what, {each.name: each for each in entries}, example)

    def in_words(self) -> str:
        """Return all names, and how values follow them."""
        values = f", with values such as {self.example}" if self.example else ""
        return f"one of {', '.join(self)}{values}"

    def __missing__(self, name: str) -> ValueT:
        raise UnknownNameError(self.what, name, "one of " + ", ".join(self))


@contextlib.contextmanager
def writing_to(field: str, folder: Path, *, make: bool = True) -> Iterator[None]:
    """Make a folder, unless it exists, and turn failures to write there into one sentence.

    Args:
      field: What error messages call it.
      folder: The folder.
      make: Whether to make it.

    Raises:
      ConfigError: If the folder cannot be made, or the block is refused by the disk.
    """
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        allowed = f"a folder that can be created and written ({error.strerror or error})"
        raise ConfigError(field, str(folder), allowed) from None


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


def load_extra(field: str, name: str, module: str) -> ModuleType:
    """Import a package that only one of the package's extras has.

    Args:
      field: What error messages call it, such as "tracker".
      name: Name of the extra, and of the choice that needs it.
      module: The package.

    Returns:
      The module.

    Raises:
      ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        allowed = f'one that is installed: pip install "fedjax-sim[{name}]" installs it'
        raise ConfigError(field, name, allowed) from None


def _shown(value: Any) -> str:
    """Write a value in one line that is not long."""
    size = getattr(value, "size", 0)
    if isinstance(size, int) and size > MOST_SHOWN and hasattr(value, "dtype"):
        return f"an array of shape {list(value.shape)} of {value.dtype}"
    text = " ".join(repr(value).split())
    if len(text) <= LONGEST:
        return text
    is_plain = isinstance(value, str | list | tuple | dict)
    return f"{text[: LONGEST - 4]} ..." if is_plain else f"of type {type(value).__name__}"
