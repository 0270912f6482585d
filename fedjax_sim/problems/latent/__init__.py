"""Latent-variable models, one per file, and the problem made of a model and clients' data.

A model is the mathematics of a complete-data likelihood
p(y, z; theta) = rho(y, z) exp(<s(y, z), phi(theta)> - psi(theta)), as
`fedjax_sim.types.LatentModel` asks for: the E-step as a function of phi, the M-step T as a function
of expected statistics, the loss and the penalty.

`estimation` joins a model and data to a problem; `estimates` predicts with a fitted model, scores,
saves and loads it; `features` turns images into examples of mixtures;
`cells` is the compressor with which FedEM becomes FedMissEM (arXiv 2111.02083), the algorithm for
matrices with missing cells. To add a model, write a file like `bernoulli_mixture.py` and, to offer
it on the command line, add an entry to `features.MODELS`.
"""

from fedjax_sim.problems.latent.bernoulli_mixture import BernoulliMixture
from fedjax_sim.problems.latent.cells import CellSampling
from fedjax_sim.problems.latent.estimates import Fitted, fitted, load_fit
from fedjax_sim.problems.latent.estimation import Estimation, make_estimation, make_estimations
from fedjax_sim.problems.latent.factor_analysis import FactorAnalysis
from fedjax_sim.problems.latent.features import MODELS, binary, principal_components
from fedjax_sim.problems.latent.gaussian_mixture import GaussianMixture
from fedjax_sim.problems.latent.missing_values import LowRank, Matrix, MissingValues, make_matrices
from fedjax_sim.problems.latent.noisy_mean import NoisyMean, Seen

__all__ = [
    "MODELS",
    "BernoulliMixture",
    "CellSampling",
    "Estimation",
    "FactorAnalysis",
    "Fitted",
    "GaussianMixture",
    "LowRank",
    "Matrix",
    "MissingValues",
    "NoisyMean",
    "Seen",
    "binary",
    "fitted",
    "load_fit",
    "make_estimation",
    "make_estimations",
    "make_matrices",
    "principal_components",
]
