"""The flags of every command, read into text. This module loads neither JAX nor NumPy.

The parser is argparse. tyro, which derives flags from types, has two drawbacks here: it answers a
mistake with a box of many lines instead of one sentence, and no type describes `--set`, one flag
for the settings of several systems.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fedjax_sim.lifecycle import InputError, nearest

COMMANDS = {
    "list": (
        "List systems, data sets, models, partitions and experiments; or the settings of a SYSTEM."
    ),
    "run": "Train and compare systems; without a SYSTEM fedavg, quafl, fedbuff and favano.",
    "merge": "Put the results folders of all parts of a study together.",
    "timeline": "Work out schedules alone: a summary, and a picture of who computes when.",
}
PARTITION_FLAGS = {
    "classes": "NUMBER",
    "alpha": "NUMBER",
    "shards_per_client": "NUMBER",
    "min_examples": "NUMBER",
    "group_sizes": "N+N...",
}
"""Options of partitions, each with the form of its value."""


class UsageError(InputError):
    """A mistake in the words of a command, as one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a sentence.

        Args:
          message: What argparse would print.

        Raises:
          UsageError: Always.
        """
        complaint = message.removeprefix("argument ")
        raise UsageError(complaint[:1].lower() + complaint[1:].rstrip(".") + ".")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Read the words of a command, flags and names in any order.

        Args:
          words: What the user typed after the name of the command.

        Returns:
          The text of each flag, None for a flag that is not given.

        Raises:
          UsageError: For a flag or a name that the command does not take, and for a flag that is
            given twice or without its value.
        """
        known, unknown = self.parse_known_intermixed_args(words)
        if unknown and unknown[0].startswith("-"):
            options = (option for action in self._actions for option in action.option_strings)
            flags = sorted(option for option in options if option.startswith("--"))
            given = unknown[0].partition("=")[0]
            allowed = ", ".join(flags) + nearest(given, flags)
            raise UsageError(f"flag is {given!r}, but must be one of {allowed}.")
        if unknown:
            raise UsageError(
                f"argument is {unknown[0]!r}, but must be left out: "
                "this command takes no such name."
            )
        return known


