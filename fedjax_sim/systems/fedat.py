"""FedAT (Chai et al. 2021, SC, arXiv 2010.05958): synchronous tiers that report one by one.

    w -> `state.server`          M -> `hyper.num_tiers`      w_tier_m -> `state.tiers`
    T_tier_m -> `state.updates`  S -> `hyper.num_selected`   lambda -> `hyper.proximal`
    n_k / N_c over S -> `event.weight`

Clients are sorted by response latency into M tiers of equal size, the fastest first. Each tier
runs synchronous rounds: S of its clients start from the global model and minimise their loss plus
lambda / 2 ||w_k - w||^2, and their mean is the tier's new model. Tiers do not wait for each other.
When a tier reports, the server replaces its model of that tier and averages the models of all
tiers,

    w <- sum_m (T_tier_(M+1-m) / T) w_tier_m

with the numbers of updates T_tier of the tiers and their sum T. The tier of fewest updates has the
largest weight, so that fast tiers do not take over. With one tier it is FedAvg.

Readings. Models of tiers that have not reported are the initial one. So the first report of the
fastest tier changes nothing, as its weight is the number of updates of the slowest one, which is 0.
Latencies are the clients' mean response times, known before learning begins; tiers do not change.
Clients of equal latency are sorted by number. Tiers that report at the same moment do so in order,
each on a tick of its own. A tier starts its next round when it has reported. The server has the
tiers of its lane's own clients, also on the schedule of a lane whose clients have other speeds.

Deviation: a client that is lost is waited for until its report should have come, and the tier's
mean is that of the others. If nobody of a round reports, the models and T stay. The paper has no
such round.

Deviation: the paper compresses messages by Polyline encoding. Here they are not compressed unless
`messages.compression` says so.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core import batching, streams, types
from fedjax_sim.core.checking import Count
from fedjax_sim.core.settings import ConfigError, redefault, setting, struct
from fedjax_sim.core.targets import put
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Memo, Reports, Wire, keep_if_empty, stale_models
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import Clients, cohorts, live
from fedjax_sim.timelines.delays.devices import Devices, draw_devices
from fedjax_sim.timelines.live import Clock, Drawn, Flights, Instant, Live, Received, Sizes
from fedjax_sim.timelines.rounds import check_clients


@struct
class Hyper(Clients, LocalTraining, Reports):
    """Settings of FedAT: clients, tiers and their rounds, local training, messages."""

    num_tiers: Count = setting(5, "Tiers into which clients are sorted by response latency, M.")
    num_selected: Count = setting(10, "Size of the cohort, S: clients of a round of a tier.")
    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of a round")
    proximal: float = redefault(LocalTraining, "proximal", 0.4)

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are more tiers than clients, a round needs more clients than the
            smallest tier has, or a trace lacks rows of some client.
        """
        super().check_together()
        check_clients(self, are_distinct=True)
        if self.num_tiers > self.num_clients:
            allowed = f"at most num_clients = {self.num_clients}"
            raise ConfigError("num_tiers", self.num_tiers, allowed)
        smallest = self.num_clients // self.num_tiers
        if self.num_selected > smallest:
            allowed = f"at most {smallest}, the clients of the smallest tier"
            raise ConfigError("num_selected", self.num_selected, allowed)


def tiers_of(devices: Devices, hyper: Hyper) -> Array:
    """Sort clients into tiers by their mean response time: `i32[N]`, 0 for the fastest."""
    latency = devices.mean_times()
    if devices.transfer is not None:
        latency = latency + devices.transfer
    order = jnp.argsort(latency, stable=True)
    tier = jnp.arange(hyper.num_clients, dtype="int32") * hyper.num_tiers // hyper.num_clients
    return jnp.zeros_like(tier).at[order].set(tier)


class Tiers(NamedTuple):
    """State of the clock.

    Attributes:
      tick: `i32[]`, reports of tiers so far.
      rounds: `i32[M]`, rounds that each tier has begun.
      turns: `i32[N]`, how often each client was given work.
      tier: `i32[N]`, each client's tier.
      work: The round that each tier is in, `[M, S]`.
      ends: When these rounds end, instants `[M]`.
      drawn: The clients' speeds and hours.
    """

    tick: Array
    rounds: Array
    turns: Array
    tier: Array
    work: Flights
    ends: Instant
    drawn: Drawn


