"""E-steps of the clients in the slots of a tick, in mini-batches or over all their examples.

Dimension letters: those of `fedjax_sim.types`.
"""

from typing import Protocol, TypeVar

import chex
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

    batch_size: int = count(
        20, "Examples of a mini-batch, b; a full pass also runs through this many at a time."
    )
    sampling: str = choice(
        "with_replacement",
        ("with_replacement", "without_replacement", "full"),
        "How each step's mini-batch is drawn. Without replacement it must not be larger than the "
        'smallest client\'s data; "full" uses all examples at every step.',
    )


ExpectationT = TypeVar("ExpectationT", bound=Expectation)


def check_batch_size(hyper: ExpectationT, problem: LatentProblem | None) -> ExpectationT:
    """Return the settings unchanged, if they fit the problem.

    Args:
      hyper: The settings.
      problem: What is learnt; None if only a schedule is wanted.

    Raises:
      ConfigError: If mini-batches without replacement are larger than some client's examples.
    """
    if problem is not None and hyper.sampling == "without_replacement":
        fewest = int(np.min(problem.counts))
        if hyper.batch_size > fewest:
            allowed = f"at most {fewest}, the fewest examples of a client, without replacement"
            raise ConfigError("batch_size", hyper.batch_size, allowed)
    return hyper


class Expect(Protocol):
    """E-steps that are bound to a problem, settings and a plan."""

    def __call__(
        self,
        key: Key,
        event: Event,
        natural: Array,
        *,
        is_full: Array | bool,
        works: Array,
        subtracted: Array | None = None,
    ) -> tuple[Array, Work]:
        """Compute the mean expected statistics of each slot's client.

        A client's mini-batch depends on the key, the client and the number of steps it has done
        before (`event.offset`).

        Args:
          key: The lane's learning key.
          event: The tick.
          natural: `f[q]`, natural parameters phi.
          is_full: `bool[]`, whether to use all examples instead of a mini-batch.
          works: `bool[S]`; the statistics of other slots are 0.
          subtracted: Natural parameters, `f[q]` or one per slot `f[S, q]`: the statistics of the
            same mini-batch at these are subtracted.

        Returns:
          `f[S, q]`, and the work in expected statistics of single examples.
        """


def local_expectation(problem: LatentProblem, hyper: Expectation, plan: Plan) -> Expect:
    """Bind the clients' E-steps.

    Args:
      problem: What is learnt.
      hyper: The settings.
      plan: The engine's plan.
    """
    size = hyper.batch_size

    def expect(
        key: Key,
        event: Event,
        natural: Array,
        *,
        is_full: Array | bool,
        works: Array,
        subtracted: Array | None = None,
    ) -> tuple[Array, Work]:
        chex.assert_rank(natural, 1)
        chex.assert_equal_shape((works, event.clients))
        clients = jnp.maximum(event.clients, 0)
        is_difference = subtracted is not None
        # One trip evaluates one phi: a full pass takes as many trips as it has batches, a
        # difference takes two.
        trips_of_pass = -(-problem.counts[clients] // size)
        trips_of_step = jnp.where(is_full, trips_of_pass, 2 if is_difference else 1)
        slot_trips = jnp.where(works, trips_of_step, 0)
        is_per_slot = subtracted is not None and subtracted.ndim == 2

        def slot(
            trips: Array, slot_trips: Array, client: Array, offset: Array, of_slot: Array | None
        ) -> Array:
            number = problem.counts[client]
            drawn: Array | int = 0
            if is_full is not True:
                client_key = jax.random.fold_in(stream(key, "batches"), client)
                drawn = _mini_batch(hyper, client_key, offset, number)
            reference = of_slot if is_per_slot else subtracted

            def trip(j: Array, total: Array) -> Array:
                places = j * size + jnp.arange(size)
                examples = jnp.where(is_full, jnp.minimum(places, number - 1), drawn)
                of_pass = (places < number) / number.astype(natural.dtype)
                weight = jnp.where(is_full, of_pass, jnp.asarray(1 / size, natural.dtype))
                phi = natural
                if reference is not None:
                    is_subtracted = (j == 1) & jnp.logical_not(is_full)
                    phi = jnp.where(is_subtracted, reference, natural)
                    weight = jnp.where(is_subtracted, -weight, weight)
                weight = jnp.where(j < slot_trips, weight, 0)
                return total + problem.statistics(phi, client, examples, weight)

            return jax.lax.fori_loop(0, trips, trip, jnp.zeros_like(natural))

        rows = subtracted if is_per_slot else None
        means, trips = map_slots(slot, plan, slot_trips, slot_trips, clients, event.offset, rows)
        of_all = jnp.where(works, problem.counts[clients], 0)
        needed = jnp.where(is_full, of_all, slot_trips * size)
        return means, Work(trips * size, needed.sum())

    return expect


def _mini_batch(hyper: Expectation, key: Key, number: Array, count: Array) -> Array:
    """Draw the positions of a client's mini-batch with this number: `i32[B]`."""
    batch_key = jax.random.fold_in(key, number)
    if hyper.sampling == "without_replacement":
        places = jnp.arange(hyper.batch_size) % count
        return shuffled_index(shuffle_bits(batch_key), places, count)
    return jax.random.randint(batch_key, (hyper.batch_size,), 0, count)
