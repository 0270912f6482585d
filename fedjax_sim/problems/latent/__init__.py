"""Latent-variable models, one file each, and the problem made of one and of data on the client axis.

A model is the mathematics of a complete-data likelihood p(y, z; theta) = rho(y, z) exp(<s(y, z), phi(theta)> - psi(theta)): the E-step
as a function of phi, the M-step T as a function of expected statistics, the loss and the penalty (`types.LatentModel`). To add one, write
a file like `bernoulli_mixture.py`, and, for the command line, a line in `features.py`.
"""

from fedjax_sim.problems.latent.bernoulli_mixture import BernoulliMixture
from fedjax_sim.problems.latent.cells import CellSampling
from fedjax_sim.problems.latent.estimation import Estimation, make_estimation, make_estimations
from fedjax_sim.problems.latent.features import MODELS
from fedjax_sim.problems.latent.gaussian_mixture import GaussianMixture
from fedjax_sim.problems.latent.missing_values import MissingValues, make_matrices
from fedjax_sim.problems.latent.noisy_mean import NoisyMean

__all__ = [
    "MODELS",
    "BernoulliMixture",
    "CellSampling",
    "Estimation",
    "GaussianMixture",
    "MissingValues",
    "NoisyMean",
    "make_estimation",
    "make_estimations",
    "make_matrices",
]
