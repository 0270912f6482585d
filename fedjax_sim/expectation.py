"""E-steps of the clients in the slots of a tick, in mini-batches or over all their examples; and the server's steps on statistics.

Letters: `q` numbers of an expected statistic, `S` slots, `B` examples of a mini-batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.layout import map_slots
from fedjax_sim.settings import ConfigError, choice, count, real, static, struct
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.types import Array, Event, Key, LatentProblem, Leaf, Plan, Timeline, Work, full_precision_bits

STEP_FACTORS: dict[str, Callable[[Array], Array]] = {
    "constant": lambda k: jnp.ones_like(k),
    "inverse_sqrt": lambda k: (k + 1) ** -0.5,
    "inverse": lambda k: 1 / (k + 1),
}
"""By the names of the command line."""


@struct
class Expectation:
    """Settings of the clients' E-steps."""

    batch_size: int = count(20)
    """b: examples of a mini-batch; of a full pass, so many at a time."""
    sampling: str = choice("with_replacement", ("with_replacement", "without_replacement", "full"))
    """How a mini-batch is drawn, anew at every step, without replacement of no more than the fewest examples of a client; or "full", where
    every step goes over all examples."""


@struct
class Approximation:
    """Settings of the server's stochastic approximation, S <- S + gamma_k H."""

    gamma: float = real(0.01, above=0)
    """gamma_1."""
    gamma_factor: Callable[[Array], Array] = static(
        STEP_FACTORS["constant"],
        "one of " + ", ".join(STEP_FACTORS) + ", or a function from the tick 0, 1, ... to a factor, such as an optax schedule",
        callable,
        lambda text: STEP_FACTORS[text],
    )
    """gamma_{k+1} / gamma_1 at tick k."""
    output: str = choice("last", ("last", "random"))
    """What is evaluated: the last S, or S_K with K uniform on the ticks so far, as the theory has it."""

    def step_size(self, event: Event) -> Array:
        """gamma_{k+1}, 0 for an empty tick."""
        factor = self.gamma_factor(event.tick.astype(jnp.result_type(float)))
        return jnp.where(jnp.any(event.clients >= 0), self.gamma * factor, 0)


def fitting(hyper: Any, problem: LatentProblem | None) -> Any:
    """Return the settings; raises ConfigError if mini-batches without replacement are larger than some client's examples."""
    if problem is not None and hyper.sampling == "without_replacement":
        fewest = int(np.min(problem.counts))
        if hyper.batch_size > fewest:
            raise ConfigError("batch_size", hyper.batch_size, f"at most {fewest}, the fewest examples of a client, without replacement")
    return hyper


def broadcasts(problem: LatentProblem, timeline: Timeline) -> Leaf:
    """Bits sent down at each tick, `i64[T]`: S and theta, not compressed, to all clients.

    Of theta only what `problem.unknown`, if there is one, leaves over: what clients do not know already, and once each.
    """

    def sent(key: Key) -> Any:
        statistics = problem.init(key)
        params = problem.maximise(statistics)
        return statistics, getattr(problem, "unknown", lambda whole: whole)(params)

    bits = full_precision_bits(jax.eval_shape(sent, jax.random.key(0)))
    return (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * bits


def chosen(key: Key, event: Event, before: Array, now: Array) -> Array:
    """Keep S_K for K uniform on 0..k: the statistics `now` of tick k with probability 1 / (k + 1), else those kept before; `f[q]` each."""
    lot = jax.random.uniform(jax.random.fold_in(stream(key, "output"), event.tick))
    is_taken = (lot * (event.tick + 1) < 1) & jnp.any(event.clients >= 0)
    return jnp.where(is_taken, now, before)


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

    def slot(trips: Array, own_trips: Array, client: Array, offset: Array, own_less: Array | None) -> Array:
        number = problem.counts[client]
        drawn = 0 if is_full is True else _mini_batch(hyper, jax.random.fold_in(stream(key, "batches"), client), offset, number)
        reference = own_less if is_own else less

        def trip(j: Array, total: Array) -> Array:
            places = j * size + jnp.arange(size)
            examples = jnp.where(is_full, jnp.minimum(places, number - 1), drawn)
            weight = jnp.where(is_full, (places < number) / number.astype(natural.dtype), jnp.asarray(1 / size, natural.dtype))
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
