"""Read the texts of flags into values. Every mistake becomes one sentence."""

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results import reports

T = TypeVar("T")
MOST_SEEDS = 10_000


def read_seeds(text: str | None) -> list[int]:
    """Read a number of seeds, or a list of them.

    Args:
      text: A number such as "5" (also the default), which stands for the seeds 0 to 4, or a list
        such as "3,7" or "3..7"; "3," is the list of one seed.

    Raises:
      ConfigError: If the text is neither, or if the list has duplicates or seeds out of range.
    """
    text = text or "5"
    is_list = "," in text or ".." in text
    with contextlib.suppress(ValueError):
        values = [int(word) for word in list_values("seeds", text.rstrip(","))]
        if not is_list and 1 <= values[0] <= MOST_SEEDS:
            return list(range(values[0]))
        if is_list and len({*values}) == len(values) and 0 <= min(values) <= max(values) < 2**31:
            return values
    allowed = (
        f"a number of seeds from 1 to {MOST_SEEDS}, or a list of different whole numbers "
        "from 0 to 2147483647 such as 3,7 or 3..7"
    )
    raise ConfigError("seeds", text, allowed)


def list_values(name: str, text: str) -> list[str]:
    """Split values at commas; a range such as "2..5" stands for the whole numbers from 2 to 5.

    Args:
      name: What the values are of, for the error message.
      text: The values.

    Raises:
      ConfigError: If a range is not rising, or very long.
    """
    values: list[str] = []
    for word in text.split(","):
        ends = re.fullmatch(r"(\d+)\.\.(\d+)", word)
        if not ends:
            values.append(word)
            continue
        first, last = (int(end) for end in ends.groups())
        if not first <= last < first + MOST_SEEDS:
            raise ConfigError(name, word, f"a rising range of at most {MOST_SEEDS} whole numbers")
        values += map(str, range(first, last + 1))
    return values


def read_names(field: str, text: str, known: Iterable[str]) -> list[str]:
    """Read known names that are joined by commas; see `check_name`."""
    return [check_name(field, name, known) for name in text.split(",")]


def read_value(name: str, text: str | None, usual: object, annotation: object) -> Any:
    """Read a value of a declared type, such as `Count`.

    Args:
      name: The flag's name, for the error message.
      text: The text after the flag; None for the default.
      usual: The default.
      annotation: The type, as `fedjax_sim.core.settings` has them.

    Raises:
      ConfigError: If the text is no value of the type.
    """
    if text is None:
        return usual
    kind = settings.kind_of(annotation)
    with contextlib.suppress(ValueError, KeyError):
        if kind.accepts(value := (kind.parse or str)(text), {}):
            return value
    raise ConfigError(name, text, kind.words.replace("a list,", "a list joined by +,"))


def read_settings(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Collect the texts of `--set` and `--trace` by name of the setting.

    Returns:
      One text per value: several for a setting that is swept.

    Raises:
      ConfigError: If a text is not of the form name=value,value,..., of which several may be joined
        by commas, or if a setting is given twice.
    """
    found: dict[str, list[str]] = {}
    given = [] if arguments.trace is None else [("trace", [arguments.trace])]
    for word in arguments.set:
        for one in re.split(r",(?=[\w.-]+=)", word):
            name, equals, values = one.partition("=")
            if not equals or not name or not all(values.split(",")):
                raise ConfigError("--set", one, "name=value, or name=value,value,... for a sweep")
            given.append((name, list_values(name, values)))
    for name, texts in given:
        if name in found:
            allowed = f"left out: it is already {','.join(found[name])!r}"
            raise ConfigError(f"second setting of {name}", ",".join(texts), allowed)
        found[name] = texts
    return found


def read_fields(flag: str, kind: type[T], names: Sequence[str], text: str | None) -> T:
    """Make an object from texts of its fields, such as "timeout_min=120,partition=gpu".

    Args:
      flag: What the texts were given to, for the error message.
      kind: The class, which checks the values.
      names: Names of the fields that may be given.
      text: What the user gave; None for the defaults.

    Raises:
      ConfigError: For an unknown field, a field given twice, or a value of the wrong kind.
    """
    hints, chosen = settings.hints_of(kind), dict[str, Any]()
    for word in text.split(",") if text is not None else []:
        name, equals, value = word.partition("=")
        if name not in names or not equals or name in chosen:
            allowed = f"name=value with different names of {', '.join(names)}"
            raise ConfigError(flag, word, allowed + lifecycle.nearest(name, names))
        chosen[name], parse = value, settings.kind_of(hints[name]).parse or str
        with contextlib.suppress(ValueError, KeyError):  # The class refuses a text.
            chosen[name] = parse(value)
    return kind(**chosen)


def refuse(arguments: argparse.Namespace, names: Iterable[str], allowed: str) -> None:
    """Refuse flags for which the others leave no use.

    Args:
      arguments: The parsed words of a command, which need not have all of these flags.
      names: Names of the flags.
      allowed: What they must be, for the error message.

    Raises:
      ConfigError: If one of them was given.
    """
    for name in names:
        if (value := getattr(arguments, name, None)) not in (None, False):
            raise ConfigError(name, value, allowed)


def command_of(arguments: argparse.Namespace) -> str:
    """Write the command that is running, for whoever wants to run it again."""
    return shlex.join(["fedjax-sim", *arguments.words])


def check_name(field: str, name: str, known: Iterable[str]) -> str:
    """Return a name if it is known.

    Args:
      field: What the name is of, for the error message.
      name: The name.
      known: The names there are.

    Raises:
      ConfigError: If the name is not known.
    """
    if name not in known:
        raise ConfigError(field, name, "one of " + ", ".join(known))
    return name


def find_folder(
    arguments: argparse.Namespace, base: str, *, resume: bool = False
) -> reports.Folder:
    """Find the results folder, without creating it.

    If the user names none, it is the first of base, base-2, base-3, ... that does not exist or is
    empty. To resume, it is the last one before with an unfinished run, or the first of all.

    Args:
      arguments: The parsed words of a command.
      base: The folder's name if the user gives none.
      resume: Whether to continue an unfinished run.

    Raises:
      ConfigError: If the folder is in use, or cannot be used.
    """

    paths = [Path(arguments.out or base)]
    while arguments.out is None and paths[-1].exists():
        if paths[-1].is_dir() and not any(paths[-1].iterdir()):
            break
        paths.append(Path(f"{base}-{len(paths) + 1}"))
    unfinished = (old for old in reversed(paths) if (old / reports.UNFINISHED).exists())
    path = next(unfinished, paths[0]) if resume else paths[-1]
    return reports.Folder(path, resume=resume, overwrite=arguments.overwrite)
