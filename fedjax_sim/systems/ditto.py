"""Ditto (Li et al. 2021, arXiv 2012.04221), Algorithm 1 with FedAvg for the global model.

    w^t -> `state.server`    v_k -> `state.clients`    S_t -> `event.clients`
    lambda -> `hyper.attachment`    eta -> `hyper.lr`

Every client has a model of its own, v_k, which it pulls to the global one:
v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)). The global model is FedAvg's and does not
know of the others. Personal models are evaluated on each client's own kind of test examples; see
`fedjax_sim.core.types.Problem`.

Deviation: Algorithm 1 has a number of steps s of its own for personal models, and draws their
mini-batches for themselves. Here both models of a client take as many steps, at one learning rate
and on the same mini-batches, because a schedule counts one number of steps for a client.

Readings. Personal models begin as copies of the first global model. They are pulled to w^t as the
client knows it, which differs from the server's with a compressed downlink.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, local_training, personal_metrics, rows
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import AtLeast0, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import PrivateReports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, PrivateReports):
    """Settings of Ditto: its rounds, local training, messages, and the pull on personal models."""

    attachment: AtLeast0 = setting(0.1, "Pull of personal models to the global one, lambda.")


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind Ditto to a problem."""
    num_clients = problem.counts.shape[0]
    wire = Wire(problem, hyper, plan, train=local_training)
    train = local_training(problem, hyper, plan)

    def pulled(g: Params, v: Params, q: Array, start: Params, w: Params) -> Params:
        return jax.tree.map(lambda g, v, w: g + hyper.attachment * (v - w), g, v, w)

    personalise = local_training(
        problem, hyper, plan, direction=pulled, is_elementwise=True, proximal=0
    )

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, (), replicate(server, num_clients), wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w^t
        total = wire.total(event)
        own = rows.read_clients(state.clients, event.clients)  # v_k
        local, work = train(key, event, start=start, own=own, total=total)
        target = replicate(start, event.clients.shape[0])
        own, more = personalise(key, event, starts=own, extras=(target,))
        server, memo = wire.average(key, event, state, local, total=total)
        clients = rows.write_clients(state.clients, event.clients, own)
        return RoundState(server, (), clients, memo), work.and_more(more)

    def metrics(state: RoundState) -> dict[str, Array]:
        own = personal_metrics(problem, lambda i: jax.tree.map(lambda v: v[i], state.clients))
        return {**own, **wire.metrics(state)}

    def client_models(state: RoundState) -> tuple[Params, Array]:
        return state.clients, jnp.ones(num_clients)

    return wire.algorithm(init, step, metrics=metrics, client_models=client_models)


SUMMARY = (
    "federated averaging, and a personal model of every client that is pulled to the global one"
)
system = cohort_system("ditto", Hyper, algorithm, SUMMARY)
paper = system.paper
