"""Mixture of Gaussians, with scikit-learn's four kinds of covariances.

With one covariance for all components ("tied"; arXiv 2111.02083, App. F.1):

    s(y, z) = (1_{z=1}, .., 1_{z=G}, y 1_{z=1}, .., y 1_{z=G}),  q = G + G D
    phi(theta) = (log pi_g - mu_g' Sigma^-1 mu_g / 2)_g + (Sigma^-1 mu_g)_g               eq. (56)
    T(s): pi_g = s1_g / sum s1,  mu_g = s2_g / s1_g                                  eqs. (60)-(62)
          Sigma = M_2 - sum_g s1_g mu_g mu_g'

Here s1 and s2 are the two parts of s, and M_2 is the second moment of all data, which the server
has to know once, before learning. With a covariance for each component, s2 has in place of y the
features t(y) = (y, r(y)), where r(y) are the different entries of y y' ("full"), the squares
("diag") or ||y||^2 ("spherical"); and

    phi(theta) = (log pi_g - mu_g' P_g mu_g / 2 - log |Sigma_g| / 2)_g + (P_g mu_g, -P_g / 2)_g
    T(s): Sigma_g = E_g[y y'] - mu_g mu_g', its diagonal, or its trace / D

with P_g = Sigma_g^-1 and the mean E_g that s2_g / s1_g is.

T needs s1 > 0, and phi needs positive definite covariances. The noise of a compressor can break
both. The result is then not a number, and the lane is reported as failed. `guard` raises s1 to at
least 1e-8 inside T, which does not help against the second.

A `prior` tau > 0 keeps T inside this domain. It is the conjugate one, Dirichlet for the weights and
normal-inverse-Wishart for means and covariances: it gives each component tau n more examples, of n
in all, with the mean m and the second moment M_2 of all data,

    T(s) with s1_g + tau, s2_g + tau E[t(y)] in place of s1_g, s2_g
    R(theta) = -tau sum_g E[log(pi_g N(y; mu_g, Sigma_g))]

where E is the mean over all data. For statistics that are means of expected statistics this is the
exact M-step of the penalised likelihood, and with Cov, the covariance of all data,

    0 <= s1_g <= 1,  (mu_gd - m_d)^2 <= h_g Cov_dd,  l_g Cov <= Sigma_g <= h_g Cov
    l_g = tau / (s1_g + tau),  h_g = (1 + tau) / (s1_g + tau);  if tied, Sigma has the bounds
    G tau / (1 + G tau) and 1

For other statistics s1, mu and Sigma are moved to these bounds, so that T is defined, and bounded,
for all statistics. The covariance of all data must be positive definite.

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `F` features, `q`
numbers of a statistic. Examples `f[B]` are taken as having one coordinate.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.linalg import cho_solve, solve_triangular

from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, OneOf, checked
from fedjax_sim.core.types import Array, Key, Leaf
from fedjax_sim.problems.latent import mixtures
from fedjax_sim.problems.latent.mixtures import OfComponents

COVARIANCE_TYPES = ("tied", "full", "diag", "spherical")
"""Kinds of covariances, by scikit-learn's names."""
CovarianceType = Annotated[str, OneOf(COVARIANCE_TYPES)]
STARTS = ("random", "k-means++")
"""How the first means are drawn among the examples."""
LEAST_WEIGHT = 1e-8
"""Least value of s1 inside T where `guard` is on."""


class Mixture(NamedTuple):
    """The parameters theta.

    Attributes:
      weights: `f[G]`, pi, weights of the components.
      means: `f[G, D]`, mu, means of the components.
      covariance: Sigma: `f[D, D]` if tied, `f[G, D, D]` full, `f[G, D]` diag, `f[G]` spherical.
    """

    weights: Array
    means: Array
    covariance: Array


