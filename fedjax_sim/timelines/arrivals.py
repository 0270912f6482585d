"""Client arrivals: the server acts whenever its buffer of Z updates is full."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, choice, count, real, struct, switch
from fedjax_sim.streams import stream
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.free_arrivals import Arrived, Update, first_arrivals
from fedjax_sim.timelines.laws import ClientDelays, Speeds, client_speeds, update_time
from fedjax_sim.types import Array, Key, Timeline

RESTARTS = ("after_interaction", "own_finish", "free", "before_aggregation", "new_version", "fresh")
FREE = ("free", "before_aggregation")
"""Readings in which nobody waits for the server, so that it does not change the clients' clocks."""
AT_ONCE = (*FREE, "new_version")
"""Readings in which the server acts as soon as its buffer is full."""


@struct
class Arrivals(ClientDelays):
    """Settings of buffered arrivals."""

    buffer_size: int = count(10, "Z (or b): updates that make the server act.")
    server_interact: float = real(
        3.0,
        'Time that the exchange takes once the buffer is full; nothing under "free", "before_aggregation" and "new_version".',
        least=0,
    )
    restart: str = choice(
        "after_interaction",
        RESTARTS,
        'When a client that has finished goes on. "after_interaction": when the exchange of the tick that took its update is over. "own_finish": at its own finish, or at the start of that tick if later (the public simulator of QuAFL). "free": at its own finish, at once, from the model that is then current (Nguyen et al. 2022), with its own update in it if that filled the buffer; a client may fill several slots of one buffer. "before_aggregation": the same, but with the model from before the tick that its update makes. "new_version": at its own finish if there is a newer model than the one it worked from, else as soon as there is (the public bench of FedStaleWeight). "fresh": all clients, with running times drawn anew, whenever a tick is over, which only fast clients survive (the counter that FAVANO\'s App. C.2 resets at each server step, taken literally); those that did not report keep the model they had.',
    )
    send_old_model: bool = switch(
        False,
        'Whether reporting clients get the model from before the tick that took their update (the public simulator of QuAFL; the only causal reading with "own_finish").',
    )
    throttle: float = real(
        1.0,
        "Share of its own rate at which client 0 works, its times longer in proportion: what it gets by reporting less than it could.",
        above=0,
        most=1,
    )
    ties: str = choice(
        "random",
        ("random", "client"),
        "Who comes first among updates that arrive at one time: one drawn at random, or the client of the lowest number.",
    )
    drop_rate: float = real(
        0.0,
        "Share of finished updates that are lost on their way; their clients go on with the model that is then current.",
        least=0,
        most=0.99,
    )
    on_time: float = real(
        1.0,
        "Length of the windows in which a client works, each followed by a break of `off_time`, from a place in that cycle of its own.",
        above=0,
    )
    off_time: float = real(0.0, "Off time.", least=0)

    def check_together(self) -> None:
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
                'true under restart = "own_finish", where clients go on before the tick\'s model is made',
            )
        if self.restart in AT_ONCE and self.send_old_model:
            raise ConfigError(
                "send_old_model",
                True,
                f'false under restart = "{self.restart}", where a client takes what is current',
            )
        if self.restart == "new_version" and self.ties == "random":
            raise ConfigError("ties", "random", '"client" under restart = "new_version"')
        for name in ("drop_rate", "off_time"):
            value = float(np.max(getattr(self, name)))
            if value > 0 and self.restart not in FREE:
                raise ConfigError(
                    name,
                    value,
                    f'0 under restart = "{self.restart}", or restart one of {", ".join(FREE)}',
                )

    def decided(self) -> dict[str, str]:
        own = ("restart", "send_old_model", "throttle", "ties", "drop_rate", "on_time", "off_time")
        return super().decided() | self.decided_by_trace(*own)


