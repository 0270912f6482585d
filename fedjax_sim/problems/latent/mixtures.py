"""The base of mixtures, and the mixture of products of Bernoulli laws, for binary examples.

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

Components come before examples, so that maxima and sums over the few components are taken of long
rows, whatever their number, and rows times examples is a plain matrix product. On a CPU this takes
half the time of the other order.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `q` = G + G D.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.settings import Above0, Count, checked
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.problems.client_data import check_range


class OfComponents:
    """The common base of mixtures; `components` is G, the number of components."""

    components: int
    natural: Callable[..., Array]

    def statistics(self, natural: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of the responsibilities rho, and of rho times the features.

        Args:
          natural: `f[q]`, phi(theta).
          examples: `f[B, D]`, or what else the model takes.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """
        chex.assert_shape(weight, examples.shape[:1])
        features = self._features(examples)
        logits = self._logits(natural, features)
        joint = jnp.exp(logits - logits.max(axis=0)[None])
        share = joint * (weight / joint.sum(axis=0))[None]
        second = jnp.matmul(share, features, precision="highest")
        return jnp.concatenate([share.sum(axis=1), second.ravel()])

    def responsibilities(self, params: Params, examples: Array) -> Array:
        """Compute the probability of each component given each example: `f[B, G]`.

        Args:
          params: theta.
          examples: `f[B, D]`, or what else the model takes.
        """
        logits = self._logits(self.natural(params), self._features(examples))
        return jax.nn.softmax(logits, axis=0).T

    def _features(self, examples: Array) -> Array:
        """Return t(y): the examples themselves, `f[B, D]`, or `f[B, F]`."""
        return examples

    def _split(self, vector: Array) -> tuple[Array, Array]:
        """Split s or phi into its two parts: `f[G]`, `f[G, F]`."""
        return vector[: self.components], vector[self.components :].reshape(self.components, -1)

    def _logits(self, natural: Array, features: Array) -> Array:
        """Compute the logarithm of the joint density of component and example: `f[G, B]`.

        It is up to what does not depend on the component.
        """
        first, second = self._split(natural)
        return first[:, None] + jnp.matmul(features, second.T, precision="highest").T


def spread_examples(key: Key, examples: Array, weight: Array, number: int) -> Array:
    """Draw examples that lie apart, by k-means++ (Arthur and Vassilvitskii 2007).

    Each further example is drawn with a probability in proportion to its weight and to its squared
    distance from the nearest of those before it.

    Args:
      key: For the choice.
      examples: `f[B, D]`.
      weight: `f[B]`, weights with sum 1.
      number: Examples to draw, at most those that differ.

    Returns:
      `f[number, D]`.
    """
    first, *keys = jax.random.split(key, number)
    center = examples[jax.random.choice(first, len(examples), p=weight)]
    distance = jnp.sum(jnp.square(examples - center[None]), axis=1)
    centers = [center]
    for each in keys:
        share = weight * distance
        center = examples[jax.random.choice(each, len(examples), p=share / share.sum())]
        distance = jnp.minimum(distance, jnp.sum(jnp.square(examples - center[None]), axis=1))
        centers.append(center)
    return jnp.stack(centers)


def pack(matrices: Array) -> Array:
    """List the entries on and below the diagonal: `f[..., D, D]` to `f[..., D (D + 1) / 2]`."""
    return matrices[(..., *np.tril_indices(matrices.shape[-1]))]


def unpack(entries: Array, dim: int) -> Array:
    """Make symmetric matrices of the entries that `pack` lists: `f[..., D, D]`."""
    place = np.zeros((dim, dim), int)
    rows, columns = np.tril_indices(dim)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return entries[..., place]


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
        check_range("data", examples, 0, 1)
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
