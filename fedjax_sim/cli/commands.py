"""The entry point of the command line.

Words are parsed first. The module of a command, and JAX with it, is imported only once they are
understood, so that `--version`, `--help` and misspelt flags are answered without delay.
"""

import importlib
import sys
from collections.abc import Sequence

from fedjax_sim.cli.parser import COMMANDS, NAMES, UsageError, make_parser
from fedjax_sim.core import lifecycle
from fedjax_sim.version import __version__

MODULES = {
    "list": "listing",
    "merge": "merging",
    "plot": "plotting",
    "run": "training",
    "timeline": "schedules",
}
"""The module of each command in this package; its `run` takes the parsed words."""
HELP = {"-h", "--help"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
      argv: The words after `fedjax-sim`; the words of the process if None.

    Returns:
      The exit code, see `fedjax_sim.core.lifecycle.EXIT_CODES`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return lifecycle.exit_code_of("fedjax-sim", lambda: _run(words))


def _run(words: list[str]) -> None:
    """Import the command's module and run it."""
    if not words or words[0] in HELP:
        _print_help()
    elif words[0] == "--version":
        print(__version__)
    elif words[0] not in COMMANDS:
        commands = ", ".join(COMMANDS) + lifecycle.nearest(words[0], COMMANDS)
        raise UsageError(f"command is {words[0]!r}, but must be one of {commands}.")
    elif HELP & {*words}:
        _print_help_of(words[0], [word for word in words[1:] if word not in HELP])
    else:
        arguments = make_parser(words[0]).read(words[1:])
        importlib.import_module(f"fedjax_sim.cli.{MODULES[words[0]]}").run(arguments)


def _print_help_of(command: str, words: list[str]) -> None:
    """Print a command's flags; and, if the other words name systems, the settings of these."""
    parser = make_parser(command)
    is_of_systems = NAMES[command][0] == "systems" and words
    systems = parser.read(words).systems if is_of_systems else []
    if not systems:
        parser.print_help()
        return
    listing = importlib.import_module("fedjax_sim.cli.listing")
    tables = listing.settings_tables(systems)
    parser.print_help()
    for table in tables:
        print()
        listing.make_console().print(table)


def _print_help() -> None:
    print(f"fedjax-sim {__version__}: federated-learning simulation in JAX\n")
    for command, summary in COMMANDS.items():
        print(f"  fedjax-sim {command:9} {summary}")
    print(
        "\nfedjax-sim COMMAND --help lists the flags of a command; with the name of a SYSTEM,"
        "\nalso the settings of that system.\n\nExit codes:\n"
    )
    for code, meaning in lifecycle.EXIT_CODES.items():
        print(f"  {code:3}  {meaning}")
