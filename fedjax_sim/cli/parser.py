"""The flags of every command, read into text. This module loads neither JAX nor NumPy.

The parser is argparse, and the flags are one table. Two libraries that derive flags from types were
tried. tyro answers a mistake with a box of many lines, and takes the last of two values of a flag
in silence. cyclopts answers in two or three sentences; it cuts `--evals 2.5` to 2 and takes
`--resume=yes` and `--time_budget`. To refuse these in one sentence, the program would need as many
lines with cyclopts as it has here, and four more packages.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fedjax_sim.core.lifecycle import InputError, nearest

COMMANDS = {
    "list": (
        "List systems, data sets, models, partitions and experiments; or the settings of a SYSTEM."
    ),
    "run": "Train and compare systems; without a SYSTEM fedavg, quafl, fedbuff and favano.",
    "plot": "Draw metrics of one results folder, or compare several.",
    "merge": "Put the results folders of all parts of a study together.",
    "timeline": "Work out schedules alone: a summary, and a picture of who computes when.",
}
NAMES = {
    "list": (
        "systems",
        "SYSTEM",
        "list its settings, with their meaning, default and limits; datasets lists what to fetch",
    ),
    "run": ("systems", "SYSTEM", "systems to compare (default: fedavg quafl fedbuff favano)"),
    "plot": ("folders", "DIR", "results folders of runs, whose systems are drawn together"),
    "merge": ("folders", "DIR", "results folders of runs with --part"),
    "timeline": ("systems", "SYSTEM", "systems to compare (default: fedavg quafl fedbuff favano)"),
}
"""What a command takes next to its flags: name, form and meaning."""
PARTITION_FLAGS = ("classes", "alpha", "shards_per_client", "min_examples", "group_sizes")
"""Options of partitions."""
FLAGS = {
    "run timeline": {
        "--dataset NAME": "data set, see list (default: digits)",
        "--seeds NUMBER|LIST": "a number of seeds, counted from 0, or a list such as 3,7 or 3, or "
        "5..9 (default: 5)",
        "--set NAME=VALUE,...": "give a setting a value, or several to sweep over, in every "
        "system that uses it; 2..5 stands for 2,3,4,5; several settings are joined by commas, or "
        "given by further --set",
        "--preset NAME": "start from this preset of every system in place of its defaults: paper",
        "--time-budget T": "virtual time to simulate",
        "--trace FILE": "CSV file with columns client, start, finish that replaces the delay law",
    },
    "run": {
        "--data-dir DIR": "folder with the raw files of the data set",
        "--model NAME": "model, see list",
        "--convolution NAME": "how networks convolve: auto, patches, winograd or lax (default: "
        "auto)",
        "--augmentation NAME": "of training images: none, flip, crop or crop_flip (default: by "
        "data set)",
        "--low-bit W,A,G": "train with these bits of weights, activations and gradients, such as "
        "3,3,4 (default: none, full precision)",
        "--components NUMBER": "components of the mixture that systems of expectation "
        "maximisation fit (default: 10)",
        "--dimensions NUMBER": "principal components of the images that the mixture is fitted to "
        "(default: 20)",
        "--partition NAME": "who holds which examples, see list (default: classes; iid for "
        "expectation maximisation)",
        "--classes NUMBER": "of the partition classes: how many each client holds",
        "--alpha NUMBER": "of the partition dirichlet: its concentration",
        "--shards-per-client NUMBER": "of the partition shards",
        "--min-examples NUMBER": "of the partition dirichlet: least examples of a client",
        "--group-sizes N+N...": "of the partition of groups, such as 5+15",
        "--evals NUMBER": "evaluations in addition to the initial one (default: 25)",
        "--resume": "continue the unfinished run in the results folder, or start it if there is "
        "nothing",
        "--any-jax": "with --resume, go on although the version of JAX is another one",
        "--per-client": "also evaluate the model for each client, on test examples like its own "
        "(mixtures: on its own examples)",
        "--client-variance": "measure and draw how far clients' models are from the server's, "
        "which keeps more of its old models in memory",
        "--precision TYPE": "of matrix products on accelerators: float32 (default), tensorfloat32 "
        "or bfloat16",
        "--layout NAME=VALUE,...": "fields of fedjax_sim.Layout, such as "
        "lanes_at_once=true,lane_devices=2",
        "--max-lanes NUMBER": "most lanes (pairs of settings and seed) in memory at one time "
        "(default: all that fit)",
        "--checkpoint-every SECONDS": "least seconds between checkpoints (default: 20)",
        "--progress FILE": "keep a line in a file that says how far the run is",
        "--tracker NAME,...": "log metrics into the results folder during the run: csv, "
        "tensorboard, wandb, mlflow",
        "--keep-samples": "keep the models of all evaluations (a sampler's samples) in samples.nc, "
        "and draw how calibrated their averaged predictions are",
        "--part I/N": "run one of N parts of the study, from 0/N on, for merge to put together",
        "--parts N": "run the study in N parts, which --launcher starts, and merge them",
        "--launcher NAME": "what starts parts: local (processes on this machine; the default), "
        "slurm or ray",
        "--resources NAME=VALUE,...": "fields of the launcher in fedjax_sim.launch, such as "
        "timeout_min=120,gpus=1 of slurm",
        "--distributed": "run on the devices of several processes, each started with the same "
        "words by srun, mpirun or Kubernetes; process 0 writes the results",
        "--coordinator HOST:PORT": "with --distributed, address of process 0 where it cannot be "
        "found out",
        "--num-processes N": "with --coordinator, how many processes there are",
        "--process-id NUMBER": "with --coordinator, which of them this is, from 0",
    },
    "run plot": {
        "--plot METRIC,...": "metrics to draw, such as accuracy,loss (default: all)",
        "--against AXIS,...": "horizontal axes of pictures: time, rounds, steps or bits (default: "
        "time)",
    },
    "plot merge": {
        "--trust": "also read files that end without their SHA-256, such as those of other programs"
    },
    "run plot merge timeline": {
        "--out DIR": "results folder (default: results, results-plot or results-timeline, with a "
        "number appended if that is in use)",
        "--overwrite": "replace what is in the results folder",
    },
    "list run plot merge timeline": {"--json": "print one JSON object instead of tables"},
}
"""By the commands that take them: flags with the form of their value, if any, and meaning."""


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
            name = given.lstrip("-").replace("-", "_")
            hint = f" (did you mean '--set {name}=VALUE'?)" if self._is_setting(name) else None
            allowed = ", ".join(flags) + (hint or nearest(given, flags))
            raise UsageError(f"flag is {given!r}, but must be one of {allowed}.")
        if unknown:
            raise UsageError(
                f"argument is {unknown[0]!r}, but must be left out: "
                "this command takes no such name."
            )
        for flag, action in self._option_string_actions.items():
            values = getattr(known, action.dest, None)
            if flag != "--set" and isinstance(values, list):
                setattr(known, action.dest, _single(flag, values))
        return known

    def _is_setting(self, name: str) -> bool:
        """Tell whether some system has a setting of this name; loads JAX, as only errors may."""
        from fedjax_sim.core.settings import names_of
        from fedjax_sim.systems import SYSTEMS

        takes_settings = "--set" in self._option_string_actions
        return takes_settings and any(name in names_of(each.Hyper) for each in SYSTEMS.values())


def _single(flag: str, values: list[str]) -> str:
    """Return the one value of a flag, and refuse one that is empty or a second one."""
    if not all(values):
        raise UsageError(f"{flag} is '', but must not be empty: leave the flag out.")
    if len(values) > 1:
        raise UsageError(
            f"second {flag} is {values[1]!r}, but must be left out: it is already {values[0]!r}."
        )
    return values[0]


def make_parser(command: str) -> Parser:
    """Make the parser of a command. It leaves values as text; `arguments` reads them.

    Args:
      command: One of `COMMANDS`.
    """
    parser = Parser(prog=f"fedjax-sim {command}", description=COMMANDS[command], allow_abbrev=False)
    name, form, meaning = NAMES[command]
    some: Any = "+" if name == "folders" else "*"
    parser.add_argument(name, nargs=some, metavar=form, help=meaning)
    for commands, flags in FLAGS.items():
        for words, meaning in flags.items() if command in commands.split() else ():
            flag, _, form = words.partition(" ")
            if form:
                empty: Any = [] if flag == "--set" else None
                parser.add_argument(
                    flag, action="append", default=empty, metavar=form, help=meaning
                )
            else:
                parser.add_argument(flag, action="store_true", help=meaning)
    return parser
