"""Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv 2405.00017).

    w_k -> `state.server`    C -> `hyper.num_tasks`    p_i -> `timelines.routing_shares`
    eta -> `hyper.lr`        J_k -> `event.clients`      I_k -> `event.version`
    1 / (n p_i) -> `event.weight`

C tasks circulate: a client works on its tasks in the order in which they came, each a gradient at
the model that the task carries. When client J_k has finished one, the server makes the step
w_{k+1} = w_k - eta / (n p_{J_k}) g_{J_k}(w_{I_k}), draws a client with probabilities p, and sends
it a task with the new model. In the long run client i sends a share p_i of the gradients, whatever
its speed is, so that the weight 1 / (n p_i) makes all clients count equally.

Deviation: the paper begins with a given set of C clients. Here the first C tasks are drawn with
probabilities p as well, because a set would be one more setting, which is forgotten after a while.

Readings. Several local steps make a task an update of the model (`local_steps`; the paper has one
gradient), and `server_lr` scales the server's step. `routing_exponent` names a family of
probabilities; `routing` gives them one by one.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.checking import Above0
from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.server import Reports, Versioned, Wire, report_messages, stale_models
from fedjax_sim.settings import setting, struct
from fedjax_sim.timelines import ClientQueues, client_queues_within, presets, schedule_client_queues
from fedjax_sim.types import Algorithm, Event, Hints, Key, Plan, Problem, System, Work


@struct
class Hyper(ClientQueues, LocalTraining, Reports):
    """Settings of Generalized AsyncSGD: queues, local training, messages, and the server's step."""

    server_lr: Above0 = setting(1.0, "Learning rate of the server, a factor on its steps.")


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind Generalized AsyncSGD to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # w_{I_k}, [1, ...]
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        progress = jax.tree.map(jnp.subtract, reports, start)  # -eta g_{J_k}(w_{I_k})
        scaled = wire.sum(key, event, progress)  # / (n p_{J_k}); 0 in an empty slot
        server = jax.tree.map(lambda w, d: w + hyper.server_lr * d, state.server, scaled)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, {**presets.FAVANO, "local_steps": 1})
system = System(
    "gen_async",
    Hyper,
    schedule_client_queues,
    algorithm,
    "clients with queues; each finished gradient is a server step, weighted by 1 / (n p_i)",
    messages=report_messages(),
    hints=Hints(client_queues_within),
    paper=paper,
)
