"""VR-FedEM (Dieuleveut, Fort, Moulines, Robin 2021, arXiv 2111.02083), Algorithm 2: FedEM with SPIDER's variance reduction.

    S_{t,k} -> `state.server`            S_{t,k-1} -> `state.seen`            the oracles S_{t,k,i} -> `state.oracle`
    V_{t,k,i}, V_{t,k} -> `state.memory` k_in -> `hyper.inner_steps`          otherwise as in FedEM

A tick is an inner step. The first of an outer loop takes its oracle from a full pass: the mini-batch that Algorithm 2 adds there makes a
difference of 0, so it is not evaluated; "epochs" counts it, as the paper does. For the first outer loop the pass is done at the start,
where the memories need it too, and counted once; its first tick evaluates the mini-batch, whose difference is 0.

Readings. Partial participation is run in the paper's experiments but not defined. By default, `offline` "compute", all clients go on with
their oracles and the coin is about the message alone, as in Algorithm 4. With "freeze" a client who does not take part does nothing, and
takes its next difference to the statistics that it saw last; full passes are everybody's in both. Compression, alpha, memories and
mini-batches are as in FedEM.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.e_steps import Expectation, fitting, local_statistics
from fedjax_sim.server.aggregation import read_rows, replicate, write_clients
from fedjax_sim.server.approximation import Approximation, chosen
from fedjax_sim.server.memories import Memories, Memory, exchange, first_memory, traffic
from fedjax_sim.settings import ConfigError, choice, real, redefault, struct
from fedjax_sim.timelines import CoinRounds, schedule_coin_rounds
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    LatentProblem,
    Plan,
    System,
    Timeline,
    Work,
)


@struct
class Hyper(CoinRounds, Expectation, Approximation, Memories):
    """Settings of VR-FedEM: those of FedEM, and the inner loop's."""

    batch_size: int = redefault(Expectation, "batch_size", 5)
    inner_steps: float = real(20, "k_in, a whole number.", least=1)
    offline: str = choice("compute", ("compute", "freeze"), "What clients do who do not take part.")

    def check_together(self) -> None:
        if np.any(np.asarray(self.inner_steps) != np.round(self.inner_steps)):
            raise ConfigError("inner_steps", self.inner_steps, "whole")
        if self.sampling == "full":
            raise ConfigError(
                "sampling",
                self.sampling,
                "one of with_replacement, without_replacement in VR-FedEM",
            )


class State(NamedTuple):
    server: Array  # f[q]  S_{t,k}
    memory: Memory
    oracle: Array  # f[N, q]  S_{t,k,i}
    seen: Array  # f[q]  S_{t,k-1}; with "freeze" f[N, q], that which each client saw last
    field: Array  # f[q]  H_{t,k}
    random: Array  # f[q]  S_{tau,K}
    passes: Array  # i32[]  full passes so far
    batches: Array  # i32[]  clients' mini-batches so far


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule rounds of all clients; those who do not take part have weight 0, and no steps only if they freeze."""
    schedule = schedule_coin_rounds(key, hyper, num_ticks)
    return (
        schedule
        if hyper.offline == "freeze"
        else schedule._replace(steps=jnp.ones_like(schedule.steps))
    )


def algorithm(problem: LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind VR-FedEM to a problem."""
    num_clients = problem.counts.shape[0]
    freezes = hyper.offline == "freeze"

    def natural(server: Array) -> Array:
        return problem.natural(problem.maximise(server))

    def init(key: Key) -> State:
        server = problem.init(key)
        oracle = problem.client_statistics(natural(server))
        memory = first_memory(hyper, oracle - server[None])
        seen = replicate(server, num_clients) if freezes else server
        return State(
            server,
            memory,
            oracle,
            seen,
            memory.server,
            server,
            jnp.asarray(1, "int32"),
            jnp.asarray(0, "int32"),
        )

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        is_present, active = event.clients >= 0, event.weight > 0
        clients = jnp.maximum(event.clients, 0)
        is_first = event.tick % jnp.asarray(hyper.inner_steps).astype("int32") == 0  # k = 0
        is_pass = is_first & (event.tick > 0)
        goes_on = is_present & (active if freezes else True)
        less = jax.vmap(natural)(read_rows(state.seen, clients)) if freezes else natural(state.seen)
        options = {"is_full": is_pass, "works": goes_on | (is_present & is_pass), "less": less}
        change, work = local_statistics(
            problem, hyper, plan, key, event, natural(state.server), **options
        )
        oracle = jnp.where(
            is_pass, change, read_rows(state.oracle, clients) + change
        )  # S_{t,k+1,i}
        field, memory = exchange(
            hyper, key, event, state.memory, oracle - state.server[None], active
        )
        server = state.server + hyper.step_size(event) * field
        is_round = jnp.any(is_present)
        if freezes:
            now = replicate(state.server, event.clients.shape[0])
            seen = write_clients(state.seen, jnp.where(goes_on | is_pass, event.clients, -1), now)
        else:
            seen = jnp.where(is_round, state.server, state.seen)
        return State(
            server,
            memory,
            write_clients(state.oracle, event.clients, oracle),
            seen,
            jnp.where(is_round, field, state.field),
            chosen(key, event, state.random, state.server),
            state.passes + (is_pass & is_round),
            state.batches + 2 * goes_on.sum(dtype="int32"),
        ), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        error = (
            state.memory.clients
            - problem.client_statistics(natural(state.server))
            + state.server[None]
        )
        return {
            "field": jnp.sum(jnp.square(state.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": state.passes + state.batches * (hyper.batch_size / problem.counts.sum()),
        }

    return Algorithm(
        init, step, lambda state: state.random if hyper.output == "random" else state.server, report
    )


system = System(
    name="vr_fedem",
    summary="FedEM with variance-reduced oracles: full passes at the outer steps, differences between",
    Hyper=Hyper,
    timeline=timeline,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.round_time,
    overshoot=False,
    traffic=traffic,
    complete=fitting,
    learns=LatentProblem,
)
