"""The law of a client's local steps between two contacts, in closed form.

The setting is that of FAVANO (Leconte, Nguyen, Moulines, arXiv 2305.16099, App. C): the server acts every `round_time` D and contacts each
client with probability p = `contact_probability` (s out of n), so the window between two contacts of a client lasts D R with R geometric.
E counts the local steps that the client could have done in the window, X = min(E, K) those it did, where K = `max_steps`. The paper needs
P(E > 0) and moments of X for its reweighting and gives no formulas: all of them are derived here.

Laws of the step count, by name:
  runtime_geom  each local step takes a geometric number of time units, mean 1/rate: E is Binomial(window, rate). Windows are whole numbers.
  runtime_exp   each local step takes an exponential time of mean 1/rate: E is Poisson(rate * window).
  count_geom    E itself is geometric on {1, 2, ...} whatever the window, as App. C.2 literally says.

Numbers broadcast against each other and may be traced; results are of JAX's default float type (64-bit where that is enabled).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy import special, stats

from fedjax_sim.types import Array


@partial(jax.jit, static_argnames=("num", "law"))
def count_probabilities(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    num: int,
    law: str,
) -> Array:
    """Compute P(E = k) for k = 0, ..., num - 1 over stationary windows. Derived.

    With b_j the probability of j steps in one round, the generating function p b(u) / (1 - (1 - p) b(u)) of E gives
    a_k = (p b_k + (1 - p) sum_{j=1}^k b_j a_{k-j}) / (1 - (1 - p) b_0).
    Returns `f[..., num]`. With p = 1 these are the b_k themselves.
    """

    def one_client(rate: Array, p: Array, round_time: Array) -> Array:
        counts = jnp.arange(num, dtype=float)
        if law == "count_geom":
            return jnp.where(counts == 0, 0.0, rate * (1 - rate) ** jnp.maximum(counts - 1, 0))
        in_round = _count_in_window(counts, rate, round_time, law)

        def next_probability(recent: Array, in_this_round: Array) -> tuple[Array, Array]:
            """recent: a_{k-1}, a_{k-2}, ..., zeros before a_0."""
            this = (p * in_this_round + (1 - p) * jnp.sum(in_round[1:] * recent)) / (
                1 - (1 - p) * in_round[0]
            )
            return jnp.concatenate([this[None], recent])[: num - 1], this

        return jax.lax.scan(next_probability, jnp.zeros(num - 1, counts.dtype), in_round)[1]

    return _each_client(one_client, rate, contact_probability, round_time)


@partial(jax.jit, static_argnames=("max_steps", "law"))
def tail_probabilities(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    max_steps: int,
    law: str,
) -> Array:
    """Compute P(E >= k) for k = 1, ..., K over stationary windows. Returns `f[..., K]`, whose sum is the mean of X. Derived."""
    above_zero = prob_any(
        rate, contact_probability=contact_probability, round_time=round_time, law=law
    )[..., None]
    counts = count_probabilities(
        rate, contact_probability=contact_probability, round_time=round_time, num=max_steps, law=law
    )
    between = jnp.cumsum(counts[..., 1:], axis=-1)
    return jnp.concatenate([above_zero, jnp.maximum(above_zero - between, 0.0)], axis=-1)


@partial(jax.jit, static_argnames="law")
def prob_any(
    rate: Array | float, *, contact_probability: Array | float, round_time: Array | float, law: str
) -> Array:
    """Compute P(E > 0) over stationary windows: (1 - z) / (1 - (1 - p) z), z the probability of no step in a round. Derived."""

    def one_client(rate: Array, p: Array, round_time: Array) -> Array:
        any_in_round = prob_any_given(rate, window=round_time, law=law)
        return any_in_round / (p + (1 - p) * any_in_round)

    return _each_client(one_client, rate, contact_probability, round_time)


@partial(jax.jit, static_argnames=("max_steps", "law"))
def mean_steps(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    max_steps: int,
    law: str,
) -> Array:
    """Compute E[X] over stationary windows, the deterministic reweighting of FAVANO eq. (3). Derived."""
    tails = tail_probabilities(
        rate,
        contact_probability=contact_probability,
        round_time=round_time,
        max_steps=max_steps,
        law=law,
    )
    return jnp.sum(tails, axis=-1)


@partial(jax.jit, static_argnames=("max_steps", "law"))
def mean_square_steps(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    max_steps: int,
    law: str,
) -> Array:
    """Compute E[X^2] over stationary windows, as sum_k (2 k - 1) P(E >= k). Derived."""
    tails = tail_probabilities(
        rate,
        contact_probability=contact_probability,
        round_time=round_time,
        max_steps=max_steps,
        law=law,
    )
    k = jnp.arange(1, max_steps + 1, dtype=float)
    return jnp.sum(tails * jnp.broadcast_to(2 * k - 1, tails.shape), axis=-1)


@partial(jax.jit, static_argnames=("max_steps", "law"))
def mean_inverse_steps(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    max_steps: int,
    law: str,
) -> Array:
    """Compute E[1(E > 0) / X] over stationary windows, as P(E >= 1) - sum_{k=2}^K P(E >= k) / (k (k - 1)). Derived."""
    tails = tail_probabilities(
        rate,
        contact_probability=contact_probability,
        round_time=round_time,
        max_steps=max_steps,
        law=law,
    )
    k = jnp.arange(2, max_steps + 1, dtype=float)
    return tails[..., 0] - jnp.sum(
        tails[..., 1:] * jnp.broadcast_to(1 / (k * (k - 1)), tails[..., 1:].shape), axis=-1
    )


@partial(jax.jit, static_argnames="law")
def prob_any_given(rate: Array | float, *, window: Array | float, law: str) -> Array:
    """Compute P(E > 0) given the window (time units). Derived."""

    def one_client(rate: Array, window: Array) -> Array:
        return {
            "runtime_geom": -jnp.expm1(special.xlog1py(window, -rate)),
            "runtime_exp": -jnp.expm1(-rate * window),
            "count_geom": jnp.ones_like(rate),
        }[law]

    return _each_client(one_client, rate, window)


@partial(jax.jit, static_argnames=("max_steps", "law"))
def mean_steps_given(
    rate: Array | float, *, window: Array | float, max_steps: int, law: str
) -> Array:
    """Compute E[X] given the window (time units). Derived.

    With Delta the window, E[min(E, K)] = rate Delta P(E' <= K - 2) + K P(E >= K), where E' is Binomial(Delta - 1, rate), or Poisson
    like E itself.
    """

    def one_client(rate: Array, window: Array) -> Array:
        if law == "count_geom":
            return -jnp.expm1(special.xlog1py(float(max_steps), -rate)) / rate
        if max_steps == 1:
            return prob_any_given(rate, window=window, law=law)
        if law == "runtime_exp":
            expected = rate * window
            return expected * special.gammaincc(
                max_steps - 1.0, expected
            ) + max_steps * special.gammainc(float(max_steps), expected)
        over = window - (max_steps - 1)
        is_capped = over > 0
        over = jnp.where(is_capped, over, 1.0)
        capped = rate * window * special.betainc(
            over, max_steps - 1.0, 1 - rate
        ) + max_steps * special.betainc(max_steps, over, rate)
        return jnp.where(is_capped, capped, rate * window)

    return _each_client(one_client, rate, window)


@partial(jax.jit, static_argnames=("max_steps", "law", "num_ticks"))
def mean_steps_by_tick(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    max_steps: int,
    law: str,
    num_ticks: int,
) -> Array:
    """Compute E[X] of a client contacted at server step t = 1, ..., num_ticks of a run in which all start at time 0. Derived.

    Windows are then of min(R, t) rounds, and means rise to the stationary one. Returns `f[num_ticks, ...]`.
    """
    return _by_tick(
        lambda rate, window: mean_steps_given(rate, window=window, max_steps=max_steps, law=law),
        *(rate, contact_probability, round_time, num_ticks),
    )


@partial(jax.jit, static_argnames=("law", "num_ticks"))
def prob_any_by_tick(
    rate: Array | float,
    *,
    contact_probability: Array | float,
    round_time: Array | float,
    law: str,
    num_ticks: int,
) -> Array:
    """Compute P(E > 0) of a client contacted at server step t = 1, ..., num_ticks; see `mean_steps_by_tick`. Derived."""
    return _by_tick(
        lambda rate, window: prob_any_given(rate, window=window, law=law),
        *(rate, contact_probability, round_time, num_ticks),
    )


def _by_tick(
    given: Callable[[Array, Array], Array],
    rate: Array | float,
    p: Array | float,
    round_time: Array | float,
    ticks: int,
) -> Array:
    """Mix g(r), the value given a window of r rounds, over the law of min(R, t): sum_{r=1}^t (1 - p)^(r-1) (g(r) - g(r-1)), g(0) = 0."""

    def one_client(rate: Array, p: Array, round_time: Array) -> Array:
        rounds = jnp.arange(1, ticks + 1, dtype=float)
        gains = jnp.diff(given(rate, round_time * rounds), prepend=0.0)
        return jnp.cumsum((1 - p) ** (rounds - 1) * gains)

    return jnp.moveaxis(_each_client(one_client, rate, p, round_time), -1, 0)


def _count_in_window(counts: Array, rate: Array, window: Array, law: str) -> Array:
    if law == "runtime_geom":
        return stats.binom.pmf(counts, window, rate)
    return stats.poisson.pmf(counts, rate * window)


def _each_client(formula: Callable[..., Array], *numbers: Array | float) -> Array:
    """Apply a formula for scalars to numbers that broadcast; axes of its result come last."""
    arrays = [jnp.asarray(number, float) for number in numbers]
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    result = jax.vmap(formula)(*(jnp.broadcast_to(array, shape).ravel() for array in arrays))
    return result.reshape(shape + result.shape[1:])
