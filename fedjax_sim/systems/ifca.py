"""IFCA (Ghosh, Chung, Yin and Ramchandran 2020, arXiv 2006.04088), Algorithm 1, option II.

    theta_j -> row j of `state.server`    k -> `hyper.num_models`    M_t -> `event.clients`
    j of client i -> `state.clients`    gamma -> `hyper.lr`    tau -> `hyper.local_steps`

The server has k models, one for each cluster of clients, and sends all of them. A client finds the
model with the smallest loss on its data, trains that one, and sends it with its number. Each model
becomes the mean of those that were sent with its number, or stays if there are none (option II,
model averaging).

Deviation: losses of all of a client's examples need an additional pass. That is
`client_losses="exact"`; "minibatch" takes the batch of the client's first local step instead.

Readings. The paper draws first models at random, close enough to the clusters': here the first is
the problem's first model, as in other systems, and the others are further draws of it, which only
differ if the problem draws it at random. Means within a cluster have the weights of the round;
other rules are refused, because a cluster may have too few messages for them.
Personal models are those of the clusters that clients last found, of the first before. The model
that is evaluated on everybody's test examples is the mean of all k, which no client uses.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import clients
from fedjax_sim.clients import LocalTraining, WholeGradients, local_training, rows
from fedjax_sim.core.settings import Count, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, RoundState, Wire, weighted_sum
from fedjax_sim.server.aggregation import where_slots
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, WholeGradients, Reports):
    """Settings of IFCA: its rounds, local training, messages, and the clusters."""

    gradient_setting = "client_losses"
    num_models: Count = setting(2, "Clusters of clients, each with a model of the server's, k.")
    client_losses: Literal["exact", "minibatch"] = setting(
        "exact", "Losses of clients, which tell clusters: of all examples or the next mini-batch."
    )


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind IFCA to a problem."""
    wire = Wire(problem, hyper, plan, without=("aggregator",))
    train = local_training(problem, hyper, plan)
    losses_of = clients.losses_at(problem, hyper, plan, is_exact=hyper.client_losses == "exact")
    clusters = range(hyper.num_models)

    def init(key: Key) -> RoundState:
        first = problem.init(key)
        others = [problem.init(jax.random.fold_in(key, j)) for j in clusters[1:]]
        server = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)
        found = jnp.zeros(problem.counts.shape, "int32")
        return RoundState(server, (), found, wire.first(server, report=first))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        models = wire.received(state)  # theta_j, leaves [k, ...]
        each = [losses_of(key, event, rows.read_rows(models, jnp.int32(j))) for j in clusters]
        cluster = jnp.argmin(jnp.stack([losses for losses, _ in each]), axis=0)
        starts = rows.read_rows(models, cluster)
        local, work = train(key, event, starts=starts)
        reports, memo = wire.receive(key, event, state.memo, starts, local)

        is_heard = wire.senders.finite_clients(event, reports) != EMPTY
        moved = optax.tree.sub(where_slots(is_heard, reports, starts), starts)

        def progress(j: int) -> Params:
            weight = jnp.where(is_heard & (cluster == j), event.weight, 0)
            share = weight / jnp.where(weight.sum() > 0, weight.sum(), 1)
            return weighted_sum(share, moved)

        changes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(progress, clusters))
        server = optax.tree.add(state.server, changes)
        memo = wire.publish(key, event, memo, server)
        kept = rows.write_clients(state.clients, event.clients, cluster)
        return RoundState(server, (), kept, memo), work.and_more(*(more for _, more in each))

    def metrics(state: RoundState) -> dict[str, Array]:
        models = wire.received(state)
        return clients.personal_metrics(problem, lambda i: rows.read_rows(models, state.clients[i]))

    def client_models(state: RoundState) -> tuple[Params, Array]:
        return wire.received(state), jnp.bincount(state.clients, length=hyper.num_models)

    def model(state: RoundState) -> Params:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), state.server)

    return wire.algorithm(init, step, model=model, metrics=metrics, client_models=client_models)


SUMMARY = "federated averaging of k models, of which each client trains the one that suits it best"
messages = ReportMessages(
    down=lambda params, hyper: (params,) * hyper.num_models,
    number_bits=lambda params, hyper: (hyper.num_models - 1).bit_length(),
)
system = cohort_system("ifca", Hyper, algorithm, SUMMARY, messages=messages)
paper = system.paper
