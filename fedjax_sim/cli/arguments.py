"""The command line's words, read into values; every mistake becomes one sentence."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedjax_sim.engine.placement import Layout
from fedjax_sim.settings import ConfigError

MOST_SEEDS = 10_000
OF_GRADIENTS = ("convolution", "augmentation", "low_bit")
OF_MIXTURES = ("components", "dimensions")
"""Flags of one kind of systems."""


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split("+"))


PARTITION_OPTIONS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "classes": (int, "a whole number"),
    "alpha": (float, "a number"),
    "shards_per_client": (int, "a whole number"),
    "min_examples": (int, "a whole number"),
    "group_sizes": (_whole_numbers, "whole numbers joined by +, such as 5+15"),
}


class UsageError(ConfigError):
    """A mistake in the words themselves."""

    def __init__(self, sentence: str):
        ValueError.__init__(self, sentence)


class Parser(argparse.ArgumentParser):
    """Parses one command, and raises ConfigError where argparse would print its usage and exit.

    argparse rather than tyro, which answers a mistake with a box of many lines where one sentence is wanted, and cannot tell `--set` of
    several systems from a type.
    """

    def error(self, message: str) -> NoReturn:
        """Raise what argparse complains of as a sentence."""
        raise UsageError(
            message.removeprefix("argument ")[:1].lower()
            + message.removeprefix("argument ")[1:].rstrip(".")
            + "."
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words, flags and names in any order."""
        known, unknown = self.parse_known_intermixed_args(words)
        flags = sorted(
            flag
            for action in self._actions
            for flag in action.option_strings
            if flag.startswith("--")
        )
        for word in unknown:
            allowed = (
                "one of " + ", ".join(flags)
                if word.startswith("-")
                else "left out: this command takes no such name"
            )
            raise ConfigError("flag" if word.startswith("-") else "argument", word, allowed)
        return known


class Once(argparse.Action):
    """Stores a flag's value, and refuses the flag a second time."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Any = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            raise ConfigError(
                f"second {option_string}",
                values,
                f"left out: it is already {getattr(namespace, self.dest)!r}",
            )
        setattr(namespace, self.dest, values)


def parser_of(command: str, summary: str) -> Parser:
    """The parser of a command; all values stay text, for `seeds`, `number` and the like to read."""
    parser = Parser(prog=f"fedjax-sim {command}", description=summary, allow_abbrev=False)
    if command == "list":
        parser.add_argument(
            "systems",
            nargs="*",
            metavar="SYSTEM",
            help="list its settings, with defaults and what is allowed",
        )
        return parser

    def flag(name: str, help: str, metavar: str) -> None:
        parser.add_argument(name, action=Once, help=help, metavar=metavar)

    parser.add_argument(
        "systems",
        nargs="*",
        metavar="SYSTEM",
        help="systems to compare (default: fedavg quafl fedbuff favano)",
    )
    flag("--dataset", "data set, see list (default: digits)", "NAME")
    if command == "run":
        flag("--data-dir", "folder with the data set's raw files", "DIR")
        flag("--model", "model, see list", "NAME")
        flag("--convolution", "how networks convolve: auto, patches or lax (default: auto)", "NAME")
        flag(
            "--augmentation",
            "of training images: none, flip, crop or crop_flip (default: by data set)",
            "NAME",
        )
        flag(
            "--low-bit",
            "train with so many bits of weights, activations and gradients, such as 3,3,4 (default: none)",
            "W,A,G",
        )
        flag(
            "--components",
            "of the mixture that systems of expectation maximisation fit (default: 10)",
            "NUMBER",
        )
        flag(
            "--dimensions",
            "principal components of the images that it is fitted to (default: 20)",
            "NUMBER",
        )
        flag(
            "--partition",
            "who holds which examples, see list (default: classes; iid for expectation maximisation)",
            "NAME",
        )
        for option in PARTITION_OPTIONS:
            flag(
                "--" + option.replace("_", "-"),
                "option of the partition",
                "N+N..." if option == "group_sizes" else "NUMBER",
            )
        flag("--evals", "evaluations, besides the initial one (default: 25)", "NUMBER")
        flag(
            "--layout",
            "fields of Layout: slots_at_once, lanes_at_once, settings_at_once, lane_batches, lane_devices, client_devices",
            "NAME=VALUE,...",
        )
        flag("--checkpoint-every", "least seconds between two checkpoints (default: 20)", "SECONDS")
        parser.add_argument(
            "--resume",
            action="store_true",
            help="go on with the unfinished run in the results folder",
        )
    flag(
        "--seeds",
        "a number of seeds, from 0, or a list such as 3,7 or 3, (default: 5)",
        "NUMBER|LIST",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="set, or with several values sweep, a field of the settings of those systems that have a use for it",
    )
    flag("--time-budget", "virtual time", "T")
    flag(
        "--trace", "CSV file with columns client, start, finish, in place of the delay law", "FILE"
    )
    flag(
        "--out",
        f"results folder (default: {'results' if command == 'run' else 'results-timeline'}, or a numbered one if in use)",
        "DIR",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace what is in the results folder"
    )
    return parser


def seeds(text: str | None) -> list[int]:
    """Read a number of seeds, or a list of them."""
    allowed = f"a number of seeds from 1 to {MOST_SEEDS}, or a list of different whole numbers from 0 to 2147483647 such as 3,7"
    words = (text or "5").rstrip(",").split(",")
    try:
        values = [int(word) for word in words]
    except ValueError:
        raise ConfigError("seeds", text, allowed) from None
    is_list = "," in (text or "")
    if is_list:
        if len(set(values)) < len(values) or min(values) < 0 or max(values) >= 2**31:
            raise ConfigError("seeds", text, allowed)
        return values
    if not 1 <= values[0] <= MOST_SEEDS:
        raise ConfigError("seeds", text, allowed)
    return list(range(values[0]))


def number(name: str, text: str | None, default: float) -> float:
    """Read a finite number above 0."""
    allowed = "a finite number above 0"
    try:
        value = default if text is None else float(text)
    except ValueError:
        raise ConfigError(name, text, allowed) from None
    if not (np.isfinite(value) and value > 0):
        raise ConfigError(name, text, allowed)
    return value


def whole(name: str, text: str | None, default: int) -> int:
    """Read a whole number of at least 1."""
    try:
        value = default if text is None else int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigError(name, text, "a whole number of at least 1")
    return value


def left_out(arguments: argparse.Namespace, names: Iterable[str], system: str) -> None:
    """Raise ConfigError if one of these flags was given, for which a system has no use."""
    for name in names:
        if (value := getattr(arguments, name)) is not None:
            raise ConfigError(name, value, f"left out for {system}, which has no use for it")


def partition_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the partition that were given."""
    options = {}
    for name, (read, allowed) in PARTITION_OPTIONS.items():
        text = getattr(arguments, name)
        if text is not None:
            try:
                options[name] = read(text)
            except ValueError:
                raise ConfigError(name, text, allowed) from None
    return options


