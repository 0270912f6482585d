"""Matrices with missing cells and a low-rank mean (arXiv 2111.02083, App. F.2): the model of FedMissEM.

Cells are independent with density rho(x) exp(x theta - psi(theta)), theta = U V' the same for all matrices. The statistic of a matrix is
itself with psi'(theta) in the cells not seen; phi is the identity; R = (ridge / 2)(||U||^2 + ||V||^2).

    family      psi(t)           psi'(t)     theta is
    gaussian    t^2 / 2          t           the mean, with variance 1
    poisson     exp(t)           exp(t)      the logarithm of the intensity
    bernoulli   log(1 + exp t)   sigmoid     the logarithm of the odds

Letters: `J` rows (sites), `L` columns (times), `r` the rank; q = J L, row by row. An example is one matrix: in the paper's experiment a
server with all visits of its observers.

Readings. The paper prints another sign and other names of parameters for psi, and theta where psi'(theta) belongs in the E-step, which is
right for the Gaussian alone; its "thresholded" singular value decomposition is the closed form below. Other families are maximised by
alternating Newton steps from the decomposition of the link of s, as T is a function of s and knows no earlier parameters. They are for
statistics that are means of the family, at least 0 (Poisson) or from 0 to 1 (Bernoulli): beyond, where a compressor's noise can take s, the
surrogate may have no minimum, and T is what the steps have come to, without a warning. The algorithm's mini-batches of cells are a
compressor, see `cells.py`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Leaf

FAMILIES = ("gaussian", "poisson", "bernoulli")
LEAST_INTENSITY, LEAST_CHANCE = 1e-2, 1e-2
"""Where the link of a statistic is cut off, to start from."""
STEP_SIZES = tuple(0.5**k for k in range(7))
"""Tried along each Newton direction."""


class Matrix(NamedTuple):
    """Examples."""

    values: Leaf  # f[B, J, L]  anything where not seen
    seen: Leaf  # f[B, J, L]  1 or 0


class LowRank(NamedTuple):
    """theta = rows columns'."""

    rows: Array  # f[J, r]  U
    columns: Array  # f[L, r]  V


