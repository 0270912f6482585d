"""A fixed number of tasks that circulate among clients: one that is finished is sent out again.

A server that keeps M clients at work (FedBuff, Nguyen et al. 2022) replaces a client that has
finished by one that is idle, see `buffered`.

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

Dimension letters: `N` clients, `M` tasks, `A` arrivals asked for, `T` ticks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import (
    ConfigError,
    checked,
    fields,
    known_values,
    redefault,
    setting,
    struct,
)
from fedjax_sim.core.settings.declared import Above0, Count, Finite
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import EMPTY, Array, HyperT, Key, Settings, Timeline
from fedjax_sim.timelines.arrivals.queue import Queue, put_rows, take_rows
from fedjax_sim.timelines.delays.devices import Devices, draw_devices, per_update
from fedjax_sim.timelines.delays.laws import Clients, draw_client_rates

TRIES = 64
"""Idle clients that the server asks before it waits for one that is not available."""

StateT = TypeVar("StateT")
ArrivedT = TypeVar("ArrivedT")


class Work(NamedTuple):
    """Rules of the clients' tasks.

    Attributes:
      devices: The clients.
      tie_breakers: Function from clients and numbers of updates to numbers `f64[...]`. Of updates
        that finish at the same time the one with the smaller number comes first.
    """

    devices: Devices
    tie_breakers: Callable[[Array, Array], Array]

    def begin(
        self, client: Array, update: Array, time: Array, now: Array, last: Array
    ) -> tuple[Array, Array]:
        """Let clients begin updates at given times.

        An update that takes no time comes after the one at the time `now` with the tie breaker
        `last`.

        Returns:
          When they begin, `f64[...]`; when they finish, with tie breakers, `f64[..., 2]`.
        """
        start, finish = self.devices.follow(client, update, time)
        drawn = self.tie_breakers(client, update)
        drawn = jnp.where(finish == now, jnp.maximum(drawn, last), drawn)
        return start, jnp.stack([finish, drawn], axis=-1)


def tie_breakers(key: Key) -> Callable[[Array, Array], Array]:
    """Make a function that draws the tie breakers `u32[...]` of clients' updates.

    Args:
      key: The lane's timeline key.
    """
    return per_update(lane_stream(key, "ties"), lambda own: jax.random.bits(own, (), "uint32"))


class Replaced(NamedTuple):
    """Arrivals, in order of time, if every client that finishes is replaced by an idle one.

    Attributes:
      time: `f64[A]`, virtual time of the arrival.
      client: `i32[A]`, client whose update arrives.
      start: `f64[A]`, virtual time at which the client took the server's model for it.
      again: `f64[A]`, virtual time at which the client takes its next model if it replaced itself;
        inf otherwise.
    """

    time: Array
    client: Array
    start: Array
    again: Array


class Routed(NamedTuple):
    """Arrivals, in order of time, in a closed network of queues.

    Attributes:
      time: `f64[A]`, virtual time of the arrival.
      client: `i32[A]`, client whose task is finished.
      before: `i32[A]`, arrivals before the task was sent out, whose model it carries.
      after: `i32[A]`, the same of the client's next task; EMPTY if it has none.
    """

    time: Array
    client: Array
    before: Array
    after: Array


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
    known = dict(known_values(hyper))
    own = {name.partition(".")[0] for name in fields(kind)}
    needed: Settings = kind(**{name: getattr(hyper, name) for name in own})

    @jax.custom_batching.sequential_vmap
    def one_lane(key: Key, needed: Settings) -> ArrivedT:
        static = {name: known[name] for name in fields(kind) if name in known}
        return draw(key, needed.replace(**static))

    return one_lane(key, needed)


def replace_finished(
    key: Key, work: Work, *, num_clients: int, num_tasks: int, num: int
) -> Replaced:
    """Find the first arrivals if M clients are at work at any time.

    At time 0 these are M clients drawn without replacement, available or not. A client that
    finishes joins the idle ones, and one of these, drawn uniformly among those available, takes its
    place at once; it is the same client if M = N. If `TRIES` draws find nobody available, the last
    one drawn begins as soon as it is. A lost update frees its client's place like any other.

    Args:
      key: Key of the draws of clients.
      work: What clients do.
      num_clients: Number of clients N.
      num_tasks: Number of clients at work M, at most N.
      num: Number of arrivals A.

    Returns:
      The arrivals.
    """

    class State(NamedTuple):
        queue: Queue  # over places
        order: Array  # i32[N]  clients: those at work, by place, and then the idle ones
        updates: Array  # i32[N]  number of each client's present or next update
        start: Array  # f64[M]  when the client at each place took its model
        event: Array  # i32[]

    def draw_place(state: State, own: Array, now: Array) -> Array:
        """Draw a place of `order`: that of the client that finished, or of an idle one."""
        event_key = jax.random.fold_in(key, state.event)

        def draw(number: Array) -> Array:
            own_key, num = jax.random.fold_in(event_key, number), num_clients - num_tasks + 1
            drawn = jax.random.randint(own_key, (), 0, num, "int32")
            return jnp.where(drawn == 0, own, num_tasks - 1 + drawn)

        if num_clients == num_tasks:
            return own
        if work.devices.windows is None:
            return draw(jnp.int32(0))
        return draw_until(draw, lambda place: work.devices.are_available(state.order[place], now))

    def finish_one(state: State) -> tuple[State, tuple[Replaced, Array]]:
        """Process the earliest finish; also tell whether the update was lost."""
        places, keys, path = state.queue.earliest(1)
        place, now, last = places[0], keys[0, 0], keys[0, 1]
        client, chosen = _take(state.order, place), draw_place(state, place, now)
        read = place, client, _take(state.order, chosen), _take(state.updates, client)
        found = _read_first(now, *read, _take(state.start, place))
        place, client, other, update, begun = found
        # The client joins the idle ones at the chosen place, and the other begins in
        # its place.
        lost = work.devices.are_lost(client, update)
        order = _put(_put(state.order, chosen, client), place, other)
        updates = _put(state.updates, client, update + 1)
        start, next_key = work.begin(other, _take(updates, other), now, now, last)
        arrived = Replaced(now, client, begun, jnp.where(other == client, start, jnp.inf))
        queue = state.queue.replaced(path, next_key[None])
        starts = _put(state.start, place, start)
        return State(queue, order, updates, starts, state.event + 1), (arrived, lost)

    # At time 0 the first M of a random order begin.
    order = jax.random.permutation(lane_stream(key, "first tasks"), num_clients).astype("int32")
    first, updates = order[:num_tasks], jnp.zeros(num_clients, "int32")
    begin = jnp.zeros(num_tasks)
    start, keys = work.begin(first, updates[:num_tasks], begin, begin[0] - 1, begin[0])
    queue = Queue.of(keys, 1)
    state = State(queue, order, updates, start, jnp.int32(0))
    return _first(finish_one, state, num, has_losses=work.devices.loss is not None)


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


@struct
class ClientQueues(Clients):
    """Settings of clients that work on their tasks in the order in which these came.

    The routing is given by one number for each client, or follows from the clients' rates.

        slow_get_less = ClientQueues(num_clients=8, num_tasks=4, routing_exponent=1.0)
        hyper = ClientQueues(num_clients=3, num_tasks=4, routing=np.array([1.0, 1.0, 2.0]))
    """

    local_steps: int = redefault(Clients, "local_steps", 1)
    num_tasks: Count = setting(20, "Tasks in the clients' queues at any time, C.")
    routing: Above0 | Sequence[Above0] | None = setting(
        None,
        "Probabilities p_i with which a finished task is sent to client i, up to a common factor. "
        "None takes them from `routing_exponent`.",
        allowed="None, one finite number above 0, or one for each client",
    )
    routing_exponent: Finite = setting(
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
    (time, *of_slots), weight = lane_by_lane(
        partial(_route, num=num_ticks), key, hyper, ClientQueues
    )
    client, before, after = (leaf[:, None] for leaf in of_slots)
    # A client without another task counts as holding its last model until it reports again.
    holds = jnp.where(after == EMPTY, before, after)
    steps = jnp.full(client.shape, hyper.local_steps)
    return Timeline(time, client, steps, before, weight[:, None], holds)


def client_queues_within(hyper: ClientQueues, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time: if no client were ever idle.

        hyper = ClientQueues(num_clients=8, num_tasks=4, local_steps=2)  # a step takes 1 on average
        assert client_queues_within(hyper, 10.0) == 10 * 4 / 2

    Args:
      hyper: Settings with concrete values.
      time: Length of the stretch, in units of virtual time.
    """
    return hyper.ticks_within(time, np.minimum(hyper.num_tasks, hyper.num_clients))


