"""Unbiased compressors of what a client sends: random maps Q of a vector x, by themselves or under `vmap` over clients.

Each has a constant omega, with E[Q(x)] = x and E||Q(x) - x||^2 <= omega ||x||^2 for every x (assumption A6 of Dieuleveut et al., FedEM,
arXiv 2111.02083), the exact value of that variance at a given x, and its bits by a stated rule. Compressors are frozen structs whose
numbers are traced leaves: those of one kind and equal sizes share a compiled program. Dimension letters: `D` entries of a vector, `B`
entries of its largest block.

Readings. Bits are those of a plain code of fixed length, as the paper gives none: a float takes `word` bits, and nothing is gained from
the entropy of the entries. Which entries are kept at random follows from a seed that both sides know, and costs nothing.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, check, count, fields, fixed, parse, real, redefault, static, struct
from fedjax_sim.types import Array, Key


class Rounding(NamedTuple):
    """Magnitudes `unit * ratio` that go to `unit * below` or `unit * (below + gap)` so that their mean is themselves; all `f[D]`."""

    unit: Array
    ratio: Array
    below: Array
    gap: Array


class Compressor:
    """What all compressors have. Most round each entry by itself to one of two neighbours, and only say which (`around`)."""

    def around(self, magnitude: Array) -> Rounding:
        """Find the neighbours of magnitudes `f[D]`."""
        raise NotImplementedError

    def apply(self, key: Key, vector: Array) -> Array:
        """Compress one client's vector `f[D]`. Returns what the server decodes, of the same shape and dtype."""
        wide = _wide(vector)
        unit, ratio, below, gap = self.around(jnp.abs(wide))
        goes_up = jax.random.uniform(key, wide.shape, ratio.dtype) < (ratio - below) / gap
        return (jnp.sign(wide) * unit * (below + jnp.where(goes_up, gap, 0))).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute E||Q(x) - x||^2 at this x, exactly: `f[]`."""
        unit, ratio, below, gap = self.around(jnp.abs(_wide(vector)))
        return jnp.sum(jnp.square(unit) * (ratio - below) * (below + gap - ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant for vectors of D = dim entries; it is traced if the compressor's numbers are."""
        raise NotImplementedError

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of one message of D = dim entries, those of a float being `word`; not inside a trace."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Say it as `parse_compressor` reads it: the name, and what differs from the defaults."""
        given = {name: getattr(self, name) for name, field in fields(type(self)).items() if getattr(self, name) != field.default}
        return ":".join([_name(self), *(f"{name}={value:g}" for name, value in given.items())])


