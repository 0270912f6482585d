"""Mixture of Gaussians with one covariance for all components (arXiv 2111.02083, App. F.1).

    s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}),  q = G + G D
    phi(theta) = (log pi_g - mu_g' Sigma^-1 mu_g / 2)_g + (Sigma^-1 mu_g)_g               eq. (56)
    T(s): pi_g = s1_g / sum s1,  mu_g = s2_g / s1_g                                  eqs. (60)-(62)
          Sigma = M_2 - sum_g s1_g mu_g mu_g'

Here s1 and s2 are the two parts of s, and M_2 is the second moment of all data, which the server
has to know once, before learning.

T needs s1 > 0, and phi needs a positive definite Sigma. The noise of a compressor can break both.
The result is then not a number, and the lane is reported as failed, unless `guard` raises s1 to at
least 1e-8 inside T.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `q` numbers of a
statistic.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax.scipy.linalg import cho_solve, solve_triangular

from fedjax_sim.problems.latent.mixtures import component_logits, expected_statistics
from fedjax_sim.types import Array, Key, Leaf

LEAST_WEIGHT = 1e-8
"""Least value of s1 inside T where `guard` is on."""


class Mixture(NamedTuple):
    """The parameters theta.

    Attributes:
      weights: `f[G]`, pi, weights of the components.
      means: `f[G, D]`, mu, means of the components.
      covariance: `f[D, D]`, Sigma, the covariance of every component.
    """

    weights: Array
    means: Array
    covariance: Array


@struct.dataclass
class GaussianMixture:
    """The model of this module.

    Its loss is the negative log-density less (D / 2) log(2 pi), as in eq. (57).

    Attributes:
      components: G, the number of components.
      covariance: `f[D, D]`, Sigma if it is known; None to fit it.
      guard: Whether T raises s1 to at least 1e-8.
      second_moment: `f[D, D]`, M_2; None until `with_data` sets it.
    """

    components: int = struct.field(pytree_node=False)
    covariance: Array | None = None
    guard: bool = struct.field(pytree_node=False, default=False)
    second_moment: Leaf = None

    def with_data(self, examples: Array, weight: Array) -> Self:
        """Return a copy of the model that knows the second moment M_2.

        Args:
          examples: `f[B, D]`, all examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          The model with `second_moment`.

        Raises:
          AssertionError: If the shapes do not match.
        """
        chex.assert_rank(examples, 2)
        chex.assert_shape(weight, examples.shape[:1])
        if self.covariance is not None:
            chex.assert_shape(self.covariance, examples.shape[1:] * 2)
        moment = jnp.einsum("n,nd,ne->de", weight, examples, examples, precision="highest")
        return dataclasses.replace(self, second_moment=moment)

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Draw natural parameters to start from.

        The components have equal weights, different examples as means, and the covariance of all
        data unless it is known.

        Args:
          key: For the choice of examples.
          examples: `f[B, D]`, all examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          `f[q]`.
        """
        covariance = self.covariance
        if covariance is None:
            mean = weight @ examples
            covariance = self.second_moment - jnp.outer(mean, mean)
        means = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        weights = jnp.full(self.components, 1 / self.components, examples.dtype)
        return self.natural(Mixture(weights, means, covariance))

    def maximise(self, statistics: Array) -> Mixture:
        """Compute the M-step T(s) from statistics `f[q]`.

        The result is nan unless all s1 > 0 or `guard` is on.
        """
        first, second = self._split(statistics)
        if self.guard:
            first = jnp.maximum(first, LEAST_WEIGHT)
        else:
            first = jnp.where(first > 0, first, jnp.nan)
        means = second / first[:, None]
        covariance = self.covariance
        if covariance is None:
            # The weights in Sigma are those of s, which need not sum to 1.
            between = jnp.einsum("g,gd,ge->de", first, means, means, precision="highest")
            covariance = self.second_moment - between
        return Mixture(first / first.sum(), means, covariance)

    def unknown(self, params: Mixture) -> tuple[Array, ...]:
        """Return the part of theta that a client has to be sent.

        Args:
          params: theta.

        Returns:
          Weights `f[G]` and means `f[G, D]`, and the D (D + 1) / 2 different entries of Sigma
          unless it is known.
        """
        sent = (params.weights, params.means)
        if self.covariance is not None:
            return sent
        return (*sent, params.covariance[jnp.tril_indices(params.covariance.shape[0])])

    def natural(self, params: Mixture) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`.

        The result is nan unless Sigma is positive definite.
        """
        precise = cho_solve((jnp.linalg.cholesky(params.covariance), True), params.means.T).T
        first = jnp.log(params.weights) - jnp.sum(params.means * precise, axis=1) / 2
        return jnp.concatenate([first, precise.ravel()])

    def statistics(self, natural: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of the responsibilities rho and of rho y, eq. (58).

        Args:
          natural: `f[q]`, phi(theta).
          examples: `f[B, D]`.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """
        chex.assert_shape(weight, examples.shape[:1])
        return expected_statistics(self._logits(natural, examples), examples, weight)

    def loss(self, params: Mixture, examples: Array) -> Array:
        """Compute -log p(y; theta) - (D / 2) log(2 pi) of examples `f[B, D]`: `f[B]`."""
        factor = jnp.linalg.cholesky(params.covariance)
        white = solve_triangular(factor, examples.T, lower=True)
        fit = jax.nn.logsumexp(self._logits(self.natural(params), examples), axis=0)
        return jnp.log(jnp.diag(factor)).sum() + jnp.sum(jnp.square(white), axis=0) / 2 - fit

    def penalty(self, params: Mixture) -> Array:
        """Return R(theta) = 0: `f[]`."""
        return jnp.zeros((), params.means.dtype)

    def metrics(self, statistics: Array, params: Mixture) -> Mapping[str, Array]:
        """Measure the components, and how far s is from leaving the domain of T and phi.

        Args:
          statistics: `f[q]`, s.
          params: theta = T(s).

        Returns:
          Weights "pi_0", "pi_1" and so on; "least_weight", the smallest s1; and
          "least_eigenvalue", that of Sigma.
        """
        margins = {
            "least_weight": self._split(statistics)[0].min(),
            "least_eigenvalue": jnp.linalg.eigvalsh(params.covariance)[0],
        }
        return {**{f"pi_{g}": params.weights[g] for g in range(self.components)}, **margins}

    def _split(self, vector: Array) -> tuple[Array, Array]:
        """Split s or phi into its two parts: `f[G]`, `f[G, D]`."""
        return vector[: self.components], vector[self.components :].reshape(self.components, -1)

    def _logits(self, natural: Array, examples: Array) -> Array:
        """Compute log pi_g and the part of log p(y | z = g) that depends on g: `f[G, B]`."""
        return component_logits(*self._split(natural), examples)