@struct.dataclass
class MissingValues:
    """The model.

    method: "svd" and "gram" are the closed form for the Gaussian, by the singular value decomposition of s or, for J much larger than L,
    by the eigenvectors of s' s; "alternating" is for all families, with `iterations` rounds of a Newton step for all rows and one for
    all columns.
    """

    shape: tuple[int, int] = struct.field(pytree_node=False)  # (J, L)
    rank: int = struct.field(pytree_node=False)
    family: str = struct.field(pytree_node=False, default="gaussian")
    method: str = struct.field(pytree_node=False, default="svd")
    iterations: int = struct.field(pytree_node=False, default=30)
    ridge: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError("family", self.family, "one of " + ", ".join(FAMILIES))
        if self.method not in (
            methods := ("svd", "gram", "alternating")
            if self.family == "gaussian"
            else ("alternating",)
        ):
            raise ConfigError(
                "method", self.method, f"one of {', '.join(methods)} for the {self.family} family"
            )
        if not 1 <= self.rank < min(self.shape):
            raise ConfigError("rank", self.rank, f"from 1 to {min(self.shape) - 1}")

    def with_data(self, examples: Matrix, weight: Array) -> "MissingValues":
        """Nothing is taken in."""
        return self

    def initial(self, key: Key, examples: Matrix, weight: Array) -> Array:
        """The same theta for every cell: 0, so that S_0 is the mean of matrices filled up with zeros; for counts, of their mean."""
        if self.family == "poisson":
            seen = jnp.einsum("b,bjl->", weight, examples.seen)
            mean = jnp.einsum("b,bjl->", weight, self._filled(examples, jnp.zeros(()))) / seen
            return jnp.full(
                self.shape[0] * self.shape[1], jnp.log(jnp.maximum(mean, LEAST_INTENSITY))
            )
        return jnp.zeros(self.shape[0] * self.shape[1], examples.values.dtype)

    def maximise(self, statistics: Array) -> LowRank:
        """T."""
        matrix = statistics.reshape(self.shape)
        if self.method == "alternating":
            start = truncated(self._link(matrix), self.rank, 0.0)
            return jax.lax.fori_loop(
                0, self.iterations, lambda _, theta: self._alternate(matrix, theta), start
            )
        return truncated(matrix, self.rank, self.ridge, by_gram=self.method == "gram")

    def natural(self, params: LowRank) -> Array:
        """phi(theta): theta itself."""
        return jnp.matmul(params.rows, params.columns.T, precision="highest").ravel()

    def statistics(self, natural: Array, examples: Matrix, weight: Array) -> Array:
        """Completed matrices, summed with weights."""
        completed = self._filled(examples, self._mean(natural.reshape(self.shape))[None])
        return jnp.einsum("b,bjl->jl", weight, completed, precision="highest").ravel()

    def loss(self, params: LowRank, examples: Matrix) -> Array:
        """Sum over cells seen of psi(theta) - y theta."""
        theta = self.natural(params).reshape(self.shape)
        loss = (
            self._log_partition(theta)[None] - self._filled(examples, jnp.zeros(())) * theta[None]
        )
        return jnp.sum(jnp.where(examples.seen > 0, loss, 0), axis=(1, 2))

    def penalty(self, params: LowRank) -> Array:
        """R."""
        return (
            self.ridge
            / 2
            * (jnp.sum(jnp.square(params.rows)) + jnp.sum(jnp.square(params.columns)))
        )

    def metrics(self, statistics: Array, params: LowRank) -> Mapping[str, Array]:
        """None."""
        return {}

    def means(self, params: LowRank) -> Array:
        """Expected values of all cells: `f[J, L]`."""
        return self._mean(self.natural(params).reshape(self.shape))

    def surrogate(self, statistics: Array, params: LowRank) -> Array:
        """What T minimises: the sum of psi(theta) - s theta, and R."""
        theta = self.natural(params).reshape(self.shape)
        return jnp.sum(
            self._log_partition(theta) - statistics.reshape(self.shape) * theta
        ) + self.penalty(params)

    @staticmethod
    def _filled(examples: Matrix, fill: Array) -> Array:
        return jnp.where(examples.seen > 0, examples.values, fill)

    def _log_partition(self, theta: Array) -> Array:
        return {"gaussian": lambda t: t**2 / 2, "poisson": jnp.exp, "bernoulli": jax.nn.softplus}[
            self.family
        ](theta)

    def _mean(self, theta: Array) -> Array:
        return {"gaussian": lambda t: t, "poisson": jnp.exp, "bernoulli": jax.nn.sigmoid}[
            self.family
        ](theta)

    def _curvature(self, theta: Array) -> Array:
        mean = self._mean(theta)
        return {"gaussian": jnp.ones_like(mean), "poisson": mean, "bernoulli": mean * (1 - mean)}[
            self.family
        ]

    def _link(self, matrix: Array) -> Array:
        """The theta of a mean, cut off."""
        if self.family == "poisson":
            return jnp.log(jnp.maximum(matrix, LEAST_INTENSITY))
        if self.family == "bernoulli":
            chance = jnp.clip(matrix, LEAST_CHANCE, 1 - LEAST_CHANCE)
            return jnp.log(chance) - jnp.log1p(-chance)
        return matrix

    def _alternate(self, matrix: Array, theta: LowRank) -> LowRank:
        rows = self._newton(matrix, theta.rows, theta.columns)
        return LowRank(rows, self._newton(matrix.T, theta.columns, rows))

    def _newton(self, matrix: Array, own: Array, other: Array) -> Array:
        """One damped Newton step of every row of `own[K, r]`, the other factor `[M, r]` fixed; matrix: `[K, M]`.

        The best of a few step sizes for each row by itself, or none, so that the surrogate never increases.
        """
        product = functools.partial(jnp.matmul, precision="highest")
        theta = product(own, other.T)
        gradient = product(self._mean(theta) - matrix, other) + self.ridge * own
        hessian = jnp.einsum(
            "km,mr,ms->krs", self._curvature(theta), other, other, precision="highest"
        )
        # A trace of damping keeps rows solvable whose curvature vanishes.
        damping = (
            self.ridge + 1e-6 * jnp.trace(hessian, axis1=1, axis2=2) + jnp.finfo(own.dtype).tiny
        )
        hessian = hessian + damping[:, None, None] * jnp.eye(self.rank)[None]
        direction = jnp.linalg.solve(hessian, gradient[..., None])[..., 0]
        along = product(direction, other.T)

        def surrogate(size: Array) -> Array:
            moved, there = own - size * direction, theta - size * along
            fit = jnp.sum(self._log_partition(there) - matrix * there, axis=1)
            return fit + self.ridge / 2 * jnp.sum(jnp.square(moved), axis=1)

        sizes = jnp.asarray((*STEP_SIZES, 0.0), own.dtype)
        values = jax.lax.map(surrogate, sizes)
        best = sizes[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf), axis=0)]
        return own - best[:, None] * direction


