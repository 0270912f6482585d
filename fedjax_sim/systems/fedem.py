"""FedEM (Dieuleveut, Fort, Moulines and Robin 2021, arXiv 2111.02083), Algorithms 1, 3 and 4.

    S_k -> `state.server`      theta_k = T(S_k) -> `problem.maximise`    H_{k+1} -> `state.field`
    V_{k,i}, V_k -> `state.memory`    B_{k+1,i} -> `event.weight`    p -> `hyper.participation`
    b -> `hyper.batch_size`    Quant, omega -> `hyper.memories.compression`
    alpha, gamma_{k+1} -> `hyper.memories.alpha`, `hyper.gamma`

The state consists of expected sufficient statistics, and these are evaluated: parameters are
`problem.maximise` of them. The paper's ablations are two values of `field_rule`: "naive" has no
memories (and is called dEM if nothing is compressed), "local_memory" adds the senders' memories in
place of the mean of all memories.

Readings. Memories start at h_i(S_0), as in the theory. The server's memory averages over
participants only; otherwise it would not equal the mean of the clients' memories. By default alpha
is the theory's and mini-batches are drawn with replacement. Clients that do not take part compute
nothing, because it would change nothing; "epochs" counts them nevertheless, because all clients
draw in Algorithm 4, unless `counted` is "active".
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from fedjax_sim.clients import Expectation, check_batch_size, local_expectation
from fedjax_sim.core import types
from fedjax_sim.core.settings import group, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Work
from fedjax_sim.server import Approximation, keep_if_empty, keep_random
from fedjax_sim.server.memories import Memories, Memory, exchange, first_memory, memory_messages
from fedjax_sim.timelines import CoinRounds, presets, schedule_coin_rounds


@struct
class Hyper(CoinRounds, Expectation, Approximation):
    """Settings of FedEM: participation, E-steps, the server's step, messages and memories."""

    memories: Memories = group(Memories(), "compression of messages, and its memories")

    counted: Literal["all", "active"] = setting(
        "all", 'Whose E-steps the metric "epochs" counts: all clients\' or the '
        "participants'."
    )  # fmt: skip


class State(NamedTuple):
    """The state of FedEM.

    Attributes:
      server: Expected statistics S_k, `f[q]`.
      memory: The memories V.
      field: H_k, `f[q]`.
      random: S_K with K uniform on the ticks so far, `f[q]`.
      passes: Full passes of all clients so far, `i32[]`.
      batches: Mini-batches, or full passes, of single clients so far, `i32[]`.
    """

    server: types.Array
    memory: Memory
    field: types.Array
    random: types.Array
    passes: types.Array
    batches: types.Array


def algorithm(problem: types.LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FedEM to a problem."""
    expect = local_expectation(problem, hyper, plan)
    is_full = hyper.batches == "full"

    def fields(server: types.Array) -> types.Array:
        """Compute h_i(S) of all clients: `f[N, q]`."""
        natural = problem.natural(problem.maximise(server))
        return problem.client_statistics(natural) - server[None]

    def init(key: Key) -> State:
        server = problem.init(key)
        memory = first_memory(hyper.memories, fields(server))
        passes = jnp.asarray(hyper.memories.starts_known, "int32")
        return State(server, memory, memory.server, server, passes, jnp.asarray(0, "int32"))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        # E-steps at the server's statistics.
        active = event.weight > 0  # B_{k+1,i}
        natural = problem.natural(problem.maximise(state.server))  # theta_k = T(S_k)
        oracle, work = expect(key, event, natural, is_full=is_full, works=active)  # S_{k+1,i}
        # Compressed differences to the memories give the field H.
        target = oracle - state.server[None]
        field, memory = exchange(hyper, key, event, state.memory, target, active)
        counted = active if hyper.counted == "active" else event.clients >= 0
        return State(
            state.server + hyper.step_size(event) * field,  # S_{k+1} = S_k + gamma_{k+1} H_{k+1}
            memory,
            keep_if_empty(event, field, state.field),
            keep_random(key, event, state.random, state.server),
            state.passes,
            state.batches + counted.sum(dtype="int32"),
        ), work

    def metrics(state: State) -> dict[str, types.Array]:
        error = state.memory.clients - fields(state.server)
        per_batch = hyper.batch_size / problem.counts.sum()
        of_all = state.batches / problem.counts.shape[0]
        return {
            "field": jnp.sum(jnp.square(state.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": state.passes + (of_all if is_full else state.batches * per_batch),
        }

    return Algorithm(init, step, hyper.result, metrics, supports=dict(memory_messages.relies_on))


paper = presets.preset(Hyper, presets.EM)
system = types.System(
    "fedem",
    Hyper,
    schedule_coin_rounds,
    algorithm,
    "expectation maximisation on compressed differences of expected statistics, with memories",
    overshoot=False,
    messages=memory_messages,
    hints=types.Hints(lambda hyper, time: time / hyper.round_length),
    fit=types.Fit(types.LatentProblem, check_batch_size),
    paper=paper,
)
