"""Power-of-Choice (Cho, Wang and Joshi 2020, arXiv 2010.01243), an example of choices by the loss.

    w -> `state.server`          A -> `event.clients`
    d -> `hyper.num_selected`    m -> `hyper.num_chosen`

The server asks d candidates for the loss of its model and lets the m with the largest losses train.
A schedule is known before any learning and cannot depend on losses. So it holds the candidates, and
`step` chooses among them. The limit: the clock is that of the candidates. A round lasts until the
slowest of all d would have trained, local steps are counted for all d, and the mini-batches of each
continue as if it had trained. Messages are counted as they are: all candidates get the model and
send a loss, and the chosen send a model.

Deviation: the paper draws candidates in proportion to their examples, which is
`selection="by_examples"`. By default they are uniform, so that systems are compared on the same
schedules.

Deviation: losses are those of the mini-batch of a candidate's next step, the paper's variant
cpow-d, and not of all its examples, because they cost one gradient then. The chosen have equal
weights.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.batching import map_slots
from fedjax_sim.clients import LocalTraining, batch_loss, local_training
from fedjax_sim.server import Reports, RoundState, Wire, check_numbers
from fedjax_sim.server.report_counts import count_downlink, report_messages
from fedjax_sim.settings import ConfigError, count, struct
from fedjax_sim.timelines import CohortRounds, cohort_system
from fedjax_sim.types import Algorithm, Array, Event, Key, Leaf, Plan, Timeline, Work


@struct
class Hyper(CohortRounds, LocalTraining, Reports):
    """Settings of Power-of-Choice: rounds of candidates, local training, messages, the choice."""

    num_chosen: int = count(3, "Candidates with the largest losses, which train, m.")

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.num_chosen > self.num_selected:
            allowed = f"at most num_selected = {self.num_selected}, the candidates"
            raise ConfigError("num_chosen", self.num_chosen, allowed)
        if self.has_own_noise:
            allowed = "without noise here, because candidates tell the server their losses as well"
            raise ConfigError("local_privacy", str(self.messages.local_privacy), allowed)


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind Power-of-Choice to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)

        def loss(trips: int, client: Array, offset: Array) -> Array:
            return batch_loss(problem, hyper, key, client, offset)(start, jnp.int32(0))

        is_present, candidates = event.clients >= 0, jnp.maximum(event.clients, 0)
        losses, _ = map_slots(loss, plan, event.steps, candidates, event.offset, trips=1)
        _, chosen = jax.lax.top_k(jnp.where(is_present, losses, -jnp.inf), hyper.num_chosen)
        asked, event = event, event.take(chosen)
        weight = is_present[chosen] / jnp.maximum(is_present[chosen].sum(), 1)
        event = event.within(facts=event.facts, weight=weight)
        total = wire.total(event, of_progress=True)
        local, work = train(key, event, start=start, total=total)
        progress, memo = wire.progress(key, event, state, local, total=total)
        server = jax.tree.map(jnp.add, state.server, progress)  # + 0 if all slots are empty
        memo = wire.publish(key, event, memo, server)
        return RoundState(server, memo=memo), work._replace(event=asked.changed)

    return wire.algorithm(init, step)


def count_bits(problem: Any, hyper: Hyper, timeline: Timeline) -> tuple[Leaf, Leaf]:
    """Count the bits sent up and down at each tick: `i64[T]` each."""
    model = jax.eval_shape(problem.init, jax.random.key(0))
    candidates = (timeline.clients >= 0).sum(axis=1, dtype=np.int64)
    chosen = np.minimum(candidates, hyper.num_chosen)
    loss = 8 * jnp.result_type(*jax.tree.leaves(model)).itemsize
    up = hyper.aggregator.chosen.message_bits(hyper.messages.compression, model)
    return chosen * up + candidates * loss, count_downlink(hyper, timeline, model)


def check_chosen(hyper: Hyper, timeline: Timeline) -> None:
    """Check that those who are chosen are enough for the rule; their weights are equal."""
    check_numbers(hyper, timeline, most=hyper.num_chosen)


system = cohort_system(
    "powerofchoice",
    Hyper,
    algorithm,
    "federated averaging of the candidates with the largest losses",
    messages=report_messages()._replace(per_tick=count_bits, check=check_chosen),
)
paper = system.paper
