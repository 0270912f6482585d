"""Quadratic losses of clients, with a known optimum or with a known Gaussian posterior.

Each client of `GaussianClients` holds a part of the posterior. Because everything is Gaussian, the
target of a sampler is known exactly (`GaussianClients.posterior`). So is the law of the sampler's
model at every round, with which the experiments on FA-LD compare runs.

Dimension letters: `N` clients, `P` parameters.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import struct
from jax.custom_derivatives import SymbolicZero

from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, FloatType, Limit, Seed, shape
from fedjax_sim.core.trees import as_array, in_32_bits
from fedjax_sim.core.types import Array, Key
from fedjax_sim.problems.client_data import ClientLosses
from fedjax_sim.results.diagnostics import Gaussian

MOST = 2**31 - 1
COUNTS = Limit(least=1, most=MOST, is_whole=True)
COVARIANCE = ((5.0, -2.0), (-2.0, 1.0))
"""Covariance of the data in FA-LD's simulation (arXiv 2112.05120, Sec. 7.1)."""

UNROLLED = 8
"""Largest P for which a matrix-vector product is written out column by column.

Large batches of tiny matrix products, or of sums over tiny axes, are slow.
"""


@struct.dataclass
class Quadratic(ClientLosses):
    """Client i has the loss f_i(w) = (curvature_i / 2) ||w - center_i||^2, with gradient noise.

    The objective is the mean of the f_i. Its optimum is the curvature-weighted mean of the centers.

        problem = Quadratic.of([[0.0, 0.0], [4.0, 8.0]], curvature=[3.0, 1.0])
        assert problem.optimum.tolist() == [4.0 / 4, 8.0 / 4]  # 3 parts and 1 part

    Attributes:
      centers: `f[N, P]`, the minimum of each client's loss.
      curvature: `f[N]`, the only eigenvalue of each client's Hessian.
      noise: `f[]`, sigma: standard deviation of the Gaussian gradient noise xi, in the norm over
        all P coordinates, so that E||xi||^2 = sigma^2.
      start: `f[P]`, the initial model.
      per_client: Whether every client's loss is measured too.
    """

    centers: Annotated[Array, shape("N P"), Limit()]
    curvature: Annotated[Array, shape("N"), Limit(least=0)]
    noise: Annotated[Array, shape(""), Limit(least=0)]
    start: Annotated[Array, shape("P"), Limit()]
    per_client: bool = struct.field(pytree_node=False, default=False, kw_only=True)

    @classmethod
    @checked
    def of(
        cls,
        centers: Annotated[npt.ArrayLike, shape("N P"), Limit()],
        *,
        curvature: Annotated[npt.ArrayLike, shape("", "N"), Limit(least=0)] = 1.0,
        noise: Annotated[npt.ArrayLike, shape(""), Limit(least=0)] = 0.0,
        start: Annotated[npt.ArrayLike, shape("", "P"), Limit()] = 0.0,
        per_client: bool = False,
    ) -> Self:
        """Build from arrays or plain numbers.

        Args:
          centers: `[N, P]`, the minimum of each client's loss. Its dtype is that of the problem, or
            float32 or float64 for whole numbers.
          curvature: One number for all clients, or one per client `[N]`, at least 0.
          noise: Standard deviation of the gradient noise, at least 0.
          start: Initial model: one number for all coordinates, or `[P]`.
          per_client: Whether every client's loss is measured too.

        Returns:
          The problem.

        Raises:
          ConfigError: If an argument is not allowed, or does not fit the shape of `centers`.
        """
        centers = jnp.asarray(centers) * 1.0  # Whole numbers would cut the others to their type.
        curvature = jnp.broadcast_to(jnp.asarray(curvature, centers.dtype), centers.shape[:1])
        start = jnp.broadcast_to(jnp.asarray(start, centers.dtype), centers.shape[1:])
        noise = jnp.asarray(noise, centers.dtype)
        return cls(centers, curvature, noise, start, per_client=per_client)

    @property
    def counts(self) -> Array:
        """Number of examples of each client, one each: `i32[N]`."""
        return as_array(np.ones(self.centers.shape[0], np.int32))

    @property
    def optimum(self) -> Array:
        """Minimum of the mean of the f_i: `f[P]`."""
        return self.curvature @ self.centers / self.curvature.sum()

    def init(self, key: Key) -> Array:
        """Return `start`, `f[P]`; the key is ignored."""
        return self.start

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        """Compute f_i(w) + <xi, w>, so that the gradient has the noise xi.

        Args:
          params: `f[P]`, the model w.
          client: `i32[]`, the client i.
          examples: Ignored: a client has one example.
          key: For the noise xi.

        Returns:
          `f[]`.
        """
        chex.assert_equal_shape([params, self.start])
        noise = self.noise * jax.random.normal(key, params.shape, params.dtype) / params.size**0.5
        return self.client_loss(params, client, None) + noise @ params

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        """Compute "loss", the mean of the f_i without noise, and with `per_client` each f_i.

        Args:
          params: `f[P]`, the model w.

        Returns:
          A mapping with "loss", `f[]`, and with `per_client` "client_loss[client]", `f[N]`.
        """
        chex.assert_equal_shape([params, self.start])
        away = in_32_bits(params)[None] - self.centers
        loss = jnp.mean(self.curvature / 2 * jnp.sum(jnp.square(away), axis=1))
        return {"loss": loss, **self.losses_of_clients(params)}

    def client_loss(self, params: Array, client: Array, key: Key | None) -> Array:
        """Compute f_i(w), without noise.

        Args:
          params: `f[P]`, the model w.
          client: `i32[]`, the client i.
          key: Ignored.

        Returns:
          `f[]`.
        """
        away = in_32_bits(params) - self.centers[client]
        return self.curvature[client] / 2 * jnp.sum(jnp.square(away))


