"""Mixture of Gaussians with one covariance for all components (arXiv 2111.02083, App. F.1).

    s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}),  q = G + G D
    phi(theta) = (log pi_g - mu_g' Sigma^-1 mu_g / 2)_g + (Sigma^-1 mu_g)_g                                                   (56)
    T(s): pi_g = s1_g / sum s1,  mu_g = s2_g / s1_g,  Sigma = M_2 - sum_g s1_g mu_g mu_g'                                 (60)-(62)

Letters: `G` components, `D` coordinates of an example, s1 and s2 the two parts of s, M_2 the second moment of all data, which the server
must be told once. T needs s1 > 0, and a positive definite Sigma, which noise of a compressor can take away: the result is then not a
number, and the lane is reported as failed, unless `guard` lifts s1 to 1e-8 in T alone.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.scipy.linalg import cho_solve, solve_triangular

from fedjax_sim.types import Array, Key, Leaf

LEAST_WEIGHT = 1e-8


class Mixture(NamedTuple):
    """theta."""

    weights: Array  # f[G]     pi
    means: Array  # f[G, D]  mu
    covariance: Array  # f[D, D]  Sigma


@struct.dataclass
class GaussianMixture:
    """The model; fitted if no covariance is given. Its loss is the negative log-density less (D / 2) log(2 pi), as in (57)."""

    components: int = struct.field(pytree_node=False)
    covariance: Array | None = None  # f[D, D]  Sigma, where it is known
    guard: bool = struct.field(pytree_node=False, default=False)
    second_moment: Leaf = None  # f[D, D]  M_2, once there are data

    def with_data(self, examples: Array, weight: Array) -> "GaussianMixture":
        """Take in M_2. examples: `f[n, D]`."""
        return self.replace(
            second_moment=jnp.einsum("n,nd,ne->de", weight, examples, examples, precision="highest")
        )  # type: ignore[attr-defined]

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Equal weights, different examples as means, and the covariance of all data unless it is known."""
        covariance = self.covariance
        if covariance is None:
            mean = weight @ examples
            covariance = self.second_moment - jnp.outer(mean, mean)
        means = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        return self.natural(
            Mixture(
                jnp.full(self.components, 1 / self.components, examples.dtype), means, covariance
            )
        )

    def maximise(self, statistics: Array) -> Mixture:
        """T."""
        first, second = self._split(statistics)
        first = (
            jnp.maximum(first, LEAST_WEIGHT) if self.guard else jnp.where(first > 0, first, jnp.nan)
        )
        means = second / first[:, None]
        covariance = self.covariance
        if covariance is None:
            # The weights in Sigma are those of s, which need not sum to 1.
            covariance = self.second_moment - jnp.einsum(
                "g,gd,ge->de", first, means, means, precision="highest"
            )
        return Mixture(first / first.sum(), means, covariance)

    def unknown(self, params: Mixture) -> tuple[Array, ...]:
        """What of theta a client has to be sent: weights, means, and D (D + 1) / 2 entries of Sigma unless it is known."""
        known = (params.weights, params.means)
        return (
            known
            if self.covariance is not None
            else (*known, params.covariance[jnp.tril_indices(params.covariance.shape[0])])
        )

    def natural(self, params: Mixture) -> Array:
        """phi: not a number unless Sigma is positive definite."""
        precise = cho_solve((jnp.linalg.cholesky(params.covariance), True), params.means.T).T
        first = jnp.log(params.weights) - jnp.sum(params.means * precise, axis=1) / 2
        return jnp.concatenate([first, precise.ravel()])

    def statistics(self, natural: Array, examples: Array, weight: Array) -> Array:
        """Responsibilities rho and rho y, summed with weights (58)."""
        share = jax.nn.softmax(self._logits(natural, examples), axis=1) * weight[:, None]
        return jnp.concatenate(
            [share.sum(axis=0), jnp.matmul(share.T, examples, precision="highest").ravel()]
        )

    def loss(self, params: Mixture, examples: Array) -> Array:
        """-log p(y; theta) - (D / 2) log(2 pi)."""
        factor = jnp.linalg.cholesky(params.covariance)
        white = solve_triangular(factor, examples.T, lower=True)
        fit = jax.nn.logsumexp(self._logits(self.natural(params), examples), axis=1)
        return jnp.log(jnp.diag(factor)).sum() + jnp.sum(jnp.square(white), axis=0) / 2 - fit

    def penalty(self, params: Mixture) -> Array:
        """None."""
        return jnp.zeros((), params.means.dtype)

    def metrics(self, statistics: Array, params: Mixture) -> Mapping[str, Array]:
        """Weights "pi_0" and so on, and how far T is from the border of its domain."""
        margins = {
            "least_weight": self._split(statistics)[0].min(),
            "least_eigenvalue": jnp.linalg.eigvalsh(params.covariance)[0],
        }
        return {**{f"pi_{g}": params.weights[g] for g in range(self.components)}, **margins}

    def _split(self, vector: Array) -> tuple[Array, Array]:
        """Both parts of s or phi: `f[G]`, `f[G, D]`."""
        return vector[: self.components], vector[self.components :].reshape(self.components, -1)

    def _logits(self, natural: Array, examples: Array) -> Array:
        first, second = self._split(natural)
        return first[None] + jnp.matmul(examples, second.T, precision="highest")
