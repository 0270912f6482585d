"""Buffered arrivals: the server acts whenever its buffer of Z updates is full.

Papers differ on when a client that has sent its update starts the next one, and from which model.
The setting `restart` chooses between six readings; `ArrivalClock` explains them.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick. A slot is a place in the buffer, so
S = Z.
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Checked, ConfigError, checked, fields, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, OneOf
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Key, Timeline
from fedjax_sim.timelines.arrivals.free_arrivals import Arrived, Update, first_arrivals
from fedjax_sim.timelines.arrivals.queue import Queue, put_rows, take_rows
from fedjax_sim.timelines.arrivals.tasks import Work, lane_by_lane, replace_finished, tie_breakers
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays.devices import Devices, draw_devices, per_update
from fedjax_sim.timelines.delays.laws import Clients

RESTARTS = ("after_interaction", "own_finish", "replaced", "free", "before_aggregation", "fresh")
"""Readings of when a client starts its next update; `ArrivalClock` explains them."""
FREE = ("replaced", "free", "before_aggregation")
"""Readings in which the server acts as soon as its buffer is full, and nobody waits for it."""


@struct
class ArrivalClock(Checked):
    """Settings of the time at which clients start and the server acts.

    `restart` says when a client that has finished an update starts the next one:

    - "after_interaction": when the exchange of the tick that took its update is over.
    - "own_finish": when it finishes, or at the start of the tick that took its update if that is
      later. This is the rule of QuAFL's public simulator.
    - "replaced": when it is drawn again. `concurrency` clients M are at work at any time. As soon
      as one finishes, a client drawn uniformly from those not at work (it may be the same one)
      takes its place, from the newest model of that moment, updates that arrive at the same moment
      included. This is FedBuff as published (Nguyen et al. 2022). Mean staleness is (M - 1) / Z,
      whatever the speeds are, unless updates arrive together: with M = Z and equal speeds it is 0.
    - "free": when it finishes, without waiting, from the model that is then current. All N clients
      are always at work, so mean staleness is about N / Z. If its update filled the buffer, that
      model already contains the update. A client may fill several slots of one buffer. Without
      updates that arrive together this is "replaced" with M = N, and quicker to draw.
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
    restart: Annotated[str, OneOf(RESTARTS)] = setting(
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
        names = [f"clock.{name}" for name in fields(ArrivalClock)]
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
        following = _arriving(devices, client, update, jnp.broadcast_to(restart, client.shape))
        keys = [following.finish]
        if hyper.clock.ties == "random":
            # Above those that were taken at the same time, so that any of the others may be next.
            drawn = draw(client, following.attempt)
            above = taken.least + (1 - taken.least) * drawn
            keys.append(jnp.where(keys[0] == taken.time, above, drawn))
        return jnp.stack(keys, axis=1), following.attempt

    def tick(
        carry: tuple[Array, _Taken, Queue, Array], t: Array
    ) -> tuple[tuple[Array, _Taken, Queue, Array], tuple[Array, Array, Array]]:
        clock, taken, queue, work = carry
        # The Z earliest finishes fill the buffer, and the server acts when the last one
        # is in.
        clients, keys, path = queue.earliest(size)
        version, update = take_rows(work, clients).T
        finish = keys[:, 0]
        last = _Taken(keys[-1, 0], keys[-1, -1])
        taken = jax.tree.map(partial(jnp.where, last.time >= taken.time), last, taken)
        acts = jnp.maximum(clock, finish[-1]) + hyper.clock.server_interact
        # Their clients begin anew and go back into the queue.
        restart = jnp.maximum(clock, finish) if hyper.clock.restart == "own_finish" else acts
        next_keys, following = begin(taken, clients, update, restart)
        queue = queue.replaced(path, next_keys)
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
    """Schedule readings in which no client waits, by drawing all arrivals before forming ticks."""
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size

    def first(key: Key, hyper: Arrivals) -> Arrived:
        following = partial(_arriving, draw_devices(key, hyper))
        order = tie_breakers(key) if hyper.clock.ties == "random" else None
        return first_arrivals(following, order, num_clients=hyper.num_clients, num=num)

    time, client, before, at_own = lane_by_lane(first, key, hyper, Arrivals)
    shape = (num_ticks, size)
    # A client whose own arrival filled the buffer starts from the new model under "free", and from
    # the model before it under "before_aggregation".
    is_late = at_own if hyper.clock.restart == "before_aggregation" else 0
    version = (before - is_late) // size
    holds = (jnp.arange(num) + (hyper.clock.restart == "free")) // size
    client, version, holds = (leaf.reshape(shape) for leaf in (client, version, holds))
    return _timeline(time.reshape(shape)[:, -1], client, version, holds, hyper)


def _replaced(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "replaced", by drawing all arrivals before forming ticks.

    The cost of an arrival grows with the logarithm of the number of clients at work.
    """
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size

    def first(key: Key, hyper: Arrivals) -> tuple[Array, Array, Array, Array]:
        is_random, drawn = hyper.clock.ties == "random", tie_breakers(key)

        def order(client: Array, update: Array) -> Array:
            return (drawn(client, update) if is_random else client).astype(float)

        own_key, work = lane_stream(key, "replacements"), Work(draw_devices(key, hyper), order)
        sizes = {"num_clients": hyper.num_clients, "num_tasks": hyper.num_at_work}
        time, client, start, again = replace_finished(own_key, work, **sizes, num=num)
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


def _arriving(devices: Devices, client: Array, attempt: Array, time: Array) -> Update:
    """Find clients' next updates that are not lost; their last attempts arrived at `time`."""

    def attempt_at(attempt: Array, time: Array) -> Update:
        return Update(attempt, *devices.follow(client, attempt, time))

    def again(found: tuple[Update, Array]) -> tuple[Update, Array]:
        update, lost = found
        other = attempt_at(update.attempt + 1, update.finish)
        update = jax.tree.map(lambda new, old: jnp.where(lost, new, old), other, update)
        return update, lost & devices.are_lost(client, update.attempt)

    update = attempt_at(attempt + 1, time)
    if devices.loss is None:
        return update
    lost = devices.are_lost(client, update.attempt)
    return jax.lax.while_loop(lambda found: found[1].any(), again, (update, lost))[0]


def _fresh(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "fresh": at each tick the Z shortest of newly drawn times report.

    Every tick draws the times of all clients, so its cost is proportional to their number.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    devices, tie_key = draw_devices(key, hyper), lane_stream(key, "ties")

    def tick(clock: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
        start = jnp.full(num, clock)
        keys = [devices.follow(everyone, jnp.full_like(everyone, t), start)[1]]
        if hyper.clock.ties == "random":
            keys.append(jax.random.uniform(jax.random.fold_in(tie_key, t), keys[0].shape))
        first = Queue.of(jnp.stack(keys, axis=1), size).earliest(size)
        acts = first.keys[-1, 0] + hyper.clock.server_interact
        return acts, (acts, first.clients)

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
