"""The entry point of the command line, with the tables of commands and flags.

Words are parsed into text first. The module of a command, and JAX with it, is imported only once
they are understood, so that `--version`, `--help` and misspelt flags are answered without delay.

The parser is argparse, and the flags are one table. Two libraries that derive flags from types were
tried. tyro answers a mistake with a box of many lines, and takes the last of two values of a flag
in silence. cyclopts answers in two or three sentences; it cuts `--evals 2.5` to 2 and takes
`--resume=yes` and `--time_budget`. To refuse these in one sentence, the program would need as many
lines with cyclopts as it has here, and four more packages.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fedjax_sim.core import lifecycle
from fedjax_sim.version import __version__

HELP = {"-h", "--help"}
COMMANDS = {
    "list": (
        "listing.run",
        "List systems, data sets, models, partitions and experiments; or the settings of a SYSTEM.",
    ),
    "run": (
        "training.run",
        "Train and compare systems; without a SYSTEM fedavg, quafl, fedbuff and favano.",
    ),
    "tune": (
        "studying.tune",
        "Choose settings on validation data, and run the choice with other seeds.",
    ),
    "compare": (
        "studying.compare",
        "Compare the systems of results folders seed by seed, and write tables for papers.",
    ),
    "plot": ("plotting.run", "Draw metrics of one results folder, or compare several."),
    "merge": ("plotting.merge", "Put the results folders of all parts of a study together."),
    "timeline": (
        "schedules.run",
        "Work out schedules alone: a summary, and a picture of who computes when.",
    ),
}
"""By name: module in this package, and its function that takes the parsed words; and a summary."""
FLAGS = {
    "list": {"SYSTEM": "list its settings and what they mean; datasets lists what to fetch"},
    "plot": {"DIR": "results folders of runs, whose systems are drawn together"},
    "merge": {"DIR": "results folders of runs with --part"},
    "run tune timeline": {
        "SYSTEM": "systems to compare (default: fedavg quafl fedbuff favano)",
        "--dataset NAME": "data set, see list (default: digits)",
        "--seeds NUMBER|LIST": "a number of seeds, or a list: 3,7 or 3, or 5..9 (default: 5)",
        "--set NAME=VALUE,...": "give a setting a value, or several to sweep over or to choose "
        "from, in every system that uses it; 2..5 stands for 2,3,4,5; several settings are joined "
        "by commas, or given by further --set",
        "--preset NAME": "start from this preset of every system in place of its defaults: paper",
        "--time-budget T": "virtual time to simulate",
        "--trace FILE": "CSV file with columns client, start, finish that replaces the delay law",
    },
    "timeline": {
        "--log FILE": "CSV file with columns client, start, finish of a real cluster, to which "
        "clients and a delay law are fitted"
    },
    "run tune": {
        "--data-dir DIR": "folder with the raw files of the data set",
        "--model NAME": "model, see list",
        "--convolution NAME": "of networks: auto (default), patches, winograd or lax",
        "--augmentation NAME": "of images: none, flip, crop or crop_flip (default: by data set)",
        "--low-bit W,A,G": "bits of weights, activations and gradients, such as 3,3,4",
        "--partition NAME": "who holds which examples, see list (default: by data set and system)",
        "--classes NUMBER": "of the partition classes: how many each client holds",
        "--alpha NUMBER": "of the partition dirichlet: its concentration",
        "--shards-per-client NUMBER": "of the partition shards",
        "--min-examples NUMBER": "of the partition dirichlet: least examples of a client",
        "--group-sizes N+N...": "of the partition of groups, such as 5+15",
        "--evals NUMBER": "evaluations in addition to the initial one (default: 25)",
        "--resume": "continue the unfinished run in the results folder, or start one",
        "--per-client": "also evaluate for each client, on test examples like its own",
        "--precision TYPE": "of matrix products: float32 (default), tensorfloat32 or bfloat16",
        "--layout NAME=VALUE,...": "fields of fedjax_sim.Layout, such as lane_devices=2",
        "--max-lanes NUMBER": "most pairs of settings and seed in memory (default: all that fit)",
        "--checkpoint-every SECONDS": "least seconds between checkpoints (default: 20)",
        "--progress FILE": "keep a line in a file that says how far the run is",
    },
    "tune": {
        "--tuning-seeds NUMBER|LIST": "seeds by which settings are chosen (default: 1000..1002)",
        "--validation NAME": "where validation examples are held out of: pool (default), all "
        "training examples; or clients, each client's own",
        "--held-out SHARE": "share of the training examples held out (default: 0.2)",
        "--widenings NUMBER": "values added to a grid whose best is at its edge (default: 3)",
        "--halving FACTOR": "end losing points early: all but one in FACTOR, such as 3; later half",
    },
    "tune compare": {
        "--metric NAME": "metric by which systems are judged (default: accuracy)",
        "--criterion NAME": "what counts of it: final (default), area under its curve, time to a "
        "--level of it, or worst_client",
        "--level NUMBER": "of the criterion time",
        "--against AXIS": "axis of the area and of times: time (default), rounds, steps, bits or "
        "energy",
    },
    "compare": {
        "DIR": "results folders of runs, whose systems are compared",
        "--power CHANCE": "with which the seeds that a difference needs would show it "
        "(default: 0.8)",
    },
    "run": {
        "--components NUMBER": "components of a mixture (expectation maximisation; default: 10)",
        "--dimensions NUMBER": "principal components of images that it is fitted to (default: 20)",
        "--any-jax": "with --resume, go on although the version of JAX is another one",
        "--client-variance": "draw how far clients' models are from the server's (takes memory)",
        "--mean-model": "evaluate the mean of the server's and all clients' models (takes memory)",
        "--measures NAME,...": "draw numbers of every local step: gradient_norm, drift",
        "--tracker NAME,...": "log metrics in the results folder: csv, tensorboard, wandb, mlflow",
        "--keep-samples": "keep all evaluations' models, and draw the calibration of their mean",
        "--part I/N": "run one of N parts of the study, from 0/N on, for merge to put together",
        "--parts N": "run the study in N parts, which --launcher starts, and merge them",
        "--launcher NAME": "what starts parts: local (processes here; default), slurm or ray",
        "--resources NAME=VALUE,...": "fields of the launcher, as timeout_min=120,gpus=1 of slurm",
        "--distributed": "run on the devices of several processes, each started with the same "
        "words by srun, mpirun or Kubernetes; process 0 writes the results",
        "--coordinator HOST:PORT": "with --distributed, address of process 0 if it is not found",
        "--num-processes N": "with --coordinator, how many processes there are",
        "--process-id NUMBER": "with --coordinator, which of them this is, from 0",
    },
    "run plot": {
        "--plot METRIC,...": "metrics to draw, such as accuracy,loss (default: all)",
        "--against AXIS,...": "horizontal axes: time (default), rounds, steps or bits; of plot "
        "also energy",
    },
    "plot compare": {
        "--format NAME,...": "kinds of pictures: png (default), pdf, svg",
        "--width NAME": "of pictures in a paper: column (3.3 inches) or text (6.8 inches)",
    },
    "plot merge compare": {
        "--trust": "also read files without their SHA-256, as of other programs"
    },
    "run tune compare plot merge timeline": {
        "--out DIR": "results folder (default: results, results-plot or results-timeline, with a "
        "number appended if that is in use); of plot also one picture, such as loss.pdf",
        "--overwrite": "replace what is in the results folder",
    },
    "list run tune compare plot merge timeline": {
        "--json": "print one JSON object instead of tables"
    },
}
"""By the commands that take them: names, and flags with the form of their value, and meanings."""


class UsageError(lifecycle.InputError):
    """A mistake in the words of a command, as one sentence."""


class Once(argparse.Action):
    """The value of a flag that is given at most once, and not empty."""

    def __call__(
        self, parser: object, found: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        """Keep the value.

        Raises:
          UsageError: If it is empty, or the second one.
        """
        if not value:
            raise UsageError(f"{flag} is '', but must not be empty: leave the flag out.")
        if (first := getattr(found, self.dest)) is not None:
            allowed = f"left out: it is already {first!r}"
            raise UsageError(f"second {flag} is {value!r}, but must be {allowed}.")
        setattr(found, self.dest, value)


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
            flags = sorted(flag for flag in self._option_string_actions if flag.startswith("--"))
            given = unknown[0].partition("=")[0]
            name = given.lstrip("-").replace("-", "_")
            is_setting = "--set" in flags and _is_setting(name)
            hint = f" (did you mean '--set {name}=VALUE'?)" if is_setting else ""
            allowed = ", ".join(flags) + (hint or lifecycle.nearest(given, flags))
            raise UsageError(f"flag is {given!r}, but must be one of {allowed}.")
        if unknown:
            allowed = "left out: this command takes no such name"
            raise UsageError(f"argument is {unknown[0]!r}, but must be {allowed}.")
        return known


def _is_setting(name: str) -> bool:
    """Tell whether some system has a setting of this name; loads JAX, as only errors may."""
    from fedjax_sim.core.settings import names_of
    from fedjax_sim.systems import SYSTEMS

    return any(name in names_of(each.Hyper) for each in SYSTEMS.values())


def make_parser(command: str) -> Parser:
    """Make the parser of a command. It leaves values as text; `arguments` reads them.

    Args:
      command: One of `COMMANDS`.
    """
    _, summary = COMMANDS[command]
    parser = Parser(prog=f"fedjax-sim {command}", description=summary, allow_abbrev=False)
    kinds: dict[str, dict[str, Any]] = {
        "SYSTEM": {"dest": "systems", "nargs": "*", "metavar": "SYSTEM"},
        "DIR": {"dest": "folders", "nargs": "+", "metavar": "DIR"},
        "--set": {"action": "append", "default": []},
    }
    table = (each for commands, each in FLAGS.items() if command in commands.split())
    for words, meaning in (pair for flags in table for pair in flags.items()):
        flag, _, form = words.partition(" ")
        how = {"action": Once, "metavar": form} if form else {"action": "store_true"}
        how = {"metavar": form} | kinds[flag] if flag in kinds else how
        parser.add_argument(*([flag] if flag.startswith("-") else []), help=meaning, **how)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
      argv: The words after `fedjax-sim`; the words of the process if None.

    Returns:
      The exit code, see `fedjax_sim.core.lifecycle.EXIT_CODES`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return lifecycle.exit_code_of(
        "fedjax-sim", lambda: _run(words), resumes=words[:1] in (["run"], ["tune"])
    )


def _run(words: list[str]) -> None:
    """Import the command's module and run it."""
    if not words or words[0] in HELP:
        print(f"fedjax-sim {__version__}: federated-learning simulation in JAX\n")
        for name, (_, summary) in COMMANDS.items():
            print(f"  fedjax-sim {name:9} {summary}")
        print(
            "\nfedjax-sim COMMAND --help lists the flags of a command; with the name of a SYSTEM,"
            "\nalso the settings of that system.\n\nExit codes:\n"
        )
        for code, meaning in lifecycle.EXIT_CODES.items():
            print(f"  {code:3}  {meaning}")
    elif words[0] == "--version":
        print(__version__)
    elif words[0] not in COMMANDS:
        commands = ", ".join(COMMANDS) + lifecycle.nearest(words[0], COMMANDS)
        raise UsageError(f"command is {words[0]!r}, but must be one of {commands}.")
    elif HELP & {*words}:
        _print_help_of(words[0], [word for word in words[1:] if word not in HELP])
    else:
        arguments = make_parser(words[0]).read(words[1:])
        arguments.words = words
        module, _, function = COMMANDS[words[0]][0].partition(".")
        getattr(importlib.import_module(f"fedjax_sim.cli.{module}"), function)(arguments)


def _print_help_of(command: str, words: list[str]) -> None:
    """Print a command's flags; and, if the other words name systems, the settings of these."""
    parser, tables = make_parser(command), []
    if words and command not in ("plot", "merge", "compare"):  # Bad names come before the help.
        listing = importlib.import_module("fedjax_sim.cli.listing")
        tables = listing.settings_tables(parser.read(words).systems)
    parser.print_help()
    for table in tables:
        print()
        listing.make_console().print(table)
