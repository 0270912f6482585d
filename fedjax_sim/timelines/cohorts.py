"""Draw which clients take part in a tick, and find out when and how often they did before.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings, streams
from fedjax_sim.core.types import EMPTY, Array, Key


def draw_cohorts(key: Key, num_clients: int, num_selected: int, num_ticks: int) -> Array:
    """Draw a uniform cohort without replacement for every tick: `i32[T, S]`, distinct in a row.

    Work and memory are proportional to the cohorts, not to the number of clients N. Row t depends
    only on `key` and t.
    """
    ticks, slots = jnp.arange(num_ticks)[:, None], jnp.arange(num_selected)
    return streams.shuffled_index(streams.shuffle_bits(key), slots, num_clients, ticks)


def draw_poisson_cohorts(
    key: Key, num_clients: int, expected: int, num_ticks: int
) -> tuple[Array, Array]:
    """Draw a cohort for every tick to which each client belongs independently (Poisson sampling).

    The number of clients is binomial, and given the number the cohort is uniform. The number is
    drawn by one uniform number of 64 bits, which sets the largest cohort: larger ones have a
    probability below 2^-52, the resolution of that number. Row t depends only on `key` and t.

    Args:
      key: Key of the cohorts.
      num_clients: Number of clients N.
      expected: Expected number of clients in a cohort, m, at most N: each client belongs to it with
        probability m / N.
      num_ticks: Number of ticks T.

    Returns:
      Client numbers, `i32[T, S]`, distinct within a row; `EMPTY` in unused slots. And which slots
      are of the cohort, `bool[T, S]`. They differ in an empty cohort: its first slot holds a client
      all the same, because a tick without any client would be taken for padding.
    """
    from scipy import stats  # Slow to import.

    law = stats.binom(num_clients, expected / num_clients)
    most = min(num_clients, int(law.isf(2.0**-53)))
    table = jnp.asarray(law.cdf(np.arange(most)))
    sizes_key, cohorts_key = streams.lane_stream(key, "sizes"), streams.lane_stream(key, "members")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(sizes_key, jnp.arange(num_ticks))
    drawn = jax.vmap(lambda own: jax.random.uniform(own, (), table.dtype))(keys)
    size = jnp.searchsorted(table, drawn, side="right")[:, None]
    clients = draw_cohorts(cohorts_key, num_clients, most, num_ticks)
    slots = jnp.arange(most)[None]
    return jnp.where(slots < jnp.maximum(size, 1), clients, EMPTY), slots < size


Weighting = Literal["equal", "examples"]
"""How clients are weighted in a mean."""


def client_weighting(mean: str) -> Any:
    """Make the setting of the clients' weights, a choice of "equal" and "examples".

    Args:
      mean: The mean that has these weights, in words.
    """
    about = f"Weights of the clients, in {mean}: equal, or in proportion to their numbers of "
    return settings.setting("equal", f"{about}examples.")


def mean_weights(weighting: str, counts: Array, clients: Array, is_in: Array) -> Array:
    """Weigh clients in a mean of those that are in, by their setting `client_weighting`.

    Args:
      weighting: The setting.
      counts: Everyone's number of examples, `i32[N]`.
      clients: Client numbers, `i32[S]`; `EMPTY` in empty slots.
      is_in: `bool[S]`.

    Returns:
      `f[S]` of sum 1; 0 if nobody is in.
    """
    own = jnp.ones_like(clients) if weighting == "equal" else counts[jnp.maximum(clients, 0)]
    share = jnp.where(is_in, own, 0).astype(float)
    return share / jnp.maximum(share.sum(), 1)


Draws = tuple[Array, Array]
"""Different clients `i32[T, S]` of each tick, and how often each was drawn; EMPTY, and 0, in unused
slots."""


def draw_with_replacement(key: Key, share: Array, num_draws: int, num_ticks: int) -> Draws:
    """Draw clients independently and with replacement for every tick.

    Row t depends only on `key` and t.

    Args:
      key: Key of the draws.
      share: `f[N]`, probabilities of the clients, up to a common factor.
      num_draws: Draws per tick, S.
      num_ticks: Number of ticks T.

    Returns:
      The drawn clients and how often each was drawn.
    """
    ends = jnp.cumsum(share)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_ticks))
    place = jax.vmap(lambda own: jax.random.uniform(own, (num_draws,), ends.dtype))(keys)
    drawn = jnp.searchsorted(ends, place * ends[-1], side="right")
    drawn = jnp.sort(jnp.minimum(drawn, share.shape[0] - 1), axis=1)
    is_first = jnp.diff(drawn, axis=1, prepend=-1) != 0
    times = (drawn[:, :, None] == drawn[:, None, :]).sum(axis=-1)
    clients, times = jnp.where(is_first, drawn, EMPTY), jnp.where(is_first, times, 0)
    return clients.astype("int32"), times.astype("int32")


def draw_by_share(key: Key, share: Array, num_selected: int, num_ticks: int) -> Array:
    """Draw a cohort for every tick, one client after another and without replacement.

    Each draw takes one of the clients that are left with a probability in proportion to its share
    (Efraimidis and Spirakis 2006, in the form of the Gumbel top-k trick). Row t depends only on
    `key` and t.

    Args:
      key: Key of the cohorts.
      share: `f[N]`, shares of the clients, up to a common factor.
      num_selected: Clients in a cohort, S, at most N.
      num_ticks: Number of ticks T.

    Returns:
      Client numbers, `i32[T, S]`, distinct within a row, in the order of the draws.
    """

    def tick(t: Array) -> Array:
        noise = jax.random.gumbel(jax.random.fold_in(key, t), share.shape, share.dtype)
        return jax.lax.top_k(jnp.log(share) + noise, num_selected)[1]

    return jax.lax.map(tick, jnp.arange(num_ticks))


def previous_visits(clients: Array) -> tuple[Array, Array]:
    """Find the last earlier tick of each slot's client, and its number of earlier visits.

    Args:
      clients: `i32[T, S]`; what is returned for `EMPTY` slots has no meaning. If a client fills
        several slots of a tick, the earlier slots count as earlier visits.

    Returns:
      Two arrays `[T, S]` of the integer type of `clients`: the tick of the last earlier visit, -1
      if there was none, and the number of earlier visits.
    """
    flat = clients.ravel()
    order = jnp.argsort(flat, stable=True)
    place = jnp.arange(flat.size)
    is_first = jnp.concatenate([jnp.ones(1, bool), flat[order][1:] != flat[order][:-1]])
    tick = order // clients.shape[1]
    previous = jnp.where(is_first, -1, jnp.roll(tick, 1))
    visit = place - jax.lax.cummax(jnp.where(is_first, place, 0))

    def back(found: Array) -> Array:
        return jnp.zeros_like(flat).at[order].set(found.astype(flat.dtype)).reshape(clients.shape)

    return back(previous), back(visit)
