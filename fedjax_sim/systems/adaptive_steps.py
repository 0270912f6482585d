"""Numbers of local steps that follow learning: AdaComm, and AsyncFedED as a whole.

AdaComm's is a `live.Selection`, for any system of rounds; here it has FedAvg's learning.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LastingTraining, LocalTraining, rows, seeing_losses
from fedjax_sim.core import settings, targets, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, setting, struct
from fedjax_sim.core.types import EMPTY, Array, Event, Key, Problem
from fedjax_sim.server import Reports, ServerStep, Versioned
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines import Clients, live
from fedjax_sim.timelines.delays.devices import close, draw_devices
from fedjax_sim.timelines.live import Clock, Flights, Instant, Received, Sizes
from fedjax_sim.timelines.rounds import check_clients, rounds_within

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
        order = jax.random.permutation(live.choice_key(key, number), hyper.num_clients)
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
        loss = jnp.where(is_there.any(), live.mean_loss(shown), jnp.nan).astype(first_loss.dtype)
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

    A compiled quotient of equal rates need not be 1: x / y may be x times the rounded 1 / y.
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


# AsyncFedED with its numbers of local steps.


@struct
class AdaptiveFedED(fedbuff.EuclideanStaleness, Clients, LocalTraining, Reports):
    """AsyncFedED (Wang et al. 2022, arXiv 2205.13797) as a whole: local steps follow staleness.

        K_i -> `state.clients`    gamma(i, tau) -> `gamma`    floor -> E[.]
        gamma bar -> `hyper.wanted_staleness`    kappa -> `hyper.gain`

    Learning is that of `asyncfeded`. When the update of client i has moved the server's model, its
    next number of local steps is K_i + floor((gamma bar - gamma(i, tau)) kappa): a client whose
    updates are staler than wanted does fewer. How long work takes follows from K_i, so the clock is
    live. All clients are always at work; one starts again from the model that its update has made.

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

    def init(key: Key) -> Working:
        devices, everyone = draw_devices(key, hyper), jnp.arange(hyper.num_clients, dtype="int32")
        zero, turns = jnp.int32(0), jnp.ones_like(everyone)
        work = live.begin_work(devices, everyone, 0 * everyone, Instant.at(0.0), zero)
        return Working(zero, zero, turns, work, devices.drawn)

    def next_tick(key: Key, carried: Working, state: object) -> tuple[Working, Received]:
        place = carried.work.first()
        done = carried.work.take(place)
        lost = draw_devices(key, hyper, carried.drawn).are_lost(done.client, done.number)
        client = jnp.where(lost, EMPTY, done.client)
        who, steps, version = (leaf[None] for leaf in (client, done.steps, done.version))
        after = carried._replace(tick=carried.tick + 1, place=place)
        return after, Received(done.ends, who, steps, version, jnp.ones(1))

    def after(key: Key, carried: Working, event: Event, state: Versioned, seen: object) -> Working:
        devices, who = draw_devices(key, hyper, carried.drawn), carried.place
        given = who, carried.turns[who], carried.work.ends.take(who), carried.tick
        new = live.begin_work(devices, *given, steps=state.clients[who])
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
