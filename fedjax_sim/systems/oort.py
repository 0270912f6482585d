"""Oort (Lai, Zhu, Madhyastha and Chowdhury 2021, OSDI, Algorithm 1): guided choice of clients.

    R -> `memory.rounds`     K -> `hyper.num_selected`    T -> the preferred time of a round
    U(i) -> `utility`        D(i) -> `taken`              L(i) -> `last`
    epsilon -> `exploring`   alpha -> `choice.time_penalty`    c -> `choice.cutoff`

The server asks those clients of which it expects most: a client with m examples of losses l has the
statistical utility m sqrt(mean l^2), which counts for less, (T / D)^alpha, if its last work took
D > T. A share epsilon of the cohort explores clients that were never asked, faster ones rather than
slower ones; the others are drawn in proportion to their utility among those that have at least c
times that of the last one needed. So a round lasts as long as the clients that it asks: the clock
is live. Learning is FedAvg's.

The pacer lets T grow when the utility of the rounds falls: the sum of the last W rounds is less
than that of the W rounds before.

Deviation: losses are those of the client's first mini-batch, with the model that it receives, and
not those of all examples of its local steps, because local steps do not tell their losses. They
cost one evaluation more, which is counted, and neither time nor bits.

Readings. Clients are explored in proportion to 1 / (mean time of their work), which with a trace is
the mean of their rows. The paper gives no first T and no unit of the pacer's steps. As in
FedScale's code, T is the quantile `preferred` of the times that clients have taken, and the pacer
raises the quantile by `pacer_step`. Utilities are clipped at their quantile 0.95. The term for
clients that were not asked for long, sqrt(0.1 log R / L), is added to utilities as they are, as
printed; it then matters where these are below 1. FedScale's code scales them to [0, 1] first. The
paper's list of clients that were chosen too often is left out. Of a client that was asked and did
not report, because it was late or its update was lost, nothing is noted: it counts by its last
report, or as never asked if there is none. Where nobody is available and so nobody is asked, no
round of the algorithm takes place: R does not grow, and the pacer sees no utility of 0.

Other choices of the clients of a round, or of their local steps, are here too: Power-of-Choice,
TiFL, FedCS and AdaComm. Each is a `live.Selection`, for any system of rounds; these have FedAvg's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LastingTraining, batch_loss, losses_of, seeing_losses
from fedjax_sim.core import batching, settings, streams, targets, trees, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Probability, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Key, Leaf, Params, Plan, Problem
from fedjax_sim.server import ReportMessages, Reports, ServerStep, compression
from fedjax_sim.server.report_settings import downlink_of_slots
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live
from fedjax_sim.timelines.delays.devices import close, draw_devices
from fedjax_sim.timelines.rounds import CohortClock, rounds_within


def choice_key(key: Key, number: Array) -> Key:
    """Key of the draws with which the clients of a round are chosen."""
    return jax.random.fold_in(streams.lane_stream(key, "choice"), number)


def mean_loss(shown: live.Shown) -> Array:
    """Mean loss of those who report: `f[]`, 0 without a report."""
    is_there = shown.event.clients != EMPTY
    return jnp.where(is_there, shown.seen.mean, 0).sum() / jnp.maximum(is_there.sum(), 1)


UTILITY_CLIP = 0.95
"""Quantile at which utilities are clipped."""


@struct
class Choice(settings.Checked):
    """Settings of Oort's choice."""

    exploring: Probability = setting(
        0.9, "Share of the cohort in the first round that was never asked."
    )
    exploring_decay: Probability = setting(0.98, "Factor of that share from round to round.")
    exploring_least: Probability = setting(0.2, "Least value of that share.")
    time_penalty: AtLeast0 = setting(
        2.0, "Exponent by which work longer than the preferred time counts for less, alpha."
    )
    cutoff: settings.Portion = setting(
        0.95, "Share of the utility of the last client needed that others must have to be drawn, c."
    )
    preferred: settings.Portion = setting(
        0.3, "Quantile of the times taken that is the preferred time of a round, in the beginning."
    )
    pacer_step: Probability = setting(
        0.1, "By how much that quantile grows when utility falls, Delta."
    )
    pacer_window: Count = setting(
        20, "Rounds after which the pacer looks at utility, W.", begins="the pacer"
    )


@struct
class Guided(live.LiveCohorts):
    """Settings of rounds of clients that Oort chooses."""

    tells_losses = True
    choice: Choice = settings.group(Choice(), "whom the server asks")


@struct
class Hyper(Guided, LastingTraining, ServerStep, Reports):
    """Settings of Oort: rounds, local training, messages, and the choice."""


class Memory(NamedTuple):
    """Memory of the choice.

    Attributes:
      utility: `f[N]`, statistical utility of clients when they were last asked, U.
      last: `i32[N]`, the last round in which each client reported, from 1, L; 0 for none.
      taken: `f[N]`, how long that took, D.
      preferred: `f[]`, quantile of these that is the preferred time.
      recent: `f[2 W]`, utilities of the last rounds, by round modulo 2 W.
      rounds: `i32[]`, rounds so far in which somebody was asked, R.
      is_round: `bool[]`, whether this is one.
    """

    utility: Array
    last: Array
    taken: Array
    preferred: Array
    recent: Array
    rounds: Array
    is_round: Array


