"""QuAFL (Zakerinia et al., arXiv 2206.10032), as FAVANO's paper describes and runs it.

    w_t -> `state.server`    w^i -> `state.clients[i]`    S_t -> `event.clients`
    min(E^i, K) -> `event.steps`    s -> cohort size

Readings (FAVANO, arXiv 2305.16099, Sec. 5). Messages are sent in full precision, because the paper
does not say that it quantizes them, unless `compression` is other than the identity. A client mixes
in the server's model from *before* the contact, as written. QuAFL's public simulator
multiplies `lr` by (s + 1) / s.

Deviation: QuAFL compresses by a lattice that the receiver decodes with its own model. Here any
unbiased compressor Q is allowed, applied to differences from what both sides know: the server's
model goes down as v[i] = r[i] + Q(w_{t-1} - r[i]) and the client's model comes up as
v[i] + Q(y[i] - v[i]). The reference r[i] is w_0 at first and moves by
Q(w_{t-1} - r[i]) / (1 + omega), like the memories of DIANA and FedEM.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, local_training, read_rows, write_clients
from fedjax_sim.core import batching, types
from fedjax_sim.core.settings import struct
from fedjax_sim.core.types import Algorithm, Problem
from fedjax_sim.server import COMBINED, Robust, attacks, check_numbers, combination_of, compression
from fedjax_sim.server.compression import Compression, Identity
from fedjax_sim.timelines import Contacts, presets, schedule_contacts


@struct
class Hyper(Contacts, LocalTraining, Compression, Robust):
    """Settings of QuAFL: its clock, local training, and compression of messages both ways."""


RELIED_ON = (("compression", Identity()), *COMBINED)


class State(NamedTuple):
    """The state of QuAFL.

    Attributes:
      server: The server's model, leaves `[...]`.
      clients: Each client's model after its last contact, leaves `[N, ...]`.
      known: References r[i] that server and client both know, leaves `[N, ...]`; () without
        compression.
    """

    server: types.Params
    clients: types.Params
    known: types.Params


def timeline(key: types.Key, hyper: Hyper, num_ticks: int) -> types.Timeline:
    """Schedule periodic contacts, the same as FAVANO's from the same key."""
    return schedule_contacts(key, hyper, num_ticks)[0]


def algorithm(problem: Problem, hyper: Hyper, plan: types.Plan) -> Algorithm[State, types.Work]:
    """Bind QuAFL to a problem."""
    train = local_training(problem, hyper, plan)
    is_compressed = not isinstance(hyper.compression, Identity)
    combination, num_clients = combination_of(hyper), problem.counts.shape[0]

    def init(key: types.Key) -> State:
        server = problem.init(key)
        clients = batching.replicate(server, problem.counts.shape[0])
        return State(server, clients, clients if is_compressed else ())

    def step(key: types.Key, state: State, event: types.Event) -> tuple[State, types.Work]:
        is_present = event.clients >= 0
        rows = jnp.maximum(event.clients, 0)
        start, known = read_rows(state.clients, rows), read_rows(state.known, rows)
        local, work = train(key, event, starts=start)  # y[i], after min(E, K) steps, not scaled
        sent = batching.replicate(state.server, event.clients.shape[0])
        decode = partial(compression.decode_messages, hyper.compression, key, event)
        seen = decode(known, sent, way="down")  # v[i]
        claimed = attacks.Senders(num_clients, hyper.adversary).claimed(key, event, start, local)
        reports = decode(seen, claimed)
        # w_t = (w_{t-1} + sum_i y[i]) / (s + 1)
        server = combination.mean_with_server(key, event, state.server, reports)
        # w[i] = w_{t-1} / (s + 1) + s / (s + 1) y[i]
        share = 1 / (1 + is_present.sum())
        mixed = jax.tree.map(lambda v, y: y + (v - y) * share.astype(y.dtype), seen, local)
        if is_compressed:
            pace = 1 / (1 + hyper.compression.omega(compression.count_parameters(state.server)))
            known = jax.tree.map(lambda r, v: r + (v - r) * jnp.asarray(pace, r.dtype), known, seen)
        clients = write_clients(state.clients, event.clients, mixed)
        return State(server, clients, write_clients(state.known, event.clients, known)), work

    def client_models(state: State) -> tuple[types.Params, types.Array]:
        return state.clients, jnp.ones(problem.counts.shape)

    return Algorithm(
        init,
        step,
        lambda state: state.server,
        client_models=client_models,
        supports=dict(RELIED_ON),
    )


class Messages(types.Messages):
    """The messages of QuAFL, compressed both ways."""

    relies_on = RELIED_ON

    def bits(self, params: types.Params, hyper: Hyper) -> tuple[int, int]:
        """Count the bits of a message to the server and of one from it."""
        up = hyper.aggregator.chosen.message_bits(hyper.compression, params)
        return up, compression.count_message_bits(hyper.compression, params)

    def check(self, hyper: Hyper, timeline: types.Timeline) -> None:
        """Check numbers of messages; their weights are equal."""
        check_numbers(hyper, timeline)


paper = presets.preset(Hyper, presets.FAVANO)
system = types.System(
    "quafl",
    Hyper,
    timeline,
    algorithm,
    "periodic contacts; clients mix the server's model into their own",
    overshoot=False,
    messages=Messages(),
    hints=types.Hints(lambda hyper, time: time / hyper.period),
    paper=paper,
)