@struct
class Identity(Compressor):
    """No compression. Omega is 0. Bits: a float per entry."""

    def apply(self, key: Key, vector: Array) -> Array:
        """Return the vector."""
        return vector

    def variance(self, vector: Array) -> Array:
        """Return 0."""
        return jnp.zeros((), _wide(vector).dtype)

    def omega(self, dim: int) -> float:
        """Return 0."""
        return 0.0

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the entries."""
        return word * dim


def _is_norm(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


@struct
class Grid(Compressor):
    """Blocks, each rounded at random on a grid of its own: s levels up to its r-norm, and 0. The parent of those below.

        Q(x)_j = ||x||_r / s sign(x_j) floor(s |x_j| / ||x||_r + xi_j),  xi_j uniform on [0, 1)

    The variance is the sum over blocks of (||x||_r / s)^2 sum_j f_j (1 - f_j), f_j the fractional part of s |x_j| / ||x||_r.

    Omega, with C = B^max(1/r, 1/2): C / s - 1 if s = 1 or s <= C / 2, else (C / 2 s)^2. For r <= 2 a constant block attains the first. For
    r = inf it is (sqrt(1 + (B - 1) / s^2) - 1) / 2, attained by one 1 among entries of 1 / (1 + sqrt(1 + (B - 1) / s^2)). Otherwise omega
    is an upper bound. Derived: for other than s = 1 and r = 2 the paper says O(C / s). (For f (1 - f) is at most sqrt(w) - w up to
    w = 1/4, then 1/4, a concave function of w = (s x_j / ||x||_r)^2, whose mean is at least (s / C)^2.)

    Bits: per block a float; per entry a sign and ceil(log2(s + 1)) of the level.
    """

    norm: float = static(2.0, "a number of at least 1, or inf", _is_norm, float)
    """r."""
    block: int = count(0, least=0)
    """B, the entries of a block; the last one of a row may be shorter. 0: a row is one block."""
    row: int = count(0, least=0)
    """Entries of a row, if the vector is a matrix row by row: blocks do not reach from one into the next. 0: it is one row."""

    @property
    def num_levels(self) -> Any:
        """S, a whole number; traced if it follows from a traced one."""
        raise NotImplementedError

    def around(self, magnitude: Array) -> Rounding:
        """Find the neighbours on the blocks' grids."""
        dim, size = magnitude.size, self._block(magnitude.size)
        rows = magnitude.reshape(-1, self._row(dim))
        blocks = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size))).reshape(len(rows), -1, size)
        norm = jnp.repeat(_norm(blocks, self.norm), size, axis=1)[:, : rows.shape[1]].reshape(dim)
        ratio = magnitude / _safe(norm) * self.num_levels
        return Rounding(norm / self.num_levels, ratio, jnp.floor(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant; the row's length must divide dim."""
        size, s = self._block(dim), self.num_levels
        xp: Any = jnp if isinstance(s, jax.Array) else np
        if math.isinf(self.norm):
            return (xp.sqrt(1 + (size - 1) / s**2) - 1) / 2
        reach = size ** max(1 / self.norm, 1 / 2) / s
        return xp.where((s == 1) | (reach >= 2), reach - 1, (reach / 2) ** 2)

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits; the row's length must divide dim."""
        row = self._row(dim)
        num_blocks = dim // row * -(-row // self._block(dim))
        return word * num_blocks + dim * (1 + math.ceil(math.log2(self.num_levels + 1)))

    def _row(self, dim: int) -> int:
        if self.row and dim % self.row:
            raise ConfigError("row", self.row, f"a divisor of the {dim} entries of a vector")
        return self.row or dim

    def _block(self, dim: int) -> int:
        return min(self.block or dim, self._row(dim))


@struct
class Dithering(Grid):
    """Random dithering (Sec. 2; Alistarh et al. 2017, arXiv 1610.02132), see `Grid`; by default the whole vector is one block."""

    levels: Any = real(4.0, least=1)
    """S, a whole number."""

    def check_together(self) -> None:
        _check_whole("levels", self.levels)

    @property
    def num_levels(self) -> Any:
        """S."""
        return self.levels


@struct
class BlockQuantization(Grid):
    """Block-p-quantization (App. B; Mishchenko et al. 2019, arXiv 1901.09269): an entry becomes 0 or plus or minus its block's p-norm.

    That is `Grid` with one level. The variance is the sum over blocks of ||x||_1 ||x||_p - ||x||_2^2 (Lemma B). Omega is B^(1/p) - 1
    for p <= 2, attained by a constant block; (sqrt(B) - 1) / 2 for p = inf, attained by one 1 among entries of 1 / (1 + sqrt(B)); between
    these, where the least is not known, sqrt(B) - 1. So it is 1 for p = 2 and blocks of 4, and for p = inf and blocks of 9.

    Bits: per block a float, per entry two.
    """

    block: int = redefault(Grid, "block", 4)

    @property
    def num_levels(self) -> int:
        """One."""
        return 1


@struct
class StochasticRounding(Grid):
    """Stochastic rounding to signed integers of `width` bits, the largest magnitude of a block being 2^(width - 1) - 1.

    That is `Grid` with so many levels and r = inf. Bits: per block a float, per entry `width`.
    """

    norm: float = fixed(math.inf)
    width: Any = real(8.0, least=2, most=24)
    """Bits of an entry, its sign included; a whole number."""

    def check_together(self) -> None:
        _check_whole("width", self.width)

    @property
    def num_levels(self) -> Any:
        """Levels above 0."""
        return 2 ** (self.width - 1) - 1


@struct
class RandSparsification(Compressor):
    """Keep each entry with probability kappa, divided by it; else 0 (named in Sec. 2).

    Omega is 1 / kappa - 1, with equality for every vector. Bits: a float per entry kept, dim * kappa of them on average.
    """

    keep: Any = real(0.5, above=0, most=1)
    """kappa"""

    def around(self, magnitude: Array) -> Rounding:
        """Find 0, and what the entry is if kept."""
        keep = jnp.asarray(self.keep, magnitude.dtype)
        ratio = jnp.full_like(magnitude, keep)
        return Rounding(magnitude / keep, ratio, jnp.zeros_like(ratio), jnp.ones_like(ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant, which is the same for all dim."""
        return 1 / self.keep - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits expected, to the nearest."""
        return round(word * self.keep * dim)


@struct
class RandK(Compressor):
    """Keep k of the D entries, any k equally likely, times D / k; all of them if there are no more (Wangni et al. 2018, Stich et al. 2018).

    Omega is D / k - 1, with equality for every vector. Bits: a float per entry kept.
    """

    kept: Any = real(1.0, least=1)
    """k, a whole number."""

    def check_together(self) -> None:
        _check_whole("kept", self.kept)

    def apply(self, key: Key, vector: Array) -> Array:
        """Keep random entries."""
        wide = _wide(vector)
        places = jax.random.permutation(key, wide.size)
        scale = jnp.asarray(self.omega(wide.size) + 1, wide.dtype)
        return jnp.where(places < self.kept, wide * scale, 0).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute omega ||x||^2."""
        return self.omega(vector.size) * jnp.sum(jnp.square(_wide(vector)))

    def omega(self, dim: int) -> Any:
        """Compute the constant."""
        xp: Any = jnp if isinstance(self.kept, jax.Array) else np
        return dim / xp.minimum(self.kept, dim) - 1

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count what is kept."""
        return word * min(int(self.kept), dim)


@struct
class Luq(Compressor):
    """Logarithmic unbiased quantization (Chmiel et al. 2023, arXiv 2112.10769): powers of two of the largest magnitude, see `luq`.

    With a = 2^-top, omega is the larger of (sqrt(1 + (D - 1) a^2) - 1) / 2, of entries below a, and, unless top is 0, of
    (sqrt((1 + c)^2 + c / 2) - 1 - c) / 2 with c = (D - 1) / 2, which tends to 1/8, of entries between 1/2 and 1. The larger one is attained
    by one 1 among entries of a / (2 (1 + omega)) or of 3 / (4 (1 + omega)). Derived: the maximum of sum_j v(x_j) / ||x||^2 is the omega
    with (D - 1) max_x (v(x) - omega x^2) = omega.

    Bits: a float, and per entry ceil(log2(2 top + 3)), as 0 and two signs of top + 1 powers are told apart.
    """

    top: int = count(6, least=0)
    """Powers below the largest magnitude: 6 fit into four bits, LUQ's own code has 7 for these."""

    def around(self, magnitude: Array) -> Rounding:
        """Find the powers of two around."""
        return powers_around(magnitude, top=self.top)

    def omega(self, dim: int) -> float:
        """Compute the constant."""
        c = (dim - 1) / 2
        below = (math.sqrt(1 + (dim - 1) * 4.0**-self.top) - 1) / 2
        between = (math.sqrt((1 + c) ** 2 + c / 2) - 1 - c) / 2
        return max(below, between) if self.top else below

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits."""
        return word + dim * math.ceil(math.log2(2 * self.top + 3))


def luq(key: Key, g: Array, *, bits: int = 4, top: int | None = None) -> Array:
    """Round a tensor to powers of two of its largest magnitude, at random and without bias.

    With M = max |g| and a = M / 2^top, the levels are 0 and +-a 2^k, k = 0, ..., top. A value between two levels of its sign goes to one
    of them, so that its mean is itself; below a that is to 0 or +-a. g: any shape, of one scale; `vmap` gives each row a scale of its own.
    top: the reference code's 2^(bits - 1) - 1 if None, while 2^(bits - 1) - 2 is what a sign, a zero and the exponents leave room for.
    More bits reach smaller values but lay no levels in between: the error does not vanish. Returns the shape and dtype of g.
    """
    return Luq(top=2 ** (bits - 1) - 1 if top is None else top).apply(key, g)


def powers_around(magnitude: Array, *, top: int) -> Rounding:
    """Find the neighbours of magnitudes (any shape, one scale) among 0 and the largest one times 2^-top, ..., 1; in 32 bits."""
    largest = jnp.max(magnitude)
    share = (magnitude / _safe(largest)).astype("float32")
    # Smaller powers are no normal numbers of 32 bits.
    least = jnp.float32(2.0 ** -min(top, 126))
    # A float without its fraction bits is the power of two at or below it.
    power = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(share, "uint32") & jnp.uint32(0x7F800000), "float32")
    return Rounding(largest, share, jnp.where(share < least, 0, power), jnp.maximum(power, least))


COMPRESSORS: dict[str, type[Compressor]] = {
    "identity": Identity,
    "block": BlockQuantization,
    "dithering": Dithering,
    "rounding": StochasticRounding,
    "sparsification": RandSparsification,
    "rand_k": RandK,
    "luq": Luq,
}
"""By the names of the command line."""


def parse_compressor(text: str) -> Compressor:
    """Read a name, with values for its fields such as "block:norm=inf:block=9"; raises ConfigError for what is not allowed."""
    name, *words = text.split(":")
    if name not in COMPRESSORS:
        raise ConfigError("compression", text, "one of " + ", ".join(COMPRESSORS) + ", with values such as block:norm=2:block=4")
    kind, values = COMPRESSORS[name], {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field in values:
            raise ConfigError(f"compression {name}", word, "name=value, each name once, of " + (", ".join(fields(kind)) or "nothing"))
        values[field] = parse(kind, field, value)
    compressor = kind(**values)
    check(compressor)
    return compressor


def _name(compressor: Compressor) -> str:
    return next(name for name, kind in COMPRESSORS.items() if kind is type(compressor))


def _wide(vector: Array) -> Array:
    return vector.astype(jnp.promote_types(vector.dtype, "float32"))


def _safe(divisor: Array) -> Array:
    return jnp.where(divisor == 0, 1, divisor)


def _norm(blocks: Array, order: float) -> Array:
    """Norm of nonnegative entries along the last axis, by way of their largest, whose square need not be a number."""
    largest = jnp.max(blocks, axis=-1)
    if math.isinf(order):
        return largest
    share = blocks / _safe(largest)[..., None]
    return largest * jnp.sum(share**order, axis=-1) ** (1 / order)


def _check_whole(name: str, value: Any) -> None:
    if np.any(np.asarray(value) != np.round(value)):
        raise ConfigError(name, value, "a whole number")