class Once(argparse.Action):
    """Store the value of a flag, and refuse it if it is empty or given a second time."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Any = None,
    ) -> None:
        """Store the value.

        Raises:
          UsageError: If it is empty, or the flag already has one.
        """
        if not values:
            raise UsageError(f"{option_string} is '', but must not be empty: leave the flag out.")
        earlier = getattr(namespace, self.dest)
        if earlier is not None:
            raise UsageError(
                f"second {option_string} is {values!r}, but must be left out: "
                f"it is already {earlier!r}."
            )
        setattr(namespace, self.dest, values)


def make_parser(command: str) -> Parser:
    """Make the parser of a command. It leaves values as text; `arguments` reads them.

    Args:
      command: One of `COMMANDS`.
    """
    parser = Parser(prog=f"fedjax-sim {command}", description=COMMANDS[command], allow_abbrev=False)
    if command == "list":
        parser.add_argument(
            "systems",
            nargs="*",
            metavar="SYSTEM",
            help="list its settings, with their meaning, default and allowed values",
        )
        return parser
    if command == "merge":
        parser.add_argument(
            "parts", nargs="+", metavar="DIR", help="results folders of runs with --part"
        )
        _add_folder_flags(parser, "results")
        return parser
    parser.add_argument(
        "systems",
        nargs="*",
        metavar="SYSTEM",
        help="systems to compare (default: fedavg quafl fedbuff favano)",
    )
    _add(parser, "--dataset", "NAME", "data set, see list (default: digits)")
    if command == "run":
        _add_training_flags(parser)
    _add(
        parser,
        "--seeds",
        "NUMBER|LIST",
        "a number of seeds, counted from 0, or a list such as 3,7 or 3, (default: 5)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="give a setting a value, or several to sweep over, in every system that uses it",
    )
    _add(parser, "--time-budget", "T", "virtual time to simulate")
    _add(
        parser,
        "--trace",
        "FILE",
        "CSV file with columns client, start, finish that replaces the delay law",
    )
    _add_folder_flags(parser, "results" if command == "run" else "results-timeline")
    return parser


def _add_folder_flags(parser: Parser, folder: str) -> None:
    """Add the flags of commands that write a results folder."""
    _add(
        parser,
        "--out",
        "DIR",
        f"results folder (default: {folder}, with a number appended if that is in use)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace what is in the results folder"
    )


def _add_training_flags(parser: Parser) -> None:
    """Add the flags that only `run` has."""
    _add(parser, "--data-dir", "DIR", "folder with the raw files of the data set")
    _add(parser, "--model", "NAME", "model, see list")
    _add(
        parser,
        "--convolution",
        "NAME",
        "how networks convolve: auto, patches or lax (default: auto)",
    )
    _add(
        parser,
        "--augmentation",
        "NAME",
        "of training images: none, flip, crop or crop_flip (default: by data set)",
    )
    _add(
        parser,
        "--low-bit",
        "W,A,G",
        "train with these bits of weights, activations and gradients, such as 3,3,4 "
        "(default: none, full precision)",
    )
    _add(
        parser,
        "--components",
        "NUMBER",
        "components of the mixture that systems of expectation maximisation fit (default: 10)",
    )
    _add(
        parser,
        "--dimensions",
        "NUMBER",
        "principal components of the images that the mixture is fitted to (default: 20)",
    )
    _add(
        parser,
        "--partition",
        "NAME",
        "who holds which examples, see list (default: classes; iid for expectation maximisation)",
    )
    for option, metavar in PARTITION_FLAGS.items():
        _add(parser, "--" + option.replace("_", "-"), metavar, "option of the partition")
    _add(parser, "--evals", "NUMBER", "evaluations in addition to the initial one (default: 25)")
    _add(
        parser,
        "--layout",
        "NAME=VALUE,...",
        "fields of fedjax_sim.Layout, such as lanes_at_once=true,lane_devices=2",
    )
    _add(
        parser,
        "--max-lanes",
        "NUMBER",
        "most lanes (pairs of settings and seed) in memory at one time (default: all that fit)",
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="run on the devices of several processes, each started with the same words by srun, "
        "mpirun or Kubernetes; process 0 writes the results",
    )
    _add(
        parser,
        "--coordinator",
        "HOST:PORT",
        "with --distributed, address of process 0 where it cannot be found out",
    )
    _add(parser, "--num-processes", "NUMBER", "with --coordinator, how many processes there are")
    _add(parser, "--process-id", "NUMBER", "with --coordinator, which of them this is, from 0")
    _add(
        parser,
        "--checkpoint-every",
        "SECONDS",
        "least seconds between two checkpoints (default: 20)",
    )
    parser.add_argument(
        "--client-variance",
        action="store_true",
        help="measure and draw how far clients' models are from the server's, which keeps more of "
        "its old models in memory",
    )
    parser.add_argument(
        "--keep-samples",
        action="store_true",
        help="keep the models of all evaluations in samples.nc, as ArviZ reads them, and draw how "
        "calibrated their averaged predictions are",
    )
    parser.add_argument(
        "--precision",
        default="float32",
        metavar="TYPE",
        help="of matrix products on accelerators: float32 (default), tensorfloat32 or bfloat16",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the unfinished run in the results folder, or start it if there is nothing; "
        "with a longer --time-budget, go on from a run that ended",
    )
    _add(
        parser,
        "--part",
        "I/N",
        "run one of N parts of the study, from 0/N on, for merge to put together",
    )
    _add(
        parser, "--parts", "N", "run the study in N parts, which --launcher starts, and merge them"
    )
    _add(
        parser,
        "--launcher",
        "NAME",
        "what starts parts: local (processes on this machine; the default), slurm or ray",
    )
    _add(
        parser,
        "--resources",
        "NAME=VALUE,...",
        "fields of the launcher in fedjax_sim.launch, such as timeout_min=120,gpus=1 of slurm",
    )
    _add(parser, "--progress", "FILE", "keep a line in a file that says how far the run is")


def _add(parser: Parser, flag: str, metavar: str, meaning: str) -> None:
    """Add a flag with one value, which may be given once."""
    parser.add_argument(flag, action=Once, help=meaning, metavar=metavar)
