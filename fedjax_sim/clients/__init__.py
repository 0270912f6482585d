"""What clients do between two messages: gradient steps, E-steps and Langevin noise.

`gradient_steps` runs optimizer steps on mini-batches, for every system that sends models.
`e_steps` computes expected statistics, for the systems of expectation maximisation.
`langevin_noise` is an optax transformation that turns gradient steps into Langevin steps.
All of it runs inside the compiled program, over the slots of a tick.
"""

from fedjax_sim.clients.e_steps import Expectation, check_batch_size, local_expectation
from fedjax_sim.clients.gradient_steps import (
    BatchGradient,
    LocalTraining,
    Train,
    Training,
    batch_gradient,
    batch_loss,
    local_steps,
    local_training,
)
from fedjax_sim.clients.langevin_noise import add_langevin_noise

__all__ = [
    "BatchGradient",
    "Expectation",
    "LocalTraining",
    "Train",
    "Training",
    "add_langevin_noise",
    "batch_gradient",
    "batch_loss",
    "check_batch_size",
    "local_expectation",
    "local_steps",
    "local_training",
]
