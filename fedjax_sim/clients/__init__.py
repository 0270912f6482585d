"""Local work of clients: gradient steps, E-steps and Langevin noise.

`gradient_steps` runs optimizer steps on `mini_batches`, by `local_settings`, for every system that
sends models, also with statistics of the server's; `packing` lays clients' steps end to end.
`mini_batches` computes gradients, `personal` splits and evaluates clients' own models, and `rows`
reads and writes arrays over clients. `e_steps` computes expected statistics, for the systems of
expectation maximisation. `langevin_noise` has optax transformations that turn gradient steps into
Langevin steps, with momentum or a preconditioner. All of it runs inside the compiled program, over
the slots of a tick.
"""

from fedjax_sim.clients.gradient_steps import MEASURES as MEASURES
from fedjax_sim.clients.gradient_steps import BaseOptimizer as BaseOptimizer
from fedjax_sim.clients.gradient_steps import SumRequest as SumRequest
from fedjax_sim.clients.gradient_steps import Train as Train
from fedjax_sim.clients.gradient_steps import Training as Training
from fedjax_sim.clients.gradient_steps import drift as drift
from fedjax_sim.clients.gradient_steps import first_optimizers as first_optimizers
from fedjax_sim.clients.gradient_steps import frozen_training as frozen_training
from fedjax_sim.clients.gradient_steps import gradient_norm as gradient_norm
from fedjax_sim.clients.gradient_steps import lasting_training as lasting_training
from fedjax_sim.clients.gradient_steps import local_steps as local_steps
from fedjax_sim.clients.gradient_steps import local_training as local_training
from fedjax_sim.clients.gradient_steps import with_measures as with_measures
from fedjax_sim.clients.langevin_noise import add_langevin_noise as add_langevin_noise
from fedjax_sim.clients.local_settings import ABOUT_TRAINING as ABOUT_TRAINING
from fedjax_sim.clients.local_settings import ClientTraining as ClientTraining
from fedjax_sim.clients.local_settings import LastingTraining as LastingTraining
from fedjax_sim.clients.local_settings import LocalTraining as LocalTraining
from fedjax_sim.clients.mini_batches import BatchGradient as BatchGradient
from fedjax_sim.clients.mini_batches import WholeGradients as WholeGradients
from fedjax_sim.clients.mini_batches import batch_gradient as batch_gradient
from fedjax_sim.clients.mini_batches import batch_loss as batch_loss
from fedjax_sim.clients.mini_batches import check_exact as check_exact
from fedjax_sim.clients.mini_batches import gradients_at as gradients_at
from fedjax_sim.clients.mini_batches import whole_gradient as whole_gradient
from fedjax_sim.clients.personal import PersonalLeaves as PersonalLeaves
from fedjax_sim.clients.personal import adapted_metrics as adapted_metrics
from fedjax_sim.clients.personal import personal_metrics as personal_metrics
from fedjax_sim.clients.rows import read_clients as read_clients
from fedjax_sim.clients.rows import write_clients as write_clients
from fedjax_sim.clients.seen_losses import losses_at as losses_at
from fedjax_sim.clients.seen_losses import losses_of as losses_of
from fedjax_sim.clients.seen_losses import seeing_losses as seeing_losses
