"""SCAFFOLD (Karimireddy et al. 2020, arXiv 1910.06378), Algorithm 1.

    x -> `state.server`    c -> `state.memory`    c_i -> `state.clients`    y_i -> `local`
    S -> `event.clients`   K -> `hyper.local_steps`    eta_l -> `hyper.lr`    eta_g -> `server_lr`

Every local step follows the gradient plus c - c_i, the difference between the server's and the
client's control variates, so that it goes where all clients would go together. All control variates
begin at 0. A client's new one is the gradient at the server's model (option I) or the mean gradient
of its local steps (option II). Messages both ways have a model and a control variate.

Deviation: option I asks for an additional pass over the client's data. That is `control="exact"`;
"minibatch" takes the batch of the client's first local step instead, which costs one gradient.

Readings. K differs between clients under `local_epochs`: option II divides by each client's own K.
With `weighting="examples"` the objective has weights p_i in proportion to examples; c is then the
mean of the c_i with these weights. With equal weights both are the paper's.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, LocalTraining, WholeGradients, local_training, rows
from fedjax_sim.core import batching
from fedjax_sim.core.settings import group, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, RoundState, ServerRate, Wire, expand
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, WholeGradients, ServerRate, Reports):
    """Settings of SCAFFOLD: its rounds, local training, messages, and the control variates."""

    gradient_setting = "control"
    training: ClientTraining = group(
        ClientTraining(), clients.ABOUT_TRAINING, without=("optimizer", "optimizer_state")
    )
    control: Literal["steps", "exact", "minibatch"] = setting(
        "steps",
        'New control variate of a client: the mean gradient of its local steps ("steps"), or the '
        "gradient at the server's model, of all its examples or of a mini-batch.",
    )


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind SCAFFOLD to a problem."""
    share, wire = hyper.shares(problem.counts), Wire(problem, hyper, plan)
    gradient_at = clients.gradients_at(problem, hyper, plan, is_exact=hyper.control == "exact")
    # y_i <- y_i - eta_l (g_i(y_i) + c - c_i)
    train = local_training(problem, hyper, plan, is_corrected=True)

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        c = optax.tree.zeros_like(x)
        return RoundState(x, c, batching.replicate(c, problem.counts.shape[0]), wire.first((x, c)))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        # Local steps with the drift taken off.
        x, c = wire.start(state.memo, (state.server, state.memory))
        before = rows.read_clients(state.clients, event.clients)  # c_i
        correction = jax.tree.map(lambda c, c_i: c[None] - c_i, c, before)
        local, work = train(key, event, start=x, extras=(correction,))
        # New control variates of the clients.
        if hyper.control == "steps":  # c_i - c + (x - y_i) / (K eta_l)
            covered = hyper.rate_sums(event)
            slope = jax.tree.map(lambda x, y: (x[None] - y) / expand(covered, y), x, local)
            after = optax.tree.sub(slope, correction)
        else:
            after, more = gradient_at(key, event, x)
            work = work.and_more(more)
        # What the server hears of both, and its new model and control variate.
        starts = (batching.replicate(x, event.clients.shape[0]), before)
        (local, after), memo = wire.receive(key, event, state.memo, starts, (local, after))
        finite_clients = wire.senders.finite_clients(event, (local, after))
        learns = jnp.where(event.steps > 0, finite_clients, EMPTY)  # nothing without a step
        moved = optax.tree.sub((local, after), starts)
        progress, _ = wire.sum(key, event, moved)
        _, gain = wire.sum(key, event, moved, weight=share[learns] * (learns >= 0))
        x = optax.tree.add_scale(state.server, hyper.at_tick(event).server_lr, progress)
        c = optax.tree.add(state.memory, gain)  # c + (1 / N) sum_i (c_i+ - c_i)
        memo = wire.publish(key, event, memo, (x, c))
        return RoundState(x, c, rows.write_clients(state.clients, learns, after), memo), work

    def received(state: RoundState) -> Params:
        return wire.start(state.memo, (state.server, state.memory))[0]

    return wire.algorithm(init, step, received=received)


SUMMARY = "federated averaging whose control variates correct the drift of local steps"
system = cohort_system(
    "scaffold",
    Hyper,
    algorithm,
    SUMMARY,
    messages=ReportMessages(lambda params, hyper: (params, params)),
)
paper = system.paper
