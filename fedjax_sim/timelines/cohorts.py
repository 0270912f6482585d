"""Who takes part in a tick."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.streams import shuffle_bits, shuffled_index
from fedjax_sim.types import EMPTY, Array, Key


def cohorts(key: Key, num_clients: int, num_selected: int, num_ticks: int) -> Array:
    """Draw a uniform cohort without replacement for every tick: `i32[T, S]`, distinct within a row.

    Work and memory are proportional to the cohorts, not to the number of clients; row t depends on key and t alone.
    """
    ticks, slots = jnp.arange(num_ticks)[:, None], jnp.arange(num_selected)
    return shuffled_index(shuffle_bits(key), slots, num_clients, ticks)


class Draws(NamedTuple):
    """Multisets of clients, one for each tick, every client in at most one slot of it."""

    clients: Array  # i32[T, S]  EMPTY in the slots that are left
    times: Array  # i32[T, S]  how often it was drawn; sums to S over a tick


def draws(key: Key, share: Array, num_draws: int, num_ticks: int) -> Draws:
    """Draw clients independently, with replacement, for every tick; row t depends on key and t alone.

    share: `f[N]`, the clients' probabilities.
    """
    ends = jnp.cumsum(share)
    place = jax.vmap(
        lambda t: jax.random.uniform(jax.random.fold_in(key, t), (num_draws,), ends.dtype)
    )(jnp.arange(num_ticks))
    drawn = jnp.sort(
        jnp.minimum(jnp.searchsorted(ends, place * ends[-1], side="right"), share.shape[0] - 1),
        axis=1,
    )
    is_first = jnp.concatenate(
        [jnp.ones((num_ticks, 1), bool), drawn[:, 1:] != drawn[:, :-1]], axis=1
    )
    times = (drawn[:, :, None] == drawn[:, None, :]).sum(axis=-1)
    return Draws(
        jnp.where(is_first, drawn, EMPTY).astype("int32"),
        jnp.where(is_first, times, 0).astype("int32"),
    )


def previous_visits(clients: Array) -> tuple[Array, Array]:
    """Find each slot's last earlier tick with the same client, and how many there were.

    clients: `i32[T, S]`, none EMPTY; a client may stand several times in a tick, which then counts as an earlier visit, in slot order.
    Returns the tick `i32[T, S]`, -1 for none, and the number of earlier visits `i32[T, S]`.
    """
    flat = clients.ravel()
    order = jnp.argsort(flat, stable=True)
    place = jnp.arange(flat.size)
    is_first = jnp.concatenate([jnp.ones(1, bool), flat[order][1:] != flat[order][:-1]])
    tick = order // clients.shape[1]
    previous = jnp.where(is_first, -1, jnp.roll(tick, 1))
    visit = place - jax.lax.cummax(jnp.where(is_first, place, 0))
    back = jnp.zeros_like(flat).at[order]
    shape = clients.shape
    return back.set(previous.astype(flat.dtype)).reshape(shape), back.set(
        visit.astype(flat.dtype)
    ).reshape(shape)
