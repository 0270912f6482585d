"""FedPer (Arivazhagan et al., arXiv 1912.00818) and FedRep (Collins et al., arXiv 2102.07078).

    W_B -> the shared leaves of `state.server`    W_{P_j} -> `state.clients`
    personal leaves -> those whose path `hyper.personal` matches    eta -> `hyper.lr`

Some leaves of the model, its head, are personal: every client keeps its own and sends only the
others, the body, which the server averages. In FedPer all leaves learn together. FedRep takes the
first `head_steps` local steps with the head alone and the others with the body alone.

Deviation: both papers draw every client's head at random. Here all heads begin as the first
model's, so that clients differ by their data alone.

Readings. The model that is evaluated on everybody's test examples has the mean of all heads, which
no client uses; personal models are the body as clients know it with their own head, and are
evaluated on each client's own kind of test examples, see `fedjax_sim.core.types.Problem`. In
FedRep, gradients of leaves whose turn it is not are 0; a local optimizer with momentum or weight
decay moves these leaves all the same.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, PersonalLeaves, local_training, personal_metrics, rows
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Whole, setting, struct
from fedjax_sim.core.trees import join
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, PersonalLeaves, Reports):
    """Settings of FedPer: its rounds, local training, messages, and which leaves are personal."""

    head_steps: Whole = setting(
        0, "First local steps, which change the head alone (FedRep); 0 for FedPer."
    )


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedPer to a problem. The state has None in place of leaves of the other kind."""
    num_clients, wire = problem.counts.shape[0], Wire(problem, hyper, plan)

    def in_turn(gradient: Params, model: Params, q: Array, start: Params) -> Params:
        is_first, own = q < hyper.head_steps, hyper.are_personal(model)
        return jax.tree.map(lambda g, is_own: jnp.where(is_first == is_own, g, 0), gradient, own)

    direction = in_turn if hyper.head_steps else None
    train = local_training(problem, hyper, plan, direction=direction, is_elementwise=True)

    def init(key: Key) -> RoundState:
        shared, own = hyper.split(problem.init(key))
        return RoundState(shared, (), replicate(own, num_clients), wire.first(shared))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        shared = replicate(wire.received(state), event.clients.shape[0])
        own = rows.read_clients(state.clients, event.clients)
        local, work = train(key, event, starts=join(shared, own), own=own)
        shared, own = hyper.split(local)
        server, memo = wire.average(key, event, state, shared)
        clients = rows.write_clients(state.clients, event.clients, own)
        return RoundState(server, (), clients, memo), work

    def model(state: RoundState) -> Params:
        return join(state.server, jax.tree.map(lambda leaf: leaf.mean(axis=0), state.clients))

    def metrics(state: RoundState) -> dict[str, Array]:
        def of_client(i: Array) -> Params:
            return join(wire.received(state), jax.tree.map(lambda leaf: leaf[i], state.clients))

        return personal_metrics(problem, of_client)

    def client_models(state: RoundState) -> tuple[Params, Array]:
        body = replicate(wire.received(state), num_clients)
        return join(body, state.clients), jnp.ones(num_clients)

    return wire.algorithm(init, step, model=model, metrics=metrics, client_models=client_models)


SUMMARY = "federated averaging of a shared body; every client keeps its own head"
system = cohort_system(
    "fedper",
    Hyper,
    algorithm,
    SUMMARY,
    messages=ReportMessages(lambda params, hyper: hyper.split(params)[0]),
)
paper = system.paper
