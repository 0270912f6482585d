"""Measures of results that are computed after a run or from its schedule alone.

- `predictions`: accuracy, likelihood, Brier score and calibration of class probabilities.
- `samples`: samples and predictions in ArviZ's groups and dimensions.
- `posterior`: averaged predictions of a sampler's samples, and whether its chains have mixed.
- `gaussians`: Gaussian laws and the Wasserstein distance between two of them.
- `fairness`: how equally clients take part in a schedule.
"""

from fedjax_sim.diagnostics.fairness import (
    FairnessReport,
    client_staleness,
    deviation,
    entropy,
    evenness,
    fairness_report,
    group_accuracy,
    group_sums,
    influence,
    influence_per_time,
    jain_index,
    share_without,
    time_to_first,
    update_share,
)
from fedjax_sim.diagnostics.gaussians import Gaussian, fit_gaussian, wasserstein2
from fedjax_sim.diagnostics.posterior import (
    Predictive,
    Predictor,
    average_predictions,
    thin_samples,
)
from fedjax_sim.diagnostics.predictions import (
    Reliability,
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    score_predictions,
)
from fedjax_sim.diagnostics.samples import averaged_predictions, calibration, predictive, to_arviz

__all__ = [
    "FairnessReport",
    "Gaussian",
    "Predictive",
    "Predictor",
    "Reliability",
    "accuracy",
    "average_predictions",
    "averaged_predictions",
    "brier_score",
    "calibration",
    "client_staleness",
    "deviation",
    "entropy",
    "evenness",
    "expected_calibration_error",
    "fairness_report",
    "fit_gaussian",
    "group_accuracy",
    "group_sums",
    "influence",
    "influence_per_time",
    "jain_index",
    "negative_log_likelihood",
    "predictive",
    "reliability",
    "score_predictions",
    "share_without",
    "thin_samples",
    "time_to_first",
    "to_arviz",
    "update_share",
    "wasserstein2",
]
