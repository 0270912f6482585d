"""Mixtures of Gaussians, with scikit-learn's four kinds of covariances, and of Bernoulli laws.

*Gaussians* with one covariance for all components ("tied"; arXiv 2111.02083, App. F.1):

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
both. The result is then not a number, and the lane is reported as failed.

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

*Products of Bernoulli laws*, for binary examples:

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

Dimension letters: `B` examples, `G` components, `D` coordinates of an example, `F` features, `q`
numbers of a statistic. Examples `f[B]` of Gaussians are taken as having one coordinate.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.linalg import cho_solve, solve_triangular

from fedjax_sim.core.settings import Above0, AtLeast0, ConfigError, Count, OneOf, checked
from fedjax_sim.core.types import Array, Key, Leaf, Params
from fedjax_sim.problems.client_data import check_range
from fedjax_sim.problems.latent.estimation import LatentModel


class Mixture(NamedTuple):
    """The parameters theta.

    Attributes:
      weights: `f[G]`, pi, weights of the components.
      means: `f[G, D]`, mu, means of the components; of Bernoulli laws the probabilities of a 1.
      covariance: Sigma: `f[D, D]` if tied, `f[G, D, D]` full, `f[G, D]` diag, `f[G]` spherical;
        None of Bernoulli laws.
    """

    weights: Array
    means: Array
    covariance: Leaf = None


class OfComponents(LatentModel):
    """The common base of mixtures; `components` is G, the number of components."""

    components: int

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


class Form(NamedTuple):
    """A kind of covariances.

    Attributes:
      quadratic: Features r(y) `f[B, F - D]` of examples `f[B, D]`.
      mean: E[r(y)] `f[F - D]` from the second moment `f[D, D]` of all data.
      of_all: From a covariance `f[D, D]` and G to that of every component.
      within: Covariances from the components' means of r(y), and of y; None if there is one only.
      are_matrices: Whether covariances are matrices, and no variances.
    """

    quadratic: Callable[[Array], Array]
    mean: Callable[[Array], Array]
    of_all: Callable[[Array, int], Array]
    within: Callable[[Array, Array], Array] | None
    are_matrices: bool


FORMS = {
    "tied": Form(lambda y: y[:, :0], lambda moment: moment[0, :0], lambda x, num: x, None, True),
    "full": Form(
        lambda y: pack(y[:, :, None] * y[:, None, :]),
        pack,
        lambda x, num: jnp.broadcast_to(x, (num, *x.shape)),
        lambda moments, mu: unpack(moments, mu.shape[1]) - mu[:, :, None] * mu[:, None, :],
        True,
    ),
    "diag": Form(
        jnp.square,
        jnp.diag,
        lambda x, num: jnp.broadcast_to(jnp.diag(x), (num, len(x))),
        lambda moments, mu: moments - jnp.square(mu),
        False,
    ),
    "spherical": Form(
        lambda y: jnp.square(y).sum(axis=1, keepdims=True),
        lambda moment: jnp.trace(moment)[None],
        lambda x, num: jnp.full(num, jnp.trace(x) / len(x)),
        lambda moments, mu: (moments[:, 0] - jnp.sum(jnp.square(mu), axis=1)) / mu.shape[1],
        False,
    ),
}
"""Kinds of covariances, by scikit-learn's names."""
STARTS = ("random", "k-means++")
"""How the first means are drawn among the examples."""