@jax.custom_jvp
def quadratic_form(x: Array, hessian: Array) -> Array:
    """Compute x' H x / 2 for a symmetric H, with the gradient H x.

    Args:
      x: `f[P]`.
      hessian: `f[P, P]`, symmetric.

    Returns:
      `f[]`.

    Raises:
      AssertionError: If the shapes do not match.
    """
    chex.assert_shape([x, hessian], [x.shape[:1], (*x.shape[:1], *x.shape[:1])])
    return jnp.sum(x * times(hessian, x)) / 2


@partial(quadratic_form.defjvp, symbolic_zeros=True)
def _quadratic_form_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
) -> tuple[Array, Array]:
    """Compute `quadratic_form` and its directional derivative, without terms known to be zero."""
    x, hessian = primals
    x_tangent, hessian_tangent = tangents
    slope = jnp.zeros((), x.dtype)
    if not isinstance(x_tangent, SymbolicZero):
        slope = jnp.sum(times(hessian, x) * x_tangent)
    if not isinstance(hessian_tangent, SymbolicZero):
        slope = slope + quadratic_form(x, hessian_tangent)
    return quadratic_form(x, hessian), slope


def times(matrix: Array, x: Array) -> Array:
    """Multiply a matrix by a vector in a way that stays fast in large batches of tiny ones.

    Args:
      matrix: `f[P, P]`.
      x: `f[P]`.

    Returns:
      `f[P]`.
    """
    if x.shape[0] > UNROLLED:
        return matrix @ x
    return sum((matrix[:, i] * x[i] for i in range(1, x.shape[0])), matrix[:, 0] * x[0])


@struct.dataclass
class OneGaussian:
    """The losses of one client of `GaussianClients`; letters as there.

    Attributes:
      hessian: `f[P, P]`, H_c.
      center: `f[P]`, b_c.
      noise: `f[P, P]`, factor of the covariance G_c of the gradient noise.
      num_examples: `i32[]`, n, the number of examples of all clients together.
    """

    hessian: Array
    center: Array
    noise: Array
    num_examples: Array

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        """Compute (f^c(w) + <xi, w>) / n, so that the gradient has the noise xi / n.

        Args:
          params: `f[P]`, the model w.
          client: Ignored.
          examples: Ignored: the noise stands for the choice of a mini-batch.
          key: For the noise xi, which is Gaussian with covariance G_c.

        Returns:
          `f[]`.
        """
        chex.assert_equal_shape([params, self.center])
        xi = times(self.noise, jax.random.normal(key, params.shape, params.dtype))
        return self.client_loss(params, client, key) + jnp.sum(xi * params) / self.num_examples

    def client_loss(self, params: Array, client: Array, key: Key | None) -> Array:
        """Compute f^c(w) / n, without noise.

        Args:
          params: `f[P]`, the model w.
          client: Ignored.
          key: Ignored.

        Returns:
          `f[]`.
        """
        chex.assert_equal_shape([params, self.center])
        return quadratic_form(params - self.center, self.hessian) / self.num_examples


