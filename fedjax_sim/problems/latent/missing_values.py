"""Matrices with missing cells and a low-rank mean: the model of FedMissEM.

The model is that of arXiv 2111.02083, App. F.2. Cells are independent with density
rho(x) exp(x theta - psi(theta)), where theta = U V' is the same matrix for all examples. The
statistic of an example is its matrix, with psi'(theta) filled in where a cell is missing; phi is
the identity; R(theta) = (ridge / 2) (||U||^2 + ||V||^2).

    family      psi(t)           psi'(t)     theta is
    gaussian    t^2 / 2          t           the mean, with variance 1
    poisson     exp(t)           exp(t)      the logarithm of the intensity
    bernoulli   log(1 + exp t)   sigmoid     the logarithm of the odds

An example is one matrix. In the paper's experiment each client has one matrix, made of all visits
of its observers to the sites (`make_matrices`).

Readings of the paper:

- The paper prints psi with another sign and other parameter names.
- It prints theta where the E-step needs psi'(theta), which is right only for the Gaussian family.
- Its "thresholded" singular value decomposition is read as `truncated`, which keeps the largest
  singular values and subtracts the ridge from each.
- The M-step of the other families alternates Newton steps for U and V. They start from the
  decomposition of the theta whose means are s, because T is a function of s and does not know
  earlier parameters.
- The algorithm's mini-batches of cells are a compressor, `CellSampling`, with which FedEM becomes
  FedMissEM. Every client has one matrix, and in a round it uses only the cells in some rows and
  columns drawn at random. Here it computes all cells and sends the drawn ones, which comes to the
  same.

Limit: the M-step of the other families is for statistics that are means of the family, at least 0
(Poisson) or from 0 to 1 (Bernoulli). The noise of a compressor can push s out of this range. The
surrogate may then have no minimum, and T returns where the steps ended, without a warning.

Dimension letters: `N` clients, `B` examples, `J` rows (sites) and `L` columns (times) of a matrix,
`r` the rank, `q` = J L numbers of a statistic, row by row.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core import settings
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, OneOf, Whole, checked
from fedjax_sim.core.types import Array, Key, Leaf
from fedjax_sim.problems.client_data import check_range
from fedjax_sim.problems.latent.estimation import LatentModel
from fedjax_sim.server.compression import COMPRESSORS, Compressor, compressed

LEAST_INTENSITY, LEAST_CHANCE = 1e-2, 1e-2
"""Limits to which a statistic is clipped before the link is applied: Poisson and Bernoulli."""


class Family(NamedTuple):
    """An exponential family of cells; each function is applied to cells one by one.

    Attributes:
      log_partition: psi.
      mean: psi'.
      curvature: psi'', from the mean psi'.
      link: theta of a cell that is the mean, after clipping the cell to its limits.
      most: Largest value of a cell; the smallest is 0. None if cells are any numbers.
    """

    log_partition: Callable[[Array], Array]
    mean: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    link: Callable[[Array], Array]
    most: float | None = None


def _log_odds(cell: Array) -> Array:
    chance = jnp.clip(cell, LEAST_CHANCE, 1 - LEAST_CHANCE)
    return jnp.log(chance) - jnp.log1p(-chance)


FAMILIES = {
    "gaussian": Family(lambda x: x**2 / 2, lambda x: x, jnp.ones_like, lambda cell: cell),
    "poisson": Family(
        jnp.exp,
        jnp.exp,
        lambda mean: mean,
        lambda cell: jnp.log(jnp.maximum(cell, LEAST_INTENSITY)),
        math.inf,
    ),
    "bernoulli": Family(
        jax.nn.softplus, jax.nn.sigmoid, lambda mean: mean * (1 - mean), _log_odds, 1
    ),
}
"""Exponential families of the cells, by name."""
STEP_SIZES = tuple(0.5**k for k in range(7))
"""Step sizes that are tried along each Newton direction."""


class Matrix(NamedTuple):
    """Examples: matrices of which only some cells are seen.

    Attributes:
      values: `f[B, J, L]`, the cells; arbitrary where a cell is not seen.
      seen: `f[B, J, L]`, 1 where a cell is seen and 0 elsewhere.
    """

    values: Leaf
    seen: Leaf


class LowRank(NamedTuple):
    """The parameters theta = U V'.

    Attributes:
      rows: `f[J, r]`, U.
      columns: `f[L, r]`, V.
    """

    rows: Array
    columns: Array


@checked
@struct.dataclass
class MissingValues(LatentModel):
    """The low-rank model of matrices with missing cells of this module.

    Attributes:
      shape: (J, L), rows and columns of the matrices.
      rank: r, from 1 to min(J, L) - 1.
      family: "gaussian", "poisson" or "bernoulli".
      method: How the M-step is computed. "svd" and "gram" are the closed form of the Gaussian
        family, by the singular value decomposition of s or (faster if J and L are very different)
        by the eigenvectors of s' s. "alternating" is for all families: each iteration is one Newton
        step for all rows and one for all columns.
      iterations: Number of iterations of the alternating method.
      ridge: Strength of the penalty, at least 0.
    """

    shape: tuple[int, int] = struct.field(pytree_node=False)
    rank: Count = struct.field(pytree_node=False)
    family: Annotated[str, OneOf(tuple(FAMILIES))] = struct.field(
        pytree_node=False, default="gaussian"
    )
    method: str = struct.field(pytree_node=False, default="svd")
    iterations: Whole = struct.field(pytree_node=False, default=30)
    ridge: AtLeast0 = 0.0

    def __post_init__(self) -> None:
        closed_forms = ("svd", "gram") if self.family == "gaussian" else ()
        methods = (*closed_forms, "alternating")
        if self.method not in methods:
            allowed = f"one of {', '.join(methods)} for the {self.family} family"
            raise ConfigError("method", self.method, allowed)
        if not 1 <= self.rank < min(self.shape):
            raise ConfigError("rank", self.rank, f"from 1 to {min(self.shape) - 1}")

    def with_data(self, examples: Matrix, weight: Array) -> Self:
        """Check the shapes of the examples and return the model as it is."""
        chex.assert_shape([examples.values, examples.seen], (*weight.shape, *self.shape))
        check_range("seen", examples.seen, 0, 1)
        if (most := self._of.most) is not None:
            check_range("values", self._filled(examples, 0.0), 0, most)
        return self

    def initial(self, key: Key, examples: Matrix, weight: Array) -> Array:
        """Return natural parameters to start from: the same theta for every cell.

        For Poisson cells theta is the logarithm of the mean of all cells seen. For the other
        families it is 0, so that S_0 is the mean of the matrices with psi'(0) in the missing cells.

        Args:
          key: Ignored.
          examples: All examples.
          weight: `f[B]`, their weights, with sum 1.

        Returns:
          `f[q]`.
        """
        num_cells = self.shape[0] * self.shape[1]
        if self.family == "poisson":
            seen = jnp.einsum("b,bjl->", weight, examples.seen)
            mean = jnp.einsum("b,bjl->", weight, self._filled(examples, 0.0)) / seen
            return jnp.full(num_cells, jnp.log(jnp.maximum(mean, LEAST_INTENSITY)))
        return jnp.zeros(num_cells, examples.values.dtype)

    def maximise(self, statistics: Array) -> LowRank:
        """Compute the M-step T(s) from statistics `f[q]`."""
        matrix = statistics.reshape(self.shape)
        if self.method == "alternating":
            start = truncated(self._of.link(matrix), self.rank, 0.0)
            return jax.lax.fori_loop(
                0, self.iterations, lambda _, theta: self._alternate(matrix, theta), start
            )
        return truncated(matrix, self.rank, self.ridge, by_gram=self.method == "gram")

    def natural(self, params: LowRank) -> Array:
        """Return phi(theta), which is theta, row by row: `f[q]`."""
        return jnp.matmul(params.rows, params.columns.T, precision="highest").ravel()

    def statistics(self, natural: Array, examples: Matrix, weight: Array) -> Array:
        """Compute the weighted sum of the matrices with missing cells filled in.

        Args:
          natural: `f[q]`, theta.
          examples: B matrices.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """
        chex.assert_shape([examples.values, examples.seen], (*weight.shape, *self.shape))
        completed = self._filled(examples, self._of.mean(natural.reshape(self.shape))[None])
        return jnp.einsum("b,bjl->jl", weight, completed, precision="highest").ravel()

    def loss(self, params: LowRank, examples: Matrix) -> Array:
        """Compute the sum over the cells seen of psi(theta) - y theta, for each matrix: `f[B]`."""
        chex.assert_shape([examples.values, examples.seen], (None, *self.shape))
        theta = self.natural(params).reshape(self.shape)
        observed = self._filled(examples, 0.0)
        loss = self._of.log_partition(theta)[None] - observed * theta[None]
        return jnp.sum(jnp.where(examples.seen > 0, loss, 0), axis=(1, 2))

    def penalty(self, params: LowRank) -> Array:
        """Compute R(theta): `f[]`.

        Args:
          params: theta.
        """
        squares = jnp.sum(jnp.square(params.rows)) + jnp.sum(jnp.square(params.columns))
        return self.ridge / 2 * squares

    def means(self, params: LowRank) -> Array:
        """Compute the expected values psi'(theta) of all cells: `f[J, L]`.

        Args:
          params: theta.
        """
        return self._of.mean(self.natural(params).reshape(self.shape))

    def surrogate(self, statistics: Array, params: LowRank) -> Array:
        """Compute the function that T minimises: the sum of psi(theta) - s theta, plus R(theta).

        Args:
          statistics: `f[q]`, s.
          params: theta.

        Returns:
          `f[]`.
        """
        theta = self.natural(params).reshape(self.shape)
        fit = jnp.sum(self._of.log_partition(theta) - statistics.reshape(self.shape) * theta)
        return fit + self.penalty(params)

    @staticmethod
    def _filled(examples: Matrix, fill: Array | float) -> Array:
        """Replace missing cells by `fill`: `f[B, J, L]`."""
        return jnp.where(examples.seen > 0, examples.values, fill)

    @property
    def _of(self) -> Family:
        return FAMILIES[self.family]

    def _alternate(self, matrix: Array, theta: LowRank) -> LowRank:
        """Take one Newton step for all rows of U, then one for all rows of V."""
        rows = self._newton(matrix, theta.rows, theta.columns)
        return LowRank(rows, self._newton(matrix.T, theta.columns, rows))

    def _newton(self, matrix: Array, factor: Array, other: Array) -> Array:
        """Take one damped Newton step for every row of one factor while the other is fixed.

        Each row takes the best of a few step sizes, or none, so the surrogate never increases.

        Args:
          matrix: `f[K, M]`, the statistics; K is J and M is L, or the reverse.
          factor: `f[K, r]`, the factor that moves.
          other: `f[M, r]`, the factor that is fixed.

        Returns:
          The moved factor, `f[K, r]`.
        """
        product = functools.partial(jnp.matmul, precision="highest")
        theta = product(factor, other.T)
        mean = self._of.mean(theta)
        gradient = product(mean - matrix, other) + self.ridge * factor
        curvature = self._of.curvature(mean)
        hessian = jnp.einsum("km,mr,ms->krs", curvature, other, other, precision="highest")
        # A little damping keeps rows solvable whose curvature vanishes.
        least = jnp.finfo(factor.dtype).tiny
        damping = self.ridge + 1e-6 * jnp.trace(hessian, axis1=1, axis2=2) + least
        hessian = hessian + damping[:, None, None] * jnp.eye(self.rank, dtype=factor.dtype)[None]
        direction = jnp.linalg.solve(hessian, gradient[..., None])[..., 0]
        change = product(direction, other.T)

        def surrogate(size: Array) -> Array:
            moved, moved_theta = factor - size * direction, theta - size * change
            fit = jnp.sum(self._of.log_partition(moved_theta) - matrix * moved_theta, axis=1)
            return fit + self.ridge / 2 * jnp.sum(jnp.square(moved), axis=1)

        sizes = jnp.asarray((*STEP_SIZES, 0.0), factor.dtype)
        values = jax.lax.map(surrogate, sizes)
        best = sizes[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf), axis=0)]
        return factor - best[:, None] * direction


def truncated(
    matrix: Array, rank: int, threshold: float | Array, *, by_gram: bool = False
) -> LowRank:
    """Minimise ||matrix - U V'||^2 / 2 + (threshold / 2) (||U||^2 + ||V||^2) in closed form.

    The minimiser keeps the largest singular values, each less the threshold (at least 0).

    Args:
      matrix: `f[J, L]`.
      rank: r, number of singular values that are kept.
      threshold: Subtracted from the singular values, at least 0.
      by_gram: Whether to use the eigenvectors of the smaller of matrix' matrix and matrix matrix',
        which is less exact for small singular values.

    Returns:
      U `f[J, r]` and V `f[L, r]`.
    """
    if by_gram and matrix.shape[0] < matrix.shape[1]:
        turned = truncated(matrix.T, rank, threshold, by_gram=True)
        return LowRank(turned.columns, turned.rows)
    if by_gram:
        squares, right = jnp.linalg.eigh(jnp.matmul(matrix.T, matrix, precision="highest"))
        right, values = right[:, ::-1][:, :rank], jnp.sqrt(jnp.maximum(squares[::-1][:rank], 0))
        scaled = jnp.matmul(matrix, right, precision="highest")
        left = scaled / jnp.where(values > 0, values, 1)[None]
    else:
        left, values, right_rows = jnp.linalg.svd(matrix, full_matrices=False)
        left, values, right = left[:, :rank], values[:rank], right_rows[:rank].T
    scale = jnp.sqrt(jnp.maximum(values - threshold, 0))[None]
    return LowRank(left * scale, right * scale)


@settings.struct
class CellSampling(Compressor):
    """Send the cells where a random set of rows meets a random set of columns of a matrix.

    The cells sent form one vector, which is compressed in turn. All other cells are received as 0.
    Rows and columns are drawn uniformly without replacement, so a cell is sent with probability
    rho = rows columns / (J L).

    FedMissEM is FedEM with this compressor, where each client has one example: its whole matrix.
    The E-step of Algorithm 7 is over the drawn cells only. Computing all cells and sending the
    drawn ones gives the same, as the statistic of a cell does not depend on other cells.

    Reading of the paper: Algorithm 7 sends the cells as they are (`unbiased=False`). Then
    E[H] = V + rho (h - V), which is consistent once the memories V converge, but this is not an
    unbiased compressor. With `unbiased` the cells are divided by rho, and
    omega = (1 + omega') / rho - 1, where omega' is that of the compressor of the cells.

    Blocks of that compressor are made of the cells sent, row by row in the matrix's order, and not
    of the matrix. If the compressor's own `row` equals `columns`, blocks stay within rows.

    Bits are those of a vector of rows times columns entries. Which cells they are follows from a
    seed that both sides know, and costs nothing.

    All methods raise ConfigError for vectors whose length is not J L.
    """

    name: str = settings.fixed("cells")
    shape: tuple[Count, Count] = settings.setting(
        (0, 0),
        "Shape (J, L) of the matrix; it has no usable default and must be given.",
        allowed="two whole numbers of at least 1, rows and columns of the matrix",
    )
    rows: Count = settings.setting(1, "Number of rows drawn for each message, at most J.")
    columns: Count = settings.setting(1, "Number of columns drawn for each message, at most L.")
    unbiased: bool = settings.setting(
        True,
        "Whether the cells sent are divided by their probability rho, which makes the compressor "
        "unbiased; the paper's Algorithm 7 does not divide.",
    )
    compression: Compressor = compressed("Compressor of the vector of cells that are sent.")

    def check_together(self) -> None:
        """Check that no more rows and columns are drawn than the matrix has.

        Raises:
          ConfigError: If `rows` or `columns` is too large.
        """
        for name, most in zip(("rows", "columns"), self.shape, strict=True):
            if getattr(self, name) > most:
                allowed = f"at most {most}, the number of {name} of the matrix"
                raise ConfigError(name, getattr(self, name), allowed)

    @property
    def share(self) -> float:
        """Probability rho that a cell is sent."""
        return self.rows * self.columns / (self.shape[0] * self.shape[1])

    def apply(self, key: Key, vector: Array) -> Array:
        """Send some cells of a matrix.

        Args:
          key: For the draw of rows and columns and for the compressor of the cells.
          vector: `f[J L]`, the matrix row by row.

        Returns:
          What the server decodes, `f[J L]`: 0 in the cells that are not sent.
        """
        self._check_length(vector.size)
        rows_key, columns_key, cells_key = jax.random.split(key, 3)
        # Sorted, so that blocks of the cells' compressor are made of neighbours.
        rows = jnp.sort(jax.random.permutation(rows_key, self.shape[0])[: self.rows])
        columns = jnp.sort(jax.random.permutation(columns_key, self.shape[1])[: self.columns])
        places = (rows[:, None] * self.shape[1] + columns[None]).ravel()
        sent = self.compression.apply(cells_key, vector[places])
        return jnp.zeros_like(vector).at[places].set(sent / self.share if self.unbiased else sent)

    def omega(self, dim: int) -> Any:
        """Compute the constant omega for vectors of `dim` entries.

        Without `unbiased` this is the omega of the cells' compressor, which then also sets the step
        size of the memories.

        Args:
          dim: Length of the vectors, J L.

        Returns:
          A number; traced if the numbers of the cells' compressor are.
        """
        self._check_length(dim)
        inner = self.compression.omega(self.rows * self.columns)
        return (1 + inner) / self.share - 1 if self.unbiased else inner

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of one message.

        Args:
          dim: Length of the vectors, J L.
          word: Bits of a float.

        Returns:
          The bits of the cells that are sent.
        """
        self._check_length(dim)
        return self.compression.bits(self.rows * self.columns, word=word)

    def _check_length(self, dim: int) -> None:
        """Refuse vectors of the wrong length: JAX would silently clamp positions beyond the end."""
        if dim != self.shape[0] * self.shape[1]:
            allowed = f"rows and columns of a matrix of {dim} cells, the length of the vectors"
            raise ConfigError("shape", self.shape, allowed)


COMPRESSORS[CellSampling.name] = CellSampling


@checked
def make_matrices(
    client: Sequence[int],
    row: Sequence[int],
    column: Sequence[int],
    value: Sequence[float],
    shape: tuple[int, int, int],
) -> Matrix:
    """Gather visits into one matrix per client, on the host.

    Args:
      client: Client of each visit, whole numbers below N.
      row: Row of each visit, whole numbers below J.
      column: Column of each visit, whole numbers below L.
      value: What was observed, finite. Several values of one cell are averaged.
      shape: (N, J, L).

    Returns:
      Matrices whose leaves are `f64[N, J, L]`; a cell without a visit is 0 and not seen.

    Raises:
      ConfigError: If the lists have different lengths, a number is out of range, or a value is not
        finite.
    """
    places = [np.asarray(each, int) for each in (client, row, column)]
    values = np.asarray(value, float)
    for name, place, size in zip(("client", "row", "column"), places, shape, strict=True):
        if place.shape != values.shape or place.min(initial=0) < 0 or place.max(initial=0) >= size:
            given = f"{place.size} numbers from {place.min(initial=0)} to {place.max(initial=0)}"
            allowed = f"{values.size} numbers from 0 to {size - 1}, one for each value"
            raise ConfigError(f"{name} of the visits", given, allowed)
    if not np.isfinite(values).all():
        raise ConfigError("value of the visits", "nan or inf", "finite")
    total, visits = np.zeros(shape), np.zeros(shape)
    np.add.at(total, tuple(places), values)
    np.add.at(visits, tuple(places), 1)
    return Matrix(total / np.maximum(visits, 1), (visits > 0).astype(float))
