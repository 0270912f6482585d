"""FedAvg (McMahan et al. 2017), with the clock of FAVANO's experiments.

    w_t -> `state.server`    S_t -> `event.clients`    K -> `hyper.local_steps`    eta -> `hyper.lr`

Readings (FAVANO, arXiv 2305.16099, App. C.2). The server waits for the slowest client of its
cohort, but the text leaves open how long that takes. By default the K running times of a client
are summed, as in QuAFL's public simulator; `round_time` offers the other two readings. With a
`compression` other than the identity, which none of these papers uses here, clients send
Q(w[i] - w_t) for their models w[i].
"""

from typing import NamedTuple

from fedjax_sim.batching import replicate
from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.compression.messages import Compression, count_message_bits, decode_messages
from fedjax_sim.server import keep_if_empty, weighted_sum
from fedjax_sim.settings import struct
from fedjax_sim.timelines import Rounds, schedule_rounds
from fedjax_sim.types import (
    Algorithm,
    Event,
    Hints,
    Key,
    Messages,
    Params,
    Plan,
    Problem,
    System,
    Work,
    full_precision_bits,
)


@struct
class Hyper(Rounds, LocalTraining, Compression):
    """Settings of FedAvg: its clock, local training, and compression of clients' messages."""


class State(NamedTuple):
    """What FedAvg carries from round to round.

    Attributes:
      server: The server's model, leaves `[...]`.
    """

    server: Params


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FedAvg to a problem."""
    train = local_training(problem, hyper, plan)

    def init(key: Key) -> State:
        return State(problem.init(key))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        local, work = train(key, event, start=state.server)  # exactly K steps, all from w_t
        start = replicate(state.server, event.clients.shape[0])
        reports = decode_messages(hyper.compression, key, event, start, local)
        mean = weighted_sum(event.weight, reports)  # without the server's own model
        return keep_if_empty(plan, event, State(mean), state), work

    return Algorithm(init, step, model=lambda state: state.server)


system = System(
    "fedavg",
    Hyper,
    schedule_rounds,
    algorithm,
    "synchronous federated averaging: the server waits for the slowest client of its cohort",
    messages=Messages(
        lambda params, hyper: (
            count_message_bits(hyper.compression, params),
            full_precision_bits(params),
        )
    ),
    # Rounds of fast clients alone, each of mean length.
    hints=Hints(
        lambda hyper, time: (
            time / (hyper.server_interact + hyper.times_per_update / hyper.largest_rate)
        )
    ),
)
