"""Client arrivals: the server acts whenever its buffer of Z updates is full."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_sim.participation import previous_visits
from fedjax_sim.settings import ConfigError, choice, count, real, struct, switch
from fedjax_sim.streams import stream
from fedjax_sim.timelines.laws import Clients, client_rates, update_time
from fedjax_sim.types import Array, Key, Timeline


@struct
class Arrivals(Clients):
    """Settings of buffered arrivals."""

    buffer_size: int = count(10)
    """Z: updates that make the server act."""
    server_interact: float = real(3.0, least=0)
    """Time that the exchange takes once the buffer is full; nothing under `restart="free"`, where nobody is held back."""
    restart: str = choice("after_interaction", ("after_interaction", "own_finish", "free", "fresh"))
    """When a client that has finished goes on. "after_interaction": when the exchange of the tick that took its update is over.
    "own_finish": at its own finish, or at the start of that tick if later (the public simulator of QuAFL). "free": at its own finish,
    at once, from the model that is then current (Nguyen et al. 2022); it may fill several slots of one buffer. "fresh": all clients, with
    running times drawn anew, whenever a tick is over, which only fast clients survive (the counter that FAVANO's App. C.2 resets at each
    server step, taken literally); those that did not report keep the model they had."""
    send_old_model: bool = switch(False)
    """Whether reporting clients get the model from before the tick that took their update (the public simulator of QuAFL; the only
    causal reading with "own_finish")."""

    def check_together(self) -> None:
        super().check_together()
        if self.restart != "free" and self.trace is None and self.buffer_size > self.num_clients:
            raise ConfigError("buffer_size", self.buffer_size, f"at most num_clients = {self.num_clients}, or it can never fill")
        if self.trace is not None and self.buffer_size > self.trace.client.size:
            raise ConfigError("buffer_size", self.buffer_size, f"at most the {self.trace.client.size} rows of the trace")
        if self.restart == "own_finish" and not self.send_old_model:
            raise ConfigError(
                "send_old_model", False, 'true under restart = "own_finish", where clients go on before the tick\'s model is made'
            )
        if self.restart == "free" and self.send_old_model:
            raise ConfigError("send_old_model", True, 'false under restart = "free", where a client takes what is current')
        self.left_to_trace("restart", "send_old_model")


def arrivals(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Schedule buffered arrivals of updates of K steps each; weights are 1/Z."""
    if hyper.trace is not None:
        return _recorded(hyper, num_ticks)
    schedules = {"free": _free, "fresh": _fresh}
    return schedules.get(hyper.restart, _held_back)(key, hyper, num_ticks)


Clocks = tuple[Array, Array, Array, Array]
"""The server's clock, and per client the finish, the version and the number of its update."""


