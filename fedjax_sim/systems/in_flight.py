"""Work that lasts for several ticks of a live clock: SAFA, FedAT, Pisces and all of AsyncFedED.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LocalTraining, local_training, rows, seeing_losses, seen_losses
from fedjax_sim.core import batching, settings, streams, targets, trees, types
from fedjax_sim.core.settings import Above0, AtLeast0, Checked, ConfigError, Count, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Event, Key, Leaf, Problem, Work
from fedjax_sim.server import Reports, Versioned, Wire, aggregation, keep_if_empty, stale_models
from fedjax_sim.server.report_settings import Bits, ReportMessages, downlink_of_slots
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import Clients, cohorts, live
from fedjax_sim.timelines.delays.devices import Devices, draw_devices
from fedjax_sim.timelines.live import Clock, Flights, Instant, Received, Sizes
from fedjax_sim.timelines.rounds import are_in_time, check_clients


def with_work_in_flight(
    kind: type[Clients],
    clock: Callable[[Problem, Any], Clock],
    sized_by: tuple[str, str],
    **changes: Any,
) -> types.System:
    """System with clients' work that lasts for several ticks of a live clock.

    Args:
      kind: Class of the settings, whose name is the system's.
      clock: From a problem and settings to the clock.
      sized_by: Names of the settings that size a tick, and the number of versions in use.
      **changes: Other fields than those of FedBuff.
    """

    def sizes(hyper: Clients) -> Sizes:
        slots, versions = (getattr(hyper, name) for name in sized_by)
        return Sizes(slots, hyper.local_steps, versions, is_even=True)

    given = {"name": kind.__name__.lower(), "Hyper": kind, **changes}
    return live.with_clock(fedbuff.system, live.Live(sizes, clock), **given)


# SAFA.


@struct
class SAFA(Clients, LocalTraining, Reports):
    """SAFA (Wu, He, Lin, Mao, Maple and Jarvis 2021, IEEE TC, arXiv 1910.01355): semi-synchronous.

        w(t) -> `state.server`        w*_k -> `cache`             n_k / n -> `share`
        tau -> `hyper.lag_tolerance`  C m -> `hyper.num_selected` T_lim -> `hyper.deadline`
        P(t) -> `is_picked`           K(t) -> `has_crashed`       v_k -> `base`

    All clients train all the time, and the server acts in rounds.

    1. Lag-tolerant distribution. When a round begins, clients that reported in the last one are up
       to date: they receive the new model and begin to train. Clients that still have a model of
       tau rounds ago or more are deprecated: they give up their work and begin with the new model
       too. The others are tolerable and go on.
    2. Compensatory first-come-first-merge. Reports of clients that were not picked in the last
       round are picked as they arrive. The round ends when C m of them are, or when nobody is left
       to wait for, or at its deadline. If fewer were picked, the first ones of the other reports
       are picked too. Reports that arrived and were not picked are undrafted.
    3. Discriminative aggregation. The server has a cache, with a model of each client. The entries
       of deprecated clients become the global model, and those of picked clients their reports. The
       new global model is the mean of the cache, w(t) = sum_k (n_k / n) w*_k. After that, undrafted
       reports enter the cache, so that they count in the next round.

    If C = 1, nobody crashes and there is no deadline, it is FedAvg with all clients.

    Readings. The cache begins with the initial model. A client crashes if its report is lost
    (`delays.drop_rate`): this is known when the report should have come, and the client begins
    again when the next round does, from the model it has. Deprecated is who began tau rounds ago or
    more, as in the paper's equation; its public code tolerates one round more. So no report is
    staler than tau - 1, and with tau = 1 every round begins afresh for everyone. Clients that are
    unavailable when a round begins receive its model when they come. The models that are handed out
    as a round begins are counted at its end, with those of everyone who begins with it, whether or
    not a report comes of that. Clients that crashed have their model already.

    Deviation: a round in which nobody reports leaves the models as they are. By the paper it would
    average the cache again, in which undrafted reports may have come.

    Dimension letters: those of `fedjax_sim.core.types`; a tick has a slot for every client.
    """

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


class SafaRounds(NamedTuple):
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

    now: Instant
    tick: Array
    turns: Array
    work: Flights
    has_reported: Array
    was_picked: Array
    has_crashed: Array
    drawn: live.Drawn


def safa_clock(problem: Problem, hyper: SAFA) -> Clock:
    """Bind the clock of SAFA."""
    num, quota, share = hyper.num_clients, hyper.num_selected, weights_of(hyper, problem.counts)
    everyone = jnp.arange(num, dtype="int32")

    def init(key: Key) -> SafaRounds:
        drawn = draw_devices(key, hyper).drawn
        work, none = Flights.none(num, drawn.speeds.rate), jnp.zeros(num, bool)
        start, zero = Instant.at(0.0), jnp.int32(0)
        # Everyone is up to date.
        return SafaRounds(start, zero, jnp.zeros(num, "int32"), work, ~none, none, none, drawn)

    def next_round(key: Key, carried: SafaRounds, state: object) -> tuple[SafaRounds, Received]:
        devices, now = draw_devices(key, hyper, carried.drawn), carried.now
        # The clients begin that are up to date or deprecated, or that crashed.
        is_deprecated = carried.tick - carried.work.version >= hyper.lag_tolerance
        is_synced = carried.has_reported | is_deprecated
        begins = is_synced | carried.has_crashed
        version = jnp.where(is_synced, carried.tick, carried.work.version)
        new = live.begin_work(devices, everyone, carried.turns, now, version)
        work = jax.tree.map(lambda a, b: jnp.where(begins, a, b), new, carried.work)
        lost = devices.are_lost(everyone, work.number)
        taken = work.ends.since(Instant(*(jnp.broadcast_to(leaf, (num,)) for leaf in now)))
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
        clients = jnp.where(is_in, everyone, EMPTY)[slots]
        weight = jnp.where(is_picked, share, 0)[slots]
        received = Received(acts, clients, work.steps[slots], work.version[slots], weight)
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

    def in_use(carried: SafaRounds) -> Array:
        """List the newest versions: who works from an older one is deprecated."""
        return jnp.maximum(carried.tick - jnp.arange(hyper.lag_tolerance), EMPTY)

    return Clock(init, next_round, in_use=in_use)


def weights_of(hyper: SAFA, counts: Array) -> Array:
    """Weights of the clients in the cache, which sum to 1: `f[N]`. counts: of their examples."""
    own = jnp.ones_like(counts) if hyper.weighting == "equal" else counts
    return own / own.sum()


def safa_algorithm(problem: Problem, hyper: SAFA, plan: types.Plan) -> Algorithm[Versioned, Work]:
    """Bind SAFA to a problem. Clients' rows are the cache, and the version that each has."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan)
    share = weights_of(hyper, problem.counts)

    def init(key: Key) -> Versioned:
        server = problem.init(key)
        cache = batching.replicate(server, hyper.num_clients)
        return wire.first_version(server, (cache, jnp.zeros(hyper.num_clients, "int32")))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        is_picked = event.weight > 0
        finite_clients = wire.senders.finite_clients(event, reports)
        # Who has not reported for tau rounds received the newest model, after empty rounds too.
        before_cache, before_base = state.clients
        syncs = (event.tick - before_base) // hyper.lag_tolerance
        newest = jax.tree.map(lambda w: w[None], state.server)
        cache = aggregation.where_slots(syncs > 0, newest, before_cache)
        cache = rows.write_clients(cache, jnp.where(is_picked, finite_clients, EMPTY), reports)
        server = batching.weighted_sum(share, cache)
        cache = rows.write_clients(cache, jnp.where(is_picked, EMPTY, finite_clients), reports)
        reporting = jnp.where(event.clients == EMPTY, hyper.num_clients, event.clients)
        base = before_base + syncs * hyper.lag_tolerance
        base = base.at[reporting].set(event.tick + 1, mode="drop")
        after = server, (cache, base)
        server, kept = keep_if_empty(event, after, (state.server, state.clients))
        return wire.next_version(key, event, state, memo, server, clients=kept), work

    return wire.algorithm(init, step)


