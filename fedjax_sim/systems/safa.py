"""SAFA (Wu, He, Lin, Mao, Maple and Jarvis 2021, IEEE TC, arXiv 1910.01355): semi-synchronous.

    w(t) -> `state.server`        w*_k -> `state.cache`       n_k / n -> `share`
    tau -> `hyper.lag_tolerance`  C m -> `hyper.num_selected` T_lim -> `hyper.deadline`
    P(t) -> `is_picked`           K(t) -> `has_crashed`       v_k -> `base`

All clients train all the time, and the server acts in rounds.

1. Lag-tolerant distribution. When a round begins, clients that reported in the last one are up to
   date: they receive the new model and begin to train. Clients that still have a model of tau
   rounds ago or more are deprecated: they give up their work and begin with the new model too. The
   others are tolerable and go on.
2. Compensatory first-come-first-merge. Reports of clients that were not picked in the last round
   are picked as they arrive. The round ends when C m of them are, or when nobody is left to wait
   for, or at its deadline. If fewer were picked, the first ones of the other reports are picked
   too. Reports that arrived and were not picked are undrafted.
3. Discriminative aggregation. The server has a cache, with a model of each client. The entries of
   deprecated clients become the global model, and those of picked clients their reports. The new
   global model is the mean of the cache, w(t) = sum_k (n_k / n) w*_k. After that, undrafted reports
   enter the cache, so that they count in the next round.

If C = 1, nobody crashes and there is no deadline, it is FedAvg with all clients.

Readings. The cache begins with the initial model. A client crashes if its report is lost
(`delays.drop_rate`): this is known when the report should have come, and the client begins again
when the next round does, from the model it has. Deprecated is who began tau rounds ago or more, as
in the paper's equation; its public code tolerates one round more. So no report is staler than
tau - 1, and with tau = 1 every round begins afresh for everyone. Clients that are unavailable when
a round begins receive its model when they come. The models that are handed out as a round begins
are counted at its end, with those of everyone who begins with it, whether or not a report comes of
that. Clients that crashed have their model already.

Deviation: a round in which nobody reports leaves the models as they are. By the paper it would
average the cache again, in which undrafted reports may have come.

Dimension letters: those of `fedjax_sim.core.types`; a tick has a slot for every client.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LocalTraining, local_training, write_clients
from fedjax_sim.core import batching, trees, types
from fedjax_sim.core.checking import AtLeast0, Count
from fedjax_sim.core.settings import setting, struct
from fedjax_sim.core.types import Algorithm, Problem
from fedjax_sim.server import Memo, Reports, Wire, keep_if_empty, stale_models
from fedjax_sim.server.aggregation import where_slots
from fedjax_sim.server.report_settings import ReportMessages, downlink_of_slots
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import Clients, cohorts, live
from fedjax_sim.timelines.delays.devices import draw_devices
from fedjax_sim.timelines.rounds import are_in_time, check_clients


@struct
class Hyper(Clients, LocalTraining, Reports):
    """Settings of SAFA: clients, rounds, local training, messages."""

    num_selected: Count = setting(
        10, "Size of the cohort, C m: reports that are picked in a round."
    )
    lag_tolerance: Count = setting(
        5, "Rounds after which a client gives up its work and receives the newest model, tau."
    )
    deadline: AtLeast0 = setting(
        0.0,
        "Longest time that a round waits for reports, T_lim, in units of virtual time; 0 for no "
        "limit.",
        simpler_at=(0.0,),
    )
    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of the cache")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If more reports are picked than there are clients, or a trace lacks rows of
            some client.
        """
        super().check_together()
        check_clients(self, are_distinct=True)

    def share(self, counts: types.Array) -> types.Array:
        """Compute the weights of the clients, which sum to 1: `f[N]`.

        Args:
          counts: `i32[N]`, numbers of examples.
        """
        own = jnp.ones_like(counts) if self.weighting == "equal" else counts
        return own / own.sum()


class Rounds(NamedTuple):
    """State of the clock.

    Attributes:
      now: When the round begins.
      tick: `i32[]`, rounds before it.
      turns: `i32[N]`, how often each client was given work.
      work: Each client's work, `[N]`.
      has_reported: `bool[N]`, who reported in the last round.
      was_picked: `bool[N]`, whose reports were picked.
      has_crashed: `bool[N]`, whose reports were lost.
      drawn: The clients' speeds and hours.
    """

    now: live.Instant
    tick: types.Array
    turns: types.Array
    work: live.Flights
    has_reported: types.Array
    was_picked: types.Array
    has_crashed: types.Array
    drawn: live.Drawn


