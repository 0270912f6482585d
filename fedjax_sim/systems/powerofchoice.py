"""Power-of-Choice (Cho, Wang and Joshi 2020, arXiv 2010.01243): choices by the loss.

    w -> `state.server`          A -> the candidates
    d -> `hyper.num_selected`    m -> `hyper.num_chosen`

The server asks d candidates for the loss of its model and lets the m with the largest losses train.
A round lasts as long as those m need: the clock is live. Learning is FedAvg's, by default with
equal weights, as in the paper. All candidates get the model and send a loss, the chosen send a
model, and a loss counts as one evaluation.

The schedule names those who report, and not the other candidates. So their bits are counted as if
there were d candidates in all, unless fewer than m report and nothing is lost or late: then there
were no others. The energy of their messages is that of all clients who do not report, on average.

Deviation: the paper draws candidates in proportion to their examples, which is
`candidates="by_examples"`. By default they are uniform, as in other systems.

Deviation: losses are those of a mini-batch of each candidate, the paper's variant cpow-d, and not
of all its examples, because they cost one gradient then. They take no time unless `loss_time` says
so.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LastingTraining, losses_of
from fedjax_sim.core import settings, trees, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, setting, struct
from fedjax_sim.core.streams import lane_stream, shuffle_bits, shuffled_index
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Key, Leaf, Plan, Problem, Timeline
from fedjax_sim.server import Reports, check_numbers
from fedjax_sim.server.report_settings import ReportMessages, downlink_of_slots
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live


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
class Hyper(Candidates, LastingTraining, Reports):
    """Settings of Power-of-Choice: rounds of candidates, local training, messages, the choice."""


def selector(
    algorithm: Callable[..., Algorithm], problem: Problem, hyper: Candidates
) -> live.Selector:
    """Bind the choice, by losses of the model that clients of an algorithm receive."""
    plan, counts = Plan(slots_at_once=hyper.num_selected), jnp.asarray(problem.counts)
    learning = algorithm(problem, hyper, plan)

    def draw(key: Key, number: Array) -> Array:
        draws, num = lane_stream(key, "cohorts"), hyper.num_clients
        if hyper.candidates == "uniform":
            return shuffled_index(shuffle_bits(draws), jnp.arange(num), num, number)
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
        drawn = lane_stream(key, "candidates"), candidates, jnp.full(candidates.shape, number)
        losses, executed = losses_of(problem, hyper, plan, *drawn, model=model)
        is_candidate = candidates != EMPTY
        found = jnp.where(is_candidate, losses.mean, -jnp.inf)
        chosen = candidates[jax.lax.top_k(found, hyper.num_chosen)[1]]
        needed = is_candidate.sum(dtype="int32")
        return live.Asked(chosen, executed=executed, needed=needed, takes=hyper.loss_time)

    return live.Selector(select, draw=draw)


def selection(algorithm: Callable[..., Algorithm]) -> live.Selection:
    """Return the choice for a system of rounds with this algorithm."""
    return live.Selection(partial(selector, algorithm), num_used=lambda hyper: hyper.num_chosen)


def count_bits_of_clients(
    problem: Problem, hyper: Hyper, timeline: Timeline
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
    loss = 8 * jnp.result_type(*jax.tree.leaves(model)).itemsize
    up = loss + hyper.aggregator.chosen.message_bits(hyper.messages.compression, model)
    each = np.array([loss, types.full_precision_bits(model)])
    return is_chosen * up, downlink_of_slots(hyper, timeline, model), num_others[:, None] * each


class Messages(ReportMessages):
    """The messages of reports, with those of candidates who are not chosen."""

    def per_tick(self, problem: Problem, hyper: Hyper, timeline: Timeline) -> tuple[Leaf, Leaf]:
        """Count the bits sent up and down at each tick: `i64[T]` each."""
        up, down, of_others = count_bits_of_clients(problem, hyper, timeline)
        return up.sum(axis=1) + of_others[:, 0], down.sum(axis=1) + of_others[:, 1]

    def by_client(self, problem: Problem, hyper: Hyper, timeline: Timeline) -> np.ndarray:
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

    def check(self, hyper: Hyper, timeline: Timeline) -> None:
        """Check numbers of messages, of which there are as many as clients are chosen."""
        check_numbers(hyper, timeline, most=hyper.num_chosen)


system = selection(fedavg.algorithm).on(
    fedavg.system,
    name="powerofchoice",
    Hyper=Hyper,
    summary="federated averaging of the candidates with the largest losses",
    messages=Messages(),
)
paper = system.paper
