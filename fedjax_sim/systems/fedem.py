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

Clocks. The paper's rounds have one length, and a coin for each client (`rounds="coins"`). With
`rounds="cohorts"` statistics are messages as models are in FedAvg: rounds of `timelines.rounds`,
with speeds, hours, traces, over-selection, deadlines, drop-outs and availability. The messages that
are in have the weights w_i of the round in H = V + sum_i w_i Quant_i. A client that is not heard of
keeps its memory, because the server has not moved its part of V. A client's work is one mini-batch,
or as many batches as its data have in a whole pass. What the theory covers: Poisson cohorts are A9
with p = S / n. In uniform cohorts, also with losses that are equally likely for everyone, H is
unbiased, but clients do not take part independently, so that Theorem 3 is not proved for them. With
deadlines, over-selection, hours, traces or unequal losses quick and available clients are
heard more often. H is biased towards them and the theory says nothing; only where the memories are
exact (nothing is compressed and all examples are used) does h(S) = 0 remain a fixed point.

VR-FedEM, classical expectation maximisation and an asynchronous FedEM of ours are here too.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import timelines
from fedjax_sim.clients import e_steps, rows
from fedjax_sim.core import batching, schedules, settings, trees, types
from fedjax_sim.core.settings import ConfigError, Count, fixed, group, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, LatentProblem, Params, Plan, Work
from fedjax_sim.server import StalenessWeights, aggregation, memories, reports, staleness
from fedjax_sim.server.memories import Approximation, Memories, Memory, memory_messages
from fedjax_sim.server.report_settings import Bits
from fedjax_sim.timelines import CoinRounds, presets
from fedjax_sim.timelines.rounds import Cohort

OF_COINS = ("participation", "participation_schedule", "round_length")
OF_COHORTS = ("num_selected", "cohort.", "clock.", "delays.")


