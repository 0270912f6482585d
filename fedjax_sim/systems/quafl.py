"""QuAFL (Zakerinia et al., arXiv 2206.10032), as FAVANO's paper (arXiv 2305.16099, Sec. 5) describes and runs it.

    w_t -> `state.server`    w^i -> `state.clients[i]`    S_t -> `event.clients`    E^i ^ K -> `event.steps`    s -> cohort size

Readings. Messages are sent in full precision (the paper does not say that it quantizes them) unless `compression` is other than the
identity. A client mixes in the server's model from *before* the contact, as written. `lr_scale=(s + 1) / s` gives the public simulator's
learning rate.

Deviation: QuAFL compresses by a lattice, which the receiver decodes by its own model. Any unbiased compressor Q is allowed here instead, of
differences from what both sides have: the server's model goes down as v[i] = r[i] + Q(w_{t-1} - r[i]), then the client's up as
v[i] + Q(y[i] - v[i]), and r[i], at first w_0, moves by Q(w_{t-1} - r[i]) / (1 + omega), like the memories of DIANA and FedEM.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.gradient_steps import LocalTraining, local_sgd
from fedjax_sim.compression import Identity
from fedjax_sim.compression.messages import Compression, message_bits, num_parameters, received
from fedjax_sim.server.aggregation import (
    mean_with_server,
    read_rows,
    replicate,
    squared_distance,
    write_clients,
)
from fedjax_sim.settings import struct
from fedjax_sim.timelines import Contacts, schedule_contacts
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    Params,
    Plan,
    Problem,
    System,
    Timeline,
    Work,
)


@struct
class Hyper(Contacts, LocalTraining, Compression):
    """Settings of QuAFL: its clock's, its local training's, and the compression of what both sides send."""


class State(NamedTuple):
    server: Params  # [...]
    clients: Params  # [N, ...]  each client's model after its last contact
    known: Params  # [N, ...]  r[i], what server and client both have; () without compression


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule periodic contacts, the same as FAVANO's from the same key."""
    return schedule_contacts(key, hyper, num_ticks)[0]


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind QuAFL to a problem."""

    is_compressed = not isinstance(hyper.compression, Identity)

    def init(key: Key) -> State:
        server = problem.init(key)
        clients = replicate(server, problem.counts.shape[0])
        return State(server, clients, clients if is_compressed else ())

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        is_present = event.clients >= 0
        start, known = (
            read_rows(models, jnp.maximum(event.clients, 0))
            for models in (state.clients, state.known)
        )
        local, work = local_sgd(
            problem, hyper, plan, key, start, event
        )  # y[i], after min(E, K) steps, not scaled
        sent = replicate(state.server, event.clients.shape[0])
        seen = received(
            hyper.compression, key, event, known, sent, way="down"
        )  # v[i], or w_{t-1} itself
        reports = received(hyper.compression, key, event, seen, local)
        server = mean_with_server(
            state.server, reports, is_present
        )  # w_t = (w_{t-1} + sum_i y[i]) / (s + 1)
        share = 1 / (1 + is_present.sum())  # w[i] = w_{t-1} / (s + 1) + s / (s + 1) y[i]
        mixed = jax.tree.map(lambda old, y: y + (old - y) * share.astype(y.dtype), seen, local)
        if is_compressed:
            pace = 1 / (1 + hyper.compression.omega(num_parameters(state.server)))
            known = jax.tree.map(lambda r, v: r + (v - r) * jnp.asarray(pace, r.dtype), known, seen)
        clients, known = (
            write_clients(*rows)
            for rows in ((state.clients, event.clients, mixed), (state.known, event.clients, known))
        )
        return State(server, clients, known), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": squared_distance(state.clients, state.server).sum()}

    return Algorithm(init, step, lambda state: state.server, report)


system = System(
    name="quafl",
    summary="periodic contacts; clients mix the server's model into their own",
    Hyper=Hyper,
    timeline=timeline,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.period,
    overshoot=False,
    message_bits=lambda params, hyper: (message_bits(hyper.compression, params),) * 2,
)
