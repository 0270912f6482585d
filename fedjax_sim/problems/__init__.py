"""Problems: clients' data and a loss, see `fedjax_sim.types.Problem`.

`supervised` (in `building`) builds a problem from any network, loss and data, which `examples`
reads and `checking` checks; `supervision` has the problem itself, `losses` the usual losses and
metrics, `evaluation` their means over test examples. Images (`classification`, with the random
changes of `augmentation`) and texts (`next_character`) are cases of it. Problems with a known
answer are in `quadratic` (known optimum) and `gaussian` (known posterior), Bayesian regression in
`logistic`, any posterior given by its log-density in `log_density`. `poisoning` changes the
examples of malicious clients. `latent` has latent-variable models for expectation maximisation.
`client_data` checks and pads partitions for all of them, and `client_losses` measures clients one
by one where they have no test examples.
"""

from fedjax_sim.problems.augmentation import AUGMENTATIONS, Augmentation
from fedjax_sim.problems.building import supervised
from fedjax_sim.problems.classification import (
    Classification,
    make_classification,
    make_classifications,
)
from fedjax_sim.problems.client_data import (
    check_partition,
    hold_out,
    pad_partitions,
    partition_by_ids,
)
from fedjax_sim.problems.examples import Examples, from_dataframe
from fedjax_sim.problems.gaussian import (
    GaussianClients,
    OneGaussian,
    make_gaussian_clients,
)
from fedjax_sim.problems.log_density import LogDensity, from_logdensity, log_density_of
from fedjax_sim.problems.logistic import Logistic, make_logistic
from fedjax_sim.problems.losses import (
    Metric,
    absolute_error,
    accuracy_of_classes,
    binary_cross_entropy,
    cross_entropy,
    is_right,
    squared_error,
)
from fedjax_sim.problems.next_character import NextCharacter, make_next_characters
from fedjax_sim.problems.poisoning import (
    Backdoor,
    Backdoored,
    BackdooredClassification,
    LabelFlip,
    poison,
)
from fedjax_sim.problems.quadratic import Quadratic
from fedjax_sim.problems.supervision import Supervised

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Backdoor",
    "Backdoored",
    "BackdooredClassification",
    "Classification",
    "Examples",
    "GaussianClients",
    "LabelFlip",
    "LogDensity",
    "Logistic",
    "Metric",
    "NextCharacter",
    "OneGaussian",
    "Quadratic",
    "Supervised",
    "absolute_error",
    "accuracy_of_classes",
    "binary_cross_entropy",
    "check_partition",
    "cross_entropy",
    "from_dataframe",
    "from_logdensity",
    "hold_out",
    "is_right",
    "log_density_of",
    "make_classification",
    "make_classifications",
    "make_gaussian_clients",
    "make_logistic",
    "make_next_characters",
    "pad_partitions",
    "partition_by_ids",
    "poison",
    "squared_error",
    "supervised",
]
