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

Power-of-Choice, which also chooses by losses, is here too. Each choice is a `live.Selection`, for
any system of rounds; these have FedAvg's. `response_times` has others.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LastingTraining, losses_of, seeing_losses
from fedjax_sim.core import settings, streams, targets, trees, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Probability, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Key, Leaf, Plan, Problem, Timeline
from fedjax_sim.server import ReportMessages, Reports, ServerStep, compression
from fedjax_sim.server.report_settings import Bits, downlink_of_slots
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live

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

    tells = "their losses"
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
        return jax.random.gumbel(live.choice_key(key, number), (2, hyper.num_clients), float)

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

    tells = "their losses"
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
        own, turns = streams.lane_stream(key, "candidates"), jnp.full(candidates.shape, number)
        losses, executed = losses_of(problem, hyper, plan, own, candidates, turns, model=model)
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
    problem: Problem, hyper: PowerOfChoice, timeline: Timeline
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

    def per_tick(self, problem: Problem, hyper: PowerOfChoice, timeline: Timeline) -> Bits:
        """Count the bits sent up and down at each tick: `i64[T]` each."""
        up, down, of_others = count_bits_of_clients(problem, hyper, timeline)
        return up.sum(axis=1) + of_others[:, 0], down.sum(axis=1) + of_others[:, 1]

    def by_client(self, problem: Problem, hyper: PowerOfChoice, timeline: Timeline) -> Leaf:
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

    def check(self, hyper: PowerOfChoice, timeline: Timeline) -> None:
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
