"""The E-step and starts of mixtures: s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}).

Components come before examples, so that maxima and sums over the few components are taken of long
rows, whatever their number, and rows times examples is a plain matrix product. On a CPU this takes
half the time of the other order.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `q` = G + G D.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.types import Array, Key, Params


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
        return expected_statistics(self._logits(natural, features), features, weight)

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


def expected_statistics(logits: Array, examples: Array, weight: Array) -> Array:
    """Compute the weighted sum of the responsibilities rho and of rho y.

    Args:
      logits: `f[G, B]`.
      examples: `f[B, D]`.
      weight: `f[B]`, weight of each example.

    Returns:
      `f[q]`.
    """
    joint = jnp.exp(logits - logits.max(axis=0)[None])
    share = joint * (weight / joint.sum(axis=0))[None]
    second = jnp.matmul(share, examples, precision="highest")
    return jnp.concatenate([share.sum(axis=1), second.ravel()])


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
