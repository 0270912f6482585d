"""Synchronous rounds: the server waits for the slowest of the clients it selected.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `S` slots of a tick, `K` local steps
of a client in a round.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.checking import Count, checked
from fedjax_sim.settings import (
    Checked,
    ConfigError,
    choice,
    count,
    group,
    real,
    redefault,
    struct,
    weights,
    whole,
)
from fedjax_sim.streams import stream
from fedjax_sim.timelines.cohorts import draw_cohorts, draw_with_replacement, previous_visits
from fedjax_sim.timelines.delays import (
    Clients,
    Speeds,
    draw_client_speeds,
    draw_runtimes,
)
from fedjax_sim.timelines.delays.devices import draw_devices, is_lost, times_in_rounds
from fedjax_sim.types import EMPTY, Array, Key, Timeline


@struct
class RoundClock(Checked):
    """Settings of the time that a round takes."""

    server_interact: float = real(
        0.0,
        "Duration of the exchange with the cohort, in units of virtual time.",
        least=0,
        of_time=True,
    )
    round_time: str = choice(
        "sum",
        ("sum", "one_draw", "mean"),
        "Time that the cohort's work takes: the longest sum of K running times, K times the "
        "longest single draw, or K times the longest mean.",
    )


@struct
class Rounds(Clients):
    """Settings of synchronous rounds of uniform cohorts."""

    num_selected: int = count(10, "Size of the cohort, S.")
    clock: RoundClock = group(RoundClock(), "how long a round takes")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the cohort exceeds the clients, or a trace lacks rows of some client.
        """
        super().check_together()
        self.check_cohort()
        if (
            self.delays.trace is not None
            and len(set(self.recorded.client.tolist())) < self.num_clients
        ):
            raise ConfigError(
                "trace",
                "a client without rows",
                "with rows of every client, as any may be selected",
            )

    def decided(self) -> dict[str, str]:
        """Name the settings that have no effect, and what takes their place."""
        return super().decided() | self.decided_by_trace("clock.round_time")

    def check_cohort(self) -> None:
        """Check that the cohort is not larger than the number of clients.

        Raises:
          ConfigError: If it is larger.
        """
        if self.num_selected > self.num_clients:
            raise ConfigError(
                "num_selected", self.num_selected, f"at most num_clients = {self.num_clients}"
            )


