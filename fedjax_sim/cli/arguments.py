"""Read the texts of flags into values. Every mistake becomes one sentence."""

import argparse
import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from fedjax_sim.cli.parser import PARTITION_FLAGS
from fedjax_sim.core.lifecycle import nearest
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Layout
from fedjax_sim.results.reports import UNFINISHED

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
    allowed = (
        f"a number of seeds from 1 to {MOST_SEEDS}, or a list of different whole numbers "
        "from 0 to 2147483647 such as 3,7 or 3..7"
    )
    text = text or "5"
    try:
        values = [int(word) for word in list_values("seeds", text.rstrip(","))]
    except ValueError:
        raise ConfigError("seeds", text, allowed) from None
    is_list = "," in text or ".." in text
    if not is_list and 1 <= values[0] <= MOST_SEEDS:
        return list(range(values[0]))
    if not is_list or len({*values}) < len(values) or min(values) < 0 or max(values) >= 2**31:
        raise ConfigError("seeds", text, allowed)
    return values


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


def read_number(name: str, text: str | None, default: float) -> float:
    """Read a finite number above 0.

    Args:
      name: The flag's name, for the error message.
      text: What the user gave; None for the default.
      default: The value if no text is given.

    Raises:
      ConfigError: If the text is no finite number above 0.
    """
    allowed = "a finite number above 0"
    try:
        value = default if text is None else float(text)
    except ValueError:
        raise ConfigError(name, text, allowed) from None
    if not (np.isfinite(value) and value > 0):
        raise ConfigError(name, text, allowed)
    return value


def read_whole(name: str, text: str | None, default: int, *, least: int = 1) -> int:
    """Read a whole number of at least 1, or another least number.

    Args:
      name: The flag's name, for the error message.
      text: What the user gave; None for the default.
      default: The value if no text is given.
      least: The least number allowed.

    Raises:
      ConfigError: If the text is no whole number of at least `least`.
    """
    try:
        value = default if text is None else int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(name, text, f"a whole number of at least {least}")
    return value


def read_partition_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the options of the partition that were given, by name.

    Raises:
      ConfigError: If a text is no value of its option.
    """
    readers: dict[str, Any] = {
        "alpha": (float, "a number"),
        "group_sizes": (
            lambda text: tuple(map(int, text.split("+"))),
            "whole numbers joined by +, such as 5+15",
        ),
    }
    options = {}
    for name in PARTITION_FLAGS:
        text = getattr(arguments, name)
        if text is not None:
            read, allowed = readers.get(name, (int, "a whole number"))
            try:
                options[name] = read(text)
            except ValueError:
                raise ConfigError(name, text, allowed) from None
    return options


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


def read_bit_widths(text: str) -> tuple[int, int, int] | None:
    """Read the bits of weights, activations and gradients; "none" gives None.

    Raises:
      ConfigError: If the text is neither "none" nor three whole numbers within their limits.
    """
    if text == "none":
        return None
    try:
        weights, activations, gradients = (int(word) for word in text.split(","))
    except ValueError:
        weights = activations = gradients = 0
    if min(weights, activations, gradients) < 2 or max(weights, activations) > 24 or gradients > 8:
        allowed = "none, or three whole numbers such as 3,3,4: from 2 to 24, 24 and 8"
        raise ConfigError("low_bit", text, allowed)
    return weights, activations, gradients


def read_layout(text: str | None) -> Layout:
    """Read fields of a `Layout`, such as "lanes_at_once=true,lane_devices=2".

    Fields that are not given keep the defaults of `Layout`.

    Raises:
      ConfigError: For an unknown field, a field given twice, or a value of the wrong kind.
    """
    # --max-lanes has the other field.
    return read_fields("--layout", Layout, [*Layout().deciding()], text)


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
    kinds, chosen = get_type_hints(kind), dict[str, Any]()
    for word in text.split(",") if text is not None else []:
        name, equals, value = word.partition("=")
        if name not in names or not equals or name in chosen:
            allowed = f"name=value with different names of {', '.join(names)}"
            raise ConfigError(flag, word, allowed + nearest(name, names))
        options, chosen[name] = {kinds[name], *get_args(kinds[name])}, value
        if bool in options:
            chosen[name] = {"true": True, "false": False}.get(value.lower(), value)
        for read in (float, int) if options & {int, float} else ():
            with contextlib.suppress(ValueError):
                chosen[name] = read(value)
    return kind(**chosen)


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


def choose_folder(base: str, *, resume: bool) -> Path:
    """Choose the results folder if the user names none.

    Args:
      base: The name of the first folder; the next are base-2, base-3, ...
      resume: Whether an unfinished run is to be continued.

    Returns:
      The first folder that does not exist or is empty. To resume: the last folder before it that
      has an unfinished run, or the first of all if none has.
    """
    taken: list[Path] = []
    while True:
        path = Path(base if not taken else f"{base}-{len(taken) + 1}")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            break
        taken.append(path)
    if not resume:
        return path
    unfinished = [old for old in taken if (old / UNFINISHED).exists()]
    return unfinished[-1] if unfinished else Path(base)
