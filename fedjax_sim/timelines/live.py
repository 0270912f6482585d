"""Live clocks: participants, numbers of steps and times may follow from learning.

A clock makes what the server receives next from its own state and that of learning (`Received`),
and notes what the tick has shown; `core.clocks` has the contract.

- `with_clock` gives any system a live clock, such as that of a planned schedule, taken through the
  same steps (`replayed`), or one that ends a lane once it has learnt enough (`until`).
- `live_rounds` is the clock of synchronous rounds whose clients are chosen as they begin, for any
  system of rounds (`Selection`). How long work takes, what is lost, and when a round ends are the
  rules of planned rounds (`timelines.rounds`), with the same streams of random numbers: a live
  clock that asks whom the planned one would have asked makes the same schedule.
- `live_tasks` is the clock of a number of tasks in flight, of which the server waits for some. Who
  takes the place of a client that has finished is decided at that moment, by what is known then.
  How long work takes, what is lost, and from which model work starts are the rules of the planned
  clock with `restart="replaced"` (`timelines.arrivals`), with the same streams of random numbers.

Arrivals of tasks are found one after another, each among M tasks, so a tick costs S M comparisons,
and on an accelerator S trains of launches.

Dimension letters: those of `fedjax_sim.core.types`, and `N` clients, `A` clients asked in a round,
`M` tasks in flight, `S` slots of a tick, that is reports that the server uses.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedjax_sim.core import settings, streams, targets, types
from fedjax_sim.core.clocks import Clock, Instant, Live, Received, Sizes
from fedjax_sim.core.settings import ConfigError, Count, checked, fields, struct
from fedjax_sim.core.types import EMPTY, Array, Event, InfoT, Key, Settings, StateT, Timeline
from fedjax_sim.timelines import checks, presets, rounds
from fedjax_sim.timelines.arrivals import clocks
from fedjax_sim.timelines.delays.devices import Devices, Drawn, draw_devices
from fedjax_sim.timelines.delays.laws import Speeds

DrawsT = TypeVar("DrawsT")
MemoryT = TypeVar("MemoryT")
RoundT = TypeVar("RoundT")


def with_clock(system: types.System, live: Live, **changes: Any) -> types.System:
    """Return a system with a live clock: the same algorithm, on times that may follow from it.

        def clock(problem, hyper):
            uniform = Selector(lambda key, now: Asked(now.drawn), draw=uniform_cohort(hyper))
            return live_rounds(hyper, uniform, num_used=hyper.num_selected)

        live = Live(lambda hyper: Sizes(hyper.num_selected, hyper.local_steps), clock)
        system = with_clock(fedavg.system, live, name="live_fedavg")

    Args:
      system: Any system, whose own clock is left out.
      live: The clock, and what it never exceeds.
      **changes: Other fields of the system, such as `name`, `Hyper`, `algorithm` and `summary`.
        With a `Hyper`, `paper` is FAVANO's comparison unless it is given.

    Returns:
      The system. Its timeline says how many slots ticks have and nothing else. Settings with
      `local_epochs` or whole passes are refused when it is drawn.
    """
    paper = presets.preset(changes["Hyper"], presets.FAVANO) if "Hyper" in changes else None
    changed = system._replace(**{"live": live, "weigh": None, "paper": paper, **changes})
    return changed._replace(timeline=partial(_frames, changed))


def _frames(system: types.System, key: Key, hyper: Settings, num_ticks: int) -> Timeline:
    """Make the timeline of a live system: filled slots of most steps, and no time."""
    work_of = getattr(hyper, "work_of", None)
    if work_of is not None and work_of(jnp.zeros((1, 1), int)) is not None:
        allowed = (
            "local_steps long on a live clock, which has no other times: without local_epochs, and "
            "not in em and vr_fedem"
        )
        raise ConfigError("an update", f"whole passes in {system.name}", allowed)
    senders = system.messages.num_senders(hyper)
    found, num = cast(Live, system.live).sizes(hyper), senders or hyper.num_clients
    if found.slots > num and not system.can_repeat:
        most = f"num_clients = {num}" if senders is None else f"the number of senders, {num}"
        allowed = f"at most {most}, as no client can have two"
        raise ConfigError("slots of a live clock", found.slots, allowed)
    shape = num_ticks, found.slots
    tick = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    clients = jnp.broadcast_to(jnp.arange(found.slots) % num, shape)
    steps = jnp.full(shape, found.most_steps, "int32")
    weight = jnp.full(shape, 1 / found.slots)
    return Timeline(jnp.zeros(num_ticks), clients, steps, tick, weight, holds=tick)


def replayed(system: types.System, timeline: Timeline) -> types.System:
    """Return a live system with the receptions of a schedule, such as one of an earlier run.

        live = replayed(fedavg.system, run.timelines[0])

    Args:
      system: A system.
      timeline: The schedule, on the host. After its end nobody reports.

    Returns:
      The system. Its models have the bits of those of the planned system on that schedule, if both
      are compiled alike.

    Raises:
      ConfigError: If the schedule names what does not exist, such as 1.9 steps.
    """
    found = checks.check_own(system, timeline)
    is_filled = found.clients != EMPTY
    steps = np.where(is_filled, found.steps, 0)
    num_ticks, slots = found.clients.shape
    # When each version is read for the last time: who works from it is in use until then.
    tick = np.arange(num_ticks, dtype=np.int32)
    version = np.where(is_filled, found.version, tick[:, None])
    in_use = _versions_in_use(version)
    most = int(steps.max(initial=0))
    sizes = Sizes(slots, most, in_use.shape[1], bool((is_filled & (steps == most)).all()))

    def clock(problem: object, hyper: object) -> Clock[Array]:
        time = Instant.at(np.append(found.time, np.inf))
        of_slots = found.clients, steps, version, found.weight

        def next_tick(key: Key, tick: Array, state: object) -> tuple[Array, Received]:
            at = jnp.minimum(tick, num_ticks - 1)
            who, own, start, weight = (jnp.asarray(leaf)[at] for leaf in of_slots)
            acts = time.take(jnp.minimum(tick, num_ticks))
            return tick + 1, Received(acts, who, own, start, weight)

        def used(tick: Array) -> Array:
            return jnp.asarray(in_use)[jnp.minimum(tick - 1, num_ticks - 1)]

        return Clock(lambda key: jnp.int32(0), next_tick, in_use=used if in_use.shape[1] else None)

    return with_clock(system, Live(lambda hyper: sizes, clock))


def _versions_in_use(version: np.ndarray) -> np.ndarray:
    """List the versions that are made before each tick and read after it: `i32[T, M]`."""
    num_ticks = len(version)
    last = np.arange(num_ticks + 1)
    np.maximum.at(last, version, np.arange(num_ticks)[:, None])
    # A version is listed at the ticks from the first after it was made to the last but one read.
    length = last - np.arange(num_ticks + 1)
    listed = np.repeat(np.arange(num_ticks + 1), length)
    tick = listed + np.arange(len(listed)) - np.repeat(np.cumsum(length) - length, length)
    order, sizes = np.argsort(tick, kind="stable"), np.bincount(tick, minlength=num_ticks)
    place = np.arange(len(listed)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.full((num_ticks, sizes.max(initial=0)), EMPTY, np.int32)
    found[tick[order], place] = listed[order]
    return found


@struct
class LiveCohorts(rounds.CohortRounds):
    """Settings of live rounds; who is asked is the system's business.

    They are inherited by the settings of Power-of-Choice, for example. A system of rounds whose
    clients are chosen otherwise inherits these first, and then the settings that it has.

        hyper = LiveCohorts(num_clients=8, num_selected=3, num_asked=5)
        assert hyper.num_asked == 5 and hyper.misses_nobody
    """

    local_epochs: float = settings.fixed(0.0)
    cohort: rounds.Cohort = settings.group(
        rounds.Cohort(), "what the reports weigh", without=("selection", "with_replacement")
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
      taken: `f[S]`, how long after the clients of the last round were asked each report was in.
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


class Choosing(NamedTuple, Generic[MemoryT, StateT, DrawsT]):
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
    state: StateT
    drawn: DrawsT
    memory: MemoryT

    def available(self) -> Array:
        """Mark the clients that are available now: `bool[N]`."""
        everyone = jnp.arange(self.devices.hyper.num_clients)
        return self.devices.are_available(everyone, self.round.now)


class Shown(NamedTuple, Generic[RoundT, MemoryT, StateT, InfoT]):
    """The results of a round, as they are passed to `learn`.

        def learn(key, shown):  # how long the last work of each client took
            return shown.memory.at[shown.event.clients].set(shown.taken)

    Attributes:
      round: The round, which has ended; `round.now` is when.
      event: Who reported, with how many steps.
      taken: `f[S]`, how long after its clients were asked each report was in.
      state: The algorithm's state after the round.
      seen: What its step has seen, see `Work`.
      memory: Memory of the choice from before.
    """

    round: RoundT
    event: Event
    taken: Array
    state: StateT
    seen: InfoT
    memory: MemoryT


@checked
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


def choice_key(key: Key, number: Array) -> Key:
    """Key of the draws with which the clients of a round are chosen."""
    return jax.random.fold_in(streams.lane_stream(key, "choice"), number)


def mean_loss(shown: Shown) -> Array:
    """Mean loss of those who report: `f[]`, 0 without a report."""
    is_there = shown.event.clients != EMPTY
    return jnp.where(is_there, shown.seen.mean, 0).sum() / jnp.maximum(is_there.sum(), 1)


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

        def sizes(hyper: Settings) -> Sizes:
            sizes = Sizes(self.num_used(hyper), hyper.local_steps)
            return sizes._replace(is_full=self.is_full(hyper), is_even=not self.has_steps)

        algorithm = system.algorithm if self.sees is None else self.sees(system.algorithm)
        return with_clock(system, Live(sizes, clock), **{"algorithm": algorithm, **changes})


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
      or until its deadline, plus `clock.server_interact`. A lost report is waited for until the
      deadline or, without one, until it should have come. If nobody is asked a round lasts until
      its deadline, and without one until somebody is available, or the lane ends if somebody is.

    Raises:
      ConfigError: If settings say how else clients are drawn.
    """

    only = {"cohort.selection": "uniform", "cohort.with_replacement": False}
    settings.check_left(hyper, only, "on a live clock, whose selector chooses clients")
    most = hyper.local_steps if most_steps is None else most_steps
    by_examples = getattr(getattr(hyper, "cohort", None), "weighting", "equal") == "examples"

    def ahead(key: Key, number: Array) -> tuple[object, types.Leaf]:
        own = None if selector.draw is None else selector.draw(key, number)
        if hyper.delays.trace is not None:
            return own, None
        num_asked = hyper.clock.num_asked or hyper.num_selected
        return own, rounds.draw_standard_times(key, number, num_asked, hyper, most_steps)

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
                standard = rounds.draw_standard_times(key, number, len(who), hyper, own_most)
            speeds = Speeds(*(leaf[who] for leaf in devices.speeds))
            given = None if is_even else steps
            work = rounds.work_times(standard[: len(who)], speeds, hyper, given)
        begins = carried.now.later(jnp.asarray(asked.takes, work.dtype))
        _, taken = devices.times_of_work(who, begins, work)
        lost = devices.are_lost(who, number) & is_asked
        limit = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, jnp.inf)
        limit = jnp.asarray(limit if asked.deadline is None else asked.deadline, taken.dtype)
        share = asked.share
        if share is None and by_examples and hyper.examples is not None:
            share = jnp.asarray(hyper.examples, float)[who]
        slots, arrival, is_in, waits = rounds.end_round(
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


class Flights(NamedTuple):
    """Work in flight, in M places. A place without work ends at an infinite time.

    Attributes:
      client: `i32[M]`, who works; `EMPTY` for nobody.
      number: `i32[M]`, how often that client was given work before.
      steps: `i32[M]`, local steps.
      version: `i32[M]`, server version from which the work started.
      begins: When the client received its model, instants `[M]`. Later than now for one that is not
        available yet: it will start from the version of that time.
      ends: When the work is in, instants `[M]`.
      tie_breaker: `f[M]`, of work that ends at the same time the smallest one comes first.
    """

    client: Array
    number: Array
    steps: Array
    version: Array
    begins: Instant
    ends: Instant
    tie_breaker: Array

    @classmethod
    def none(cls, places: Count, like: Array) -> "Flights":
        """Make places without work.

        Args:
          places: Their number, M.
          like: An array of the type of times.

        Returns:
          The places.
        """
        empty, zeros = jnp.full(places, EMPTY, "int32"), jnp.zeros(places, like.dtype)
        never = Instant(jnp.full(places, jnp.inf, like.dtype), zeros)
        return cls(empty, empty * 0, empty * 0, empty, never, never, zeros)

    def first(self) -> Array:
        """Find the place of the work that ends first: `i32[]`."""
        least = self.ends.value.min()
        is_first = self.ends.value == least
        for key in (self.ends.rest, self.tie_breaker):
            least = jnp.where(is_first, key, jnp.inf).min()
            is_first &= key == least
        return is_first.argmax().astype("int32")

    def take(self, place: Array) -> "Flights":
        """Look up the work in some places.

        Args:
          place: `i32[...]`.
        """
        return jax.tree.map(lambda leaf: leaf[place], self)

    def versions(self) -> Array:
        """Return the versions from which somebody works, `i32[M]`, negative in empty places."""
        return jnp.where(self.client == EMPTY, EMPTY, self.version)

    def after_action(self, acts: Instant, tick: Array) -> "Flights":
        """Let work that begins when the server has acted start from the model made then.

        Args:
          acts: When it acted.
          tick: `i32[]`, the number of the action.

        Returns:
          The work.
        """
        is_later = ~self.begins.is_before(acts) & (self.client != EMPTY)
        return self._replace(version=jnp.where(is_later, tick + 1, self.version))


def check_steps_take_time(hyper: Settings) -> None:
    """Check that the time of work depends on the number of local steps.

    Raises:
      ConfigError: If it does not.
    """
    if hyper.delays.trace is not None:
        allowed = "None: how long fewer local steps take is not recorded"
        raise ConfigError("delays.trace", "a recorded trace", allowed)
    if hyper.delays.time_of != "step":
        allowed = '"step", because work of fewer local steps must be shorter'
        raise ConfigError("delays.time_of", hyper.delays.time_of, allowed)


def begin_work(
    devices: Devices,
    client: Array,
    number: Array,
    now: Instant,
    version: Array,
    steps: Array | None = None,
) -> Flights:
    """Give clients work, and draw when it begins and ends.

    Args:
      client: `i32[...]`.
      number: How often each was given work before, `i32[...]`.
      now: When, instants that broadcast.
      version: Server version of now, `i32[...]`.
      steps: Local steps, `i32[...]`, to whose number time is in proportion; None for `local_steps`.

    Returns:
      The work, leaves `[...]`.
    """
    hyper, tie_breaker = devices.hyper, client
    running = devices.running_time(client, number)
    if steps is not None:
        running = running * (steps / jnp.asarray(hyper.local_steps, running.dtype))
    wait, taken = devices.times_of_work(client, now, running)
    now = Instant(*(jnp.broadcast_to(leaf, taken.shape) for leaf in now))
    if getattr(getattr(hyper, "clock", None), "ties", "client") == "random":
        tie_breaker = clocks.tie_breakers(devices.key)(client, number)
    steps = jnp.full(taken.shape, hyper.local_steps if steps is None else steps, "int32")
    version, order = jnp.broadcast_to(version, taken.shape), tie_breaker.astype(taken.dtype)
    return Flights(client, number, steps, version, now.later(wait), now.later(taken), order)


class Tasks(NamedTuple, Generic[MemoryT]):
    """State of live tasks; selectors read it.

    Attributes:
      now: When the server acted last, or when the client that is to be replaced finished.
      number: `i32[]`, server actions so far.
      event: `i32[]`, arrivals so far, lost ones included.
      order: `i32[N]`, clients: those at work, by place, and then the idle ones.
      place: `i32[N]`, where each client stands in that order.
      turns: `i32[N]`, how often each client was given work before.
      flights: The work.
      memory: What the choice remembers.
      taken: `f[S]`, how long the work took that the server received last.
      drawn: The clients' speeds and hours.
    """

    now: Instant
    number: Array
    event: Array
    order: Array
    place: Array
    turns: Array
    flights: Flights
    memory: MemoryT
    taken: Array
    drawn: Drawn


class Replacing(NamedTuple, Generic[MemoryT, StateT]):
    """A client has finished and is to be replaced, as it is passed to `choose`.

    Attributes:
      tasks: The tasks; `now` is when.
      own: `i32[]`, the client that has finished, which may be chosen again.
      work: What it has finished.
      devices: The clients.
      state: The algorithm's state.
      memory: Memory of the choice.
    """

    tasks: Tasks[MemoryT]
    own: Array
    work: Flights
    devices: Devices
    state: StateT
    memory: MemoryT

    def idle(self) -> Array:
        """Tell who may be chosen: available clients that are not at work, `bool[N]`."""
        everyone = jnp.arange(len(self.tasks.place))
        is_idle = self.tasks.place >= len(self.tasks.flights.client)
        is_idle |= everyone == self.own
        is_here = self.devices.are_available(everyone, self.tasks.now)
        # If nobody is available, whoever is chosen begins as soon as it is.
        return is_idle & (is_here | ~(is_idle & is_here).any())


def uniformly(key: Key, replacing: Replacing) -> Array:
    """Choose uniformly among idle clients and the one that has finished: FedBuff's rule.

        hyper = Arrivals(num_clients=8, buffer_size=2)
        clock = live_tasks(hyper, num_tasks=4, num_used=2, choose=uniformly)  # the default

    Args:
      key: The lane's clock key.
      replacing: Who has finished.

    Returns:
      `i32[]`. If some draws find nobody available, the last one drawn begins as soon as it is.
    """
    tasks = replacing.tasks
    num, at_work = len(tasks.place), len(tasks.flights.client)
    if num == at_work:
        return replacing.own

    def draw(number: Array) -> Array:
        drawn = clocks.draw_idle(key, tasks.event, number, num - at_work)
        return jnp.where(drawn == 0, replacing.own, tasks.order[at_work - 1 + drawn])

    if replacing.devices.windows is None:
        return draw(jnp.int32(0))
    return clocks.draw_until(draw, lambda who: replacing.devices.are_available(who, tasks.now))


def _equally(hyper: object, clients: Array, staleness: Array) -> Array:
    return jnp.full(clients.shape, 1 / len(clients))


@checked
def live_tasks(
    hyper: Settings,
    *,
    num_tasks: Count,
    num_used: Count,
    choose: Callable[[Key, Replacing], Array] = uniformly,
    weigh: Callable[[Settings, Array, Array], Array] = _equally,
    first: Callable[[Settings, Drawn], object] = lambda hyper, drawn: (),
    learn: Callable[[Key, Shown], object] = lambda key, shown: shown.memory,
    order: Callable[[Key, int], Array] = clocks.first_order,
    note: Callable[[Replacing], object] = lambda replacing: replacing.memory,
    due: Callable[[Instant, Tasks], Instant] | None = None,
) -> Clock:
    """Make a clock with a number of tasks in flight, of which the server waits for some.

        def again(key, replacing):  # who has finished begins anew
            return replacing.own

        hyper = Arrivals(num_clients=8, buffer_size=2)
        clock = live_tasks(hyper, num_tasks=8, num_used=2, choose=again)
        _, received = clock.next(key, clock.init(key), None)
        assert received.weight.tolist() == [1 / 2, 1 / 2] and (received.version == 0).all()

    Args:
      hyper: Settings of the clients and their delays, such as `Arrivals`.
      num_tasks: Clients at work at one time, M, at most N.
      num_used: Updates whose arrival makes the server act, S. It may act with fewer if `due` says.
      choose: From a key, which is new each time, and who has finished to the idle client that
        takes its place. If that client is at work, the lane ends.
      weigh: From the settings, clients `i32[S]` and staleness `i32[S]` to weights, `f[S]`. By
        default all are 1 / S, whatever a setting `staleness` says.
      first: As of a `Selector`.
      learn: As of a `Selector`; the `round` of what a tick has shown are the tasks.

      order: From the lane's key and N to the order in which clients get the first tasks, `i32[N]`.
      note: From who has finished to what the choice remembers then.
      due: From when the server acted last, and the tasks, to when it acts if nobody else arrives,
        as soon as something has; None to wait for S updates.

    Returns:
      The clock. Its sizes have `versions=num_tasks`.

    Raises:
      ConfigError: If a recorded trace lacks rows of some client.
    """
    rounds.check_clients(hyper, are_distinct=False)
    num_clients = hyper.num_clients

    def init(key: Key) -> Tasks:
        devices = draw_devices(key, hyper)
        drawn = devices.drawn
        clients, everyone = order(key, num_clients), jnp.arange(num_clients, dtype="int32")
        place = jnp.zeros_like(everyone).at[clients].set(everyone)
        turns = (place < num_tasks).astype("int32")
        who, none = clients[:num_tasks], jnp.zeros(num_tasks, "int32")
        flights = begin_work(devices, who, none, Instant.at(0.0), none)
        nothing, memory = jnp.zeros(num_used, drawn.speeds.rate.dtype), first(hyper, drawn)
        start, zero = Instant.at(0.0), jnp.int32(0)
        return Tasks(start, zero, zero, clients, place, turns, flights, memory, nothing, drawn)

    def next_tick(key: Key, carried: Tasks, state: object) -> tuple[Tasks, Received]:
        devices = draw_devices(key, hyper, carried.drawn)
        slots = Flights.none(num_used, carried.taken)

        def land(given: tuple[Tasks, Flights, Array, Array]) -> tuple[Tasks, Flights, Array, Array]:
            tasks, slots, filled, is_right = given
            place = tasks.flights.first()
            done = tasks.flights.take(place)
            tasks = tasks._replace(now=done.ends)
            lost = devices.are_lost(done.client, done.number)
            own_key = streams.tick_key(key, tasks.event, "choose")
            replacing = Replacing(tasks, done.client, done, devices, state, tasks.memory)
            tasks = tasks._replace(memory=note(replacing))
            replacing = replacing._replace(tasks=tasks, memory=tasks.memory)
            other = choose(own_key, replacing).astype("int32")
            is_client = (other >= 0) & (other < num_clients)
            is_idle = (tasks.place[other] >= num_tasks) | (other == done.client)
            number = tasks.turns[other]
            new = begin_work(devices, other, number, done.ends, tasks.number)
            new = _after(new, done)
            at = tasks.place[other]
            tasks = tasks._replace(
                event=tasks.event + 1,
                order=targets.put(targets.put(tasks.order, at, done.client), place, other),
                place=targets.put(targets.put(tasks.place, done.client, at), other, place),
                turns=targets.put(tasks.turns, other, number + 1),
                flights=targets.put(tasks.flights, place, new),
            )
            slots = targets.put(slots, jnp.where(lost, num_used, filled), done)
            return tasks, slots, filled + ~lost, is_right & is_client & is_idle

        def waits(given: tuple[Tasks, Flights, Array, Array]) -> Array:
            tasks, _, filled, _ = given
            if due is None:
                return filled < num_used
            arrives = tasks.flights.take(tasks.flights.first()).ends
            is_due = (filled > 0) & due(carried.now, tasks).is_before(arrives)
            return ~is_due & (filled < num_used) & arrives.is_finite

        given = carried, slots, jnp.int32(0), jnp.bool_(True)
        if devices.loss is None and due is None:
            tasks, slots, _, is_right = targets.repeat(num_used, land, given)
        else:
            tasks, slots, filled, is_right = targets.repeat_while(waits, land, given)
            if due is not None:
                acts = due(carried.now, tasks).where(filled > 0, Instant.at(jnp.full((), jnp.inf)))
                tasks = tasks._replace(now=tasks.now.where(filled == num_used, acts))
        flights = tasks.flights.after_action(tasks.now, carried.number)
        taken = slots.ends.since(slots.begins)
        tasks = tasks._replace(number=carried.number + 1, flights=flights, taken=taken)
        weight = weigh(hyper, slots.client, carried.number - slots.version)
        # Whoever has two tasks, or does not exist, becomes a client that no lane allows.
        clients = jnp.where(is_right, slots.client, num_clients)
        return tasks, Received(tasks.now, clients, slots.steps, slots.version, weight)

    def after(key: Key, carried: Tasks, event: Event, state: object, seen: object) -> Tasks:
        shown = Shown(carried, event, carried.taken, state, seen, carried.memory)
        return carried._replace(memory=learn(key, shown))

    return Clock(init, next_tick, after, lambda tasks: tasks.flights.versions())


def _after(new: Flights, done: Flights) -> Flights:
    """Let work that takes no time come after that of the same time which has arrived.

    Args:
      new: The new work, leaves `[...]`.
      done: The work that it follows, leaves `[...]`.
    """
    is_same = (new.ends.value == done.ends.value) & (new.ends.rest == done.ends.rest)
    later = jnp.where(is_same, jnp.maximum(new.tie_breaker, done.tie_breaker), new.tie_breaker)
    return new._replace(tie_breaker=later)
