"""Closed-form laws of the number of local steps that a client does between two contacts.

The setting is that of FAVANO (Leconte, Nguyen, Moulines, arXiv 2305.16099, App. C). The server acts
every `round_time` D and contacts each client with probability p = `contact_probability` (s out of
n), so the window between two contacts of a client lasts D R, where R is geometric. E counts the
local steps that the client could have done in the window, and X = min(E, K), with K = `max_steps`,
those that it did. The paper needs P(E > 0) and moments of X for its reweighting but gives no
formulas: all of them are derived here. `StepCounts` has those over windows between contacts;
`prob_any_given` and `mean_steps_given` are for a window of known length.

Windows are stationary long after the start of a run, when R has its full geometric law. At server
step t a window lasts min(R, t) rounds, because all clients start at time 0.

Laws of the step count, by name:

- "runtime_geom": each local step takes a geometric number of time units, of mean 1/rate, so E is
  Binomial(window, rate). Windows must be whole numbers.
- "runtime_exp": each local step takes an exponential time of mean 1/rate, so E is
  Poisson(rate * window).
- "count_geom": E itself is geometric on {1, 2, ...} with mean 1/rate, whatever the window, as App.
  C.2 literally says.

Arguments that are numbers broadcast against each other, to the shape written `[...]`, and may be
traced. Results have JAX's default float type, which is 64-bit where that is enabled.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy import special, stats

from fedjax_sim.core.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepCounts:
    """The law of E, and of X, over windows between two contacts.

    Windows are stationary but for the methods whose names end with `by_tick`.

    Attributes:
      rate: Local steps per unit of virtual time, `f[...]`.
      contact_probability: Probability p that a round contacts the client, `f[...]`.
      round_time: Time D between two server actions, in units of virtual time, `f[...]`.
      law: A name from the list in this module's docstring.
    """

    rate: Array | float
    contact_probability: Array | float
    round_time: Array | float
    law: str = dataclasses.field(metadata={"static": True})

    @partial(jax.jit, static_argnames="num")
    def probabilities(self, num: int) -> Array:
        """Compute P(E = k) for k = 0, ..., num - 1. Derived.

        Let b_j be the probability of j steps in one round. The generating function of E,
        p b(u) / (1 - (1 - p) b(u)), gives the probabilities
        a_k = (p b_k + (1 - p) sum_{j=1}^k b_j a_{k-j}) / (1 - (1 - p) b_0).
        With p = 1 these are the b_k.

        Returns:
          Probabilities, `f[..., num]`.
        """

        def one_client(rate: Array, p: Array, round_time: Array) -> Array:
            counts = jnp.arange(num, dtype=float)
            if self.law == "count_geom":
                return jnp.where(counts == 0, 0.0, rate * (1 - rate) ** jnp.maximum(counts - 1, 0))
            if self.law == "runtime_geom":
                in_round = stats.binom.pmf(counts, round_time, rate)
            else:
                in_round = stats.poisson.pmf(counts, rate * round_time)

            def next_probability(recent: Array, in_this_round: Array) -> tuple[Array, Array]:
                """Compute a_k from `recent`: a_{k-1}, a_{k-2}, ... and zeros before a_0."""
                before = (1 - p) * jnp.sum(in_round[1:] * recent)
                this = (p * in_this_round + before) / (1 - (1 - p) * in_round[0])
                return jnp.concatenate([this[None], recent])[: num - 1], this

            return jax.lax.scan(next_probability, jnp.zeros(num - 1, counts.dtype), in_round)[1]

        return self._each_client(one_client)

    @partial(jax.jit, static_argnames="max_steps")
    def at_least(self, max_steps: int) -> Array:
        """Compute P(E >= k) for k = 1, ..., K: `f[..., K]`, of sum E[X]. Derived."""
        above_zero = self.prob_any()[..., None]
        between = jnp.cumsum(self.probabilities(max_steps)[..., 1:], axis=-1)
        return jnp.concatenate([above_zero, jnp.maximum(above_zero - between, 0.0)], axis=-1)

    @jax.jit
    def prob_any(self) -> Array:
        """Compute P(E > 0), `f[...]`. Derived.

        It is (1 - z) / (1 - (1 - p) z), where z is the probability of no step in a round.
        """
        rate, p, round_time = _arrays(self.rate, self.contact_probability, self.round_time)
        any_in_round = prob_any_given(rate, window=round_time, law=self.law)
        return any_in_round / (p + (1 - p) * any_in_round)

    @partial(jax.jit, static_argnames="max_steps")
    def mean(self, max_steps: int) -> Array:
        """Compute E[X], `f[...]`: FAVANO's deterministic reweighting, eq. (3). Derived."""
        return jnp.sum(self.at_least(max_steps), axis=-1)

    @partial(jax.jit, static_argnames=("max_steps", "num_ticks"))
    def mean_by_tick(self, max_steps: int, num_ticks: int) -> Array:
        """Compute E[X] of a client contacted at server step t = 1, ..., T: `f[T, ...]`. Derived.

        All clients start at time 0, so a window lasts min(R, t) rounds. The means rise with t to
        the stationary mean.
        """
        given = partial(mean_steps_given, max_steps=max_steps, law=self.law)
        return self._by_tick(given, num_ticks)

    @partial(jax.jit, static_argnames="num_ticks")
    def prob_any_by_tick(self, num_ticks: int) -> Array:
        """Compute P(E > 0) in the windows of `mean_by_tick`, `f[T, ...]`. Derived."""
        return self._by_tick(partial(prob_any_given, law=self.law), num_ticks)

    def _by_tick(self, given: Callable[..., Array], num_ticks: int) -> Array:
        """Average g(r), the value given a window of r rounds, over the law of min(R, t).

        The average is sum_{r=1}^t (1 - p)^(r-1) (g(r) - g(r-1)), where g(0) = 0.
        """

        def one_client(rate: Array, p: Array, round_time: Array) -> Array:
            rounds = jnp.arange(1, num_ticks + 1, dtype=float)
            gains = jnp.diff(given(rate, window=round_time * rounds), prepend=0.0)
            return jnp.cumsum((1 - p) ** (rounds - 1) * gains)

        return jnp.moveaxis(self._each_client(one_client), -1, 0)

    def _each_client(self, formula: Callable[..., Array]) -> Array:
        """Apply a formula of scalars to every client; its result's axes come last."""
        arrays = _arrays(self.rate, self.contact_probability, self.round_time)
        result = jax.vmap(formula)(*(array.ravel() for array in arrays))
        return result.reshape(arrays[0].shape + result.shape[1:])


