"""FedDyn (Acar et al. 2021, arXiv 2111.04263), Algorithm 1.

    theta^t -> `state.server`    h^t -> `state.memory`    alpha -> `hyper.regularization`
    theta_k -> `local`           P_t -> `event.clients`   grad L_k(theta_k) -> `state.clients`

Client k minimises L_k(theta) - <g_k, theta> + alpha / 2 ||theta - theta^{t-1}||^2, here by local
steps, where g_k is the gradient of its loss where it last stopped:
g_k <- g_k - alpha (theta_k - theta^{t-1}). The server's memory is
h <- h - alpha / m sum_k (theta_k - theta^{t-1}), and its model is the mean of the theta_k less
h / alpha. If clients solve their problems exactly, the fixed point is the minimum of the mean loss,
however much they differ.

Deviation: Algorithm 1 lets clients solve their problems exactly, and only then is g_k the gradient
at theta_k. Here they take local steps, as in the paper's experiments, because exact minima are not
to be had; g_k and h then follow the formulas.

Readings. With `weighting="examples"` the sum over clients, 1 / m sum_k, has weights in proportion
to examples. With a compressed downlink theta^{t-1} is what the clients know of it.
"""

import optax

from fedjax_sim.clients import LocalTraining, local_training, read_clients, write_clients
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Above0, fixed, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Problem, Work
from fedjax_sim.server import Reports, RoundState, Wire, keep_if_empty
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, Reports):
    """Settings of FedDyn: its rounds, local training, messages, and the dynamic regulariser."""

    regularization: Above0 = setting(0.1, "Strength of the dynamic regulariser, alpha.")
    proximal: float = fixed(0.0)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedDyn to a problem."""
    share, alpha = hyper.shares(problem.counts), hyper.regularization
    wire = Wire(problem, hyper, plan)
    # g - g_k + alpha (theta - theta^{t-1})
    train = local_training(problem, hyper, plan, is_corrected=True, proximal=alpha)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        zero = optax.tree.zeros_like(server)
        slopes = replicate(zero, problem.counts.shape[0])
        return RoundState(server, zero, slopes, wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # theta^{t-1}
        linear = read_clients(state.clients, event.clients)  # g_k
        local, work = train(key, event, start=start, extras=(optax.tree.scale(-1, linear),))
        starts = replicate(start, event.clients.shape[0])
        local, memo = wire.receive(key, event, state.memo, starts, local)
        moved = optax.tree.sub(local, starts)
        linear = optax.tree.add_scale(linear, -alpha, moved)
        of_all = wire.sum(key, event, moved, weight=share[event.clients] * (event.clients >= 0))
        memory = optax.tree.add_scale(state.memory, -alpha, of_all)  # h^t
        server = optax.tree.add_scale(wire.mean(key, event, start, local), -1 / alpha, memory)
        server = keep_if_empty(event, server, state.server)
        memo = wire.publish(key, event, memo, server)
        finite_clients = wire.senders.finite_clients(event, local)
        clients = write_clients(state.clients, finite_clients, linear)
        return RoundState(server, memory, clients, memo), work

    return wire.algorithm(init, step)


SUMMARY = "federated averaging whose local losses are regularised so that their minima agree"
system = cohort_system("feddyn", Hyper, algorithm, SUMMARY)
paper = system.paper