def selector(problem: Problem, hyper: Guided) -> live.Selector:
    """Bind Oort's choice."""
    choice, num_asked, window = hyper.choice, hyper.num_asked, hyper.choice.pacer_window
    counts = jnp.asarray(problem.counts)

    def first(hyper: Guided, drawn: live.Drawn) -> Memory:
        nothing = jnp.zeros(hyper.num_clients, drawn.speeds.rate.dtype)
        preferred = jnp.asarray(choice.preferred, nothing.dtype)
        never = jnp.zeros(hyper.num_clients, "int32")
        recent = jnp.zeros(2 * window, nothing.dtype)
        return Memory(nothing, never, nothing, preferred, recent, jnp.int32(0), jnp.bool_(False))

    def draw(key: Key, number: Array) -> Array:
        return jax.random.gumbel(choice_key(key, number), (2, hyper.num_clients), float)

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, number, noise = now.memory, now.memory.rounds, now.drawn
        is_known, is_here = memory.last > 0, now.available()
        utility = jnp.where(is_known & is_here, utilities(memory, number, choice), -jnp.inf)
        # How many are explored: at least those that known clients cannot fill.
        share = choice.exploring * choice.exploring_decay**number
        share = jnp.maximum(share, choice.exploring_least)
        num_known, num_new = (is_known & is_here).sum(), (~is_known & is_here).sum()
        explored = jnp.minimum(jnp.round(share * num_asked).astype("int32"), num_new)
        explored = jnp.maximum(explored, jnp.minimum(num_asked - num_known, num_new))
        # Known clients of enough utility, drawn in proportion to it.
        best = jax.lax.top_k(utility, num_asked)[0]
        needed = jnp.clip(num_asked - explored, 0, num_known)
        least = choice.cutoff * best[jnp.maximum(needed - 1, 0)]
        drawn = jnp.where(utility >= least, jnp.log(jnp.maximum(utility, 1e-30)) + noise[0], -1e30)
        drawn = jnp.where(is_known & is_here, drawn, -jnp.inf)
        # New clients, faster ones rather than slower ones.
        new = -jnp.log(now.devices.mean_times()) + noise[1]
        new = jnp.where(~is_known & is_here, new, -jnp.inf)
        known_ones, new_ones = (jax.lax.top_k(each, num_asked)[1] for each in (drawn, new))
        places = jnp.arange(num_asked)
        clients = jnp.where(places < needed, known_ones, new_ones[places - needed])
        clients = jnp.where(places < needed + explored, clients, EMPTY)
        is_round = (clients != EMPTY).any()
        memory = memory._replace(rounds=number + is_round, is_round=is_round)
        return live.Asked(clients, memory=memory)

    def learn(key: Key, shown: live.Shown) -> Memory:
        memory, event, number = shown.memory, shown.event, shown.memory.rounds
        is_there = event.clients != EMPTY
        who = jnp.where(is_there, event.clients, hyper.num_clients)
        found = counts[jnp.maximum(event.clients, 0)] * shown.seen.root_mean_square
        before = memory.utility, memory.last, memory.taken
        utility, last, taken = targets.put_all(before, who, (found, number, shown.taken))
        total = jnp.where(is_there, found, 0).sum()
        row = jnp.where(memory.is_round, (number - 1) % (2 * window), EMPTY)
        recent = targets.put(memory.recent, row, total)
        ordered = jnp.roll(recent, -(number % (2 * window)))
        is_due = (number % window == 0) & (number >= 2 * window) & memory.is_round
        falls = ordered[:window].sum() > ordered[window:].sum()
        step = jnp.where(is_due & falls, choice.pacer_step, 0)
        preferred = jnp.minimum(memory.preferred + step, 1).astype(memory.preferred.dtype)
        return Memory(utility, last, taken, preferred, recent, number, memory.is_round)

    return live.Selector(select, first, learn, draw)


def utilities(memory: Memory, number: Array, choice: Choice) -> Array:
    """Compute the expected utilities of clients that were asked before: `f[N]`.

    Args:
      memory: What is remembered.
      number: `i32[]`, rounds so far, R - 1.
      choice: The settings.
    """
    is_known = memory.last > 0
    of_known = jnp.where(is_known, memory.utility, jnp.nan)
    utility = jnp.minimum(memory.utility, jnp.nanquantile(of_known, UTILITY_CLIP))
    doubt = jnp.sqrt(0.1 * jnp.log(jnp.maximum(number + 1.0, 1)) / jnp.maximum(memory.last, 1))
    wanted = jnp.nanquantile(jnp.where(is_known, memory.taken, jnp.nan), memory.preferred)
    is_late = memory.taken > wanted
    pace = jnp.where(is_late, wanted / jnp.where(is_late, memory.taken, 1), 1)
    return jnp.where(is_known, (utility + doubt) * pace**choice.time_penalty, 0)


SUMMARY = "guided choice of clients: useful and fast ones, in rounds that follow from it"
selection = live.Selection(selector, is_full=lambda hyper: hyper.misses_nobody, sees=seeing_losses)
"""Oort's choice, for any system of rounds."""
system = selection.on(fedavg.system, name="oort", Hyper=Hyper, summary=SUMMARY)
paper = system.paper


# Power-of-Choice.