def bits_of_clients(problem: Problem, hyper: SAFA, timeline: types.Timeline) -> Bits:
    """Count the bits that each client sends and receives at each tick: `i64[T, N]` each."""
    model = trees.shapes_of_model(problem)
    num_ticks, everyone = len(timeline.time), np.arange(hyper.num_clients)
    up = np.zeros((num_ticks, hyper.num_clients), np.int64)
    rounds, slots = np.nonzero(timeline.clients != EMPTY)
    reporting = timeline.clients[rounds, slots]
    up[rounds, reporting] = hyper.aggregator.chosen.message_bits(hyper.messages.compression, model)
    # Who receives the global model as each round begins, in a slot for each client: by the number
    # of the round after its last report, or the first.
    tick, since = np.arange(num_ticks)[:, None], np.zeros((num_ticks + 1, len(everyone)), np.int64)
    since[rounds + 1, reporting] = rounds + 1
    since = np.maximum.accumulate(since)[:num_ticks]
    clients = np.where((tick - since) % int(hyper.lag_tolerance) == 0, everyone, EMPTY)
    given = timeline._replace(clients=clients, version=np.broadcast_to(tick, clients.shape))
    return up, downlink_of_slots(hyper, timeline, model, given)


class SafaMessages(ReportMessages):
    """The messages of reports, and the models that clients receive in other rounds too."""

    def per_tick(self, problem: Problem, hyper: SAFA, timeline: types.Timeline) -> Bits:
        """Count the bits sent up and down at each tick: `i64[T]` each."""
        up, down = bits_of_clients(problem, hyper, timeline)
        return up.sum(axis=1), down.sum(axis=1)

    def by_client(self, problem: Problem, hyper: SAFA, timeline: types.Timeline) -> Leaf:
        """Count the bits that each client sends and receives at each tick: `i64[T, N]`."""
        return sum(bits_of_clients(problem, hyper, timeline))