@struct.dataclass
class GaussianClients(ClientLosses):
    """Client c has f^c(w) = (w - b_c)' H_c (w - b_c) / 2 and the weight p_c = n_c / n.

    The energy is f = sum_c p_c f^c. At temperature tau the posterior is N(w_*, tau H^-1) with
    H = sum_c p_c H_c. `loss` is f^c / n: the mean, over the client's n_c examples, of its part
    p_c f^c of the energy.

    Attributes:
      hessians: `f[N, P, P]`, H_c, symmetric and without negative eigenvalues.
      centers: `f[N, P]`, b_c.
      noise: `f[N, P, P]`, factors of the covariances G_c = noise noise' of the Gaussian noise on
        the gradients of the f^c.
      counts: `i32[N]`, n_c; only their proportions and their sum n matter.
      start: `f[P]`, the initial model.
      per_client: Whether every client's loss is measured too.
    """

    hessians: Annotated[Array, shape("N P P"), Limit()]
    centers: Annotated[Array, shape("N P"), Limit()]
    noise: Annotated[Array, shape("N P P"), Limit()]
    counts: Annotated[Array, shape("N"), COUNTS]
    start: Annotated[Array, shape("P"), Limit()]
    per_client: bool = struct.field(pytree_node=False, default=False, kw_only=True)

    @classmethod
    @checked
    def of(
        cls,
        hessians: Annotated[npt.ArrayLike, Limit()],
        centers: Annotated[npt.ArrayLike, shape("N P"), Limit()],
        *,
        counts: Annotated[npt.ArrayLike, shape("", "N"), COUNTS] = 1,
        noise: Annotated[npt.ArrayLike, Limit()] = 0.0,
        start: Annotated[npt.ArrayLike, shape("", "P"), Limit()] = 0.0,
        per_client: bool = False,
    ) -> Self:
        """Build from arrays or plain numbers.

        Args:
          hessians: H_c: one number, one per client `[N]`, one matrix `[P, P]` or one matrix per
            client `[N, P, P]`. Numbers multiply the identity.
          centers: `[N, P]`, b_c. Its dtype is that of the problem, or float32 or float64 for whole
            numbers.
          counts: n_c: one whole number, or one per client `[N]`, with a sum of less than 2^31.
          noise: Factors of the covariances of the gradient noise, in the same forms as `hessians`.
          start: Initial model: one number for all coordinates, or `[P]`.
          per_client: Whether every client's loss is measured too.

        Returns:
          The problem.

        Raises:
          ConfigError: If a Hessian is not symmetric or has a negative eigenvalue, a count is no
            whole number, or an argument does not fit the shape of `centers`.
        """
        num, dim = np.shape(centers)
        for name, value in (("hessians", hessians), ("noise", noise)):
            if np.shape(value) not in ((), (num,), (dim, dim), (num, dim, dim)):
                allowed = f"(), ({num},), ({dim}, {dim}) or ({num}, {dim}, {dim}), as of centers"
                raise ConfigError(f"shape of {name}", np.shape(value), allowed)
        centers = jnp.asarray(centers) * 1.0  # Whole numbers would cut the others to their type.

        def matrices(x: npt.ArrayLike) -> Array:
            x = np.asarray(x, float)
            x = x[..., None, None] * np.eye(dim) if x.ndim < 2 else x
            return jnp.asarray(np.broadcast_to(x, (num, dim, dim)), centers.dtype)

        hessians, noise = matrices(hessians), matrices(noise)
        counts = jnp.broadcast_to(jnp.asarray(counts, "int32"), (num,))
        start = jnp.broadcast_to(jnp.asarray(start, centers.dtype), (dim,))
        made = cls(hessians, centers, noise, counts, start, per_client=per_client)
        made.check_values()
        return made

    def _check_together(self) -> None:
        hessians = np.asarray(self.hessians, float)
        if not np.allclose(hessians, np.swapaxes(hessians, 1, 2), rtol=1e-4, atol=1e-8):
            raise ConfigError("hessians", "matrices that differ from their transposes", "symmetric")
        eigenvalues = np.linalg.eigvalsh(hessians)
        # Matrices of 16 or 32 bits are rounded, and so may be their smallest eigenvalues.
        if (least := eigenvalues.min()) < -1e-4 * np.abs(eigenvalues).max():
            raise ConfigError("smallest eigenvalue of hessians", float(least), "at least 0")
        if (total := int(np.asarray(self.counts, "int64").sum())) > MOST:
            raise ConfigError("sum of counts", total, f"at most {MOST}")

    def init(self, key: Key) -> Array:
        """Return `start`, `f[P]`; the key is ignored."""
        return self.start

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        """Compute (f^c(w) + <xi, w>) / n for client c, so that the gradient has the noise xi / n.

        Args:
          params: `f[P]`, the model w.
          client: `i32[]`, the client c.
          examples: Ignored: the noise stands for the choice of a mini-batch.
          key: For the noise xi, which is Gaussian with covariance G_c.

        Returns:
          `f[]`.
        """
        return self.alone(client).loss(params, client, examples, key)

    def client_loss(self, params: Array, client: Array, key: Key | None) -> Array:
        """Compute f^c(w) / n for client c, without noise.

        Args:
          params: `f[P]`, the model w.
          client: `i32[]`, the client c.
          key: Ignored.

        Returns:
          `f[]`.
        """
        return self.alone(client).client_loss(params, client, key)

    def alone(self, client: Array) -> OneGaussian:
        """Look up the losses of one client.

        In a loop over local steps with two parameters, looking up the client in every step would
        be most of the work.

        Args:
          client: `i32[]`, the client's number.

        Returns:
          The losses, with the same values as those of this problem for the client.
        """
        chex.assert_rank(client, 0)
        own = self.hessians[client], self.centers[client], self.noise[client]
        return OneGaussian(*own, self.counts.sum())

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        """Compute "loss", f(w) / n without noise, and with `per_client` each f^c(w) / n.

        Args:
          params: `f[P]`, the model w.

        Returns:
          A mapping with "loss", `f[]`, and with `per_client` "client_loss[client]", `f[N]`.
        """
        params = in_32_bits(params)
        clients = jnp.arange(self.counts.shape[0])
        losses = jax.vmap(lambda client: self.client_loss(params, client, None))(clients)
        loss = self.counts @ losses / self.counts.sum()
        return {"loss": loss, **self.losses_of_clients(params)}

    @checked
    def posterior(self, temperature: Above0 = 1.0) -> Gaussian:
        """Compute the law N(w_*, tau H^-1) that a sampler should reach, on the host in float64.

        Args:
          temperature: tau, above 0.

        Returns:
          Mean `f64[P]` and covariance `f64[P, P]`.
        """
        share = np.asarray(self.counts, float) / np.asarray(self.counts).sum()
        hessians, centers = np.asarray(self.hessians, float), np.asarray(self.centers, float)
        hessian = np.einsum("c,cij->ij", share, hessians)
        mean = np.linalg.solve(hessian, np.einsum("c,cij,cj->i", share, hessians, centers))
        return Gaussian(mean, temperature * np.linalg.inv(hessian))