@struct
class Candidates(live.LiveCohorts):
    """Settings of rounds of the candidates with the largest losses."""

    tells_losses = True
    num_chosen: Count = setting(3, "Candidates with the largest losses, which train, m.")
    candidates: Literal["uniform", "by_examples"] = setting(
        "uniform",
        'Who is a candidate. "uniform": a uniform set of clients. "by_examples": chances in '
        "proportion to numbers of examples.",
    )
    loss_time: AtLeast0 = setting(
        0.0,
        "Time that it takes to learn the candidates' losses, in units of virtual time.",
        of_time=True,
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.num_chosen > self.num_selected:
            allowed = f"at most num_selected = {self.num_selected}, the candidates"
            raise ConfigError("num_chosen", self.num_chosen, allowed)
        if self.clock.num_asked:
            raise ConfigError("clock.num_asked", self.clock.num_asked, "0: num_chosen train")


@struct
class PowerOfChoice(Candidates, LastingTraining, ServerStep, Reports):
    """Power-of-Choice (Cho, Wang and Joshi 2020, arXiv 2010.01243): choices by the loss.

        w -> `state.server`          A -> the candidates
        d -> `hyper.num_selected`    m -> `hyper.num_chosen`

    The server asks d candidates for the loss of its model and lets the m with the largest losses
    train. A round lasts as long as those m need: the clock is live. Learning is FedAvg's, by
    default with equal weights, as in the paper. All candidates get the model and send a loss, the
    chosen send a model, and a loss counts as one evaluation.

    The schedule names those who report, and not the other candidates. So their bits are counted as
    if there were d candidates in all, unless fewer than m report and nothing is lost or late: then
    there were no others. The energy of their messages is that of all clients who do not report, on
    average.

    Deviation: the paper draws candidates in proportion to their examples, which is
    `candidates="by_examples"`. By default they are uniform, as in other systems.

    Deviation: losses are those of a mini-batch of each candidate, the paper's variant cpow-d, and
    not of all its examples, because they cost one gradient then. They take no time unless
    `loss_time` says so.
    """


def largest_losses_of(
    algorithm: Callable[..., Algorithm], problem: Problem, hyper: Candidates
) -> live.Selector:
    """Bind the choice, by losses of the model that clients of an algorithm receive."""
    plan, counts = Plan(slots_at_once=hyper.num_selected), jnp.asarray(problem.counts)
    learning = algorithm(problem, hyper, plan)

    def draw(key: Key, number: Array) -> Array:
        draws, num = streams.lane_stream(key, "cohorts"), hyper.num_clients
        if hyper.candidates == "uniform":
            return streams.shuffled_index(streams.shuffle_bits(draws), jnp.arange(num), num, number)
        return jax.random.gumbel(jax.random.fold_in(draws, number), counts.shape)

    def select(key: Key, now: live.Choosing) -> live.Asked:
        number, is_here = now.round.number, now.available()
        if hyper.candidates == "uniform":
            # Available clients first, in the order drawn.
            order = now.drawn[jnp.argsort(~is_here[now.drawn], stable=True)]
        else:
            order = jnp.argsort(-jnp.where(is_here, jnp.log(counts) + now.drawn, -jnp.inf))
        candidates = order[: hyper.num_selected]
        candidates = jnp.where(is_here[candidates], candidates, EMPTY)
        model = (learning.received or learning.model)(now.state)
        drawn = (
            streams.lane_stream(key, "candidates"),
            candidates,
            jnp.full(candidates.shape, number),
        )
        losses, executed = losses_of(problem, hyper, plan, *drawn, model=model)
        is_candidate = candidates != EMPTY
        found = jnp.where(is_candidate, losses.mean, -jnp.inf)
        chosen = candidates[jax.lax.top_k(found, hyper.num_chosen)[1]]
        needed = is_candidate.sum(dtype="int32")
        return live.Asked(chosen, executed=executed, needed=needed, takes=hyper.loss_time)

    return live.Selector(select, draw=draw)


def largest_losses(algorithm: Callable[..., Algorithm]) -> live.Selection:
    """Choice of the candidates with the largest losses, for a system of rounds with this
    algorithm."""
    return live.Selection(
        partial(largest_losses_of, algorithm), num_used=lambda hyper: hyper.num_chosen
    )


def count_bits_of_clients(
    problem: Problem, hyper: PowerOfChoice, timeline: types.Timeline
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the bits of messages.

    Returns:
      The bits that each slot's client sends and receives, `i64[T, S]` each, and those that the
      candidates send and receive together who stand in no slot, `i64[T, 2]`.
    """
    model = trees.shapes_of_model(problem)
    is_chosen = timeline.clients != EMPTY
    num_chosen = is_chosen.sum(axis=1, dtype=np.int64)
    nothing_is_lost = not hyper.delays.loses_updates and settings.is_known(hyper.clock.deadline, 0)
    # Then fewer reports than are asked for are those of all candidates.
    is_short = nothing_is_lost & (num_chosen < hyper.num_chosen)
    num_others = np.where(is_short, 0, hyper.num_selected - num_chosen)
    loss = compression.word_of(model)
    up = loss + hyper.aggregator.chosen.message_bits(hyper.messages.compression, model)
    each = np.array([loss, types.full_precision_bits(model)])
    return is_chosen * up, downlink_of_slots(hyper, timeline, model), num_others[:, None] * each


class CandidatesMessages(ReportMessages):
    """The messages of reports, with those of candidates who are not chosen."""

    def per_tick(
        self, problem: Problem, hyper: PowerOfChoice, timeline: types.Timeline
    ) -> tuple[Leaf, Leaf]:
        """Count the bits sent up and down at each tick: `i64[T]` each."""
        up, down, of_others = count_bits_of_clients(problem, hyper, timeline)
        return up.sum(axis=1) + of_others[:, 0], down.sum(axis=1) + of_others[:, 1]

    def by_client(
        self, problem: Problem, hyper: PowerOfChoice, timeline: types.Timeline
    ) -> np.ndarray:
        """Count the bits that each client sends and receives at each tick: `f64[T, N]`.

        Those of candidates who stand in no slot are dealt equally to all clients who stand in none.
        """
        up, down, of_others = count_bits_of_clients(problem, hyper, timeline)
        found = np.full((len(up), hyper.num_clients), np.nan)
        rounds, slots = np.nonzero(timeline.clients != EMPTY)
        found[rounds, timeline.clients[rounds, slots]] = (up + down)[rounds, slots]
        num_left = np.isnan(found).sum(axis=1)
        share = of_others.sum(axis=1) / np.maximum(num_left, 1)
        return np.where(np.isnan(found), share[:, None], found)

    def check(self, hyper: PowerOfChoice, timeline: types.Timeline) -> None:
        """Check numbers of messages, of which there are as many as clients are chosen."""
        rule, most = hyper.aggregator.chosen, hyper.num_chosen
        rule.check_ticks(hyper, "aggregator", timeline, most=most, has_weights=False)


SUMMARY = "federated averaging of the candidates with the largest losses"
powerofchoice = largest_losses(fedavg.algorithm).on(
    fedavg.system,
    name="powerofchoice",
    Hyper=PowerOfChoice,
    summary=SUMMARY,
    messages=CandidatesMessages(),
)


# TiFL.


CLIENTS_AT_ONCE = 50
"""Clients evaluated together, on one mini-batch each."""


@struct
class TierChoice(settings.Checked):
    """Settings of TiFL's tiers, and of the choice among them."""

    num_tiers: Count = setting(5, "Tiers into which clients are sorted by response latency, T.")
    policy: Literal["adaptive", "static"] = setting(
        "adaptive",
        "How the tier of a round is drawn: with probabilities that follow from the tiers' "
        "accuracies, or with given ones.",
    )
    probability: AtLeast0 | tuple[AtLeast0, ...] = setting(
        1.0,
        "Probabilities of the tiers, the fastest first, up to a common factor; one number for "
        "equal ones.",
        only_with={"policy": ("static",)},
    )
    interval: Count = setting(
        10,
        "Rounds after which the tiers are evaluated again, I.",
        begins="the evaluation of tiers",
        only_with={"policy": ("adaptive",)},
    )
    credits: settings.AtLeast1 | tuple[settings.AtLeast1, ...] = setting(
        100.0,
        "Rounds for which a tier may be asked, the fastest tier first; one number for all. When "
        "none is left, all tiers get theirs again.",
        only_with={"policy": ("adaptive",)},
    )
    profile_rounds: Count = setting(
        5, "Rounds in which clients' times are measured before learning."
    )
    time_limit: AtLeast0 = setting(
        0.0,
        "Longest time to wait for a client when times are measured, T_max, in units of virtual "
        "time; 0 for no limit. Clients that are never in by then are left out.",
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are not as many numbers as tiers, or no tier has a probability.
        """
        super().check_together()
        for name in ("probability", "credits"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.num_tiers:
                allowed = f"one number, or {self.num_tiers}: one for each of num_tiers"
                raise ConfigError(name, given, allowed)
        value = self.probability
        if not np.all(sum(value) if isinstance(value, tuple) else value):
            raise ConfigError("probability", self.probability, "above 0 for some tier")

    def by_tier(self, value: float | tuple[float, ...]) -> Array:
        """Return a setting of each tier: `f[T]`."""
        return jnp.broadcast_to(jnp.asarray(value, float), (self.num_tiers,))


@struct
class Tiered(live.LiveCohorts):
    """Settings of rounds of clients from one tier."""

    choice: TierChoice = settings.group(TierChoice(), "tiers, and which of them the server asks")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If tiers have fewer clients than are asked in a round.
        """
        super().check_together()
        if self.num_clients // self.choice.num_tiers < self.num_asked:
            allowed = f"at most {self.num_clients // self.num_asked}, so that every tier has the "
            allowed += f"{self.num_asked} clients that a round asks"
            raise ConfigError("choice.num_tiers", self.choice.num_tiers, allowed)


@struct
class TiFL(Tiered, LastingTraining, ServerStep, Reports):
    """TiFL (Chai et al. 2020, HPDC, arXiv 2001.09249): rounds of clients that are equally fast.

        T -> `choice.num_tiers`       C_r -> `clients`           I -> `choice.interval`
        A_t -> `accuracy`             NewProbs -> `probability`  Credits_t -> `credits`
        T_max -> `choice.time_limit`  sync_rounds -> `choice.profile_rounds`

    Before learning, the server measures how long every client takes to respond, in a number of
    rounds, and sorts the clients into tiers by that (Sec. 4.2). Each round asks clients of one
    tier, so that nobody waits for much slower ones. The static policy (Sec. 4.3) draws the tier
    with given probabilities. The adaptive one (Sec. 4.4, Algorithm 2) looks at the test accuracy of
    every tier every I rounds: if that of the tier asked last has not grown, tiers of low accuracy
    become more probable. Credits limit how often a tier is asked. Learning is FedAvg's, but the
    clock is live.

    Deviation: where a problem has no test examples of clients, the loss of one mini-batch of each
    of them takes the place of accuracy, and less is better.

    Deviation: the algorithm evaluates tiers after every round and reads that every I rounds; here
    they are evaluated when it is read, so of the model with which a round begins. An evaluation of
    a client counts as one, and takes no time.

    Readings. Tiers have equally many clients, as in the paper's experiments; its histogram leaves
    the borders open. The first round begins after profiling, whose running times are drawn apart
    from those of rounds, and whose local steps and bits are not counted. Clients that never respond
    within T_max are dropouts, and are never asked. The paper does not spell out ChangeProbs: here,
    as in public implementations, the tier of the k-th lowest accuracy has the probability (T + 1 -
    k) / (1 + ... + T). Where no tier has credits left, which would be an endless loop, all get
    theirs again. If clients have hours, the choice is among tiers with clients that are available
    and among these clients; if there are none, among all. Tiers are not formed again.
    """

    tells_losses = True


class TierMemory(NamedTuple):
    """TierMemory of the choice.

    Attributes:
      tier: `i32[N]`, each client's tier, 0 for the fastest; `EMPTY` for clients left out.
      current: `i32[]`, the tier that was asked last.
      probability: `f[T]`, with which tiers are drawn, up to a factor.
      credits: `f[T]`, for how many rounds each may still be asked.
      accuracy: `f[T]`, of tiers at the last evaluation.
    """

    tier: Array
    current: Array
    probability: Array
    credits: Array
    accuracy: Array


def tiers_of(problem: Problem, hyper: Tiered) -> live.Selector:
    """Bind TiFL's choice."""
    choice, num_clients = hyper.choice, hyper.num_clients
    is_adaptive = choice.policy == "adaptive"

    def members(tier: Array) -> Array:
        """Membership of clients in tiers: `bool[T, N]`."""
        return tier[None] == jnp.arange(choice.num_tiers)[:, None]

    def first(hyper: Tiered, drawn: live.Drawn) -> TierMemory:
        given = choice.by_tier(1.0 if is_adaptive else choice.probability)
        credits, zero = choice.by_tier(choice.credits), jnp.int32(0)
        return TierMemory(
            jnp.zeros(num_clients, "int32"), zero, given, credits, jnp.zeros_like(given)
        )

    def draw(key: Key, number: Array) -> tuple[Array, Array]:
        tier_key, client_key = jax.random.split(choice_key(key, number))
        noise = jax.random.gumbel(tier_key, (choice.num_tiers,), float)
        return noise, jax.random.uniform(client_key, (num_clients,), float)

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, number, (noise, draws) = now.memory, now.round.number, now.drawn
        executed = needed = jnp.int32(0)
        if is_adaptive:
            is_read = number % choice.interval == 0
            some_read = batching.any_lane(is_read)

            def read() -> Array:
                quality = client_accuracies(problem, hyper, key, number, now.state.server)
                in_tier = jnp.where(members(memory.tier), quality[None].astype(float), jnp.nan)
                return jnp.where(is_read, jnp.nanmean(in_tier, axis=1), memory.accuracy)

            accuracy = jax.lax.cond(some_read, read, lambda: memory.accuracy)
            stalls = accuracy[memory.current] <= memory.accuracy[memory.current]
            changed = is_read & (number > 0) & stalls
            # ChangeProbs: the lowest accuracy is the most probable, T, ..., 2, 1 times a factor.
            num, rank = choice.num_tiers, jnp.argsort(jnp.argsort(accuracy, stable=True))
            probability = (num - rank) / (num * (num + 1) / 2)
            probability = jnp.where(changed, probability, memory.probability)
            memory = memory._replace(probability=probability, accuracy=accuracy)
            executed = jnp.where(some_read, num_clients, 0)
            needed = jnp.where(is_read, num_clients, 0)
        # The tier, among those with credits and with clients.
        is_here = now.available() & (memory.tier != EMPTY)
        is_here = jnp.where(is_here.any(), is_here, memory.tier != EMPTY)
        has_clients = (is_here[None] & members(memory.tier)).any(axis=1)
        is_open = has_clients & (memory.probability > 0)
        is_open = jnp.where(is_open.any(), is_open, has_clients)
        if is_adaptive:
            is_over = ~(is_open & (memory.credits > 0)).any()
            credits = jnp.where(is_over, choice.by_tier(choice.credits), memory.credits)
            is_open = is_open & (credits > 0)
        logits = jnp.log(jnp.maximum(memory.probability, 1e-30))
        current = jnp.argmax(jnp.where(is_open, logits, -jnp.inf) + noise).astype("int32")
        memory = memory._replace(current=current)
        if is_adaptive:
            memory = memory._replace(credits=targets.put(credits, current, credits[current] - 1))
        # Clients of it, uniformly.
        draws = jnp.where(is_here & (memory.tier == current), draws, -1)
        largest, found = jax.lax.top_k(draws, hyper.num_asked)
        clients = jnp.where(largest >= 0, found, EMPTY)
        return live.Asked(clients, executed=executed, needed=needed, memory=memory)

    def opens(key: Key, begun: live.Round[TierMemory]) -> live.Round[TierMemory]:
        tier, now = profile(streams.lane_stream(key, "profile"), hyper, begun.drawn)
        return begun._replace(now=now, memory=begun.memory._replace(tier=tier))

    return live.Selector(select, first, draw=draw, opens=opens)


def profile(key: Key, hyper: Tiered, drawn: live.Drawn) -> tuple[Array, live.Instant]:
    """Measure how long clients take and sort them into tiers.

    Args:
      key: The key of profiling.
      drawn: The clients' speeds and hours.

    Returns:
      Everyone's tier, `i32[N]`, `EMPTY` for those left out, and when profiling ends.
    """
    choice, everyone = hyper.choice, jnp.arange(hyper.num_clients, dtype="int32")
    devices = draw_devices(key, hyper, drawn)
    limit = jnp.where(choice.time_limit > 0, choice.time_limit, jnp.inf)

    def measure(now: live.Instant, number: Array) -> tuple[live.Instant, Array]:
        _, taken = devices.follow(everyone, jnp.full_like(everyone, number), now)
        taken = jnp.minimum(taken, limit.astype(taken.dtype))
        return now.later(taken.max()), taken

    rounds = jnp.arange(choice.profile_rounds, dtype="int32")
    now, taken = jax.lax.scan(measure, live.Instant.at(0.0), rounds)
    responds = (taken < limit).any(axis=0)
    order = jnp.argsort(jnp.where(responds, taken.sum(axis=0), jnp.inf), stable=True)
    rank = jnp.zeros_like(everyone).at[order].set(everyone)
    tier = rank * choice.num_tiers // jnp.maximum(responds.sum(dtype="int32"), 1)
    return jnp.where(responds, tier, EMPTY), now


def client_accuracies(problem: Any, hyper: Tiered, key: Key, number: Array, model: Params) -> Array:
    """Evaluate a model on the test examples of each client: `f[N]`.

    Args:
      key: The lane's clock key.
      number: `i32[]`, the number of the round.
    """
    if trees.has(problem, "has_tests_of_clients") and problem.has_tests_of_clients:
        found = problem.evaluate_clients(lambda client: model)
        return found["accuracy"] if "accuracy" in found else -found["loss"]

    def loss(client: Array) -> Array:
        return batch_loss(problem, hyper, key, client, number)(model, jnp.int32(0))

    everyone = jnp.arange(hyper.num_clients, dtype="int32")
    return -jax.lax.map(loss, everyone, batch_size=CLIENTS_AT_ONCE)


# Nobody can be missing either, or left out of all tiers.
tiers = live.Selection(
    tiers_of,
    is_full=lambda hyper: hyper.misses_nobody and settings.is_known(hyper.choice.time_limit, 0),
)
"""TiFL's choice, for any system of rounds."""
SUMMARY = "rounds of clients that are equally fast, from tiers chosen by their accuracy"
tifl = tiers.on(fedavg.system, name="tifl", Hyper=TiFL, summary=SUMMARY)


# FedCS.


ROUNDING = 1e-5
"""Share by which deadlines are longer, because a client's time is a rounded sum of many."""


@struct
class DeadlineChoice(settings.Checked):
    """Settings of FedCS's choice, and of its deadlines."""

    num_candidates: settings.Whole = setting(
        0,
        "Clients that tell the server in each round how long they would take; 0 for "
        "`num_selected`.",
    )
    quantile: Probability = setting(0.5, "Quantile of response times that is the deadline.")
    follows: Literal["times", "loss"] = setting(
        "times", "What the deadline follows: response times alone, or the loss as well."
    )
    lengthen: settings.AtLeast1 = setting(
        1.2,
        "Factor of the deadline after a window of rounds in which the loss did not fall.",
        only_with={"follows": ("loss",)},
    )
    shorten: settings.Portion = setting(
        1.0,
        "Factor of the deadline after a window of rounds in which the loss fell.",
        only_with={"follows": ("loss",)},
    )
    loss_window: Count = setting(
        10,
        "Rounds of which the mean loss is compared with that of as many rounds before.",
        begins="the comparison of losses",
        only_with={"follows": ("loss",)},
    )
    most: settings.AtLeast1 = setting(
        10.0,
        "How many times the quantile the deadline is at most; it is at least the quantile divided "
        "by this.",
        only_with={"follows": ("loss",)},
    )


@struct
class InTime(live.LiveCohorts):
    """Settings of rounds of clients that are expected to report before the round ends."""

    clock: CohortClock = settings.group(
        CohortClock(), "how long a round takes", without=("deadline", "num_asked")
    )
    choice: DeadlineChoice = settings.group(
        DeadlineChoice(), "whom the server asks, and how long it waits"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are fewer candidates than a round asks, or more than clients.
        """
        super().check_together()
        num = self.choice.num_candidates
        if num and not self.num_selected <= num <= self.num_clients:
            allowed = f"0, or from num_selected = {self.num_selected} to {self.num_clients}"
            raise ConfigError("choice.num_candidates", num, allowed)


@struct
class FedCS(InTime, LastingTraining, ServerStep, Reports):
    """FedCS (Nishio and Yonetani 2019, ICC, arXiv 1804.08333): as many clients as a deadline
    allows.

        K' -> `is_candidate`    t_k -> `expected`    T_round -> `deadline`    S -> `clients`
        ceil(K C) -> `choice.num_candidates`

    In each round some random clients tell the server how long they would take (Protocol 2, resource
    request). Of these it asks, greedily, those that add least to the round's length, as long as
    they are expected before the deadline (Algorithm 3). Reports that are late are not used: the
    round ends at the deadline, or when all are in. Learning is FedAvg's.

    Here the deadline follows from what was observed, so the clock is live. It is a quantile of all
    clients' response times: for each client the last one that was observed or, if there is none,
    what it expects. A late client has taken at least as long as the server waited. With
    `follows="loss"` the quantile is multiplied by a factor that becomes larger where the loss did
    not fall from one window of rounds to the next, so that slower clients are asked, and smaller
    where it did. In the paper the deadline is constant and tuned by hand.

    Deviation: clients send at the same time, each with its own bandwidth, and not one after another
    over a shared channel. So no client delays another, and the greedy choice asks the fastest
    candidates first. With the default of `num_selected` candidates it asks all that will be in
    time.

    Deviation: clients expect the mean time of their work, or the mean of their rows in a trace,
    with their transfers and hours. The resource request takes neither time nor bits.

    Readings. If no candidate is expected in time, the deadline of that round is long enough for the
    fastest one. The loss is that of the first mini-batches of those who report, with the model that
    they receive. It costs one evaluation more for each, which is counted, only with
    `follows="loss"`.
    """


class DeadlineMemory(NamedTuple):
    """DeadlineMemory of the choice.

    Attributes:
      taken: `f[N]`, how long each client took when it was asked last; nan for never.
      asked: `i32[S]`, whom the server has asked in this round.
      deadline: `f[]`, how long it waits for them.
      factor: `f[]`, by which the quantile is multiplied.
      loss: `f[]`, mean loss of the last window; nan before there is one.
      losses: `f[2]`, sum and number of the losses of rounds in this window.
    """

    taken: Array
    asked: Array
    deadline: Array
    factor: Array
    loss: Array
    losses: Array


def in_time_of(problem: Problem, hyper: InTime) -> live.Selector:
    """Bind FedCS's choice."""
    choice, num_clients, used = hyper.choice, hyper.num_clients, hyper.num_selected
    num_candidates = choice.num_candidates or used

    def first(hyper: InTime, drawn: live.Drawn) -> DeadlineMemory:
        nothing = jnp.zeros_like(drawn.speeds.rate, shape=())
        taken, losses = jnp.full_like(drawn.speeds.rate, jnp.nan), jnp.zeros_like(nothing, shape=2)
        nobody = jnp.full(used, EMPTY, "int32")
        return DeadlineMemory(taken, nobody, nothing, nothing + 1, nothing + jnp.nan, losses)

    def draw(key: Key, number: Array) -> Array:
        return jax.random.permutation(choice_key(key, number), num_clients)[:num_candidates]

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, devices = now.memory, now.devices
        # How long clients expect to take if they are asked now.
        everyone, mean = jnp.arange(num_clients), devices.mean_times()
        expected = devices.times_of_work(everyone, now.round.now, mean)[1]
        known = jnp.where(jnp.isnan(memory.taken), expected, memory.taken)
        deadline = memory.factor * jnp.quantile(known, choice.quantile)
        # The candidates, and those of them that are expected in time.
        is_candidate = jnp.zeros(num_clients, bool).at[now.drawn].set(True)
        wait, fastest = jax.lax.top_k(jnp.where(is_candidate, -expected, -jnp.inf), used)
        deadline = jnp.maximum(deadline, -wait[0]) * (1 + ROUNDING)
        clients = jnp.where(-wait <= deadline, fastest, EMPTY)
        memory = memory._replace(asked=clients, deadline=deadline.astype(memory.deadline.dtype))
        return live.Asked(clients, deadline=deadline, memory=memory)

    def learn(key: Key, shown: live.Shown) -> DeadlineMemory:
        memory, reporters = shown.memory, shown.event.clients
        is_in = reporters != EMPTY
        asked, who = (jnp.where(x == EMPTY, num_clients, x) for x in (memory.asked, reporters))
        # Who was asked has taken at least as long as the server waited, unless the report is in.
        least = jnp.fmax(memory.taken[memory.asked], memory.deadline)
        taken = targets.put_all(targets.put_all(memory.taken, asked, least), who, shown.taken)
        memory = memory._replace(taken=taken)
        if choice.follows == "times":
            return memory
        mean = mean_loss(shown)
        losses = memory.losses + jnp.where(is_in.any(), jnp.stack([mean, jnp.ones_like(mean)]), 0)
        is_over = shown.round.number % choice.loss_window == 0
        loss = jnp.where(is_over, losses[0] / losses[1], memory.loss)  # nan without reports
        factor = memory.factor * jnp.where(loss < memory.loss, choice.shorten, choice.lengthen)
        factor = jnp.clip(factor, 1 / choice.most, choice.most)
        is_due = is_over & ~jnp.isnan(loss) & ~jnp.isnan(memory.loss)
        return memory._replace(
            factor=jnp.where(is_due, factor, memory.factor).astype(memory.factor.dtype),
            loss=jnp.where(jnp.isnan(loss), memory.loss, loss).astype(memory.loss.dtype),
            losses=jnp.where(is_over, 0, losses).astype(memory.losses.dtype),
        )

    return live.Selector(select, first, learn, draw)


def shows_losses(algorithm: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Return an algorithm that shows losses to the choice if the deadline follows them."""

    def bind(problem: Problem, hyper: InTime, plan: Plan) -> Algorithm:
        own = algorithm if hyper.choice.follows == "times" else seeing_losses(algorithm)
        return own(problem, hyper, plan)

    return bind


in_time = live.Selection(in_time_of, sees=shows_losses)
"""FedCS's choice, for any system of rounds."""
SUMMARY = "as many clients as are expected before a deadline that follows what was observed"
fedcs = in_time.on(fedavg.system, name="fedcs", Hyper=FedCS, summary=SUMMARY)


# AdaComm.


@struct
class Communication(settings.Checked):
    """Settings of how many local steps there are between two averages."""

    adapt_every: settings.Above0 = setting(
        100.0,
        "Virtual time after which the number of local steps is chosen again, T_0.",
        of_time=True,
    )
    shrink: settings.Portion = setting(
        0.5,
        "Factor of the number of local steps where the loss alone would not reduce it, gamma; 1 "
        "keeps the number then.",
    )
    pace: Literal["equal", "speed"] = setting(
        "equal",
        "Local steps of a cohort's clients: equally many, or in proportion to their speeds.",
    )


@struct
class AdaptiveSteps(live.LiveCohorts):
    """Settings of rounds with fewer local steps in the course of learning.

    `local_steps` is the first number of local steps, tau_0, which is never exceeded.
    """

    communication: Communication = settings.group(Communication(), "how often clients communicate")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the time of work does not depend on the number of local steps.
        """
        super().check_together()
        live.check_steps_take_time(self)


@struct
class AdaComm(AdaptiveSteps, LastingTraining, ServerStep, Reports):
    """AdaComm (Wang and Joshi 2019, SysML, arXiv 1810.08313): local steps that follow the loss.

        x -> `state.server`    tau_0 -> `hyper.local_steps`     tau -> `steps`    l T_0 -> `due`
        F(x) -> `loss`      T_0 -> `communication.adapt_every`      gamma -> `communication.shrink`

    Rare averaging is cheap in time, and frequent averaging attains a lower loss. So clients do many
    local steps between two averages at first, and fewer as the loss falls. At the beginning of each
    interval of T_0 units of virtual time, the paper's rule and its refinement choose

        tau <- ceil(sqrt(F(x) / F(x_0)) tau_0)   if that is less than tau,
        tau <- gamma tau                         otherwise.

    How long a round lasts follows from tau, so the clock is live. Learning is FedAvg's. In the
    paper everyone takes part, `num_selected = num_clients`; a smaller cohort is drawn uniformly.

    With `pace="speed"` the fastest client of a cohort does tau steps, and others as many fewer as
    they are slower, but at least one, so that all finish at about the same time. This is not in the
    paper. The mean then gives fast clients more influence, as in FedAvg with local epochs (see
    `fednova`).

    Deviation: F is the mean loss of the cohort's first mini-batches of the last round, with the
    model that it received, and not of all examples with the newest model, which would cost a pass
    over all data. It costs one evaluation more for each client, which is counted, and neither time
    nor bits.

    Deviation: the learning rate is constant here, so the factor by which the paper lets tau grow
    when the learning rate is reduced is always 1, and is left out.

    Readings. Rounds are not cut off at the end of an interval: the first round that begins after it
    has the new tau, and intervals that passed within one round count as one. gamma tau is rounded
    down, and is at least 1. If clients have hours, a cohort is drawn from all, as in planned
    rounds: whoever is away begins when it is back, and the round waits for it.
    """

    tells_losses = True


class StepsMemory(NamedTuple):
    """StepsMemory of the choice.

    Attributes:
      steps: `i32[]`, local steps of the next round, tau.
      first_loss: `f[]`, F(x_0); nan until the first reports are in.
      due: When the number of local steps is chosen again.
    """

    steps: Array
    first_loss: Array
    due: live.Instant


def steps_of(problem: Problem, hyper: AdaptiveSteps) -> live.Selector:
    """Bind AdaComm's numbers of local steps."""
    pace = hyper.communication

    def first(hyper: AdaptiveSteps, drawn: live.Drawn) -> StepsMemory:
        unknown = jnp.full((), jnp.nan, drawn.speeds.rate.dtype)
        return StepsMemory(jnp.int32(hyper.local_steps), unknown, live.Instant.at(pace.adapt_every))

    def draw(key: Key, number: Array) -> Array:
        order = jax.random.permutation(choice_key(key, number), hyper.num_clients)
        return order[: hyper.num_asked].astype("int32")

    def select(key: Key, now: live.Choosing) -> live.Asked:
        clients, steps = now.drawn, now.memory.steps
        if pace.pace == "speed":
            rate = now.devices.speeds.rate[clients]
            steps = _rounded_down(steps * (rate / rate.max())).astype("int32")
        return live.Asked(clients, steps=steps)

    def learn(key: Key, shown: live.Shown) -> StepsMemory:
        steps, first_loss, due = shown.memory
        is_there, now = shown.event.clients != EMPTY, shown.round.now
        loss = jnp.where(is_there.any(), mean_loss(shown), jnp.nan).astype(first_loss.dtype)
        first_loss = jnp.where(jnp.isnan(first_loss), loss, first_loss)
        wanted = jnp.ceil(jnp.sqrt(loss / first_loss) * hyper.local_steps)
        shrunk = _rounded_down(pace.shrink * steps)
        fewer = jnp.where(wanted < steps, jnp.maximum(wanted, 1), shrunk)
        # Without a report the loss is unknown: the next round with one decides.
        # Rounds that exactly fill an interval do so whatever the last bits of their times.
        late = now.since(due) / pace.adapt_every
        late += close(late)
        is_due = (late >= 0) & ~jnp.isnan(loss)
        next_due = due.later((jnp.floor(late) + 1) * pace.adapt_every).where(is_due, due)
        return StepsMemory(jnp.where(is_due, fewer, steps).astype("int32"), first_loss, next_due)

    return live.Selector(select, first, learn, draw)


def _rounded_down(steps: Array) -> Array:
    """Round numbers of local steps down, but to at least 1, whatever their last bits.

    Divided by itself, a rate need not be 1: compiled, x / y may be x times the rounded 1 / y.
    """
    return jnp.maximum(jnp.floor(steps * (1 + close(steps))), 1)


fewer_steps = live.Selection(steps_of, has_steps=True, sees=seeing_losses)
"""AdaComm's local steps, for any system of rounds."""
SUMMARY = "federated averaging with fewer local steps as the loss falls"
adacomm = fewer_steps.on(
    fedavg.system,
    name="adacomm",
    Hyper=AdaComm,
    summary=SUMMARY,
    hints=types.Hints(lambda hyper, time: rounds_within(hyper.replace(local_steps=1), time)),
)
