"""q-FedAvg (Li, Sanjabi, Beirami and Smith 2020, arXiv 1905.10497), Algorithm 2.

    w^t -> `state.server`    wbar_k -> `local`    q -> `hyper.fairness`    S_t -> `event.clients`
    F_k(w^t) -> `losses`    eta, 1 / L -> `hyper.lr`    E -> `hyper.local_epochs`

The larger a client's loss, the more its progress counts: the objective is the mean of
F_k^{q+1} / (q + 1). A client sends Delta w_k = L (w^t - wbar_k), and with its loss
Delta_k = F_k^q Delta w_k and h_k = q F_k^{q-1} ||Delta w_k||^2 + L F_k^q. The server's next model
is w^t - sum_k Delta_k / sum_k h_k; with q = 0 that is FedAvg.

Deviation: F_k asks for an additional pass over the client's data. That is `client_losses="exact"`;
"minibatch" takes the batch of the client's first local step instead.

Readings. L is 1 / `lr`, as in the paper's experiments, whatever the local optimizer is. The sums
have the weights of the round, in proportion to examples with `weighting="examples"`; in the paper
clients are drawn so. Negative losses count as 0, and 1e-10 is added, so that one of 0 has powers. A
client sends wbar_k and F_k, as many numbers as Delta_k and h_k, which the server makes of what it
decodes; F_k is not compressed, and attackers leave it as it is.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients import LocalTraining, WholeGradients, local_training, losses_at
from fedjax_sim.core import batching
from fedjax_sim.core.settings import AtLeast0, ConfigError, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, WholeGradients, Reports):
    """Settings of q-FedAvg: its rounds, local training, messages, and the weights of losses."""

    gradient_setting = "client_losses"
    fairness: AtLeast0 = setting(1.0, "How much larger losses count, q; 0 for FedAvg.")
    client_losses: Literal["exact", "minibatch"] = setting(
        "exact", "Losses of clients, which they send: of all examples or the next mini-batch."
    )

    def check_together(self) -> None:
        """Check that all clients of a round have one rate, as L is one number."""
        super().check_together()
        schedule = self.training.lr_schedule
        if not schedule.is_constant and schedule.clock != "round":
            allowed = "round, because the clients of a round have one L = 1 / lr"
            raise ConfigError("training.lr_schedule.by", schedule.clock, allowed)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind q-FedAvg to a problem."""
    q, wire = hyper.fairness, Wire(problem, hyper, plan)
    train = local_training(problem, hyper, plan)
    losses_of_slots = losses_at(problem, hyper, plan, is_exact=hyper.client_losses == "exact")

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w^t
        losses, more = losses_of_slots(key, event, start)
        losses = jnp.maximum(losses, 0) + 1e-10  # F_k
        local, work = train(key, event, start=start)
        starts = batching.replicate(start, event.clients.shape[0])
        reports, memo = wire.receive(key, event, state.memo, starts, local)
        moved = optax.tree.sub(reports, starts)  # -Delta w_k / L
        power = losses**q
        squares = jax.vmap(lambda change: optax.tree.norm(change, squared=True))(moved)
        rate = hyper.of_slots(event).get("lr", hyper.lr)
        steepness = q * power / losses * squares / rate + power  # h_k / L
        is_heard = wire.senders.finite_clients(event, moved) != EMPTY
        total = jnp.where(is_heard, event.weight * steepness, 0).sum()
        scale = power / jnp.where(total > 0, total, 1)
        progress = wire.sum(key, event, moved, scale=scale.astype(event.weight.dtype))
        server = optax.tree.add(state.server, progress)
        memo = wire.publish(key, event, memo, server)
        return RoundState(server, memo=memo), work.and_more(more)

    return wire.algorithm(init, step)


def _loss_bits(model: Params, hyper: Hyper) -> int:
    """Bits of F_k, a number of the model's precision."""
    return 8 * jnp.result_type(*jax.tree.leaves(model)).itemsize


SUMMARY = "federated averaging that minimises larger losses of clients more, for fairness"
system = cohort_system(
    "qfedavg", Hyper, algorithm, SUMMARY, messages=ReportMessages(number_bits=_loss_bits)
)
paper = system.paper
