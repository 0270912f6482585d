"""`fedjax-sim timeline`: work out schedules without training, measure them, and draw them."""

import argparse

from fedjax_sim import datasets
from fedjax_sim.cli import comparison, schedule_report, tables
from fedjax_sim.cli.arguments import check_name, read_seeds, read_settings
from fedjax_sim.cli.defaults import defaults_of
from fedjax_sim.engine.machine.compiling import keep_compiled, use_cores
from fedjax_sim.settings import ConfigError


def run(arguments: argparse.Namespace) -> None:
    """Print the facts of the systems' schedules, and write arrays and pictures.

    Args:
      arguments: The parsed words of `timeline`.

    Raises:
      ConfigError: For input that is not allowed.
    """
    defaults = defaults_of(arguments.dataset or "digits", arguments.preset)
    name = arguments.dataset
    if name and not (name.endswith((".npz", ".txt")) or name.startswith("synthetic_")):
        check_name("dataset", name, datasets.names())
    seeds = read_seeds(arguments.seeds)
    contenders = comparison.resolve_contenders(
        arguments.systems, read_settings(arguments), defaults
    )
    time_budget = comparison.read_time_budget(arguments.time_budget, contenders, defaults)
    for contender in contenders:
        if getattr(contender.hyper, "needs_message_bits", False):
            allowed = "set, with bits_down, as nothing else tells how long messages take"
            raise ConfigError("delays.bits_up", contender.hyper.delays.bits_up, allowed)
    folder = comparison.find_folder(arguments, "results-timeline", resume=False)
    keep_compiled()
    use_cores()
    entries = [
        entry
        for contender in contenders
        for entry in schedule_report.work_out(contender, seeds, time_budget)
    ]
    folder.open()
    config = comparison.describe(contenders, seeds, time_budget)
    content = schedule_report.save(folder, entries, config)
    if arguments.json:
        tables.print_json({"folder": str(folder.path), **content})
        return
    tables.print_table(*schedule_report.cells(entries))
    seeds_in_words = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    tables.print_sentence(f"Means over {seeds_in_words}. Written to {folder.path}")
