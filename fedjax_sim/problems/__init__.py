"""What is learnt: clients' data and a loss, as `fedjax_sim.types.Problem` asks for.

Problems with a known answer are in `quadratic` (known optimum) and `gaussian` (known posterior),
Bayesian regression in `logistic`, any posterior given by its log-density in `log_density`, and
problems with a network in `classification` (images, with the random changes of `augmentation`) and
`next_character` (texts). `latent` has latent-variable models for expectation maximisation.
`client_data` checks and pads partitions for all of them.
"""

from fedjax_sim.problems.augmentation import AUGMENTATIONS, Augmentation
from fedjax_sim.problems.classification import (
    Classification,
    make_classification,
    make_classifications,
)
from fedjax_sim.problems.client_data import check_partition, pad_partitions
from fedjax_sim.problems.gaussian import (
    GaussianClients,
    OneGaussian,
    make_gaussian_clients,
    quadratic_form,
)
from fedjax_sim.problems.log_density import LogDensity, from_logdensity, log_density_of
from fedjax_sim.problems.logistic import Logistic, make_logistic
from fedjax_sim.problems.next_character import NextCharacter, make_next_characters
from fedjax_sim.problems.quadratic import Quadratic

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Classification",
    "GaussianClients",
    "LogDensity",
    "Logistic",
    "NextCharacter",
    "OneGaussian",
    "Quadratic",
    "check_partition",
    "from_logdensity",
    "log_density_of",
    "make_classification",
    "make_classifications",
    "make_gaussian_clients",
    "make_logistic",
    "make_next_characters",
    "pad_partitions",
    "quadratic_form",
]
