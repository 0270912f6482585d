"""`fedjax-sim merge`: put the results folders of all parts of a study together."""

import argparse

from fedjax_sim.cli import comparison, training
from fedjax_sim.launch.parts import read_parts
from fedjax_sim.results import reports


def run(arguments: argparse.Namespace) -> None:
    """Write the files of the whole run, and print its table.

    How calibrated kept samples are is not drawn, because this needs the data of the study: a run
    with `--parts` has them, and draws it.

    Args:
      arguments: The parsed words of `merge`.

    Raises:
      ConfigError: If the parts do not belong together, or one is missing or unfinished.
    """
    folder = comparison.find_folder(arguments, "results", resume=False)
    runs, config = read_parts(arguments.folders, trust=arguments.trust)
    folder.open()
    curves = {name: run.curves for name, run in runs.items()}
    from fedjax_sim.results import plots  # Slow to import.

    content = reports.save(folder, curves, config, plots.metric_figures(curves), runs=runs)
    training.show_results(folder, curves, config, content, as_json=arguments.json)
