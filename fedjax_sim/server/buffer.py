"""What systems with a buffer of updates share: weights from staleness, and a server that moves by a weighted sum of progress."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.gradient_steps import local_sgd
from fedjax_sim.server.aggregation import (
    base_model_variance,
    read_rows,
    store_of,
    weighted_sum,
    write_row,
)
from fedjax_sim.server.staleness import StalenessWeights, staleness_weights
from fedjax_sim.settings import redefault, struct
from fedjax_sim.timelines import Arrivals, schedule_arrivals
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Hyper,
    Key,
    Params,
    Plan,
    Problem,
    Timeline,
    Work,
)


@struct
class StaleArrivals(Arrivals, StalenessWeights):
    """Arrivals weighted by staleness; by default of the clients of FedStaleWeight's experiments, which never wait for the server.

    Ten are fast, with times U(1, 2) of an update, and the last five slow, with U(8, 12) (arXiv 2406.02877, Sec. 6).
    """

    num_clients: int = redefault(Arrivals, "num_clients", 15)
    local_steps: int = redefault(Arrivals, "local_steps", 1)
    slow_clients: str = redefault(Arrivals, "slow_clients", "last")
    rate_fast: float = redefault(Arrivals, "rate_fast", 1 / 1.5)
    rate_slow: float = redefault(Arrivals, "rate_slow", 1 / 10)
    runtime_law: str = redefault(Arrivals, "runtime_law", "runtime_uniform")
    spread_fast: float = redefault(Arrivals, "spread_fast", 1 / 3)
    spread_slow: float = redefault(Arrivals, "spread_slow", 1 / 5)
    time_of: str = redefault(Arrivals, "time_of", "update")
    buffer_size: int = redefault(Arrivals, "buffer_size", 5)
    server_interact: float = redefault(Arrivals, "server_interact", 0.0)
    restart: str = redefault(Arrivals, "restart", "free")
    ties: str = redefault(Arrivals, "ties", "client")


def schedule_stale_arrivals(key: Key, hyper: Any, num_ticks: int) -> Timeline:
    """Schedule buffered arrivals of `StaleArrivals`, weighted by their clients' staleness."""
    schedule = schedule_arrivals(key, hyper, num_ticks)
    staleness = jnp.arange(num_ticks)[:, None] - schedule.version
    return schedule._replace(
        weight=staleness_weights(schedule.clients, staleness, hyper, num_clients=hyper.num_clients)
    )


class State(NamedTuple):
    server: Params  # [...]
    versions: Params  # [R, ...]  server models that somebody works from


def buffered_sgd(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind buffered aggregation to a problem: w <- w - server_lr * sum_j weight_j (base_j - y_j), y_j reached by local SGD from base_j.

    hyper: local training's settings and `server_lr`. Weights are those of the timeline.
    """

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, store_of(server, plan.rows))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = read_rows(state.versions, event.read)  # base[i], a stale server model
        local, work = local_sgd(problem, hyper, plan, key, start, event)
        delta = jax.tree.map(lambda a, b: a - b, start, local)  # delta[i] = base[i] - y[i]
        mean = weighted_sum(event.weight, delta)
        server = jax.tree.map(lambda w, d: w - hyper.server_lr * d, state.server, mean)
        return State(server, write_row(state.versions, event.write, server)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": base_model_variance(state.versions, holders, state.server)}

    return Algorithm(init, step, lambda state: state.server, report)
