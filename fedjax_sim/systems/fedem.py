"""FedEM (Dieuleveut, Fort, Moulines and Robin 2021, arXiv 2111.02083), Algorithms 1, 3 and 4.

    S_k -> `state.server`      theta_k = T(S_k) -> `problem.maximise`    H_{k+1} -> `state.field`
    V_{k,i}, V_k -> `state.memory`    B_{k+1,i} -> `event.weight`    p, p_i -> `hyper.chances`
    b -> `hyper.batch_size`    Quant, omega -> `hyper.memories.compression`
    alpha, gamma_{k+1} -> `hyper.memories.alpha`, `hyper.gamma`

The state consists of expected sufficient statistics, and these are evaluated: parameters are
`problem.maximise` of them. The paper's ablations are two values of `field_rule`: "naive" has no
memories (and is called dEM if nothing is compressed), "local_memory" adds the senders' memories in
place of the mean of all memories.

Readings. Memories start at h_i(S_0), as in the theory. The server's memory averages over
participants only; otherwise it would not equal the mean of the clients' memories. By default alpha
is the theory's and mini-batches are drawn with replacement. Where clients have probabilities p_i
(`participation_schedule` by client), to which the paper says after A9 that its results extend, a
message counts 1 / p_i in H: H = V + (1/n) sum_i B_i Quant_i / p_i. Clients that do not take part
compute nothing, because it would change nothing; "epochs" counts them nevertheless, because all
clients draw in Algorithm 4, unless `counted` is "active".

VR-FedEM and classical expectation maximisation are here too.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import Expectation, check_batch_size, local_expectation, rows
from fedjax_sim.core import batching, trees, types
from fedjax_sim.core.schedules import Constant, Schedule
from fedjax_sim.core.settings import ConfigError, Count, fixed, group, redefault, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, LatentProblem, Params, Plan, Work
from fedjax_sim.server import Approximation, broadcast_bits, keep_if_empty, keep_random
from fedjax_sim.server.memories import Memories, Memory, exchange, first_memory, memory_messages
from fedjax_sim.timelines import CoinRounds, presets, schedule_coin_rounds


@struct
class WithMemories(CoinRounds, Expectation, Approximation):
    """Settings of FedEM and VR-FedEM: participation, E-steps, the server's step, and messages."""

    memories: Memories = group(Memories(), "compression of messages, and its memories")


@struct
class Hyper(WithMemories):
    """Settings of FedEM: those of messages with memories, and the count of its metrics."""

    counted: Literal["all", "active"] = setting(
        "all", "Whose E-steps the metric \"epochs\" counts: all clients' or the participants'."
    )


