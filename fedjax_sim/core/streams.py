"""Random numbers: keys of ticks, named streams, and look-ups in random permutations.

All randomness of a run comes from one key. A step gets a key of its tick (`tick_key`), so that what
it draws by `jax.random` is new at every tick. The parts of this package draw from named streams of
the lane (`lane_stream`), which are the same at every tick, and from these by `jax.random.fold_in`
of tick, slot, client or step: a client's mini-batches go on from one tick to the next.
`shuffled_index` finds single entries of a random permutation without building the permutation.
"""

import functools
import zlib
from collections.abc import Callable, Hashable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from fedjax_sim.core.targets import is_for_cpu
from fedjax_sim.core.types import Array, Key

SHUFFLE_ROUNDS = 32
"""Rounds of the shuffle; after them a position has failed to move with probability 2^-32."""


def stream(key: Key, name: str) -> Key:
    """Return the key of a named stream. Streams with different names are independent.

    name: What is drawn, such as "cohorts". Names are hashed to 31 bits; a test checks that those in
    use differ.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)


def lane_stream(key: Key, name: str) -> Key:
    """Return the key of a named stream that is the same at every tick.

    It is `stream` of the lane's key, which a key of a tick has; `name` is that of `stream`.
    """
    return stream(lane_key(key), name)


def tick_key(key: Key, tick: Array, name: str = "tick") -> Key:
    """Make the key that a user's function gets at a tick.

    It is a pair of keys. Functions of `jax.random` draw from the tick's key, and `split` and
    `fold_in` derive a pair from a pair. `lane_stream` derives from the lane's key.

        key = tick_key(jax.random.key(0), jnp.int32(7))
        own, other = jax.random.split(key)
        assert jax.random.normal(own) != jax.random.normal(other)

    Args:
      key: The key of the lane, or a pair that has it.
      tick: `i32[]`, the number of the tick, or of what happens more often than once a tick.
      name: A stream of the lane from which the tick's key is derived. Functions that are called
        at the same tick with different names draw independently.

    Returns:
      The pair, one typed JAX key. `jax.random.poisson`, which JAX has for its default keys only,
      takes `jax.random.key(jax.random.bits(key))`.
    """
    key = lane_key(key)
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    both = key, jax.random.fold_in(stream(key, name), tick)
    words = jnp.concatenate([jax.random.key_data(each) for each in both], axis=-1)
    return jax.random.wrap_key_data(words, impl=_pair_of(jax.random.key_impl(key)))


def clock_key(key: Key) -> Key:
    """Derive the random key of a lane's live clock.

    Args:
      key: The lane's learning key, or a key of one of its ticks.

    Returns:
      The clock's key.
    """
    return lane_stream(key, "clock")


_kinds: dict[Hashable, Any] = {}
"""The kind of the keys in a pair, by the kind of the pair."""


@functools.cache
def _pair_of(kind: Any) -> Any:
    """Define the kind of a pair of keys of one kind."""
    num = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=kind))).shape[0]

    def both(derive: Callable[..., Key]) -> Callable[..., Array]:
        def derive_both(words: Array, *args: Array | int) -> Array:
            keys = (jax.random.wrap_key_data(x, impl=kind) for x in (words[:num], words[num:]))
            derived = [jax.random.key_data(derive(key, *args)) for key in keys]
            return jnp.concatenate(derived, axis=-1)

        return derive_both

    def seed(seeds: Array) -> Array:
        words = jax.random.key_data(jax.random.key(seeds, impl=kind))
        return jnp.concatenate([words, words], axis=-1)

    def bits(words: Array, width: int, shape: tuple[int, ...]) -> Array:
        key = jax.random.wrap_key_data(words[num:], impl=kind)
        return jax.random.bits(key, shape, f"uint{width}")

    derived = {"split": both(jax.random.split), "fold_in": both(jax.random.fold_in)}
    made = define_prng_impl(
        key_shape=(2 * num,),
        seed=seed,
        random_bits=bits,
        name=f"tick_{kind}",
        tag="tick",
        **derived,
    )
    _kinds[made] = kind
    return made


def lane_key(key: Key) -> Key:
    """Return the lane's key out of a pair made by `tick_key`; other keys as they are."""
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    kind = _kinds.get(jax.random.key_impl(key))
    if kind is None:
        return key
    words = jax.random.key_data(key)
    return jax.random.wrap_key_data(words[..., : words.shape[-1] // 2], impl=kind)


def shuffle_bits(key: Key) -> Array:
    """Draw the random bits that `shuffled_index` needs: `u32[SHUFFLE_ROUNDS, 2]`."""
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