def clock(problem: Problem, hyper: Hyper) -> Clock:
    """Bind the clock of the tiers."""
    counts, num = jnp.asarray(problem.counts), hyper.num_clients

    def begin_round(
        key: Key, devices: Devices, carried: Tiers, tier: Array, now: Instant, version: Array
    ) -> Tiers:
        """Let clients of a tier that are drawn uniformly begin to work; those available, if any."""
        everyone, is_member = jnp.arange(num), carried.tier == tier
        is_here = is_member & devices.are_available(everyone, now)
        may = jnp.where(is_here.any(), is_here, is_member)
        tier_key = jax.random.fold_in(streams.lane_stream(key, "tier clients"), tier)
        draws = jax.random.uniform(jax.random.fold_in(tier_key, carried.rounds[tier]), (num,))
        drawn, clients = jax.lax.top_k(jnp.where(may, draws, -1), hyper.num_selected)
        is_there = drawn >= 0
        work = live.begin_work(devices, clients, carried.turns[clients], now, version)
        work = work._replace(client=jnp.where(is_there, clients, EMPTY).astype("int32"))
        # The round ends with its last report; the first ones of instants have the larger value.
        last = jnp.where(is_there, work.ends.value, -jnp.inf).max()
        rest = jnp.where(is_there & (work.ends.value == last), work.ends.rest, -jnp.inf).max()
        return carried._replace(
            rounds=put(carried.rounds, tier, carried.rounds[tier] + 1),
            turns=carried.turns.at[clients].add(is_there),
            work=put(carried.work, tier, work),
            ends=put(carried.ends, tier, Instant(last, rest)),
        )

    def init(key: Key) -> Tiers:
        devices, zero = draw_devices(key, hyper), jnp.int32(0)
        drawn = devices.drawn
        one = Flights.none(hyper.num_selected, drawn.speeds.rate)
        work = batching.replicate(one, hyper.num_tiers)
        rounds, ends = jnp.zeros(hyper.num_tiers, "int32"), work.ends.take((slice(None), 0))
        turns = jnp.zeros(num, "int32")
        carried = Tiers(zero, rounds, turns, tiers_of(devices, hyper), work, ends, drawn)
        for tier in range(hyper.num_tiers):
            carried = begin_round(key, devices, carried, jnp.int32(tier), Instant.at(0.0), zero)
        return carried

    def next_tick(key: Key, carried: Tiers, state: object) -> tuple[Tiers, Received]:
        devices, ends = draw_devices(key, hyper, carried.drawn), carried.ends
        is_first = ends.value == ends.value.min()
        tier = jnp.where(is_first, ends.rest, jnp.inf).argmin().astype("int32")
        done, now = carried.work.take(tier), ends.take(tier)
        who = jnp.maximum(done.client, 0)
        is_in = (done.client != EMPTY) & ~devices.are_lost(who, done.number)
        clients = jnp.where(is_in, done.client, EMPTY)
        weight = cohorts.mean_weights(hyper.weighting, counts, who, is_in)
        received = Received(now, clients, done.steps, done.version, weight)
        version = carried.tick + 1  # the model that this report makes
        after = begin_round(key, devices, carried, tier, now, version)
        return after._replace(tick=version), received

    return Clock(init, next_tick, in_use=lambda tiers: tiers.work.version[:, 0])


class State(NamedTuple):
    """The state of FedAT.

    Attributes:
      server: The global model, leaves `[...]`.
      versions: Global models that some tier works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      tiers: The newest model of each tier, leaves `[M, ...]`.
      updates: `i32[M]`, how often each tier has reported.
    """

    server: Params
    versions: Params
    memo: Memo
    tiers: Params
    updates: Array


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FedAT to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> State:
        first = wire.first_version(problem.init(key))
        tiers = batching.replicate(first.server, hyper.num_tiers)
        return State(*first, tiers, jnp.zeros(hyper.num_tiers, "int32"))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = stale_models(state, event)  # w when the tier's round began, in all slots
        local, work = train(key, event, starts=start)  # w_k
        reports, memo = wire.receive(key, event, state.memo, start, local)
        place = (event.clients != EMPTY).argmax()
        common = jax.tree.map(lambda leaf: leaf[place], start)
        model = wire.mean(key, event, common, reports, own=memo.own)
        own = streams.clock_key(key)  # that of the live clock, which has the same tiers
        tier = tiers_of(draw_devices(own, hyper), hyper)[event.clients[place]]
        tiers = jax.tree.map(lambda leaf, new: leaf.at[tier].set(new), state.tiers, model)
        updates = put(state.updates, tier, state.updates[tier] + 1)
        share = updates[::-1] / updates.sum()  # T_tier_(M+1-m) / T
        server = batching.weighted_sum(share, tiers)
        after, before = (server, tiers, updates), (state.server, state.tiers, state.updates)
        server, tiers, updates = keep_if_empty(event, after, before)
        newest = wire.next_version(key, event, state, memo, server)
        return State(*newest, tiers, updates), work

    return wire.algorithm(init, step)


def sizes(hyper: Hyper) -> Sizes:
    """Size the clock by one round of each tier."""
    return Sizes(hyper.num_selected, hyper.local_steps, hyper.num_tiers, is_even=True)


system = live.with_clock(
    fedbuff.system,
    Live(sizes, clock),
    name="fedat",
    Hyper=Hyper,
    algorithm=algorithm,
    summary="tiers of equally fast clients: rounds within each, asynchronous between them",
    can_repeat=False,
    hints=types.Hints(
        lambda hyper, time: hyper.ticks_within(time, hyper.num_tiers, used=hyper.num_selected)
    ),
)
paper = system.paper
