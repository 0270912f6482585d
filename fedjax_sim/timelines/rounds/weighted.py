"""Rounds of all clients, or of some that are drawn by their weights, or by coins.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `S` slots of a tick, `K` local steps
of a client in a round. In rounds of coins slot i belongs to client i.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import Checked, ConfigError, checked, group, setting, struct
from fedjax_sim.core.settings.declared import Above0, Count, Portion
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Key, Settings, Timeline
from fedjax_sim.timelines.cohorts import draw_cohorts, draw_with_replacement
from fedjax_sim.timelines.delays.devices import loss_shares
from fedjax_sim.timelines.delays.laws import Clients
from fedjax_sim.timelines.rounds.synchronous import CohortClock, assemble_rounds, check_clients


@struct
class WeightedRounds(Clients):
    """Settings of synchronous rounds of weighted clients.

    They are inherited by the settings of FA-LD, for example.

        hyper = WeightedRounds(num_clients=3, client_weights=np.array([1.0, 1.0, 2.0]))
        assert hyper.shares().tolist() == [1 / 4, 1 / 4, 1 / 2]
    """

    local_steps: Count = setting(10, "Local steps of a client's update, K.", traced=True)
    participants: Literal["full", "with_replacement", "without_replacement"] = setting(
        "full",
        'Which clients take part. "full": all, with weights p_c. "with_replacement": S independent '
        "draws of client c with probability p_c; a client drawn j times has weight j/S. "
        '"without_replacement": a uniform subset of S clients with weights 1/S; needs equal p_c.',
    )
    client_weights: Above0 | Sequence[Above0] | None = setting(
        None,
        "Weights p_c of the clients up to a common factor. None takes their numbers of examples, "
        "or equal weights for a schedule without a problem.",
        allowed="None, one finite number above 0, or one for each client",
    )
    num_selected: Count = setting(
        10,
        "Size of the cohort, S.",
        only_with={"participants": ("with_replacement", "without_replacement")},
    )
    clock: CohortClock = group(
        CohortClock(round_time="mean"),
        "how long a round takes",
        without=("num_asked", "deadline"),
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the cohort exceeds the clients, a trace lacks rows of some client, or the
            K running times of a client are to be summed.
        """
        super().check_together()
        check_clients(self, are_distinct=self.participants == "without_replacement")
        if self.clock.round_time == "sum":
            allowed = "one_draw or mean, because local_steps can be swept in one program here"
            raise ConfigError("clock.round_time", "sum", allowed)

    def weighted(self, counts: np.ndarray) -> Settings:
        """Replace the client weights by weights of sum 1. Runs on the host.

        Args:
          counts: `i[N]`, the clients' numbers of examples, which are the weights if none are set.

        Returns:
          The same settings with `client_weights` `f64[N]`.

        Raises:
          ConfigError: If the number of weights is wrong, or they are unequal although a uniform
            subset takes part, which would be biased.
        """
        weights = counts if self.client_weights is None else np.asarray(self.client_weights, float)
        if weights.shape not in ((), counts.shape):
            allowed = f"one number, or {counts.size}: one per client"
            raise ConfigError("client_weights", f"of {weights.size} numbers", allowed)
        weights = np.broadcast_to(weights, counts.shape)
        if self.participants == "without_replacement" and np.ptp(weights) > 1e-6 * weights.max():
            unequal = f"with weights from {weights.min():g} to {weights.max():g}"
            allowed = "full or with_replacement unless all weights are equal"
            raise ConfigError("participants", f"without_replacement {unequal}", allowed)
        this: Settings = self
        return this.replace(client_weights=weights / weights.sum())

    def shares(self, counts: Array | None = None) -> Array:
        """Compute the clients' weights p_c.

        Args:
          counts: `i32[N]`, the clients' numbers of examples, which are the weights if no
            `client_weights` are set; None for equal weights.

        Returns:
          `f[N]`, of sum 1.
        """
        given = self.client_weights if self.client_weights is not None else counts
        given = jnp.asarray(1.0 if given is None else given, float)
        weight = jnp.broadcast_to(given, (self.num_clients,))
        return weight / weight.sum()


@checked
def schedule_weighted_rounds(key: Key, hyper: WeightedRounds, num_ticks: Count) -> Timeline:
    """Schedule synchronous rounds of weighted clients.

    A client that is drawn more than once in a round works once, in one slot. Where updates are lost
    the weights of the others are scaled to the same sum. The first rounds do not depend on
    `num_ticks`.

        everyone = schedule_weighted_rounds(key, WeightedRounds(num_clients=4), 5)
        assert (everyone.clients == jnp.arange(4)[None]).all() and (everyone.weight == 1 / 4).all()

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round. Full participation has a slot for each
      client. With replacement there are S slots, and those left over by repeated draws are `EMPTY`.
    """
    cohorts, size = lane_stream(key, "cohorts"), hyper.num_selected
    share = hyper.shares()
    if hyper.participants == "full":
        shape = (num_ticks, hyper.num_clients)
        clients = jnp.broadcast_to(jnp.arange(hyper.num_clients), shape)
        weight = jnp.broadcast_to(share, shape)
    elif hyper.participants == "with_replacement":
        clients, times = draw_with_replacement(cohorts, share, size, num_ticks)
        weight = times.astype(share.dtype) / size
    else:
        clients = draw_cohorts(cohorts, hyper.num_clients, size, num_ticks)
        weight = jnp.full(clients.shape, 1 / size)

    def weigh(left: Array) -> Array:
        if loss_shares(hyper) is None:
            return weight
        total, kept = (x.sum(axis=1, keepdims=True) for x in (weight, left))
        return left * (total / jnp.where(kept > 0, kept, 1))

    return assemble_rounds(key, hyper, clients, weight, weigh, num_used=clients.shape[1])


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
