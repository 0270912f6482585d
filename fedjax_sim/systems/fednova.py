"""FedNova (Wang et al. 2020, arXiv 2007.07481), Eqs. 5 to 8.

    x -> `state.server`    p_i -> `event.weight`    tau_i -> `event.steps`    eta -> `hyper.lr`
    ||a_i||_1 -> `size`    tau_eff -> `tau`         rho -> `hyper.momentum`   mu -> `hyper.proximal`

Clients do different numbers of steps, under `local_epochs` for example. FedAvg then weighs a client
in proportion to its steps and finds another objective's minimum. FedNova divides the progress of
each client by the size ||a_i||_1 of its accumulated gradients, so that
x <- x - tau_eff sum_i p_i eta d_i with d_i = (x - x_i) / (eta ||a_i||_1).

Deviation: Eq. 6 holds for any local optimizer whose progress is a weighted sum of gradients. Here
it is plain SGD, SGD with momentum, or SGD with a proximal term (Sec. 4.2 and App. B), whose sizes
have closed forms; Adam's weights depend on the gradients, and it is refused.

Readings. The paper leaves tau_eff free. Here it is sum_i p_i ||a_i||_1, with which FedNova is
FedAvg where all clients do equally many steps. Momentum starts afresh with each update.
"""

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients import ABOUT_TRAINING, ClientTraining, LocalTraining
from fedjax_sim.core.settings import ConfigError, Limit, group, is_known, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Plan, Problem, Work
from fedjax_sim.server import Reports, RoundState, ServerStep
from fedjax_sim.systems import fedopt
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, ServerStep, Reports):
    """Settings of FedNova: its rounds, local steps, messages, and the server's step."""

    training: ClientTraining = group(
        ClientTraining(), ABOUT_TRAINING, without=("optimizer", "optimizer_state")
    )
    momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.0, "Momentum of local steps, rho.", simpler_at=(0.0,)
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        for name in self.by_step:
            allowed = "one of round, version, client, work, because sizes are those of equal steps"
            raise ConfigError(f"training.{name}_schedule.by", "step", allowed)
        if np.any(np.asarray(self.momentum) > 0) and np.any(np.asarray(self.proximal) > 0):
            raise ConfigError("momentum", self.momentum, "0 with a proximal term")
        if np.any(np.asarray(self.lr * self.proximal) >= 1):
            raise ConfigError("proximal", self.proximal, "below 1 / lr")

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the optimizer of local steps."""
        momentum = None if is_known(self.momentum, 0) else self.momentum
        return optax.sgd(self.lr, momentum)

    def size(self, steps: Array) -> Array:
        """Compute ||a_i||_1, the size of accumulated gradients, of numbers of steps: `f[S]`."""
        tau = steps * jnp.ones_like(self.lr)
        if not is_known(self.momentum, 0):  # sum_k (1 - rho^(tau - k)) / (1 - rho)
            rho = self.momentum
            return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        if not is_known(self.proximal, 0):  # sum_k (1 - eta mu)^k
            pull = self.lr * self.proximal
            series = -jnp.expm1(tau * jnp.log1p(-pull)) / jnp.where(pull > 0, pull, 1)
            return jnp.where(pull > 0, series, tau)
        return tau


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedNova to a problem."""

    def scale_of(event: Event) -> Array:
        size = hyper.at_slot(hyper.of_slots(event)).size(event.steps)
        return event.weight @ size / jnp.where(size > 0, size, 1)  # tau_eff / ||a_i||_1

    return fedopt.algorithm(problem, hyper, plan, scale_of)


SUMMARY = "federated averaging of progress per local step: right also if clients' steps differ"
system = cohort_system("fednova", Hyper, algorithm, SUMMARY)
paper = system.paper
