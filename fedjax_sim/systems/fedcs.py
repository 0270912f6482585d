"""FedCS (Nishio and Yonetani 2019, ICC, arXiv 1804.08333): as many clients as a deadline allows.

    K' -> `is_candidate`    t_k -> `expected`    T_round -> `deadline`    S -> `clients`
    ceil(K C) -> `choice.num_candidates`

In each round some random clients tell the server how long they would take (Protocol 2, resource
request). Of these it asks, greedily, those that add least to the round's length, as long as they
are expected before the deadline (Algorithm 3). Reports that are late are not used: the round ends
at the deadline, or when all are in. Learning is FedAvg's.

Here the deadline follows from what was observed, so the clock is live. It is a quantile of all
clients' response times: for each client the last one that was observed or, if there is none, what
it expects. A late client has taken at least as long as the server waited. With `follows="loss"` the
quantile is multiplied by a factor that becomes larger where the loss did not fall from one window
of rounds to the next, so that slower clients are asked, and smaller where it did. In the paper the
deadline is constant and tuned by hand.

Deviation: clients send at the same time, each with its own bandwidth, and not one after another
over a shared channel. So no client delays another, and the greedy choice asks the fastest
candidates first. With the default of `num_selected` candidates it asks all that will be in time.

Deviation: clients expect the mean time of their work, or the mean of their rows in a trace, with
their transfers and hours. The resource request takes neither time nor bits.

Readings. If no candidate is expected in time, the deadline of that round is long enough for the
fastest one. The loss is that of the first mini-batches of those who report, with the model that
they receive. It costs one evaluation more for each, which is counted, only with `follows="loss"`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LastingTraining, seeing_losses
from fedjax_sim.core import streams, targets
from fedjax_sim.core.checking import AtLeast1, Count, Portion, Probability, Whole
from fedjax_sim.core.settings import Checked, ConfigError, group, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Key, Plan, Problem
from fedjax_sim.server import Reports
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live
from fedjax_sim.timelines.rounds import CohortClock

ROUNDING = 1e-5
"""Share by which deadlines are longer, because a client's time is a rounded sum of many."""


@struct
class Choice(Checked):
    """Settings of FedCS's choice, and of its deadlines."""

    num_candidates: Whole = setting(
        0,
        "Clients that tell the server in each round how long they would take; 0 for "
        "`num_selected`.",
    )
    quantile: Probability = setting(0.5, "Quantile of response times that is the deadline.")
    follows: Literal["times", "loss"] = setting(
        "times", "What the deadline follows: response times alone, or the loss as well."
    )
    lengthen: AtLeast1 = setting(
        1.2,
        "Factor of the deadline after a window of rounds in which the loss did not fall.",
        only_with={"follows": ("loss",)},
    )
    shorten: Portion = setting(
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
    most: AtLeast1 = setting(
        10.0,
        "How many times the quantile the deadline is at most; it is at least the quantile divided "
        "by this.",
        only_with={"follows": ("loss",)},
    )


@struct
class InTime(live.LiveCohorts):
    """Settings of rounds of clients that are expected in time."""

    clock: CohortClock = group(
        CohortClock(), "how long a round takes", without=("deadline", "num_asked")
    )
    choice: Choice = group(Choice(), "whom the server asks, and how long it waits")

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
class Hyper(InTime, LastingTraining, Reports):
    """Settings of FedCS: rounds, local training, messages, and the choice with its deadlines."""


class Memory(NamedTuple):
    """Memory of the choice.

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


def selector(problem: Problem, hyper: InTime) -> live.Selector:
    """Bind FedCS's choice."""
    settings, num_clients, used = hyper.choice, hyper.num_clients, hyper.num_selected
    num_candidates = settings.num_candidates or used

    def first(hyper: InTime, drawn: live.Drawn) -> Memory:
        nothing = jnp.zeros_like(drawn.speeds.rate, shape=())
        taken, losses = jnp.full_like(drawn.speeds.rate, jnp.nan), jnp.zeros_like(nothing, shape=2)
        nobody = jnp.full(used, EMPTY, "int32")
        return Memory(taken, nobody, nothing, nothing + 1, nothing + jnp.nan, losses)

    def draw(key: Key, number: Array) -> Array:
        round_key = jax.random.fold_in(streams.lane_stream(key, "choice"), number)
        return jax.random.permutation(round_key, num_clients)[:num_candidates]

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, devices = now.memory, now.devices
        # How long clients expect to take if they are asked now.
        everyone, mean = jnp.arange(num_clients), devices.mean_times()
        expected = devices.times_of_work(everyone, now.round.now, mean)[1]
        known = jnp.where(jnp.isnan(memory.taken), expected, memory.taken)
        deadline = memory.factor * jnp.quantile(known, settings.quantile)
        # The candidates, and those of them that are expected in time.
        is_candidate = jnp.zeros(num_clients, bool).at[now.drawn].set(True)
        wait, fastest = jax.lax.top_k(jnp.where(is_candidate, -expected, -jnp.inf), used)
        deadline = jnp.maximum(deadline, -wait[0]) * (1 + ROUNDING)
        clients = jnp.where(-wait <= deadline, fastest, EMPTY)
        memory = memory._replace(asked=clients, deadline=deadline.astype(memory.deadline.dtype))
        return live.Asked(clients, deadline=deadline, memory=memory)

    def learn(key: Key, shown: live.Shown) -> Memory:
        memory, reporters = shown.memory, shown.event.clients
        is_in = reporters != EMPTY
        asked, who = (jnp.where(x == EMPTY, num_clients, x) for x in (memory.asked, reporters))
        # Who was asked has taken at least as long as the server waited, unless the report is in.
        least = jnp.fmax(memory.taken[memory.asked], memory.deadline)
        taken = targets.put_all(targets.put_all(memory.taken, asked, least), who, shown.taken)
        memory = memory._replace(taken=taken)
        if settings.follows == "times":
            return memory
        mean = jnp.where(is_in, shown.seen.mean, 0).sum() / jnp.maximum(is_in.sum(), 1)
        losses = memory.losses + jnp.where(is_in.any(), jnp.stack([mean, jnp.ones_like(mean)]), 0)
        is_over = shown.round.number % settings.loss_window == 0
        loss = jnp.where(is_over, losses[0] / losses[1], memory.loss)  # nan without reports
        factor = memory.factor * jnp.where(loss < memory.loss, settings.shorten, settings.lengthen)
        factor = jnp.clip(factor, 1 / settings.most, settings.most)
        is_due = is_over & ~jnp.isnan(loss) & ~jnp.isnan(memory.loss)
        return memory._replace(
            factor=jnp.where(is_due, factor, memory.factor).astype(memory.factor.dtype),
            loss=jnp.where(jnp.isnan(loss), memory.loss, loss).astype(memory.loss.dtype),
            losses=jnp.where(is_over, 0, losses).astype(memory.losses.dtype),
        )

    return live.Selector(select, first, learn, draw)


def sees(algorithm: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Return an algorithm that shows losses to the choice if the deadline follows them."""

    def bind(problem: Problem, hyper: InTime, plan: Plan) -> Algorithm:
        own = algorithm if hyper.choice.follows == "times" else seeing_losses(algorithm)
        return own(problem, hyper, plan)

    return bind


SUMMARY = "as many clients as are expected before a deadline that follows what was observed"
selection = live.Selection(selector, sees=sees)
"""FedCS's choice, for any system of rounds."""
system = selection.on(fedavg.system, name="fedcs", Hyper=Hyper, summary=SUMMARY)
paper = system.paper
