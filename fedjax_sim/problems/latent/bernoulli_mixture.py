"""Mixture of products of Bernoulli laws: binary examples y in {0, 1}^D from one of G components.

    s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}),  q = G + G D
    phi(theta) = (log pi_g + sum_d log(1 - mu_gd))_g + (log(mu_gd / (1 - mu_gd)))_gd,  psi = 0
    T(s): pi_g = s1_g / sum s1,  mu_gd = (s2_gd + smoothing) / (s1_g + 2 smoothing)

The smoothing is the penalty R(theta) = -smoothing sum_gd log(mu_gd (1 - mu_gd)): it keeps mu inside (0, 1) for statistics that are means,
0 <= s2 <= s1. T needs s1 > 0, and phi needs -smoothing < s2 < s1 + smoothing; noise of a compressor can take s beyond, and the result is
then not a number, so that the lane is reported as failed. Values between 0 and 1 are taken as probabilities of a 1.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_sim.types import Array, Key


class Mixture(NamedTuple):
    """theta."""

    weights: Array  # f[G]     pi
    means: Array  # f[G, D]  mu, probabilities of a 1


@struct.dataclass
class BernoulliMixture:
    """The model."""

    components: int = struct.field(pytree_node=False)
    smoothing: float = 1e-3

    def with_data(self, examples: Array, weight: Array) -> "BernoulliMixture":
        """Nothing is taken in."""
        return self

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Equal weights, and different examples drawn halfway to the mean of all as probabilities."""
        chosen = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        means = jnp.clip((chosen + (weight @ examples)[None]) / 2, 0.01, 0.99)
        return self.natural(
            Mixture(jnp.full(self.components, 1 / self.components, examples.dtype), means)
        )

    def maximise(self, statistics: Array) -> Mixture:
        """T: not a number unless s1 > 0."""
        first, second = self._split(statistics)
        first = jnp.where(first > 0, first, jnp.nan)
        return Mixture(
            first / first.sum(), (second + self.smoothing) / (first + 2 * self.smoothing)[:, None]
        )

    def natural(self, params: Mixture) -> Array:
        """phi."""
        absent = jnp.log1p(-params.means)
        return jnp.concatenate(
            [jnp.log(params.weights) + absent.sum(axis=1), (jnp.log(params.means) - absent).ravel()]
        )

    def statistics(self, natural: Array, examples: Array, weight: Array) -> Array:
        """Responsibilities rho and rho y, summed with weights."""
        share = jax.nn.softmax(self._logits(natural, examples), axis=1) * weight[:, None]
        return jnp.concatenate(
            [share.sum(axis=0), jnp.matmul(share.T, examples, precision="highest").ravel()]
        )

    def loss(self, params: Mixture, examples: Array) -> Array:
        """-log p(y; theta)."""
        return -jax.nn.logsumexp(self._logits(self.natural(params), examples), axis=1)

    def penalty(self, params: Mixture) -> Array:
        """R."""
        return -self.smoothing * jnp.sum(jnp.log(params.means) + jnp.log1p(-params.means))

    def metrics(self, statistics: Array, params: Mixture) -> Mapping[str, Array]:
        """Weights, "pi_0" and so on."""
        return {f"pi_{g}": params.weights[g] for g in range(self.components)}

    def _split(self, vector: Array) -> tuple[Array, Array]:
        return vector[: self.components], vector[self.components :].reshape(self.components, -1)

    def _logits(self, natural: Array, examples: Array) -> Array:
        first, second = self._split(natural)
        return first[None] + jnp.matmul(examples, second.T, precision="highest")
