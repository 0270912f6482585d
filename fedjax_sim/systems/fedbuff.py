"""FedBuff (Nguyen et al. 2022), as FAVANO's paper (arXiv 2305.16099, Sec. 5 and App. C.2) runs it.

    w_t -> `state.server`    Z -> `hyper.buffer_size`    K -> `hyper.local_steps`    eta_l -> `hyper.lr * hyper.lr_scale`

Readings. A client is blocked from its finish to the end of the exchange that takes its update (`restart`: other readings), then starts
from the new model (`send_old_model`: the one before). The local learning rate is `lr`; `lr_scale=Z / N` gives the public simulator's.
The text also says that a counter is reset at the beginning of each server step; by default that is the difference of one continuous
clock. `restart="fresh"` takes it literally: running times are drawn anew for everyone at each server step, so that fast clients alone
report where there are enough of them. Mean staleness is then 5.3 server steps with 66 of 100 fast clients and 0.1 with 11, against 8.9
and 8.7 of the continuous clock (experiments/README.md has the accuracies).
"""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.aggregation import base_model_variance, read_rows, store_of, weighted_sum, write_row
from fedjax_sim.local import LocalTraining, local_sgd
from fedjax_sim.settings import real, struct
from fedjax_sim.timelines import Arrivals, arrivals
from fedjax_sim.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System, Work


@struct
class Hyper(Arrivals, LocalTraining):
    """Settings of FedBuff: its clock's, its local training's and the server's learning rate."""

    server_lr: float = real(1.0, above=0)


class State(NamedTuple):
    server: Params  # [...]
    versions: Params  # [R, ...]  server models that somebody works from


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FedBuff to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, store_of(server, plan.rows))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = read_rows(state.versions, event.read)  # base[i], a stale server model
        local, work = local_sgd(problem, hyper, plan, key, start, event)
        delta = jax.tree.map(lambda a, b: a - b, start, local)  # delta[i] = base[i] - y[i]
        mean = weighted_sum(event.weight, delta)
        server = jax.tree.map(lambda w, d: w - hyper.server_lr * d, state.server, mean)
        return State(server, write_row(state.versions, event.write, server)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": base_model_variance(state.versions, holders, state.server)}

    return Algorithm(init, step, lambda state: state.server, report)


def ticks_within(hyper: Hyper, time: float) -> float:
    """About: updates arrive at the sum of the clients' rates over K, and no exchange is shorter than `server_interact`."""
    mean_rate = hyper.rate_fast + hyper.slow_fraction * (hyper.rate_slow - hyper.rate_fast)
    fill = hyper.buffer_size * hyper.local_steps / (hyper.num_clients * mean_rate)
    return time / (fill if hyper.restart == "free" else np.maximum(hyper.server_interact, fill))


system = System(
    name="fedbuff",
    summary="buffered asynchronous aggregation: the server acts when Z updates have arrived",
    Hyper=Hyper,
    timeline=arrivals,
    algorithm=algorithm,
    ticks_within=ticks_within,
)
