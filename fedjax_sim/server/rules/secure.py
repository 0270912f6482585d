"""The sum that secure aggregation gives to a server: fixed-point numbers, modulo a power of two.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core.checking import Above0, Limit
from fedjax_sim.core.settings import fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.compression import Compressor
from fedjax_sim.server.compression.messages import count_parameters
from fedjax_sim.server.rules.base import Rule


@struct
class SecureSum(Rule):
    """The mean as secure aggregation computes it (Bonawitz et al. 2017, arXiv 1611.04482).

    A client multiplies its progress by its weight, rounds each number at random to a multiple of
    `step`, without bias, and sends it modulo 2^b. The server only learns the sum modulo 2^b, which
    it takes for a number between -2^(b-1) and 2^(b-1) steps. If the sum of one number is not among
    these, it comes out wrong by 2^b steps; what single clients send may be, as long as the sum is
    not. Who drops out is left out of the sum, as after the protocol's recovery.

    The keys, masks and shares of the protocol, and their traffic, are not simulated. Nothing else
    than the sum can be learnt from such messages, so that this is a rule and excludes all others,
    and compression. A number that is not finite has no code, and its message is missing.

        messages = jnp.array([[1.0], [2.0], [6.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = SecureSum(width=24, step=0.001).centre(key, messages, weight, is_present)
        assert jnp.abs(centre - (1 + 2 + 6) / 3) < 3 * 0.001  # each message is rounded to a step
    """

    name: str = fixed("secure_sum")
    weighs: ClassVar[bool] = True

    width: Annotated[int, Limit(least=2, most=31)] = setting(
        24, "Bits of a number, b.", traced=True
    )
    step: Above0 = setting(1e-6, "Distance between two numbers that can be sent.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the sum of the coded messages, decoded."""
        width = jnp.asarray(self.width).astype("int32")
        keys = optax.tree.split_key_like(key, messages)
        return jax.tree.map(lambda own, x: self._sum(own, x, weight, width), keys, messages)

    def _sum(self, key: Key, leaf: Array, weight: Array, width: Array) -> Array:
        """Sum a leaf `[S, ...]` with weights: `[...]`."""
        wide = wide_of(leaf)
        share = weight.astype(wide.dtype).reshape(-1, *(1,) * (wide.ndim - 1))
        steps = share * wide / jnp.asarray(self.step, wide.dtype)
        below = jnp.floor(steps)
        goes_up = jax.random.uniform(key, steps.shape, steps.dtype) < steps - below
        coded = below + goes_up.astype(steps.dtype)
        size = jnp.ldexp(jnp.ones((), wide.dtype), width)
        # The remainder with the sign of the number is exact. Sums of whole numbers without sign are
        # modulo 2^32, of which 2^b is a divisor.
        parts = jnp.fmod(coded, size).astype("int32").astype("uint32")
        total = parts.sum(axis=0, dtype="uint32")
        mask = (jnp.uint32(1) << width.astype("uint32")) - 1
        total = (total & mask).astype("int32")
        half = jnp.int32(1) << (width - 1)
        signed = jnp.where(total >= half, (total - half) - half, total)
        return (signed.astype(wide.dtype) * self.step).astype(leaf.dtype)

    def message_bits(self, compressor: Compressor, params: Params) -> int:
        """Count b bits for each number."""
        return int(self.width) * count_parameters(params)
