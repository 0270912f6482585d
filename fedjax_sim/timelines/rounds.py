"""Synchronous rounds: the server waits for the slowest of the clients it selected."""

import jax
import jax.numpy as jnp

from fedjax_sim.participation import cohorts, previous_visits
from fedjax_sim.settings import ConfigError, choice, count, real, struct
from fedjax_sim.streams import stream
from fedjax_sim.timelines.laws import Clients, Speeds, client_speeds, runtimes
from fedjax_sim.types import Array, Key, Timeline


@struct
class Rounds(Clients):
    """Settings of synchronous rounds."""

    num_selected: int = count(20)
    """S: size of the cohort."""
    server_interact: float = real(3.0, least=0)
    """Time that the exchange with the cohort takes."""
    round_time: str = choice("sum", ("sum", "one_draw", "mean"))
    """The cohort's time: the longest sum of K running times, K times the longest single draw, or K times the longest mean."""

    def check_together(self) -> None:
        super().check_together()
        if self.num_selected > self.num_clients:
            raise ConfigError("num_selected", self.num_selected, f"at most num_clients = {self.num_clients}")
        if self.trace is not None and len(set(self.trace.client.tolist())) < self.num_clients:
            raise ConfigError("trace", "a client without rows", "with rows of every client, as any may be selected")
        self.left_to_trace("round_time")


def rounds(key: Key, hyper: Rounds, num_ticks: int) -> Timeline:
    """Schedule synchronous rounds: everyone selected does K steps from the current model; weights are 1/S.

    A recorded trace gives the length of a client's work: its rows are used in order, over again when they are spent.
    """
    shape = (num_ticks, hyper.num_selected)
    clients = cohorts(stream(key, "cohorts"), hyper.num_clients, hyper.num_selected, num_ticks)
    work_time = _trace_time(clients, hyper) if hyper.trace is not None else _law_time(key, clients, hyper)
    time = jnp.cumsum(hyper.server_interact + work_time.max(axis=1))
    version = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    weight = jnp.full(shape, 1 / hyper.num_selected)
    # A client keeps the model that it started from until it is selected again.
    return Timeline(time, clients, jnp.full(shape, hyper.local_steps), version, weight, holds=version)


def _law_time(key: Key, clients: Array, hyper: Rounds) -> Array:
    speeds = Speeds(*(leaf[clients] for leaf in client_speeds(key, hyper)))
    if hyper.round_time == "mean":
        return hyper.times_per_update / speeds.rate
    num = hyper.times_per_update if hyper.round_time == "sum" else 1
    key = stream(key, "runtimes")
    draw = jax.vmap(lambda t, speeds: runtimes(jax.random.fold_in(key, t), speeds, num, hyper.runtime_law))
    return draw(jnp.arange(clients.shape[0]), speeds).sum(axis=-1) * (hyper.times_per_update / num)


def _trace_time(clients: Array, hyper: Rounds) -> Array:
    rows = hyper.trace.by_client(hyper.num_clients)
    _, visit = previous_visits(clients)
    first = jnp.asarray(rows.first)
    row = first[clients] + visit % (first[clients + 1] - first[clients])
    return jnp.asarray(rows.finish - rows.start)[row]
