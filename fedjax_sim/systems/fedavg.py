"""FedAvg (McMahan et al. 2017), with the clock of FAVANO's experiments (arXiv 2305.16099, App. C.2).

    w_t -> `state.server`    S_t -> `event.clients`    K -> `hyper.local_steps`    eta -> `hyper.lr`

Readings. The server waits for the slowest client of its cohort; how long that takes is ambiguous in FAVANO's text. By default the K
running times of a client are summed, as in the public simulator of QuAFL; `round_time` offers the other two readings. With a
`compression` other than the identity, which none of these papers has here, clients send Q(w[i] - w_t) for their models w[i].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.gradient_steps import LocalTraining, local_sgd
from fedjax_sim.compression.messages import Compression, message_bits, received
from fedjax_sim.server.aggregation import (
    base_model_variance,
    replicate,
    store_of,
    weighted_sum,
    write_row,
)
from fedjax_sim.settings import struct
from fedjax_sim.timelines import Rounds, schedule_rounds
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    Params,
    Plan,
    Problem,
    System,
    Work,
    full_precision_bits,
)


@struct
class Hyper(Rounds, LocalTraining, Compression):
    """Settings of FedAvg: its clock's, its local training's, and the compression of what clients send."""


class State(NamedTuple):
    server: Params  # [...]
    versions: Params  # [R, ...]  models that clients still hold; only reported


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FedAvg to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, store_of(server, plan.rows))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = replicate(state.server, event.clients.shape[0])
        local, work = local_sgd(
            problem, hyper, plan, key, start, event
        )  # exactly K steps, all from w_t
        reports = received(hyper.compression, key, event, start, local)
        mean = weighted_sum(event.weight, reports)  # the server's own model is not included
        is_round = jnp.any(event.clients >= 0)
        server = jax.tree.map(lambda new, old: jnp.where(is_round, new, old), mean, state.server)
        return State(server, write_row(state.versions, event.write, server)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": base_model_variance(state.versions, holders, state.server)}

    return Algorithm(init, step, lambda state: state.server, report)


system = System(
    name="fedavg",
    summary="synchronous federated averaging: the server waits for the slowest client of its cohort",
    Hyper=Hyper,
    timeline=schedule_rounds,
    algorithm=algorithm,
    # Rounds of fast clients alone, each of mean length.
    ticks_within=lambda hyper, time: (
        time / (hyper.server_interact + hyper.times_per_update / hyper.largest_rate)
    ),
    message_bits=lambda params, hyper: (
        message_bits(hyper.compression, params),
        full_precision_bits(params),
    ),
)
