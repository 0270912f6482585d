"""What is learnt: problems with known answers, Bayesian regressions, and classification over a model."""

from fedjax_sim.models.calls import takes_train
from fedjax_sim.problems.classification import (
    Classification,
    check_partition,
    make_classification,
    make_classifications,
)
from fedjax_sim.problems.gaussian import GaussianClients, make_gaussian_clients
from fedjax_sim.problems.logistic import Logistic, make_logistic
from fedjax_sim.problems.next_character import NextCharacter, make_next_characters
from fedjax_sim.problems.quadratic import Quadratic

__all__ = [
    "Classification",
    "GaussianClients",
    "Logistic",
    "NextCharacter",
    "Quadratic",
    "check_partition",
    "make_classification",
    "make_classifications",
    "make_gaussian_clients",
    "make_logistic",
    "make_next_characters",
    "takes_train",
]