safa = with_work_in_flight(
    SAFA,
    safa_clock,
    ("num_clients", "lag_tolerance"),
    algorithm=safa_algorithm,
    summary="semi-synchronous rounds: everyone trains, late reports are kept for the next mean",
    can_repeat=False,
    messages=SafaMessages(has_weights=False),
    # Clients report at their mean rate.
    hints=types.Hints(
        lambda hyper, time: hyper.ticks_within(
            time, np.maximum(1, hyper.num_clients / hyper.num_selected / 2), used=hyper.num_selected
        )
    ),
)


# FedAT.


@struct
class FedAT(Clients, LocalTraining, Reports):
    """FedAT (Chai et al. 2021, SC, arXiv 2010.05958): synchronous tiers that report one by one.

        w -> `state.server`          M -> `hyper.num_tiers`      w_tier_m -> `tiers`
        T_tier_m -> `updates`        S -> `hyper.num_selected`   lambda -> `hyper.proximal`
        n_k / N_c over S -> `event.weight`

    Clients are sorted by response latency into M tiers of equal size, the fastest first. Each tier
    runs synchronous rounds: S of its clients start from the global model and minimise their loss
    plus lambda / 2 ||w_k - w||^2, and their mean is the tier's new model. Tiers do not wait for
    each other. When a tier reports, the server replaces its model of that tier and averages the
    models of all tiers,

        w <- sum_m (T_tier_(M+1-m) / T) w_tier_m

    with the numbers of updates T_tier of the tiers and their sum T. The tier of fewest updates has
    the largest weight, so that fast tiers do not take over. With one tier it is FedAvg.

    Readings. Models of tiers that have not reported are the initial one. So the first report of the
    fastest tier changes nothing, as its weight is the number of updates of the slowest one, which
    is 0. Latencies are the clients' mean response times, known before learning begins; tiers do not
    change. Clients of equal latency are sorted by number. Tiers that report at the same moment do
    so in order, each on a tick of its own. A tier starts its next round when it has reported. The
    server has the tiers of its lane's own clients, also on the schedule of a lane whose clients
    have other speeds.

    Deviation: a client that is lost is waited for until its report should have come, and the tier's
    mean is that of the others. If nobody of a round reports, the models and T stay. The paper has
    no such round.

    Deviation: the paper compresses messages by Polyline encoding. Here they are not compressed
    unless `messages.compression` says so.
    """

    num_tiers: Count = setting(5, "Tiers into which clients are sorted by response latency, M.")
    num_selected: Count = setting(10, "Size of the cohort, S: clients of a round of a tier.")
    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of a round")
    proximal: float = settings.redefault(LocalTraining, "proximal", 0.4)

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are more tiers than clients, a round needs more clients than the
            smallest tier has, or a trace lacks rows of some client.
        """
        super().check_together()
        check_clients(self, are_distinct=True)
        self.check_at_most_clients("num_tiers")
        smallest = self.num_clients // self.num_tiers
        if self.num_selected > smallest:
            allowed = f"at most {smallest}, the clients of the smallest tier"
            raise ConfigError("num_selected", self.num_selected, allowed)


def tiers_of(devices: Devices, hyper: FedAT) -> Array:
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
    drawn: live.Drawn


def fedat_clock(problem: Problem, hyper: FedAT) -> Clock:
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
            rounds=targets.put(carried.rounds, tier, carried.rounds[tier] + 1),
            turns=carried.turns.at[clients].add(is_there),
            work=targets.put(carried.work, tier, work),
            ends=targets.put(carried.ends, tier, Instant(last, rest)),
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


def fedat_algorithm(problem: Problem, hyper: FedAT, plan: types.Plan) -> Algorithm[Versioned, Work]:
    """Bind FedAT to a problem. The memory has the newest model and number of reports of tiers."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> Versioned:
        server = problem.init(key)
        tiers = batching.replicate(server, hyper.num_tiers)
        memory = tiers, jnp.zeros(hyper.num_tiers, "int32")
        return wire.first_version(server)._replace(memory=memory)

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # w when the tier's round began, in all slots
        local, work = train(key, event, starts=start)  # w_k
        reports, memo = wire.receive(key, event, state.memo, start, local)
        place = (event.clients != EMPTY).argmax()
        common = jax.tree.map(lambda leaf: leaf[place], start)
        model = wire.mean(key, event, common, reports, own=memo.own)
        own = streams.clock_key(key)  # that of the live clock, which has the same tiers
        tier = tiers_of(draw_devices(own, hyper), hyper)[event.clients[place]]
        tiers, updates = state.memory
        tiers = jax.tree.map(lambda leaf, new: leaf.at[tier].set(new), tiers, model)
        updates = targets.put(updates, tier, updates[tier] + 1)
        share = updates[::-1] / updates.sum()  # T_tier_(M+1-m) / T
        server = batching.weighted_sum(share, tiers)
        after = server, (tiers, updates)
        server, memory = keep_if_empty(event, after, (state.server, state.memory))
        return wire.next_version(key, event, state, memo, server, memory=memory), work

    return wire.algorithm(init, step)


