"""VR-FedEM (Dieuleveut, Fort, Moulines and Robin 2021, arXiv 2111.02083), Algorithm 2.

    S_{t,k} -> `state.server`             S_{t,k-1} -> `state.seen`
    oracles S_{t,k,i} -> `state.oracle`   V_{t,k,i}, V_{t,k} -> `state.memory`
    k_in -> `hyper.inner_steps`           otherwise as in FedEM

It is FedEM with SPIDER's variance reduction: an oracle is a client's estimate of its mean
statistics, and every step adds to it how much the statistics of a mini-batch have changed since the
last step. A tick is an inner step. The first inner step of an outer loop takes its oracle from a
full pass. Algorithm 2 adds a mini-batch there as well, whose change is 0; it is not evaluated, but
"epochs" counts it, as the paper does. The first outer loop differs: its full pass is done at the
start, where the memories need it too, and counted once, and its first tick does evaluate the
mini-batch.

Readings. The paper's experiments use partial participation, but the paper does not define it. By
default (`offline` "compute") all clients update their oracles and the coin decides only who sends
a message, as in Algorithm 4. With "freeze" a client that does not take part does nothing, and takes
its next difference to the statistics that it saw last. Everyone takes part in full passes in both
cases. Compression, alpha, memories and mini-batches are as in FedEM.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import Expectation, e_steps, read_rows, write_clients
from fedjax_sim.core import batching, types
from fedjax_sim.core.settings import ConfigError, Count, group, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Work
from fedjax_sim.server import Approximation, keep_if_empty, keep_random
from fedjax_sim.server.memories import Memories, Memory, exchange, first_memory, memory_messages
from fedjax_sim.timelines import CoinRounds, presets, schedule_coin_rounds


@struct
class Hyper(CoinRounds, Expectation, Approximation):
    """Settings of VR-FedEM: those of FedEM, and the inner loop."""

    memories: Memories = group(Memories(), "compression of messages, and its memories")

    inner_steps: Count = setting(20, "Inner steps of an outer loop, k_in.", traced=True)
    offline: Literal["compute", "freeze"] = setting(
        "compute", "Whether clients that do not take part update their oracles or do nothing."
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.batches == "full":
            allowed = "one of with_replacement, without_replacement in VR-FedEM"
            raise ConfigError("batches", self.batches, allowed)


class State(NamedTuple):
    """The state of VR-FedEM.

    Attributes:
      server: Expected statistics S_{t,k}, `f[q]`.
      memory: The memories V.
      oracle: Oracles S_{t,k,i}, `f[N, q]`.
      seen: S_{t,k-1}, `f[q]`; with "freeze" what each client saw last, `f[N, q]`.
      field: H_{t,k}, `f[q]`.
      random: S_{tau,K} with a uniform index, `f[q]`.
      passes: Full passes so far, `i32[]`.
      batches: Mini-batches of single clients so far, `i32[]`.
    """

    server: types.Array
    memory: Memory
    oracle: types.Array
    seen: types.Array
    field: types.Array
    random: types.Array
    passes: types.Array
    batches: types.Array


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> types.Timeline:
    """Schedule rounds of all clients.

    Clients that do not take part have weight 0. They have no steps only if they freeze.
    """
    schedule = schedule_coin_rounds(key, hyper, num_ticks)
    if hyper.offline == "freeze":
        return schedule
    return schedule._replace(steps=jnp.ones_like(schedule.steps))


def algorithm(problem: types.LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind VR-FedEM to a problem."""
    expect = e_steps.local_expectation(problem, hyper, plan)
    num_clients = problem.counts.shape[0]
    freezes = hyper.offline == "freeze"

    def natural(server: types.Array) -> types.Array:
        return problem.natural(problem.maximise(server))

    def init(key: Key) -> State:
        server = problem.init(key)
        oracle = problem.client_statistics(natural(server))
        memory = first_memory(hyper.memories, oracle - server[None])
        seen = batching.replicate(server, num_clients) if freezes else server
        passes, batches = jnp.asarray(1, "int32"), jnp.asarray(0, "int32")
        return State(server, memory, oracle, seen, memory.server, server, passes, batches)

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        # Outer steps (k = 0) pass over all examples, except the first, which the
        # initial oracle made.
        is_present, active = event.clients >= 0, event.weight > 0
        clients = jnp.maximum(event.clients, 0)
        is_first = event.tick % jnp.asarray(hyper.inner_steps).astype("int32") == 0  # k = 0
        is_pass = is_first & (event.tick > 0)
        computes = is_present & (active if freezes else True)
        # The difference of two E-steps on one mini-batch, at this model and at the one
        # seen before.
        seen = state.seen
        subtracted = jax.vmap(natural)(read_rows(seen, clients)) if freezes else natural(seen)
        here, works = natural(state.server), computes | (is_present & is_pass)
        change, work = expect(key, event, here, is_full=is_pass, works=works, subtracted=subtracted)
        # S_{t,k+1,i}
        oracle = jnp.where(is_pass, change, read_rows(state.oracle, clients) + change)
        target = oracle - state.server[None]
        field, memory = exchange(hyper, key, event, state.memory, target, active)
        if freezes:
            now = batching.replicate(state.server, event.clients.shape[0])
            seen = write_clients(seen, jnp.where(computes | is_pass, event.clients, -1), now)
        else:
            seen = keep_if_empty(event, state.server, seen)
        return State(
            state.server + hyper.step_size(event) * field,
            memory,
            write_clients(state.oracle, event.clients, oracle),
            seen,
            keep_if_empty(event, field, state.field),
            keep_random(key, event, state.random, state.server),
            state.passes + (is_pass & jnp.any(is_present)),
            state.batches + 2 * computes.sum(dtype="int32"),
        ), work

    def metrics(state: State) -> dict[str, types.Array]:
        statistics = problem.client_statistics(natural(state.server))
        error = state.memory.clients - statistics + state.server[None]
        per_batch = hyper.batch_size / problem.counts.sum()
        return {
            "field": jnp.sum(jnp.square(state.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": state.passes + state.batches * per_batch,
        }

    return Algorithm(init, step, hyper.result, metrics, supports=dict(memory_messages.relies_on))


paper = presets.preset(Hyper, {**presets.EM, "batch_size": 5})
system = types.System(
    "vr_fedem",
    Hyper,
    timeline,
    algorithm,
    "FedEM with variance reduction: full passes at the outer steps, differences in between",
    overshoot=False,
    messages=memory_messages,
    hints=types.Hints(lambda hyper, time: time / hyper.round_length),
    fit=types.Fit(types.LatentProblem, e_steps.check_batch_size),
    paper=paper,
)
