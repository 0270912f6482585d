"""Problems: clients' data and a loss, see `fedjax_sim.core.types.Problem`.

`supervised` (in `building`) builds a problem from any network, loss and data, and checks that they
fit; `supervision` has the problem itself, `losses` the usual losses and metrics. Images (with
random changes), texts and logistic regression are cases of it, in `classification`. Problems with a
known answer are in `gaussian` (optimum, posterior), any posterior given by its log-density in
`log_density`. `poisoning` changes the examples of malicious clients. `latent` has latent-variable
models for expectation maximisation. `client_data` reads examples, checks and holds partitions for
all of them, and measures clients one by one where they have no test examples.
"""

from fedjax_sim.problems.building import Options as Options
from fedjax_sim.problems.building import supervised as supervised
from fedjax_sim.problems.classification import AUGMENTATIONS as AUGMENTATIONS
from fedjax_sim.problems.classification import Augmentation as Augmentation
from fedjax_sim.problems.classification import Classification as Classification
from fedjax_sim.problems.classification import Logistic as Logistic
from fedjax_sim.problems.classification import NextCharacter as NextCharacter
from fedjax_sim.problems.classification import make_classification as make_classification
from fedjax_sim.problems.classification import make_classifications as make_classifications
from fedjax_sim.problems.classification import make_logistic as make_logistic
from fedjax_sim.problems.classification import make_next_characters as make_next_characters
from fedjax_sim.problems.client_data import Examples as Examples
from fedjax_sim.problems.client_data import Held as Held
from fedjax_sim.problems.client_data import check_partition as check_partition
from fedjax_sim.problems.client_data import from_dataframe as from_dataframe
from fedjax_sim.problems.client_data import hold as hold
from fedjax_sim.problems.client_data import hold_out as hold_out
from fedjax_sim.problems.client_data import partition_by_ids as partition_by_ids
from fedjax_sim.problems.gaussian import GaussianClients as GaussianClients
from fedjax_sim.problems.gaussian import OneGaussian as OneGaussian
from fedjax_sim.problems.gaussian import Quadratic as Quadratic
from fedjax_sim.problems.gaussian import make_gaussian_clients as make_gaussian_clients
from fedjax_sim.problems.log_density import LogDensity as LogDensity
from fedjax_sim.problems.log_density import from_logdensity as from_logdensity
from fedjax_sim.problems.log_density import log_density_of as log_density_of
from fedjax_sim.problems.losses import Metric as Metric
from fedjax_sim.problems.losses import absolute_error as absolute_error
from fedjax_sim.problems.losses import accuracy_of_classes as accuracy_of_classes
from fedjax_sim.problems.losses import binary_cross_entropy as binary_cross_entropy
from fedjax_sim.problems.losses import cross_entropy as cross_entropy
from fedjax_sim.problems.losses import is_right as is_right
from fedjax_sim.problems.losses import squared_error as squared_error
from fedjax_sim.problems.poisoning import Backdoor as Backdoor
from fedjax_sim.problems.poisoning import Backdoored as Backdoored
from fedjax_sim.problems.poisoning import BackdooredClassification as BackdooredClassification
from fedjax_sim.problems.poisoning import LabelFlip as LabelFlip
from fedjax_sim.problems.poisoning import poison as poison
from fedjax_sim.problems.supervision import Supervised as Supervised
