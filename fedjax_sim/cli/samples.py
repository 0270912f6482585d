"""How calibrated the samples of `run --keep-samples` are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.results.diagnostics import average_predictions, reliability, score_predictions
from fedjax_sim.results.runs import Run
from fedjax_sim.results.summaries import label_of, settings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def calibration_figures(
    runs: Mapping[str, Run], problems: Mapping[str, Sequence[Any]]
) -> dict[str, "Figure"]:
    """Draw reliability.png: accuracy against confidence of predictions averaged over samples.

    Averages are over the evaluations after the initial one and over seeds, of each setting alone.
    The legend has their expected calibration error. Failed lanes are left out.

    Args:
      runs: What `sweep` returned by system, with kept models.
      problems: Each system's problems, one per seed, which share a test set.

    Returns:
      The picture; none if no problem predicts classes.
    """
    from fedjax_sim.results import plots  # Slow to import.

    found = {}
    for name, run in runs.items():
        problem = problems[name][0]
        if not (hasattr(problem, "predict") and hasattr(problem, "test_labels")):
            continue
        averages = average_predictions(problem, run.samples).probabilities
        points = list(settings_of(run.curves))
        for (point, lanes), average in zip(points, np.split(averages, len(points)), strict=True):
            good = ~lanes["failed"].values
            if not good.any():
                continue
            probabilities = jnp.asarray(average[good].mean(axis=0))
            scores = jax.tree.map(float, score_predictions(probabilities, problem.test_labels))
            label = f"{label_of(name, point)}, calibration error {scores['ece']:.3f}"
            found[label] = reliability(probabilities, problem.test_labels)
    return {"reliability.png": plots.reliability_figure(found)} if found else {}