@struct
class WeightedRounds(Rounds):
    """Settings of synchronous rounds of weighted clients."""

    local_steps: int = whole(10, "Local steps of a client in a round, K.")
    participants: str = choice(
        "full",
        ("full", "with_replacement", "without_replacement"),
        'Which clients take part. "full": all, with weights p_c. "with_replacement": S independent '
        "draws of client c with probability p_c; a client drawn j times has weight j/S. "
        '"without_replacement": a uniform subset of S clients with weights 1/S; needs equal p_c.',
    )
    client_weights: Any = weights(
        "Weights p_c of the clients up to a common factor. None takes their numbers of examples, "
        "or equal weights for a schedule without a problem."
    )
    clock: RoundClock = redefault(Rounds, "clock", RoundClock(round_time="mean"))

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the K running times of a client are to be summed.
        """
        super().check_together()
        if self.clock.round_time == "sum":
            allowed = "one_draw or mean, because local_steps can be swept in one program here"
            raise ConfigError("clock.round_time", "sum", allowed)

    def check_cohort(self) -> None:
        """Check the size of the cohort if it is drawn without replacement.

        Raises:
          ConfigError: If it is larger than the number of clients.
        """
        if self.participants == "without_replacement":
            super().check_cohort()

    def weighted(self, counts: np.ndarray) -> Any:
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
            raise ConfigError(
                "client_weights",
                f"of {weights.size} numbers",
                f"one number, or {counts.size}: one per client",
            )
        weights = np.broadcast_to(weights, counts.shape)
        if self.participants == "without_replacement" and np.ptp(weights) > 1e-6 * weights.max():
            unequal = f"with weights from {weights.min():g} to {weights.max():g}"
            raise ConfigError(
                "participants",
                f"without_replacement {unequal}",
                "full or with_replacement unless all weights are equal",
            )
        return cast(Any, self).replace(client_weights=weights / weights.sum())

    def shares(self, counts: Array | None = None) -> Array:
        """Compute the clients' weights p_c.

        Args:
          counts: `i32[N]`, the clients' numbers of examples, which are the weights if no
            `client_weights` are set; None for equal weights.

        Returns:
          `f[N]`, of sum 1.
        """
        given = self.client_weights if self.client_weights is not None else counts
        weight = jnp.broadcast_to(
            jnp.asarray(1.0 if given is None else given, float), (self.num_clients,)
        )
        return weight / weight.sum()


@checked
def schedule_rounds(key: Key, hyper: Rounds, num_ticks: Count) -> Timeline:
    """Schedule synchronous rounds of uniform cohorts.

    Every selected client does K steps from the current model. With a recorded trace a client's work
    takes as long as its rows say, which are used in order and again from the first one after the
    last. The first rounds do not depend on `num_ticks`.

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline with all weights 1/S.
    """
    clients = draw_cohorts(stream(key, "cohorts"), hyper.num_clients, hyper.num_selected, num_ticks)
    return _synchronous(key, hyper, clients, jnp.full(clients.shape, 1 / hyper.num_selected))


@checked
def schedule_weighted_rounds(key: Key, hyper: WeightedRounds, num_ticks: Count) -> Timeline:
    """Schedule synchronous rounds of weighted clients.

    A client that is drawn more than once in a round works once, in one slot.

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round. Full participation has a slot for each
      client. With replacement there are S slots, and those left over by repeated draws are `EMPTY`.
    """
    if hyper.participants == "without_replacement":
        return schedule_rounds(key, hyper, num_ticks)
    share = hyper.shares()
    if hyper.participants == "full":
        shape = (num_ticks, hyper.num_clients)
        return _synchronous(
            key,
            hyper,
            jnp.broadcast_to(jnp.arange(shape[1]), shape),
            jnp.broadcast_to(share, shape),
        )
    drawn = draw_with_replacement(stream(key, "cohorts"), share, hyper.num_selected, num_ticks)
    return _synchronous(
        key, hyper, drawn.clients, drawn.times.astype(share.dtype) / hyper.num_selected
    )


def _synchronous(key: Key, hyper: Rounds, clients: Array, weight: Array) -> Timeline:
    """Make the timeline of rounds with given clients `i[T, S]` and weights `f[T, S]`.

    Where updates are lost the weights of the others are scaled to the same sum. The server waits
    until it knows of a loss, when the update should have arrived.
    """
    present = clients != EMPTY
    work_time = draw_work_times(key, clients, hyper)
    devices = draw_devices(key, hyper)

    def wait(taken: Array) -> Array:
        return hyper.clock.server_interact + taken.max(axis=-1)

    taken = times_in_rounds(devices, clients, work_time, wait)
    time = jnp.cumsum(wait(taken))
    version = jnp.broadcast_to(jnp.arange(clients.shape[0])[:, None], clients.shape)
    if devices.loss is not None:
        present = present & ~is_lost(devices, jnp.maximum(clients, 0), version)
        left = jnp.where(present, weight, 0)
        total, kept = (x.sum(axis=1, keepdims=True) for x in (weight, left))
        weight = left * (total / jnp.where(kept > 0, kept, 1))
        clients = jnp.where(present, clients, EMPTY)
    # A client keeps the model from which it started until it is selected again.
    return Timeline(
        time, clients, jnp.where(present, hyper.local_steps, 0), version, weight, holds=version
    )


def draw_work_times(key: Key, clients: Array, hyper: Rounds, steps: Array | None = None) -> Array:
    """Draw how long each slot's work takes under the delay law, or look it up in the trace.

    Args:
      clients: `i[T, S]`.
      steps: `i[T, S]`, local steps of each slot; None for `hyper.local_steps` everywhere.

    Returns:
      Virtual times, `f64[T, S]`; of any value in empty slots.
    """
    if hyper.delays.trace is not None:
        return _trace_time(clients, hyper)
    speeds = Speeds(*(leaf[clients] for leaf in draw_client_speeds(key, hyper)))
    is_by_step = steps is not None and hyper.delays.time_of == "step"
    num_times: Any = steps if is_by_step else hyper.times_per_update
    if hyper.clock.round_time == "mean":
        return num_times / speeds.rate
    key, ticks = stream(key, "runtimes"), jnp.arange(clients.shape[0])

    def draw(key: Key, num: int) -> Array:
        def tick(t: Array, speeds: Speeds) -> Array:
            return draw_runtimes(jax.random.fold_in(key, t), speeds, num, hyper.delays.runtime_law)

        return jax.vmap(tick)(ticks, speeds).sum(axis=-1)

    if hyper.clock.round_time == "one_draw":
        return draw(key, 1) * num_times
    if not is_by_step:
        return draw(key, hyper.times_per_update)

    def add(q: Array, total: Array) -> Array:
        return total + jnp.where(q < num_times, draw(jax.random.fold_in(key, q), 1), 0)

    nothing = jnp.zeros(clients.shape, speeds.rate.dtype)
    return jax.lax.fori_loop(0, num_times.max(), add, nothing)


def _trace_time(clients: Array, hyper: Rounds) -> Array:
    """Look up how long each slot's work takes in the recorded trace: `f64[T, S]`."""
    rows = hyper.recorded.by_client(hyper.num_clients)
    _, visit = previous_visits(clients)
    first = jnp.asarray(rows.first)
    row = first[clients] + visit % (first[clients + 1] - first[clients])
    return jnp.asarray(rows.finish - rows.start)[row]