def clock(problem: Problem, hyper: Hyper) -> live.Clock:
    """Bind the clock of SAFA."""
    num, quota, share = hyper.num_clients, hyper.num_selected, hyper.share(problem.counts)
    everyone = jnp.arange(num, dtype="int32")

    def init(key: types.Key) -> Rounds:
        drawn = draw_devices(key, hyper).drawn
        work, none = live.Flights.none(num, drawn.speeds.rate), jnp.zeros(num, bool)
        start, zero = live.Instant.at(0.0), jnp.int32(0)
        # Everyone is up to date.
        return Rounds(start, zero, jnp.zeros(num, "int32"), work, ~none, none, none, drawn)

    def next_round(key: types.Key, carried: Rounds, state: object) -> tuple[Rounds, live.Received]:
        devices, now = draw_devices(key, hyper, carried.drawn), carried.now
        # The clients begin that are up to date or deprecated, or that crashed.
        is_deprecated = carried.tick - carried.work.version >= hyper.lag_tolerance
        is_synced = carried.has_reported | is_deprecated
        begins = is_synced | carried.has_crashed
        version = jnp.where(is_synced, carried.tick, carried.work.version)
        new = live.begin_work(devices, everyone, carried.turns, now, version)
        work = jax.tree.map(lambda a, b: jnp.where(begins, a, b), new, carried.work)
        lost = devices.are_lost(everyone, work.number)
        taken = work.ends.since(live.Instant(*(jnp.broadcast_to(leaf, (num,)) for leaf in now)))
        arrival, is_fresh = jnp.where(lost, jnp.inf, taken), ~carried.was_picked
        # The round ends with enough reports, or with the last one.
        is_enough = jnp.sort(jnp.where(is_fresh, arrival, jnp.inf))[quota - 1]
        ends = jnp.minimum(is_enough, taken.max())
        acts = work.ends.take((taken == ends).argmax())
        limit = jnp.where(hyper.deadline > 0, hyper.deadline, jnp.inf).astype(taken.dtype)
        is_late = ~are_in_time(ends, limit)
        acts = now.later(jnp.where(is_late, limit, 0)).where(is_late, acts)
        is_in = (arrival <= ends) & are_in_time(arrival, limit)
        # Who was not picked in the last round comes first, and then who arrived first.
        order = jnp.lexsort((arrival, ~is_fresh, ~is_in))
        is_picked = is_in & jnp.zeros(num, bool).at[order[:quota]].set(True)
        slots = jnp.argsort(arrival, stable=True).astype("int32")
        clients = jnp.where(is_in, everyone, types.EMPTY)[slots]
        weight = jnp.where(is_picked, share, 0)[slots]
        received = live.Received(acts, clients, work.steps[slots], work.version[slots], weight)
        after = carried._replace(
            now=acts,
            tick=carried.tick + 1,
            turns=carried.turns + begins,
            work=work,
            has_reported=is_in,
            was_picked=is_picked,
            has_crashed=lost & (taken <= ends) & are_in_time(taken, limit),
        )
        return after, received

    def in_use(carried: Rounds) -> types.Array:
        """List the newest versions: who works from an older one is deprecated."""
        return jnp.maximum(carried.tick - jnp.arange(hyper.lag_tolerance), types.EMPTY)

    return live.Clock(init, next_round, in_use=in_use)


class State(NamedTuple):
    """The state of SAFA.

    Attributes:
      server: The global model, leaves `[...]`.
      versions: Global models that some client works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      cache: The server's model of each client, leaves `[N, ...]`.
      base: `i32[N]`, version of the global model that each client has.
    """

    server: types.Params
    versions: types.Params
    memo: Memo
    cache: types.Params
    base: types.Array


