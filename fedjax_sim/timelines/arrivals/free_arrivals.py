"""Arrivals of clients that never wait: each begins its next update as soon as one has arrived.

Arrivals are found one after another, in a tree of minima over the clients, so one costs O(log N).

Dimension letters: `N` clients, `A` arrivals asked for.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.types import Array
from fedjax_sim.timelines.arrivals.queue import Queue, put_rows, take_rows
from fedjax_sim.timelines.cohorts import previous_visits


class Update(NamedTuple):
    """A client's next update that reaches the server.

    Attributes:
      attempt: `i32[...]`, number of the update, counting lost ones, from 0.
      start: `f64[...]`, virtual time at which its client took the server's model.
      finish: `f64[...]`, virtual time at which it arrives.
    """

    attempt: Array
    start: Array
    finish: Array


class Arrived(NamedTuple):
    """The first arrivals, in order of time.

    Attributes:
      time: `f64[A]`, virtual time of the arrival.
      client: `i32[A]`, client whose update arrives.
      before: `i32[A]`, arrivals that the server had received when the client took the model for
        this update, including the client's own previous one.
      at_own: `bool[A]`, whether the client took that model at its own previous arrival.
    """

    time: Array
    client: Array
    before: Array
    at_own: Array


State = tuple[Queue, Array, Array]
"""The queue, and the attempt and the start of each client's update in it."""


def first_arrivals(
    follow: Callable[[Array, Array, Array], Update],
    tie: Callable[[Array, Array], Array] | None,
    *,
    num_clients: int,
    num: int,
) -> Arrived:
    """Find the first `num` arrivals.

    An update that takes no time arrives after the one it follows, whatever its tie breaker.

    Args:
      follow: Function from clients `i32[...]`, the numbers of their last attempts `i32[...]` (-1
        before the first) and the times `f64[...]` at which these arrived, to their next updates.
      tie: Function from clients and attempts to tie breakers `u32[...]`. Of arrivals at the same
        time the one with the smaller number comes first. None orders them by client number.
      num_clients: Number of clients N.
      num: Number of arrivals A.

    Returns:
      The arrivals, in order.
    """
    everyone, zeros = jnp.arange(num_clients, dtype="int32"), jnp.zeros(num_clients)

    def keys_of(client: Array, update: Update, now: Array, last: Array) -> Array:
        drawn = (client if tie is None else tie(client, update.attempt)).astype(float)
        drawn = jnp.where(update.finish == now, jnp.maximum(drawn, last), drawn)
        return jnp.stack([update.finish, drawn], axis=-1)

    def arrive(state: State, _: None) -> tuple[State, tuple[Array, Array, Array]]:
        queue, attempts, starts = state
        client, keys = queue.earliest(1)
        now, last = keys.T
        start, update = take_rows(starts, client), follow(client, take_rows(attempts, client), now)
        queue = queue.replaced(client, keys_of(client, update, now, last))
        attempts = put_rows(attempts, client, update.attempt)
        return (queue, attempts, put_rows(starts, client, update.start)), (now, client, start)

    first = follow(everyone, jnp.full_like(everyone, -1), zeros)
    state = Queue.of(keys_of(everyone, first, zeros, zeros), 1), first.attempt, first.start
    time, client, start = map(jnp.ravel, jax.lax.scan(arrive, state, length=num)[1])
    previous = previous_visits(client[:, None])[0][:, 0]
    at_own = (previous >= 0) & (start == time[previous])
    # A model taken between the client's arrivals contains all arrivals up to then, but none after
    # the update that is computed from it.
    until = jnp.searchsorted(time, start, side="right").astype("int32")
    known = jnp.where(start > 0, jnp.minimum(until, jnp.arange(num, dtype="int32")), 0)
    return Arrived(time, client, jnp.where(at_own, previous + 1, known), at_own)
