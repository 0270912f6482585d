"""A Gaussian mean seen through noise: everything about EM in closed form, for tests of theory.

    z ~ N(theta, I),  y | z ~ N(z, tau^2 I),  kappa = 1 / (1 + tau^2);  s(y, z) = z,  phi(theta) = theta,  psi = ||theta||^2 / 2
    expected statistic (1 - kappa) theta + kappa y,  R = (ridge / 2) ||theta||^2,  T(s) = s / (1 + ridge)

With one kappa for all examples ("toy A") the statistics of a mini-batch differ from the mean by a noise that does not depend on theta; with
kappas of their own ("toy B") they do. With a the mean of (ridge + kappa) / (1 + ridge), h(s) = mean(kappa y) - a s.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct

from fedjax_sim.types import Array, Key


class Seen(NamedTuple):
    """Examples."""

    y: Array  # f[B, q]
    kappa: Array  # f[B]


@struct.dataclass
class NoisyMean:
    """The model; theta is a vector `f[q]`."""

    ridge: float = 0.0

    def with_data(self, examples: Seen, weight: Array) -> "NoisyMean":
        """Nothing is taken in."""
        return self

    def initial(self, key: Key, examples: Seen, weight: Array) -> Array:
        """theta = 0."""
        return jnp.zeros(examples.y.shape[1], examples.y.dtype)

    def maximise(self, statistics: Array) -> Array:
        """T."""
        return statistics / (1 + self.ridge)

    def natural(self, params: Array) -> Array:
        """phi, the identity."""
        return params

    def statistics(self, natural: Array, examples: Seen, weight: Array) -> Array:
        """Posterior means of z, summed with weights."""
        shrunk = weight * examples.kappa
        return (weight - shrunk).sum() * natural + jnp.matmul(
            shrunk, examples.y, precision="highest"
        )

    def loss(self, params: Array, examples: Seen) -> Array:
        """(kappa / 2) ||y - theta||^2."""
        return examples.kappa / 2 * jnp.sum(jnp.square(examples.y - params[None]), axis=1)

    def penalty(self, params: Array) -> Array:
        """R."""
        return self.ridge / 2 * jnp.sum(jnp.square(params))

    def metrics(self, statistics: Array, params: Array) -> Mapping[str, Array]:
        """None."""
        return {}