def algorithm(problem: Problem, hyper: Hyper, plan: types.Plan) -> Algorithm[State, types.Work]:
    """Bind SAFA to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, without=("aggregator",))
    share = hyper.share(problem.counts)

    def init(key: types.Key) -> State:
        first = wire.first_version(problem.init(key))
        cache = batching.replicate(first.server, hyper.num_clients)
        return State(*first, cache, jnp.zeros(hyper.num_clients, "int32"))

    def step(key: types.Key, state: State, event: types.Event) -> tuple[State, types.Work]:
        start = stale_models(state, event)
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        is_picked = event.weight > 0
        finite_clients = wire.senders.finite_clients(event, reports)
        # Who has not reported for tau rounds received the newest model, after empty rounds too.
        syncs = (event.tick - state.base) // hyper.lag_tolerance
        newest = jax.tree.map(lambda w: w[None], state.server)
        cache = where_slots(syncs > 0, newest, state.cache)
        cache = write_clients(cache, jnp.where(is_picked, finite_clients, types.EMPTY), reports)
        server = batching.weighted_sum(share, cache)
        cache = write_clients(cache, jnp.where(is_picked, types.EMPTY, finite_clients), reports)
        reporting = jnp.where(event.clients == types.EMPTY, hyper.num_clients, event.clients)
        base = state.base + syncs * hyper.lag_tolerance
        base = base.at[reporting].set(event.tick + 1, mode="drop")
        before = state.server, state.cache, state.base
        server, cache, base = keep_if_empty(event, (server, cache, base), before)
        return State(*wire.next_version(key, event, state, memo, server), cache, base), work

    return wire.algorithm(init, step)


def count_bits_of_clients(
    problem: Problem, hyper: Hyper, timeline: types.Timeline
) -> tuple[types.Leaf, types.Leaf]:
    """Count the bits that each client sends and receives at each tick: `i64[T, N]` each."""
    model = trees.shapes_of_model(problem)
    num_ticks, everyone = len(timeline.time), np.arange(hyper.num_clients)
    up = np.zeros((num_ticks, hyper.num_clients), np.int64)
    rounds, slots = np.nonzero(timeline.clients != types.EMPTY)
    reporting = timeline.clients[rounds, slots]
    up[rounds, reporting] = hyper.aggregator.chosen.message_bits(hyper.messages.compression, model)
    # Who receives the global model as each round begins, in a slot for each client: by the number
    # of the round after its last report, or the first.
    tick, since = np.arange(num_ticks)[:, None], np.zeros((num_ticks + 1, len(everyone)), np.int64)
    since[rounds + 1, reporting] = rounds + 1
    since = np.maximum.accumulate(since)[:num_ticks]
    clients = np.where((tick - since) % int(hyper.lag_tolerance) == 0, everyone, types.EMPTY)
    given = timeline._replace(clients=clients, version=np.broadcast_to(tick, clients.shape))
    return up, downlink_of_slots(hyper, timeline, model, given)


class Messages(ReportMessages):
    """The messages of reports, and the models that clients receive in other rounds too."""

    def per_tick(
        self, problem: Problem, hyper: Hyper, timeline: types.Timeline
    ) -> tuple[types.Leaf, types.Leaf]:
        """Count the bits sent up and down at each tick: `i64[T]` each."""
        up, down = count_bits_of_clients(problem, hyper, timeline)
        return up.sum(axis=1), down.sum(axis=1)

    def by_client(self, problem: Problem, hyper: Hyper, timeline: types.Timeline) -> types.Leaf:
        """Count the bits that each client sends and receives at each tick: `i64[T, N]`."""
        return sum(count_bits_of_clients(problem, hyper, timeline))


def ticks_within(hyper: Hyper, time: float) -> float:
    """Estimate how many rounds fit in a stretch of time, if clients report at their mean rate."""
    share = np.maximum(1, hyper.num_clients / hyper.num_selected / 2)
    return hyper.ticks_within(time, share, used=hyper.num_selected)


def sizes(hyper: Hyper) -> live.Sizes:
    """Size the clock by all clients, and by the versions of tolerable ones."""
    return live.Sizes(hyper.num_clients, hyper.local_steps, hyper.lag_tolerance, is_even=True)


system = live.with_clock(
    fedbuff.system,
    live.Live(sizes, clock),
    name="safa",
    Hyper=Hyper,
    algorithm=algorithm,
    summary="semi-synchronous rounds: everyone trains, late reports are kept for the next mean",
    can_repeat=False,
    messages=Messages(has_weights=False),
    hints=types.Hints(ticks_within),
)
paper = system.paper
