"""Random numbers: named streams of a key, and look-ups in random permutations.

All randomness of a run comes from one key. Code derives the key of its purpose by `stream`, and
from that by `jax.random.fold_in` of tick, slot, client or step. `shuffled_index` finds single
entries of a random permutation without building the permutation.
"""

import zlib

import chex
import jax
import jax.numpy as jnp

from fedjax_sim.targets import is_for_cpu
from fedjax_sim.types import Array, Key

SHUFFLE_ROUNDS = 32
"""Rounds of the shuffle; after them a position has failed to move with probability 2^-32."""


def stream(key: Key, name: str) -> Key:
    """Derive the key of a named stream. Streams with different names are independent.

    Args:
      key: Any key.
      name: A name that says what is drawn, such as "cohorts". Names are hashed to 31 bits; a test
        checks that those in use differ.

    Returns:
      The stream's key.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)


def clock_key(key: Key) -> Key:
    """Derive the random key of a lane's live clock.

    Args:
      key: The lane's learning key.

    Returns:
      The clock's key.
    """
    return stream(key, "clock")


def shuffle_bits(key: Key) -> Array:
    """Draw the random bits that `shuffled_index` needs.

    Args:
      key: Key of the permutations.

    Returns:
      `u32[SHUFFLE_ROUNDS, 2]`.
    """
    return jax.random.bits(key, (SHUFFLE_ROUNDS, 2), "uint32")


def shuffled_index(
    bits: Array, index: Array, size: Array | int, permutation: Array | int = 0
) -> Array:
    """Look up positions of random permutations of `range(size)` without building them.

    Swap-or-not shuffle (Hoang, Morris, Rogaway 2012): in each round x and (K - x) mod size change
    places or not, by a random bit of the pair. Work is proportional to the number of positions
    looked up, and `size` may be traced; neither a sort nor `jax.random.permutation` offers that.

    Args:
      bits: `u32[rounds, 2]`, from `shuffle_bits`.
      index: Positions to look up, integers `[...]` from 0 to size - 1.
      size: Length of the permutations, at most 2^24.
      permutation: Which of the many permutations of these bits, integers that broadcast against
        `index`.

    Returns:
      What the permutations hold at these positions, `i32[...]`.

    Raises:
      AssertionError: If `bits` does not have two columns.
    """
    chex.assert_shape(bits, (None, 2))
    size = jnp.asarray(size).astype("uint32")
    tweak = jnp.asarray(permutation).astype("uint32") * jnp.uint32(0x9E3779B9)

    def one_round(r: Array, x: Array) -> Array:
        uniform = (_mix(bits[r, 0] ^ tweak) >> 8).astype("float32") * jnp.float32(2**-24)
        mirror = jnp.minimum((uniform * size.astype("float32")).astype("uint32"), size - 1)
        partner = jnp.where(mirror >= x, mirror - x, mirror + size - x)
        swap = _mix(jnp.maximum(x, partner) ^ bits[r, 1] ^ tweak) >> 31
        return jnp.where(swap == 1, partner, x)

    start = jnp.broadcast_to(index.astype("uint32"), jnp.broadcast_shapes(index.shape, tweak.shape))
    # On an accelerator all rounds are one kernel. On a CPU do not unroll more of them: over an axis
    # of length 1 XLA would duplicate them exponentially often, until memory is exhausted.
    num_rounds = bits.shape[0]
    unroll = 2 if is_for_cpu() else num_rounds
    return jax.lax.fori_loop(0, num_rounds, one_round, start, unroll=unroll).astype("int32")


def _mix(x: Array) -> Array:
    """Hash 32 bits: each input bit flips each output bit with probability close to one half."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
