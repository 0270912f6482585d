"""Buffered arrivals: the server acts whenever its buffer of Z updates is full.

Papers differ on when a client that has sent its update starts the next one, and from which model.
The setting `restart` chooses between six readings; `Arrivals` explains them.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick. A slot is a place in the buffer, so
S = Z.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, choice, count, real, struct, switch
from fedjax_sim.streams import stream
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.free_arrivals import Arrived, Update, first_arrivals
from fedjax_sim.timelines.laws import ClientDelays, Speeds, draw_client_speeds, update_time
from fedjax_sim.timelines.queue import (
    Queue,
    find_earliest,
    make_queue,
    put_rows,
    replace_keys,
    take_rows,
)
from fedjax_sim.types import Array, Key, Timeline

RESTARTS = ("after_interaction", "own_finish", "free", "before_aggregation", "new_version", "fresh")
"""Readings of when a client starts its next update; `Arrivals` explains them."""
FREE = ("free", "before_aggregation")
"""Readings in which no client waits, so that the server does not influence the clients' clocks."""
IMMEDIATE = (*FREE, "new_version")
"""Readings in which the server acts as soon as its buffer is full."""


@struct
class Arrivals(ClientDelays):
    """Settings of buffered arrivals.

    `restart` says when a client that has finished an update starts the next one:

    - "after_interaction": when the exchange of the tick that took its update is over.
    - "own_finish": when it finishes, or at the start of the tick that took its update if that is
      later. This is the rule of QuAFL's public simulator.
    - "free": when it finishes, without waiting, from the model that is then current (Nguyen et al.
      2022). If its update filled the buffer, that model already contains the update. A client may
      fill several slots of one buffer.
    - "before_aggregation": like "free", but a client whose update fills the buffer starts from the
      model before that tick.
    - "new_version": when it finishes if the server has a newer model than the one the client worked
      from, otherwise as soon as there is one. This is the rule of FedStaleWeight's public
      benchmark.
    - "fresh": all clients start anew, with newly drawn running times, after every tick, so that
      mostly fast clients report. This takes literally the counter in FAVANO's App. C.2, which is
      reset at each server step. Clients that did not report keep their model. Drawing a tick takes
      time in proportion to the number of clients; under the other readings it hardly grows.
    """

    buffer_size: int = count(10, "Updates that fill the buffer and make the server act, Z (or b).")
    server_interact: float = real(
        3.0,
        "Duration of the exchange once the buffer is full, in units of virtual time. Has no effect "
        'under restart "free", "before_aggregation" and "new_version".',
        least=0,
    )
    restart: str = choice(
        "after_interaction",
        RESTARTS,
        "When a client that finished an update starts the next one, and from which model; the "
        "readings are explained at `fedjax_sim.timelines.Arrivals`.",
    )
    send_old_model: bool = switch(
        False,
        "Whether reporting clients get the model from before the tick that took their update, as "
        'in QuAFL\'s public simulator. This is the only causal choice under restart "own_finish".',
    )
    throttle: float = real(
        1.0,
        "Share of its rate at which client 0 works; its times grow in proportion. Used to measure "
        "what a client gains by reporting less often than it could.",
        above=0,
        most=1,
    )
    ties: str = choice(
        "random",
        ("random", "client"),
        "Order of updates that arrive at the same time: drawn at random, or by client number.",
    )
    drop_rate: float = real(
        0.0,
        "Share of finished updates that are lost on the way to the server. The client continues "
        "from the model that is then current.",
        least=0,
        most=0.99,
    )
    on_time: float = real(
        1.0,
        "Length of the windows in which a client works, in units of virtual time. A break of "
        "`off_time` follows each window, and each client starts at a random place of this cycle.",
        above=0,
    )
    off_time: float = real(
        0.0,
        "Length of the break after each working window, in units of virtual time; 0 for no breaks.",
        least=0,
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the buffer can never fill, or a setting does not fit the reading of
            `restart`.
        """
        super().check_together()
        if self.restart not in FREE and self.trace is None and self.buffer_size > self.num_clients:
            raise ConfigError(
                "buffer_size",
                self.buffer_size,
                f"at most num_clients = {self.num_clients}, or it can never fill",
            )
        if self.trace is not None and self.buffer_size > self.trace.client.size:
            raise ConfigError(
                "buffer_size",
                self.buffer_size,
                f"at most the {self.trace.client.size} rows of the trace",
            )
        if self.restart == "own_finish" and not self.send_old_model:
            raise ConfigError(
                "send_old_model",
                False,
                'true under restart = "own_finish", '
                "where clients continue before the tick's model is made",
            )
        if self.restart in IMMEDIATE and self.send_old_model:
            raise ConfigError(
                "send_old_model",
                True,
                f'false under restart = "{self.restart}", where a client takes the current model',
            )
        if self.restart == "new_version" and self.ties == "random":
            raise ConfigError("ties", "random", '"client" under restart = "new_version"')
        for name in ("drop_rate", "off_time"):
            value = float(np.max(getattr(self, name)))
            if value > 0 and self.restart not in FREE:
                raise ConfigError(
                    name,
                    value,
                    f'0 under restart = "{self.restart}"; other values need restart to be one of '
                    + ", ".join(FREE),
                )

    def decided(self) -> dict[str, str]:
        """Name the settings that have no effect, and what takes their place."""
        names = (
            *("restart", "send_old_model", "throttle", "ties"),
            *("drop_rate", "on_time", "off_time"),
        )
        return super().decided() | self.decided_by_trace(*names)


def schedule_arrivals(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule buffered arrivals: each tick receives Z updates of K local steps.

    The first ticks do not depend on `num_ticks`.

    Args:
      key: The lane's timeline key.
      hyper: Settings. With a recorded trace its rows are the updates, and no delay is drawn.
      num_ticks: Number of ticks T.

    Returns:
      A timeline with S = Z slots and all weights 1/Z. Ticks after the end of a recorded trace have
      the time `inf`.
    """
    if hyper.trace is not None:
        return _recorded(hyper, num_ticks)
    schedules = {
        "free": _free,
        "before_aggregation": _free,
        "new_version": _new_version,
        "fresh": _fresh,
    }
    return schedules.get(hyper.restart, _held_back)(key, hyper, num_ticks)


def arrivals_within(hyper: Arrivals, time: float) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

    Updates arrive at the sum of the clients' rates. Unless the server acts immediately, a tick
    takes at least the time of the exchange.

    Args:
      hyper: Settings with concrete values.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    working = hyper.on_time / (hyper.on_time + hyper.off_time) * (1 - hyper.drop_rate)
    fill = (
        hyper.buffer_size * hyper.times_per_update / (hyper.num_clients * hyper.mean_rate * working)
    )
    return time / (fill if hyper.restart in IMMEDIATE else np.maximum(hyper.server_interact, fill))


class _Lots(NamedTuple):
    """The lots that order updates which arrive at the same time: the smallest comes first.

    Of the updates that arrive at `time`, those with lots up to `least` have been taken. One that
    joins the others later gets a lot above `least` too, so that any of them may be the next.
    """

    key: Key
    time: Array  # f64[]  of the last arrival that was taken
    least: Array  # f64[]

    def draw(self, client: Array, update: Array, finish: Array) -> Array:
        """Draw the lots of clients' updates that finish at the given times: `f64[...]`."""
        lot = _per_update(
            self.key, lambda update_key: jax.random.uniform(update_key, dtype=finish.dtype)
        )(client, update)
        return jnp.where(finish == self.time, self.least + (1 - self.least) * lot, lot)

    def after(self, time: Array, lot: Array) -> "_Lots":
        """Take note of an arrival that was taken, unless a later one was taken before it."""
        is_later = time >= self.time
        return self._replace(
            time=jnp.where(is_later, time, self.time), least=jnp.where(is_later, lot, self.least)
        )


def _held_back(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule readings in which the server takes the Z earliest finishes and restarts clients.

    The cost of a tick grows with the logarithm of the number of clients.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    speeds = _speeds(key, hyper)
    time_key = stream(key, "runtimes")
    sent = 0 if hyper.send_old_model else 1

    def next_keys(lots: _Lots, client: Array, update: Array, restart: Array) -> Array:
        """Draw when clients' updates finish, and make keys of the queue from it: `f64[..., D]`."""
        keys = [restart + update_time(time_key, client, update, speeds, hyper)]
        if hyper.ties == "random":
            keys.append(lots.draw(client, update, keys[0]))
        return jnp.stack(keys, axis=1)

    def tick(
        carry: tuple[Array, _Lots, Queue, Array], t: Array
    ) -> tuple[tuple[Array, _Lots, Queue, Array], tuple[Array, Array, Array]]:
        clock, lots, queue, work = carry
        clients, keys, path = find_earliest(queue, size)
        version, update = take_rows(work, clients).T
        finish = keys[:, 0]
        lots = lots.after(keys[-1, 0], keys[-1, -1])
        acts = jnp.maximum(clock, finish[-1]) + hyper.server_interact
        restart = jnp.maximum(clock, finish) if hyper.restart == "own_finish" else acts
        queue = replace_keys(queue, path, next_keys(lots, clients, update + 1, restart))
        next_work = jnp.stack([jnp.full_like(update, t + sent), update + 1], axis=1)
        work = put_rows(work, clients, next_work)
        return (acts, lots, queue, work), (acts, clients, version)

    # The version and number of the update on which each client works.
    work = jnp.zeros((num, 2), "int32")
    lots = _Lots(stream(key, "ties"), jnp.array(-jnp.inf), jnp.zeros(()))
    queue = make_queue(next_keys(lots, everyone, work[:, 1], jnp.zeros(())), size)
    _, (time, clients, version) = jax.lax.scan(tick, (jnp.zeros(()), lots, queue, work), ticks)
    holds = jnp.broadcast_to(ticks[:, None] + sent, clients.shape)
    return _timeline(time, clients, version, holds, hyper)


def _free(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule readings in which no client waits, by drawing all arrivals before forming ticks."""
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size

    # Lanes run one after another: a batch would run each lane's loops, which work on large arrays,
    # for as long as the slowest lane needs.
    @jax.custom_batching.sequential_vmap
    def first(key: Key, hyper: Arrivals) -> Arrived:
        speeds = _speeds(key, hyper)
        follow = partial(
            _next_update,
            stream(key, "runtimes"),
            stream(key, "losses"),
            stream(key, "phases"),
            speeds,
            hyper,
        )
        lots = _per_update(
            stream(key, "ties"), lambda update_key: jax.random.bits(update_key, (), "uint32")
        )
        return first_arrivals(
            follow, lots if hyper.ties == "random" else None, num_clients=hyper.num_clients, num=num
        )

    time, client, before, at_own = first(key, hyper)
    shape = (num_ticks, size)
    # A client whose own arrival filled the buffer starts from the new model under "free", and from
    # the model before it under "before_aggregation".
    is_late = at_own if hyper.restart == "before_aggregation" else 0
    version = (before - is_late) // size
    holds = (jnp.arange(num) + (hyper.restart == "free")) // size
    return _timeline(
        time.reshape(shape)[:, -1],
        client.reshape(shape),
        version.reshape(shape),
        holds.reshape(shape),
        hyper,
    )


def _speeds(key: Key, hyper: Arrivals) -> Speeds:
    """Draw every client's speed and throttle client 0."""
    speeds = draw_client_speeds(key, hyper)
    return speeds._replace(rate=speeds.rate.at[0].multiply(hyper.throttle))


def _next_update(
    time_key: Key,
    loss_key: Key,
    phase_key: Key,
    speeds: Speeds,
    hyper: Arrivals,
    client: Array,
    attempt: Array,
    time: Array,
) -> Update:
    """Find the next update that is not lost, of clients whose last attempt arrived at `time`."""
    is_lost = _per_update(
        loss_key,
        lambda update_key: jax.random.uniform(update_key, dtype=time.dtype) < hyper.drop_rate,
    )
    on, off = jnp.asarray(hyper.on_time, float), jnp.asarray(hyper.off_time, float)

    def place(client: Array, time: Array) -> Array:
        """Compute how far a client is in its cycle of window and break, in units of time."""
        phase = jax.vmap(
            lambda i: jax.random.uniform(jax.random.fold_in(phase_key, i), dtype=time.dtype)
        )(client)
        return (time + phase * (on + off)) % (on + off)

    def work(client: Array, attempt: Array, time: Array) -> Update:
        taken = update_time(time_key, client, attempt, speeds, hyper)

        def with_breaks() -> tuple[Array, Array]:
            at = place(client, time)
            # Work that exactly fills a window ends with the window, before the break. The tolerance
            # absorbs rounding in the sums.
            is_on = at < on * (1 - 1e-9)
            start = time + jnp.where(is_on, 0, on + off - at)
            left = jnp.where(is_on, on - at, on)
            windows = jnp.maximum(jnp.ceil((taken - left) / on - 1e-9), 0)
            return start, start + taken + windows * off

        return Update(attempt, *jax.lax.cond(off > 0, with_breaks, lambda: (time, time + taken)))

    def again(update: Update, lost: Array) -> tuple[Update, Array]:
        other = work(client, update.attempt + 1, update.finish)
        update = jax.tree.map(lambda new, old: jnp.where(lost, new, old), other, update)
        return update, lost & is_lost(client, update.attempt)

    update = work(client, attempt + 1, time)
    lost = jax.lax.cond(
        hyper.drop_rate > 0,
        lambda: is_lost(client, update.attempt),
        lambda: jnp.zeros(client.shape, bool),
    )
    return jax.lax.while_loop(
        lambda state: state[1].any(), lambda state: again(*state), (update, lost)
    )[0]


def _per_update(key: Key, draw: Callable[[Key], Array]) -> Callable[[Array, Array], Array]:
    """Make a function that draws one value for every client `i32[...]` and update `i32[...]`."""
    return jnp.vectorize(
        lambda client, update: draw(jax.random.fold_in(jax.random.fold_in(key, client), update))
    )


def _new_version(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "new_version".

    Within one tick a client arrives at most twice: once with an older model and once with the
    current one. Then it waits for the tick's model. The Z first arrivals of a tick are among the
    next two arrivals of the Z clients that finish first, so the cost of a tick grows with the
    logarithm of the number of clients.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    places = jnp.arange(2 * size, dtype="int32")
    taken = partial(update_time, stream(key, "runtimes"), speeds=_speeds(key, hyper), clients=hyper)

    def tick(
        carry: tuple[Queue, Array], t: Array
    ) -> tuple[tuple[Queue, Array], tuple[Array, Array, Array, Array]]:
        queue, work = carry
        clients, keys, path = find_earliest(queue, size)
        version, update = take_rows(work, clients).T
        finish, is_current = keys[:, 0], version == t
        second = jnp.where(is_current, jnp.inf, finish + taken(clients, update + 1))
        times, order, place = jax.lax.sort(
            (jnp.concatenate([finish, second]), jnp.tile(clients, 2), places), num_keys=3
        )
        acts, order, place = times[size - 1], order[:size], place[:size]
        came = jnp.zeros(2 * size, bool).at[place].set(True)
        came_once, came_twice = came[:size], came[size:]
        # The client that fills the buffer finds the new model on arrival. A client that worked from
        # the current model has waited for the new one.
        continues = came_once & ~came_twice & ~is_current & (clients != order[-1])
        update = update + came_once.astype("int32") + came_twice.astype("int32")
        finish = jnp.where(
            came_once, jnp.where(continues, second, acts + taken(clients, update)), finish
        )
        is_second, slot = place >= size, place % size
        row = (acts, order, jnp.where(is_second, t, version[slot]))
        version = jnp.where(came_once, jnp.where(continues, t, t + 1), version)
        queue = replace_keys(queue, path, finish[:, None])
        work = put_rows(work, clients, jnp.stack([version, update], axis=1))
        return (queue, work), (*row, version[slot])

    # The version and number of the update on which each client works.
    work = jnp.zeros((num, 2), "int32")
    queue = make_queue(taken(everyone, work[:, 1])[:, None], size)
    _, (time, clients, version, holds) = jax.lax.scan(tick, (queue, work), ticks)
    return _timeline(time, clients, version, holds, hyper)


def _fresh(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule the reading "fresh": at each tick the Z shortest of newly drawn times report.

    Every tick draws the times of all clients, so its cost is proportional to their number.
    """
    num, size = hyper.num_clients, hyper.buffer_size
    everyone, ticks = jnp.arange(num, dtype="int32"), jnp.arange(num_ticks, dtype="int32")
    speeds = _speeds(key, hyper)
    time_key, tie_key = stream(key, "runtimes"), stream(key, "ties")

    def tick(t: Array) -> tuple[Array, Array]:
        keys = [update_time(time_key, everyone, jnp.full_like(everyone, t), speeds, hyper)]
        if hyper.ties == "random":
            keys.append(jax.random.uniform(jax.random.fold_in(tie_key, t), keys[0].shape))
        first = find_earliest(make_queue(jnp.stack(keys, axis=1), size), size)
        return first.keys[-1, 0], first.clients

    taken, clients = jax.lax.map(tick, ticks)
    sent = 0 if hyper.send_old_model else 1
    previous, _ = previous_visits(clients)
    holds = jnp.broadcast_to(ticks[:, None] + sent, clients.shape)
    time = jnp.cumsum(taken + hyper.server_interact)
    return _timeline(time, clients, jnp.where(previous >= 0, previous + sent, 0), holds, hyper)


def _recorded(hyper: Arrivals, num_ticks: int) -> Timeline:
    """Buffer the rows of a trace in order of finish.

    An update starts from the newest version that was made by its recorded start. After the tick
    that took its update a client holds that tick's model, or the older one from which its next row
    started.
    """
    trace, size = hyper.trace, hyper.buffer_size
    known = trace.client.size // size

    def padded(x: Array) -> Array:
        rows = jnp.asarray(x[: known * size]).reshape(known, size)[:num_ticks]
        return jnp.concatenate([rows, jnp.repeat(rows[-1:], max(num_ticks - known, 0), axis=0)])

    def wait(clock: Array, full: Array) -> tuple[Array, Array]:
        acts = jnp.maximum(clock, full) + hyper.server_interact
        return acts, acts

    full = jnp.where(jnp.arange(num_ticks) < known, padded(trace.finish)[:, -1], jnp.inf)
    time = jax.lax.scan(wait, jnp.zeros(()), full)[1]
    start = padded(trace.start)
    version = jnp.minimum(
        jnp.searchsorted(time, start, side="right"), jnp.arange(num_ticks)[:, None]
    )
    clients = padded(trace.client)
    made = jnp.broadcast_to(jnp.arange(1, num_ticks + 1)[:, None], clients.shape)
    order = jnp.argsort(clients.ravel(), stable=True)
    same = jnp.append(clients.ravel()[order][1:] == clients.ravel()[order][:-1], False) & (
        jnp.roll(order, -1) < known * size
    )
    following = jnp.where(same, jnp.roll(version.ravel()[order], -1), num_ticks)
    following = jnp.zeros_like(following).at[order].set(following).reshape(clients.shape)
    return _timeline(time, clients, version, jnp.minimum(made, following), hyper)


def _timeline(
    time: Array, clients: Array, version: Array, holds: Array, hyper: Arrivals
) -> Timeline:
    """Complete a timeline with K steps and the weight 1/Z in every slot."""
    steps = jnp.full(clients.shape, hyper.local_steps)
    return Timeline(
        time, clients, steps, version, jnp.full(clients.shape, 1 / hyper.buffer_size), holds
    )
