"""E-steps of the clients in the slots of a tick, in mini-batches or over all their examples.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
from typing import Literal, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import batching, settings, streams
from fedjax_sim.core.types import Array, Event, Key, LatentProblem, Plan, Work


@settings.struct
class Expectation:
    """Settings of the clients' E-steps.

    They are inherited by the settings of systems of expectation maximisation.

        whole_passes = Expectation(batches="full", batch_size=100)  # 100 examples at a time
        hyper = fedjax_sim.SYSTEMS["fedem"].Hyper(batches="without_replacement", batch_size=20)
    """

    batch_size: settings.Count = settings.setting(
        32, "Examples of a mini-batch, b; a full pass also runs through this many at a time."
    )
    batches: Literal["with_replacement", "without_replacement", "full"] = settings.setting(
        "with_replacement",
        "How each step's mini-batch is drawn. Without replacement it must not be larger than the "
        'smallest client\'s data; "full" uses all examples at every step.',
    )


ExpectationT = TypeVar("ExpectationT", bound=Expectation)


def check_batch_size(hyper: ExpectationT, problem: LatentProblem | None) -> ExpectationT:
    """Return the settings unchanged, if they fit the problem.

        hyper = Expectation(batches="without_replacement", batch_size=3)
        assert check_batch_size(hyper, latent) is hyper  # its clients have three examples each

    Args:
      problem: What is learnt; None if only a schedule is wanted.

    Raises:
      ConfigError: If mini-batches without replacement are larger than some client's examples.
    """
    if problem is not None and hyper.batches == "without_replacement":
        fewest = int(np.min(problem.counts))
        if hyper.batch_size > fewest:
            allowed = f"at most {fewest}, the fewest examples of a client, without replacement"
            raise settings.ConfigError("batch_size", hyper.batch_size, allowed)
    return hyper


@dataclasses.dataclass(frozen=True)
class Expect:
    """E-steps that are bound to a problem, settings and a plan."""

    problem: LatentProblem
    hyper: Expectation
    plan: Plan

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
          natural: Natural parameters phi, `f[q]` or one per slot `f[S, q]`.
          is_full: `bool[]`, whether to use all examples instead of a mini-batch.
          works: `bool[S]`; the statistics of other slots are 0.
          subtracted: Natural parameters, `f[q]` or one per slot `f[S, q]`: the statistics of the
            same mini-batch at these are subtracted.

        Returns:
          `f[S, q]`, and the work in expected statistics of single examples.
        """
        if not event.facts.keeps("steps"):
            allowed = "left as they are: E-steps have batches, and no local steps"
            raise settings.ConfigError("steps of the event", "replaced", allowed)
        if is_full is not False and getattr(self.problem, "is_sampled", False):
            allowed = "one with all data in memory, because a whole pass is made here"
            raise settings.ConfigError("problem", type(self.problem).__name__, allowed)
        chex.assert_rank(natural, {1, 2})
        if natural.ndim == 2:
            chex.assert_axis_dimension(natural, 0, event.clients.shape[0])
        chex.assert_equal_shape((works, event.clients))
        clients, size = jnp.maximum(event.clients, 0), self.hyper.batch_size
        each = size if subtracted is None else 2 * size
        # Known before tracing: only mini-batches, or only whole passes. Otherwise both
        # are computed.
        if is_full is False:
            means, batches = self._over_batches(key, event, natural, works, subtracted)
            return means, Work(each * batches, each * works.sum(), event.changed)
        of_all = jnp.where(works, self.problem.counts[clients], 0)
        if is_full is True:
            means, pieces = self._over_all(clients, natural, works)
            return means, Work(size * pieces, of_all.sum(), event.changed)
        # Clients that do the one have weight 0 in the other.
        of_batch, batches = self._over_batches(key, event, natural, works & ~is_full, subtracted)
        of_pass, pieces = self._over_all(clients, natural, works & is_full)
        needed = jnp.where(is_full, of_all.sum(), each * works.sum())
        return of_batch + of_pass, Work(each * batches + size * pieces, needed, event.changed)

    def _over_batches(
        self, key: Key, event: Event, natural: Array, works: Array, subtracted: Array | None
    ) -> tuple[Array, Array]:
        """Means over mini-batches, and the number of batches evaluated."""
        problem, size = self.problem, self.hyper.batch_size
        of_slots, common = _per_slot(natural), natural
        is_per_slot = subtracted is not None and subtracted.ndim == 2

        def slot(
            trips: Array,
            works: Array,
            client: Array,
            offset: Array,
            own: Array | None,
            row: Array | None,
        ) -> Array:
            natural = common if own is None else own
            client_key = jax.random.fold_in(streams.lane_stream(key, "batches"), client)
            weight = jnp.full(size, works / size, natural.dtype)
            reference = row if is_per_slot else subtracted

            @jax.named_scope("local_step")
            def batch(j: Array | int, _: Array) -> Array:
                examples = self._mini_batch(client_key, offset + j, problem.counts[client])
                mean = problem.statistics(natural, client, examples, weight)
                if reference is None:
                    return mean
                return mean - problem.statistics(reference, client, examples, weight)

            if not skips:
                return batch(0, natural)
            return jax.lax.fori_loop(0, trips, batch, jnp.zeros_like(natural))

        # In blocks or one by one, slots without work are skipped; all at once, they
        # have one batch too, of weight 0.
        clients = jnp.maximum(event.clients, 0)
        skips = self.plan.slots_at_once < clients.shape[0]
        row = subtracted if is_per_slot else None
        inputs = (works, clients, event.offset, of_slots, row)
        trips = works.astype("int32") if skips else jnp.ones_like(clients)
        known = 1 if self.plan.static_trips else None
        return batching.map_slots(slot, self.plan, trips, *inputs, trips=known)

    def _over_all(self, clients: Array, natural: Array, works: Array) -> tuple[Array, Array]:
        """Means over all examples, and the number of batches evaluated."""
        problem, size, common = self.problem, self.hyper.batch_size, natural

        def slot(trips: Array, works: Array, client: Array, own: Array | None) -> Array:
            natural = common if own is None else own
            number = problem.counts[client]
            share = works / number.astype(natural.dtype)

            @jax.named_scope("local_step")
            def trip(j: Array, total: Array) -> Array:
                places = j * size + jnp.arange(size)
                weight = jnp.where(places < number, share, 0)
                examples = jnp.minimum(places, number - 1)
                return total + problem.statistics(natural, client, examples, weight)

            return jax.lax.fori_loop(0, trips, trip, jnp.zeros_like(natural))

        steps = jnp.where(works, -(-problem.counts[clients] // size), 0)
        return batching.map_slots(slot, self.plan, steps, works, clients, _per_slot(natural))

    def _mini_batch(self, key: Key, number: Array, count: Array) -> Array:
        """Positions of a client's mini-batch with this number: `i32[B]`."""
        batch_key, size = jax.random.fold_in(key, number), self.hyper.batch_size
        if self.hyper.batches == "without_replacement":
            places = jnp.arange(size) % count
            return streams.shuffled_index(streams.shuffle_bits(batch_key), places, count)
        bits = jax.random.bits(batch_key, (size,), "uint32")
        return jax.lax.rem(bits, count.astype("uint32")).astype("int32")


def _per_slot(natural: Array) -> Array | None:
    """Return the slots' natural parameters, `f[S, q]`; None if one vector is that of all."""
    return natural if natural.ndim == 2 else None


def local_expectation(problem: LatentProblem, hyper: Expectation, plan: Plan) -> Expect:
    """Bind the clients' E-steps.

        expect = local_expectation(latent, Expectation(batches="full"), plan)
        both = event.within(clients=jnp.arange(2))
        means, _ = expect(key, both, jnp.zeros(1), is_full=True, works=jnp.ones(2, bool))
        assert jnp.allclose(means, latent.client_statistics(jnp.zeros(1)))

    Returns:
      A function from key, event and natural parameters to the slots' mean expected statistics,
      `f[S, q]`, and the work done.
    """
    return Expect(problem, hyper, plan)