class State(NamedTuple):
    """The state of FedEM and VR-FedEM; the paper's symbols of the latter are in brackets.

    Attributes:
      server: Expected statistics S_k (S_{t,k}), `f[q]`.
      memory: The memories V.
      field: H_k (H_{t,k}), `f[q]`.
      random: S_K with K uniform on the ticks so far, `f[q]`.
      passes: Full passes of all clients so far, `i32[]`.
      batches: Mini-batches, or full passes, of single clients so far, `i32[]`.
      oracle: Oracles S_{t,k,i} of VR-FedEM, `f[N, q]`.
      seen: S_{t,k-1}, `f[q]`; with "freeze" what each client saw last, `f[N, q]`.
    """

    server: Array
    memory: Memory
    field: Array
    random: Array
    passes: Array
    batches: Array
    oracle: Params = ()
    seen: Params = ()

    def after(
        self, hyper: WithMemories, key: Key, event: Event, oracle: Array, num_batches: Array
    ) -> "State":
        """State after a tick with messages that are compressed differences to the memories.

        Args:
          hyper: The settings.
          oracle: The clients' statistics, `f[S, q]`.
          num_batches: `i32[]`, mini-batches of the tick.
        """
        target = oracle - self.server[None]
        field, memory = exchange(hyper, key, event, self.memory, target, event.weight > 0)
        return self._replace(
            server=self.server + hyper.step_size(event) * field,  # S_k + gamma_{k+1} H_{k+1}
            memory=memory,
            field=keep_if_empty(event, field, self.field),
            random=keep_random(key, event, self.random, self.server),
            batches=self.batches + num_batches,
        )

    def report(self, error: Array, epochs: Array) -> dict[str, Array]:
        """Metrics. error: of the memories, `f[N, q]`; epochs: passes over all data, `f[]`."""
        return {
            "field": jnp.sum(jnp.square(self.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": epochs,
        }


def algorithm(problem: LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FedEM to a problem."""
    expect = local_expectation(problem, hyper, plan)
    is_full = hyper.batches == "full"

    def fields(server: Array) -> Array:
        """Compute h_i(S) of all clients: `f[N, q]`."""
        natural = problem.natural(problem.maximise(server))
        return problem.client_statistics(natural) - server[None]

    def init(key: Key) -> State:
        server = problem.init(key)
        memory = first_memory(hyper.memories, fields(server))
        passes = jnp.asarray(hyper.memories.starts_known, "int32")
        return State(server, memory, memory.server, server, passes, jnp.asarray(0, "int32"))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        active = event.weight > 0  # B_{k+1,i}
        natural = problem.natural(problem.maximise(state.server))  # theta_k = T(S_k)
        oracle, work = expect(key, event, natural, is_full=is_full, works=active)  # S_{k+1,i}
        counted = active if hyper.counted == "active" else event.clients >= 0
        return state.after(hyper, key, event, oracle, counted.sum(dtype="int32")), work

    def metrics(state: State) -> dict[str, Array]:
        per_batch = hyper.batch_size / problem.counts.sum()
        of_all = state.batches / problem.counts.shape[0]
        epochs = state.passes + (of_all if is_full else state.batches * per_batch)
        return state.report(state.memory.clients - fields(state.server), epochs)

    return Algorithm(init, step, hyper.result, metrics, supports=dict(memory_messages.relies_on))


paper = presets.preset(Hyper, presets.EM)
system: types.System = types.System(
    "fedem",
    Hyper,
    schedule_coin_rounds,
    algorithm,
    "expectation maximisation on compressed differences of expected statistics, with memories",
    overshoot=False,
    messages=memory_messages,
    hints=types.Hints(lambda hyper, time: time / hyper.round_length),
    fit=types.Fit(LatentProblem, check_batch_size),
    paper=paper,
)


# VR-FedEM.


@struct
class VRFedEM(WithMemories):
    """VR-FedEM (Dieuleveut, Fort, Moulines and Robin 2021, arXiv 2111.02083), Algorithm 2.

        S_{t,k} -> `state.server`             S_{t,k-1} -> `state.seen`
        oracles S_{t,k,i} -> `state.oracle`   V_{t,k,i}, V_{t,k} -> `state.memory`
        k_in -> `hyper.inner_steps`           otherwise as in FedEM

    It is FedEM with SPIDER's variance reduction: an oracle is a client's estimate of its mean
    statistics, and every step adds to it how much the statistics of a mini-batch have changed since
    the last step. A tick is an inner step. The first inner step of an outer loop takes its oracle
    from a full pass. Algorithm 2 adds a mini-batch there as well, whose change is 0; it is not
    evaluated, but "epochs" counts it, as the paper does. The first outer loop differs: its full
    pass is done at the start, where the memories need it too, and counted once, and its first tick
    does evaluate the mini-batch.

    Readings. The paper's experiments use partial participation, but the paper does not define it.
    By default (`offline` "compute") all clients update their oracles and the coin decides only who
    sends a message, as in Algorithm 4. With "freeze" a client that does not take part does nothing,
    and takes its next difference to the statistics that it saw last. Everyone takes part in full
    passes in both cases. Compression, alpha, memories and mini-batches are as in FedEM.
    """

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


def schedule_reduced(key: Key, hyper: VRFedEM, num_ticks: int) -> types.Timeline:
    """Schedule rounds of all clients.

    Clients that do not take part have weight 0. They have no steps only if they freeze.
    """
    schedule = schedule_coin_rounds(key, hyper, num_ticks)
    if hyper.offline == "freeze":
        return schedule
    return schedule._replace(steps=jnp.ones_like(schedule.steps))


def reduced(problem: LatentProblem, hyper: VRFedEM, plan: Plan) -> Algorithm[State, Work]:
    """Bind VR-FedEM to a problem."""
    expect = local_expectation(problem, hyper, plan)
    num_clients = problem.counts.shape[0]
    freezes = hyper.offline == "freeze"

    def natural(server: Array) -> Array:
        return problem.natural(problem.maximise(server))

    def init(key: Key) -> State:
        server = problem.init(key)
        oracle = problem.client_statistics(natural(server))
        memory = first_memory(hyper.memories, oracle - server[None])
        seen = batching.replicate(server, num_clients) if freezes else server
        passes, batches = jnp.asarray(1, "int32"), jnp.asarray(0, "int32")
        return State(server, memory, memory.server, server, passes, batches, oracle, seen)

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
        subtracted = jax.vmap(natural)(rows.read_rows(seen, clients)) if freezes else natural(seen)
        here, works = natural(state.server), computes | (is_present & is_pass)
        change, work = expect(key, event, here, is_full=is_pass, works=works, subtracted=subtracted)
        # S_{t,k+1,i}
        oracle = jnp.where(is_pass, change, rows.read_rows(state.oracle, clients) + change)
        if freezes:
            now = batching.replicate(state.server, event.clients.shape[0])
            seen = rows.write_clients(seen, jnp.where(computes | is_pass, event.clients, -1), now)
        else:
            seen = keep_if_empty(event, state.server, seen)
        after = state.after(hyper, key, event, oracle, 2 * computes.sum(dtype="int32"))
        return after._replace(
            oracle=rows.write_clients(state.oracle, event.clients, oracle),
            seen=seen,
            passes=state.passes + (is_pass & jnp.any(is_present)),
        ), work

    def metrics(state: State) -> dict[str, Array]:
        statistics = problem.client_statistics(natural(state.server))
        per_batch = hyper.batch_size / problem.counts.sum()
        error = state.memory.clients - statistics + state.server[None]
        return state.report(error, state.passes + state.batches * per_batch)

    return Algorithm(init, step, hyper.result, metrics, supports=dict(memory_messages.relies_on))


vr_fedem = system._replace(
    name="vr_fedem",
    Hyper=VRFedEM,
    timeline=schedule_reduced,
    algorithm=reduced,
    summary="FedEM with variance reduction: full passes at the outer steps, differences in between",
    paper=presets.preset(VRFedEM, {**presets.EM, "batch_size": 5}),
)


# Classical expectation maximisation.


@struct
class EM(CoinRounds, Expectation):
    """Expectation maximisation (Dempster, Laird and Rubin 1977) in the space of expected
    statistics.

        S_k -> `server`    S_{k+1} = mean_i s_i(T(S_k)), eq. (5) of arXiv 2111.02083

    The parameters of classical EM are theta_k = T(S_k). It is the baseline of FedEM: in every round
    every client evaluates all its examples and sends their mean statistics uncompressed.
    """

    participation: float = fixed(1.0)
    participation_schedule: Schedule = fixed(Constant())
    batch_size: int = redefault(Expectation, "batch_size", 200)
    batches: Literal["full"] = fixed("full")


class Statistics(NamedTuple):
    """State of EM.

    Attributes:
      server: S_k, `f[q]`.
    """

    server: Array


def classical(problem: LatentProblem, hyper: EM, plan: Plan) -> Algorithm[Statistics, Work]:
    """Bind EM to a problem."""
    expect = local_expectation(problem, hyper, plan)

    def step(key: Key, state: Statistics, event: Event) -> tuple[Statistics, Work]:
        is_present = event.clients >= 0
        natural = problem.natural(problem.maximise(state.server))
        means, work = expect(key, event, natural, is_full=True, works=is_present)
        num_present = jnp.maximum(is_present.sum(), 1).astype(means.dtype)
        after = Statistics(batching.weighted_sum(is_present, means) / num_present)
        return keep_if_empty(event, after, state), work

    return Algorithm(
        lambda key: Statistics(problem.init(key)), step, model=lambda state: state.server
    )


class StatisticsMessages(types.Messages):
    """The messages of expectation maximisation: statistics up, S and theta down."""

    def per_tick(
        self, problem: LatentProblem, hyper: EM, timeline: types.Timeline
    ) -> tuple[types.Leaf, types.Leaf]:
        """Count the bits sent at each tick, `i64[T]` each."""
        message = types.full_precision_bits(trees.shapes_of_model(problem))
        up = (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * message
        return up, broadcast_bits(problem, timeline)


em = system._replace(
    name="em",
    Hyper=EM,
    algorithm=classical,
    summary="classical expectation maximisation: every round uses all examples of all clients",
    messages=StatisticsMessages(),
    fit=types.Fit(LatentProblem),
    paper=presets.preset(EM, {**presets.EM, "batch_size": 200}),
)
