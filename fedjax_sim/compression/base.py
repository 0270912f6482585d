"""The interface of compressors, and the compressor that does nothing.

Dimension letter: `D` entries of a vector.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.settings import Kind, fixed, struct
from fedjax_sim.types import Array, Key


class Rounding(NamedTuple):
    """The two neighbours between which each magnitude is rounded at random, without bias.

    The magnitude `unit * ratio` becomes `unit * below` or `unit * (below + gap)`.

    Attributes:
      unit: `f[D]` or a scalar, the scale.
      ratio: `f[D]`, magnitudes in units of the scale.
      below: `f[D]`, lower neighbours in units of the scale.
      gap: `f[D]`, distances to the upper neighbours in units of the scale.
    """

    unit: Array
    ratio: Array
    below: Array
    gap: Array


class Compressor(Kind):
    """The interface of compressors.

    Most compressors round each entry to one of two neighbours, independently of the others. They
    only define `around`; `apply` and `variance` follow from it.

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
        wide = wide_of(vector)
        unit, ratio, below, gap = self.around(jnp.abs(wide))
        goes_up = jax.random.uniform(key, wide.shape, ratio.dtype) < (ratio - below) / gap
        return (jnp.sign(wide) * unit * (below + jnp.where(goes_up, gap, 0))).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute E||Q(x) - x||^2 exactly, at a given x.

        Args:
          vector: x, `f[D]`.

        Returns:
          `f[]`.
        """
        unit, ratio, below, gap = self.around(jnp.abs(wide_of(vector)))
        return jnp.sum(jnp.square(unit) * (ratio - below) * (below + gap - ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant omega, a bound on E||Q(x) - x||^2 / ||x||^2.

        Args:
          dim: Entries of a vector, D.

        Returns:
          A number, traced if the compressor's numbers are.
        """
        raise NotImplementedError

    @property
    def has_omega(self) -> bool:
        """Whether there is an omega, as there is for unbiased compressors."""
        return True

    def pace(self, dim: int) -> Any:
        """Compute the factor that makes messages contractive: 1 / (1 + omega) if Q is unbiased.

        Args:
          dim: Entries of a vector, D.
        """
        return 1 / (1 + self.omega(dim))

    def contraction(self, dim: int) -> Any:
        """Compute alpha, with E||a Q(x) - x||^2 <= (1 - alpha) ||x||^2 for the factor a of `pace`.

        Args:
          dim: Entries of a vector, D.
        """
        return self.pace(dim)

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

    def variance(self, vector: Array) -> Array:
        """Return 0."""
        return jnp.zeros((), wide_of(vector).dtype)

    def omega(self, dim: int) -> float:
        """Return 0."""
        return 0.0

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count one float per entry."""
        return word * dim


def wide_of(vector: Array) -> Array:
    """Convert an array of floats `f[...]` to at least 32 bits per entry."""
    return vector.astype(jnp.promote_types(vector.dtype, "float32"))


def divisor(value: Array) -> Array:
    """Replace zeros in an array `f[...]` by 1, so that one can divide by the result."""
    return jnp.where(value == 0, 1, value)


def root(squares: Array) -> Array:
    """Take square roots of numbers `f[...]`, at least 0, with the derivative 0 at 0."""
    is_above = squares > 0
    return jnp.where(is_above, jnp.sqrt(jnp.where(is_above, squares, 1)), 0)