@struct
class EitherRounds(CoinRounds, timelines.CohortRounds, e_steps.Expectation):
    """Settings of E-steps in rounds: of one length, with coins, or of cohorts with delays."""

    rounds: Literal["coins", "cohorts"] = setting(
        "coins",
        'Who takes part and how long rounds last. "coins": everyone with the probability '
        '`participation`, in rounds of `round_length`. "cohorts": sampled clients, whose work '
        "takes time.",
    )
    local_steps: int = fixed(1)
    local_epochs: float = fixed(0.0)
    cohort: Cohort = group(Cohort(), "who is asked", without=("weighting",))

    @property
    def has_cohorts(self) -> bool:
        """Whether rounds are of sampled clients."""
        return self.rounds == "cohorts"

    def check_together(self) -> None:
        """Check that all clients count equally."""
        super().check_together()
        if self.cohort.selection == "by_examples":
            allowed = "uniform or poisson, because F is the plain mean over clients"
            raise ConfigError("cohort.selection", "by_examples", allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        others = OF_COINS if self.has_cohorts else OF_COHORTS
        idle = [each for each in settings.names_of(type(self)).values() if each.startswith(others)]
        return super().decided() | dict.fromkeys(idle, f"rounds {self.rounds}")

    def completed(self, problem: Any) -> types.Settings:
        """Check the mini-batches, and fill in the clients' numbers of examples."""
        hyper: types.Settings = e_steps.check_batch_size(self, problem)
        if not self.has_cohorts:
            return hyper
        counts = np.ones(self.num_clients) if problem is None else np.asarray(problem.counts, float)
        return hyper.replace(examples=counts)

    def chances(self, clients: Array) -> Any:
        """Find the probabilities p_i that clients take part; None in rounds of cohorts."""
        return None if self.has_cohorts else super().chances(clients)

    def work_of(self, clients: Array) -> Array | None:
        """Count the mini-batches of clients in a round: one, or those of a whole pass."""
        return self.of_pass(clients) if self.batches == "full" else None

    def of_pass(self, clients: Array) -> Array:
        """Count the mini-batches of a whole pass, `i[T, A]`."""
        counts = jnp.asarray(self.examples)
        return jnp.ceil(counts / self.batch_size).astype(int)[clients]


def schedule_rounds(key: Key, hyper: EitherRounds, num_ticks: int) -> types.Timeline:
    """Schedule rounds with coins or of cohorts, in which a client's E-step counts as one step."""
    if not hyper.has_cohorts:
        return timelines.schedule_coin_rounds(key, hyper, num_ticks)
    schedule = timelines.schedule_cohort_rounds(key, hyper, num_ticks)
    return schedule._replace(steps=jnp.minimum(schedule.steps, 1))


def rounds_within(hyper: EitherRounds, time: float) -> float:
    """Estimate how many rounds fit in a stretch of time."""
    return timelines.rounds_within(hyper, time) if hyper.has_cohorts else time / hyper.round_length


@struct
class WithMemories(EitherRounds, Approximation):
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
      versions: Statistics that clients still work from, `f[R, q]`; () in synchronous systems.
    """

    server: Array
    memory: Memory
    field: Array
    random: Array
    passes: Array
    batches: Array
    oracle: Params = ()
    seen: Params = ()
    versions: Params = ()

    def after(
        self, hyper: Approximation, key: Key, event: Event, target: Array, num_batches: Array
    ) -> "State":
        """State after a tick with messages that are compressed differences to the memories.

        Args:
          hyper: The settings.
          target: How far the clients' statistics are from those that they started from, `f[S, q]`.
          num_batches: `i32[]`, mini-batches of the tick.
        """
        field, memory = memories.exchange(hyper, key, event, self.memory, target, event.weight > 0)
        return self._replace(
            server=self.server + hyper.step_size(event) * field,  # S_k + gamma_{k+1} H_{k+1}
            memory=memory,
            field=aggregation.keep_if_empty(event, field, self.field),
            random=memories.keep_random(key, event, self.random, self.server),
            batches=self.batches + num_batches,
        )

    def report(self, error: Array, epochs: Array) -> dict[str, Array]:
        """Metrics. error: of the memories, `f[N, q]`; epochs: passes over all data, `f[]`."""
        return {
            "field": jnp.sum(jnp.square(self.field)),
            "memory_error": jnp.mean(jnp.sum(jnp.square(error), axis=1)),
            "epochs": epochs,
        }


def algorithm(
    problem: LatentProblem, hyper: Any, plan: Plan, *, is_stale: bool = False
) -> Algorithm[State, Work]:
    """Bind FedEM to a problem.

    Args:
      problem: The data and the model.
      hyper: Settings of FedEM, or of the asynchronous one.
      plan: How the machine is used.
      is_stale: Whether clients may start from older statistics than the server's.
    """
    expect = e_steps.local_expectation(problem, hyper, plan)
    is_full = hyper.batches == "full"

    def fields(server: Array) -> Array:
        """Compute h_i(S) of all clients: `f[N, q]`."""
        natural = problem.natural(problem.maximise(server))
        return problem.client_statistics(natural) - server[None]

    def init(key: Key) -> State:
        server = problem.init(key)
        memory = memories.first_memory(hyper.memories, fields(server))
        passes = jnp.asarray(hyper.memories.starts_known, "int32")
        state = State(server, memory, memory.server, server, passes, jnp.asarray(0, "int32"))
        if not is_stale:
            return state
        return state._replace(versions=reports.first_version(server, plan).versions)

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        active = event.weight > 0  # B_{k+1,i}
        start = reports.stale_models(state, event) if is_stale else state.server
        theta = jax.vmap(problem.maximise)(start) if is_stale else problem.maximise(start)
        natural = jax.vmap(problem.natural)(theta) if is_stale else problem.natural(theta)
        oracle, work = expect(key, event, natural, is_full=is_full, works=active)  # S_{k+1,i}
        counted = active if hyper.counted == "active" else event.clients >= 0
        target = oracle - (start if is_stale else start[None])
        after = state.after(hyper, key, event, target, counted.sum(dtype="int32"))
        if is_stale:
            newest = reports.next_version(state, event, after.server)
            after = after._replace(versions=newest.versions)
        return after, work

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
    schedule_rounds,
    algorithm,
    "expectation maximisation on compressed differences of expected statistics, with memories",
    overshoot=False,
    messages=memory_messages,
    hints=types.Hints(rounds_within),
    fit=types.Fit(LatentProblem, lambda hyper, problem: hyper.completed(problem)),
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

    In rounds of cohorts (`rounds="cohorts"`) a client that is not heard of does nothing, as with
    "freeze", and only the cohort of an outer step's round makes its full passes: the others keep
    their oracles, which stay unbiased, with the variance that they have. An inner step is two
    E-steps on a mini-batch.
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

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        return super().decided() | ({"offline": "rounds cohorts"} if self.has_cohorts else {})

    @property
    def freezes(self) -> bool:
        """Whether clients that do not take part do nothing."""
        return self.offline == "freeze" or self.has_cohorts

    def work_of(self, clients: Array) -> Array:
        """Count the mini-batches of clients in a round: two, or those of a whole pass."""
        t = jnp.arange(len(clients))[:, None]
        is_pass = (t % jnp.asarray(self.inner_steps).astype("int32") == 0) & (t > 0)
        return jnp.where(is_pass, self.of_pass(clients), 2)


def schedule_reduced(key: Key, hyper: VRFedEM, num_ticks: int) -> types.Timeline:
    """Schedule rounds of all clients.

    Clients that do not take part have weight 0. They have no steps only if they freeze.
    """
    schedule = schedule_rounds(key, hyper, num_ticks)
    if hyper.freezes:
        return schedule
    return schedule._replace(steps=jnp.ones_like(schedule.steps))


def reduced(problem: LatentProblem, hyper: VRFedEM, plan: Plan) -> Algorithm[State, Work]:
    """Bind VR-FedEM to a problem."""
    expect = e_steps.local_expectation(problem, hyper, plan)
    num_clients = problem.counts.shape[0]
    freezes, total = hyper.freezes, problem.counts.sum()

    def natural(server: Array) -> Array:
        return problem.natural(problem.maximise(server))

    def init(key: Key) -> State:
        server = problem.init(key)
        oracle = problem.client_statistics(natural(server))
        memory = memories.first_memory(hyper.memories, oracle - server[None])
        seen = batching.replicate(server, num_clients) if freezes else server
        passes = jnp.asarray(1, oracle.dtype if hyper.has_cohorts else "int32")
        batches = jnp.asarray(0, "int32")
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
            seen = aggregation.keep_if_empty(event, state.server, seen)
        target, num_batches = oracle - state.server[None], 2 * computes.sum(dtype="int32")
        after = state.after(hyper, key, event, target, num_batches)
        passed = jnp.any(is_present)
        if hyper.has_cohorts:
            passed = jnp.where(is_present, problem.counts[clients], 0).sum() / total
        return after._replace(
            oracle=rows.write_clients(state.oracle, event.clients, oracle),
            seen=seen,
            passes=(state.passes + is_pass * passed).astype(state.passes.dtype),
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
class EM(EitherRounds):
    """Expectation maximisation (Dempster, Laird and Rubin 1977) in the space of expected
    statistics.

        S_k -> `server`    S_{k+1} = mean_i s_i(T(S_k)), eq. (5) of arXiv 2111.02083

    The parameters of classical EM are theta_k = T(S_k). It is the baseline of FedEM: in every round
    every client evaluates all its examples and sends their mean statistics uncompressed. In rounds
    of cohorts the mean is that of the clients that are heard of.
    """

    participation: float = fixed(1.0)
    participation_schedule: schedules.Schedule = fixed(schedules.Constant())
    batch_size: int = settings.redefault(e_steps.Expectation, "batch_size", 200)
    batches: Literal["full"] = fixed("full")


class Statistics(NamedTuple):
    """State of EM.

    Attributes:
      server: S_k, `f[q]`.
    """

    server: Array


def classical(problem: LatentProblem, hyper: EM, plan: Plan) -> Algorithm[Statistics, Work]:
    """Bind EM to a problem."""
    expect = e_steps.local_expectation(problem, hyper, plan)

    def step(key: Key, state: Statistics, event: Event) -> tuple[Statistics, Work]:
        is_present = event.weight > 0
        natural = problem.natural(problem.maximise(state.server))
        means, work = expect(key, event, natural, is_full=True, works=is_present)
        num_present = jnp.maximum(is_present.sum(), 1).astype(means.dtype)
        after = batching.weighted_sum(is_present, means) / num_present
        return Statistics(jnp.where(is_present.any(), after, state.server)), work

    return Algorithm(
        lambda key: Statistics(problem.init(key)), step, model=lambda state: state.server
    )


class StatisticsMessages(types.Messages):
    """The messages of expectation maximisation: statistics up, S and theta down."""

    def bits(self, params: Params, hyper: EM) -> tuple[int, int]:
        """Count the bits by which a clock times messages; theta is taken for as long as S."""
        return types.full_precision_bits(params), 2 * types.full_precision_bits(params)

    def per_tick(self, problem: LatentProblem, hyper: EM, timeline: types.Timeline) -> Bits:
        """Count the bits sent at each tick, `i64[T]` each."""
        message = types.full_precision_bits(trees.shapes_of_model(problem))
        up = (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * message
        return up, memories.broadcast_bits(problem, timeline)


em = system._replace(
    name="em",
    Hyper=EM,
    algorithm=classical,
    summary="classical expectation maximisation: every round uses all examples of all clients",
    messages=StatisticsMessages(),
    paper=presets.preset(EM, {**presets.EM, "batch_size": 200}),
)


# Asynchronous FedEM.

NO_REPEATS = ("after_interaction", "fresh")
"""Readings of `restart` in which a client cannot fill two slots of a buffer."""


@struct
class AsyncFedEM(staleness.WeightedArrivals, e_steps.Expectation, Approximation):
    """Ours: FedEM (arXiv 2111.02083) with FedBuff's buffer: the server waits for no slow client.

        S_k -> `state.server`    S_{k - tau_i} -> `start`    w_i -> `event.weight`
        V_i, V -> `state.memory`    otherwise as in FedEM

    A client works from the statistics S_{k - tau_i} that the server had when it began, and sends
    Quant(S_i - S_{k - tau_i} - V_i), where S_i are its statistics at T(S_{k - tau_i}). When Z
    messages are in, H = V + sum_i w_i Quant_i and S_{k+1} = S_k + gamma H. The weights w_i are
    FedBuff's or FedStaleWeight's, by default 1 / Z. With Z = n, equal times and no wait it is FedEM
    with everyone. No theory is known to us. Stale differences are of the same field h_i at older
    statistics, whose error is of order gamma times staleness.

    Readings. A client fills one slot of a buffer at most, so that its memory moves by one message
    at a time.
    """

    local_steps: int = fixed(1)
    staleness: StalenessWeights = settings.redefault(
        staleness.WeightedArrivals, "staleness", StalenessWeights(rule="mean")
    )
    memories: Memories = group(Memories(), "compression of messages, and its memories")
    counted: Literal["active"] = fixed("active")

    def check_together(self) -> None:
        """Check that no client fills two slots of a buffer."""
        super().check_together()
        if self.clock.restart not in NO_REPEATS and self.buffer_size > 1:
            allowed = f"one of {', '.join(NO_REPEATS)} for a buffer of more than one message"
            raise ConfigError("clock.restart", self.clock.restart, allowed)

    def chances(self, clients: Array) -> None:
        """Return None: messages count by the weights of their staleness."""


async_fedem = system._replace(
    name="async_fedem",
    Hyper=AsyncFedEM,
    timeline=staleness.schedule_stale_arrivals,
    algorithm=partial(algorithm, is_stale=True),
    summary="FedEM with a buffer: the server acts when Z messages have arrived, some of them stale",
    overshoot=True,
    hints=types.Hints(timelines.arrivals_within),
    fit=types.Fit(LatentProblem, e_steps.check_batch_size),
    weigh=staleness.weigh_arrivals,
    paper=presets.preset(AsyncFedEM, {**presets.FAVANO, **presets.EM}),
)
