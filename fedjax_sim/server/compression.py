"""Compressors of the vectors that clients and servers send.

A compressor is a random map Q of a vector x, for one client or under `vmap` over clients. Most are
unbiased and have a constant omega, with E[Q(x)] = x and E||Q(x) - x||^2 <= omega ||x||^2 for every
x (assumption A6 of Dieuleveut et al., FedEM, arXiv 2111.02083). The biased ones have a constant
alpha, with E||Q(x) - x||^2 <= (1 - alpha) ||x||^2. A compressor also counts the bits of a message.
Compressors are frozen structs whose numbers are traced leaves: compressors of one kind with equal
sizes share a compiled program.

Readings. The papers do not say how messages are coded. Bits are counted for a plain code of fixed
length: a float takes `word` bits, and entropy coding is not used. Which entries a sparsifier keeps
follows from a seed that both sides know, and costs no bits.

Dimension letters: `S` slots of a tick, `D` entries of a vector, `B` entries of its largest block.
Lemmas, sections and appendices without a source are those of Dieuleveut et al.
"""

import math
from typing import Annotated, Any, ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError, Count, Limit, Whole, fixed, setting, shape, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Event, Key, Params, full_precision_bits
from fedjax_sim.kernels.rounding import Rounding, divisor, powers_around, rounded, wide_of
from fedjax_sim.kernels.rounding import luq as luq

__all__ = ["COMPRESSORS", "BlockQuantization", "Compressor", "Dithering", "Identity", "Lattice"]
__all__ += ["Luq", "RandK", "RandSparsification", "ScaledSign", "StochasticRounding", "TopK", "luq"]
__all__ += ["parse_compressor"]


Number = Array | int | float
"""A number, which is traced if settings are."""


class Compressor(settings.Kind):
    """The interface of compressors.

    Most compressors round each entry to one of two neighbours, independently of the others. They
    only define `around`; `apply` follows from it.

        @settings.struct
        class Rounded(Compressor):
            "Send whole numbers from -127 to 127."
            name: str = settings.fixed("rounded")
            has_omega = False  # for it is biased

            def apply(self, key, vector):
                return jnp.clip(jnp.round(vector), -127, 127)

            def bits(self, dim, *, word=32):
                return 8 * dim

        hyper = fedavg.Hyper(compression=Rounded())
    """

    has_omega: ClassVar[bool] = True
    """Whether there is an omega, as there is for unbiased compressors."""
    needs_reference: ClassVar[bool] = False
    """Whether the receiver decodes a message with a vector that it has."""

    def around(self, magnitude: Array) -> Rounding:
        """Find the two neighbours of each magnitude.

        Args:
          magnitude: `f[D]`, absolute values of a vector.

        Returns:
          The neighbours, `f[D]`.
        """
        raise NotImplementedError

    def apply(self, key: Key, vector: Array) -> Array:
        """Compress one client's vector.

        Args:
          key: Key of the compressor's draws.
          vector: `f[D]`.

        Returns:
          The vector that the receiver decodes, of the same shape and dtype.
        """
        return rounded(key, vector, self.around)

    def decode(self, key: Key, vector: Array, reference: Array) -> Array:
        """Compress one client's vector, and decode it with a vector of the receiver's.

        Args:
          key: Key of the compressor's draws.
          vector: `f[D]`.
          reference: `f[D]`, which the sender has too unless the compressor needs a reference.

        Returns:
          The vector that the receiver decodes, of the same shape and dtype.
        """
        return reference + self.apply(key, vector - reference)

    def omega(self, dim: int) -> Number:
        """Compute the constant omega, a bound on E||Q(x) - x||^2 / ||x||^2.

        Args:
          dim: Entries of a vector, D.

        Returns:
          A number, traced if the compressor's numbers are.

        Raises:
          ConfigError: If there is none.
        """
        raise ConfigError("compression", str(self), "an unbiased compressor here")

    def pace(self, dim: int) -> Number:
        """Compute the factor that makes messages contractive: 1 / (1 + omega) if Q is unbiased.

        Args:
          dim: Entries of a vector, D.
        """
        return 1 / (1 + self.omega(dim)) if self.has_omega else 1.0

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of one message. Not inside a trace.

        Args:
          dim: Entries of a vector, D.
          word: Bits of a float.

        Returns:
          The number of bits.
        """
        raise NotImplementedError


@struct
class Identity(Compressor):
    """No compression. Omega is 0. A message takes one float per entry.

    It is the default of every system.

        assert Identity().bits(10) == 10 * 32
    """

    name: str = fixed("identity")

    def apply(self, key: Key, vector: Array) -> Array:
        """Return the vector unchanged."""
        return vector

    def omega(self, dim: int) -> float:
        """Return 0."""
        return 0.0

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count one float per entry."""
        return word * dim


