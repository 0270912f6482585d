"""The interface of compressors, and the compressor that does nothing.

Dimension letter: `D` entries of a vector.
"""

from typing import Any

from fedjax_sim.core.settings import Kind, fixed, struct
from fedjax_sim.core.types import Array, Key
from fedjax_sim.kernels import rounding
from fedjax_sim.kernels.rounding import Rounding


class Compressor(Kind):
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
        return rounding.rounded(key, vector, self.around)

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
