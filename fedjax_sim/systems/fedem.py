"""FedEM (Dieuleveut, Fort, Moulines, Robin 2021, arXiv 2111.02083), Algorithms 1, 3 and 4.

    S_k -> `state.server`                theta_k = T(S_k) -> `problem.maximise`     V_{k,i}, V_k -> `state.memory`
    B_{k+1,i} -> `event.weight`          p -> `hyper.participation`                 H_{k+1} -> `state.field`
    b -> `hyper.batch_size`              Quant, omega -> `hyper.compression`        alpha, gamma_{k+1} -> `hyper.alpha`, `hyper.gamma`

The state is expected sufficient statistics, and so is what is evaluated: parameters are `problem.maximise` of it. Variants of the
paper's ablations: `aggregation` "naive", also with the identity (dEM), and "local_memory".

Readings. Memories start at h_i(S_0), as in the theory; the server's follows the clients who take part, not all, as else it would not be
the mean of theirs. By default alpha is the theory's, mini-batches are drawn with replacement. Clients who do not take part compute
nothing, as it could change nothing; "epochs" nevertheless counts them, as Algorithm 4 has all clients draw, unless `counted` is "active".
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_sim.clients.e_steps import Expectation, fitting, local_statistics
from fedjax_sim.server.approximation import Approximation, chosen
from fedjax_sim.server.memories import Memories, Memory, exchange, first_memory, traffic
from fedjax_sim.settings import choice, struct
from fedjax_sim.timelines import CoinRounds, schedule_coin_rounds
from fedjax_sim.types import Algorithm, Array, Event, Key, LatentProblem, Plan, System, Work


@struct
class Hyper(CoinRounds, Expectation, Approximation, Memories):
    """Settings of FedEM: who takes part, the E-steps, the server's step, and messages with their memories."""

    counted: str = choice("all", ("all", "active"), "Whose E-steps make up epochs.")


class State(NamedTuple):
    server: Array  # f[q]  S_k
    memory: Memory
    field: Array  # f[q]  H_k
    random: Array  # f[q]  S_K
    passes: Array  # i32[]  full passes of all clients so far
    batches: Array  # i32[]  clients' mini-batches, or full passes, so far


def algorithm(problem: LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FedEM to a problem."""
    is_full = hyper.sampling == "full"

    def fields(server: Array) -> Array:
        """h_i(S), `f[N, q]`."""
        return problem.client_statistics(problem.natural(problem.maximise(server))) - server[None]

    def init(key: Key) -> State:
        server = problem.init(key)
        memory = first_memory(hyper, fields(server))
        return State(
            server,
            memory,
            memory.server,
            server,
            jnp.asarray(hyper.starts_known, "int32"),
            jnp.asarray(0, "int32"),
        )

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        active = event.weight > 0  # B_{k+1,i}
        natural = problem.natural(problem.maximise(state.server))  # theta_k = T(S_k)
        oracle, work = local_statistics(
            problem, hyper, plan, key, event, natural, is_full=is_full, works=active
        )  # S_{k+1,i}
        field, memory = exchange(
            hyper, key, event, state.memory, oracle - state.server[None], active
        )
        server = (
            state.server + hyper.step_size(event) * field
        )  # S_{k+1} = S_k + gamma_{k+1} H_{k+1}
        field = jnp.where(jnp.any(event.clients >= 0), field, state.field)
        counted = active if hyper.counted == "active" else event.clients >= 0
        random = chosen(key, event, state.random, state.server)
        return State(
            server, memory, field, random, state.passes, state.batches + counted.sum(dtype="int32")
        ), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        error = state.memory.clients - fields(state.server)
        total = problem.counts.sum()
        share = (
            state.batches / problem.counts.shape[0]
            if is_full
            else state.batches * (hyper.batch_size / total)
        )
        return {
            "field": jnp.sum(jnp.square(state.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": state.passes + share,
        }

    return Algorithm(
        init, step, lambda state: state.random if hyper.output == "random" else state.server, report
    )


system = System(
    name="fedem",
    summary="expectation maximisation on compressed differences of expected statistics, with memories",
    Hyper=Hyper,
    timeline=schedule_coin_rounds,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.round_time,
    overshoot=False,
    traffic=traffic,
    complete=fitting,
    learns=LatentProblem,
)