fedat = with_work_in_flight(
    FedAT,
    fedat_clock,
    ("num_selected", "num_tiers"),
    algorithm=fedat_algorithm,
    summary="tiers of equally fast clients: rounds within each, asynchronous between them",
    can_repeat=False,
    hints=types.Hints(
        lambda hyper, time: hyper.ticks_within(time, hyper.num_tiers, used=hyper.num_selected)
    ),
)


# Pisces.


@struct
class Usefulness(Checked):
    """Settings of the choice of clients."""

    staleness_penalty: AtLeast0 = setting(
        0.5, "Exponent by which expected staleness lowers a client's utility, beta."
    )
    window: Count = setting(
        5, "Last updates of a client over which its staleness is averaged, k: to expect the next."
    )


@struct
class Pisces(Clients, LocalTraining, aggregation.ServerMomentum, Reports):
    """Pisces (Jiang, Wang, Li and Li 2022, SoCC, arXiv 2206.09264): guided asynchronous learning.

        C -> `hyper.concurrency`    b -> `hyper.staleness_bound`
        beta -> `choice.staleness_penalty`    U_i -> `utilities`    tau_i -> `staleness`
        k -> `choice.window`    L_max -> `longest`    I -> the least time between two aggregations

    C clients are at work at any time. A slot that becomes free goes at once to the idle client of
    the highest utility

        U_i = m_i sqrt(mean l^2) / (tau_i + 1)^beta

    with the m_i examples of the client, their losses l, and the mean staleness tau_i of its last k
    reports. The server aggregates what has arrived when the time since it last did so is at least I
    = L_max / b, where L_max is the longest response time among the clients at work. A tick uses as
    many reports as have arrived until then. If response times are known and do not change, no
    report is staler than b. Learning is FedBuff's: each report starts from the version that was the
    newest when it began, and the server adds the mean progress.

    Readings. A client that was never given work has a higher utility than all others, and equals
    are drawn uniformly, so that everyone is tried once. The response time of a client is that of
    its last work. Clients that have not finished any do not count for L_max, so their first reports
    may be staler than b. The server acts without delay, while the paper's looks at regular
    intervals whether it should. Work that arrives at the very moment of an aggregation belongs to
    it, and the client that then starts receives the new model.

    Deviation: losses are those of the client's first mini-batch, with the model that it receives,
    and not those of all examples of its local steps, because local steps do not tell their losses.
    They cost one evaluation more, which is counted, and neither time nor bits.

    Deviation: the server learns losses and staleness of a report when it aggregates it, and not on
    arrival, because the losses are computed together with the local work. Until then a client
    counts with what was known before; with the lowest utility if that is nothing.

    Deviation: the server also aggregates when `most_reports` have arrived, because a tick has a
    fixed number of slots. If that happens, reports may be staler than b.

    Deviation: clients whose losses are outliers are not filtered out. `aggregator` has robust
    rules.
    """

    tells = "their losses"
    concurrency: Count = setting(10, "Clients at work at one time, C.")
    most_reports: settings.Whole = setting(
        0,
        "Reports after whose arrival the server acts in any case; 0 for twice `concurrency`, or "
        "`num_clients` if that is less.",
    )
    staleness_bound: Above0 = setting(
        5.0,
        "Bound of staleness, b: the server waits for the longest response time of the clients at "
        "work, divided by this.",
    )
    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of a tick's reports")
    choice: Usefulness = settings.group(Usefulness(), "who is given work")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If more clients are at work, or report in a tick, than there are, or if a
            trace lacks rows of some client.
        """
        super().check_together()
        check_clients(self, are_distinct=False)
        self.check_at_most_clients("concurrency", "most_reports")

    @property
    def num_slots(self) -> int:
        """Most reports of a tick, S."""
        return self.most_reports or min(2 * self.concurrency, self.num_clients)


class Known(NamedTuple):
    """Knowledge of the server about the clients.

    Attributes:
      quality: `f[N]`, m sqrt(mean l^2) of the last report that was aggregated.
      staleness: `f[N, k]`, that of the last reports, by their number modulo k.
      reports: `i32[N]`, reports that were aggregated.
      latency: `f[N]`, response time of the last work; 0 before the first.
    """

    quality: Array
    staleness: Array
    reports: Array
    latency: Array


def utilities(known: Known, turns: Array, penalty: Array | float) -> Array:
    """Compute the expected utilities of clients, U: `f[N]`.

    Args:
      known: What it knows of them.
      turns: `i32[N]`, how often each was given work.
      penalty: beta.
    """
    num = jnp.minimum(known.reports, known.staleness.shape[1])
    staleness = known.staleness.sum(axis=1) / jnp.maximum(num, 1)
    utility = known.quality / (staleness + 1) ** penalty
    return jnp.where(turns == 0, jnp.inf, jnp.where(known.reports == 0, -1, utility))


def pisces_clock(problem: Problem, hyper: Pisces) -> Clock:
    """Bind the clock of Pisces."""
    counts, num_slots, num = jnp.asarray(problem.counts), hyper.num_slots, hyper.num_clients

    def order(key: Key, num: int) -> Array:
        return jax.random.permutation(streams.lane_stream(key, "first clients"), num).astype(
            "int32"
        )

    def first(hyper: Pisces, drawn: live.Drawn) -> Known:
        nothing = jnp.zeros(num, drawn.speeds.rate.dtype)
        staleness = jnp.zeros((num, hyper.choice.window), nothing.dtype)
        return Known(nothing, staleness, jnp.zeros(num, "int32"), nothing)

    def note(replacing: live.Replacing[Known, object]) -> Known:
        """Note how long the client's work took."""
        known, work = replacing.memory, replacing.work
        latency = targets.put(known.latency, work.client, work.ends.since(work.begins))
        return known._replace(latency=latency)

    def choose(key: Key, replacing: live.Replacing[Known, object]) -> Array:
        """Choose the idle client of the highest utility: `i32[]`."""
        tasks, may = replacing.tasks, replacing.idle()
        utility = utilities(replacing.memory, tasks.turns, hyper.choice.staleness_penalty)
        is_best = may & (utility == jnp.where(may, utility, -jnp.inf).max())
        choice_key = jax.random.fold_in(streams.lane_stream(key, "choice"), tasks.event)
        tie_breaker = jax.random.uniform(choice_key, is_best.shape)
        return jnp.where(is_best, tie_breaker, -1).argmax()

    def due(acted: Instant, tasks: live.Tasks[Known]) -> Instant:
        longest = tasks.memory.latency[tasks.flights.client].max()  # L_max
        interval = longest / jnp.asarray(hyper.staleness_bound, longest.dtype)  # I
        return acted.later(interval).or_later(tasks.now)

    def weigh(hyper: Pisces, clients: Array, staleness: Array) -> Array:
        return cohorts.mean_weights(hyper.weighting, counts, clients, clients != EMPTY)

    def learn(key: Key, shown: live.Shown[object, Known, object, seen_losses.SeenLosses]) -> Known:
        event, known, window = shown.event, shown.memory, hyper.choice.window
        quality = counts[jnp.maximum(event.clients, 0)] * shown.seen.root_mean_square
        staleness, slots = event.tick - event.version, jnp.arange(num_slots)
        # A client may have reported several times: by the slots, the later ones later.
        is_same = event.clients[:, None] == event.clients[None]
        before = (is_same & (slots[:, None] > slots[None])).sum(axis=1)
        later = (is_same & (slots[:, None] < slots[None])).sum(axis=1)

        def among_last(number: int) -> Array:
            """Return the clients of reports that are among their last ones: `i32[S]`."""
            is_last = (event.clients != EMPTY) & (later < number)
            return jnp.where(is_last, event.clients, num)

        place = (known.reports[event.clients] + before) % window
        return known._replace(
            quality=targets.put_all(known.quality, among_last(1), quality),
            staleness=known.staleness.at[among_last(window), place].set(staleness, mode="drop"),
            reports=known.reports.at[among_last(num_slots)].add(1, mode="drop"),
        )

    return live.live_tasks(
        hyper,
        num_tasks=hyper.concurrency,
        num_used=num_slots,
        choose=choose,
        weigh=weigh,
        first=first,
        learn=learn,
        order=order,
        note=note,
        due=due,
    )


