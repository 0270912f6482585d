"""Synchronous rounds: the server waits for the slowest of the clients it selected."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, choice, count, real, redefault, struct, weights, whole
from fedjax_sim.streams import stream
from fedjax_sim.timelines.cohorts import cohorts, draws, previous_visits
from fedjax_sim.timelines.laws import ClientDelays, Speeds, client_speeds, runtimes
from fedjax_sim.types import EMPTY, Array, Key, Timeline


@struct
class Rounds(ClientDelays):
    """Settings of synchronous rounds."""

    num_selected: int = count(20, "S: size of the cohort.")
    server_interact: float = real(3.0, "Time that the exchange with the cohort takes.", least=0)
    round_time: str = choice(
        "sum",
        ("sum", "one_draw", "mean"),
        "The cohort's time: the longest sum of K running times, K times the longest single draw, or K times the longest mean.",
    )

    def check_together(self) -> None:
        super().check_together()
        self.check_cohort()
        if self.trace is not None and len(set(self.trace.client.tolist())) < self.num_clients:
            raise ConfigError(
                "trace",
                "a client without rows",
                "with rows of every client, as any may be selected",
            )

    def decided(self) -> dict[str, str]:
        return super().decided() | self.decided_by_trace("round_time")

    def check_cohort(self) -> None:
        if self.num_selected > self.num_clients:
            raise ConfigError(
                "num_selected", self.num_selected, f"at most num_clients = {self.num_clients}"
            )


@struct
class WeightedRounds(Rounds):
    """Settings of synchronous rounds of weighted clients, in lock-step by default: a unit of virtual time is a local step."""

    num_selected: int = redefault(Rounds, "num_selected", 10)
    """S: clients drawn for a round, under partial participation."""
    local_steps: int = whole(20, "K.")
    participation: str = choice(
        "full",
        ("full", "with_replacement", "without_replacement"),
        "Who takes part: everyone, with the weight p_c; S independent draws, each of client c with probability p_c and of weight 1/S, so that a client drawn j times has j/S; or a uniform subset of S, of weight 1/S each, for equal p_c only.",
    )
    client_weights: Any = weights(
        "p_c up to a common factor: one number for all, or one per client. None: their numbers of examples, where a problem is at hand."
    )
    slow_fraction: float = redefault(Rounds, "slow_fraction", 0.0)
    rate_fast: float = redefault(Rounds, "rate_fast", 1.0)
    server_interact: float = redefault(Rounds, "server_interact", 0.0)
    round_time: str = choice(
        "mean",
        ("one_draw", "mean"),
        "K times the longest single draw of the participants, or K times the longest mean.",
    )

    def check_cohort(self) -> None:
        if self.participation == "without_replacement":
            super().check_cohort()

    def weighted(self, counts: np.ndarray) -> Any:
        """The same settings with client_weights of sum 1: those given, else in proportion to counts `[N]`; on the host.

        Raises ConfigError for weights of another number, and for unequal ones under which a uniform subset would be biased.
        """
        weights = counts if self.client_weights is None else np.asarray(self.client_weights, float)
        if weights.shape not in ((), counts.shape):
            raise ConfigError(
                "client_weights",
                f"of {weights.size} numbers",
                f"one number, or {counts.size}: one per client",
            )
        weights = np.broadcast_to(weights, counts.shape)
        if self.participation == "without_replacement" and np.ptp(weights) > 1e-6 * weights.max():
            unequal = f"with weights from {weights.min():g} to {weights.max():g}"
            raise ConfigError(
                "participation",
                f"without_replacement {unequal}",
                "full or with_replacement unless all weights are equal",
            )
        return cast(Any, self).replace(client_weights=weights / weights.sum())

    def shares(self, counts: Array | None = None) -> Array:
        """p_c: `f[N]`, sum 1. counts: `i32[N]`, the clients' numbers of examples, which count where no weights are given."""
        given = self.client_weights if self.client_weights is not None else counts
        weight = jnp.broadcast_to(
            jnp.asarray(1.0 if given is None else given, float), (self.num_clients,)
        )
        return weight / weight.sum()


def schedule_rounds(key: Key, hyper: Rounds, num_ticks: int) -> Timeline:
    """Schedule synchronous rounds: everyone selected does K steps from the current model; weights are 1/S.

    A recorded trace gives the length of a client's work: its rows are used in order, over again when they are spent.
    """
    clients = cohorts(stream(key, "cohorts"), hyper.num_clients, hyper.num_selected, num_ticks)
    return _synchronous(key, hyper, clients, jnp.full(clients.shape, 1 / hyper.num_selected))


def schedule_weighted_rounds(key: Key, hyper: WeightedRounds, num_ticks: int) -> Timeline:
    """Schedule synchronous rounds of weighted clients; a client drawn more than once in a round works once, in one slot."""
    if hyper.participation == "without_replacement":
        return schedule_rounds(key, hyper, num_ticks)
    share = hyper.shares()
    if hyper.participation == "full":
        shape = (num_ticks, hyper.num_clients)
        return _synchronous(
            key,
            hyper,
            jnp.broadcast_to(jnp.arange(shape[1]), shape),
            jnp.broadcast_to(share, shape),
        )
    drawn = draws(stream(key, "cohorts"), share, hyper.num_selected, num_ticks)
    return _synchronous(
        key, hyper, drawn.clients, drawn.times.astype(share.dtype) / hyper.num_selected
    )


def _synchronous(key: Key, hyper: Rounds, clients: Array, weight: Array) -> Timeline:
    present = clients != EMPTY
    work_time = (
        _trace_time(clients, hyper) if hyper.trace is not None else _law_time(key, clients, hyper)
    )
    time = jnp.cumsum(hyper.server_interact + jnp.where(present, work_time, 0).max(axis=1))
    version = jnp.broadcast_to(jnp.arange(clients.shape[0])[:, None], clients.shape)
    # A client keeps the model that it started from until it is selected again.
    return Timeline(
        time, clients, jnp.where(present, hyper.local_steps, 0), version, weight, holds=version
    )


def _law_time(key: Key, clients: Array, hyper: Rounds) -> Array:
    speeds = Speeds(*(leaf[clients] for leaf in client_speeds(key, hyper)))
    if hyper.round_time == "mean":
        return hyper.times_per_update / speeds.rate
    num = hyper.times_per_update if hyper.round_time == "sum" else 1
    key = stream(key, "runtimes")
    draw = jax.vmap(
        lambda t, speeds: runtimes(jax.random.fold_in(key, t), speeds, num, hyper.runtime_law)
    )
    return draw(jnp.arange(clients.shape[0]), speeds).sum(axis=-1) * (hyper.times_per_update / num)


def _trace_time(clients: Array, hyper: Rounds) -> Array:
    rows = hyper.trace.by_client(hyper.num_clients)
    _, visit = previous_visits(clients)
    first = jnp.asarray(rows.first)
    row = first[clients] + visit % (first[clients + 1] - first[clients])
    return jnp.asarray(rows.finish - rows.start)[row]