@checked
def make_gaussian_clients(
    seed: Seed,
    *,
    alpha: AtLeast0,
    num_clients: Count = 50,
    examples_per_client: Annotated[npt.ArrayLike, shape("", "N"), COUNTS] = 1000,
    covariance: Annotated[npt.ArrayLike, shape("P P", "N P P"), Limit()] = COVARIANCE,
    dtype: FloatType = "float64",
) -> GaussianClients:
    """Draw the simulated data of FA-LD (arXiv 2112.05120, Sec. 7.1).

    Each client has a true mean from N(0, alpha I) and data around it with a known covariance. Only
    the mean of each client's data is kept, as exact gradients need nothing else.

        problem = make_gaussian_clients(seed=0, alpha=0.1, num_clients=20)

    Args:
      seed: Seed of the draws.
      alpha: Variance of each coordinate of the clients' true means, at least 0. It sets how
        different the clients are.
      num_clients: N.
      examples_per_client: n_c: one whole number, or one per client `[N]`. The paper does not state
        it; 1000 gives the paper's values of gamma, squared.
      covariance: Covariance of the data: `[P, P]`, or one per client `[N, P, P]`, which makes the
        Hessians H_c = n covariance_c^-1 unequal.
      dtype: Floating type of the problem. "float64" needs `jax.enable_x64` where the problem is
        made and where it is run.

    Returns:
      The problem, with exact gradients and the initial model 0.

    Raises:
      ConfigError: If an argument is not allowed.
    """
    covariance = np.asarray(covariance, float)
    dim = covariance.shape[-1]
    if covariance.shape not in ((dim, dim), (num_clients, dim, dim)):
        allowed = f"[P, P] or [{num_clients}, P, P]"
        raise ConfigError("shape of covariance", covariance.shape, allowed)
    if np.size(examples_per_client) not in (1, num_clients):
        allowed = f"one number, or {num_clients}: one per client"
        raise ConfigError("examples_per_client", examples_per_client, allowed)
    if not (np.linalg.eigvalsh(covariance) > 0).all():
        raise ConfigError("covariance", covariance, "positive definite")
    random = np.random.default_rng(seed)
    counts = np.broadcast_to(np.asarray(examples_per_client), (num_clients,))
    true_means = np.sqrt(alpha) * random.normal(size=(num_clients, dim))
    # The mean of n_c normal vectors is itself normal. Drawing it directly needs no memory for data.
    factor = np.linalg.cholesky(np.broadcast_to(covariance, (num_clients, dim, dim)))
    deviations = np.einsum("cij,cj->ci", factor, random.normal(size=(num_clients, dim)))
    means = true_means + deviations / np.sqrt(counts)[:, None]
    hessians = counts.sum() * np.broadcast_to(np.linalg.inv(covariance), (num_clients, dim, dim))
    return GaussianClients.of(hessians.astype(dtype), means.astype(dtype), counts=counts)
