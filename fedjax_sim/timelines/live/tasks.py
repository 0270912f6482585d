"""Live tasks: a number of them in flight, and the server acts when some have arrived.

Who takes the place of a client that has finished is decided at that moment, by what is known then.
How long work takes, what is lost, and from which model work starts are the rules of the planned
clock with `restart="replaced"` (`timelines.arrivals`), with the same streams of random numbers.

Arrivals are found one after another, each among M tasks, so a tick costs S M comparisons. On an
accelerator, where each arrival would be a train of launches, they are found together if clients are
replaced uniformly, none is away, which may take several draws, and no work is lost, so that S
arrivals are S events (`_land_together`).

Dimension letters: `N` clients, `M` tasks in flight, `S` slots of a tick.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import types
from fedjax_sim.core.settings import Count, checked
from fedjax_sim.core.streams import lane_stream, tick_key
from fedjax_sim.core.targets import is_for_cpu, pick, put, repeat, repeat_while
from fedjax_sim.core.types import EMPTY, Array, Clock, Event, Instant, Key, Received, Settings
from fedjax_sim.timelines.arrivals.tasks import draw_until, tie_breakers
from fedjax_sim.timelines.delays.devices import Devices, Drawn, draw_devices, loss_shares
from fedjax_sim.timelines.live.rounds import MemoryT, Shown


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


def begin_work(
    devices: Devices,
    client: Array,
    number: Array,
    now: Instant,
    version: Array,
) -> Flights:
    """Give clients work, and draw when it begins and ends.

    Args:
      client: `i32[...]`.
      number: How often each was given work before, `i32[...]`.
      now: When, instants that broadcast.
      version: Server version of now, `i32[...]`.

    Returns:
      The work, leaves `[...]`.
    """
    hyper, tie_breaker = devices.hyper, client
    wait, taken = devices.follow(client, number, now)
    now = Instant(*(jnp.broadcast_to(leaf, taken.shape) for leaf in now))
    if getattr(getattr(hyper, "clock", None), "ties", "client") == "random":
        tie_breaker = tie_breakers(devices.key)(client, number)
    steps = jnp.full(taken.shape, hyper.local_steps, "int32")
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


class Replacing(NamedTuple, Generic[MemoryT, types.StateT]):
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
    state: types.StateT
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
        drawn = _draw_idle(key, tasks.event, number, num - at_work)
        return jnp.where(drawn == 0, replacing.own, tasks.order[at_work - 1 + drawn])

    if replacing.devices.windows is None:
        return draw(jnp.int32(0))
    return draw_until(draw, lambda client: replacing.devices.are_available(client, tasks.now))


def _draw_idle(key: Key, event: Array, number: Array, num_idle: int) -> Array:
    """Draw one of the idle clients and the one that has finished, which is 0: `i32[]`."""
    event_key = jax.random.fold_in(lane_stream(key, "replacements"), event)
    return jax.random.randint(jax.random.fold_in(event_key, number), (), 0, num_idle + 1, "int32")


def _equally(hyper: object, clients: Array, staleness: Array) -> Array:
    return jnp.full(clients.shape, 1 / len(clients))


def _shuffled(key: Key, num_clients: int) -> Array:
    """Draw the order in which clients get the first tasks, as planned clocks do: `i32[N]`."""
    first_key = lane_stream(lane_stream(key, "replacements"), "first tasks")
    return jax.random.permutation(first_key, num_clients).astype("int32")


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
    order: Callable[[Key, int], Array] = _shuffled,
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
      weigh: From the settings, clients `i32[S]` and staleness `i32[S]` to weights, `f[S]`.
      first: As of a `Selector`.
      learn: As of a `Selector`; the `round` of what a tick has shown are the tasks.

      order: From the lane's key and N to the order in which clients get the first tasks, `i32[N]`.
      note: From who has finished to what the choice remembers then.
      due: From when the server acted last, and the tasks, to when it acts if nobody else arrives,
        as soon as something has; None to wait for S updates.

    Returns:
      The clock. Its sizes have `versions=num_tasks`.
    """
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

    # Where no work is lost, who is drawn at a tick is known before.
    has_ahead = choose is uniformly and loss_shares(hyper) is None and num_clients > num_tasks

    def ahead(key: Key, number: Array) -> Array:
        draw = jax.vmap(lambda event: _draw_idle(key, event, jnp.int32(0), num_clients - num_tasks))
        return draw(number * num_used + jnp.arange(num_used, dtype="int32"))

    def next_tick(
        key: Key, carried: Tasks, state: object, drawn: Array | None = None
    ) -> tuple[Tasks, Received]:
        devices = draw_devices(key, hyper, carried.drawn)
        slots = Flights.none(num_used, carried.taken)

        def land(given: tuple[Tasks, Flights, Array, Array]) -> tuple[Tasks, Flights, Array, Array]:
            tasks, slots, filled, is_right = given
            place = tasks.flights.first()
            done = tasks.flights.take(place)
            tasks = tasks._replace(now=done.ends)
            lost = devices.are_lost(done.client, done.number)
            own_key = tick_key(key, tasks.event, "choose")
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
                order=put(put(tasks.order, at, done.client), place, other),
                place=put(put(tasks.place, done.client, at), other, place),
                turns=put(tasks.turns, other, number + 1),
                flights=put(tasks.flights, place, new),
            )
            slots = put(slots, jnp.where(lost, num_used, filled), done)
            return tasks, slots, filled + ~lost, is_right & is_client & is_idle

        def waits(given: tuple[Tasks, Flights, Array, Array]) -> Array:
            tasks, _, filled, _ = given
            if due is None:
                return filled < num_used
            arrives = tasks.flights.take(tasks.flights.first()).ends
            is_due = (filled > 0) & due(carried.now, tasks).is_before(arrives)
            return ~is_due & (filled < num_used) & arrives.is_finite

        given, is_right = (carried, slots, jnp.int32(0), jnp.bool_(True)), jnp.bool_(True)
        are_free = devices.loss is None and devices.windows is None
        if choose is uniformly and are_free and not is_for_cpu():
            if drawn is None:
                is_drawn = num_clients > num_tasks
                drawn = ahead(key, carried.number) if is_drawn else jnp.zeros(num_used, "int32")
            tasks, slots = _land_together(carried, devices, drawn)
        elif devices.loss is None and due is None:
            tasks, slots, _, is_right = repeat(num_used, land, given)
        else:
            tasks, slots, filled, is_right = repeat_while(waits, land, given)
            if due is not None:
                never = Instant.at(jnp.full((), jnp.inf))
                acts = due(carried.now, tasks).where(filled > 0, never)
                tasks = tasks._replace(now=tasks.now.where(filled == num_used, acts))
        tasks = tasks._replace(
            number=carried.number + 1,
            flights=tasks.flights.after_action(tasks.now, carried.number),
            taken=slots.ends.since(slots.begins),
        )
        weight = weigh(hyper, slots.client, carried.number - slots.version)
        # Whoever has two tasks, or does not exist, becomes a client that no lane allows.
        clients = jnp.where(is_right, slots.client, num_clients)
        return tasks, Received(tasks.now, clients, slots.steps, slots.version, weight)

    def after(key: Key, carried: Tasks, event: Event, state: object, seen: object) -> Tasks:
        shown = Shown(carried, event, carried.taken, state, seen, carried.memory)
        return carried._replace(memory=learn(key, shown))

    early = ahead if has_ahead else None
    return Clock(init, next_tick, after, lambda tasks: tasks.flights.versions(), early)


