"""Pisces (Jiang, Wang, Li and Li 2022, SoCC, arXiv 2206.09264): guided asynchronous learning.

    C -> `hyper.concurrency`    b -> `hyper.staleness_bound`    beta -> `choice.staleness_penalty`
    U_i -> `utilities`          tau_i -> `staleness`            k -> `choice.window`
    L_max -> `longest`               I -> the least time between two aggregations

C clients are at work at any time. A slot that becomes free goes at once to the idle client of the
highest utility

    U_i = m_i sqrt(mean l^2) / (tau_i + 1)^beta

with the m_i examples of the client, their losses l, and the mean staleness tau_i of its last k
reports. The server aggregates what has arrived when the time since it last did so is at least
I = L_max / b, where L_max is the longest response time among the clients at work. A tick uses as
many reports as have arrived until then. If response times are known and do not change, no report is
staler than b. Learning is FedBuff's: each report starts from the version that was the newest when
it began, and the server adds the mean progress.

Readings. A client that was never given work has a higher utility than all others, and equals are
drawn uniformly, so that everyone is tried once. The response time of a client is that of its last
work. Clients that have not finished any do not count for L_max, so their first reports may be
staler than b. The server acts without delay, while the paper's looks at regular intervals whether
it should. Work that arrives at the very moment of an aggregation belongs to it, and the client that
then starts receives the new model.

Deviation: losses are those of the client's first mini-batch, with the model that it receives, and
not those of all examples of its local steps, because local steps do not tell their losses. They
cost one evaluation more, which is counted, and neither time nor bits.

Deviation: the server learns losses and staleness of a report when it aggregates it, and not on
arrival, because the losses are computed together with the local work. Until then a client counts
with what was known before; with the lowest utility if that is nothing.

Deviation: the server also aggregates when `most_reports` have arrived, because a tick has a fixed
number of slots. If that happens, reports may be staler than b.

Deviation: clients whose losses are outliers are not filtered out. `aggregator` has robust rules.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, seeing_losses
from fedjax_sim.clients.seen_losses import SeenLosses
from fedjax_sim.core.checking import Above0, AtLeast0, Count, Whole
from fedjax_sim.core.settings import Checked, ConfigError, group, setting, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.targets import put, put_all, repeat_while
from fedjax_sim.core.types import EMPTY, Array, Event, Hints, Key, Problem
from fedjax_sim.server import Reports, ServerRate, stale_models
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import Clients, cohorts, live
from fedjax_sim.timelines.delays.devices import Devices, draw_devices
from fedjax_sim.timelines.rounds.synchronous import check_clients


@struct
class Choice(Checked):
    """Settings of the choice of clients."""

    staleness_penalty: AtLeast0 = setting(
        0.5, "Exponent by which expected staleness lowers a client's utility, beta."
    )
    window: Count = setting(
        5, "Last updates of a client over which its staleness is averaged, k: to expect the next."
    )


@struct
class Hyper(Clients, LocalTraining, ServerRate, Reports):
    """Settings of Pisces: clients, pace, choice, local training, messages, the server's step."""

    tells_losses = True
    concurrency: Count = setting(10, "Clients at work at one time, C.")
    most_reports: Whole = setting(
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
    choice: Choice = group(Choice(), "who is given work")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If more clients are at work, or report in a tick, than there are, or if a
            trace lacks rows of some client.
        """
        super().check_together()
        check_clients(self, are_distinct=False)
        for name in ("concurrency", "most_reports"):
            if getattr(self, name) > self.num_clients:
                allowed = f"at most num_clients = {self.num_clients}"
                raise ConfigError(name, getattr(self, name), allowed)

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


class Pace(NamedTuple):
    """State of the clock.

    Attributes:
      acted: When the server acted last.
      tick: `i32[]`, how often it did.
      event: `i32[]`, arrivals so far, lost ones included.
      turns: `i32[N]`, how often each client was given work.
      flights: The work of the C clients at work.
      known: What the server knows of the clients.
      drawn: The clients' speeds and hours.
    """

    acted: live.Instant
    tick: Array
    event: Array
    turns: Array
    flights: live.Flights
    known: Known
    drawn: live.Drawn


class Buffer(NamedTuple):
    """Reports that have arrived since the server acted last.

    Attributes:
      now: When the last one arrived; before the first, when the server acted.
      slots: Their work, `[S]`.
      filled: `i32[]`, how many they are.
    """

    now: live.Instant
    slots: live.Flights
    filled: Array


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


def clock(problem: Problem, hyper: Hyper) -> live.Clock:
    """Bind the clock of Pisces."""
    counts, num_slots, num = jnp.asarray(problem.counts), hyper.num_slots, hyper.num_clients

    def best_client(key: Key, devices: Devices, pace: Pace, now: live.Instant) -> Array:
        """Choose the idle client of the highest utility: `i32[]`.

        If no idle client is available, one of the others is chosen and begins as soon as it is.
        """
        at_work = jnp.where(pace.flights.client == EMPTY, num, pace.flights.client)
        is_idle = jnp.ones(num, bool).at[at_work].set(False, mode="drop")
        is_here = is_idle & devices.are_available(jnp.arange(num), now)
        may = jnp.where(is_here.any(), is_here, is_idle)
        utility = utilities(pace.known, pace.turns, hyper.choice.staleness_penalty)
        is_best = may & (utility == jnp.where(may, utility, -jnp.inf).max())
        choice_key = jax.random.fold_in(lane_stream(key, "choice"), pace.event)
        tie_breaker = jax.random.uniform(choice_key, is_best.shape)
        return jnp.where(is_best, tie_breaker, -1).argmax().astype("int32")

    def init(key: Key) -> Pace:
        drawn = draw_devices(key, hyper).drawn
        kind = drawn.speeds.rate.dtype
        devices, start, zero = draw_devices(key, hyper, drawn), live.Instant.at(0.0), jnp.int32(0)
        order = jax.random.permutation(lane_stream(key, "first clients"), num).astype("int32")
        clients = order[: hyper.concurrency]
        flights = live.begin_work(devices, clients, jnp.zeros_like(clients), start, zero)
        nothing, never = jnp.zeros(num, kind), jnp.zeros(num, "int32")
        known = Known(nothing, jnp.zeros((num, hyper.choice.window), kind), never, nothing)
        return Pace(start, zero, zero, never.at[clients].set(1), flights, known, drawn)

    def next_tick(key: Key, carried: Pace, state: object) -> tuple[Pace, live.Received]:
        devices = draw_devices(key, hyper, carried.drawn)

        def due(pace: Pace, buffer: Buffer) -> live.Instant:
            """Find out when the server would aggregate if nobody else arrived."""
            longest = pace.known.latency[pace.flights.client].max()  # L_max
            interval = longest / jnp.asarray(hyper.staleness_bound, longest.dtype)  # I
            return carried.acted.later(interval).or_later(buffer.now)

        def waits(given: tuple[Pace, Buffer]) -> Array:
            pace, buffer = given
            arrives = pace.flights.take(pace.flights.first()).ends
            is_due = (buffer.filled > 0) & due(pace, buffer).is_before(arrives)
            return ~is_due & (buffer.filled < num_slots) & arrives.is_finite

        def arrive(given: tuple[Pace, Buffer]) -> tuple[Pace, Buffer]:
            pace, buffer = given
            place = pace.flights.first()
            done = pace.flights.take(place)
            lost = devices.are_lost(done.client, done.number)
            slots = put(buffer.slots, jnp.where(lost, num_slots, buffer.filled), done)
            latency = put(pace.known.latency, done.client, done.ends.since(done.begins))
            free = pace.flights._replace(client=put(pace.flights.client, place, EMPTY))
            pace = pace._replace(known=pace.known._replace(latency=latency), flights=free)
            client = best_client(key, devices, pace, done.ends)
            work = live.begin_work(devices, client, pace.turns[client], done.ends, pace.tick)
            pace = pace._replace(
                event=pace.event + 1,
                turns=put(pace.turns, client, pace.turns[client] + 1),
                flights=put(pace.flights, place, work),
            )
            return pace, Buffer(done.ends, slots, buffer.filled + ~lost)

        empty = live.Flights.none(num_slots, carried.known.latency)
        given = carried, Buffer(carried.acted, empty, jnp.int32(0))
        pace, (now, slots, filled) = found = repeat_while(waits, arrive, given)
        never = live.Instant(jnp.full_like(now.value, jnp.inf), jnp.zeros_like(now.rest))
        acts = now.where(filled == num_slots, due(*found).where(filled > 0, never))
        is_there = jnp.arange(num_slots) < filled
        weight = cohorts.mean_weights(hyper.weighting, counts, slots.client, is_there)
        received = live.Received(acts, slots.client, slots.steps, slots.version, weight)
        flights = pace.flights.after_action(acts, carried.tick)
        return pace._replace(acted=acts, tick=carried.tick + 1, flights=flights), received

    def after(key: Key, pace: Pace, event: Event, state: object, seen: SeenLosses) -> Pace:
        quality = counts[jnp.maximum(event.clients, 0)] * seen.root_mean_square
        staleness, window = event.tick - event.version, hyper.choice.window
        # A client may have reported several times: by the slots, the later ones later.
        known, slots = pace.known, jnp.arange(num_slots)
        is_same = event.clients[:, None] == event.clients[None]
        before = (is_same & (slots[:, None] > slots[None])).sum(axis=1)
        later = (is_same & (slots[:, None] < slots[None])).sum(axis=1)

        def among_last(number: int) -> Array:
            """Return the clients of reports that are among their last ones: `i32[S]`."""
            is_last = (event.clients != EMPTY) & (later < number)
            return jnp.where(is_last, event.clients, hyper.num_clients)

        place = (known.reports[event.clients] + before) % window
        known = known._replace(
            quality=put_all(known.quality, among_last(1), quality),
            staleness=known.staleness.at[among_last(window), place].set(staleness, mode="drop"),
            reports=known.reports.at[among_last(num_slots)].add(1, mode="drop"),
        )
        return pace._replace(known=known)

    return live.Clock(init, next_tick, after, lambda pace: pace.flights.versions())


def sizes(hyper: Hyper) -> live.Sizes:
    """Size the clock by the clients at work."""
    return live.Sizes(hyper.num_slots, hyper.local_steps, hyper.concurrency, is_even=True)


system = live.with_clock(
    fedbuff.system,
    live.Live(sizes, clock),
    name="pisces",
    Hyper=Hyper,
    algorithm=seeing_losses(fedbuff.algorithm, starts=stale_models),
    summary="guided asynchronous learning: useful clients of little staleness, at a bounded pace",
    # Ticks are no more than reports.
    hints=Hints(lambda hyper, time: hyper.ticks_within(time, hyper.concurrency)),
)
paper = system.paper
