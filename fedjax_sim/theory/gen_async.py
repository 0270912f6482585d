"""Generalized AsyncSGD as a closed queueing network: throughput, delays, energy, best settings.

C tasks wait in the queues of N clients. A finished one makes a server step and goes to client i
with probability p_i, busy or not (Leconte, Jonckheere, Samsonov and Moulines, arXiv 2405.00017; the
clock is `timelines.ClientQueues`). If client i takes exponential times of rate mu_i, this is a
closed Jackson network: numbers of tasks x have a probability proportional to the product of
(p_i / mu_i)^x_i over all clients. The sums G(0), ..., G(C) of these products follow from Buzen's
recursion, which adds one client after the other: here in logarithms, as a cumulative sum. All
functions of a routing can be differentiated by JAX.

By the arrival theorem a task finds the queues as if its network had C - 1 tasks, in which client i
has X_i of them on average. By Little's law, counted in server steps, a task sent to client i is
X_i / p_i steps old when it is finished, not counting its own.

`learning_steps` is derived here, not the papers': a bound on the number of steps, with absolute
constants left out. Let the gradient's noise have the variance B. Steps of size eta with weights
1 / (N p_i) have the noise V = B / N^2 sum_i 1 / p_i, and in D steps the model drifts by
eta^2 D V. With a smooth loss, the mean squared gradient after T steps is at most of the order of
gap / (eta T) + eta L V + eta^2 L^2 V D, with D the mean over clients of their delays. The step size
is the one that needs the fewest steps to a target.

Dimension letters: `N` clients, `C` tasks.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from fedjax_sim.core.settings import Above0, AtLeast0, ConfigError, Count, Limit, checked
from fedjax_sim.core.types import Array
from fedjax_sim.timelines import ClientTable

Routing = Annotated[npt.ArrayLike, Limit(above=0)]


class Prediction(NamedTuple):
    """Stationary means of a network.

    Attributes:
      throughput: Server steps per unit of time.
      delay: `f64[N]`, steps between sending a task to a client and its end.
      queue: `f64[N]`, tasks at a client, waiting or worked on.
      busy: `f64[N]`, share of time at work.
      energy: Energy of a server step; 0 if the table does not count it.
    """

    throughput: Array
    delay: Array
    queue: Array
    busy: Array
    energy: Array


@checked
class Learning(NamedTuple):
    """Constants of a learning problem.

    Attributes:
      gap: Initial loss above its lower bound.
      smoothness: L, the Lipschitz constant of the gradients.
      variance: B, of a stochastic gradient.
      target: Mean squared gradient to reach.
    """

    gap: Above0 = 1.0
    smoothness: Above0 = 1.0
    variance: Above0 = 1.0
    target: Above0 = 0.1


class Best(NamedTuple):
    """The settings found by `optimise`.

    Attributes:
      concurrency: C.
      routing: `f64[N]`, the probabilities p_i.
      time: Time to the target.
      energy: Energy to the target.
      of_concurrency: By each C that was tried: time and energy with its best routing.
    """

    concurrency: int
    routing: npt.NDArray[np.float64]
    time: float
    energy: float
    of_concurrency: dict[int, tuple[float, float]]


def log_constants(log_load: Array, concurrency: int) -> Array:
    """Compute log G(0), ..., log G(C) by Buzen's recursion.

    Args:
      log_load: `f[N]`, log(p_i / mu_i).
      concurrency: C.

    Returns:
      `f[C + 1]`.
    """
    tasks = jnp.arange(concurrency + 1)

    def add_client(log_sums: Array, load: Array) -> tuple[Array, None]:
        # g'(n) = g(n) + load g'(n - 1), so that g'(n) / load^n is a sum of g(m) / load^m, m <= n.
        return tasks * load + jax.lax.cumlogsumexp(log_sums - tasks * load), None

    return jax.lax.scan(add_client, tasks * log_load[0], log_load[1:])[0]


@checked
def predict(
    table: ClientTable,
    concurrency: Count,
    routing: Routing,
    *,
    local_steps: Count = 1,
    num_bytes: AtLeast0 = 0.0,
) -> Prediction:
    """Compute throughput, relative delays and energy of a network.

        table = timelines.ClientTable(rate=[1.0, 1.0])
        assert abs(predict(table, 3, [0.5, 0.5]).throughput - 1.5) < 1e-6  # 3 / 4 each at work

    Args:
      table: Clients with rates of whole tasks, `time_of="update"`; of one step this is the same.
      concurrency: C.
      routing: `[N]`, the probabilities p_i up to a common factor; they may be traced by JAX.
      local_steps: Local steps of a task, for their energy.
      num_bytes: Bytes that a task sends and receives, for their energy.

    Returns:
      Means, float64 if JAX's 64-bit types are enabled.

    Raises:
      ConfigError: If the table has no rates or those of steps of which a task has several, or has
        what exponential servers do not have.
    """
    rate, energy = _rates(table, local_steps), _energies(table, local_steps, num_bytes)
    return _predict(rate, energy, concurrency, routing)


def _rates(table: ClientTable, local_steps: int) -> npt.NDArray[np.float64]:
    """Check that clients are exponential servers, and return their rates of tasks."""
    has = {"up or down": table.has_bandwidth, "drop_rate": table.drop_rate is not None}
    has |= {"available": table.windows is not None, "spread above 0": bool(np.any(table.spread))}
    for name, found in has.items():
        if found:
            allowed = "without it, of clients with exponential times and nothing else"
            raise ConfigError("table", f"with {name}", allowed)
    if table.rate is None:
        raise ConfigError("table", "without rate", "with the clients' rates")
    if local_steps > 1 and table.time_of != "update":
        allowed = '"update" if local_steps is above 1: the sum of their times is not exponential'
        raise ConfigError("table.time_of", table.time_of, allowed)
    return table.rate


def _energies(table: ClientTable, local_steps: int, num_bytes: float) -> npt.NDArray[np.float64]:
    step, byte = (0.0 if x is None else x for x in (table.energy_step, table.energy_byte))
    return np.zeros(table.size) + local_steps * step + num_bytes * byte


def _predict(
    rate: npt.ArrayLike,
    energy: npt.ArrayLike,
    concurrency: int | Array,
    routing: npt.ArrayLike,
    most: int = 0,
) -> Prediction:
    """Compute the means; `most` bounds a concurrency that is traced."""
    share = jnp.asarray(routing, float)
    if share.shape != np.shape(rate):
        raise ConfigError("routing", f"of shape {share.shape}", f"{np.size(rate)} numbers above 0")
    share /= share.sum()
    log_load = jnp.log(share) - jnp.log(jnp.asarray(rate, float))
    most = most or int(concurrency)
    log_sums, k = log_constants(log_load, most), jnp.arange(1, most + 1)

    def mean_tasks(total: int | Array) -> Array:
        # P(X_i >= k) = load_i^k G(total - k) / G(total).
        ratio = log_sums[jnp.maximum(total - k, 0)] - log_sums[total]
        logs = jnp.outer(log_load, k) + ratio[None]
        return jnp.sum(jnp.exp(jnp.where((k <= total)[None], logs, -jnp.inf)), axis=1)

    throughput = jnp.exp(log_sums[concurrency - 1] - log_sums[concurrency])
    delay = mean_tasks(concurrency - 1) / share
    busy = throughput * jnp.exp(log_load)
    return Prediction(throughput, delay, mean_tasks(concurrency), busy, share @ jnp.asarray(energy))


@checked
def learning_steps(routing: Routing, delay: npt.ArrayLike, learning: Learning) -> Array:
    """Compute the server steps to the target with the best step size. Derived, see this module.

    Args:
      routing: `[N]`, the probabilities p_i up to a common factor.
      delay: `[N]`, the clients' relative delays, as from `predict`.
      learning: Constants of the problem.
    """
    gap, smoothness, variance, target = learning
    share = jnp.asarray(routing, float)
    share /= share.sum()
    slope = smoothness * variance * jnp.mean(1 / share) / share.size
    bend = smoothness * slope * jnp.mean(jnp.asarray(delay))
    size = target / (slope + jnp.sqrt(slope**2 + 3 * bend * target))
    return gap / (size * (target - slope * size - bend * size**2))


@checked
def optimise(
    table: ClientTable,
    concurrencies: Sequence[Count],
    learning: Learning,
    *,
    least: Literal["time", "energy", "product"] = "time",
    local_steps: Count = 1,
    num_bytes: AtLeast0 = 0.0,
    iterations: Count = 300,
) -> Best:
    """Find the routing and the concurrency with the least time or energy to a target.

    Routings follow projected gradients of the logarithm, with steps that grow after each success
    and shrink after each failure, for all concurrencies at the same time. They start from equal
    shares, or from shares in proportion to the rates if these are better.

        table = timelines.ClientTable(rate=[1.0, 4.0])
        assert optimise(table, [1, 2, 4], Learning()).routing[1] > 0.5

    Args:
      table: Clients with rates of whole tasks, as of `predict`.
      concurrencies: Values of C to try.
      learning: Constants of the problem.
      least: Time, energy, or their product.
      local_steps: Local steps of a task, for their energy.
      num_bytes: Bytes that a task sends and receives, for their energy.
      iterations: Steps of each search.

    Raises:
      ConfigError: If `predict` refuses the table, or it has no energy where that is asked for, or
        if there is no concurrency to try.
    """
    rate, energy = _rates(table, local_steps), _energies(table, local_steps, num_bytes)
    if least != "time" and not energy.all():
        raise ConfigError("least", least, "time for clients without energy_step or energy_byte")
    if len(concurrencies) == 0:
        raise ConfigError("concurrencies", concurrencies, "at least one number of tasks")
    most, powers = max(concurrencies), {"time": (1, 0), "energy": (0, 1), "product": (1, 1)}[least]

    def costs(share: Array, concurrency: Array) -> Array:
        found = _predict(rate, energy, concurrency, share, most)
        steps = learning_steps(share, found.delay, learning)
        return jnp.stack([steps / found.throughput, steps * found.energy])

    def loss(share: Array, concurrency: Array) -> Array:
        wanted = zip(powers, costs(share, concurrency), strict=True)
        return sum((jnp.log(cost) for power, cost in wanted if power), jnp.zeros(()))

    def search(concurrency: Array) -> tuple[Array, Array]:
        def improve(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            share, value, slope, size = state
            moved = optax.projections.projection_simplex(share - size * slope)
            new, new_slope = jax.value_and_grad(loss)(moved, concurrency)
            better = (new < value) & jnp.all(moved > 0) & jnp.all(jnp.isfinite(new_slope))
            kept = (jnp.where(better, x, y) for x, y in ((moved, share), (new, value)))
            return *kept, jnp.where(better, new_slope, slope), size * jnp.where(better, 1.5, 0.5)

        firsts = jnp.stack([jnp.full(table.size, 1 / table.size), rate / rate.sum()])
        share = firsts[jnp.argmin(jax.vmap(loss, (0, None))(firsts, concurrency))]
        begun = jax.value_and_grad(loss)(share, concurrency)
        start = (share, *begun, jnp.asarray(0.1 / table.size))
        share = jax.lax.fori_loop(0, iterations, improve, start)[0]
        return share, costs(share, concurrency)

    with jax.enable_x64(True):
        shares, found = map(np.asarray, jax.jit(jax.vmap(search))(jnp.asarray(concurrencies)))
    place = int(np.argmin(np.log(np.where(found > 0, found, 1)) @ powers))
    by = {int(c): (float(x), float(y)) for c, (x, y) in zip(concurrencies, found, strict=True)}
    return Best(int(concurrencies[place]), shares[place], *by[int(concurrencies[place])], by)