def _held_back(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """One scan over ticks: the server takes the Z earliest finishes, ties at random, and decides when their clients go on."""
    everyone = jnp.arange(hyper.num_clients)
    rates = client_rates(key, hyper)
    time_key, tie_key = stream(key, "runtimes"), stream(key, "ties")
    sent = 0 if hyper.send_old_model else 1

    def tick(carry: Clocks, t: Array) -> tuple[Clocks, tuple[Array, Array, Array]]:
        clock, finish, version, updates = carry
        tie = jax.random.uniform(jax.random.fold_in(tie_key, t), finish.shape)
        earliest = jax.lax.sort((finish, tie, everyone), num_keys=2)[2][: hyper.buffer_size]
        acts = jnp.maximum(clock, finish[earliest].max()) + hyper.server_interact
        restart = jnp.maximum(clock, finish[earliest]) if hyper.restart == "own_finish" else acts
        row = (acts, earliest, version[earliest])
        updates = updates.at[earliest].add(1)
        finish = finish.at[earliest].set(restart + update_time(time_key, earliest, updates[earliest], rates, hyper))
        version = version.at[earliest].set(t + sent)
        return (acts, finish, version, updates), row

    none = jnp.zeros_like(everyone)
    start = (jnp.zeros(()), update_time(time_key, everyone, none, rates, hyper), none, none)
    _, (time, clients, version) = jax.lax.scan(tick, start, jnp.arange(num_ticks))
    holds = jnp.broadcast_to(jnp.arange(num_ticks)[:, None] + sent, clients.shape)
    return _timeline(time, clients, version, holds, hyper)


def _free(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """All arrivals at once, by sorting every client's cumulative running times."""
    num_arrivals = num_ticks * hyper.buffer_size
    per_client = min(num_arrivals, 16 + math.ceil(8 * num_arrivals / hyper.num_clients))
    rates = client_rates(key, hyper)
    client, update = jnp.divmod(jnp.arange(hyper.num_clients * per_client), per_client)
    times = update_time(stream(key, "runtimes"), client, update, rates, hyper).reshape(-1, per_client)
    finish = jnp.cumsum(times, axis=1)
    # Beyond the first client's last drawn finish, arrivals are missing.
    horizon = finish[:, -1].min()
    # Drawn client by client, so that asking for more ticks does not decide earlier ties anew.
    tie_keys = jax.vmap(partial(jax.random.fold_in, stream(key, "ties")))(jnp.arange(hyper.num_clients))
    tie = jax.vmap(lambda own: jax.random.uniform(own, (per_client,), finish.dtype))(tie_keys)
    time, _, client = jax.lax.sort((finish.ravel(), tie.ravel(), client), num_keys=2)
    time, client = time[:num_arrivals], client[:num_arrivals]
    shape = (num_ticks, hyper.buffer_size)
    acts = time.reshape(shape)[:, -1]
    # Arrival a is followed by the pull of version (a + 1) // Z, own aggregation included.
    previous, _ = previous_visits(client[:, None])
    version = jnp.where(previous >= 0, (previous + 1) // hyper.buffer_size, 0)
    holds = (jnp.arange(num_arrivals) + 1) // hyper.buffer_size
    acts = jnp.where(acts <= horizon, acts, jnp.nan)
    return _timeline(acts, client.reshape(shape), version.reshape(shape), holds.reshape(shape), hyper)


def _fresh(key: Key, hyper: Arrivals, num_ticks: int) -> Timeline:
    """Every tick by itself: of running times drawn anew for everyone, the Z shortest report, ties at random."""
    everyone, ticks = jnp.arange(hyper.num_clients), jnp.arange(num_ticks)
    rates = client_rates(key, hyper)
    time_key, tie_key = stream(key, "runtimes"), stream(key, "ties")

    def tick(t: Array) -> tuple[Array, Array]:
        taken = update_time(time_key, everyone, jnp.broadcast_to(t, everyone.shape), rates, hyper)
        tie = jax.random.uniform(jax.random.fold_in(tie_key, t), taken.shape)
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
    version = jnp.minimum(jnp.searchsorted(time, start, side="right"), jnp.arange(num_ticks)[:, None])
    clients = padded(trace.client)
    made = jnp.broadcast_to(jnp.arange(1, num_ticks + 1)[:, None], clients.shape)
    order = jnp.argsort(clients.ravel(), stable=True)
    same = jnp.append(clients.ravel()[order][1:] == clients.ravel()[order][:-1], False) & (jnp.roll(order, -1) < known * size)
    following = jnp.where(same, jnp.roll(version.ravel()[order], -1), num_ticks)
    following = jnp.zeros_like(following).at[order].set(following).reshape(clients.shape)
    return _timeline(time, clients, version, jnp.minimum(made, following), hyper)


def _timeline(time: Array, clients: Array, version: Array, holds: Array, hyper: Arrivals) -> Timeline:
    steps = jnp.full(clients.shape, hyper.local_steps)
    return Timeline(time, clients, steps, version, jnp.full(clients.shape, 1 / hyper.buffer_size), holds)
