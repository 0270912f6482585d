"""Gaussian posteriors that clients hold parts of: the target is known exactly, and so is the law of a sampler's model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.custom_derivatives import SymbolicZero

from fedjax_sim.diagnostics.gaussians import Gaussian
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Params

COVARIANCE = ((5.0, -2.0), (-2.0, 1.0))
"""Of the data in FA-LD's simulation (arXiv 2112.05120, Sec. 5.1)."""


UNROLLED = 8
"""Dimensions up to which a matrix is multiplied column by column: batches of tiny products, or sums over tiny axes, are slow."""


@jax.custom_jvp
def quadratic_form(x: Array, hessian: Array) -> Array:
    """x' H x / 2 for a symmetric H, whose gradient is H x: `f[]`. x: `f[P]`. hessian: `f[P, P]`."""
    return jnp.sum(x * times(hessian, x)) / 2


@partial(quadratic_form.defjvp, symbolic_zeros=True)
def _slope(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    (x, hessian), (along, turn) = primals, tangents
    of_x, of_hessian = (
        None if isinstance(tangent, SymbolicZero) else tangent for tangent in (along, turn)
    )
    slope = jnp.zeros((), x.dtype) if of_x is None else jnp.sum(times(hessian, x) * of_x)
    return quadratic_form(x, hessian), slope if of_hessian is None else slope + quadratic_form(
        x, of_hessian
    )


def times(matrix: Array, x: Array) -> Array:
    """A matrix times a vector, fast in large batches of tiny ones too: `f[P]`."""
    if x.shape[0] > UNROLLED:
        return matrix @ x
    return sum((matrix[:, i] * x[i] for i in range(1, x.shape[0])), matrix[:, 0] * x[0])


@struct.dataclass
class OneGaussian:
    """A client's part of `GaussianClients` by itself, whose number then does not matter."""

    hessian: Array  # f[P, P]
    center: Array  # f[P]
    noise: Array  # f[P, P]
    num_examples: Array  # i32[]  n, of all clients

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """(f^c(w) + <xi, w>) / n, whose gradient has n^-1 times noise xi of covariance G_c; whichever examples are asked for."""
        xi = times(self.noise, jax.random.normal(key, params.shape, params.dtype))
        return self.client_loss(params, client, key) + jnp.sum(xi * params) / self.num_examples

    def client_loss(self, params: Params, client: Array, key: Key | None) -> Array:
        """f^c(w) / n, without noise."""
        return quadratic_form(params - self.center, self.hessian) / self.num_examples


@struct.dataclass
class GaussianClients:
    """Clients with f^c(w) = (w - b_c)' H_c (w - b_c) / 2, of weights p_c = n_c / n, and Gaussian gradient noise.

    `loss` is f^c / n, the mean over the client's n_c examples of its part of the energy f = sum_c p_c f^c. The posterior at temperature
    tau is N(w_*, tau H^-1) with H = sum_c p_c H_c. `evaluate` returns the loss f / n without noise.
    """

    hessians: Array  # f[N, P, P]  H_c, symmetric and positive definite
    centers: Array  # f[N, P]  b_c
    noise: Array  # f[N, P, P]  factors of the covariance G_c = noise noise' of the noise on the gradient of f^c
    counts: Array  # i32[N]  n_c, in the proportion of the weights
    start: Array  # f[P]  initial model

    @classmethod
    def of(
        cls, hessians: Any, centers: Any, *, counts: Any = 1, noise: Any = 0.0, start: Any = 0.0
    ) -> "GaussianClients":
        """Build from anything that broadcasts: hessians and noise from `[N]`, `[P, P]` or `[N, P, P]`, counts and start from a number.

        Hessians and noise that are numbers, or one per client, multiply the identity.
        """
        centers = jnp.asarray(centers)
        num, dim = centers.shape

        def matrices(x: Any) -> Array:
            x = np.asarray(x, float)
            return jnp.asarray(
                np.broadcast_to(
                    x[..., None, None] * np.eye(dim) if x.ndim < 2 else x, (num, dim, dim)
                ),
                centers.dtype,
            )

        counts = jnp.broadcast_to(jnp.asarray(counts, "int32"), (num,))
        if not np.allclose(
            matrices(hessians), np.swapaxes(matrices(hessians), 1, 2), rtol=1e-4, atol=1e-8
        ):
            raise ConfigError("hessians", "matrices that differ from their transposes", "symmetric")
        return cls(
            matrices(hessians),
            centers,
            matrices(noise),
            counts,
            jnp.broadcast_to(jnp.asarray(start, centers.dtype), (dim,)),
        )

    def init(self, key: Key) -> Params:
        """Start from `start`, whatever the key."""
        return self.start

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """As `OneGaussian.loss`."""
        return self.alone(client).loss(params, client, examples, key)

    def client_loss(self, params: Params, client: Array, key: Key | None) -> Array:
        """f^c(w) / n, without noise."""
        return self.alone(client).client_loss(params, client, key)

    def alone(self, client: Array) -> OneGaussian:
        """A client's losses by themselves: for loops over steps of two parameters, of which looking the client up would be the most."""
        return OneGaussian(
            self.hessians[client], self.centers[client], self.noise[client], self.counts.sum()
        )

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """f(w) / n."""
        losses = jax.vmap(lambda client: self.client_loss(params, client, None))(
            jnp.arange(self.counts.shape[0])
        )
        return {"loss": self.counts @ losses / self.counts.sum()}

    def posterior(self, temperature: float = 1.0) -> Gaussian:
        """The law that is to be sampled from, in float64."""
        share = np.asarray(self.counts, float) / np.asarray(self.counts).sum()
        hessians, centers = np.asarray(self.hessians, float), np.asarray(self.centers, float)
        whole = np.einsum("c,cij->ij", share, hessians)
        return Gaussian(
            np.linalg.solve(whole, np.einsum("c,cij,cj->i", share, hessians, centers)),
            temperature * np.linalg.inv(whole),
        )


def make_gaussian_clients(
    seed: int,
    *,
    alpha: float,
    num_clients: int = 50,
    examples_per_client: int | Any = 1000,
    covariance: Any = COVARIANCE,
    dtype: str = "float64",
) -> GaussianClients:
    """Draw FA-LD's simulated data (arXiv 2112.05120, Sec. 5.1): client means from N(0, alpha I), data around them, known covariance.

    examples_per_client: one number, or one per client; the paper does not say (1000 gives its values of gamma, squared). covariance: of
    the data, `[P, P]`, or one per client `[N, P, P]`, which makes Hessians H_c = n covariance_c^-1 unequal. Only the clients' means are
    kept, which is all that exact gradients need. float64 has to be enabled where the problem is made and run.
    """
    if not (np.isfinite(alpha) and alpha >= 0):
        raise ConfigError("alpha", alpha, "a finite number from 0")
    covariance = np.asarray(covariance, float)
    dim = covariance.shape[-1]
    if covariance.shape not in ((dim, dim), (num_clients, dim, dim)):
        raise ConfigError(
            "shape of covariance", covariance.shape, f"[P, P] or [{num_clients}, P, P]"
        )
    random = np.random.default_rng(seed)
    counts = np.broadcast_to(np.asarray(examples_per_client), (num_clients,))
    true_means = np.sqrt(alpha) * random.normal(size=(num_clients, dim))
    # The mean of n_c normal vectors is normal: drawn as such, it does not take the memory of the data.
    factor = np.linalg.cholesky(np.broadcast_to(covariance, (num_clients, dim, dim)))
    means = (
        true_means
        + np.einsum("cij,cj->ci", factor, random.normal(size=(num_clients, dim)))
        / np.sqrt(counts)[:, None]
    )
    hessians = counts.sum() * np.broadcast_to(np.linalg.inv(covariance), (num_clients, dim, dim))
    return GaussianClients.of(hessians.astype(dtype), means.astype(dtype), counts=counts)
