"""Factor analysis: a Gaussian with a covariance of low rank plus a diagonal.

    z ~ N(0, I_k),  y | z ~ N(m + W z, Psi),  Psi diagonal
    s(y, z) = ((y - m) z', z z'),  q = D k + k (k + 1) / 2
    phi(theta) = (Psi^-1 W, -(I + W' Psi^-1 W) / 2),  psi = log |Psi| / 2 + <v, Psi^-1> / 2
    T(s): W = S_yz S_zz^-1,  Psi = v - diag(W S_yz')

m is the mean and v are the variances of all data, which the server has to know once, before
learning. EM with this T is that of Rubin and Thayer (1982). The noise of a compressor can push
S_zz and Psi out of T's domain: no entry of Psi becomes smaller than `floor` v, which also keeps
single coordinates from being explained completely, and eigenvalues of S_zz not smaller than
`floor`.

Dimension letters: `B` examples, `D` coordinates of an example, `k` factors, `q` numbers of a
statistic.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.linalg import cho_solve

from fedjax_sim.core.settings import Above0, Count, checked
from fedjax_sim.core.types import Array, Key, Leaf
from fedjax_sim.problems.latent.estimation import LatentModel
from fedjax_sim.problems.latent.mixtures import pack, unpack


class Factors(NamedTuple):
    """The parameters theta.

    Attributes:
      loadings: `f[D, k]`, W.
      noise: `f[D]`, the diagonal of Psi.
    """

    loadings: Array
    noise: Array


@checked
@struct.dataclass
class FactorAnalysis(LatentModel):
    """The factor analysis of this module.

    Attributes:
      factors: k, the number of factors.
      floor: Least share of a coordinate's variance that is noise, above 0.
      mean: `f[D]`, m; None until `with_data` sets it.
      variance: `f[D]`, v; None until `with_data` sets it.
    """

    factors: Count = struct.field(pytree_node=False)
    floor: Above0 = struct.field(pytree_node=False, default=1e-6)
    mean: Leaf = None
    variance: Leaf = None

    def with_data(self, examples: Array, weight: Array) -> Self:
        """Return a copy that knows mean and variances of all examples `f[B, D]`.

        The weights `f[B]` sum to 1.
        """
        chex.assert_rank(examples, 2)
        mean = jnp.matmul(weight, examples, precision="highest")
        variance = jnp.matmul(weight, jnp.square(examples - mean[None]), precision="highest")
        return dataclasses.replace(self, mean=mean, variance=variance)

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Draw natural parameters to start from: `f[q]`.

        The loadings are random, and the noise explains half of each coordinate's variance.
        """
        shape = (examples.shape[1], self.factors)
        scale = jnp.sqrt(self.variance / (2 * self.factors))
        loadings = scale[:, None] * jax.random.normal(key, shape, examples.dtype)
        return self.natural(Factors(loadings, self.variance / 2))

    def maximise(self, statistics: Array) -> Factors:
        """Compute the M-step T(s) from statistics `f[q]`."""
        cross, second = self._split(statistics)
        values, vectors = jnp.linalg.eigh(second)
        scaled = vectors / jnp.maximum(values, self.floor)[None]
        inverse = jnp.matmul(scaled, vectors.T, precision="highest")
        loadings = jnp.matmul(cross, inverse, precision="highest")
        noise = self.variance - jnp.sum(loadings * cross, axis=1)
        return Factors(loadings, jnp.maximum(noise, self.floor * self.variance))

    def natural(self, params: Factors) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`."""
        precise = params.loadings / params.noise[:, None]
        inner = jnp.matmul(params.loadings.T, precise, precision="highest")
        eye = jnp.eye(self.factors, dtype=inner.dtype)
        precision = eye + inner
        # Entries off the diagonal of z z' count twice.
        doubled = precision * (2 - eye)
        return jnp.concatenate([precise.ravel(), -pack(doubled) / 2])

    def statistics(self, natural: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of the expected statistics: `f[q]`.

        Args:
          natural: `f[q]`, phi(theta).
          examples: `f[B, D]`.
          weight: `f[B]`, weight of each example.
        """
        chex.assert_shape(weight, examples.shape[:1])
        centred = examples - self.mean[None]
        factor, means = self._posterior(natural, centred)
        weighted = means * weight[:, None]
        cross = jnp.matmul(centred.T, weighted, precision="highest")
        second = jnp.matmul(means.T, weighted, precision="highest")
        eye = jnp.eye(self.factors, dtype=factor.dtype)
        second += weight.sum() * cho_solve((factor, True), eye)
        return jnp.concatenate([cross.ravel(), pack(second)])

    def loss(self, params: Factors, examples: Array) -> Array:
        """Compute -log p(y; theta) - (D / 2) log(2 pi) of examples `f[B, D]`: `f[B]`."""
        centred = examples - self.mean[None]
        factor, means = self._posterior(self.natural(params), centred)
        scores = jnp.matmul(centred, params.loadings / params.noise[:, None], precision="highest")
        squares = jnp.sum(jnp.square(centred) / params.noise[None], axis=1)
        log_det = jnp.log(params.noise).sum() / 2 + jnp.log(jnp.diag(factor)).sum()
        return log_det + (squares - jnp.sum(scores * means, axis=1)) / 2

    def metrics(self, statistics: Array, params: Factors) -> Mapping[str, Array]:
        """Return "least_weight" and "least_eigenvalue": of the noise's share, and of S_zz."""
        least = jnp.linalg.eigvalsh(self._split(statistics)[1])[0]
        return {"least_weight": (params.noise / self.variance).min(), "least_eigenvalue": least}

    def log_density(self, params: Factors, examples: Array) -> Array:
        """Compute log p(y; theta) of examples `f[B, D]`: `f[B]`.

        Args:
          params: theta.
          examples: `f[B, D]`.
        """
        return -self.loss(params, examples) - examples.shape[1] / 2 * np.log(2 * np.pi)

    def transform(self, params: Factors, examples: Array) -> Array:
        """Compute the factors' means given examples `f[B, D]`: `f[B, k]`.

        Args:
          params: theta.
          examples: `f[B, D]`.
        """
        return self._posterior(self.natural(params), examples - self.mean[None])[1]

    def num_free(self, params: Factors) -> int:
        """Count the free parameters; rotations of the factors change nothing.

        Args:
          params: theta, for its shapes.
        """
        dim, k = params.loadings.shape
        return 2 * dim + dim * k - k * (k - 1) // 2

    def _split(self, statistics: Array) -> tuple[Array, Array]:
        """Split s into S_yz `f[D, k]` and S_zz `f[k, k]`."""
        size = self.mean.shape[0] * self.factors
        cross = statistics[:size].reshape(-1, self.factors)
        return cross, unpack(statistics[size:], self.factors)

    def _posterior(self, natural: Array, centred: Array) -> tuple[Array, Array]:
        """Compute the Cholesky factor of z's precision given y, and z's means: `f[B, k]`."""
        precise, halved = self._split(natural)
        # What `natural` doubled is halved here, and the factor -1/2 is undone.
        precision = -halved * (1 + jnp.eye(self.factors, dtype=halved.dtype))
        factor = jnp.linalg.cholesky(precision)
        scores = jnp.matmul(centred, precise, precision="highest")
        return factor, cho_solve((factor, True), scores.T).T
