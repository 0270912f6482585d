"""Rounds of all clients, each of which takes part by a coin of its own."""

import jax
import jax.numpy as jnp

from fedjax_sim.settings import count, real, struct
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key, Timeline


@struct
class CoinRounds:
    """Settings of rounds with Bernoulli participation."""

    num_clients: int = count(100, "Num clients.")
    participation: float = real(
        1.0,
        "p: chance that a client takes part in a round, independent of everything else.",
        above=0,
        most=1,
    )
    round_time: float = real(1.0, "Virtual time of a round.", above=0)


def schedule_coin_rounds(key: Key, hyper: CoinRounds, num_ticks: int) -> Timeline:
    """Schedule rounds: slot i is client i's; those who take part do one step and have weight 1, the others none and 0."""
    shape = (num_ticks, hyper.num_clients)
    present = takes_part(stream(key, "participation"), hyper.participation, shape).astype("int32")
    version = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    time = hyper.round_time * (1.0 + jnp.arange(num_ticks))
    clients = jnp.broadcast_to(jnp.arange(hyper.num_clients)[None], shape)
    return Timeline(time, clients, present, version, present.astype(float), holds=version)


def takes_part(key: Key, chance: Array | float, shape: tuple[int, int]) -> Array:
    """Toss the coins of `(T, N)` rounds and clients: `bool[T, N]`; row t depends on key and t alone."""

    def tick(t: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, t), (shape[1],)) < chance

    return jax.vmap(tick)(jnp.arange(shape[0]))