@checked
@struct.dataclass
class GaussianMixture(OfComponents):
    """The mixture of Gaussians of this module.

    Its loss is the negative log-density less (D / 2) log(2 pi), as in eq. (57).

    Attributes:
      components: G, the number of components.
      covariance: `f[D, D]`, Sigma if it is known and tied; None to fit it.
      second_moment: `f[D, D]`, M_2; None until `with_data` sets it.
      covariance_type: One of `FORMS`.
      prior: tau, the prior's examples of each component over all examples; 0 for none.
      starts: One of `STARTS`.
      mean: `f[D]`, m; None until `with_data` sets it for a prior.
    """

    components: Count = struct.field(pytree_node=False)
    covariance: Array | None = None
    second_moment: Leaf = None
    covariance_type: Annotated[str, OneOf(tuple(FORMS))] = struct.field(
        pytree_node=False, default="tied"
    )
    prior: AtLeast0 = struct.field(pytree_node=False, default=0.0)
    starts: Annotated[str, OneOf(STARTS)] = struct.field(pytree_node=False, default="random")
    mean: Leaf = None

    @property
    def form(self) -> Form:
        """The kind of covariances."""
        return FORMS[self.covariance_type]

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
            of_all = self.second_moment - jnp.outer(mean, mean)
            covariance = self.form.of_all(of_all, self.components)
        if self.starts == "k-means++":
            means = spread_examples(key, examples, weight, self.components)
        else:
            means = jax.random.choice(key, examples, (self.components,), replace=False, p=weight)
        weights = jnp.full(self.components, 1 / self.components, examples.dtype)
        return self.natural(Mixture(weights, means, covariance))

    def maximise(self, statistics: Array) -> Mixture:
        """Compute the M-step T(s) from statistics `f[q]`; without a prior nan unless all s1 > 0."""
        first, second = self._split(statistics)
        total = 1.0
        if self.prior:
            first = jnp.clip(first, 0, 1) + self.prior
            second = second + self.prior * self._mean_features()[None]
            total = 1 + self.components * self.prior
        else:
            first = jnp.where(first > 0, first, jnp.nan)
        dim = self.second_moment.shape[0]
        means, moments = jnp.split(second / first[:, None], [dim], axis=1)
        if self.prior:
            most = jnp.sqrt((1 + self.prior) / first)[:, None] * jnp.sqrt(self._spread())[None]
            means = self.mean[None] + jnp.clip(means - self.mean[None], -most, most)
        covariance = self.covariance
        if self.form.within is not None:
            covariance = self.form.within(moments, means)
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
        return (*sent, pack(params.covariance) if self.form.are_matrices else params.covariance)

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
            quadratic = pack(precision * (2 - eye)[None])
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

    def penalty(self, params: Mixture) -> Array | float:
        """Compute R(theta), less the constant of the densities: `f[]`.

        Args:
          params: theta.
        """
        if not self.prior:
            return super().penalty(params)
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
        if self.form.are_matrices:
            eigenvalues = jnp.linalg.eigvalsh(params.covariance)
        least = eigenvalues[0] if self.covariance_type == "tied" else eigenvalues.min()
        margins = {"least_weight": self._split(statistics)[0].min(), "least_eigenvalue": least}
        return {**super().metrics(statistics, params), **margins}

    def log_density(self, params: Mixture, examples: Array) -> Array:
        """Compute log p(y; theta) of examples `f[B, D]` or `f[B]`: `f[B]`.

        Args:
          params: theta.
          examples: `f[B, D]` or `f[B]`.
        """
        return super().log_density(params, examples) - params.means.shape[1] / 2 * np.log(2 * np.pi)

    def num_free(self, params: Mixture) -> int:
        """Count the free parameters.

        Args:
          params: theta, for its shapes.
        """
        return super().num_free(params) + sum(entries.size for entries in self.unknown(params)[2:])

    def _features(self, examples: Array) -> Array:
        """Compute t(y): `f[B, F]`."""
        examples = _rows(examples)
        return jnp.concatenate([examples, self.form.quadratic(examples)], axis=1)

    def _mean_features(self) -> Array:
        """Compute E[t(y)]: `f[F]`."""
        return jnp.concatenate([self.mean, self.form.mean(self.second_moment)])

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
        if not self.form.are_matrices:
            whole = self.form.of_all(of_all, self.components)
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


@checked
@struct.dataclass
class BernoulliMixture(OfComponents):
    """The mixture of products of Bernoulli laws of this module.

    Attributes:
      components: G, the number of components.
      smoothing: Strength of the penalty, above 0.
    """

    components: Count = struct.field(pytree_node=False)
    smoothing: Above0 = 1e-3

    def with_data(self, examples: Array, weight: Array) -> Self:
        """Check shapes and range of the examples, `f[B, D]`, and return the model as it is."""
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
