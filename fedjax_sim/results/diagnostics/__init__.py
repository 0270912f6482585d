"""Measures of results that are computed after a run or from its schedule alone.

- `posterior`: samples and predictions in ArviZ's groups and dimensions; accuracy, likelihood, Brier
  score and calibration of class probabilities, and averaged predictions of a sampler's samples.
- `gaussians`: Gaussian laws and the Wasserstein distance between two of them.
- `fairness`: how equally clients take part in a schedule.
"""

from fedjax_sim.results.diagnostics.fairness import FairnessReport as FairnessReport
from fedjax_sim.results.diagnostics.fairness import deviation as deviation
from fedjax_sim.results.diagnostics.fairness import entropy as entropy
from fedjax_sim.results.diagnostics.fairness import fairness_report as fairness_report
from fedjax_sim.results.diagnostics.fairness import group_accuracy as group_accuracy
from fedjax_sim.results.diagnostics.fairness import influence as influence
from fedjax_sim.results.diagnostics.fairness import jain_index as jain_index
from fedjax_sim.results.diagnostics.fairness import time_to_first as time_to_first
from fedjax_sim.results.diagnostics.fairness import update_share as update_share
from fedjax_sim.results.diagnostics.gaussians import Gaussian as Gaussian
from fedjax_sim.results.diagnostics.gaussians import fit_gaussian as fit_gaussian
from fedjax_sim.results.diagnostics.gaussians import wasserstein2 as wasserstein2
from fedjax_sim.results.diagnostics.posterior import Predictive as Predictive
from fedjax_sim.results.diagnostics.posterior import Predictor as Predictor
from fedjax_sim.results.diagnostics.posterior import Reliability as Reliability
from fedjax_sim.results.diagnostics.posterior import average_predictions as average_predictions
from fedjax_sim.results.diagnostics.posterior import averaged_predictions as averaged_predictions
from fedjax_sim.results.diagnostics.posterior import calibration as calibration
from fedjax_sim.results.diagnostics.posterior import predictive as predictive
from fedjax_sim.results.diagnostics.posterior import reliability as reliability
from fedjax_sim.results.diagnostics.posterior import score_predictions as score_predictions
from fedjax_sim.results.diagnostics.posterior import thin_samples as thin_samples
from fedjax_sim.results.diagnostics.posterior import to_arviz as to_arviz
