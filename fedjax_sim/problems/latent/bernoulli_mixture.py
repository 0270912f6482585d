"""Mixture of products of Bernoulli laws, for binary examples.

    y in {0, 1}^D from one of G components z
    s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}),  q = G + G D
    phi(theta) = (log pi_g + sum_d log(1 - mu_gd))_g + (log(mu_gd / (1 - mu_gd)))_gd,  psi = 0
    T(s): pi_g = s1_g / sum s1,  mu_gd = (s2_gd + smoothing) / (s1_g + 2 smoothing)

Here s1 and s2 are the two parts of s. The smoothing is the strength of the penalty
R(theta) = -smoothing sum_gd log(mu_gd (1 - mu_gd)). It keeps mu inside (0, 1) for statistics that
are means of expected statistics, which have 0 <= s2 <= s1.

T needs s1 > 0, and phi needs -smoothing < s2 < s1 + smoothing. The noise of a compressor can push s
out of this domain. The result is then not a number, and the lane is reported as failed.

Values of y between 0 and 1 are taken as probabilities of a 1.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `q` numbers of a
statistic.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
from flax import struct

from fedjax_sim.core.checking import Above0, Count, checked
from fedjax_sim.core.types import Array, Key
from fedjax_sim.problems.latent.mixtures import OfComponents


class Mixture(NamedTuple):
    """The parameters theta.

    Attributes:
      weights: `f[G]`, pi, weights of the components.
      means: `f[G, D]`, mu, probabilities of a 1.
    """

    weights: Array
    means: Array


@checked
@struct.dataclass
class BernoulliMixture(OfComponents):
    """The model of this module.

    Attributes:
      components: G, the number of components.
      smoothing: Strength of the penalty, above 0.
    """

    components: Count = struct.field(pytree_node=False)
    smoothing: Above0 = 1e-3

    def with_data(self, examples: Array, weight: Array) -> Self:
        """Check the shapes of the examples `f[B, D]` and return the model as it is."""
        chex.assert_rank(examples, 2)
        chex.assert_shape(weight, examples.shape[:1])
        return self

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Draw natural parameters to start from.

        The components have equal weights. The probabilities of each lie halfway between an example
        (a different one for each component) and the mean of all examples.

        Args:
          key: For the choice of examples.
          examples: `f[B, D]`, all examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          `f[q]`.
        """
        chosen = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        means = jnp.clip((chosen + (weight @ examples)[None]) / 2, 0.01, 0.99)
        weights = jnp.full(self.components, 1 / self.components, examples.dtype)
        return self.natural(Mixture(weights, means))

    def maximise(self, statistics: Array) -> Mixture:
        """Compute the M-step T(s) from statistics `f[q]`; nan unless all s1 > 0."""
        first, second = self._split(statistics)
        first = jnp.where(first > 0, first, jnp.nan)
        means = (second + self.smoothing) / (first + 2 * self.smoothing)[:, None]
        return Mixture(first / first.sum(), means)

    def natural(self, params: Mixture) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`."""
        absent = jnp.log1p(-params.means)
        first = jnp.log(params.weights) + absent.sum(axis=1)
        return jnp.concatenate([first, (jnp.log(params.means) - absent).ravel()])

    def loss(self, params: Mixture, examples: Array) -> Array:
        """Compute -log p(y; theta) of examples `f[B, D]`: `f[B]`."""
        return -jax.nn.logsumexp(self._logits(self.natural(params), examples), axis=0)

    def penalty(self, params: Mixture) -> Array:
        """Compute R(theta): `f[]`.

        Args:
          params: theta.
        """
        return -self.smoothing * jnp.sum(jnp.log(params.means) + jnp.log1p(-params.means))

    def metrics(self, statistics: Array, params: Mixture) -> Mapping[str, Array]:
        """Return the weights of the components, "pi_0", "pi_1" and so on."""
        return {f"pi_{g}": params.weights[g] for g in range(self.components)}

    def log_density(self, params: Mixture, examples: Array) -> Array:
        """Compute log p(y; theta) of examples `f[B, D]`: `f[B]`.

        Args:
          params: theta.
          examples: `f[B, D]`.
        """
        return -self.loss(params, examples)

    def num_free(self, params: Mixture) -> int:
        """Count the free parameters.

        Args:
          params: theta, for its shapes.
        """
        return self.components - 1 + params.means.size
