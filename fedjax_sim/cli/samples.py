"""What `run --keep-samples` adds to the results folder: samples.nc, and how calibrated they are."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fedjax_sim.diagnostics import (
    average_predictions,
    reliability,
    score_predictions,
    to_arviz,
)
from fedjax_sim.engine.sweeps import Run
from fedjax_sim.reporting.results import Folder, label_of, settings_of
from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse to keep the samples of parts, which are merged without them.

    Raises:
      ConfigError: If that was asked for.
    """
    if arguments.keep_samples and (arguments.part is not None or arguments.parts is not None):
        allowed = "left out with --part and --parts, whose merged results have no samples"
        raise ConfigError("keep_samples", True, allowed)


def write_samples(folder: Folder, runs: Mapping[str, Run]) -> None:
    """Write samples.nc: the groups `posterior` and `sample_stats` of ArviZ, below each system.

    `xarray.open_datatree(path)["langevin"]` has them. Draw 0 is the initial model.

    Args:
      folder: The results folder, open.
      runs: What `sweep` returned by system, with kept models.
    """
    groups: dict[str, xr.Dataset] = {}
    for name, run in runs.items():
        for group, node in to_arviz(run, burn_in=0).children.items():
            groups[f"{name}/{group}"] = node.to_dataset()
    folder.write_arrays("samples.nc", groups)


def calibration_figures(
    runs: Mapping[str, Run], problems: Mapping[str, Sequence[Any]]
) -> dict[str, "Figure"]:
    """Draw reliability.png: accuracy against confidence of predictions averaged over samples.

    Averages are over the evaluations after the initial one and over seeds, of each setting alone.
    The legend has their expected calibration error.

    Args:
      runs: What `sweep` returned by system, with kept models.
      problems: Each system's problems, one per seed, which share a test set.

    Returns:
      The picture; none if no problem predicts classes.
    """
    from fedjax_sim.reporting import plots  # Slow to import.

    found = {}
    for name, run in runs.items():
        problem = problems[name][0]
        if not (hasattr(problem, "predict") and hasattr(problem, "test_labels")):
            continue
        averages = average_predictions(problem, run.samples).probabilities
        points = [point for point, _ in settings_of(run.curves)]
        for point, average in zip(points, np.split(averages, len(points)), strict=True):
            probabilities = jnp.asarray(average.mean(axis=0))
            scores = jax.tree.map(float, score_predictions(probabilities, problem.test_labels))
            label = f"{label_of(name, point)}, calibration error {scores['ece']:.3f}"
            found[label] = reliability(probabilities, problem.test_labels)
    return {"reliability.png": plots.reliability_figure(found)} if found else {}