def truncated(matrix: Array, rank: int, threshold: Any, *, by_gram: bool = False) -> LowRank:
    """The minimiser of ||matrix - U V'||^2 / 2 + (threshold / 2)(||U||^2 + ||V||^2): singular values less the threshold, the largest kept.

    by_gram: from the eigenvectors of the smaller of the two products with the transpose, less exact for small singular values.
    """
    if by_gram and matrix.shape[0] < matrix.shape[1]:
        turned = truncated(matrix.T, rank, threshold, by_gram=True)
        return LowRank(turned.columns, turned.rows)
    if by_gram:
        squares, right = jnp.linalg.eigh(jnp.matmul(matrix.T, matrix, precision="highest"))
        right, values = right[:, ::-1][:, :rank], jnp.sqrt(jnp.maximum(squares[::-1][:rank], 0))
        left = (
            jnp.matmul(matrix, right, precision="highest") / jnp.where(values > 0, values, 1)[None]
        )
    else:
        left, values, right_rows = jnp.linalg.svd(matrix, full_matrices=False)
        left, values, right = left[:, :rank], values[:rank], right_rows[:rank].T
    scale = jnp.sqrt(jnp.maximum(values - threshold, 0))[None]
    return LowRank(left * scale, right * scale)


def make_matrices(
    client: Sequence[int],
    row: Sequence[int],
    column: Sequence[int],
    value: Sequence[float],
    shape: tuple[int, int, int],
) -> Matrix:
    """Gather visits into one matrix per client, on the host; values of a cell visited several times are averaged.

    client, row, column: whole numbers `[n]` below shape = (N, J, L); value: `[n]`. Returns leaves `f64[N, J, L]`.
    """
    places = np.stack([np.asarray(each) for each in (client, row, column)])
    values = np.asarray(value, float)
    for name, place, size in zip(("client", "row", "column"), places, shape, strict=True):
        if place.shape != values.shape or place.min(initial=0) < 0 or place.max(initial=0) >= size:
            raise ConfigError(
                f"{name} of the visits",
                f"from {place.min()} to {place.max()}",
                f"from 0 to {size - 1}, one for each value",
            )
    if not np.isfinite(values).all():
        raise ConfigError("value of the visits", "nan or inf", "finite")
    total, visits = np.zeros(shape), np.zeros(shape)
    np.add.at(total, tuple(places), values)
    np.add.at(visits, tuple(places), 1)
    return Matrix(total / np.maximum(visits, 1), (visits > 0).astype(float))
