"""Live rounds: clients, numbers of steps and deadlines are decided as a round begins.

How long work takes, what is lost, and when a round ends are the rules of planned rounds
(`timelines.rounds`), with the same streams of random numbers: a live clock that asks whom the
planned one would have asked makes the same schedule.

Dimension letters: `N` clients, `A` clients asked in a round, `S` slots of a tick, that is reports
that the server uses.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedjax_sim.core import settings, streams, types
from fedjax_sim.core.settings import ConfigError, Count, checked, fields, struct
from fedjax_sim.core.types import EMPTY, Array, Clock, Event, Instant, Key, Received, Settings
from fedjax_sim.timelines.delays.devices import Devices, Drawn, draw_devices
from fedjax_sim.timelines.delays.laws import Speeds
from fedjax_sim.timelines.live.frames import with_clock
from fedjax_sim.timelines.rounds import synchronous
from fedjax_sim.timelines.rounds.synchronous import Cohort, CohortRounds

DrawsT = TypeVar("DrawsT")
MemoryT = TypeVar("MemoryT")
RoundT = TypeVar("RoundT")


@struct
class LiveCohorts(CohortRounds):
    """Settings of live rounds; who is asked is the system's business.

    They are inherited by the settings of Power-of-Choice, for example. A system of rounds whose
    clients are chosen otherwise inherits these first, and then the settings that it has.

        hyper = LiveCohorts(num_clients=8, num_selected=3, num_asked=5)
        assert hyper.num_asked == 5 and hyper.misses_nobody
    """

    local_epochs: float = settings.fixed(0.0)
    cohort: Cohort = settings.group(
        Cohort(), "what the reports weigh", without=("selection", "with_replacement")
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: As of `CohortRounds`, or if the server's sum is to be private.
        """
        private = fields(type(self)).get("privacy")
        if private is not None:
            why = "because no accountant covers cohorts that follow from what is learnt"
            settings.check_left(self, {"privacy": private.default}, why)
        super().check_together()

    @property
    def num_asked(self) -> int:
        """Number of clients that are asked in a round, A."""
        return self.clock.num_asked or self.num_selected

    @property
    def misses_nobody(self) -> bool:
        """Whether everyone who is asked reports: nothing is lost or late, and nobody is away."""
        comes = not (self.delays.has_breaks or self.delays.loses_updates)
        return comes and settings.is_known(self.clock.deadline, 0)


class Asked(NamedTuple, Generic[MemoryT]):
    """The clients that the server asks in a round.

        def select(key, now):
            fastest = jnp.argsort(-now.devices.speeds.rate)[:3]
            return Asked(jnp.where(now.available()[fastest], fastest, -1), deadline=20.0)

    Attributes:
      clients: `i32[A]`, different clients; `EMPTY` in places that are not used.
      steps: Local steps of each, `i32[A]` or one number; None for `local_steps`.
      share: What a report weighs next to the others of its round, `f[A]`; None for the setting
        `cohort.weighting`, or for equal weights if there is no such setting.
      deadline: Longest time that the round waits, `f[]`, infinite for no limit; None for that of
        the settings. One that is nan or negative ends the lane, and so does one of 0 if no time
        passes and nobody reports, which would happen again and again.
      executed: `i32[]`, evaluations that were run to choose them.
      needed: `i32[]`, evaluations of these that the algorithm asked for.
      takes: Time before work begins that it takes to choose them, `f[]`.
      memory: What the choice remembers from now on, such as whom it asked; None for no change.
    """

    clients: Array
    steps: Array | None = None
    share: Array | None = None
    deadline: Array | None = None
    executed: ArrayLike = 0
    needed: ArrayLike = 0
    takes: ArrayLike = 0.0
    memory: MemoryT | None = None


class Round(NamedTuple, Generic[MemoryT]):
    """State of a live round; selectors read it.

    Attributes:
      now: When the round begins.
      number: `i32[]`, rounds before it.
      memory: What the choice remembers.
      taken: `f[S]`, how long after the beginning of the last round each of its reports was in.
      drawn: The clients' speeds and hours.
      turns: `i32[N]`, how often each client was asked before, which is its next row of a trace;
        None without a trace.
    """

    now: Instant
    number: Array
    memory: MemoryT
    taken: Array
    drawn: Drawn
    turns: Array | None = None