def _after(new: Flights, done: Flights) -> Flights:
    """Let work that takes no time come after that of the same time which has arrived.

    Args:
      new: The new work, leaves `[...]`.
      done: The work that it follows, leaves `[...]`.
    """
    is_same = (new.ends.value == done.ends.value) & (new.ends.rest == done.ends.rest)
    later = jnp.where(is_same, jnp.maximum(new.tie_breaker, done.tie_breaker), new.tie_breaker)
    return new._replace(tie_breaker=later)


class _Found(NamedTuple):
    """The arrivals of a tick as far as they are known, leaves `[S, ...]`.

    Attributes:
      known: `i32[]`, how many of them, from the first, are right.
      done: What arrives.
      place: `i32[S]`, where it was in flight.
      other: `i32[S]`, who takes the place.
      new: Its work.
    """

    known: Array
    done: Flights
    place: Array
    other: Array
    new: Flights


def _land_together(tasks: Tasks, devices: Devices, drawn: Array) -> tuple[Tasks, Flights]:
    """Find the next arrivals at once, where clients are replaced `uniformly` and none is away.

    Draws depend on the number of the arrival, and on the client and the number of its work. So if
    the arrivals before one are known, so is the work that follows each of them. First all are taken
    from the work in flight. They are right up to the first one before which new work ends. With
    the work that is known to be new they are found again, which at least one more of them survives,
    until all are right.

    Args:
      tasks: The tasks before.
      devices: The clients, of whom no work is lost and who are always available.
      drawn: Who takes the place of each arrival, as `_draw_idle` says, `i32[S]`.

    Returns:
      The tasks after the last arrival, and what has arrived, leaves `[S]`.
    """
    num, at_work, num_used = len(tasks.place), len(tasks.flights.client), len(drawn)
    slots = np.arange(num_used, dtype="int32")
    is_earlier = slots[:, None] > slots[None]
    idle = jnp.where(drawn == 0, EMPTY, at_work - 1 + drawn)
    in_order = _in_order(tasks.flights, num_used)

    def find(found: _Found) -> _Found:
        front, at_front = jax.tree.map(lambda leaf: leaf[:num_used], in_order)
        # The new work that is known takes its place among that in flight.
        new, place, is_known = found.new, found.place, slots < found.known
        before = _are_before(new, place, front, at_front)
        turn = slots + (before & is_known[None]).sum(axis=1, dtype="int32")
        sooner = _are_before(new, place, new, place)
        sooner = (sooner | is_earlier & ~sooner.T) & is_known[None]
        of_new = (~before).sum(axis=0, dtype="int32") + sooner.sum(axis=1, dtype="int32")
        is_old = turn[None] == slots[:, None]
        is_new = (of_new[None] == slots[:, None]) & is_known[None]
        is_born = is_new.any(axis=1)
        among = pick(is_old, (front, at_front)), pick(is_new, (new, place))
        done, place = jax.tree.map(lambda old, born: jnp.where(is_born, born, old), *among)
        # An idle place holds whoever has left its work there last.
        is_there = is_earlier & (idle[:, None] == idle[None])
        left = jnp.where(is_there, slots[None], EMPTY).max(axis=1)
        who = jnp.where(left == EMPTY, tasks.order[idle], done.client[left])
        other = jnp.where(idle == EMPTY, done.client, who)
        again = (is_earlier & (other[:, None] == other[None])).sum(axis=1, dtype="int32")
        new = begin_work(devices, other, tasks.turns[other] + again, done.ends, tasks.number)
        new = _after(new, done)
        is_missed = _are_before(new, place, done, place) & is_earlier & ~is_known[None]
        known = jnp.where(is_missed, slots[:, None], num_used).min()
        return _Found(known, done, place, other, new)

    none, nobody = Flights.none(num_used, tasks.taken), jnp.full(num_used, EMPTY, "int32")
    found = _Found(jnp.int32(0), none, nobody, nobody, none)
    found = repeat_while(lambda found: found.known < num_used, find, found)
    _, done, place, other, new = found

    def last(keys: Array, num: int) -> Array:
        """Find the last arrival with each of some keys, or -1: `i32[num]`."""
        is_of = keys[None] == jnp.arange(num)[:, None]
        return jnp.where(is_of, slots[None], EMPTY).max(axis=1)

    # Of several arrivals at one place, or with one client, the last one counts.
    in_place, in_idle = last(place, at_work), last(idle, num)
    comes, leaves = last(other, num), last(jnp.where(idle == EMPTY, EMPTY, done.client), num)
    everyone = jnp.arange(num, dtype="int32")
    given = (everyone[:, None] == other[None]).sum(axis=1, dtype="int32")
    order = jnp.where(in_idle == EMPTY, tasks.order, done.client[in_idle])
    at_last = last(place, num)
    order = jnp.where(at_last == EMPTY, order, other[at_last])
    moved = jnp.where(comes >= leaves, place[comes], idle[leaves])
    moved = jnp.where(jnp.maximum(comes, leaves) == EMPTY, tasks.place, moved)
    flights = jax.tree.map(
        lambda old, born: jnp.where(in_place == EMPTY, old, born),
        tasks.flights,
        pick(in_place[:, None] == slots[None], new),
    )
    tasks = tasks._replace(
        now=jax.tree.map(lambda leaf: leaf[-1], done.ends),
        event=tasks.event + num_used,
        order=order,
        place=moved,
        turns=tasks.turns + given,
        flights=flights,
    )
    return tasks, done


