"""Find the first A arrivals, in order, of many clients that never wait for the server.

The search processes a queue of arrivals in blocks. Each arrival is followed by the next arrival of
the same client, which joins the queue if it can still be among the first A. Whenever the queue is
full, all but the first A are dropped; this bounds the time of arrivals that can still join. Time
and memory are therefore proportional to A plus the number of clients, however different the
clients' speeds are, and the result is exact.

Dimension letters: `N` clients, `A` arrivals asked for, `C` capacity of the queue.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.types import Array

BLOCK = 2**16
"""Most arrivals in one block of the search."""
LARGEST = 2**63 - 1
"""Largest 64-bit integer: a place after all others."""


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


class _Queue(NamedTuple):
    """Arrivals in the order in which they joined the queue."""

    client: Array  # i32[C]
    attempt: Array  # i32[C]
    visit: Array  # i32[C]  number of the arrival among its client's, from 0
    tie: Array  # u32[C]  orders arrivals at the same time
    start: Array  # f64[C]
    finish: Array  # f64[C]


class _Search(NamedTuple):
    """The queue, how far it has been processed, and the bound on arrivals that may still join.

    An arrival after `latest`, or at it with a place beyond `latest_place`, is not among the first.
    """

    read: Array  # i32[]  entries of the queue before this have been followed
    write: Array  # i32[]  entries in the queue
    latest: Array  # f64[]
    latest_place: Array  # i64[]
    queue: _Queue


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
    # A queue in the order in which updates are found, which begins with the first of every
    # client.
    block = min(BLOCK, num_clients)
    capacity = num + max(num_clients, num // 4) + 2 * block
    everyone = jnp.arange(num_clients, dtype="int32")
    tie_breakers = tie or (lambda client, attempt: client.astype("uint32"))
    attempt, start, finish = follow(everyone, jnp.full_like(everyone, -1), jnp.zeros(num_clients))
    ties = tie_breakers(everyone, attempt)
    first = _Queue(everyone, attempt, jnp.zeros_like(everyone), ties, start, finish)
    queue = _Queue(*(jnp.zeros(capacity, leaf.dtype).at[:num_clients].set(leaf) for leaf in first))

    def one_block(search: _Search) -> _Search:
        read, write, latest, latest_place, queue = search
        followed = _Queue(*(jax.lax.dynamic_slice(leaf, (read,), (block,)) for leaf in queue))
        # The branch makes XLA materialise the block before the queue is written to. Without it, the
        # whole queue would be copied for every block.
        followed = jax.lax.cond(
            read >= 0, lambda rows: rows, lambda rows: jax.tree.map(jnp.zeros_like, rows), followed
        )
        # The next updates of a block's clients join the queue if they may be among the
        # first `num`.
        attempt, start, finish = follow(followed.client, followed.attempt, followed.finish)
        drawn = tie_breakers(followed.client, attempt)
        drawn = jnp.where(finish == followed.finish, jnp.maximum(drawn, followed.tie), drawn)
        following = _Queue(followed.client, attempt, followed.visit + 1, drawn, start, finish)
        joins = _is_first(following, latest, latest_place) & (jnp.arange(block) < write - read)
        packed = _packed(following, joins, block)
        return search._replace(
            read=jnp.minimum(read + block, write),
            write=write + joins.sum(dtype="int32"),
            queue=jax.tree.map(
                lambda leaf, x: jax.lax.dynamic_update_slice(leaf, x, (write,)), queue, packed
            ),
        )

    def until_full(search: _Search) -> _Search:
        search = jax.lax.while_loop(
            lambda s: (s.read < s.write) & (s.write + block <= capacity), one_block, search
        )
        return _only_first(search, num)

    start_of_search = _Search(
        jnp.int32(0), jnp.int32(num_clients), jnp.float64(jnp.inf), jnp.int64(LARGEST), queue
    )
    found = jax.lax.while_loop(lambda s: s.read < s.write, until_full, start_of_search)
    return _in_order(found, num_clients, num, block)


def _place(queue: _Queue) -> Array:
    """Order arrivals at the same time, `i64[...]`: by tie breaker, then by visit."""
    return (queue.tie.astype("int64") << 31) | queue.visit


def _is_first(queue: _Queue, latest: Array, latest_place: Array) -> Array:
    """Tell which arrivals are not beyond the bound."""
    return (queue.finish < latest) | ((queue.finish == latest) & (_place(queue) <= latest_place))


def _packed(queue: _Queue, keep: Array, size: int) -> _Queue:
    """Move the entries to keep, in their order, to the beginning of arrays of the given size."""
    place = jnp.where(keep, jnp.cumsum(keep, dtype="int32") - 1, size)
    return _Queue(*(jnp.zeros(size, leaf.dtype).at[place].set(leaf, mode="drop") for leaf in queue))


def _only_first(search: _Search, num: int) -> _Search:
    """Drop all arrivals but the first `num` if there are more, and tighten the bound."""
    read, write, _, _, queue = search
    index = jnp.arange(queue.client.size)
    # Times are not negative, so they are in the order of their bits read as integers.
    bits = jax.lax.bitcast_convert_type(queue.finish, "int64")
    bits = jnp.where(index < write, bits, LARGEST)
    infinity = jax.lax.bitcast_convert_type(jnp.float64(jnp.inf), "int64")
    latest = _least(lambda x: (bits <= x).sum(), jnp.int64(0), infinity, num)
    before, at = (bits < latest).sum(), bits == latest
    places, low, high = _place(queue), jnp.int64(0), jnp.int64(LARGEST)
    place = _least(lambda x: before + (at & (places <= x)).sum(), low, high, num)
    time = jax.lax.bitcast_convert_type(latest, "float64")
    keep = (index < write) & _is_first(queue, time, place)
    followed = (keep & (index < read)).sum(dtype="int32")
    packed = _packed(queue, keep, index.size)
    kept = _Search(followed, keep.sum(dtype="int32"), time, place, packed)
    return jax.tree.map(lambda new, old: jnp.where(write > num, new, old), kept, search)


def _least(count: Callable[[Array], Array], low: Array, high: Array, num: int) -> Array:
    """Find by bisection an x with count(x) = num, or the smallest x with count(x) > num."""

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        found = count(middle)
        least = jnp.where(found < num, middle + 1, jnp.where(found == num, middle, low))
        return least, jnp.where(found < num, high, middle)

    return jax.lax.while_loop(lambda bounds: bounds[0] < bounds[1], halve, (low, high))[1]


def _in_order(search: _Search, num_clients: int, num: int, spare: int) -> Arrived:
    """Sort the arrivals found by time, and count the earlier arrivals in each client's model."""
    # More than `num` arrivals remain only if clients drew the same tie breaker at the same time.
    size = num + spare
    queue = _Queue(*(leaf[:size] for leaf in search.queue))
    is_there = jnp.arange(size) < search.write
    counts = jnp.zeros(num_clients, "int32").at[queue.client].add(is_there.astype("int32"))
    place = jnp.where(is_there, (jnp.cumsum(counts) - counts)[queue.client] + queue.visit, size)
    # Rearrange the arrivals client by client, each client's in order.
    client = jnp.full(size, -1, "int32").at[place].set(queue.client, mode="drop")
    start = jnp.zeros(size).at[place].set(queue.start, mode="drop")
    finish = jnp.full(size, jnp.inf).at[place].set(queue.finish, mode="drop")
    tie = jnp.zeros(size, "uint32").at[place].set(queue.tie, mode="drop")
    order = jax.lax.sort((finish, tie, jnp.arange(size, dtype="int32")), num_keys=2)[2]
    rank = jnp.zeros(size, "int32").at[order].set(jnp.arange(size, dtype="int32"))
    at_own = jnp.append(False, (client[1:] == client[:-1]) & (start[1:] == finish[:-1]))
    in_between = ~at_own & (start > 0)
    # A model taken between the client's arrivals contains all arrivals up to then, but none after
    # the update that is computed from it.
    until = jnp.searchsorted(finish[order], start, side="right").astype("int32")
    known = jnp.where(in_between, jnp.minimum(until, rank), 0)
    before = jnp.where(at_own, jnp.roll(rank, 1) + 1, known)
    order = order[:num]
    return Arrived(finish[order], client[order], before[order], at_own[order])
