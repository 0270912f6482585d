"""A Gaussian mean seen through noise: everything about EM in closed form, to test theory with.

    z ~ N(theta, I),  y | z ~ N(z, tau^2 I),  kappa = 1 / (1 + tau^2)
    s(y, z) = z,  phi(theta) = theta,  psi = ||theta||^2 / 2
    expected statistic = (1 - kappa) theta + kappa y
    R(theta) = (ridge / 2) ||theta||^2 + lasso ||theta||_1
    T(s) = sign(s) max(|s| - lasso, 0) / (1 + ridge)

With lasso 0 the mean field is h(s) = mean(kappa y) - a s, where a is the mean of
(ridge + kappa) / (1 + ridge). A penalty "to promote sparsity" (FedEM, arXiv 2111.02083, eq. 1) is
lasso above 0.

If all examples have the same kappa ("toy A"), the statistics of a mini-batch differ from the mean
over all examples by a noise that does not depend on theta. If kappa differs between examples
("toy B"), the noise depends on theta.

Dimension letters: `B` examples, `q` coordinates of theta and of an example.
"""

from typing import NamedTuple, Self

import chex
import jax.numpy as jnp
from flax import struct

from fedjax_sim.core.settings import AtLeast0, checked
from fedjax_sim.core.types import Array, Key, Leaf
from fedjax_sim.problems.client_data import check_range
from fedjax_sim.problems.latent.estimation import LatentModel


class Seen(NamedTuple):
    """Examples of a noisy mean.

    Attributes:
      y: `f[B, q]`, what is observed.
      kappa: `f[B]`, 1 / (1 + tau^2) with the variance tau^2 of the observation's noise.
    """

    y: Leaf
    kappa: Leaf


@checked
@struct.dataclass
class NoisyMean(LatentModel):
    """The noisy mean of this module; its parameters theta are a vector `f[q]`.

    Attributes:
      ridge: Strength of the penalty (ridge / 2) ||theta||^2, at least 0.
      lasso: Strength of the penalty lasso ||theta||_1, at least 0.
    """

    ridge: AtLeast0 = 0.0
    lasso: AtLeast0 = 0.0

    def with_data(self, examples: Seen, weight: Array) -> Self:
        """Check the shapes of the examples and return the model as it is."""
        chex.assert_rank(examples.y, 2)
        chex.assert_shape([examples.kappa, weight], examples.y.shape[:1])
        check_range("kappa", examples.kappa, 0, 1)
        return self

    def initial(self, key: Key, examples: Seen, weight: Array) -> Array:
        """Return the natural parameters of theta = 0: `f[q]`."""
        return jnp.zeros(examples.y.shape[1], examples.y.dtype)

    def maximise(self, statistics: Array) -> Array:
        """Compute the M-step T(s) from statistics `f[q]`: `f[q]`."""
        soft = jnp.sign(statistics) * jnp.maximum(jnp.abs(statistics) - self.lasso, 0)
        return jnp.where(self.lasso > 0, soft, statistics) / (1 + self.ridge)

    def natural(self, params: Array) -> Array:
        """Return phi(theta), which is theta: `f[q]`."""
        return params

    def statistics(self, natural: Array, examples: Seen, weight: Array) -> Array:
        """Compute the weighted sum of the posterior means of z.

        Args:
          natural: `f[q]`, phi(theta).
          examples: B examples.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """
        chex.assert_shape([examples.kappa, weight], examples.y.shape[:1])
        shrunk = weight * examples.kappa
        data = jnp.matmul(shrunk, examples.y, precision="highest")
        return (weight - shrunk).sum() * natural + data

    def loss(self, params: Array, examples: Seen) -> Array:
        """Compute (kappa / 2) ||y - theta||^2 of every example: `f[B]`."""
        chex.assert_shape(examples.kappa, examples.y.shape[:1])
        return examples.kappa / 2 * jnp.sum(jnp.square(examples.y - params[None]), axis=1)

    def penalty(self, params: Array) -> Array:
        """Compute R(theta): `f[]`.

        Args:
          params: theta.
        """
        return self.ridge / 2 * jnp.sum(jnp.square(params)) + self.lasso * jnp.abs(params).sum()