class Choosing(NamedTuple, Generic[MemoryT, types.StateT, DrawsT]):
    """A round with its clients, as it is passed to `select`.

    Attributes:
      round: The round.
      devices: The clients' speeds, transfers, losses and hours.
      state: The algorithm's state, with the model that is about to be sent.
      drawn: What `draw` of the `Selector` drew for the round.
      memory: Memory of the choice.
    """

    round: Round[MemoryT]
    devices: Devices
    state: types.StateT
    drawn: DrawsT
    memory: MemoryT

    def available(self) -> Array:
        """Tell which clients are available now: `bool[N]`."""
        everyone = jnp.arange(self.devices.hyper.num_clients)
        return self.devices.are_available(everyone, self.round.now)


class Shown(NamedTuple, Generic[RoundT, MemoryT, types.StateT, types.InfoT]):
    """The results of a round, as they are passed to `learn`.

        def learn(key, shown):  # how long the last work of each client took
            return shown.memory.at[shown.event.clients].set(shown.taken)

    Attributes:
      round: The round, which has ended; `round.now` is when.
      event: Who reported, with how many steps.
      taken: `f[S]`, how long after the round's beginning each report was in.
      state: The algorithm's state after the round.
      seen: What its step has seen, see `Work`.
      memory: Memory of the choice from before.
    """

    round: RoundT
    event: Event
    taken: Array
    state: types.StateT
    seen: types.InfoT
    memory: MemoryT


def uniform_cohort(hyper: Settings) -> Callable[[Key, Array], Array]:
    """Return a function that draws uniform cohorts, by the law of planned rounds.

    With one seed these are not the cohorts of a planned schedule, whose key is another.

        hyper = LiveCohorts(num_clients=8, num_selected=3)
        draw = uniform_cohort(hyper)
        assert draw(key, jnp.int32(0)).shape == (3,)  # of round 0
        uniform = Selector(lambda key, now: Asked(now.drawn), draw=draw)
        clock = live_rounds(hyper, uniform, num_used=3)

    Args:
      hyper: Settings of a clock in rounds.

    Returns:
      The function, from the lane's clock key and the number of a round to `clock.num_asked`
      clients, or `num_selected` if that is 0: `i32[A]`. They may be unavailable.
    """

    def draw(key: Key, number: Array) -> Array:
        places = jnp.arange(hyper.clock.num_asked or hyper.num_selected)
        bits = streams.shuffle_bits(streams.lane_stream(key, "cohorts"))
        return streams.shuffled_index(bits, places, hyper.num_clients, number)

    return draw


class Selector(NamedTuple):
    """A choice of clients for rounds, bound to a problem and settings.

        three_in_turn = Selector(lambda key, now: Asked((3 * now.round.number + jnp.arange(3)) % 8))
        assert three_in_turn.draw is None  # it needs no random numbers

    Attributes:
      select: From the round's key and the round to whom the server asks, and what it remembers of
        that.
      first: From the settings and the clients drawn to what the choice remembers at first.
      learn: From a key of the round and what the round has shown to what it remembers then.
      draw: From a key of the round, another one than that of `select`, and the round's number to
        random numbers for `select`, which finds them as `drawn`. An accelerator draws those of many
        rounds at once.
      opens: From the lane's key and the first round to the same with what happened before it.
    """

    select: Callable[[Key, Choosing], Asked]
    first: Callable[[Settings, Drawn], object] = lambda hyper, drawn: ()
    learn: Callable[[Key, Shown], object] = lambda key, shown: shown.memory
    draw: Callable[[Key, Array], object] | None = None
    opens: Callable[[Key, Round], Round] = lambda key, begun: begun