def settings(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The texts of `--set` and `--trace` by name of the field."""
    found: dict[str, list[str]] = {}
    traces = [] if arguments.trace is None else [("trace", [arguments.trace])]
    for word in arguments.set:
        name, equals, values = word.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise ConfigError("--set", word, "name=value, or name=value,value,... for a sweep")
        traces.append((name, values.split(",")))
    for name, texts in traces:
        if name in found:
            raise ConfigError(
                f"second setting of {name}",
                ",".join(texts),
                f"left out: it is already {','.join(found[name])!r}",
            )
        found[name] = texts
    return found


def low_bit(text: str) -> tuple[int, int, int] | None:
    """Read the bits of weights, activations and gradients; None for "none"."""
    if text == "none":
        return None
    try:
        weights, activations, gradients = (int(word) for word in text.split(","))
    except ValueError:
        weights = activations = gradients = 0
    if min(weights, activations, gradients) < 2 or max(weights, activations) > 24 or gradients > 8:
        raise ConfigError(
            "low_bit", text, "none, or three whole numbers such as 3,3,4: from 2 to 24, 24 and 8"
        )
    return weights, activations, gradients


def layout(text: str | None) -> Layout:
    """Read fields of a Layout."""
    readers: Mapping[str, Callable[[str], Any]] = {
        "slots_at_once": int,
        "settings_at_once": int,
        "lanes_at_once": lambda text: {"true": True, "false": False}[text.lower()],
        "lane_batches": int,
        "lane_devices": int,
        "client_devices": int,
    }
    chosen: dict[str, Any] = {}
    for word in text.split(",") if text is not None else []:
        name, equals, value = word.partition("=")
        if name not in readers or not equals or name in chosen:
            raise ConfigError(
                "--layout", word, "name=value with different names of " + ", ".join(readers)
            )
        try:
            chosen[name] = readers[name](value)
        except (ValueError, KeyError):
            raise ConfigError(
                f"layout.{name}",
                value,
                "true or false" if name == "lanes_at_once" else "a whole number",
            ) from None
    return Layout(**chosen)


def named(field: str, name: str, known: Iterable[str]) -> str:
    """Pass on a name that is known."""
    if name not in known:
        raise ConfigError(field, name, "one of " + ", ".join(known))
    return name


def free_folder(base: str, *, resume: bool) -> Path:
    """The results folder where none is given: the first free one of base, base-2, ...; to resume, the last with an unfinished run."""
    taken: list[Path] = []
    while True:
        path = Path(base if not taken else f"{base}-{len(taken) + 1}")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            break
        taken.append(path)
    unfinished = [old for old in taken if (old / "checkpoint" / "run.json").is_file()]
    if resume:
        return unfinished[-1] if unfinished else Path(base)
    return path