pisces = with_work_in_flight(
    Pisces,
    pisces_clock,
    ("num_slots", "concurrency"),
    algorithm=seeing_losses(fedbuff.algorithm, starts=stale_models),
    summary="guided asynchronous learning: useful clients of little staleness, at a bounded pace",
    # Ticks are no more than reports.
    hints=types.Hints(lambda hyper, time: hyper.ticks_within(time, hyper.concurrency)),
)


# AsyncFedED with its numbers of local steps.


@struct
class AdaptiveFedED(fedbuff.EuclideanStaleness, Clients, LocalTraining, Reports):
    """AsyncFedED (Wang et al. 2022, arXiv 2205.13797) as a whole: local steps follow staleness.

        K_i -> `state.clients`    gamma(i, tau) -> `gamma`    floor -> E[.]
        gamma bar -> `hyper.wanted_staleness`    kappa -> `hyper.gain`

    Learning is that of `asyncfeded`. When the update of client i has moved the server's model, its
    next number of local steps is K_i + floor((gamma bar - gamma(i, tau)) kappa): a client whose
    updates are staler than wanted does fewer. How long work takes follows from K_i, so the clock is
    live. All clients are always at work; one starts again from the model that its update has made,
    or, after a break, from the newest one.

    Readings. K_i begins as `local_steps`, and stays from 1 to `most_steps`, which the paper does
    not bound. The time drawn for `local_steps` is multiplied by K_i / `local_steps`. If an update
    is lost, its client begins again with the same K_i from the newest model, and the tick is empty.
    """

    wanted_staleness: AtLeast0 = setting(1.0, "Staleness at which steps do not change, gamma bar.")
    gain: AtLeast0 = setting(1.0, "Local steps for a difference in staleness of 1, kappa.")
    most_steps: Count = setting(50, "Most local steps of an update.")

    def check_together(self) -> None:
        """Check that steps take time, and that the first ones are not too many."""
        super().check_together()
        check_clients(self, are_distinct=False)
        live.check_steps_take_time(self)
        if self.local_steps > self.most_steps:
            allowed = f"at most most_steps = {self.most_steps}"
            raise ConfigError("local_steps", self.local_steps, allowed)

    @property
    def first_rows(self) -> Array:
        """First numbers of local steps, `i32[N]`."""
        return jnp.full(self.num_clients, self.local_steps, "int32")

    def rows_after(self, event: Event, state: Versioned, gamma: Array) -> Array:
        """Numbers of local steps after a tick, `i32[N]`. gamma: staleness of the slots, `f[S]`."""
        change = jnp.floor((self.wanted_staleness - gamma) * self.gain)
        steps = rows.read_clients(state.clients, event.clients) + change
        return rows.write_clients(state.clients, event.clients, jnp.clip(steps, 1, self.most_steps))