class Selection(NamedTuple):
    """A way to choose clients, for any system of rounds.

        def largest(problem, hyper):  # always those of most examples
            order = jnp.argsort(-problem.counts)
            return Selector(lambda key, now: Asked(order[: hyper.num_selected]))

        system = Selection(largest).on(fedavg.system, name="fedavg_of_largest")

    Attributes:
      bind: From a problem and settings to the selector.
      num_used: From the settings to the reports that a round uses, S.
      is_full: From the settings to whether every slot is filled at every tick, see `Sizes`.
      has_steps: Whether it says how many local steps clients do, at most `local_steps`.
      sees: From an algorithm to one whose steps show `learn` what it reads, such as
        `clients.seeing_losses`; None if it reads nothing of that.
    """

    bind: Callable[[types.Problem, Settings], Selector]
    num_used: Callable[[Settings], int] = lambda hyper: hyper.num_selected
    is_full: Callable[[Settings], bool] = lambda hyper: False
    has_steps: bool = False
    sees: Callable[[Callable[..., types.Algorithm]], Callable[..., types.Algorithm]] | None = None

    def on(self, system: types.System, **changes: Any) -> types.System:
        """Return a system of rounds that chooses its clients so.

        Args:
          system: The system.
          **changes: As of `with_clock`, such as `name`, and a `Hyper` that inherits `LiveCohorts`
            and settings of the choice, and then those of the system.
        """

        def clock(problem: types.Problem, hyper: Settings) -> Clock:
            num_used, selector = self.num_used(hyper), self.bind(problem, hyper)
            most = hyper.local_steps if self.has_steps else None
            return live_rounds(hyper, selector, num_used=num_used, most_steps=most)

        def sizes(hyper: Settings) -> types.Sizes:
            sizes = types.Sizes(self.num_used(hyper), hyper.local_steps)
            return sizes._replace(is_full=self.is_full(hyper), is_even=not self.has_steps)

        algorithm = system.algorithm if self.sees is None else self.sees(system.algorithm)
        return with_clock(system, types.Live(sizes, clock), **{"algorithm": algorithm, **changes})


def _checked_clients(asked: object) -> Array:
    """Check the result of a choice, and return the clients, `i32[A]`."""
    if not isinstance(asked, Asked):
        raise ConfigError("what select returns", type(asked).__name__, "an Asked")
    clients = jnp.asarray(asked.clients)
    if clients.ndim != 1 or not clients.size or not jnp.issubdtype(clients.dtype, jnp.integer):
        allowed = "whole numbers of shape (A,), at least one; EMPTY in places that are not used"
        raise ConfigError("clients that select asks", f"{clients.dtype}{clients.shape}", allowed)
    return clients.astype("int32")


