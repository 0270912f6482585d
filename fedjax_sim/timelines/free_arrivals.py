"""The first arrivals of many clients that never wait for the server, in order.

A queue of arrivals is worked off in blocks: each is followed by its client's next one, which joins the queue if it can still be among the
first. Whenever the queue is full all but the first are dropped, which bounds the time of those that can join. So time and memory are
proportional to the arrivals asked for and the number of clients, however unlike the clients' speeds are, and nothing is cut off.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.types import Array

BLOCK = 2**16
"""Most arrivals that are followed at once."""
LARGEST = 2**63 - 1


class Update(NamedTuple):
    """The next update of a client that gets through."""

    attempt: Array  # i32[...]  number of the update, lost ones counted
    start: Array  # f64[...]  when its client took the server's model
    finish: Array  # f64[...]  when it arrives


class Arrived(NamedTuple):
    """The first `A` arrivals, in order."""

    time: Array  # f64[A]
    client: Array  # i32[A]
    before: Array  # i32[A]  arrivals that the server had taken when the client took its model, its own last one included
    at_own: Array  # bool[A]  whether it took the model at its own last arrival


class _Queue(NamedTuple):
    client: Array  # i32[C]
    attempt: Array  # i32[C]
    visit: Array  # i32[C]  number of the client's arrival
    tie: Array  # u32[C]
    start: Array  # f64[C]
    finish: Array  # f64[C]


class _Search(NamedTuple):
    read: Array  # i32[]  arrivals before this have been followed
    write: Array  # i32[]  arrivals in the queue
    latest: Array  # f64[]  no arrival after this time (at it: of a larger place) is among the first
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

    follow: from clients, attempts (-1: none yet) `i32[...]` and times `f64[...]` at which these arrived to the next updates. tie: from
    clients and attempts to lots `u32[...]`, the smaller first among arrivals at one time; None for order by client. An update of no length
    arrives after the one it follows, whatever its lot.
    """
    block = min(BLOCK, num_clients)
    capacity = num + max(num_clients, num // 4) + 2 * block
    everyone = jnp.arange(num_clients, dtype="int32")
    lots = tie or (lambda client, attempt: client.astype("uint32"))
    attempt, start, finish = follow(everyone, jnp.full_like(everyone, -1), jnp.zeros(num_clients))
    first = _Queue(
        everyone, attempt, jnp.zeros_like(everyone), lots(everyone, attempt), start, finish
    )
    queue = _Queue(*(jnp.zeros(capacity, leaf.dtype).at[:num_clients].set(leaf) for leaf in first))

    def one_block(search: _Search) -> _Search:
        read, write, latest, latest_place, queue = search
        own = _Queue(*(jax.lax.dynamic_slice(leaf, (read,), (block,)) for leaf in queue))
        # A branch sets them apart before the queue is written to, which would else be copied as a whole for every block.
        own = jax.lax.cond(
            read >= 0, lambda own: own, lambda own: jax.tree.map(jnp.zeros_like, own), own
        )
        attempt, start, finish = follow(own.client, own.attempt, own.finish)
        lot = lots(own.client, attempt)
        lot = jnp.where(finish == own.finish, jnp.maximum(lot, own.tie), lot)
        following = _Queue(own.client, attempt, own.visit + 1, lot, start, finish)
        joins = _is_first(following, latest, latest_place) & (jnp.arange(block) < write - read)
        packed = _packed(following, joins, block)
        queue = _Queue(
            *(
                jax.lax.dynamic_update_slice(leaf, x, (write,))
                for leaf, x in zip(queue, packed, strict=True)
            )
        )
        return _Search(
            jnp.minimum(read + block, write),
            write + joins.sum(dtype="int32"),
            latest,
            latest_place,
            queue,
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
    return _in_order(found, num_clients, num, block, by_client=tie is None)


def _place(queue: _Queue) -> Array:
    """Order of arrivals at one time: by their lots; those of one client, if they share one, by their numbers. `i64[...]`."""
    return (queue.tie.astype("int64") << 31) | queue.visit


def _is_first(queue: _Queue, latest: Array, latest_place: Array) -> Array:
    return (queue.finish < latest) | ((queue.finish == latest) & (_place(queue) <= latest_place))


def _packed(queue: _Queue, keep: Array, size: int) -> _Queue:
    """What is kept, in its order, at the beginning of arrays of a size."""
    place = jnp.where(keep, jnp.cumsum(keep, dtype="int32") - 1, size)
    return _Queue(*(jnp.zeros(size, leaf.dtype).at[place].set(leaf, mode="drop") for leaf in queue))


def _only_first(search: _Search, num: int) -> _Search:
    """Drop all arrivals but the first `num`, if there are more."""
    read, write, _, _, queue = search
    index = jnp.arange(queue.client.size)
    # Times are not negative, and in the order of their bits.
    bits = jnp.where(
        index < write, jax.lax.bitcast_convert_type(queue.finish, "int64"), jnp.iinfo("int64").max
    )
    infinity = jax.lax.bitcast_convert_type(jnp.float64(jnp.inf), "int64")
    latest = _least(lambda x: (bits <= x).sum(), jnp.int64(0), infinity, num)
    before, at = (bits < latest).sum(), bits == latest
    places = _place(queue)
    place = _least(
        lambda x: before + (at & (places <= x)).sum(), jnp.int64(0), jnp.int64(LARGEST), num
    )
    time = jax.lax.bitcast_convert_type(latest, "float64")
    keep = (index < write) & _is_first(queue, time, place)
    kept = _Search(
        (keep & (index < read)).sum(dtype="int32"),
        keep.sum(dtype="int32"),
        time,
        place,
        _packed(queue, keep, index.size),
    )
    return jax.tree.map(lambda new, old: jnp.where(write > num, new, old), kept, search)


def _least(count: Callable[[Array], Array], low: Array, high: Array, num: int) -> Array:
    """Find an x with count(x) = num, else the least with at least so many, by bisection."""

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        found = count(middle)
        return jnp.where(found < num, middle + 1, jnp.where(found == num, middle, low)), jnp.where(
            found < num, high, middle
        )

    return jax.lax.while_loop(lambda bounds: bounds[0] < bounds[1], halve, (low, high))[1]


def _in_order(
    search: _Search, num_clients: int, num: int, spare: int, *, by_client: bool
) -> Arrived:
    # Only clients who draw one and the same lot at one time can be more than were asked for.
    size = num + spare
    queue = _Queue(*(leaf[:size] for leaf in search.queue))
    is_there = jnp.arange(size) < search.write
    counts = jnp.zeros(num_clients, "int32").at[queue.client].add(is_there.astype("int32"))
    place = jnp.where(is_there, (jnp.cumsum(counts) - counts)[queue.client] + queue.visit, size)
    # A table of all arrivals: client by client, each in order.
    client = jnp.full(size, -1, "int32").at[place].set(queue.client, mode="drop")
    start = jnp.zeros(size).at[place].set(queue.start, mode="drop")
    finish = jnp.full(size, jnp.inf).at[place].set(queue.finish, mode="drop")
    if by_client:
        order = _argsort(finish)
    else:
        tie = jnp.zeros(size, "uint32").at[place].set(queue.tie, mode="drop")
        order = jax.lax.sort((finish, tie, jnp.arange(size, dtype="int32")), num_keys=2)[2]
    rank = jnp.zeros(size, "int32").at[order].set(jnp.arange(size, dtype="int32"))
    at_own = jnp.append(False, (client[1:] == client[:-1]) & (start[1:] == finish[:-1]))
    in_between = ~at_own & (start > 0)
    # A model that is not taken at an arrival of one's own is taken after all arrivals until then, but for those after its own update.
    until = jax.lax.cond(
        in_between.any(),
        lambda: jnp.searchsorted(finish[order], start, side="right").astype("int32"),
        lambda: jnp.zeros(size, "int32"),
    )
    before = jnp.where(
        at_own, jnp.roll(rank, 1) + 1, jnp.where(in_between, jnp.minimum(until, rank), 0)
    )
    order = order[:num]
    return Arrived(finish[order], client[order], before[order], at_own[order])


def _argsort(times: Array) -> Array:
    """Sort times, none negative, equal ones by index: several times as fast as the library's `argsort` of 64-bit numbers on a CPU.

    One sort of whole numbers, that hold a rounded time and the index; then neighbours of one rounded time change places as they must.
    """
    size = times.size
    index_bits = size.bit_length()
    steps = 2.0 ** (62 - index_bits) - 2
    is_finite = jnp.isfinite(times)
    largest = jnp.where(is_finite, times, 0).max()
    rounded = jnp.where(
        is_finite,
        jnp.where(is_finite, times, 0) * (steps / jnp.where(largest > 0, largest, 1)),
        steps + 1,
    )
    key = (rounded.astype("int64") << index_bits) | jnp.arange(size, dtype="int64")
    order = (jnp.sort(key) & (2**index_bits - 1)).astype("int32")

    def is_inverted(order: Array) -> Array:
        """`bool[size]`, whether an entry and the next one should change places."""
        time = times[order]
        return jnp.append(
            (time[:-1] > time[1:]) | ((time[:-1] == time[1:]) & (order[:-1] > order[1:])), False
        )

    def exchange(order: Array, parity: int) -> Array:
        first = is_inverted(order) & (jnp.arange(size) % 2 == parity)
        second = jnp.roll(first, 1)
        return jnp.where(first, jnp.roll(order, -1), jnp.where(second, jnp.roll(order, 1), order))

    return jax.lax.while_loop(
        lambda order: is_inverted(order).any(), lambda order: exchange(exchange(order, 0), 1), order
    )