@struct
class Grid(Compressor):
    """The common base of the quantizers on grids.

    The vector is split into blocks. Each block is rounded at random to a grid of 0 and s levels of
    either sign, of which the largest is the block's r-norm:

        Q(x)_j = ||x||_r / s sign(x_j) floor(s |x_j| / ||x||_r + xi_j),  xi_j uniform on [0, 1)

    The variance is the sum over blocks of (||x||_r / s)^2 sum_j f_j (1 - f_j), where f_j is the
    fractional part of s |x_j| / ||x||_r.

    Omega for r < inf, with C = B^max(1/r, 1/2): C / s - 1 if s = 1 or s <= C / 2, otherwise
    (C / (2 s))^2. For r <= 2 a constant block attains the first value; apart from that, omega is an
    upper bound. For r = inf omega is (sqrt(1 + (B - 1) / s^2) - 1) / 2, attained by one entry s
    among entries of 1 / (1 + sqrt(1 + (B - 1) / s^2)). Derived: except for s = 1 and r = 2 the
    paper only says O(C / s). (Proof: as a function of w = (s x_j / ||x||_r)^2, f (1 - f) is at most
    the concave function that equals sqrt(w) - w up to w = 1/4, and 1/4 beyond. The mean of w is at
    least (s / C)^2.)

    Bits: a float per block; per entry a sign and ceil(log2(s + 1)) bits for the level.
    """

    norm: float = setting(
        2.0,
        "Order r of the norm that scales a block.",
        allowed="a number of at least 1, or inf",
        accepts=lambda value: isinstance(value, int | float) and value is not True and value >= 1,
        traced=False,
    )
    block: Whole = setting(
        0,
        "Entries of a block, B; the last block of a row may be shorter. 0 makes each row one "
        "block.",
    )
    row: Whole = setting(
        0,
        "Entries of a row, if the vector is a matrix stored row by row; no block extends over two "
        "rows. 0 makes the vector one row.",
    )

    @property
    def num_levels(self) -> Number:
        """Number of levels s, a whole number; traced if a setting that determines it is."""
        return self.levels  # type: ignore[attr-defined]

    def around(self, magnitude: Annotated[Array, shape("D")]) -> Rounding:
        """Find the neighbours of magnitudes `f[D]` on the grids of their blocks.

        Raises:
          ConfigError: If the magnitudes are not a vector, or rows do not divide it.
        """
        dim, size = magnitude.size, self._block(magnitude.size)
        rows = magnitude.reshape(-1, self._row(dim))
        blocks = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size))).reshape(len(rows), -1, size)
        norm = jnp.repeat(_norm(blocks, self.norm), size, axis=1)[:, : rows.shape[1]].reshape(dim)
        ratio = magnitude / divisor(norm) * self.num_levels
        return Rounding(norm / self.num_levels, ratio, jnp.floor(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Number:
        """Compute omega for vectors of `dim` entries.

        Raises:
          ConfigError: If rows do not divide the vector.
        """
        size, s = self._block(dim), self.num_levels
        if math.isinf(self.norm):
            return ((1 + (size - 1) / s**2) ** 0.5 - 1) / 2
        reach = size ** max(1 / self.norm, 1 / 2) / s
        is_coarse, below, above = (s == 1) | (reach >= 2), reach - 1, (reach / 2) ** 2
        if isinstance(s, jax.Array):
            return jnp.where(is_coarse, below, above)
        return below if is_coarse else above

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries.

        Raises:
          ConfigError: If rows do not divide the vector.
        """
        row = self._row(dim)
        num_blocks = dim // row * -(-row // self._block(dim))
        return word * num_blocks + dim * (1 + math.ceil(math.log2(self.num_levels + 1)))

    def _row(self, dim: int) -> int:
        """Find the length of a row."""
        if self.row and dim % self.row:
            raise ConfigError("row", self.row, f"a divisor of the {dim} entries of a vector")
        return self.row or dim

    def _block(self, dim: int) -> int:
        """Find the length of the largest block, B."""
        return min(self.block or dim, self._row(dim))


@struct
class Dithering(Grid):
    """Random dithering (Sec. 2; Alistarh et al. 2017, arXiv 1610.02132).

    `Grid` gives the formulas. By default the whole vector is one block.

        sent = Dithering(levels=4).apply(key, jnp.array([3.0, 4.0]))
        levels = sent / (5 / 4)  # a quarter of the norm is the distance of two levels
        assert jnp.allclose(levels, jnp.round(levels))
    """

    name: str = fixed("dithering")

    levels: Count = setting(4, "Number of levels above 0, s.", traced=True)


@struct
class BlockQuantization(Grid):
    """Block-p-quantization (App. B; Mishchenko et al. 2019, arXiv 1901.09269).

    An entry becomes 0, or plus or minus its block's p-norm. This is `Grid` with one level and
    r = p. The variance is the sum over blocks of ||x||_1 ||x||_p - ||x||_2^2 (Lemma B).

    Omega is B^(1/p) - 1 for p <= 2, attained by a constant block, and (sqrt(B) - 1) / 2 for
    p = inf, attained by one entry 1 among entries of 1 / (1 + sqrt(B)). For 2 < p < inf it is the
    bound sqrt(B) - 1; the smallest constant is not known. So omega is 1 for p = 2 with blocks of 4,
    and for p = inf with blocks of 9.

    Bits: a float per block, and two bits per entry.

        sent = BlockQuantization(norm=2.0, block=4).apply(key, jnp.array([3.0, -4.0]))
        assert set(jnp.abs(sent).tolist()) <= {0.0, 5.0}  # the norm of the block
    """

    name: str = fixed("block")
    levels: ClassVar[int] = 1

    block: int = settings.redefault(Grid, "block", 4)


@struct
class StochasticRounding(Grid):
    """Stochastic rounding to signed integers of `width` bits.

    The largest magnitude of a block becomes 2^(width - 1) - 1. This is `Grid` with
    2^(width - 1) - 1 levels and r = inf. Bits: a float per block, and `width` bits per entry.

        on_the_grid = jnp.array([3.0, -1.0, 0.0])
        sent = StochasticRounding(width=3).apply(key, on_the_grid)  # levels up to 2^2 - 1
        assert (sent == on_the_grid).all()
    """

    name: str = fixed("rounding")

    norm: float = fixed(math.inf)
    width: Annotated[int, Limit(least=2, most=24)] = setting(
        8, "Bits of an entry, including its sign.", traced=True
    )

    @property
    def num_levels(self) -> Number:
        """Number of levels above 0."""
        levels = 2.0 ** (self.width - 1) - 1
        # A power of traced numbers is not exact.
        return jnp.round(levels) if isinstance(levels, jax.Array) else levels


@struct
class Luq(Compressor):
    """Logarithmic unbiased quantization, LUQ (Chmiel et al. 2023, arXiv 2112.10769).

    Entries are rounded at random to the largest magnitude times powers of two; `luq` gives details.

    With a = 2^-top, omega is the larger of two values. The first, for entries below a, is
    (sqrt(1 + (D - 1) a^2) - 1) / 2, attained by one entry 1 among entries of a / (2 (1 + omega)).
    The second, for entries between 1/2 and 1 and unless top is 0, is
    (sqrt((1 + c)^2 + c / 2) - 1 - c) / 2 with c = (D - 1) / 2. It is attained by one entry 1 among
    entries of 3 / (4 (1 + omega)), and tends to 1/8. Derived: the maximum of
    sum_j v(x_j) / ||x||^2 is the omega with (D - 1) max_x (v(x) - omega x^2) = omega.

    Bits: a float per message, and ceil(log2(2 top + 3)) bits per entry, to tell apart 0 and top + 1
    powers of either sign.

        powers = jnp.array([4.0, -2.0, 1.0])
        assert (Luq(top=6).apply(key, powers) == powers).all()
    """

    name: str = fixed("luq")

    top: Whole = setting(
        6,
        "Number of powers of two below the largest magnitude. 6 is the most that fits into four "
        "bits per entry; LUQ's reference code uses 7 for four bits.",
    )

    def around(self, magnitude: Array) -> Rounding:
        """Find the levels around magnitudes `f[...]` of one scale."""
        return powers_around(magnitude, top=self.top)

    def omega(self, dim: int) -> float:
        """Compute omega for vectors of `dim` entries."""
        c = (dim - 1) / 2
        below = (math.sqrt(1 + (dim - 1) * 4.0**-self.top) - 1) / 2
        between = (math.sqrt((1 + c) ** 2 + c / 2) - 1 - c) / 2
        return max(below, between) if self.top else below

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries."""
        return word + dim * math.ceil(math.log2(2 * self.top + 3))


def _norm(blocks: Array, order: float) -> Array:
    """Compute the norm of non-negative entries along the last axis.

    Entries are divided by the largest one first, whose square may overflow or underflow.
    """
    largest = jnp.max(blocks, axis=-1)
    if math.isinf(order):
        return largest
    share = blocks / divisor(largest)[..., None]
    if order == 2:
        return largest * jnp.sqrt(divisor(jnp.sum(jnp.square(share), axis=-1)))
    return largest * divisor(jnp.sum(share**order, axis=-1)) ** (1 / order)


@struct
class RandSparsification(Compressor):
    """Keep each entry with probability kappa, divided by kappa; the other entries become 0.

    Named in Sec. 2 of Dieuleveut et al., FedEM, arXiv 2111.02083. Omega is 1 / kappa - 1, with
    equality for every vector. Bits: a float per entry kept, of which there are D kappa on average.

        sent = RandSparsification(keep=0.5).apply(key, jnp.array([1.0, 1.0, 1.0]))
        assert set(sent.tolist()) <= {0.0, 1 / 0.5}
    """

    name: str = fixed("sparsification")

    keep: settings.Portion = setting(0.5, "Probability that an entry is kept, kappa.")

    def around(self, magnitude: Array) -> Rounding:
        """Return 0 and the value of a kept entry as neighbours of magnitudes `f[D]`."""
        keep = jnp.asarray(self.keep, magnitude.dtype)
        ratio = jnp.full_like(magnitude, keep)
        return Rounding(magnitude / keep, ratio, jnp.zeros_like(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Number:
        """Compute omega, which does not depend on `dim`."""
        return 1 / self.keep - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the expected bits of a message of `dim` entries, rounded to a whole number."""
        return round(word * self.keep * dim)


@struct
class RandK(Compressor):
    """Keep k of the D entries, uniformly at random, times D / k.

    Vectors with at most k entries are kept whole (Wangni et al. 2018, Stich et al. 2018). Omega is
    D / k - 1, with equality for every vector. Bits: a float per entry kept.

        sent = RandK(kept=1).apply(key, jnp.array([1.0, 1.0, 1.0]))
        assert sorted(sent.tolist()) == [0.0, 0.0, 3 / 1]
    """

    name: str = fixed("rand_k")

    kept: Count = setting(1, "Number of entries kept, k.", traced=True)

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Keep k random entries of a vector `f[D]`, scaled up.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        wide = wide_of(vector)
        places = jax.random.permutation(key, wide.size)
        scale = jnp.asarray(self.omega(wide.size) + 1, wide.dtype)
        return jnp.where(places < self.kept, wide * scale, 0).astype(vector.dtype)

    def omega(self, dim: int) -> Number:
        """Compute omega for vectors of `dim` entries."""
        least = jnp.minimum if isinstance(self.kept, jax.Array) else min
        return dim / least(self.kept, dim) - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count a float for each entry kept of `dim`."""
        return word * min(int(self.kept), dim)


@struct
class TopK(Compressor):
    """Keep the k entries of largest magnitude; the other entries become 0.

    Of equal magnitudes the first is kept. Vectors with at most k entries are kept whole. alpha is
    k / D, attained if all magnitudes are equal.

    Bits: for each entry kept a float and ceil(log2(D)) bits for its place.

        sent = TopK(kept=1).apply(key, jnp.array([1.0, -5.0, 3.0]))
        assert sent.tolist() == [0.0, -5.0, 0.0]
        hyper = fedavg.Hyper(compression=TopK(kept=10), error_feedback=True)
    """

    name: str = fixed("top_k")
    has_omega: ClassVar[bool] = False

    kept: Count = setting(1, "Number of entries kept, k.")

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Keep the largest entries of a vector `f[D]`; the key is not used.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        if self.kept >= vector.size:
            return vector
        places = jax.lax.top_k(jnp.abs(wide_of(vector)), self.kept)[1]
        return jnp.zeros_like(vector).at[places].set(vector[places], unique_indices=True)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries; all are sent if k is at least `dim`."""
        if self.kept >= dim:
            return word * dim
        return self.kept * (word + math.ceil(math.log2(dim)))


@struct
class ScaledSign(Compressor):
    """Send the signs of all entries, and the mean magnitude of each block as its scale.

    C(x)_j = ||x||_1 / B sign(x_j) in a block of B entries, with sign(0) = 1 (Karimireddy et al.
    2019, arXiv 1901.09847). The squared error of a block is ||x||^2 - ||x||_1^2 / B, so alpha is
    1 / B, attained by a vector with a single entry that is not 0.

    Bits: a float per block, and one bit per entry.

        sent = ScaledSign().apply(key, jnp.array([1.0, -5.0, 3.0]))
        assert sent.tolist() == [3.0, -3.0, 3.0]  # (1 + 5 + 3) / 3
    """

    name: str = fixed("sign")
    has_omega: ClassVar[bool] = False

    block: Whole = setting(
        0, "Entries of a block, B; the last block may be shorter. 0 makes the vector one block."
    )

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Send the signs of a vector `f[D]`, scaled; the key is not used.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        wide, size = wide_of(vector), self._block(vector.size)
        padding = -vector.size % size
        blocks = jnp.pad(jnp.abs(wide), (0, padding)).reshape(-1, size)
        lengths = np.full(len(blocks), size).astype(wide.dtype)
        lengths[-1] -= padding
        scale = jnp.repeat(blocks.sum(axis=1) / lengths, size)[: vector.size]
        return jnp.where(wide >= 0, scale, -scale).astype(vector.dtype)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries."""
        return word * -(-dim // self._block(dim)) + dim

    def _block(self, dim: int) -> int:
        """Find the length of the largest block, B."""
        return min(self.block or dim, dim)


@struct
class Lattice(Compressor):
    """Round the rotated vector to a lattice; the receiver takes the point nearest to its own.

    Davies et al. 2021, arXiv 2002.09268, cubic lattices of Sec. 6 and 9, as QuAFL uses them. Both
    sides draw signs and an offset from a common seed. Both rotate, x -> H (signs x), so that no
    entry is much larger than others. The lattice is (Z + offset) times its side
    2 distance / (q - 1), and the offset uniform, so that rounding has no bias.

    What is sent is a color modulo q of each coordinate, whatever the size of the vector, and what
    counts is how far it is from the receiver's: up to `distance` in every rotated entry the error
    is uniform, without bias, and of variance P (2 distance / (q - 1))^2 / 12 for P entries. Beyond,
    a receiver would decode another point of the same color without noticing. Here such a message
    is NaN, so that a run with the mean counts as diverged; with another rule, attackers or privacy
    the message is left out. Choose a larger distance. A system whose receiver has no vector but
    what both sides know sends the difference to that.

    Readings. The bound y = `distance` is the same for all messages. The seed of the signs and the
    offset is common to both sides and costs no bits.

    Bits: log2(q) per entry of the rotated vector, whose length is a power of two.

        near = jnp.array([100.0, -100.0])
        sent = Lattice(colors=1024, distance=1.0).decode(key, near + 0.5, near)
        assert jnp.abs(sent - near - 0.5).max() < 0.002
        assert jnp.isnan(Lattice(distance=1.0).decode(key, near + 9, near)).all()
    """

    name: str = fixed("lattice")
    has_omega: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = True

    colors: Annotated[int, Limit(least=2, most=2**16)] = setting(
        16, "Colors of a coordinate, q.", traced=True
    )
    distance: settings.Above0 = setting(
        1.0,
        "Largest distance of rotated entries that is decoded rightly, y. With the mean, a run with "
        "a message from farther away diverges.",
    )

    def apply(self, key: Key, vector: Annotated[Array, shape("D")]) -> Array:
        """Compress a vector `f[D]` that the receiver decodes with zeros.

        Raises:
          ConfigError: If `vector` is not a vector.
        """
        return self.decode(key, vector, jnp.zeros_like(vector))

    def decode(self, key: Key, vector: Array, reference: Array) -> Array:
        """Compress a vector `f[D]`, and decode it with the receiver's.

        The result is NaN if an entry of the two is farther apart than the distance and half a side.
        """
        (size,), dtype = vector.shape, wide_of(vector).dtype
        sign_key, offset_key = jax.random.split(key)
        signs = jax.random.rademacher(sign_key, (_padded_size(size),), dtype)
        offset = jax.random.uniform(offset_key, signs.shape, dtype, -0.5, 0.5)
        colors = jnp.asarray(self.colors, dtype)
        side = 2 * jnp.asarray(self.distance, dtype) / (colors - 1)

        def coordinates(entries: Array) -> Array:
            return _hadamard(signs * jnp.pad(entries, (0, signs.size - size))) / side - offset

        sent = jnp.round(coordinates(wide_of(vector)))
        # The point that was sent is the nearest one of its color: others are `colors` apart.
        is_nearest = jnp.abs(sent - coordinates(wide_of(reference))) < colors / 2
        found = jnp.where(is_nearest, sent, jnp.nan)
        return (signs * _hadamard((found + offset) * side))[:size].astype(vector.dtype)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of a message of `dim` entries."""
        return math.ceil(_padded_size(dim) * math.log2(int(self.colors)))


def _padded_size(dim: int) -> int:
    """Smallest power of two that is at least `dim`, P."""
    return 1 << (dim - 1).bit_length()


def _hadamard(vector: Array) -> Array:
    """Multiply a vector `f[P]` by the orthonormal Hadamard matrix, which is its own inverse."""
    size, width = vector.size, 1
    while width < size:
        first, second = jnp.moveaxis(vector.reshape(-1, 2, width), 1, 0)
        vector, width = jnp.stack([first + second, first - second], axis=1), 2 * width
    return vector.reshape(size) / jnp.sqrt(jnp.asarray(size, vector.dtype))


COMPRESSORS: settings.Named[type[Compressor]] = settings.Named.of(
    "compressor",
    *(Identity, BlockQuantization, Dithering, StochasticRounding, RandSparsification, RandK),
    *(Luq, TopK, ScaledSign, Lattice),
    example="block:norm=2:block=4",
)
"""Every kind of compressor, by name."""


def parse_compressor(text: str) -> Compressor:
    """Read a compressor from text.

        assert parse_compressor("top_k:kept=100") == TopK(kept=100)

    Args:
      text: A name of `COMPRESSORS`, followed by values for its fields, such as
        "block:norm=inf:block=9". Other fields have their defaults.

    Returns:
      The compressor.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("compression", COMPRESSORS, text, last="compression")


def compressed(meaning: str) -> Any:
    """Declare a setting that is a compressor, by default the identity. meaning: Its use."""
    declared: Compressor = setting(Identity(), meaning, allowed=COMPRESSORS, parse=parse_compressor)
    return declared


@struct
class Compression(settings.Checked):
    """Settings of systems that may compress messages, without bias."""

    has_references: ClassVar[bool] = False
    """Whether receivers decode messages with models that they have."""
    compression: Compressor = compressed("Compressor of what a client sends, taken as one vector.")

    def check_together(self) -> None:
        """Check that the compressor is unbiased.

        Raises:
          ConfigError: If it is not.
        """
        super().check_together()
        is_decoded = self.compression.needs_reference and self.has_references
        if not (self.compression.has_omega or is_decoded):
            allowed = "an unbiased compressor here, such as block:norm=2:block=4"
            raise ConfigError("compression", str(self.compression), allowed)


def compress(compressor: Compressor, key: Key, message: Params) -> Params:
    """Compress a pytree as one vector of all its leaves.

    Args:
      compressor: Compressor.
      key: Key of its draws.
      message: Pytree of arrays.

    Returns:
      What the receiver decodes: a pytree of the same structure, shapes and dtypes. `Identity`
      returns the message itself.
    """
    if isinstance(compressor, Identity):
        return message
    vector, restored = ravel_pytree(message)
    return restored(compressor.apply(key, vector))


def decode_messages(
    compressor: Compressor,
    key: Key,
    event: Event,
    reference: Params,
    models: Params,
    *,
    way: str = "up",
    turns: Array | None = None,
) -> Params:
    """Decode models that are sent as compressed differences from a reference known to both sides.

    If the compressor needs a reference, only the receiver has to know it.

    Args:
      compressor: Compressor Q.
      event: Tick, whose number and clients determine the draws.
      reference: Pytree with leaves `[S, ...]`, the reference of each slot.
      models: Pytree with leaves `[S, ...]`, the models sent.
      way: "up" for messages to the server or "down" for messages to clients; the two directions
        have independent draws.
      turns: `i32[S]`, numbers that differ between messages of one client in a tick; None if a
        client sends one message.

    Returns:
      reference + Q(model - reference) for every slot, or what a compressor that needs a reference
      decodes with it. Without compression these are the models themselves, bit for bit.

    Raises:
      AssertionError: If reference and models differ in shape, or do not have one entry per slot.
    """
    if isinstance(compressor, Identity):
        return models
    chex.assert_trees_all_equal_shapes(reference, models)
    chex.assert_tree_shape_prefix(models, event.clients.shape)
    way_key = (
        lane_stream(key, "compression up") if way == "up" else lane_stream(key, "compression down")
    )
    tick_key = jax.random.fold_in(way_key, event.tick)

    def slot(client: Array, turn: Array | None, reference: Params, model: Params) -> Params:
        slot_key = jax.random.fold_in(tick_key, jnp.maximum(client, 0))
        if turn is not None:
            slot_key = jax.random.fold_in(slot_key, turn)
        if compressor.needs_reference:
            (vector, restored), (near, _) = ravel_pytree(model), ravel_pytree(reference)
            # An empty slot sends nothing, which no distance can make wrong.
            vector = jnp.where(client >= 0, vector, near)
            return restored(compressor.decode(slot_key, vector, near))
        difference = jax.tree.map(jnp.subtract, model, reference)
        return jax.tree.map(jnp.add, reference, compress(compressor, slot_key, difference))

    return jax.vmap(slot)(event.clients, turns, reference, models)


def count_message_bits(compressor: Compressor, params: Params) -> int:
    """Count the bits of a compressed model.

    Args:
      compressor: Compressor.
      params: Model; its leaves may be arrays or `ShapeDtypeStruct`s.

    Returns:
      The bits of one message, where a float takes the widest type of the model's leaves. `Identity`
      sends each leaf in its own type.
    """
    if isinstance(compressor, Identity):
        return full_precision_bits(params)
    return compressor.bits(count_parameters(params), word=word_of(params))


def word_of(params: Params) -> int:
    """Bits of a float of the widest type of leaves. params: As in `count_message_bits`."""
    return 8 * jnp.result_type(*jax.tree.leaves(params)).itemsize


def count_parameters(params: Params) -> int:
    """Count the numbers in a model.

    Args:
      params: Model; its leaves may be arrays or `ShapeDtypeStruct`s.

    Returns:
      The total size of all leaves.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))
