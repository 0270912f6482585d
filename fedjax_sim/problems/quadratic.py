"""Quadratics with a known optimum."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.types import Array, Key, Params


@struct.dataclass
class Quadratic:
    """Clients with f_i(w) = (curvature_i / 2) ||w - center_i||^2, and Gaussian gradient noise.

    The optimum is the curvature-weighted mean of the centers. `evaluate` returns the loss, the mean of the f_i without noise.
    """

    centers: Array  # f[N, P]
    curvature: Array  # f[N]
    noise: (
        Array  # f[]  standard deviation of the gradient noise, ||.|| over all P coordinates (sigma)
    )
    start: Array  # f[P]  initial model

    @classmethod
    def of(
        cls, centers: Any, *, curvature: Any = 1.0, noise: Any = 0.0, start: Any = 0.0
    ) -> "Quadratic":
        """Build from anything that broadcasts; `start` is a number or `f[P]`."""
        centers = jnp.asarray(centers)
        curvature = jnp.broadcast_to(jnp.asarray(curvature, centers.dtype), centers.shape[:1])
        start = jnp.broadcast_to(jnp.asarray(start, centers.dtype), centers.shape[1:])
        return cls(centers, curvature, jnp.asarray(noise, centers.dtype), start)

    @property
    def counts(self) -> Array:
        """One example a client."""
        return jnp.ones(self.centers.shape[0], "int32")

    @property
    def optimum(self) -> Array:
        """`f[P]`"""
        return self.curvature @ self.centers / self.curvature.sum()

    def init(self, key: Key) -> Params:
        """Start from `start`, whatever the key."""
        return self.start

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """f_i(w) + <xi, w>, whose gradient has noise xi with E||xi||^2 = noise^2."""
        noise = (
            self.noise * jax.random.normal(key, params.shape, params.dtype) / np.sqrt(params.size)
        )
        return (
            self.curvature[client] / 2 * jnp.sum(jnp.square(params - self.centers[client]))
            + noise @ params
        )

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Mean loss over clients."""
        return {
            "loss": jnp.mean(
                self.curvature / 2 * jnp.sum(jnp.square(params[None] - self.centers), axis=1)
            )
        }
