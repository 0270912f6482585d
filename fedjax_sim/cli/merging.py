"""`fedjax-sim merge`: put the results folders of all parts of a study together."""

import argparse

from fedjax_sim.cli import comparison
from fedjax_sim.cli.training import show_results
from fedjax_sim.launch.merge import read_parts, save_merged


def run(arguments: argparse.Namespace) -> None:
    """Write what the whole run would have written, and print its table.

    Args:
      arguments: The parsed words of `merge`.

    Raises:
      ConfigError: If the parts do not belong together, or one is missing or unfinished.
    """
    folder = comparison.find_folder(arguments, "results", resume=False)
    runs, config = read_parts(arguments.folders)
    folder.open()
    content = save_merged(folder, runs, config)
    curves = {name: run.curves for name, run in runs.items()}
    show_results(folder, curves, config, content, as_json=arguments.json)
