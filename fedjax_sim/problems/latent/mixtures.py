"""The E-step and starts of mixtures: s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}).

Components come before examples, so that maxima and sums over the few components are taken of long
rows, whatever their number, and rows times examples is a plain matrix product. On a CPU this takes
half the time of the other order.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `q` = G + G D.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.types import Array, Key


def component_logits(first: Array, second: Array, examples: Array) -> Array:
    """Compute the logarithm of the joint density of example and component, up to a constant.

    Args:
      first: `f[G]`, first part of phi.
      second: `f[G, D]`, second part of phi.
      examples: `f[B, D]`.

    Returns:
      `f[G, B]`.
    """
    return first[:, None] + jnp.matmul(examples, second.T, precision="highest").T


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


def responsibilities(logits: Array) -> Array:
    """Compute the probability of each component given each example: `f[G, B]` from `f[G, B]`."""
    return jax.nn.softmax(logits, axis=0)


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