def _route(key: Key, hyper: ClientQueues, num: int) -> tuple[Routed, Array]:
    """Find the first arrivals of M tasks in the queues of N clients, and their weights.

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
        client: Array  # i32[M]  where each task is
        before: Array  # i32[M]  arrivals before it was sent out
        behind: Array  # i32[M]  the next task in the same queue, or EMPTY
        last: Array  # i32[N]  the last task in each client's queue, or EMPTY
        updates: Array  # i32[N]  number of each client's present or next update
        event: Array  # i32[]
        arrived: Array  # i32[]

    def draw(event: Array) -> Array:
        place = jax.random.uniform(jax.random.fold_in(routing_key, event), dtype=ends.dtype)
        drawn = jnp.searchsorted(ends, place * ends[-1], side="right").astype("int32")
        return jnp.minimum(drawn, num_clients - 1)

    def finish_one(state: State) -> tuple[State, tuple[Routed, Array]]:
        """Process the earliest finish; also tell whether the task was lost."""
        tasks, keys, _ = state.queue.earliest(1)
        task, now, last_drawn = tasks[0], keys[0, 0], keys[0, 1]
        client, other = _take(state.client, task), draw(state.event)
        following = _take(state.behind, task)  # begins next
        task, client, following, before, after, update, update_of_other, last, last_of_other = (
            _read_first(
                now,
                task,
                client,
                following,
                _take(state.before, task),
                _take(state.before, jnp.maximum(following, 0)),
                _take(state.updates, client),
                _take(state.updates, other),
                _take(state.last, client),
                _take(state.last, other),
            )
        )
        # What arrived, and the task that begins next at the same client.
        lost = work.devices.are_lost(client, update)
        is_last = following == EMPTY
        report = Routed(now, client, before, jnp.where(is_last, EMPTY, after))
        arrived = state.arrived + (1 - lost.astype("int32"))

        # The client goes on with the task behind, and the other gets the finished one.
        last = jnp.where(is_last, EMPTY, last)
        ahead = jnp.where(other == client, last, last_of_other)
        is_free = ahead == EMPTY
        updates = jnp.stack([update + 1, update_of_other + (other == client)])
        # Keys of two tasks: the one behind, and the finished one, which waits unless
        # its queue is empty.
        both, begin = jnp.stack([client, other]), jnp.full(2, now)
        _, new = work.begin(both, updates, begin, now, last_drawn)
        of_finished = jnp.where(is_free, new[1], jnp.inf)
        changed = jnp.stack([task, jnp.where(is_last, task, following)])
        new_keys = jnp.stack([of_finished, jnp.where(is_last, of_finished, new[0])])
        queue = state.queue.replaced_each(changed, new_keys)
        behind = _put(state.behind, task, jnp.int32(EMPTY))
        behind = _put(behind, jnp.where(is_free, task, ahead), jnp.where(is_free, EMPTY, task))
        state = State(
            queue,
            _put(state.client, task, other),
            _put(state.before, task, arrived),
            behind,
            _put(_put(state.last, client, last), other, task),
            _put(state.updates, client, update + 1),
            state.event + 1,
            arrived,
        )
        return state, (report, lost)

    # At time 0 the tasks of a client stand in line by number, and the first of each line
    # begins.
    tasks = jnp.arange(num_tasks, dtype="int32")
    client = jax.vmap(draw)(tasks)
    in_line = jnp.argsort(client, stable=True).astype("int32")
    is_next = jnp.append(client[in_line][1:] == client[in_line][:-1], False)
    behind = jnp.where(is_next, jnp.roll(in_line, -1), EMPTY)
    waits = jnp.roll(is_next, 1)
    updates = jnp.zeros(num_clients, "int32")
    begin = jnp.zeros(num_tasks)
    _, keys = work.begin(client, updates[client], begin, begin[0] - 1, begin[0])
    keys = jnp.where(jnp.zeros(num_tasks, bool).at[in_line].set(waits)[:, None], jnp.inf, keys)
    state = State(
        Queue.of(keys, 1),
        client,
        jnp.zeros(num_tasks, "int32"),
        jnp.zeros(num_tasks, "int32").at[in_line].set(behind),
        # Of a client's tasks the one with the highest number is the last.
        jnp.full(num_clients, EMPTY, "int32").at[client].max(tasks),
        updates,
        jnp.int32(num_tasks),
        jnp.int32(0),
    )
    found = _first(finish_one, state, num, has_losses=work.devices.loss is not None)
    return found, 1 / (num_clients * share[found.client])


def _read_first(now: Array, *values: Array) -> tuple[Array, ...]:
    """Return entries of arrays that are to be changed, and where, read before that happens.

    The branch makes XLA compute them in one place. Otherwise it reads them again wherever they are
    used, and copies the whole arrays to have the old entries at hand.
    """

    def zeros(*values: Array) -> tuple[Array, ...]:
        return tuple(map(jnp.zeros_like, values))

    return jax.lax.cond(now >= 0, lambda *values: values, zeros, *values)


def _take(table: Array, row: Array) -> Array:
    """Look up one entry of `[M]` or `[N]`."""
    return take_rows(table, row[None])[0]


def _put(table: Array, row: Array, value: Array) -> Array:
    """Replace one entry of `[M]` or `[N]`."""
    return put_rows(table, row[None], value[None])


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
            found = jax.lax.while_loop(
                lambda found: found[1][1], lambda found: finish_one(found[0]), found
            )
        after, (arrived, _) = found
        return after, arrived

    return jax.lax.scan(arrive, state, length=num)[1]