def _in_order(flights: Flights, number: int) -> tuple[Flights, Array]:
    """Return the work that ends first, in the order in which `Flights.first` finds it.

    Args:
      flights: Work, leaves `[M]`.
      number: How much of it, S.

    Returns:
      The work, leaves `[S]`, which never ends where there is no more; and its places, `i32[S]`.
    """
    missing = max(number - len(flights.client), 0)
    if missing:
        none = Flights.none(missing, flights.tie_breaker)
        flights = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), flights, none)
    place = jnp.arange(len(flights.client), dtype="int32")
    others, structure = jax.tree.flatten((flights, place))
    keys = *flights.ends, flights.tie_breaker
    found = jax.lax.sort((*keys, *others), num_keys=len(keys), is_stable=True)[len(keys) :]
    return jax.tree.unflatten(structure, found)


def _are_before(work: Flights, place: Array, other: Flights, at: Array) -> Array:
    """Tell which work `[S]` ends before which other: `bool[S, S]`, a row for each other one."""
    is_before, is_same = jnp.bool_(False), jnp.bool_(True)
    keys = (*work.ends, work.tie_breaker, place), (*other.ends, other.tie_breaker, at)
    for one, another in zip(*keys, strict=True):
        is_before |= is_same & (one[None] < another[:, None])
        is_same &= one[None] == another[:, None]
    return is_before
