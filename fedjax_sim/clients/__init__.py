"""Local work of clients: gradient steps, E-steps and Langevin noise.

`gradient_steps` runs optimizer steps on `mini_batches`, by `local_settings`, for every system that
sends models; `packing` lays clients' steps end to end, and `turning` transposes narrow matrices.
`optimizer_states` lets a client's optimizer remember, `base_optimizers` has
optimizers whose statistics belong to the server, `whole_gradients` computes gradients at one
model, `personal` splits and evaluates clients' own models, and `rows` reads and writes what is kept
for every client. `e_steps` computes expected statistics, for the systems of expectation
maximisation. `langevin_noise` has optax transformations that turn gradient steps into Langevin
steps, with momentum or a preconditioner. All of it runs inside the compiled program, over the slots
of a tick.
"""

from fedjax_sim.clients.base_optimizers import BaseOptimizer, frozen_training
from fedjax_sim.clients.e_steps import Expectation, check_batch_size, local_expectation
from fedjax_sim.clients.gradient_steps import (
    Direction,
    Total,
    Train,
    Training,
    local_steps,
    local_training,
)
from fedjax_sim.clients.langevin_noise import (
    add_langevin_noise,
    add_momentum,
    of_pair,
    precondition,
    without_gradients,
)
from fedjax_sim.clients.local_settings import ABOUT_TRAINING, ClientTraining, LocalTraining
from fedjax_sim.clients.mini_batches import (
    BatchGradient,
    LossGradient,
    batch_gradient,
    batch_loss,
)
from fedjax_sim.clients.optimizer_states import (
    LastingTraining,
    first_optimizers,
    lasting_training,
)
from fedjax_sim.clients.personal import PersonalLeaves, personal_metrics
from fedjax_sim.clients.rows import read_clients, read_rows, write_clients
from fedjax_sim.clients.seen_losses import losses_of, seeing_losses
from fedjax_sim.clients.whole_gradients import (
    WholeGradients,
    check_exact,
    gradients_at,
    whole_gradient,
)

__all__ = [
    "ABOUT_TRAINING",
    "BaseOptimizer",
    "BatchGradient",
    "ClientTraining",
    "Direction",
    "Expectation",
    "LastingTraining",
    "LocalTraining",
    "LossGradient",
    "PersonalLeaves",
    "Total",
    "Train",
    "Training",
    "WholeGradients",
    "add_langevin_noise",
    "add_momentum",
    "batch_gradient",
    "batch_loss",
    "check_batch_size",
    "check_exact",
    "first_optimizers",
    "frozen_training",
    "gradients_at",
    "lasting_training",
    "local_expectation",
    "local_steps",
    "local_training",
    "losses_of",
    "of_pair",
    "personal_metrics",
    "precondition",
    "read_clients",
    "read_rows",
    "seeing_losses",
    "whole_gradient",
    "without_gradients",
    "write_clients",
]