class Working(NamedTuple):
    """State of the clock.

    Attributes:
      tick: `i32[]`, server actions so far.
      place: `i32[]`, the client that has reported, or whose update was lost.
      turns: `i32[N]`, how often each client was given work.
      work: Each client's work, `[N]`.
      drawn: The clients' speeds and hours.
    """

    tick: Array
    place: Array
    turns: Array
    work: Flights
    drawn: live.Drawn


def adaptive_clock(problem: Problem, hyper: AdaptiveFedED) -> Clock:
    """Bind the clock: a client begins again when the server has learnt from its last work."""

    def begin(work: Flights, now: Instant) -> Flights:
        """Begin work: who is there has its model, and others may get a newer one after a break."""
        is_away = now.is_before(work.begins)
        return work._replace(begins=work.begins.where(is_away, Instant.at(-np.inf)))

    def init(key: Key) -> Working:
        devices, everyone = draw_devices(key, hyper), jnp.arange(hyper.num_clients, dtype="int32")
        zero, turns = jnp.int32(0), jnp.ones_like(everyone)
        start = Instant.at(0.0)
        work = begin(live.begin_work(devices, everyone, 0 * everyone, start, zero), start)
        return Working(zero, zero, turns, work, devices.drawn)

    def next_tick(key: Key, carried: Working, state: object) -> tuple[Working, Received]:
        place = carried.work.first()
        done = carried.work.take(place)
        lost = draw_devices(key, hyper, carried.drawn).are_lost(done.client, done.number)
        client = jnp.where(lost, EMPTY, done.client)
        who, steps, version = (leaf[None] for leaf in (client, done.steps, done.version))
        work = carried.work.after_action(done.ends, carried.tick)  # of clients who are away
        after = carried._replace(tick=carried.tick + 1, place=place, work=work)
        return after, Received(done.ends, who, steps, version, jnp.ones(1))

    def after(key: Key, carried: Working, event: Event, state: Versioned, seen: object) -> Working:
        devices, who = draw_devices(key, hyper, carried.drawn), carried.place
        now, steps = carried.work.ends.take(who), state.clients[who]
        new = begin(
            live.begin_work(devices, who, carried.turns[who], now, carried.tick, steps), now
        )
        turns = targets.put(carried.turns, who, carried.turns[who] + 1)
        return carried._replace(turns=turns, work=targets.put(carried.work, who, new))

    return Clock(init, next_tick, after, in_use=lambda carried: carried.work.version)


asyncfeded_adaptive = live.with_clock(
    fedbuff.asyncfeded,
    live.Live(lambda hyper: Sizes(1, hyper.most_steps, hyper.num_clients), adaptive_clock),
    name="asyncfeded_adaptive",
    Hyper=AdaptiveFedED,
    summary="asynchronous steps along every update; clients of stale updates do fewer local steps",
    hints=types.Hints(
        lambda hyper, time: hyper.replace(local_steps=1).ticks_within(time, hyper.num_clients)
    ),
)
