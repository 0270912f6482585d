"""E-steps of the clients in the slots of a tick, in mini-batches or over all their examples; and the server's steps on statistics.

Letters: `q` numbers of an expected statistic, `S` slots, `B` examples of a mini-batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.batching import map_slots
from fedjax_sim.settings import ConfigError, choice, count, struct
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.types import Array, Event, Key, LatentProblem, Plan, Work


@struct
class Expectation:
    """Settings of the clients' E-steps."""

    batch_size: int = count(20, "b: examples of a mini-batch; of a full pass, so many at a time.")
    sampling: str = choice(
        "with_replacement",
        ("with_replacement", "without_replacement", "full"),
        'How a mini-batch is drawn, anew at every step, without replacement of no more than the fewest examples of a client; or "full", where every step goes over all examples.',
    )


def fitting(hyper: Any, problem: LatentProblem | None) -> Any:
    """Return the settings; raises ConfigError if mini-batches without replacement are larger than some client's examples."""
    if problem is not None and hyper.sampling == "without_replacement":
        fewest = int(np.min(problem.counts))
        if hyper.batch_size > fewest:
            raise ConfigError(
                "batch_size",
                hyper.batch_size,
                f"at most {fewest}, the fewest examples of a client, without replacement",
            )
    return hyper


def local_statistics(
    problem: LatentProblem,
    hyper: Any,
    plan: Plan,
    key: Key,
    event: Event,
    natural: Array,
    *,
    is_full: Array | bool,
    works: Array,
    less: Array | None = None,
) -> tuple[Array, Work]:
    """Mean expected statistics of each slot's client at phi = natural, `f[S, q]`.

    natural: `f[q]`. is_full: `bool[]`, of all examples, else of a mini-batch. works: `bool[S]`; the others' statistics are 0. less: of a
    mini-batch, the difference to its statistics at this phi, `f[q]` or each slot's own `f[S, q]`, is returned. A client's mini-batch
    depends on key, client and its own count of steps (`event.offset`). Work is counted in expected statistics of single examples.
    """
    clients = jnp.maximum(event.clients, 0)
    size, is_difference = hyper.batch_size, less is not None
    # One trip, one phi: a full pass is as many trips as it has batches, a difference two.
    trips_of_all = -(-problem.counts[clients] // size)
    own_trips = jnp.where(works, jnp.where(is_full, trips_of_all, 2 if is_difference else 1), 0)
    is_own = less is not None and less.ndim == 2

    def slot(
        trips: Array, own_trips: Array, client: Array, offset: Array, own_less: Array | None
    ) -> Array:
        number = problem.counts[client]
        drawn = (
            0
            if is_full is True
            else _mini_batch(
                hyper, jax.random.fold_in(stream(key, "batches"), client), offset, number
            )
        )
        reference = own_less if is_own else less

        def trip(j: Array, total: Array) -> Array:
            places = j * size + jnp.arange(size)
            examples = jnp.where(is_full, jnp.minimum(places, number - 1), drawn)
            weight = jnp.where(
                is_full,
                (places < number) / number.astype(natural.dtype),
                jnp.asarray(1 / size, natural.dtype),
            )
            if reference is None:
                phi = natural
            else:
                is_subtracted = (j == 1) & jnp.logical_not(is_full)
                phi = jnp.where(is_subtracted, reference, natural)
                weight = jnp.where(is_subtracted, -weight, weight)
            weight = jnp.where(j < own_trips, weight, 0)
            return total + problem.statistics(phi, client, examples, weight)

        return jax.lax.fori_loop(0, trips, trip, jnp.zeros_like(natural))

    rows = less if is_own else None
    means, trips = map_slots(slot, plan, own_trips, own_trips, clients, event.offset, rows)
    needed = jnp.where(is_full, jnp.where(works, problem.counts[clients], 0), own_trips * size)
    return means, Work(trips * size, needed.sum())


def _mini_batch(hyper: Any, key: Key, number: Array, count: Array) -> Array:
    """Positions of a client's mini-batch of this number: `i32[B]`."""
    own = jax.random.fold_in(key, number)
    if hyper.sampling == "without_replacement":
        return shuffled_index(shuffle_bits(own), jnp.arange(hyper.batch_size) % count, count)
    return jax.random.randint(own, (hyper.batch_size,), 0, count)
