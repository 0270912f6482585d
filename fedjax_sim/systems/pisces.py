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
from fedjax_sim.core.targets import put, put_all
from fedjax_sim.core.types import EMPTY, Array, Hints, Key, Problem
from fedjax_sim.server import Reports, ServerRate, stale_models
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import Clients, cohorts, live
from fedjax_sim.timelines.rounds import check_clients


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

    def order(key: Key, num: int) -> Array:
        return jax.random.permutation(lane_stream(key, "first clients"), num).astype("int32")

    def first(hyper: Hyper, drawn: live.Drawn) -> Known:
        nothing = jnp.zeros(num, drawn.speeds.rate.dtype)
        staleness = jnp.zeros((num, hyper.choice.window), nothing.dtype)
        return Known(nothing, staleness, jnp.zeros(num, "int32"), nothing)

    def note(replacing: live.Replacing[Known, object]) -> Known:
        """Note how long the client's work took."""
        known, work = replacing.memory, replacing.work
        latency = put(known.latency, work.client, work.ends.since(work.begins))
        return known._replace(latency=latency)

    def choose(key: Key, replacing: live.Replacing[Known, object]) -> Array:
        """Choose the idle client of the highest utility: `i32[]`."""
        tasks, may = replacing.tasks, replacing.idle()
        utility = utilities(replacing.memory, tasks.turns, hyper.choice.staleness_penalty)
        is_best = may & (utility == jnp.where(may, utility, -jnp.inf).max())
        choice_key = jax.random.fold_in(lane_stream(key, "choice"), tasks.event)
        tie_breaker = jax.random.uniform(choice_key, is_best.shape)
        return jnp.where(is_best, tie_breaker, -1).argmax()

    def due(acted: live.Instant, tasks: live.Tasks[Known]) -> live.Instant:
        longest = tasks.memory.latency[tasks.flights.client].max()  # L_max
        interval = longest / jnp.asarray(hyper.staleness_bound, longest.dtype)  # I
        return acted.later(interval).or_later(tasks.now)

    def weigh(hyper: Hyper, clients: Array, staleness: Array) -> Array:
        return cohorts.mean_weights(hyper.weighting, counts, clients, clients != EMPTY)

    def learn(key: Key, shown: live.Shown[object, Known, object, SeenLosses]) -> Known:
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
            quality=put_all(known.quality, among_last(1), quality),
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
