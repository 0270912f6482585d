"""Clocks of arrivals: the server acts when its buffer of Z updates is full, or at each one.

Buffered arrivals (`Arrivals`): papers differ on when a client that has sent its update starts the
next one, and from which model. The setting `restart` chooses between six readings; `ArrivalClock`
explains them. A server that keeps M clients at work (FedBuff, Nguyen et al. 2022) replaces a client
that has finished by one that is idle.

In Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv 2405.00017) M tasks
wait in the clients' queues, and a finished one goes to a client drawn with given probabilities,
busy or not (`ClientQueues`). Its paper's symbols: C is `num_tasks`, p_i is `routing_shares`, mu_i
is a client's rate. With exponential running times this is a closed Jackson network. Its stationary
law is proportional to the product of (p_i / mu_i)^x_i over numbers of tasks x_i of sum C, and the
mean delay of a task sent to client i, in server steps, is E[X_i] / p_i, with E[X_i] taken in the
network of C - 1 tasks. Over all tasks the mean delay is C - 1, whatever p and mu are.

Tasks are processed one by one, in order of time. The earliest is found in a tree of minima over the
M tasks, so an arrival costs O(log M), whatever the number of clients is; arrays over all clients
are made once, and then changed in place.

Dimension letters: `N` clients, `M` tasks, `A` arrivals asked for, `T` ticks, `S` slots of a tick. A
slot is a place in the buffer, so S = Z.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Checked, ConfigError, checked, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import EMPTY, Array, HyperT, Key, Settings, Timeline
from fedjax_sim.timelines.arrivals.queue import Queue, put_rows, take_rows
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays.devices import Devices, draw_devices, per_update
from fedjax_sim.timelines.delays.laws import Clients, draw_client_rates

TRIES = 64
"""Idle clients that the server asks before it waits for one that is not available."""
RESTARTS = ("after_interaction", "own_finish", "replaced", "free", "before_aggregation", "fresh")
"""Readings of when a client starts its next update; `ArrivalClock` explains them."""
FREE = ("replaced", "free", "before_aggregation")
"""Readings in which the server acts as soon as its buffer is full, and nobody waits for it."""


@struct
class ArrivalClock(Checked):
    """Settings of the time at which clients start and the server acts.

    `restart` says when a client that has finished an update starts the next one:

    - "after_interaction": when the exchange of the tick that took its update is over.
    - "own_finish": when it finishes, or when the exchange before that tick is over, if that is
      later. This is the rule of QuAFL's public simulator.
    - "replaced": when it is drawn again. `concurrency` clients M are at work at any time. As soon
      as one finishes, a client drawn uniformly from those not at work (it may be the same one)
      takes its place, from the newest model of that moment, updates that arrive at the same moment
      included. This is FedBuff as published (Nguyen et al. 2022). Mean staleness is (M - 1) / Z,
      whatever the speeds are, unless updates arrive together: with M = Z and equal speeds it is 0.
    - "free": when it finishes, without waiting, from the model that is then current. All N clients
      are always at work, so mean staleness is about N / Z. If its update filled the buffer, that
      model already contains the update. A client may fill several slots of one buffer. Without
      updates that arrive together this is "replaced" with M = N.
    - "before_aggregation": like "free", but a client whose update fills the buffer starts from the
      model before that tick.
    - "fresh": all clients start anew, with newly drawn running times, after every tick, so that
      mostly fast clients report. This takes literally the counter in FAVANO's App. C.2, which is
      reset at each server step. Clients that did not report keep their model. Drawing a tick takes
      time in proportion to the number of clients; under the other readings it hardly grows.

        clock = ArrivalClock(restart="free")  # nobody waits
        hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(buffer_size=5, clock=clock)
    """

    server_interact: AtLeast0 = setting(
        0.0,
        "Duration of the server's exchange with clients, in units of virtual time, once the buffer "
        'is full. Has no effect under restart "replaced", "free" and "before_aggregation".',
        of_time=True,
        only_with={"restart": tuple(name for name in RESTARTS if name not in FREE)},
    )
    restart: Annotated[str, settings.OneOf(RESTARTS)] = setting(
        "after_interaction",
        "When a client that finished an update starts the next one, and from which model; the "
        "readings are explained at `fedjax_sim.timelines.ArrivalClock`.",
    )
    send_old_model: bool = setting(
        False,
        "Whether reporting clients get the model from before the tick that took their update, as "
        'in QuAFL\'s public simulator. This is the only causal choice under restart "own_finish".',
    )
    ties: Literal["random", "client"] = setting(
        "random",
        "Order of updates that arrive at the same time: drawn at random, or by client number.",
    )


@struct
class Arrivals(Clients):
    """Settings of buffered arrivals.

    They are inherited by the settings of FedBuff, for example.

        hyper = Arrivals(num_clients=8, buffer_size=4, concurrency=20, restart="replaced")
        assert hyper.num_at_work == 8  # all clients, because there are fewer than 20
    """

    buffer_size: Count = setting(
        10, "Updates that fill the buffer and make the server act, Z (or b)."
    )
    concurrency: Count = setting(
        20,
        'Clients at work at one time, M, under restart "replaced"; all clients if there are fewer.',
        only_with={"clock.restart": ("replaced",)},
    )
    clock: ArrivalClock = settings.group(
        ArrivalClock(), "when clients start, and when the server acts"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the buffer can never fill, or a setting does not fit the reading of
            `restart`.
        """
        super().check_together()
        trace, restart = self.delays.trace, self.clock.restart
        if trace is not None and self.buffer_size > trace.client.size:
            allowed = f"at most the {trace.client.size} rows of the trace"
            raise ConfigError("buffer_size", self.buffer_size, allowed)
        if trace is None and restart not in FREE and self.buffer_size > self.num_clients:
            allowed = f"at most num_clients = {self.num_clients}, or it can never fill"
            raise ConfigError("buffer_size", self.buffer_size, allowed)
        under = f'under restart = "{restart}"'
        if restart == "own_finish" and not self.clock.send_old_model:
            allowed = f"true {under}, where clients continue before the tick's model is made"
            raise ConfigError("clock.send_old_model", False, allowed)
        if restart in FREE and self.clock.send_old_model:
            allowed = f"false {under}, which takes the newest model"
            raise ConfigError("clock.send_old_model", True, allowed)
        most = float(np.max(self.delays.drop_rates))
        if restart == "fresh" and most > 0:
            allowed = f"0 {under}, which draws no second update in a tick"
            raise ConfigError("delays.drop_rate", most, allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        names = [f"clock.{name}" for name in settings.fields(ArrivalClock)]
        return super().decided() | self.delays.decided_by_trace(*names)

    @property
    def num_at_work(self) -> int:
        """Number of clients at work at one time under restart "replaced", M, at most N."""
        return min(self.concurrency, self.num_clients)


@checked
def schedule_arrivals(key: Key, hyper: Arrivals, num_ticks: Count) -> Timeline:
    """Schedule buffered arrivals: each tick receives Z updates of K local steps.

    The first ticks do not depend on `num_ticks`.

        arrivals = schedule_arrivals(key, Arrivals(num_clients=8, buffer_size=3), 5)
        staleness = jnp.arange(5)[:, None] - arrivals.version
        assert staleness.shape == (5, 3) and (staleness >= 0).all()

    Args:
      hyper: Settings. With a recorded trace its rows are the updates, no delay is drawn, and the
        server acts as soon as its buffer is full.
      num_ticks: Number of ticks T.

    Returns:
      A timeline with S = Z slots and all weights 1/Z. Ticks after the end of a recorded trace have
      the time `inf`.
    """
    if hyper.delays.trace is not None:
        return _recorded(hyper, num_ticks)
    schedules = {"replaced": _replaced, "free": _free, "before_aggregation": _free, "fresh": _fresh}
    return schedules.get(hyper.clock.restart, _held_back)(key, hyper, num_ticks)


@checked
def arrivals_within(hyper: Arrivals, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

    Updates arrive at the sum of the clients' rates; if M < N clients are at work, at M divided by
    the clients' mean time (Little's law). Unless the server acts immediately, a tick takes at least
    the time of the exchange. With a recorded trace these are the ticks of all of it.

        hyper = Arrivals(num_clients=8, buffer_size=4, local_steps=10)  # a step takes 1 on average
        assert arrivals_within(hyper, 100.0) == 100 * 8 / (4 * 10)

    Args:
      hyper: Settings with concrete values.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    delays, clock = hyper.delays, hyper.clock
    if delays.trace is not None:
        return delays.trace.client.size / hyper.buffer_size
    working = delays.on_time / (delays.on_time + delays.off_time) * (1 - delays.drop_rate)
    rate = hyper.num_clients * delays.mean_rate
    if clock.restart == "replaced" and hyper.num_at_work < hyper.num_clients:
        rate = hyper.num_at_work / delays.mean_time
    fill = hyper.buffer_size * hyper.times_per_update / (rate * working)
    return time / (fill if clock.restart in FREE else np.maximum(clock.server_interact, fill))


StateT = TypeVar("StateT")
ArrivedT = TypeVar("ArrivedT")


Update = tuple[Array, Array]
"""The number of a client's update, counting lost ones, `i32[...]`, and its arrival, `f64[...]`."""


class Work(NamedTuple):
    """Rules of the clients' tasks.

    Attributes:
      devices: The clients.
      tie_breakers: Function from clients and numbers of updates to numbers `f64[...]`. Of updates
        that finish at the same time the one with the smaller number comes first.
    """

    devices: Devices
    tie_breakers: Callable[[Array, Array], Array]

    def begin(self, client: Array, update: Array, now: Array, last: Array) -> tuple[Array, Array]:
        """Let clients begin updates as others finish.

        An update that takes no time comes after the one that finished `now` with the tie breaker
        `last`.

        Returns:
          When they begin, `f64[...]`; when they finish, with tie breakers, `f64[..., 2]`.
        """
        start, finish = self.devices.follow(client, update, now)
        drawn = self.tie_breakers(client, update)
        drawn = jnp.where(finish == now, jnp.maximum(drawn, last), drawn)
        return start, jnp.stack([finish, drawn], axis=-1)


def tie_breakers(key: Key) -> Callable[[Array, Array], Array]:
    """Make a function that draws the tie breakers `u32[...]` of clients' updates.

    Args:
      key: The lane's timeline key.
    """
    return per_update(lane_stream(key, "ties"), lambda own: jax.random.bits(own, (), "uint32"))


def lane_by_lane(
    draw: Callable[[Key, HyperT], ArrivedT], key: Key, hyper: Settings, kind: type[HyperT]
) -> ArrivedT:
    """Call a function that finds arrivals, so that lanes run one after another under `vmap`.

    A batch of lanes would run each lane's loops, which work on large arrays, for as long as the
    slowest lane needs.

    Args:
      draw: Function from a lane's key and settings to its arrivals.
      hyper: The lane's settings, of a class that inherits `kind`. Those known before tracing stay
        known.
      kind: Class of the settings that `draw` gets. It shall have no others, because all of them
        count as read by the timeline.
    """
    known = dict(settings.known_values(hyper))
    own = {name.partition(".")[0] for name in settings.fields(kind)}
    needed: Settings = kind(**{name: getattr(hyper, name) for name in own})

    @jax.custom_batching.sequential_vmap
    def one_lane(key: Key, needed: Settings) -> ArrivedT:
        static = {name: known[name] for name in settings.fields(kind) if name in known}
        return draw(key, needed.replace(**static))

    return one_lane(key, needed)


def first_order(key: Key, num_clients: int) -> Array:
    """Draw the order in which clients get the first tasks, from the lane's key: `i32[N]`."""
    own_key = lane_stream(lane_stream(key, "replacements"), "first tasks")
    return jax.random.permutation(own_key, num_clients).astype("int32")


def draw_idle(key: Key, event: Array, number: Array, num_idle: int) -> Array:
    """Draw one of the idle clients, from 1, or the one that has finished, which is 0: `i32[]`.

    Args:
      key: The lane's key.
      event: Number of the finished work, `i32[]`.
      number: Number of the draw for it, `i32[]`.
      num_idle: Number of idle clients.
    """
    event_key = jax.random.fold_in(lane_stream(key, "replacements"), event)
    return jax.random.randint(jax.random.fold_in(event_key, number), (), 0, num_idle + 1, "int32")


def draw_until(draw: Callable[[Array], Array], accepts: Callable[[Array], Array]) -> Array:
    """Draw until a draw is accepted, at most `TRIES` times.

    Args:
      draw: Function from the number of the draw, from 0, to what is drawn, `i32[]`.
      accepts: Function from that to `bool[]`.

    Returns:
      The last draw, `i32[]`.
    """

    def is_refused(found: tuple[Array, Array]) -> Array:
        number, drawn = found
        return (number < TRIES) & ~accepts(drawn)

    first = jnp.int32(1), draw(jnp.int32(0))
    return jax.lax.while_loop(is_refused, lambda found: (found[0] + 1, draw(found[0])), first)[1]


class _Taken(NamedTuple):
    """The last arrival that was taken, at `time`.

    Of the updates that arrive at the same time the one with the smallest tie breaker comes first,
    and those with tie breakers up to `least` have been taken.
    """

    time: Array  # f64[]
    least: Array  # f64[]


def _held_back(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule readings in which the server takes the Z earliest finishes and restarts clients.

    The cost of a tick grows with the logarithm of the number of clients.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    devices = draw_devices(key, hyper)
    sent = 0 if hyper.clock.send_old_model else 1

    draw = per_update(lane_stream(key, "ties"), lambda own: jax.random.uniform(own, dtype=float))

    def begin(taken: _Taken, client: Array, update: Array, restart: Array) -> tuple[Array, Array]:
        """Draw when clients' next updates arrive after the ones with the given numbers.

        Returns keys of the queue `f64[..., D]`, and the numbers of the updates.
        """
        start = jnp.broadcast_to(restart, client.shape)
        attempt, finish = _arriving(devices, client, update, start)
        keys = [finish]
        if hyper.clock.ties == "random":
            # Above those that were taken at the same time, so that any of the others may be next.
            drawn = draw(client, attempt)
            above = taken.least + (1 - taken.least) * drawn
            keys.append(jnp.where(keys[0] == taken.time, above, drawn))
        return jnp.stack(keys, axis=1), attempt

    def tick(
        carry: tuple[Array, _Taken, Queue, Array], t: Array
    ) -> tuple[tuple[Array, _Taken, Queue, Array], tuple[Array, Array, Array]]:
        clock, taken, queue, work = carry
        # The Z earliest finishes fill the buffer, and the server acts when the last one
        # is in.
        clients, keys = queue.earliest(size)
        version, update = take_rows(work, clients).T
        finish = keys[:, 0]
        last = _Taken(keys[-1, 0], keys[-1, -1])
        taken = jax.tree.map(partial(jnp.where, last.time >= taken.time), last, taken)
        acts = jnp.maximum(clock, finish[-1]) + hyper.clock.server_interact
        # Their clients begin anew and go back into the queue.
        restart = jnp.maximum(clock, finish) if hyper.clock.restart == "own_finish" else acts
        next_keys, following = begin(taken, clients, update, restart)
        queue = queue.replaced(clients, next_keys)
        next_work = jnp.stack([jnp.full_like(update, t + sent), following], axis=1)
        work = put_rows(work, clients, next_work)
        return (acts, taken, queue, work), (acts, clients, version)

    taken = _Taken(jnp.array(-jnp.inf), jnp.zeros(()))
    first_keys, first = begin(taken, everyone, jnp.full_like(everyone, -1), jnp.zeros(()))
    # The version and number of the update on which each client works.
    work = jnp.stack([jnp.zeros_like(first), first], axis=1)
    queue = Queue.of(first_keys, size)
    _, (time, clients, version) = jax.lax.scan(tick, (jnp.zeros(()), taken, queue, work), ticks)
    holds = jnp.broadcast_to(ticks[:, None] + sent, clients.shape)
    return _timeline(time, clients, version, holds, hyper)


def _free(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule readings in which no client waits: all are at work, and replace themselves."""
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size
    draw = partial(_replace_finished, num=num, num_tasks=hyper.num_clients)
    time, client, start, _ = lane_by_lane(draw, key, hyper, Arrivals)
    rank, previous = jnp.arange(num), previous_visits(client[:, None])[0][:, 0]
    at_own = (previous >= 0) & (start == time[previous])
    # A model taken between the client's arrivals contains all arrivals up to then, but none after
    # the update that is computed from it.
    known = jnp.minimum(jnp.searchsorted(time, start, side="right"), rank)
    before = jnp.where(at_own, previous + 1, jnp.where(start > 0, known, 0)).astype("int32")
    # A client whose own arrival filled the buffer starts from the new model under "free", and from
    # the model before it under "before_aggregation".
    is_late = at_own if hyper.clock.restart == "before_aggregation" else 0
    version, holds = (before - is_late) // size, (rank + (hyper.clock.restart == "free")) // size
    client, version, holds = (x.reshape(num_ticks, size) for x in (client, version, holds))
    return _timeline(time.reshape(num_ticks, size)[:, -1], client, version, holds, hyper)


def _replaced(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "replaced", by drawing all arrivals before forming ticks.

    The cost of an arrival grows with the logarithm of the number of clients at work.
    """
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size

    def first(key: Key, hyper: Arrivals) -> tuple[Array, Array, Array, Array]:
        time, client, start, again = _replace_finished(key, hyper, num, hyper.num_at_work)
        acts, tick = time[size - 1 :: size], jnp.arange(num) // size
        # A client that starts at the moment at which the server acts takes the new model. An update
        # that takes no time never contains itself.
        version = jnp.minimum(jnp.searchsorted(acts, start, side="right"), tick)
        following = jnp.minimum(jnp.searchsorted(acts, again, side="right"), tick + 1)
        # A client that was replaced by another counts as holding its last model until it reports
        # again.
        holds = jnp.where(jnp.isinf(again), version, following)
        return acts, client, version, holds

    acts, *of_slots = lane_by_lane(first, key, hyper, Arrivals)
    client, version, holds = (leaf.reshape(num_ticks, size) for leaf in of_slots)
    return _timeline(acts, client, version, holds, hyper)


def _replace_finished(key: Key, hyper: Arrivals, num: int, num_tasks: int) -> tuple[Array, ...]:
    """Find the first arrivals if M clients are at work at any time.

    At time 0 these are M clients drawn without replacement, available or not. A client that
    finishes joins the idle ones, and one of these, drawn uniformly among those available, takes its
    place at once; it is the same client if M = N. If `TRIES` draws find nobody available, the last
    one drawn begins as soon as it is. A lost update frees its client's place like any other.

    Args:
      key: The lane's timeline key.
      hyper: Settings.
      num: Number of arrivals A.
      num_tasks: Number of clients at work, M.

    Returns:
      The arrivals in order, `[A]` each: when an update arrives; its client; when that client took
      the server's model for it; and when it takes its next model if it replaced itself, inf
      otherwise.
    """
    num_clients, ties = hyper.num_clients, tie_breakers(key)

    def order(client: Array, update: Array) -> Array:
        return (ties(client, update) if hyper.clock.ties == "random" else client).astype(float)

    work = Work(draw_devices(key, hyper), order)

    class State(NamedTuple):
        queue: Queue  # over places
        order: Array  # i32[N]  clients: those at work, by place, and then the idle ones
        updates: Array  # i32[N]  number of each client's present or next update
        start: Array  # f64[M]  when the client at each place took its model
        event: Array  # i32[]

    def draw_place(state: State, own: Array, now: Array) -> Array:
        """Draw a place of `order`: that of the client that finished, or of an idle one."""

        def draw(number: Array) -> Array:
            drawn = draw_idle(key, state.event, number, num_clients - num_tasks)
            return jnp.where(drawn == 0, own, num_tasks - 1 + drawn)

        if num_clients == num_tasks:
            return own
        if work.devices.windows is None:
            return draw(jnp.int32(0))
        return draw_until(draw, lambda place: work.devices.are_available(state.order[place], now))

    def finish_one(state: State) -> tuple[State, tuple[tuple[Array, ...], Array]]:
        """Process the earliest finish; also tell whether the update was lost."""
        places, keys = state.queue.earliest(1)
        place, now, last = places[0], keys[0, 0], keys[0, 1]
        client, chosen = take_rows(state.order, place), draw_place(state, place, now)
        read = place, client, take_rows(state.order, chosen), take_rows(state.updates, client)
        found = _read_first(now, *read, take_rows(state.start, place))
        place, client, other, update, begun = found
        # The client joins the idle ones at the chosen place, and the other begins in
        # its place.
        lost = work.devices.are_lost(client, update)
        order = put_rows(put_rows(state.order, chosen, client), place, other)
        updates = put_rows(state.updates, client, update + 1)
        start, next_key = work.begin(other, take_rows(updates, other), now, last)
        arrived = now, client, begun, jnp.where(other == client, start, jnp.inf)
        queue = state.queue.replaced(place[None], next_key[None])
        starts = put_rows(state.start, place, start)
        return State(queue, order, updates, starts, state.event + 1), (arrived, lost)

    # At time 0 the first M of a random order begin.
    order_of_all = first_order(key, num_clients)
    first, updates = order_of_all[:num_tasks], jnp.zeros(num_clients, "int32")
    start, keys = work.begin(first, updates[:num_tasks], jnp.zeros(num_tasks), jnp.zeros(()))
    state = State(Queue.of(keys, 1), order_of_all, updates, start, jnp.int32(0))
    return _first(finish_one, state, num, has_losses=work.devices.loss is not None)


def _arriving(devices: Devices, client: Array, attempt: Array, time: Array) -> Update:
    """Find clients' next updates that are not lost; their last attempts arrived at `time`."""

    def attempt_at(attempt: Array, time: Array) -> Update:
        return attempt, devices.follow(client, attempt, time)[1]

    def again(found: tuple[Update, Array]) -> tuple[Update, Array]:
        update, lost = found
        other = attempt_at(update[0] + 1, update[1])
        update = jax.tree.map(partial(jnp.where, lost), other, update)
        return update, lost & devices.are_lost(client, update[0])

    update = attempt_at(attempt + 1, time)
    if devices.loss is None:
        return update
    lost = devices.are_lost(client, update[0])
    return jax.lax.while_loop(lambda found: found[1].any(), again, (update, lost))[0]


def _fresh(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "fresh": at each tick the Z shortest of newly drawn times report.

    Every tick draws the times of all clients, so its cost is proportional to their number.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    devices, tie_key = draw_devices(key, hyper), lane_stream(key, "ties")

    def tick(clock: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
        keys = [devices.follow(everyone, jnp.full_like(everyone, t), jnp.full(num, clock))[1]]
        if hyper.clock.ties == "random":
            keys.append(jax.random.uniform(jax.random.fold_in(tie_key, t), keys[0].shape))
        clients, first_keys = Queue.of(jnp.stack(keys, axis=1), size).earliest(size)
        acts = first_keys[-1, 0] + hyper.clock.server_interact
        return acts, (acts, clients)

    time, clients = jax.lax.scan(tick, jnp.zeros(()), ticks)[1]
    sent = 0 if hyper.clock.send_old_model else 1
    previous, _ = previous_visits(clients)
    holds = jnp.broadcast_to(ticks[:, None] + sent, clients.shape)
    return _timeline(time, clients, jnp.where(previous >= 0, previous + sent, 0), holds, hyper)


def _recorded(hyper: Arrivals, num_ticks: int) -> Timeline:
    """Buffer the rows of a trace in order of finish.

    An update starts from the newest version that was made by its recorded start. After the tick
    that took its update a client holds that tick's model, or the older one from which its next row
    started.
    """
    trace, size = hyper.recorded, hyper.buffer_size
    known, tick = trace.client.size // size, np.arange(trace.client.size) // size
    acts = trace.finish[: known * size][size - 1 :: size]
    version = np.minimum(np.searchsorted(acts, trace.start, side="right"), tick)
    made = tick + 1
    order = np.argsort(trace.client, kind="stable")
    row, following = order[:-1], order[1:]
    is_same = trace.client[row] == trace.client[following]
    holds = made.copy()
    holds[row[is_same]] = np.minimum(made[row], version[following])[is_same]

    def padded(x: np.ndarray) -> Array:
        rows = x[: known * size].reshape(known, size)[:num_ticks]
        rows = np.concatenate([rows, np.repeat(rows[-1:], num_ticks - len(rows), axis=0)])
        return jnp.asarray(rows.astype(np.int32))

    time = np.append(acts, np.full(num_ticks, np.inf))[:num_ticks]
    leaves = padded(trace.client), padded(version), padded(holds)
    return _timeline(jnp.asarray(time), *leaves, hyper)


def _timeline(
    time: Array, clients: Array, version: Array, holds: Array, hyper: Arrivals
) -> Timeline:
    """Complete a timeline with K steps and the weight 1/Z in every slot."""
    steps, weight = (jnp.full(clients.shape, x) for x in (hyper.local_steps, 1 / hyper.buffer_size))
    return Timeline(time, clients, steps, version, weight, holds)


@struct
class ClientQueues(Clients):
    """Settings of clients that work on their tasks in the order in which these came.

    The routing is given by one number for each client, or follows from the clients' rates.

        slow_get_less = ClientQueues(num_clients=8, num_tasks=4, routing_exponent=1.0)
        hyper = ClientQueues(num_clients=3, num_tasks=4, routing=np.array([1.0, 1.0, 2.0]))
    """

    local_steps: int = settings.redefault(Clients, "local_steps", 1)
    num_tasks: Count = setting(20, "Tasks in the clients' queues at any time, C.")
    routing: Above0 | Sequence[Above0] | None = setting(
        None,
        "Probabilities p_i with which a finished task is sent to client i, up to a common factor. "
        "None takes them from `routing_exponent`.",
        allowed="None, one finite number above 0, or one for each client",
    )
    routing_exponent: settings.Finite = setting(
        0.0,
        "Probabilities p_i are proportional to the clients' rates to this power: 0 makes them "
        "equal, 1 keeps all clients equally busy, and below 0 slow clients get more tasks.",
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the number of probabilities is wrong, or a trace is set, which does not
            tell what waits in queues.
        """
        super().check_together()
        routing = np.asarray(() if self.routing is None else self.routing)
        if self.routing is not None and routing.shape not in ((), (self.num_clients,)):
            allowed = f"one number, or num_clients = {self.num_clients}"
            raise ConfigError("routing", f"of {routing.size} numbers", allowed)
        if self.delays.trace is not None:
            allowed = "left out: the server decides who gets a task"
            raise ConfigError("delays.trace", "given", allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        given = {} if self.routing is None else {"routing_exponent": "routing given"}
        return super().decided() | given


@checked
def routing_shares(key: Key, hyper: ClientQueues) -> Array:
    """Compute the probabilities p_i of the clients, `f64[N]`, of sum 1.

    They are the shares given, or follow from the clients' rates.

        hyper = ClientQueues(num_clients=3, routing=np.array([1.0, 1.0, 2.0]))
        assert routing_shares(key, hyper).tolist() == [1 / 4, 1 / 4, 1 / 2]
    """
    if hyper.routing is None:
        share = draw_client_rates(key, hyper) ** hyper.routing_exponent
    else:
        share = jnp.broadcast_to(jnp.asarray(hyper.routing, float), (hyper.num_clients,))
    return share / share.sum()


@checked
def schedule_client_queues(key: Key, hyper: ClientQueues, num_ticks: Count) -> Timeline:
    """Schedule server steps with one finished task each; a task carries the model it was sent with.

    The first ticks do not depend on `num_ticks`.

        steps = schedule_client_queues(key, ClientQueues(num_clients=8, num_tasks=4), 5)
        assert steps.clients.shape == (5, 1)

    Args:
      num_ticks: Number of ticks T.

    Returns:
      A timeline with one slot per tick, of weight 1 / (N p_i).
    """
    route = partial(_route, num=num_ticks)
    (time, *of_slots), weight = lane_by_lane(route, key, hyper, ClientQueues)
    client, before, after = (leaf[:, None] for leaf in of_slots)
    # A client without another task counts as holding its last model until it reports again.
    holds = jnp.where(after == EMPTY, before, after)
    steps = jnp.full(client.shape, hyper.local_steps)
    return Timeline(time, client, steps, before, weight[:, None], holds)


@checked
def client_queues_within(hyper: ClientQueues, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time: if no client were ever idle.

        hyper = ClientQueues(num_clients=8, num_tasks=4, local_steps=2)  # a step takes 1 on average
        assert client_queues_within(hyper, 10.0) == 10 * 4 / 2

    Args:
      hyper: Settings with concrete values.
      time: Length of the stretch, in units of virtual time.
    """
    return hyper.ticks_within(time, np.minimum(hyper.num_tasks, hyper.num_clients))


Finished = tuple[tuple[Array, ...], Array]
"""The arrival of a finished task, and whether it was lost instead."""


def _route(key: Key, hyper: ClientQueues, num: int) -> tuple[tuple[Array, ...], Array]:
    """Find the first arrivals of M tasks in the queues of N clients, and their weights.

    An arrival has its time, the client, the number of arrivals before its task was sent out (the
    version of its model), and that number for the client's next task, or EMPTY.

    A client works on its tasks in the order in which they came. A finished task is sent at once, to
    a client drawn by its share; so are the first M tasks at time 0. A lost task is sent out again
    without having arrived.
    """
    share, num_clients, num_tasks = routing_shares(key, hyper), hyper.num_clients, hyper.num_tasks
    order = per_update(lane_stream(key, "ties"), lambda own: jax.random.uniform(own, dtype=float))
    work, routing_key = Work(draw_devices(key, hyper), order), lane_stream(key, "routing")
    ends = jnp.cumsum(share)

    class State(NamedTuple):
        queue: Queue  # over tasks; those that wait have the time inf
        keys: Array  # f64[M, 2]  when each task will be finished, with its tie breaker
        client: Array  # i32[M]  where it is, or EMPTY before it is sent out
        number: Array  # i32[M]  number of the client's update that it will be
        before: Array  # i32[M]  arrivals before it was sent out
        behind: Array  # i32[M]  the next task in the same line, or EMPTY
        last: Array  # i32[N]  the task that was sent last to each client
        sent: Array  # i32[N]  tasks sent to each client
        event: Array  # i32[]
        arrived: Array  # i32[]

    def finish(state: State, task: Array, now: Array, tie: Array) -> tuple[State, Finished]:
        """Send a task that is finished, with a tie breaker, to the client drawn for it."""
        place = jax.random.uniform(jax.random.fold_in(routing_key, state.event), dtype=ends.dtype)
        drawn = jnp.searchsorted(ends, place * ends[-1], side="right").astype("int32")
        other = jnp.minimum(drawn, num_clients - 1)
        ahead, following = take_rows(state.last, other), take_rows(state.behind, task)
        begins = jnp.where(following == EMPTY, task, following)
        of_task = [take_rows(leaf, task) for leaf in (state.client, state.number, state.before)]
        line = following, ahead, take_rows(state.client, ahead), begins
        of_line = take_rows(state.before, begins), take_rows(state.keys, jnp.stack([ahead, begins]))
        read = task, *of_task, *line, *of_line, take_rows(state.sent, other)
        found = _read_first(now, *read)
        task, client, number, before, following, ahead, ahead_at, begins, after, keys, sent = found
        lost = work.devices.are_lost(client, number)
        arrived = state.arrived + (~lost & (client != EMPTY)).astype("int32")
        report = now, client, before, jnp.where(following == EMPTY, EMPTY, after)
        # It begins at once, or when the one ahead of it at its new client is finished.
        is_free = (ahead_at != other) | (ahead == task)
        begin, tie = jnp.where(is_free, jnp.stack([now, tie]), keys[0])
        _, key = work.begin(other, sent, begin, tie)
        waits = jnp.where(is_free, key, jnp.inf)
        changed = jnp.stack([waits, jnp.where(following == EMPTY, waits, keys[1])])
        behind = put_rows(state.behind, task, jnp.int32(EMPTY))
        state = State(
            state.queue.replaced(jnp.stack([task, begins]), changed),
            put_rows(state.keys, task, key),
            put_rows(state.client, task, other),
            put_rows(state.number, task, sent),
            put_rows(state.before, task, arrived),
            put_rows(behind, jnp.where(is_free, task, ahead), jnp.where(is_free, EMPTY, task)),
            put_rows(state.last, other, task),
            put_rows(state.sent, other, sent + 1),
            state.event + 1,
            arrived,
        )
        return state, (report, lost)

    def finish_one(state: State) -> tuple[State, Finished]:
        """Process the earliest finish; also tell whether the task was lost."""
        tasks, keys = state.queue.earliest(1)
        return finish(state, tasks[0], keys[0, 0], keys[0, 1])

    # At time 0 all tasks are sent out, by number.
    none, no_task = jnp.full(num_tasks, EMPTY, "int32"), jnp.zeros(num_clients, "int32")
    keys, zero, start = jnp.full((num_tasks, 2), jnp.inf), jnp.int32(0), jnp.zeros(())
    state = State(Queue.of(keys, 1), keys, none, none, none, none, no_task, no_task, zero, zero)
    tasks = jnp.arange(num_tasks, dtype="int32")
    state, _ = jax.lax.scan(lambda s, task: (finish(s, task, start, start)[0], None), state, tasks)
    found = _first(finish_one, state, num, has_losses=work.devices.loss is not None)
    return found, 1 / (num_clients * share[found[1]])


def _read_first(now: Array, *values: Array) -> tuple[Array, ...]:
    """Return entries of arrays that are to be changed, and where, read before that happens.

    The branch makes XLA compute them in one place. Otherwise it reads them again wherever they are
    used, and copies the whole arrays to have the old entries at hand.
    """

    def zeros(*values: Array) -> tuple[Array, ...]:
        return tuple(map(jnp.zeros_like, values))

    return jax.lax.cond(now >= 0, lambda *values: values, zeros, *values)


def _first(
    finish_one: Callable[[StateT], tuple[StateT, tuple[ArrivedT, Array]]],
    state: StateT,
    num: int,
    *,
    has_losses: bool,
) -> ArrivedT:
    """Process finishes until `num` updates have arrived, and return these."""

    def arrive(state: StateT, nothing: None) -> tuple[StateT, ArrivedT]:
        found = finish_one(state)
        if has_losses:
            found = jax.lax.while_loop(lambda it: it[1][1], lambda it: finish_one(it[0]), found)
        after, (arrived, _) = found
        return after, arrived

    return jax.lax.scan(arrive, state, length=num)[1]
