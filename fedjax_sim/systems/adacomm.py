"""AdaComm (Wang and Joshi 2019, SysML, arXiv 1810.08313): local steps that follow the loss.

    x -> `state.server`    tau_0 -> `hyper.local_steps`     tau -> `steps`    l T_0 -> `due`
    F(x) -> `loss`      T_0 -> `communication.adapt_every`      gamma -> `communication.shrink`

Rare averaging is cheap in time, and frequent averaging attains a lower loss. So clients do many
local steps between two averages at first, and fewer as the loss falls. At the beginning of each
interval of T_0 units of virtual time, the paper's rule and its refinement choose

    tau <- ceil(sqrt(F(x) / F(x_0)) tau_0)   if that is less than tau,
    tau <- gamma tau                         otherwise.

How long a round lasts follows from tau, so the clock is live. Learning is FedAvg's. In the paper
everyone takes part, `num_selected = num_clients`; a smaller cohort is drawn uniformly.

With `pace="speed"` the fastest client of a cohort does tau steps, and others as many fewer as they
are slower, but at least one, so that all finish at about the same time. This is not in the paper.
The mean then gives fast clients more influence, as in FedAvg with local epochs (see `fednova`).

Deviation: F is the mean loss of the cohort's first mini-batches of the last round, with the model
that it received, and not of all examples with the newest model, which would cost a pass over all
data. It costs one evaluation more for each client, which is counted, and neither time nor bits.

Deviation: the learning rate is constant here, so the factor by which the paper lets tau grow when
the learning rate is reduced is always 1, and is left out.

Readings. Rounds are not cut off at the end of an interval: the first round that begins after it has
the new tau, and intervals that passed within one round count as one. gamma tau is rounded down, and
is at least 1. If clients have hours, a cohort is drawn from all, as in planned rounds: whoever is
away begins when it is back, and the round waits for it.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LastingTraining, seeing_losses
from fedjax_sim.core.checking import Above0, Portion
from fedjax_sim.core.settings import Checked, ConfigError, group, setting, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import EMPTY, Array, Hints, Key, Problem
from fedjax_sim.server import Reports
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live
from fedjax_sim.timelines.delays.devices import close
from fedjax_sim.timelines.rounds import rounds_within


@struct
class Communication(Checked):
    """Settings of how many local steps there are between two averages."""

    adapt_every: Above0 = setting(
        100.0,
        "Virtual time after which the number of local steps is chosen again, T_0.",
        of_time=True,
    )
    shrink: Portion = setting(
        0.5,
        "Factor of the number of local steps where the loss alone would not reduce it, gamma; 1 "
        "keeps the number then.",
    )
    pace: Literal["equal", "speed"] = setting(
        "equal",
        "Local steps of a cohort's clients: equally many, or in proportion to their speeds.",
    )


@struct
class Adaptive(live.LiveCohorts):
    """Settings of rounds with fewer local steps in the course of learning.

    `local_steps` is the first number of local steps, tau_0, which is never exceeded.
    """

    communication: Communication = group(Communication(), "how often clients communicate")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the time of work does not depend on the number of local steps.
        """
        super().check_together()
        if self.delays.trace is not None:
            allowed = "None: how long fewer local steps take is not recorded"
            raise ConfigError("delays.trace", "a recorded trace", allowed)
        if self.delays.time_of != "step":
            allowed = '"step", because rounds of fewer local steps must be shorter'
            raise ConfigError("delays.time_of", self.delays.time_of, allowed)


@struct
class Hyper(Adaptive, LastingTraining, Reports):
    """Settings of AdaComm: rounds, their numbers of local steps, local training, messages."""

    tells_losses = True


class Memory(NamedTuple):
    """Memory of the choice.

    Attributes:
      steps: `i32[]`, local steps of the next round, tau.
      first_loss: `f[]`, F(x_0); nan until the first reports are in.
      due: When the number of local steps is chosen again.
    """

    steps: Array
    first_loss: Array
    due: live.Instant


def selector(problem: Problem, hyper: Adaptive) -> live.Selector:
    """Bind AdaComm's numbers of local steps."""
    settings = hyper.communication

    def first(hyper: Adaptive, drawn: live.Drawn) -> Memory:
        unknown = jnp.full((), jnp.nan, drawn.speeds.rate.dtype)
        return Memory(jnp.int32(hyper.local_steps), unknown, live.Instant.at(settings.adapt_every))

    def draw(key: Key, number: Array) -> Array:
        round_key = jax.random.fold_in(lane_stream(key, "choice"), number)
        drawn = jax.random.permutation(round_key, hyper.num_clients)[: hyper.num_asked]
        return drawn.astype("int32")

    def select(key: Key, now: live.Choosing) -> live.Asked:
        clients, steps = now.drawn, now.memory.steps
        if settings.pace == "speed":
            rate = now.devices.speeds.rate[clients]
            steps = _rounded_down(steps * (rate / rate.max())).astype("int32")
        return live.Asked(clients, steps=steps)

    def learn(key: Key, shown: live.Shown) -> Memory:
        steps, first_loss, due = shown.memory
        is_there, now = shown.event.clients != EMPTY, shown.round.now
        loss = jnp.where(is_there, shown.seen.mean, 0).sum() / jnp.maximum(is_there.sum(), 1)
        loss = jnp.where(is_there.any(), loss, jnp.nan).astype(first_loss.dtype)
        first_loss = jnp.where(jnp.isnan(first_loss), loss, first_loss)
        wanted = jnp.ceil(jnp.sqrt(loss / first_loss) * hyper.local_steps)
        shrunk = _rounded_down(settings.shrink * steps)
        fewer = jnp.where(wanted < steps, jnp.maximum(wanted, 1), shrunk)
        # Without a report the loss is unknown: the next round with one decides.
        # Rounds that exactly fill an interval do so whatever the last bits of their times.
        late = now.since(due) / settings.adapt_every
        late += close(late)
        is_due = (late >= 0) & ~jnp.isnan(loss)
        next_due = due.later((jnp.floor(late) + 1) * settings.adapt_every).where(is_due, due)
        return Memory(jnp.where(is_due, fewer, steps).astype("int32"), first_loss, next_due)

    return live.Selector(select, first, learn, draw)


def _rounded_down(steps: Array) -> Array:
    """Round numbers of local steps down, but to at least 1, whatever their last bits.

    Divided by itself, a rate need not be 1: compiled, x / y may be x times the rounded 1 / y.
    """
    return jnp.maximum(jnp.floor(steps * (1 + close(steps))), 1)


selection = live.Selection(selector, has_steps=True, sees=seeing_losses)
"""AdaComm's local steps, for any system of rounds."""
system = selection.on(
    fedavg.system,
    name="adacomm",
    Hyper=Hyper,
    summary="federated averaging with fewer local steps as the loss falls",
    hints=Hints(lambda hyper, time: rounds_within(hyper.replace(local_steps=1), time)),
)
paper = system.paper