def schedule_arrivals(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule buffered arrivals of updates of K steps each; weights are 1/Z."""
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
    """About how many ticks fit in a stretch of virtual time: updates arrive at the sum of the clients' rates, and exchanges take theirs."""
    working = hyper.on_time / (hyper.on_time + hyper.off_time) * (1 - hyper.drop_rate)
    fill = (
        hyper.buffer_size * hyper.times_per_update / (hyper.num_clients * hyper.mean_rate * working)
    )
    return time / (fill if hyper.restart in AT_ONCE else np.maximum(hyper.server_interact, fill))


Clocks = tuple[Array, Array, Array, Array]
"""The server's clock, and per client the finish, the version and the number of its update."""


def _held_back(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """One scan over ticks: the server takes the Z earliest finishes, and decides when their clients go on."""
    everyone = jnp.arange(hyper.num_clients)
    speeds = _speeds(key, hyper)
    time_key, tie_key = stream(key, "runtimes"), stream(key, "ties")
    sent = 0 if hyper.send_old_model else 1

    def tick(carry: Clocks, t: Array) -> tuple[Clocks, tuple[Array, Array, Array]]:
        clock, finish, version, updates = carry
        tie = (
            jax.random.uniform(jax.random.fold_in(tie_key, t), finish.shape)
            if hyper.ties == "random"
            else everyone.astype(float)
        )
        earliest = jax.lax.sort((finish, tie, everyone), num_keys=2)[2][: hyper.buffer_size]
        acts = jnp.maximum(clock, finish[earliest].max()) + hyper.server_interact
        restart = jnp.maximum(clock, finish[earliest]) if hyper.restart == "own_finish" else acts
        row = (acts, earliest, version[earliest])
        updates = updates.at[earliest].add(1)
        finish = finish.at[earliest].set(
            restart + update_time(time_key, earliest, updates[earliest], speeds, hyper)
        )
        version = version.at[earliest].set(t + sent)
        return (acts, finish, version, updates), row

    none = jnp.zeros_like(everyone)
    start = (jnp.zeros(()), update_time(time_key, everyone, none, speeds, hyper), none, none)
    _, (time, clients, version) = jax.lax.scan(tick, start, jnp.arange(num_ticks))
    holds = jnp.broadcast_to(jnp.arange(num_ticks)[:, None] + sent, clients.shape)
    return _timeline(time, clients, version, holds, hyper)


def _free(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """All arrivals at once: nobody waits for the server."""
    size, num = hyper.buffer_size, num_ticks * hyper.buffer_size

    # One lane after the other: loops of unlike lengths over large arrays.
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
        lots = _per_update(stream(key, "ties"), lambda own: jax.random.bits(own, (), "uint32"))
        return first_arrivals(
            follow, lots if hyper.ties == "random" else None, num_clients=hyper.num_clients, num=num
        )

    time, client, before, at_own = first(key, hyper)
    shape = (num_ticks, size)
    # After its own arrival, the last of the tick it makes, a client takes the new model or the one before.
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
    speeds = client_speeds(key, hyper)
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
    """The next update that gets through, of clients whose last attempt arrived at a time."""
    is_lost = _per_update(
        loss_key, lambda own: jax.random.uniform(own, dtype=time.dtype) < hyper.drop_rate
    )
    on, off = jnp.asarray(hyper.on_time, float), jnp.asarray(hyper.off_time, float)

    def place(client: Array, time: Array) -> Array:
        """Where in its cycle of work and break a client is."""
        phase = jax.vmap(
            lambda i: jax.random.uniform(jax.random.fold_in(phase_key, i), dtype=time.dtype)
        )(client)
        return (time + phase * (on + off)) % (on + off)

    def work(client: Array, attempt: Array, time: Array) -> Update:
        taken = update_time(time_key, client, attempt, speeds, hyper)

        def with_breaks() -> tuple[Array, Array]:
            at = place(client, time)
            # A time that fills a window ends with it, before the break, whatever the last bits of sums.
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
    """A draw for every client and number of its update `[...]`."""
    return jnp.vectorize(
        lambda client, update: draw(jax.random.fold_in(jax.random.fold_in(key, client), update))
    )


def _new_version(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """One scan over ticks. In a tick a client arrives once with an older model and once with the current one at most, and then waits."""
    num, size = hyper.num_clients, hyper.buffer_size
    everyone = jnp.arange(num)
    speeds = _speeds(key, hyper)
    taken = partial(update_time, stream(key, "runtimes"), everyone, speeds=speeds, clients=hyper)

    def tick(carry: tuple[Array, Array, Array], t: Array) -> tuple[Any, tuple[Array, ...]]:
        finish, version, updates = carry
        is_current = version == t
        second = jnp.where(is_current, jnp.inf, finish + taken(updates + 1))
        times = jnp.concatenate([finish, second])
        order = jax.lax.sort((times, jnp.tile(everyone, 2), jnp.arange(2 * num)), num_keys=3)[2][
            :size
        ]
        acts = times[order[-1]]
        clients, is_second = order % num, order >= num
        came = jnp.zeros(num, int).at[clients].add(1)
        # Whoever fills the buffer finds the new model there; whoever worked from the current one has waited for it.
        goes_on = (came == 1) & ~is_current & (everyone != clients[-1])
        updates = updates + came
        finish = jnp.where(came == 0, finish, jnp.where(goes_on, second, acts + taken(updates)))
        row = (acts, clients, jnp.where(is_second, t, version[clients]))
        version = jnp.where(came == 0, version, jnp.where(goes_on, t, t + 1))
        return (finish, version, updates), (*row, version[clients])

    start = (taken(jnp.zeros_like(everyone)), jnp.zeros_like(everyone), jnp.zeros_like(everyone))
    _, (time, clients, version, holds) = jax.lax.scan(tick, start, jnp.arange(num_ticks))
    return _timeline(time, clients, version, holds, hyper)


def _fresh(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Every tick by itself: of running times drawn anew for everyone, the Z shortest report, ties at random."""
    everyone, ticks = jnp.arange(hyper.num_clients), jnp.arange(num_ticks)
    speeds = _speeds(key, hyper)
    time_key, tie_key = stream(key, "runtimes"), stream(key, "ties")

    def tick(t: Array) -> tuple[Array, Array]:
        taken = update_time(time_key, everyone, jnp.broadcast_to(t, everyone.shape), speeds, hyper)
        tie = (
            jax.random.uniform(jax.random.fold_in(tie_key, t), taken.shape)
            if hyper.ties == "random"
            else everyone.astype(float)
        )
        taken, _, order = jax.lax.sort((taken, tie, everyone), num_keys=2)
        return taken[hyper.buffer_size - 1], order[: hyper.buffer_size]

    taken, clients = jax.lax.map(tick, ticks)
    sent = 0 if hyper.send_old_model else 1
    previous, _ = previous_visits(clients)
    holds = jnp.broadcast_to(ticks[:, None] + sent, clients.shape)
    time = jnp.cumsum(taken + hyper.server_interact)
    return _timeline(time, clients, jnp.where(previous >= 0, previous + sent, 0), holds, hyper)


def _recorded(hyper: Arrivals, num_ticks: int) -> Timeline:
    """Buffer the rows of a trace in order of finish; an update starts from the version made by its recorded start.

    After a tick that took its update a client holds the model of that tick, or the older one that its next row started from.
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
    steps = jnp.full(clients.shape, hyper.local_steps)
    return Timeline(
        time, clients, steps, version, jnp.full(clients.shape, 1 / hyper.buffer_size), holds
    )
