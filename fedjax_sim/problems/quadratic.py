"""Quadratic losses with a known optimum.

Dimension letters: `N` clients, `P` parameters.
"""

from collections.abc import Mapping
from typing import Annotated, Self

import chex
import jax
import jax.numpy as jnp
import numpy.typing as npt
from flax import struct

from fedjax_sim.core.checking import Limit, checked, shape
from fedjax_sim.core.trees import in_32_bits
from fedjax_sim.core.types import Array, Key
from fedjax_sim.problems.client_data import ClientLosses


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
        return cls(
            centers, curvature, jnp.asarray(noise, centers.dtype), start, per_client=per_client
        )

    @property
    def counts(self) -> Array:
        """Number of examples of each client, one each: `i32[N]`."""
        return jnp.ones(self.centers.shape[0], "int32")

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
        return {"loss": loss, **self.losses_of_clients(params, self.counts.shape[0])}

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