@checked
def live_rounds(
    hyper: Settings, selector: Selector, *, num_used: Count, most_steps: Count | None = None
) -> Clock:
    """Make a clock of rounds with a choice of clients at the beginning of each.

        hyper = LiveCohorts(num_clients=8, num_selected=3)

        def select(key, now):  # three clients in turn
            return Asked((3 * now.round.number + jnp.arange(3)) % 8)

        clock = live_rounds(hyper, Selector(select), num_used=3)
        _, received = clock.next(key, clock.init(key), None)
        assert received.clients.tolist() == [0, 1, 2]

    Args:
      hyper: Settings of a clock in rounds, such as `CohortRounds`.
      selector: The choice.
      num_used: Reports S that are used in a round. Where `select` asks more clients, the round
        ends with the first S reports.
      most_steps: The most local steps that `select` asks for, if it says how many; `local_steps` if
        None. If it asks for more the lane ends.

    Returns:
      The clock. A round lasts until the reports that it uses are in, or nobody is left to wait for,
      or until its deadline, plus `clock.server_interact`. If nobody is asked it lasts until its
      deadline, and without one until somebody is available, or the lane ends if somebody is.
    """

    most = hyper.local_steps if most_steps is None else most_steps
    by_examples = getattr(getattr(hyper, "cohort", None), "weighting", "equal") == "examples"

    def ahead(key: Key, number: Array) -> tuple[object, types.Leaf]:
        own = None if selector.draw is None else selector.draw(key, number)
        if hyper.delays.trace is not None:
            return own, None
        num_asked = hyper.clock.num_asked or hyper.num_selected
        return own, synchronous.draw_standard_times(key, number, num_asked, hyper, most_steps)

    def init(key: Key) -> Round:
        drawn = draw_devices(key, hyper).drawn
        nothing = jnp.zeros(num_used, drawn.speeds.rate.dtype)
        turns = None if hyper.delays.trace is None else jnp.zeros(hyper.num_clients, "int32")
        start, memory = Instant.at(0.0), selector.first(hyper, drawn)
        return selector.opens(key, Round(start, jnp.int32(0), memory, nothing, drawn, turns))

    def next_round(
        key: Key, carried: Round, state: object, drawn: tuple[object, types.Leaf] | None = None
    ) -> tuple[Round, Received]:
        devices = draw_devices(key, hyper, carried.drawn)
        own_draws, standard = ahead(key, carried.number) if drawn is None else drawn
        asked = selector.select(key, Choosing(carried, devices, state, own_draws, carried.memory))
        clients = _checked_clients(asked)
        is_asked, number = clients != EMPTY, carried.number
        own = jnp.int32(hyper.local_steps) if asked.steps is None else asked.steps
        steps = jnp.broadcast_to(jnp.asarray(own, "int32"), clients.shape)
        if asked.steps is not None:
            # Of more no times are drawn: a number that no lane allows.
            steps = jnp.where(steps > most, EMPTY, steps)
        who = jnp.maximum(clients, 0)
        turns = carried.turns
        if turns is not None:
            work = devices.running_time(who, turns[who])
            turns = turns.at[who].add(is_asked.astype("int32"))
        else:
            is_even = asked.steps is None
            if len(who) > len(standard) or is_even != (most_steps is None):
                own_most = None if is_even else most
                standard = synchronous.draw_standard_times(key, number, len(who), hyper, own_most)
            speeds = Speeds(*(leaf[who] for leaf in devices.speeds))
            given = None if is_even else steps
            work = synchronous.work_times(standard[: len(who)], speeds, hyper, given)
        begins = carried.now.later(jnp.asarray(asked.takes, work.dtype))
        _, taken = devices.times_of_work(who, begins, work)
        lost = devices.are_lost(who, number) & is_asked
        limit = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, jnp.inf)
        limit = jnp.asarray(limit if asked.deadline is None else asked.deadline, taken.dtype)
        share = asked.share
        if share is None and by_examples and hyper.examples is not None:
            share = jnp.asarray(hyper.examples, float)[who]
        slots, arrival, is_in, waits = synchronous.end_round(
            (clients, share, steps), taken, is_asked, lost, num_used=num_used, limit=limit
        )
        clients, share, steps = slots
        received = Received(
            time=begins.later(waits).later(jnp.asarray(hyper.clock.server_interact, waits.dtype)),
            clients=jnp.where(is_in, clients, EMPTY),
            steps=jnp.where(is_in, steps, 0),
            version=jnp.broadcast_to(number, clients.shape),
            weight=_weights(is_in, share, taken.dtype),
            executed=asked.executed,
            needed=asked.needed,
            begins=carried.now,
        )
        # A round in which nobody could be asked ends with its deadline, or when somebody is there.
        away = devices.time_away(jnp.arange(hyper.num_clients), carried.now).min()
        returns = carried.now.later(away).or_later(begins)
        nobody = returns.where((away > 0) & jnp.isposinf(limit), begins.later(limit))
        time = received.time.where(is_asked.any(), nobody)
        if asked.deadline is not None:
            goes_on = (limit == 0) & (is_in.any() | carried.now.is_before(time))
            time = time.where((limit > 0) | goes_on, Instant.at(np.nan))
        taken = jnp.where(is_in, arrival, 0)
        memory = carried.memory if asked.memory is None else asked.memory
        after = Round(time, number + 1, memory, taken, carried.drawn, turns)
        return after, received._replace(time=time)

    def after(key: Key, carried: Round, event: Event, state: object, seen: object) -> Round:
        shown = Shown(carried, event, carried.taken, state, seen, carried.memory)
        return carried._replace(memory=selector.learn(key, shown))

    return Clock(init, next_round, after, ahead=ahead)


def _weights(is_in: Array, share: Array | None, kind: np.dtype) -> Array:
    """Weigh the reports `bool[S]` that are in by their shares `f[S]`, or equally: `f[S]`."""
    if share is None:
        return jnp.where(is_in, 1 / jnp.maximum(is_in.sum(), 1).astype(kind), 0)
    share = jnp.where(is_in, share, 0)
    return share / jnp.maximum(share.sum(), jnp.finfo(share.dtype).tiny)
