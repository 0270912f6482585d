"""`fedjax-sim timeline`: work out schedules without training, measure them, and draw them."""

import argparse

from fedjax_sim import datasets
from fedjax_sim.cli import comparison, schedule_report, tables
from fedjax_sim.cli.arguments import check_name
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.machine import compiling


def run(arguments: argparse.Namespace) -> None:
    """Print the facts of the systems' schedules, and write arrays and pictures.

    Args:
      arguments: The parsed words of `timeline`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    name = arguments.dataset
    if name and not (name.endswith((".npz", ".txt")) or name.startswith("synthetic_")):
        check_name("dataset", name, datasets.names())
    asked = comparison.read_asked(arguments)
    for contender in asked.contenders:
        if getattr(contender.hyper, "needs_message_bits", False):
            allowed = "set, with bits_down, as nothing else tells how long messages take"
            raise ConfigError("delays.bits_up", contender.hyper.delays.bits_up, allowed)
    folder = comparison.find_folder(arguments, "results-timeline", resume=False)
    compiling.keep_compiled()
    compiling.use_cores()
    entries = schedule_report.work_out(asked)
    folder.open()
    content = schedule_report.save(folder, entries, asked.described())
    if arguments.json:
        tables.print_json({"folder": str(folder.path), **content})
        return
    tables.print_table(schedule_report.rows_of(entries))
    seeds = f"{len(asked.seeds)} seed{'s' * (len(asked.seeds) > 1)}"
    tables.print_sentence(f"Means over {seeds}. Written to {folder.path}")
