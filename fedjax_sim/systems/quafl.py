"""QuAFL (Zakerinia et al., arXiv 2206.10032), as FAVANO's paper (arXiv 2305.16099, Sec. 5) describes and runs it.

    w_t -> `state.server`    w^i -> `state.clients[i]`    S_t -> `event.clients`    E^i ^ K -> `event.steps`    s -> cohort size

Readings. Messages are sent in full precision (the paper does not say that it quantizes them). A client mixes in the server's model
from *before* the contact, as written. `lr_scale=(s + 1) / s` gives the public simulator's learning rate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.aggregation import mean_with_server, read_rows, replicate, squared_distance, write_clients
from fedjax_sim.local import LocalTraining, local_sgd
from fedjax_sim.settings import struct
from fedjax_sim.timelines import Contacts, contacts
from fedjax_sim.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System, Timeline, Work


@struct
class Hyper(Contacts, LocalTraining):
    """Settings of QuAFL: its clock's and its local training's."""


class State(NamedTuple):
    server: Params  # [...]
    clients: Params  # [N, ...]  each client's model after its last contact


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule periodic contacts, the same as FAVANO's from the same key."""
    return contacts(key, hyper, num_ticks)[0]


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind QuAFL to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, replicate(server, problem.counts.shape[0]))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        is_present = event.clients >= 0
        start = read_rows(state.clients, jnp.maximum(event.clients, 0))
        local, work = local_sgd(problem, hyper, plan, key, start, event)  # y[i], after min(E, K) steps, not scaled
        server = mean_with_server(state.server, local, is_present)  # w_t = (w_{t-1} + sum_i y[i]) / (s + 1)
        share = 1 / (1 + is_present.sum())  # w[i] = w_{t-1} / (s + 1) + s / (s + 1) y[i]
        mixed = jax.tree.map(lambda old, y: y + (old[None] - y) * share.astype(y.dtype), state.server, local)
        return State(server, write_clients(state.clients, event.clients, mixed)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": squared_distance(state.clients, state.server).sum()}

    return Algorithm(init, step, lambda state: state.server, report)


system = System(
    name="quafl",
    summary="periodic contacts; clients mix the server's model into their own (no message quantization)",
    Hyper=Hyper,
    timeline=timeline,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.period,
    overshoot=False,
)