@checked
@struct.dataclass
class GaussianMixture(OfComponents):
    """The model of this module.

    Its loss is the negative log-density less (D / 2) log(2 pi), as in eq. (57).

    Attributes:
      components: G, the number of components.
      covariance: `f[D, D]`, Sigma if it is known and tied; None to fit it.
      guard: Whether T raises s1 to at least 1e-8.
      second_moment: `f[D, D]`, M_2; None until `with_data` sets it.
      covariance_type: One of `COVARIANCE_TYPES`.
      prior: tau, the prior's examples of each component over all examples; 0 for none.
      starts: One of `STARTS`.
      mean: `f[D]`, m; None until `with_data` sets it for a prior.
    """

    components: Count = struct.field(pytree_node=False)
    covariance: Array | None = None
    guard: bool = struct.field(pytree_node=False, default=False)
    second_moment: Leaf = None
    covariance_type: CovarianceType = struct.field(pytree_node=False, default="tied")
    prior: AtLeast0 = struct.field(pytree_node=False, default=0.0)
    starts: Annotated[str, OneOf(STARTS)] = struct.field(pytree_node=False, default="random")
    mean: Leaf = None

    def __post_init__(self) -> None:
        if self.covariance is not None and (self.covariance_type != "tied" or self.prior):
            raise ConfigError("covariance", "given", "None, unless it is tied and has no prior")

    def with_data(self, examples: Array, weight: Array) -> Self:
        """Return a copy of the model that knows the second moment M_2.

        Args:
          examples: `f[B, D]` or `f[B]`, all examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          The model with `second_moment` and, for a prior, `mean`.

        Raises:
          AssertionError: If the shapes do not match.
        """
        examples = _rows(examples)
        chex.assert_shape(weight, examples.shape[:1])
        if self.covariance is not None:
            chex.assert_shape(self.covariance, examples.shape[1:] * 2)
        moment = jnp.einsum("n,nd,ne->de", weight, examples, examples, precision="highest")
        mean = jnp.matmul(weight, examples, precision="highest") if self.prior else None
        return dataclasses.replace(self, second_moment=moment, mean=mean)

    def initial(self, key: Key, examples: Array, weight: Array) -> Array:
        """Draw natural parameters to start from.

        The components have equal weights, different examples as means, and the covariance of all
        data unless it is known.

        Args:
          key: For the choice of examples.
          examples: `f[B, D]` or `f[B]`, all examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          `f[q]`.
        """
        examples = _rows(examples)
        covariance = self.covariance
        if covariance is None:
            mean = weight @ examples
            covariance = self._shaped(self.second_moment - jnp.outer(mean, mean))
        if self.starts == "k-means++":
            means = mixtures.spread_examples(key, examples, weight, self.components)
        else:
            means = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        weights = jnp.full(self.components, 1 / self.components, examples.dtype)
        return self.natural(Mixture(weights, means, covariance))

    def maximise(self, statistics: Array) -> Mixture:
        """Compute the M-step T(s) from statistics `f[q]`.

        Without a prior the result is nan unless all s1 > 0 or `guard` is on.
        """
        first, second = self._split(statistics)
        total = 1.0
        if self.prior:
            first = jnp.clip(first, 0, 1) + self.prior
            second = second + self.prior * self._mean_features()[None]
            total = 1 + self.components * self.prior
        elif self.guard:
            first = jnp.maximum(first, LEAST_WEIGHT)
        else:
            first = jnp.where(first > 0, first, jnp.nan)
        dim = self.second_moment.shape[0]
        means, moments = jnp.split(second / first[:, None], [dim], axis=1)
        if self.prior:
            most = jnp.sqrt((1 + self.prior) / first)[:, None] * jnp.sqrt(self._spread())[None]
            means = self.mean[None] + jnp.clip(means - self.mean[None], -most, most)
        covariance = self.covariance
        if self.covariance_type == "full":
            covariance = mixtures.unpack(moments, dim) - means[:, :, None] * means[:, None, :]
        elif self.covariance_type == "diag":
            covariance = moments - jnp.square(means)
        elif self.covariance_type == "spherical":
            covariance = (moments[:, 0] - jnp.sum(jnp.square(means), axis=1)) / dim
        elif covariance is None:
            # The weights in Sigma are those of s, which need not sum to 1.
            between = jnp.einsum("g,gd,ge->de", first, means, means, precision="highest")
            covariance = self.second_moment - (between / total if self.prior else between)
        if self.prior:
            bounds = (self.prior / first, (1 + self.prior) / first)
            if self.covariance_type == "tied":
                bounds = (jnp.asarray(1 - 1 / total, first.dtype), jnp.ones((), first.dtype))
            covariance = self._bound(covariance, *bounds)
        return Mixture(first / first.sum(), means, covariance)

    def unknown(self, params: Mixture) -> tuple[Array, ...]:
        """Return the part of theta that a client has to be sent.

        Args:
          params: theta.

        Returns:
          Weights `f[G]` and means `f[G, D]`, and the different entries of Sigma unless it is known.
        """
        sent = (params.weights, params.means)
        if self.covariance is not None:
            return sent
        if self.covariance_type in ("diag", "spherical"):
            return (*sent, params.covariance)
        return (*sent, mixtures.pack(params.covariance))

    def natural(self, params: Mixture) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`.

        The result is nan unless Sigma is positive definite.
        """
        if self.covariance_type == "tied":
            precise = cho_solve((jnp.linalg.cholesky(params.covariance), True), params.means.T).T
            first = jnp.log(params.weights) - jnp.sum(params.means * precise, axis=1) / 2
            return jnp.concatenate([first, precise.ravel()])
        num, dim = params.means.shape
        if self.covariance_type == "full":
            factor = jnp.linalg.cholesky(params.covariance)
            eye = jnp.eye(dim, dtype=factor.dtype)
            precision = cho_solve((factor, True), jnp.broadcast_to(eye, factor.shape))
            precise = jnp.einsum("gde,ge->gd", precision, params.means, precision="highest")
            log_det = 2 * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
            # Entries off the diagonal count twice in <P, y y'>.
            quadratic = mixtures.pack(precision * (2 - eye)[None])
        else:
            variance = params.covariance.reshape(num, -1)
            quadratic = 1 / jnp.where(variance > 0, variance, jnp.nan)
            precise = params.means * quadratic
            log_det = jnp.log(variance).sum(axis=1) * (dim / variance.shape[1])
        square = jnp.sum(params.means * precise, axis=1)
        first = jnp.log(params.weights) - square / 2 - log_det / 2
        second = jnp.concatenate([precise, -quadratic / 2], axis=1)
        return jnp.concatenate([first, second.ravel()])

    def loss(self, params: Mixture, examples: Array) -> Array:
        """Compute -log p(y; theta) - (D / 2) log(2 pi) of examples `f[B, D]` or `f[B]`: `f[B]`."""
        logits = self._logits(self.natural(params), self._features(examples))
        fit = jax.nn.logsumexp(logits, axis=0)
        if self.covariance_type != "tied":
            return -fit
        factor = jnp.linalg.cholesky(params.covariance)
        white = solve_triangular(factor, _rows(examples).T, lower=True)
        return jnp.log(jnp.diag(factor)).sum() + jnp.sum(jnp.square(white), axis=0) / 2 - fit

    def penalty(self, params: Mixture) -> Array:
        """Compute R(theta), less the constant of the densities: `f[]`.

        Args:
          params: theta.
        """
        if not self.prior:
            return jnp.zeros((), params.means.dtype)
        first, second = self._split(self.natural(params))
        joint = first + jnp.matmul(second, self._mean_features(), precision="highest")
        total = joint.sum()
        if self.covariance_type == "tied":
            factor = jnp.linalg.cholesky(params.covariance)
            within = jnp.trace(cho_solve((factor, True), self.second_moment))
            total -= self.components * (jnp.log(jnp.diag(factor)).sum() + within / 2)
        return -self.prior * total

    def metrics(self, statistics: Array, params: Mixture) -> Mapping[str, Array]:
        """Measure the components, and how far s is from leaving the domain of T and phi.

        Args:
          statistics: `f[q]`, s.
          params: theta = T(s).

        Returns:
          Weights "pi_0", "pi_1" and so on; "least_weight", the smallest s1; and
          "least_eigenvalue", that of the covariances.
        """
        eigenvalues = params.covariance
        if self.covariance_type in ("tied", "full"):
            eigenvalues = jnp.linalg.eigvalsh(params.covariance)
        least = eigenvalues[0] if self.covariance_type == "tied" else eigenvalues.min()
        margins = {
            "least_weight": self._split(statistics)[0].min(),
            "least_eigenvalue": least,
        }
        return {**{f"pi_{g}": params.weights[g] for g in range(self.components)}, **margins}

    def log_density(self, params: Mixture, examples: Array) -> Array:
        """Compute log p(y; theta) of examples `f[B, D]` or `f[B]`: `f[B]`."""
        return -self.loss(params, examples) - params.means.shape[1] / 2 * np.log(2 * np.pi)

    def num_free(self, params: Mixture) -> int:
        """Count the free parameters."""
        known = self.covariance is not None
        entries = params.covariance
        if self.covariance_type in ("tied", "full"):
            entries = mixtures.pack(params.covariance)
        return self.components - 1 + params.means.size + (0 if known else entries.size)

    def _features(self, examples: Array) -> Array:
        """Compute t(y): `f[B, F]`."""
        examples = _rows(examples)
        if self.covariance_type == "tied":
            return examples
        if self.covariance_type == "full":
            quadratic = mixtures.pack(examples[:, :, None] * examples[:, None, :])
        else:
            quadratic = jnp.square(examples)
            if self.covariance_type == "spherical":
                quadratic = quadratic.sum(axis=1, keepdims=True)
        return jnp.concatenate([examples, quadratic], axis=1)

    def _mean_features(self) -> Array:
        """Compute E[t(y)]: `f[F]`."""
        quadratic = {
            "tied": lambda: self.mean[:0],
            "full": lambda: mixtures.pack(self.second_moment),
            "diag": lambda: jnp.diag(self.second_moment),
            "spherical": lambda: jnp.trace(self.second_moment)[None],
        }[self.covariance_type]()
        return jnp.concatenate([self.mean, quadratic])

    def _shaped(self, covariance: Array) -> Array:
        """Give every component the covariance `f[D, D]`, in the form of `Mixture.covariance`."""
        num, dim = self.components, covariance.shape[0]
        if self.covariance_type == "full":
            return jnp.broadcast_to(covariance, (num, dim, dim))
        if self.covariance_type == "diag":
            return jnp.broadcast_to(jnp.diag(covariance), (num, dim))
        if self.covariance_type == "spherical":
            return jnp.full(num, jnp.trace(covariance) / dim)
        return covariance

    def _spread(self) -> Array:
        """Compute the variances of all data: `f[D]`."""
        return jnp.diag(self.second_moment) - jnp.square(self.mean)

    def _bound(self, covariance: Array, least: Array, most: Array) -> Array:
        """Move covariances between two multiples of that of all data.

        Args:
          covariance: In the form of `Mixture.covariance`.
          least: `f[G]`, the lower multiples; `f[]` if tied.
          most: As `least`, the upper ones.

        Returns:
          As `covariance`, which is unchanged where it lies between.
        """
        of_all = self.second_moment - jnp.outer(self.mean, self.mean)
        if self.covariance_type in ("diag", "spherical"):
            whole = self._shaped(of_all)
            low, high = (x.reshape(-1, *(1,) * (whole.ndim - 1)) * whole for x in (least, most))
            return jnp.clip(covariance, low, high)
        factor = jnp.linalg.cholesky(of_all)

        def bounded(one: Array, low: Array, high: Array) -> Array:
            half = solve_triangular(factor, one, lower=True)
            values, vectors = jnp.linalg.eigh(solve_triangular(factor, half.T, lower=True))
            is_within = (values[0] >= low) & (values[-1] <= high)
            spread = jnp.matmul(factor, vectors, precision="highest")
            scaled = spread * jnp.clip(values, low, high)[None]
            return jnp.where(is_within, one, jnp.matmul(scaled, spread.T, precision="highest"))

        each = jax.vmap(bounded) if covariance.ndim == 3 else bounded
        return each(covariance, least, most)


def _rows(examples: Array) -> Array:
    """Give examples `f[B, D]` or `f[B]` two axes."""
    chex.assert_rank(examples, {1, 2})
    return examples[:, None] if examples.ndim == 1 else examples
