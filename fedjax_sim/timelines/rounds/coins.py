"""Rounds of all clients in which each takes part independently, with probability p.

Dimension letters: `N` clients, `T` ticks. A tick is a round, and slot i belongs to client i.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.core.checking import Above0, Count, Portion, checked
from fedjax_sim.core.settings import Checked, setting, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Key, Timeline


@struct
class CoinRounds(Checked):
    """Settings of rounds with Bernoulli participation.

    They are inherited by the settings of FedEM, for example.

        hyper = CoinRounds(num_clients=8, participation=0.5, round_length=2.0)
        assert schedule_coin_rounds(key, hyper, 3).time.tolist() == [2.0, 4.0, 6.0]
    """

    num_clients: Count = setting(
        100, "Number of clients, N; in a run, if not given, those of the problem."
    )
    participation: Portion = setting(
        1.0, "Probability p that a client takes part in a round, independently of all else."
    )
    round_length: Above0 = setting(1.0, "Duration of a round, in units of virtual time.")


@checked
def schedule_coin_rounds(key: Key, hyper: CoinRounds, num_ticks: Count) -> Timeline:
    """Schedule rounds in which each client takes part with probability p.

        rounds = schedule_coin_rounds(key, CoinRounds(num_clients=8, participation=0.5), 5)
        assert ((rounds.weight == 0) | (rounds.weight == 1)).all()

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline with one slot per client. Clients that take part do one step and have weight 1;
      the other slots have no step and weight 0, but are not `EMPTY`.
    """
    shape, coins = (num_ticks, hyper.num_clients), lane_stream(key, "participation")

    def takes_part(t: Array) -> Array:
        """Toss everyone's coin of a round, which depends only on its number."""
        return jax.random.uniform(jax.random.fold_in(coins, t), shape[1:]) < hyper.participation

    present = jax.vmap(takes_part)(jnp.arange(num_ticks)).astype("int32")
    version = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    time = hyper.round_length * (1.0 + jnp.arange(num_ticks))
    clients = jnp.broadcast_to(jnp.arange(hyper.num_clients)[None], shape)
    return Timeline(time, clients, present, version, present.astype(float), holds=version)
