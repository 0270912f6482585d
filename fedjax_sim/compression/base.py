"""What all compressors have, and the one that does nothing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, fields, fixed, struct
from fedjax_sim.types import Array, Key


class Rounding(NamedTuple):
    """Magnitudes `unit * ratio` that go to `unit * below` or `unit * (below + gap)` so that their mean is themselves; all `f[D]`."""

    unit: Array
    ratio: Array
    below: Array
    gap: Array


class Compressor:
    """What all compressors have. Most round each entry by itself to one of two neighbours, and only say which (`around`)."""

    name: str
    """On the command line. A static field, as JAX takes dataclasses of equal fields for one kind of pytree, whatever their class."""

    def around(self, magnitude: Array) -> Rounding:
        """Find the neighbours of magnitudes `f[D]`."""
        raise NotImplementedError

    def apply(self, key: Key, vector: Array) -> Array:
        """Compress one client's vector `f[D]`. Returns what the server decodes, of the same shape and dtype."""
        wide = wide_of(vector)
        unit, ratio, below, gap = self.around(jnp.abs(wide))
        goes_up = jax.random.uniform(key, wide.shape, ratio.dtype) < (ratio - below) / gap
        return (jnp.sign(wide) * unit * (below + jnp.where(goes_up, gap, 0))).astype(vector.dtype)

    def variance(self, vector: Array) -> Array:
        """Compute E||Q(x) - x||^2 at this x, exactly: `f[]`."""
        unit, ratio, below, gap = self.around(jnp.abs(wide_of(vector)))
        return jnp.sum(jnp.square(unit) * (ratio - below) * (below + gap - ratio))

    def omega(self, dim: int) -> Any:
        """Compute the constant for vectors of D = dim entries; it is traced if the compressor's numbers are."""
        raise NotImplementedError

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the bits of one message of D = dim entries, those of a float being `word`; not inside a trace."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Say it as `parse_compressor` reads it: the name, and what differs from the defaults."""
        given = {
            name: getattr(self, name)
            for name, field in fields(type(self)).items()
            if getattr(self, name) != field.default
        }
        return ":".join([self.name, *(f"{name}={value:g}" for name, value in given.items())])


@struct
class Identity(Compressor):
    """No compression. Omega is 0. Bits: a float per entry."""

    name: str = fixed("identity")

    def apply(self, key: Key, vector: Array) -> Array:
        """Return the vector."""
        return vector

    def variance(self, vector: Array) -> Array:
        """Return 0."""
        return jnp.zeros((), wide_of(vector).dtype)

    def omega(self, dim: int) -> float:
        """Return 0."""
        return 0.0

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Count the entries."""
        return word * dim


def wide_of(vector: Array) -> Array:
    """Give a vector at least 32 bits."""
    return vector.astype(jnp.promote_types(vector.dtype, "float32"))


def divisor(value: Array) -> Array:
    """Replace 0 by 1."""
    return jnp.where(value == 0, 1, value)


def check_whole(name: str, value: Any) -> None:
    """Raise ConfigError unless a number is whole."""
    if np.any(np.asarray(value) != np.round(value)):
        raise ConfigError(name, value, "a whole number")
