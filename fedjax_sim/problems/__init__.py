"""What is learnt: problems with known answers, Bayesian regressions, and classification over a model."""

from fedjax_sim.problems.classification import Classification, check_partition, classification, classifications, takes_train
from fedjax_sim.problems.gaussian import GaussianClients, gaussian_simulation
from fedjax_sim.problems.logistic import Logistic, logistic
from fedjax_sim.problems.next_character import NextCharacter, next_characters
from fedjax_sim.problems.quadratic import Quadratic

__all__ = [
    "Classification",
    "GaussianClients",
    "Logistic",
    "NextCharacter",
    "Quadratic",
    "check_partition",
    "classification",
    "classifications",
    "gaussian_simulation",
    "logistic",
    "next_characters",
    "takes_train",
]