@partial(jax.jit, static_argnames="law")
def prob_any_given(rate: Array | float, *, window: Array | float, law: str) -> Array:
    """Compute P(E > 0) given the window. Derived.

    Args:
      rate: Local steps per unit of virtual time, `f[...]`.
      window: Length of the window, in units of virtual time, `f[...]`.
      law: A name from the list in this module's docstring.

    Returns:
      Probabilities, `f[...]`.
    """
    rate, window = _arrays(rate, window)
    return {
        "runtime_geom": -jnp.expm1(special.xlog1py(window, -rate)),
        "runtime_exp": -jnp.expm1(-rate * window),
        "count_geom": jnp.ones_like(rate),
    }[law]


@partial(jax.jit, static_argnames=("max_steps", "law"))
def mean_steps_given(
    rate: Array | float, *, window: Array | float, max_steps: int, law: str
) -> Array:
    """Compute E[X] given the window. Derived.

    With Delta the window, E[min(E, K)] = rate Delta P(E' <= K - 2) + K P(E >= K), where E' is
    Binomial(Delta - 1, rate) under "runtime_geom", and Poisson like E under "runtime_exp".

    Args:
      rate: Local steps per unit of virtual time, `f[...]`.
      window: Length of the window, in units of virtual time, `f[...]`.
      max_steps: Most local steps between two contacts, K.
      law: A name from the list in this module's docstring.

    Returns:
      Means, `f[...]`.
    """
    rate, window = _arrays(rate, window)
    expected = rate * window
    if law == "count_geom":
        return -jnp.expm1(special.xlog1py(float(max_steps), -rate)) / rate
    if max_steps == 1:
        return prob_any_given(rate, window=window, law=law)
    if law == "runtime_exp":
        few = special.gammaincc(max_steps - 1.0, expected)
        return expected * few + max_steps * special.gammainc(float(max_steps), expected)
    over = window - (max_steps - 1)
    is_capped = over > 0
    over = jnp.where(is_capped, over, 1.0)
    few = special.betainc(over, max_steps - 1.0, 1 - rate)
    capped = expected * few + max_steps * special.betainc(max_steps, over, rate)
    return jnp.where(is_capped, capped, expected)


def _arrays(*numbers: Array | float) -> list[Array]:
    """Make arrays of floats, of one shape."""
    return jnp.broadcast_arrays(*(jnp.asarray(number, float) for number in numbers))
