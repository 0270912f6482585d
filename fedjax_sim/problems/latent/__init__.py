"""Latent-variable models, and the problem made of a model and clients' data.

A model is the mathematics of a complete-data likelihood
p(y, z; theta) = rho(y, z) exp(<s(y, z), phi(theta)> - psi(theta)), as
`estimation.LatentModel` asks for: the E-step as a function of phi, the M-step T as a function
of expected statistics, the loss and the penalty.

`estimation` joins a model and data to a problem, whose examples are all in memory, or drawn afresh,
or read from files; `estimates` has the models by name, turns images into their examples, predicts
with a fitted model, scores, saves and loads it; `missing_values` has the compressor with which
FedEM becomes FedMissEM (arXiv 2111.02083), the algorithm for matrices with missing cells. To add a
model, write a file like `factor_analysis.py` and, to offer it on the command line, add an entry to
`estimates.MODELS`.
"""

from fedjax_sim.problems.latent.estimates import MODELS as MODELS
from fedjax_sim.problems.latent.estimates import Fitted as Fitted
from fedjax_sim.problems.latent.estimates import binary as binary
from fedjax_sim.problems.latent.estimates import fitted as fitted
from fedjax_sim.problems.latent.estimates import load_fit as load_fit
from fedjax_sim.problems.latent.estimates import principal_components as principal_components
from fedjax_sim.problems.latent.estimation import Estimation as Estimation
from fedjax_sim.problems.latent.estimation import Stream as Stream
from fedjax_sim.problems.latent.estimation import WithSample as WithSample
from fedjax_sim.problems.latent.estimation import make_estimation as make_estimation
from fedjax_sim.problems.latent.estimation import make_estimations as make_estimations
from fedjax_sim.problems.latent.factor_analysis import FactorAnalysis as FactorAnalysis
from fedjax_sim.problems.latent.missing_values import CellSampling as CellSampling
from fedjax_sim.problems.latent.missing_values import LowRank as LowRank
from fedjax_sim.problems.latent.missing_values import Matrix as Matrix
from fedjax_sim.problems.latent.missing_values import MissingValues as MissingValues
from fedjax_sim.problems.latent.missing_values import make_matrices as make_matrices
from fedjax_sim.problems.latent.mixtures import BernoulliMixture as BernoulliMixture
from fedjax_sim.problems.latent.mixtures import GaussianMixture as GaussianMixture
from fedjax_sim.problems.latent.noisy_mean import NoisyMean as NoisyMean
from fedjax_sim.problems.latent.noisy_mean import Seen as Seen
